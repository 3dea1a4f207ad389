//! `verify`: whether the database is whole.

use super::{Failure, Options, operator, say};
use crate::Limits;
use clap::Args;
use std::process::ExitCode;

/// Checks the database: SQLite's integrity check, and one receipt to every effect.
#[derive(Args, Clone, Copy, Debug)]
pub struct Verify {}

impl Verify {
    /// Prints `ok` on stdout, or what is wrong, a line each, with exit code 1.
    ///
    /// # Errors
    ///
    /// As for [`Options::existing`] and [`Options::host`], or if the component traps or refuses, or stdout does not take
    /// the verdict.
    pub fn run(&self, options: &Options) -> Result<ExitCode, Failure> {
        let storage = options.existing()?;
        let operator = operator("maintain");
        let mut instance = options.host(Limits::operator())?.instance(move |_| Some(operator.clone()), storage)?;
        let wrong = instance.verify()?.map_err(|refusal| Failure::refused(&refusal))?;
        let verdict = if wrong.is_empty() { "ok".to_owned() } else { wrong.join("\n") };
        say(verdict)?;
        Ok(ExitCode::from(u8::from(!wrong.is_empty())))
    }
}
