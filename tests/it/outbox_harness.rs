//! The verbs of tests with effects outside the database: a clock that stands still unless it is moved, a worker, what a
//! provider is known to do, and stories of one operation.

use crate::harness::*;
use host_example::types::{Operation, Refusal, RefusalCode, State};
use host_example::{Claimed, Files, Host, Limits, Observation, ProviderContract, Step, Storage, Task};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub const SECOND: u64 = 1000;
pub const HOUR: u64 = 3600 * SECOND;
pub const DAY: u64 = 24 * HOUR;
/// 2027-01-15T08:00:00Z, when each test begins.
pub const START: u64 = 1_800_000_000_000;
/// How long a worker holds what it takes, unless the test says.
pub const LEASE: u64 = 30 * SECOND;

/// The time in milliseconds, of every instance of a [`World`].
#[derive(Clone)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn new(now: u64) -> Clock {
        Clock(Arc::new(AtomicU64::new(now)))
    }

    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::SeqCst);
    }

    pub fn advance(&self, milliseconds: u64) {
        self.set(self.now() + milliseconds);
    }

    pub fn step_back(&self, milliseconds: u64) {
        self.set(self.now() - milliseconds);
    }
}

/// A database, a clock, and a host that goes by it.
pub struct World {
    pub db: Database,
    pub clock: Clock,
    host: Host,
}

impl World {
    pub fn new() -> World {
        World::with(&[])
    }

    /// With environment variables.
    pub fn with(variables: &[(&str, &str)]) -> World {
        let clock = Clock::new(START);
        World { db: Database::new(), host: clocked_host(&clock, variables), clock }
    }

    /// From now on instances have these variables instead.
    pub fn restart_with(&mut self, variables: &[(&str, &str)]) {
        self.host = clocked_host(&self.clock, variables);
    }

    /// A new instance that shares the file with others, called by Ada.
    pub fn client(&self) -> Client {
        self.client_on(Files::shared(&self.db.path()).unwrap())
    }

    /// A new instance with this storage in place of the file.
    pub fn client_on(&self, storage: impl Storage) -> Client {
        Client::new(&self.host, storage)
    }

    /// All that is kept of operations outside the database.
    pub fn outbox(&self) -> String {
        self.db.sql("SELECT * FROM operations; SELECT * FROM attempts")
    }
}

fn clocked_host(clock: &Clock, variables: &[(&str, &str)]) -> Host {
    let clock = clock.clone();
    let host = Host::load(component(), Limits::default()).unwrap();
    let host = host.with_clock(move || Duration::from_millis(clock.now()));
    variables.iter().fold(host, |host, (name, value)| host.with_variable(*name, *value))
}

pub fn deploy(key: &str, service: &str, revision: &str) -> Value {
    json!({ "idempotency_key": key, "service": service, "revision": revision })
}

impl Client {
    /// Records a deployment, and returns its operation's id.
    pub fn start(&mut self, key: &str) -> String {
        let reply = self.call("start_deployment", &deploy(key, "web", "r1"));
        assert_fresh(&reply);
        reply["operation_id"].as_str().unwrap().to_owned()
    }

    pub fn cancel(&mut self, operation_id: &str) -> Value {
        self.call("cancel_operation", &json!({ "operation_id": operation_id }))
    }

    pub fn operation(&mut self, operation_id: &str) -> Value {
        self.call("get_operation", &json!({ "operation_id": operation_id }))
    }

    pub fn try_claim(&mut self, limit: u32, lease: u32, contract: ProviderContract) -> Result<Claimed, Refusal> {
        self.instance.claim(limit, lease, &contract).unwrap()
    }

    /// Whatever is due, leased for [`LEASE`].
    pub fn claim(&mut self, contract: ProviderContract) -> Claimed {
        self.try_claim(64, LEASE as u32, contract).unwrap()
    }

    /// The one thing that is due.
    #[track_caller]
    pub fn take(&mut self, contract: ProviderContract) -> Task {
        let mut tasks = self.claim(contract).tasks;
        assert_eq!(tasks.len(), 1, "{tasks:?}");
        tasks.remove(0)
    }

    pub fn try_settle(&mut self, attempt_id: &str, seen: &Observation) -> Result<Operation, Refusal> {
        self.instance.settle(attempt_id, seen).unwrap()
    }

    pub fn settle(&mut self, task: &Task, seen: &Observation) -> Operation {
        self.try_settle(&task.attempt_id, seen).unwrap()
    }

    pub fn resolve(&mut self, id: &str, happened: bool, resource_id: Option<&str>) -> Result<Operation, Refusal> {
        self.instance.resolve(id, happened, resource_id).unwrap()
    }
}

/// A refusal of what only a host calls.
#[track_caller]
pub fn assert_refusal<T: Debug>(outcome: Result<T, Refusal>, code: RefusalCode, message: &str) {
    let refusal = outcome.unwrap_err();
    assert_eq!((refusal.code, refusal.message.as_str(), refusal.retryable), (code, message, false), "{refusal:?}");
    assert!(!refusal.next_action.is_empty());
}

/// Nobody vouches for anything.
pub const NONE: ProviderContract = ProviderContract {
    deduplicates_for: None,
    looks_up: false,
    absent_is_final_after: None,
    cancels: false,
    clock_within: None,
};
/// Keys are compared for an hour.
pub const KEYED: ProviderContract =
    ProviderContract { deduplicates_for: Some(HOUR), clock_within: Some(SECOND), ..NONE };
/// It can be asked, and what it never saw 10 seconds after it was sent never comes.
pub const ASKED: ProviderContract =
    ProviderContract { looks_up: true, absent_is_final_after: Some(10 * SECOND), clock_within: Some(SECOND), ..NONE };
pub const BOTH: ProviderContract = ProviderContract { deduplicates_for: Some(HOUR), ..ASKED };
pub const CANCELS: ProviderContract = ProviderContract { cancels: true, ..BOTH };

pub fn not_sent() -> Observation {
    Observation::NotSent("no route".to_owned())
}

pub fn unclear() -> Observation {
    Observation::Unclear("timed out".to_owned())
}

pub fn rejected() -> Observation {
    Observation::Rejected("no such service".to_owned())
}

pub fn failed() -> Observation {
    Observation::Failed("exit code 1".to_owned())
}

pub fn accepted() -> Observation {
    Observation::Accepted("d-1".to_owned())
}

pub fn finished() -> Observation {
    Observation::Finished("d-1".to_owned())
}

/// One move of a [`Story`].
#[derive(Clone, Debug)]
pub enum Move {
    Later(u64),
    Earlier(u64),
    /// Nothing is due now, nor until a millisecond before what was said, and then it is.
    Due,
    /// A worker asks, and gets this to do.
    Get(Step),
    /// A worker asks, and gets nothing.
    Idle,
    /// The worker tells what the newest attempt saw; the state that follows.
    See(Observation, State),
    /// The same of an older attempt, counted from 0.
    Late(usize, Observation, State),
    /// Ada asks for it to be cancelled; the state that she is told.
    Cancel(State),
    /// What she is told when she asks how it is.
    Is(State),
}

/// One operation, and a worker for whom the provider is known to do the same throughout.
pub struct Story {
    pub world: World,
    pub client: Client,
    pub contract: ProviderContract,
    pub id: String,
    /// What the worker was given.
    pub tasks: Vec<Task>,
}

impl Story {
    pub fn new(contract: ProviderContract) -> Story {
        Story::of(World::new(), contract)
    }

    pub fn of(world: World, contract: ProviderContract) -> Story {
        let mut client = world.client();
        let id = client.start("k");
        Story { world, client, contract, id, tasks: Vec::new() }
    }

    /// Plays the moves, whose outcomes are asserted. Whatever they are, all attempts have one key and ids of their own.
    #[track_caller]
    pub fn play(&mut self, moves: &[Move]) -> &mut Story {
        for (number, one) in moves.iter().enumerate() {
            let context = format!("{:?}: move {number} of {moves:?}", self.contract);
            match one {
                Move::Later(milliseconds) => self.world.clock.advance(*milliseconds),
                Move::Earlier(milliseconds) => self.world.clock.step_back(*milliseconds),
                Move::Due => {
                    let claimed = self.client.claim(self.contract);
                    assert!(claimed.tasks.is_empty(), "{context}");
                    let due = claimed.next_due.unwrap_or_else(|| panic!("nothing is due: {context}"));
                    self.world.clock.set(due - 1);
                    assert!(self.client.claim(self.contract).tasks.is_empty(), "{context}");
                    self.world.clock.set(due);
                }
                Move::Get(step) => {
                    let tasks = self.client.claim(self.contract).tasks;
                    let steps: Vec<_> = tasks.iter().map(|task| task.step).collect();
                    assert_eq!(steps, [*step], "{context}");
                    self.tasks.extend(tasks);
                }
                Move::Idle => assert_eq!(self.client.claim(self.contract).tasks, [], "{context}"),
                Move::See(seen, state) => self.tell(self.tasks.len() - 1, seen, *state, &context),
                Move::Late(attempt, seen, state) => self.tell(*attempt, seen, *state, &context),
                Move::Cancel(state) => {
                    let reply = self.client.cancel(&self.id);
                    assert_fresh(&reply);
                    assert_eq!(reply["state"], name(*state), "{context}");
                    assert_eq!(reply, self.client.operation(&self.id), "{context}");
                }
                Move::Is(state) => assert_eq!(self.now()["state"], name(*state), "{context}"),
            }
        }
        for (number, task) in self.tasks.iter().enumerate() {
            assert_eq!((&task.operation_id, &task.provider_key), (&self.id, &self.tasks[0].provider_key));
            assert!(self.tasks[..number].iter().all(|other| other.attempt_id != task.attempt_id));
        }
        self
    }

    #[track_caller]
    fn tell(&mut self, attempt: usize, seen: &Observation, state: State, context: &str) {
        let told = self.client.settle(&self.tasks[attempt], seen);
        assert_eq!((&told.operation_id, told.state), (&self.id, state), "{context}");
        let shown = self.now();
        assert_eq!((&shown["state"], &shown["detail"]), (&json!(name(state)), &json!(told.detail)), "{context}");
    }

    /// What Ada is told of the operation.
    pub fn now(&mut self) -> Value {
        self.client.operation(&self.id)
    }
}

pub fn name(state: State) -> &'static str {
    match state {
        State::Accepted => "accepted",
        State::Running => "running",
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        State::CancelRequested => "cancel_requested",
        State::Cancelled => "cancelled",
        State::OutcomeUnknown => "outcome_unknown",
    }
}
