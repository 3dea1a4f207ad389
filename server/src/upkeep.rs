//! Upkeep beside the calls, through their queue: sweeping, moving the log into the file, copies.

use crate::metrics::{Ended, Metrics};
use crate::owner::{Owner, OwnerError};
use clap::Args;
use host_example::Files;
use humantime::parse_duration;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tracing::{error, info, warn};

#[derive(Args)]
pub struct Upkeep {
    /// How often expired receipts become tombstones, at least 1s.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = at_least_a_second)]
    sweep_every: Duration,
    /// Where to put copies of the database, named by the time: a folder of this database's own, which must be there.
    #[arg(long, value_name = "FOLDER")]
    backup: Option<PathBuf>,
    /// How often to make a copy, at least 1s; the first one at once, unless a newer one is there. Calls wait while the file is copied.
    #[arg(long, value_name = "DURATION", default_value = "1day", requires = "backup", value_parser = at_least_a_second)]
    backup_every: Duration,
    /// How many copies to keep: of those that bear its name, older ones are removed.
    #[arg(long, value_name = "N", default_value = "7", requires = "backup", value_parser = clap::value_parser!(u32).range(1..))]
    backup_keep: u32,
}

fn at_least_a_second(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    if duration < Duration::from_secs(1) { Err("expected at least 1s".to_owned()) } else { Ok(duration) }
}

/// In one turn of the queue.
const SWEEP: u32 = 500;
const MAINTAIN: &str = "maintain";

impl Upkeep {
    /// # Errors
    ///
    /// If the folder for copies is none.
    pub fn check(&self) -> Result<(), String> {
        match &self.backup {
            Some(folder) if !folder.is_dir() => Err(format!("--backup: {} is no folder", folder.display())),
            _ => Ok(()),
        }
    }

    /// Until it is dropped. `files` are the owner's, and the names of copies begin with `name`.
    pub async fn run(self, owner: Arc<Owner>, metrics: Arc<Metrics>, files: Files, name: String) {
        let files = Arc::new(files);
        // As often as it is asked to, and not as often as the server starts.
        let newest = self.backup.as_ref().and_then(|folder| copies(folder, &name).ok()?.pop());
        let age = newest.map(|(time, _)| SystemTime::now().duration_since(time).unwrap_or_default());
        let first = age.map(|age| self.backup_every.saturating_sub(age)).unwrap_or_default();
        let mut sweeps = interval(self.sweep_every);
        let mut backups = interval_at(Instant::now() + first, self.backup_every);
        for ticks in [&mut sweeps, &mut backups] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = sweeps.tick() => {
                    if let Err(error) = tidy(&owner).await {
                        warn!(%error, "not swept: tried again next time");
                    }
                }
                _ = backups.tick(), if self.backup.is_some() => {
                    let Some(folder) = &self.backup else { continue };
                    let outcome = match self.back_up(&owner, &files, folder, &name).await {
                        Ok(()) => "made",
                        Err(error) => {
                            error!(%error, "no copy was made");
                            "failed"
                        }
                    };
                    metrics.backups.get_or_create(&Ended { outcome }).inc();
                }
            }
        }
    }

    async fn back_up(&self, owner: &Owner, files: &Arc<Files>, folder: &Path, name: &str) -> Result<(), String> {
        remove_partial(folder, name).map_err(|error| format!("what is left of a copy cannot be removed: {error}"))?;
        let copy = folder.join(copy_name(name, SystemTime::now()));
        copy_to(owner, files, copy.clone()).await?;
        info!(copy = %copy.display(), "copied");
        let mut others = copies(folder, name).map_err(|error| format!("older copies cannot be listed: {error}"))?;
        // Also where the clock was ahead once: the one that was just made stays.
        others.retain(|(_, path)| *path != copy);
        others.truncate((others.len() + 1).saturating_sub(self.backup_keep as usize));
        for (_, path) in others {
            if let Err(error) = fs::remove_file(&path) {
                warn!(copy = %path.display(), %error, "an older copy cannot be removed");
            }
        }
        Ok(())
    }
}

async fn tidy(owner: &Owner) -> Result<(), OwnerError> {
    let mut swept = 0;
    loop {
        let step = owner.run(MAINTAIN, |instance| instance.sweep(SWEEP)).await?;
        swept += u64::from(step);
        if step < SWEEP {
            break;
        }
    }
    if swept > 0 {
        info!(swept, "receipts swept");
    }
    owner.run(MAINTAIN, host_example::Instance::checkpoint).await
}

/// The bytes are copied between two batches, when the log is in the file.
async fn copy_to(owner: &Owner, files: &Arc<Files>, to: PathBuf) -> Result<(), String> {
    let files = Arc::clone(files);
    let copied =
        owner.run(MAINTAIN, move |instance| Ok(instance.checkpoint()?.map(|()| files.copy(&to, Duration::ZERO))));
    copied.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Names in the order of time. Two copies in a second are one too many.
fn copy_name(name: &str, time: SystemTime) -> String {
    let time = humantime::format_rfc3339_seconds(time).to_string().replace([':', '-'], "");
    format!("{name}-{time}.db")
}

/// When that copy was made, if the file is one of the database's.
fn time(name: &str, file: &Path) -> Option<SystemTime> {
    let file = file.file_name()?.to_str()?;
    let time = file.strip_prefix(name)?.strip_prefix('-')?.strip_suffix(".db")?;
    let part = |range| time.get(range);
    let [year, month, day] = [part(0..4)?, part(4..6)?, part(6..8)?];
    let [hour, minute, second] = [part(9..11)?, part(11..13)?, part(13..15)?];
    let found = humantime::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z")).ok()?;
    // It is written the same, letter by letter.
    (file == copy_name(name, found)).then_some(found)
}

/// The copies in the folder, the newest last.
fn copies(folder: &Path, name: &str) -> io::Result<Vec<(SystemTime, PathBuf)>> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(time) = time(name, &path).filter(|_| path.is_file()) {
            copies.push((time, path));
        }
    }
    copies.sort();
    Ok(copies)
}

/// What a process that was killed left of its copies. Nobody else makes any: the database is ours.
fn remove_partial(folder: &Path, name: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "partial") && time(name, &path.with_extension("")).is_some() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;

    #[test]
    fn only_the_databases_own_copies_are_known_and_by_their_time() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "notes-20261130T000000Z.db",
            "notes-20261129T235959Z.db",
            "notes-before_migration.db",
            "notes-2025-diary-final.db",
            "notes-0ld_but_precious.db",
            "notes-20261301T000000Z.db",
            "notes-20261130t000000Z.db",
            "notes-20261130T000000Z.db.partial",
            "notes-old.db.partial",
            "more-notes-20261130T000000Z.db",
        ];
        for name in names {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("notes-20261128T000000Z.db")).unwrap();

        let found: Vec<_> = copies(folder.path(), "notes").unwrap().into_iter().map(|(_, path)| path).collect();
        remove_partial(folder.path(), "notes").unwrap();

        assert_eq!(found, [names[1], names[0]].map(|name| folder.path().join(name)));
        assert!(!folder.path().join(names[7]).exists() && folder.path().join(names[8]).exists());
    }
}
