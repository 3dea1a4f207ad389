//! `backup`: a copy as of the last commit.

use clap::Args;
use host_example::commands::{Failure, Options, operator, say};
use host_example::{CopyError, Files, Limits};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Copies the database, as of its last commit, to a new file, which is there only once it is whole. Others may use the
/// database meanwhile, unless one process owns it.
#[derive(Args)]
pub struct Backup {
    /// The copy; it must not be there.
    file: PathBuf,
}

/// How long to wait for those who are writing.
const WAIT: Duration = Duration::from_secs(2);

impl Backup {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let files = options.existing()?;
        copy(options, &files, options.database()?, &self.file)?;
        say(format_args!("{} is a copy of {}", self.file.display(), options.database()?.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Copies a database. What a dead process left is settled first, by opening it.
pub fn copy(options: &Options, files: &Files, from: &Path, to: &Path) -> Result<(), Failure> {
    // Whoever dies may do so again between two looks.
    const TRIES: u32 = 5;
    for _ in 1..TRIES {
        match files.copy(to, WAIT) {
            Err(CopyError::Unsettled(_)) => {
                let mut opener =
                    options.host(Limits::operator())?.instance(|_| Some(operator("maintain")), Files::shared(from)?)?;
                opener.restored()?.map_err(|refusal| Failure::refused(&refusal))?;
            }
            result => return Ok(result?),
        }
    }
    Ok(files.copy(to, WAIT)?)
}
