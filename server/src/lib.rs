//! The program `counterfoil`. Its parts are public for measuring and testing: they may change with each version.

mod commands;
pub mod connections;
mod contract;
pub mod http;
pub mod mcp;
pub mod metrics;
pub mod owner;
mod provider;
mod retry;
pub mod stdio;
pub mod stop;
pub mod tokens;
mod upkeep;
mod worker;

use clap::{Parser, Subcommand};
use commands::{backup, call, operations, provider as provider_command, resolve, restore, serve, sweep, token, work};
use host_example::commands::{Failure, LogFormat, Options, Tools, Verify, log};
use std::process::ExitCode;

/// Tools that are safe to retry: calls them, works for them, and keeps their database.
///
/// Exit codes: 0 succeeded; 1 failed, with nothing called unless stderr says to repeat the call with the same key; 2 wrong
/// usage, nothing was called; 3 refused, nothing was changed; 4 refused, and the same call with the same key can succeed
/// later. For verify, 1 is also that something is wrong. A call that is refused as unconfirmed may have committed.
///
/// In the environment: COUNTERFOIL_RETENTION, how long receipts are kept (30days unless set, at least 1day);
/// COUNTERFOIL_DEADLINE, by when an effect outside the database must have been sent (24h unless set, at least 1s);
/// COUNTERFOIL_CACHE, how many megabytes of the database an instance keeps in memory (16 unless set, 1 to 32).
///
/// Logs go to stderr, filtered by RUST_LOG (for example RUST_LOG=debug). They never hold arguments, results
/// or keys.
#[derive(Parser)]
#[command(name = "counterfoil", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// How the log is written.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Call(call::Call),
    Tools(Tools),
    Verify(Verify),
    Serve(Box<serve::Serve>),
    Token(token::Token),
    Work(work::Work),
    Operations(operations::Operations),
    Resolve(resolve::Resolve),
    Sweep(sweep::Sweep),
    Backup(backup::Backup),
    Restore(restore::Restore),
    Restored(restore::Restored),
    Provider(provider_command::Provider),
}

/// Runs the program, and tells what it exits with.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { options, log_format, command } = Cli::parse();
    log(&["counterfoil_server", "host_example"], log_format);
    let done = match command {
        Command::Call(command) => command.run(&options),
        Command::Tools(command) => command.run(&options),
        Command::Verify(command) => command.run(&options),
        Command::Serve(command) => command.run(&options),
        Command::Token(command) => command.run(&options),
        Command::Work(command) => command.run(&options),
        Command::Operations(command) => command.run(&options),
        Command::Resolve(command) => command.run(&options),
        Command::Sweep(command) => command.run(&options),
        Command::Backup(command) => command.run(&options),
        Command::Restore(command) => command.run(&options),
        Command::Restored(command) => command.run(&options),
        Command::Provider(command) => provider_command::run(command).map(|()| ExitCode::SUCCESS).map_err(Failure::from),
    };
    done.unwrap_or_else(Failure::report)
}
