//! What a caller, a worker and an operator do, one thing at a time, and what each must be told when it asks again.

use super::stage::Stage;
use crate::harness::Client;
use crate::outbox_harness::{LEASE, finished};
use host_example::{Invocation, ProviderContract};
use serde_json::Value;
use std::collections::BTreeMap;

/// A value of the arguments such as `$note` stands for the id that was answered last.
#[derive(Clone, Debug)]
pub enum Step {
    Call(&'static str, Value),
    Batch(Vec<(&'static str, Value)>),
    Claim,
    /// The provider has done what the worker was given.
    Settle,
    /// A person found that it happened.
    Resolve,
    Sweep,
    Checkpoint,
    Close,
    Mark,
    Accept,
}

/// The ids that were answered last.
pub type Names = BTreeMap<&'static str, String>;

/// Refused or cut off, since storage failed or died: the code, or `trap`, and what was said. Any other refusal is an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDone(pub &'static str, pub String);

impl NotDone {
    /// Whether it says that nothing was changed.
    pub fn is_undone(&self) -> bool {
        self.0 == "unavailable"
    }
}

impl From<wasmtime::Error> for NotDone {
    fn from(trap: wasmtime::Error) -> Self {
        NotDone("trap", format!("{trap:#}"))
    }
}

impl From<host_example::types::Refusal> for NotDone {
    fn from(refusal: host_example::types::Refusal) -> Self {
        use host_example::types::RefusalCode as Code;
        let code = match refusal.code {
            Code::Unavailable => "unavailable",
            Code::Unconfirmed => "unconfirmed",
            Code::Busy => "busy",
            _ => "another refusal",
        };
        NotDone(code, refusal.message)
    }
}

impl Step {
    /// Takes the step. The answer is the same text for the same answer.
    pub fn take(
        &self,
        stage: &Stage,
        client: &mut Client,
        contract: &ProviderContract,
        names: &mut Names,
    ) -> Result<String, NotDone> {
        let instance = &mut client.instance;
        Ok(match self {
            Step::Call(tool, arguments) => {
                let reply = instance.call_one(tool, &filled(arguments, names))?;
                let body = answer(reply.body)?;
                learn(&body, names);
                body
            }
            Step::Batch(calls) => {
                let invocation = |(tool, arguments): &(&str, Value)| Invocation {
                    tool: (*tool).to_owned(),
                    arguments: filled(arguments, names),
                };
                let replies = instance.call(&calls.iter().map(invocation).collect::<Vec<_>>())?;
                let has_acted = replies.iter().any(|reply| !reply.refused);
                let bodies: Result<Vec<_>, _> = replies.into_iter().map(|reply| answer(reply.body)).collect();
                // A refusal undoes its own call alone.
                let bodies =
                    bodies.map_err(|error| if has_acted { NotDone("partly", String::new()) } else { error })?;
                bodies.iter().for_each(|body| learn(body, names));
                bodies.join("\n")
            }
            Step::Claim => {
                let tasks = instance.claim(64, LEASE as u32, contract)??.tasks;
                if let Some(task) = tasks.first() {
                    names.insert("$attempt", task.attempt_id.clone());
                }
                format!("{tasks:?}")
            }
            Step::Settle => {
                let mut operation = None;
                // If nobody was told of the attempt, it is in hand until its lease is over.
                if !names.contains_key("$attempt") {
                    stage.clock.advance(LEASE);
                    let tasks = instance.claim(64, LEASE as u32, contract)??.tasks;
                    if let Some(task) = tasks.first() {
                        names.insert("$attempt", task.attempt_id.clone());
                    } else {
                        operation = Some(instance.resolve(&names["$operation"], true, Some("d-1"))??);
                    }
                }
                let operation = match operation {
                    Some(operation) => operation,
                    None => instance.settle(&names["$attempt"], &finished())??,
                };
                format!("{:?} {:?}", operation.state, operation.resource_id)
            }
            Step::Resolve => {
                let operation = instance.resolve(&names["$operation"], true, Some("d-1"))??;
                format!("{:?} {:?}", operation.state, operation.resource_id)
            }
            Step::Sweep => format!("{:?}", instance.sweep(100)??),
            Step::Checkpoint => format!("{:?}", instance.checkpoint()??),
            Step::Close => format!("{:?}", instance.close()??),
            Step::Mark => format!("{:?}", Some(instance.mark_restored()??)),
            Step::Accept => format!("{:?}", instance.accept_restored()??),
        })
    }

    /// Asks again, after the answer `told`, and before the steps after it are taken: it holds.
    pub fn recall(
        &self,
        stage: &Stage,
        client: &mut Client,
        contract: &ProviderContract,
        names: &Names,
        told: &str,
    ) -> Result<(), String> {
        let mut names = names.clone();
        let expected = match self {
            // Refusals are not remembered.
            Step::Call(..) if is_refused(told) => return Ok(()),
            Step::Call(..) | Step::Batch(_) => {
                // What has a receipt is a replay now.
                let replay = |line: &str| {
                    if line.contains(VALID) { line.replace(FRESH, REPLAY) } else { line.to_owned() }
                };
                told.lines().map(replay).collect::<Vec<_>>().join("\n")
            }
            Step::Claim => "[]".to_owned(),
            Step::Sweep => "0".to_owned(),
            Step::Mark | Step::Accept => {
                let expected = if matches!(self, Step::Mark) { told } else { "None" };
                let found = client.instance.restored().map_err(|trap| format!("{trap:?}"))?;
                let found = found.map_err(|refusal| format!("{refusal:?}"))?;
                return is_same(self, expected, &format!("{found:?}"));
            }
            _ => told.to_owned(),
        };
        match self.take(stage, client, contract, &mut names) {
            Ok(again) => is_same(self, &expected, &again),
            Err(error) => Err(format!("{self:?} is answered {error:?}, and before: {told}")),
        }
    }

    /// What it is answered if it has happened already, unless that is the same.
    pub fn answer_if_done(&self) -> Option<&'static str> {
        match self {
            Step::Claim => Some("[]"),
            Step::Sweep => Some("0"),
            Step::Accept => Some("None"),
            _ => None,
        }
    }
}

const FRESH: &str = r#""replayed":false"#;
/// A field of every answer that has a receipt.
const VALID: &str = r#""valid_until":"#;
const REPLAY: &str = r#""replayed":true"#;

fn is_same(step: &Step, expected: &str, found: &str) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{step:?}: expected {expected}, found {found}")) }
}

fn is_refused(body: &str) -> bool {
    body.contains(r#""status":"refused""#)
}

/// A refusal for storage is no answer.
fn answer(body: String) -> Result<String, NotDone> {
    if !is_refused(&body) {
        return Ok(body);
    }
    let refusal: Value = serde_json::from_str(&body).unwrap_or_default();
    let code = match refusal["code"].as_str() {
        Some("busy") => "busy",
        Some("unavailable") => "unavailable",
        // Of a restored copy it is an answer.
        Some("unconfirmed") if refusal["retryable"] == true => "unconfirmed",
        _ => return Ok(body),
    };
    Err(NotDone(code, refusal["message"].to_string()))
}

fn filled(arguments: &Value, names: &Names) -> String {
    let mut text = arguments.to_string();
    for (name, id) in names {
        text = text.replace(&format!("\"{name}\""), &format!("\"{id}\""));
    }
    text
}

/// From what has a receipt.
fn learn(body: &str, names: &mut Names) {
    if !body.contains(VALID) {
        return;
    }
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    for (name, field) in [("$note", "note_id"), ("$automation", "automation_id"), ("$operation", "operation_id")] {
        if let Some(id) = body[field].as_str() {
            names.insert(name, id.to_owned());
        }
    }
}

/// The answer without ids, which differ from one run to another, and as the first one.
pub fn as_first(answer: &str) -> String {
    without_ids(answer).replace(REPLAY, FRESH)
}

pub fn without_ids(answer: &str) -> String {
    let bytes = answer.as_bytes();
    let is_id = |at: usize| {
        bytes.get(at..at + 36).is_some_and(|id| {
            [8, 13, 18, 23].iter().all(|&dash| id[dash] == b'-')
                && id.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')
        })
    };
    let mut text = String::with_capacity(answer.len());
    let (mut from, mut at) = (0, 0);
    while at < bytes.len() {
        // Every id stands behind a quotation mark.
        if bytes[at] == b'"' && is_id(at + 1) {
            text += &answer[from..=at];
            text.push('#');
            at += 37;
            from = at;
        } else {
            at += 1;
        }
    }
    text + &answer[from..]
}
