//! What the program `host-example` does, a file a command with its arguments and one `run`, so that another program can
//! have the same commands beside its own.
//!
//! ```no_run
//! use clap::Parser;
//! use host_example::commands::{Call, Failure, LogFormat, Options, Verify, log};
//! use std::process::ExitCode;
//!
//! /// Calls tools.
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(flatten)]
//!     options: Options,
//!     #[command(subcommand)]
//!     command: Command,
//! }
//!
//! #[derive(clap::Subcommand)]
//! enum Command {
//!     Call(Call),
//!     Verify(Verify),
//! }
//!
//! fn main() -> ExitCode {
//!     log(&["host_example"], LogFormat::Text);
//!     let Cli { options, command } = Cli::parse();
//!     let done = match command {
//!         Command::Call(call) => call.run(&options),
//!         Command::Verify(verify) => verify.run(&options),
//!     };
//!     done.unwrap_or_else(Failure::report)
//! }
//! ```

mod call;
mod options;
mod tools;
mod verify;

pub use call::{Call, Format, Prepared};
pub use options::{Options, operator};
pub use tools::Tools;
pub use verify::Verify;

use crate::types::Refusal;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Why a command failed: an exit code, and what to print.
///
/// | Code | |
/// |---|---|
/// | 1 | failed, with nothing called unless the error says to repeat the call with the same key |
/// | 2 | wrong usage, nothing was called |
/// | 3 | refused, nothing was changed |
/// | 4 | refused, and the same call with the same key can succeed later |
///
/// An error that `?` turns into a failure has code 1.
#[derive(Debug)]
pub struct Failure(pub u8, pub Box<dyn Error + Send + Sync>);

impl Failure {
    /// Wrong usage.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure(2, error.into())
    }

    /// What the component refused, and what to do now.
    #[must_use]
    pub fn refused(refusal: &Refusal) -> Failure {
        let text = format!("{} {}", refusal.message, refusal.next_action);
        Failure(refused(refusal.retryable), text.into())
    }

    /// A call that ended in a trap.
    #[must_use]
    pub fn uncertain(trap: &wasmtime::Error) -> Failure {
        format!("the call may have committed or not: repeat it with the same key: {trap:#}").into()
    }

    /// Prints the error and its causes on stderr. A stderr that takes nothing changes nothing about the exit code.
    #[must_use]
    pub fn report(self) -> ExitCode {
        let mut text = self.1.to_string();
        let mut cause = self.1.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        drop(writeln!(io::stderr(), "error: {text}"));
        ExitCode::from(self.0)
    }
}

/// Prints what a command has done or found on stdout.
///
/// # Errors
///
/// If stdout does not take it. The error says it, since it is so all the same.
pub fn say(text: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("stdout does not take this ({error}): {text}").into())
}

/// Prints a part of a list on stdout, and answers whether more is wanted: not once the reader has gone away, as `head` does.
///
/// # Errors
///
/// If stdout does not take it.
pub fn show(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("stdout does not take the list: {error}").into()),
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(1, error.into())
    }
}

/// The exit code of a refusal.
#[must_use]
pub fn refused(retryable: bool) -> u8 {
    if retryable { 4 } else { 3 }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for each event, for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// Logs to stderr what the crates named in `ours` say, at level info or as RUST_LOG asks ([`EnvFilter`] tells the form). What
/// other crates say is not logged, whatever RUST_LOG asks for: it may hold what they pass on. Where the program logs already,
/// that stays.
pub fn log(ours: &'static [&'static str], format: LogFormat) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::default().add_directive(LevelFilter::INFO.into()));
    let is_ours = filter_fn(|event| {
        ours.iter().any(|name| event.target() == *name || event.target().starts_with(&format!("{name}::")))
    });
    let filter = filter.and(is_ours);
    // A log that cannot be written must not end a call that has committed.
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_filter(filter).boxed(),
    };
    drop(tracing_subscriber::registry().with(layer).try_init());
}
