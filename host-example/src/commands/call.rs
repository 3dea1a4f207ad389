//! `call`: one tool, once. Whoever tries more than once takes the steps of [`Call::run`] one by one.

use super::{Failure, Options, refused};
use crate::{Description, Instance, Limits, Reply};
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

/// Calls a tool and prints its reply, one JSON object, on stdout.
#[derive(Args, Clone, Debug)]
pub struct Call {
    /// The tool's name in snake_case.
    tool: String,
    /// A JSON object, `-` to read it from stdin, or `@FILE` to read it from a file. If it has no idempotency_key
    /// and the tool takes one, a key is made and printed on stderr before the call: repeat a call whose answer
    /// was lost with that key.
    json: String,
    #[arg(long, default_value = "json")]
    format: Format,
}

/// How a reply is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The reply as it came.
    Json,
    /// A line for each field, for people.
    Text,
}

/// A call that is ready to be made as often as need be: it carries the same key each time.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub tool: String,
    /// JSON, not looked into: what is wrong with it, the component says.
    pub arguments: String,
}

impl Call {
    /// Makes the call once, and prints its reply.
    ///
    /// # Errors
    ///
    /// As for the steps. After code 1 the call may have committed if the error says so, which happens where the instance
    /// trapped or the reply could not be printed.
    pub fn run(&self, options: &Options) -> Result<ExitCode, Failure> {
        let caller = options.principal()?;
        let storage = options.shared()?;
        let mut prepared = self.prepare()?;
        let mut instance = options.host(Limits::default())?.instance(move |_| Some(caller.clone()), storage)?;
        prepared.ensure_key(&mut instance)?;
        let reply = prepared.attempt(&mut instance).map_err(|trap| Failure::uncertain(&trap))?;
        self.print(&reply)
    }

    /// Reads the arguments.
    ///
    /// # Errors
    ///
    /// If the file or stdin cannot be read or is no UTF-8: wrong usage.
    pub fn prepare(&self) -> Result<Prepared, Failure> {
        let json = &self.json;
        let read = match json.strip_prefix('@') {
            Some(file) => fs::read_to_string(file),
            None if json == "-" => io::read_to_string(io::stdin()),
            None => Ok(json.clone()),
        };
        let arguments =
            read.map_err(|error| Failure::usage(format!("cannot read the arguments from {json}: {error}")))?;
        Ok(Prepared { tool: self.tool.clone(), arguments })
    }

    /// Prints the reply in the format asked for, and answers the exit code that it stands for.
    ///
    /// # Errors
    ///
    /// If it is no JSON object, or stdout does not take it. The call is settled: repeated with the same key, it is
    /// answered the same.
    pub fn print(&self, reply: &Reply) -> Result<ExitCode, Failure> {
        let fields: serde_json::Map<String, Value> = serde_json::from_str(&reply.body)?;
        let shown = match self.format {
            Format::Json => format!("{}\n", reply.body),
            Format::Text => fields.iter().map(|(name, value)| format!("{name}: {}\n", text(value))).collect(),
        };
        io::stdout().write_all(shown.as_bytes()).map_err(|error| {
            format!("the call was answered, but the answer cannot be printed: {error}: repeat it with the same key")
        })?;
        let retryable = fields.get("retryable") == Some(&Value::Bool(true));
        Ok(ExitCode::from(if reply.refused { refused(retryable) } else { 0 }))
    }
}

impl Prepared {
    /// Where only a key is missing, and the tool takes one, makes a key, prints it on stderr, and adds it.
    ///
    /// # Errors
    ///
    /// If the instance traps, or the key cannot be printed: a key is useless if nobody has it. Nothing was called, and the
    /// arguments are as they were.
    pub fn ensure_key(&mut self, instance: &mut Instance) -> Result<(), Failure> {
        if !lacks_key(&self.arguments) {
            return Ok(());
        }
        if instance.describe()?.iter().any(|known| known.name == self.tool && takes_key(known)) {
            let key = uuid::Uuid::new_v4();
            writeln!(io::stderr(), "idempotency_key: {key}")
                .map_err(|error| format!("nothing was called, since its key cannot be printed: {error}"))?;
            self.arguments = with_key(&self.arguments, &key.to_string());
        }
        Ok(())
    }

    /// Makes the call once.
    ///
    /// # Errors
    ///
    /// A trap: the call committed or not. Make it again, on a new instance ([`Instance::is_spent`]), or fail as
    /// [`Failure::uncertain`].
    pub fn attempt(&self, instance: &mut Instance) -> wasmtime::Result<Reply> {
        instance.call_one(&self.tool, &self.arguments)
    }
}

/// Whether the caller makes a key for this tool. The key that a query takes is one of an earlier call.
fn takes_key(tool: &Description) -> bool {
    let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
    !tool.read_only && !schema["properties"]["idempotency_key"].is_null()
}

/// Whether these are arguments to which only a key is missing.
fn lacks_key(arguments: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, Value>>(arguments)
        .is_ok_and(|arguments| !arguments.contains_key("idempotency_key"))
}

/// The text of an object, otherwise left as it stands.
fn with_key(arguments: &str, key: &str) -> String {
    let rest = arguments.trim_start().trim_start_matches('{').trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!(r#"{{"idempotency_key":"{key}"{comma}{rest}"#)
}

/// Text as it is, unless it would break out of its line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) if !text.contains(char::is_control) => text.clone(),
        value => value.to_string(),
    }
}
