//! What a history is made of, and how histories are made: a universe so small that keys, resources and versions collide.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Subject and workspace. One of the subjects is in both workspaces.
pub const CALLERS: [(&str, &str); 4] = [("ada", "acme"), ("bo", "acme"), ("ada", "other"), ("cy", "other")];
pub const PERMISSIONS: [&str; 4] = ["read", "write-notes", "write-automations", "deploy"];
pub const KEYS: [&str; 3] = ["k1", "k2", "k3"];
/// The number of what nobody was told of.
pub const LAST: usize = 7;
/// The tools that take a key.
pub const KEYED: [&str; 4] = ["create_note", "create_automation", "set_interval", "start_deployment"];
/// The last of each is refused.
const TEXTS: [&str; 3] = ["one", "two", ""];
const MINUTES: [u32; 3] = [10, 20, 4];

/// A call. In a plan a resource is the n-th of its kind that anybody was told of, and in what is asked its id; likewise a version
/// is that which was told last, if it is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Call<Id> {
    CreateNote { key: &'static str, body: &'static str },
    CreateAutomation { key: &'static str, minutes: u32 },
    SetInterval { key: &'static str, automation: Id, version: Option<u32>, minutes: u32 },
    StartDeployment { key: &'static str, revision: &'static str },
    CancelOperation(Id),
    GetNote(Id),
    GetAutomation(Id),
    GetOperation(Id),
    FindOperation { tool: &'static str, key: &'static str },
}

/// What ids name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Note,
    Automation,
    Operation,
    Deployment,
}

use Call::*;

impl<Id> Call<Id> {
    pub fn tool(&self) -> &'static str {
        match self {
            CreateNote { .. } => "create_note",
            CreateAutomation { .. } => "create_automation",
            SetInterval { .. } => "set_interval",
            StartDeployment { .. } => "start_deployment",
            CancelOperation(_) => "cancel_operation",
            GetNote(_) => "get_note",
            GetAutomation(_) => "get_automation",
            GetOperation(_) => "get_operation",
            FindOperation { .. } => "find_operation",
        }
    }

    pub fn permission(&self) -> &'static str {
        match self {
            FindOperation { tool, .. } => permission_of(tool),
            other => permission_of(other.tool()),
        }
    }

    /// The tool and key under which its receipt is kept, or that are asked about.
    pub fn key(&self) -> Option<(&'static str, &'static str)> {
        match self {
            CreateNote { key, .. }
            | CreateAutomation { key, .. }
            | SetInterval { key, .. }
            | StartDeployment { key, .. } => Some((self.tool(), key)),
            FindOperation { tool, key } => Some((tool, key)),
            _ => None,
        }
    }

    pub fn is_valid(&self) -> bool {
        match self {
            CreateNote { body: text, .. } | StartDeployment { revision: text, .. } => !text.is_empty(),
            CreateAutomation { minutes, .. } | SetInterval { minutes, .. } => *minutes >= 5,
            _ => true,
        }
    }

    /// The same call, key included, with another argument.
    pub fn with_other_arguments(mut self) -> Call<Id> {
        match &mut self {
            CreateNote { body: text, .. } | StartDeployment { revision: text, .. } => {
                *text = if *text == TEXTS[0] { TEXTS[1] } else { TEXTS[0] };
            }
            SetInterval { version, .. } => *version = version.map(|version| version % 3 + 1),
            CreateAutomation { minutes, .. } => {
                *minutes = if *minutes == MINUTES[0] { MINUTES[1] } else { MINUTES[0] };
            }
            _ => {}
        }
        self
    }

    /// What is planned, as it is asked.
    pub fn resolve(self, id: impl Fn(Kind, Id) -> String, version: impl Fn(&str) -> u32) -> Call<String> {
        match self {
            CreateNote { key, body } => CreateNote { key, body },
            CreateAutomation { key, minutes } => CreateAutomation { key, minutes },
            SetInterval { key, automation, version: expected, minutes } => {
                let automation = id(Kind::Automation, automation);
                let expected = expected.unwrap_or_else(|| version(&automation));
                SetInterval { key, automation, version: Some(expected), minutes }
            }
            StartDeployment { key, revision } => StartDeployment { key, revision },
            CancelOperation(of) => CancelOperation(id(Kind::Deployment, of)),
            GetNote(of) => GetNote(id(Kind::Note, of)),
            GetAutomation(of) => GetAutomation(id(Kind::Automation, of)),
            GetOperation(of) => GetOperation(id(Kind::Operation, of)),
            FindOperation { tool, key } => FindOperation { tool, key },
        }
    }
}

fn permission_of(tool: &str) -> &'static str {
    match tool {
        "create_note" => "write-notes",
        "create_automation" | "set_interval" => "write-automations",
        "start_deployment" | "cancel_operation" => "deploy",
        _ => "read",
    }
}

impl Call<String> {
    pub fn arguments(&self) -> Value {
        match self {
            CreateNote { key, body } => json!({ "idempotency_key": key, "body": body }),
            CreateAutomation { key, minutes } => json!({ "idempotency_key": key, "interval_minutes": minutes }),
            SetInterval { key, automation, version, minutes } => json!({
                "idempotency_key": key,
                "automation_id": automation,
                "expected_version": version,
                "interval_minutes": minutes,
            }),
            StartDeployment { key, revision } => {
                json!({ "idempotency_key": key, "service": "web", "revision": revision })
            }
            CancelOperation(id) | GetOperation(id) => json!({ "operation_id": id }),
            GetNote(id) => json!({ "note_id": id }),
            GetAutomation(id) => json!({ "automation_id": id }),
            FindOperation { tool, key } => json!({ "tool": tool, "idempotency_key": key }),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Attempt {
    /// By the n-th of [`CALLERS`].
    New(usize, Call<usize>),
    /// The n-th call that was made, counting from the last, by its caller.
    Again(usize),
    /// The same with other arguments.
    AgainOtherwise(usize),
}

/// What is one commit.
#[derive(Clone, Debug)]
pub enum Deed {
    Calls(Vec<Attempt>),
    Sweep,
}

/// How storage breaks, in one call to it.
#[derive(Clone, Copy, Debug)]
pub enum Breaks {
    Dies,
    /// It fails, having done nothing.
    Fails,
    HasNoSpace,
    /// A sync fails, and the system forgets what it did not write. Under sole alone: elsewhere it only fails.
    Forgets,
}

#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// With the same instance, if it can still be used.
    GoOn,
    /// The page cache stays.
    Kill,
    /// What was not synced may be lost, as the seed says.
    PowerCut(u64),
}

/// In which mode the next instance opens the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Same,
    Sole,
    Shared,
    SoleAtomic,
}

/// What a worker sees of each operation that it is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    Finished,
    Failed,
    /// It tells nothing, ever.
    Nothing,
}

#[derive(Clone, Debug)]
pub enum Step {
    Do(Deed),
    Break {
        deed: Deed,
        breaks: Breaks,
        at: u64,
        then: Then,
        next: Mode,
    },
    /// Cleanly or not.
    Restart {
        closes: bool,
        next: Mode,
    },
    Revoke(usize, &'static str),
    Grant(usize, &'static str),
    /// The n-th note or automation that anybody was told of goes to the other workspace.
    Move(usize),
    Delete(usize),
    /// Milliseconds.
    Later(u64),
    Earlier(u64),
    Work(Saw),
}

#[derive(Clone, Debug)]
pub struct History {
    pub first: Mode,
    pub steps: Vec<Step>,
}

pub fn histories() -> impl Strategy<Value = History> {
    let first = prop_oneof![Just(Mode::Sole), Just(Mode::Shared), Just(Mode::SoleAtomic)];
    (first, vec(step(), 1..=20)).prop_map(|(first, steps)| History { first, steps })
}

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn step() -> impl Strategy<Value = Step> {
    let permission = (0..CALLERS.len(), one_of(&PERMISSIONS));
    prop_oneof![
        24 => deed().prop_map(Step::Do),
        6 => (deed(), breaks(), at(), then(), mode())
            .prop_map(|(deed, breaks, at, then, next)| Step::Break { deed, breaks, at, then, next }),
        2 => (any::<bool>(), mode()).prop_map(|(closes, next)| Step::Restart { closes, next }),
        1 => permission.clone().prop_map(|(who, permission)| Step::Revoke(who, permission)),
        1 => permission.prop_map(|(who, permission)| Step::Grant(who, permission)),
        1 => number().prop_map(Step::Move),
        1 => number().prop_map(Step::Delete),
        3 => one_of(&[1, HOUR, DAY, DAY + 1, DAY + HOUR, 2 * DAY]).prop_map(Step::Later),
        1 => one_of(&[1, HOUR, DAY, 2 * DAY]).prop_map(Step::Earlier),
        2 => one_of(&[Saw::Finished, Saw::Failed, Saw::Nothing]).prop_map(Step::Work),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        9 => attempt().prop_map(|attempt| Deed::Calls(vec![attempt])),
        4 => vec(attempt(), 2..=5).prop_map(Deed::Calls),
        2 => Just(Deed::Sweep),
    ]
}

fn attempt() -> impl Strategy<Value = Attempt> {
    prop_oneof![
        6 => (0..CALLERS.len(), call()).prop_map(|(who, call)| Attempt::New(who, call)),
        3 => number().prop_map(Attempt::Again),
        1 => number().prop_map(Attempt::AgainOtherwise),
    ]
}

fn call() -> impl Strategy<Value = Call<usize>> {
    let (key, text, minutes) = (|| one_of(&KEYS), || rarely_last(&TEXTS), || rarely_last(&MINUTES));
    let version = prop_oneof![2 => Just(None), 1 => (1..=3_u32).prop_map(Some)];
    prop_oneof![
        4 => (key(), text()).prop_map(|(key, body)| CreateNote { key, body }),
        3 => (key(), minutes()).prop_map(|(key, minutes)| CreateAutomation { key, minutes }),
        5 => (key(), number(), version, minutes())
            .prop_map(|(key, automation, version, minutes)| SetInterval { key, automation, version, minutes }),
        2 => (key(), text()).prop_map(|(key, revision)| StartDeployment { key, revision }),
        1 => number().prop_map(CancelOperation),
        1 => number().prop_map(GetNote),
        1 => number().prop_map(GetAutomation),
        1 => number().prop_map(GetOperation),
        1 => (one_of(&KEYED), key()).prop_map(|(tool, key)| FindOperation { tool, key }),
    ]
}

fn breaks() -> impl Strategy<Value = Breaks> {
    prop_oneof![
        4 => Just(Breaks::Dies),
        1 => Just(Breaks::Fails),
        1 => Just(Breaks::HasNoSpace),
        1 => Just(Breaks::Forgets),
    ]
}

/// The end, where the commit is, is the most interesting.
fn at() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 0..100_u64, 1 => 80..100_u64]
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![1 => Just(Then::GoOn), 2 => Just(Then::Kill), 3 => (0..1000_u64).prop_map(Then::PowerCut)]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Same), 1 => one_of(&[Mode::Sole, Mode::Shared, Mode::SoleAtomic])]
}

fn number() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..3_usize, 2 => 3..LAST, 1 => Just(LAST)]
}

fn one_of<T: Clone + std::fmt::Debug>(values: &'static [T]) -> impl Strategy<Value = T> + Clone {
    (0..values.len()).prop_map(|number| values[number].clone())
}

fn rarely_last<T: Clone + std::fmt::Debug>(values: &'static [T]) -> impl Strategy<Value = T> {
    let last = values.len() - 1;
    prop_oneof![15 => one_of(&values[..last]), 1 => Just(values[last].clone())]
}
