//! Upkeep beside the calls, through their queue: sweeping, moving the log into the file, copies.

use crate::owner::{Owner, OwnerError};
use clap::Args;
use host_example::Files;
use humantime::parse_duration;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

#[derive(Args)]
pub struct Upkeep {
    /// How often expired receipts become tombstones, at least 1s.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = at_least_a_second)]
    sweep_every: Duration,
    /// Where to put copies of the database, named by the time; the folder must be there.
    #[arg(long, value_name = "FOLDER")]
    backup: Option<PathBuf>,
    /// How often to make a copy, at least 1s; the first one at once. Calls wait while the file is copied.
    #[arg(long, value_name = "DURATION", default_value = "1day", requires = "backup", value_parser = at_least_a_second)]
    backup_every: Duration,
    /// How many copies to keep: older ones are removed.
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
    pub async fn run(self, owner: Arc<Owner>, files: Files, name: String) {
        let files = Arc::new(files);
        let (mut sweeps, mut backups) = (interval(self.sweep_every), interval(self.backup_every));
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
                    if let Err(error) = self.back_up(&owner, &files, folder, &name).await {
                        error!(%error, "no copy was made");
                    }
                }
            }
        }
    }

    async fn back_up(&self, owner: &Owner, files: &Arc<Files>, folder: &Path, name: &str) -> Result<(), String> {
        let copy = folder.join(copy_name(name, SystemTime::now()));
        copy_to(owner, files, copy.clone()).await?;
        info!(copy = %copy.display(), "copied");
        let old =
            old(folder, name, self.backup_keep as usize).and_then(|old| old.into_iter().try_for_each(fs::remove_file));
        old.map_err(|error| format!("an older copy cannot be removed: {error}"))
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

/// The copies in the folder, but for the newest.
fn old(folder: &Path, name: &str, keep: usize) -> io::Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let time = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".db"));
        if time.is_some_and(|time| time.len() == "20260101T000000Z".len()) {
            copies.push(path);
        }
    }
    copies.sort();
    copies.truncate(copies.len().saturating_sub(keep));
    Ok(copies)
}
