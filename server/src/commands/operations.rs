//! `operations`: what has become of effects outside the database, of all workspaces.
//!
//! Neither what callers asked for nor what a provider said is shown. That includes the component's own `next_action`, which
//! names the provider's key and resource: what is to be done is said here by the state alone.

use crate::worker::state_name;
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use host_example::commands::{Failure, Options, operator, show};
use host_example::types::State;
use host_example::{Instance, Limits, ListedOperation};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lists operations whose effect is outside the database, those of all callers, the oldest first. What they were to do and what
/// a provider said of them is not shown: get_operation tells more of one. They are read 500 at a time, while others go on:
/// one whose state changes meanwhile may be missing.
#[derive(Args)]
pub struct Operations {
    /// Those in these states, separated by commas: accepted, running, succeeded, failed, cancel_requested, cancelled,
    /// outcome_unknown [default: the unfinished ones: accepted,running,cancel_requested,outcome_unknown].
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,
    /// Those in any state.
    #[arg(long, conflicts_with = "state")]
    all: bool,
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A line for each, for people. Its columns are named again after every 500.
    Table,
    /// An array with an object for each.
    Json,
}

/// How many are read at a time.
const PAGE: u32 = 500;

const STATES: [State; 7] = [
    State::Accepted,
    State::Running,
    State::Succeeded,
    State::Failed,
    State::CancelRequested,
    State::Cancelled,
    State::OutcomeUnknown,
];
const UNFINISHED: [State; 4] = [State::Accepted, State::Running, State::CancelRequested, State::OutcomeUnknown];

fn state(text: &str) -> Result<State, String> {
    let named = STATES.into_iter().find(|state| state_name(*state) == text);
    named.ok_or_else(|| format!("expected one of {}", STATES.map(state_name).join(", ")))
}

impl Operations {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let states: Vec<_> = match (self.all, self.state.as_slice()) {
            (true, _) => vec![None],
            (false, []) => UNFINISHED.map(Some).to_vec(),
            (false, states) => states.iter().copied().map(Some).collect(),
        };
        let files = options.existing()?;
        let mut instance = options.host(Limits::operator())?.instance(|_| Some(operator("maintain")), files)?;
        let mut after = None;
        loop {
            let page = page(&mut instance, &states, after.as_deref())?;
            let is_last = page.len() < PAGE as usize;
            let text = match self.format {
                Format::Table if page.is_empty() && after.is_none() => none(&states),
                Format::Table => table(&page),
                Format::Json => json(&page, after.is_none(), is_last)?,
            };
            if !show(&text)? || is_last {
                return Ok(ExitCode::SUCCESS);
            }
            after = page.into_iter().next_back().map(|listed| listed.operation.operation_id);
        }
    }
}

/// The next operations in any of the states, at most a page of them.
fn page(
    instance: &mut Instance,
    states: &[Option<State>],
    after: Option<&str>,
) -> Result<Vec<ListedOperation>, Failure> {
    let mut page = Vec::new();
    for state in states {
        let listed = instance.list_operations(*state, after, PAGE)?;
        page.extend(listed.map_err(|refusal| Failure::refused(&refusal))?);
    }
    let id = |listed: &ListedOperation| listed.operation.operation_id.clone();
    page.sort_by_cached_key(id);
    // One that has just changed its state may be in two of the answers.
    page.dedup_by_key(|listed| id(listed));
    page.truncate(PAGE as usize);
    Ok(page)
}

/// The states that were looked for are named: which these are by default is easily forgotten.
fn none(states: &[Option<State>]) -> String {
    let names: Vec<_> = states.iter().flatten().map(|state| state_name(*state)).collect();
    if names.is_empty() {
        "There is no operation.\n".to_owned()
    } else {
        format!("No operation is {}.\n", names.join(" or "))
    }
}

fn table(page: &[ListedOperation]) -> String {
    if page.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["OPERATION", "TOOL", "CALLER", "STATE", "FOR", "AGE", "ATTEMPTS", "NEXT ACTION"]);
    for ListedOperation { workspace, subject, started_at, operation } in page {
        table.add_row([
            operation.operation_id.clone(),
            printable(&operation.tool),
            printable(&format!("{subject}@{workspace}")),
            state_name(operation.state).to_owned(),
            ago(operation.since),
            ago(*started_at),
            operation.attempts.to_string(),
            next_action(operation.state).to_owned(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

/// Names come from outside: one must not break a line, or tell the terminal what to do.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// How long it has been, in whole seconds.
fn ago(time: u64) -> String {
    let since = SystemTime::now().duration_since(at(time)).unwrap_or_default();
    humantime::format_duration(Duration::from_secs(since.as_secs())).to_string()
}

fn at(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(milliseconds)
}

#[derive(Serialize)]
struct Line<'a> {
    operation_id: &'a str,
    tool: &'a str,
    workspace: &'a str,
    subject: &'a str,
    started_at: String,
    state: &'a str,
    since: String,
    attempts: u32,
    next_action: &'a str,
}

/// A part of the array, an object a line.
fn json(page: &[ListedOperation], is_first: bool, is_last: bool) -> serde_json::Result<String> {
    let mut text = if is_first { "[".to_owned() } else { String::new() };
    let mut separator = if is_first { "" } else { ",\n" };
    for ListedOperation { workspace, subject, started_at, operation } in page {
        let line = Line {
            operation_id: &operation.operation_id,
            tool: &operation.tool,
            workspace,
            subject,
            started_at: humantime::format_rfc3339_millis(at(*started_at)).to_string(),
            state: state_name(operation.state),
            since: humantime::format_rfc3339_millis(at(operation.since)).to_string(),
            attempts: operation.attempts,
            next_action: next_action(operation.state),
        };
        text.push_str(separator);
        text.push_str(&serde_json::to_string(&line)?);
        separator = ",\n";
    }
    if is_last {
        text.push_str("]\n");
    }
    Ok(text)
}

/// What an operator is to do.
fn next_action(state: State) -> &'static str {
    match state {
        State::Accepted => "None: a worker sends it.",
        State::Running => "None: a worker follows it.",
        State::CancelRequested => "None: a worker finds out whether it stopped.",
        State::OutcomeUnknown => "Check at the provider, by this id as client reference, and record it with resolve.",
        State::Succeeded | State::Failed | State::Cancelled => "None: it has ended.",
    }
}
