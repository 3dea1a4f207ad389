//! What callers ask for, as the JSON that a server is sent.

use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Work {
    /// A new note.
    New,
    /// A new interval for an automation of the caller's own.
    Edit,
    /// An earlier call once more.
    Replay,
    /// An earlier key with other arguments, which is refused.
    Conflict,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::New => "new",
            Work::Edit => "edit",
            Work::Replay => "replay",
            Work::Conflict => "conflict",
        }
    }

    /// What a right answer contains.
    fn expected(self) -> &'static str {
        match self {
            Work::New | Work::Edit => r#""replayed":false"#,
            Work::Replay => r#""replayed":true"#,
            Work::Conflict => r#""code":"key_conflict""#,
        }
    }
}

pub struct Call {
    pub tool: &'static str,
    pub arguments: String,
}

impl Call {
    fn new(tool: &'static str, arguments: &Value) -> Call {
        Call { tool, arguments: arguments.to_string() }
    }

    /// A note, under a key as callers make them: random.
    pub fn note() -> Call {
        note(&Uuid::new_v4().to_string(), "Milk, bread, and a screwdriver.")
    }

    pub fn automation() -> Call {
        Call::new(
            "create_automation",
            &json!({ "idempotency_key": Uuid::new_v4().to_string(), "interval_minutes": 60 }),
        )
    }
}

pub fn note(key: &str, body: &str) -> Call {
    Call::new("create_note", &json!({ "idempotency_key": key, "body": body }))
}

/// What a contender's database has from the start.
#[derive(Clone)]
pub struct Prepared {
    /// The keys of notes.
    pub keys: Arc<Vec<String>>,
    /// One automation for each caller.
    pub automations: Arc<Vec<String>>,
}

/// One caller's calls.
pub struct Caller {
    work: Work,
    prepared: Prepared,
    made: usize,
    automation: String,
    version: u64,
}

impl Caller {
    pub fn new(work: Work, number: usize, prepared: &Prepared, version: u64) -> Caller {
        let automation = prepared.automations.get(number).cloned().unwrap_or_default();
        // Each begins elsewhere.
        Caller { work, prepared: prepared.clone(), made: number * 37, automation, version }
    }

    pub fn next(&mut self) -> Call {
        self.made += 1;
        let earlier = || &self.prepared.keys[self.made % self.prepared.keys.len()];
        match self.work {
            Work::New => Call::note(),
            Work::Replay => note(earlier(), "prepared"),
            Work::Conflict => note(earlier(), "something else"),
            Work::Edit => Call::new(
                "set_interval",
                &json!({
                    "idempotency_key": Uuid::new_v4().to_string(),
                    "automation_id": self.automation,
                    "expected_version": self.version,
                    "interval_minutes": 5 + self.made % 1000,
                }),
            ),
        }
    }

    /// Whether the answer is the right one.
    pub fn accepts(&mut self, answer: &str) -> bool {
        let is_right = answer.contains(self.work.expected());
        self.version += u64::from(is_right);
        is_right
    }

    /// The version of its automation.
    pub fn version(&self) -> u64 {
        self.version
    }
}
