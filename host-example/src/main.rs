//! Calls counterfoil's tools on a database file, to try things with. What the commands do stands in the library.

use clap::{Parser, Subcommand};
use host_example::commands::{self, Call, Failure, LogFormat, Options, Tools, Verify};
use std::process::ExitCode;

/// Calls tools that are safe to retry.
///
/// Exit codes: 0 succeeded; 1 failed, with nothing called unless stderr says to repeat the call with the same key; 2 wrong
/// usage, nothing was called; 3 refused, nothing was changed; 4 refused, and the same call with the same key can succeed
/// later. For verify, 1 is also that something is wrong.
///
/// Logs go to stderr, filtered by RUST_LOG (for example RUST_LOG=host_example=debug). They never hold arguments,
/// results or keys.
#[derive(Parser)]
#[command(name = "host-example", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Call(Call),
    Tools(Tools),
    Verify(Verify),
}

fn main() -> ExitCode {
    commands::log(&["host_example"], LogFormat::Text);
    let Cli { options, command } = Cli::parse();
    let done = match command {
        Command::Call(call) => call.run(&options),
        Command::Tools(tools) => tools.run(&options),
        Command::Verify(verify) => verify.run(&options),
    };
    done.unwrap_or_else(Failure::report)
}
