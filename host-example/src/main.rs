//! Calls counterfoil's tools on a database file: one page, to read and to try things with.

use clap::{Args, Parser, Subcommand, ValueEnum};
use host_example::{Files, Host, Limits, Principal, Reply};
use serde_json::Value;
use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
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
    /// The component [default: the one that `cargo xtask component` built].
    #[arg(long, global = true, value_name = "FILE")]
    component: Option<PathBuf>,
    /// The database; made if it is not there.
    #[arg(long, global = true, value_name = "FILE")]
    db: Option<PathBuf>,
    #[command(flatten)]
    caller: Caller,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Caller {
    /// Who is calling.
    #[arg(long = "as", global = true, value_name = "SUBJECT@WORKSPACE", value_parser = subject)]
    subject: Option<(String, String)>,
    /// What the caller may do, separated by commas: read, write-notes, write-automations.
    #[arg(long, global = true, value_name = "PERMISSIONS", value_delimiter = ',')]
    allow: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Calls a tool and prints its reply, one JSON object, on stdout.
    Call {
        /// The tool's name in snake_case.
        tool: String,
        /// A JSON object, `-` to read it from stdin, or `@FILE` to read it from a file. If it has no idempotency_key
        /// and the tool takes one, a key is made and printed on stderr before the call: repeat a call whose answer
        /// was lost with that key.
        json: String,
        #[arg(long, default_value = "json")]
        format: Format,
    },
    /// Lists the tools: names, descriptions, and the JSON Schemas of arguments and replies.
    Tools,
    /// Checks the database: SQLite's integrity check, and one receipt to every effect.
    Verify,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The reply as it came.
    Json,
    /// A line for each field, for people.
    Text,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "host_example=info".into());
    let colours = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours);
    // A log that cannot be written must not end a call that has committed.
    log.log_internal_errors(false).init();
    run(Cli::parse()).unwrap_or_else(|Failure(code, error)| {
        drop(writeln!(io::stderr(), "error: {error}"));
        ExitCode::from(code)
    })
}

/// An exit code and what to print.
struct Failure(u8, Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(1, error.into())
    }
}

fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
    Failure(2, error.into())
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let component = cli.component.map_or_else(built_component, Ok).map_err(usage)?;
    let host = || Host::load(&component, Limits::default()).map_err(|error| format!("{error:#}"));
    match cli.command {
        Command::Call { tool, json, format } => {
            let principal = cli.caller.principal()?;
            let storage = open(cli.db.as_deref())?;
            let mut arguments = arguments(&json)?;
            let mut instance = host()?.instance(move |_| Some(principal.clone()), storage)?;
            if lacks_key(&arguments) && instance.describe()?.iter().any(|known| known.name == tool && !known.read_only)
            {
                arguments = with_new_key(&arguments)?;
            }
            let reply = instance.call_one(&tool, &arguments).map_err(|error| {
                format!("the call may have committed or not: repeat it with the same key: {error:#}")
            })?;
            print(&reply, format)
        }
        Command::Tools => {
            // To describe themselves they open no database.
            let mut instance = host()?.instance(|_| None, Files::shared(&component.with_extension("none"))?)?;
            let mut out = io::stdout().lock();
            for tool in instance.describe()? {
                let permission = tool.permission.as_deref().unwrap_or("see the description");
                writeln!(out, "{}\n  permission: {permission}\n  {}", tool.name, tool.description)?;
                writeln!(out, "  arguments: {}\n  reply: {}\n", tool.input_schema, tool.output_schema)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Verify => {
            let operator = Principal {
                workspace: String::new(),
                subject: "operator".to_owned(),
                permissions: vec!["maintain".to_owned()],
            };
            let storage = open(cli.db.as_deref())?;
            if !cli.db.is_some_and(|file| file.exists()) {
                return Err(usage("there is no such database"));
            }
            let wrong = host()?.instance(move |_| Some(operator.clone()), storage)?.verify()?;
            let wrong = wrong.map_err(|refusal| {
                let code = refused(refusal.retryable);
                Failure(code, format!("{} {}", refusal.message, refusal.next_action).into())
            })?;
            let verdict = if wrong.is_empty() { "ok".to_owned() } else { wrong.join("\n") };
            writeln!(io::stdout(), "{verdict}")?;
            Ok(ExitCode::from(u8::from(!wrong.is_empty())))
        }
    }
}

/// In the target folder, in which this program is as well.
fn built_component() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let built = |folder: &Path| folder.join("counterfoil.wasm");
    let found = program.ancestors().map(built).find(|file| file.is_file());
    found.ok_or_else(|| "there is no component: run `cargo xtask component`, or name it with --component".to_owned())
}

fn open(database: Option<&Path>) -> Result<Files, Failure> {
    Ok(Files::shared(database.ok_or_else(|| usage("--db FILE is missing"))?)?)
}

fn subject(text: &str) -> Result<(String, String), String> {
    match text.split_once('@') {
        Some((subject, workspace)) if !subject.is_empty() && !workspace.is_empty() => {
            Ok((subject.to_owned(), workspace.to_owned()))
        }
        _ => Err("expected SUBJECT@WORKSPACE, such as ada@acme".to_owned()),
    }
}

impl Caller {
    fn principal(self) -> Result<Principal, Failure> {
        let (subject, workspace) = self.subject.ok_or_else(|| usage("--as SUBJECT@WORKSPACE is missing"))?;
        let permissions = self.allow.iter().map(|name| name.trim().to_owned()).collect();
        Ok(Principal { workspace, subject, permissions })
    }
}

fn arguments(json: &str) -> Result<String, Failure> {
    let read = match json.strip_prefix('@') {
        Some(file) => fs::read_to_string(file),
        None if json == "-" => io::read_to_string(io::stdin()),
        None => return Ok(json.to_owned()),
    };
    read.map_err(|error| usage(format!("cannot read the arguments from {json}: {error}")))
}

/// Whether these are arguments to which only a key is missing: what is wrong otherwise, the component says.
fn lacks_key(arguments: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, Value>>(arguments)
        .is_ok_and(|arguments| !arguments.contains_key("idempotency_key"))
}

/// The key is useless if nobody has it, so it is printed before the call, or there is none.
fn with_new_key(arguments: &str) -> Result<String, Failure> {
    let key = uuid::Uuid::new_v4();
    writeln!(io::stderr(), "idempotency_key: {key}")
        .map_err(|error| format!("nothing was called, since its key cannot be printed: {error}"))?;
    let rest = arguments.trim_start().trim_start_matches('{').trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    Ok(format!(r#"{{"idempotency_key":"{key}"{comma}{rest}"#))
}

fn print(reply: &Reply, format: Format) -> Result<ExitCode, Failure> {
    let fields: serde_json::Map<String, Value> = serde_json::from_str(&reply.body)?;
    let shown = match format {
        Format::Json => format!("{}\n", reply.body),
        Format::Text => fields.iter().map(|(name, value)| format!("{name}: {}\n", text(value))).collect(),
    };
    io::stdout().write_all(shown.as_bytes()).map_err(|error| {
        format!("the call was answered, but the answer cannot be printed: {error}: repeat it with the same key")
    })?;
    let retryable = fields.get("retryable") == Some(&Value::Bool(true));
    Ok(ExitCode::from(if reply.refused { refused(retryable) } else { 0 }))
}

fn refused(retryable: bool) -> u8 {
    if retryable { 4 } else { 3 }
}

/// Text as it is, unless it would break out of its line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) if !text.contains(char::is_control) => text.clone(),
        value => value.to_string(),
    }
}
