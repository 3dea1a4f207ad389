//! `token`: who may call over HTTP.

use crate::tokens;
use clap::{Args, Subcommand};
use host_example::commands::{Failure, Options};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Tokens for `serve --http`.
#[derive(Args)]
pub struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(New),
}

/// Makes a token for the caller that --as and --allow name (read-metrics lets it read /metrics), and prints it: it is shown once, and kept nowhere. Its hash goes
/// to the end of the file; a server that uses the file knows it at once. To revoke a token, remove its entry from the file.
#[derive(Args)]
struct New {
    /// The file of tokens, which is made if it is not there.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Which token this is, to find it in the file; no two have one name. To rotate a token, make another one for the same caller,
    /// with another name, and remove the entry of the old one when nobody uses it any more.
    #[arg(long)]
    name: String,
    /// How long it is valid [default: until it is removed].
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    valid_for: Option<Duration>,
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let most = Duration::from_secs(100 * 365 * 86_400);
    if lifetime > most { Err("expected at most 100years".to_owned()) } else { Ok(lifetime) }
}

impl Token {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let Command::New(New { tokens, name, valid_for }) = self.command;
        let principal = options.principal()?;
        if principal.permissions.is_empty() {
            return Err(Failure::usage("--allow PERMISSIONS is missing: the token could do nothing"));
        }
        let token = tokens::add(&tokens, &name, &principal, valid_for)?;
        writeln!(io::stdout(), "{token}").map_err(|error| {
            format!("the token cannot be printed ({error}): remove the entry {name:?} from {}", tokens.display())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
