//! `restore` and `restored`: an older copy is put in place, and is not believed until an operator says so.

use super::backup::copy;
use clap::Args;
use host_example::commands::{Failure, Options, operator, say};
use host_example::{Files, Instance, Limits, Restoration};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// Makes the database --db, which must not be there, of a copy, and marks it: what was committed after the copy was made is
/// lost, so a key without a receipt is refused as `unconfirmed`, and operations that have not ended count as possibly
/// sent, until `restored --accept`.
#[derive(Args)]
pub struct Restore {
    /// The copy, as `backup` made it.
    file: PathBuf,
}

/// Shows whether the database is marked as restored, and accepts it.
#[derive(Args)]
pub struct Restored {
    /// Take the mark away: keys without a receipt are new again, and operations that the copy says were not sent count as
    /// not sent. Do so once you know what was done after the copy was made, and that nobody will ask for it again.
    #[arg(long)]
    accept: bool,
}

impl Restore {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let database = options.database()?;
        if fs::metadata(&self.file).map_or(0, |file| file.len()) == 0 {
            return Err(Failure::usage(format!("{} is not there, or empty", self.file.display())));
        }
        // Standalone components that use the name would go on with what was moved away.
        drop(Files::shared(database)?);
        // Before it has its name it has its mark. Removed also if a step fails.
        let draft = beside(database, ".restoring");
        if let Some(taken) = [database, &draft].into_iter().find(|path| path.exists()) {
            return Err(Failure::usage(format!(
                "{} is there already: stop all who use it and move it away, with its -journal, -wal and -lock",
                taken.display()
            )));
        }
        copy(options, &Files::shared(&self.file)?, &self.file, &draft)?;
        let draft = Draft(draft);
        let mut permissions = fs::metadata(&draft.0)?.permissions();
        // A copy that was put away may be read-only.
        permissions.set_mode(permissions.mode() | 0o200);
        fs::set_permissions(&draft.0, permissions)?;
        let restoration = {
            let mut instance = instance(options, &draft.0)?;
            let restoration = instance.mark_restored()?.map_err(|refusal| Failure::refused(&refusal))?;
            let wrong = instance.verify()?.map_err(|refusal| Failure::refused(&refusal))?;
            if !wrong.is_empty() {
                return Err(format!("{} is damaged: {}", self.file.display(), wrong.join("; ")).into());
            }
            restoration
        };
        copy(options, &Files::shared(&draft.0)?, &draft.0, database)?;
        say(format_args!(
            "{} is restored. {}\nAccept it with `counterfoil --db {} restored --accept`.",
            database.display(),
            meaning(restoration),
            database.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Restored {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        drop(options.existing()?);
        let mut instance = instance(options, options.database()?)?;
        let found = if self.accept { instance.accept_restored()? } else { instance.restored()? };
        let text = match found.map_err(|refusal| Failure::refused(&refusal))? {
            None => "not marked as restored".to_owned(),
            Some(restoration) if self.accept => format!(
                "accepted: keys without a receipt are new again, and {} unfinished operations are as the copy has them",
                restoration.unfinished
            ),
            Some(restoration) => {
                let since = UNIX_EPOCH + Duration::from_millis(restoration.since);
                format!("restored since {}. {}", humantime::format_rfc3339_millis(since), meaning(restoration))
            }
        };
        say(text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn meaning(Restoration { unfinished, .. }: Restoration) -> String {
    format!(
        "Keys without a receipt are refused as unconfirmed, and {unfinished} unfinished operations count as possibly sent."
    )
}

fn instance(options: &Options, database: &Path) -> Result<Instance, Failure> {
    let host = options.host(Limits::operator())?;
    Ok(host.instance(|_| Some(operator("maintain")), Files::shared(database)?)?)
}

fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(ending);
    name.into()
}

struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        for ending in ["", "-journal", "-lock"] {
            drop(fs::remove_file(beside(&self.0, ending)));
        }
    }
}
