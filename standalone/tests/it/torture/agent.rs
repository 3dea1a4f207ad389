//! What an agent does all day: it writes down what it is about to do, calls a fresh instance, and writes down the answer.

use crate::plain::Deployment;
use fastrand::Rng;
use host_example::types::Refusal;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// A call that changes something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub key: String,
    pub what: What,
    /// Whether the arguments are others than those with which the key was first used.
    pub is_other: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Of so many characters.
    Note(usize),
    /// Of an automation, at the version that was read.
    Edit(String, u32),
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Done(Effect, bool),
    Refused(String, String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    pub operation: String,
    /// The note or automation.
    pub resource: String,
    /// Of the automation.
    pub version: Option<u32>,
}

/// A line of a log. Times are milliseconds since 1970-01-01T00:00:00Z.
#[derive(Serialize, Deserialize)]
pub enum Line {
    Begins { number: u64, at: u64, call: Call },
    Ended { number: u64, at: u64, outcome: Outcome },
}

impl Call {
    /// It follows from the key, so that logs need not hold it.
    pub fn body(&self) -> Option<String> {
        let What::Note(length) = self.what else { return None };
        let other = if self.is_other { "other" } else { "" };
        Some(other.chars().chain(self.key.chars()).chain(['\u{1f95b}']).cycle().take(length).collect())
    }

    pub fn minutes(&self) -> u32 {
        5 + self.key.bytes().map(u32::from).sum::<u32>() % 1_000 + u32::from(self.is_other)
    }

    fn answer(&self, deployment: &Deployment) -> Result<(Effect, bool), Refusal> {
        Ok(match (&self.what, self.body()) {
            (What::Edit(id, version), _) => {
                let minutes = self.minutes();
                let edited =
                    deployment.call(|tools, store| tools.call_set_interval(store, &self.key, id, *version, minutes))?;
                let version = Some(edited.automation.version);
                let (operation, resource) = (edited.receipt.operation_id, edited.automation.automation_id);
                (Effect { operation, resource, version }, edited.receipt.replayed)
            }
            (What::Note(_), body) => {
                let note = deployment.create_note(&self.key, &body.unwrap_or_default())?;
                let (operation, resource) = (note.receipt.operation_id, note.note_id);
                (Effect { operation, resource, version: None }, note.receipt.replayed)
            }
        })
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// One file of a process, each line of which is stored with one write: a kill leaves whole lines.
pub struct Log(File);

impl Log {
    pub fn new(file: &Path) -> Log {
        Log(OpenOptions::new().create(true).append(true).open(file).unwrap())
    }

    fn write(&self, line: &Line) {
        let line = format!("{}\n", serde_json::to_string(line).unwrap());
        assert_eq!((&self.0).write(line.as_bytes()).unwrap(), line.len());
    }

    /// Makes the call on a fresh instance.
    pub fn make(&self, deployment: &Deployment, call: &Call) -> Outcome {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let number = CALLS.fetch_add(1, Relaxed);
        self.write(&Line::Begins { number, at: now(), call: call.clone() });
        let outcome = match call.answer(deployment) {
            Ok((effect, replayed)) => Outcome::Done(effect, replayed),
            Err(refusal) => Outcome::Refused(code(&refusal), refusal.message),
        };
        self.write(&Line::Ended { number, at: now(), outcome: outcome.clone() });
        outcome
    }
}

pub fn code(refusal: &Refusal) -> String {
    format!("{:?}", refusal.code).replace("RefusalCode::", "")
}

/// New notes and edits, and repeats of what was answered, until `ends`.
pub fn work(who: &str, mut random: Rng, deployment: &Deployment, automations: &[String], log: &Log, ends: &AtomicBool) {
    let mut answered: Vec<Call> = Vec::new();
    let mut next = 0;
    while !ends.load(Relaxed) {
        next += 1;
        let key = format!("{who}-{next}");
        let call = match (random.u32(0..10), random.choice(&answered)) {
            (0 | 1, Some(call)) => call.clone(),
            (2, Some(call)) => Call { is_other: true, ..call.clone() },
            (3 | 4, _) => {
                let id = random.choice(automations).unwrap();
                let read = deployment.call(|tools, store| tools.call_get_automation(store, id));
                let version = match read {
                    Ok(automation) => automation.version,
                    Err(refusal) if ["Busy", "Unavailable"].contains(&code(&refusal).as_str()) => continue,
                    Err(refusal) => panic!("a read was refused: {refusal:?}"),
                };
                Call { key, what: What::Edit(id.clone(), version), is_other: false }
            }
            _ => {
                let longest = if random.u32(0..4) == 0 { 10_000 } else { 200 };
                Call { key, what: What::Note(random.usize(1..=longest)), is_other: false }
            }
        };
        if let Outcome::Done(_, false) = log.make(deployment, &call) {
            answered.push(call);
        }
    }
}
