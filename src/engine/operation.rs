//! What is known of an effect outside the database, and of its provider. What follows from it is in
//! [`next`](super::next).

use crate::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of an operation. One whose effect is in the database alone is `succeeded` from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Recorded, not sent.
    Accepted,
    Running,
    Succeeded,
    Failed,
    /// Asked for, not established.
    CancelRequested,
    /// Known to have stopped without succeeding.
    Cancelled,
    /// Sent, and not to be settled by machine: `next_action` says what a person must check.
    OutcomeUnknown,
}

impl State {
    /// In the order of `state` in `wit/types.wit`.
    pub const ALL: [State; 7] = [
        State::Accepted,
        State::Running,
        State::Succeeded,
        State::Failed,
        State::CancelRequested,
        State::Cancelled,
        State::OutcomeUnknown,
    ];

    /// Whether it never changes again.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }
}

/// What a worker is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send the request under the provider's key.
    Submit,
    /// Ask what became of it.
    Lookup,
    /// Ask for it to be stopped.
    Cancel,
}

/// What the provider is known to do, in milliseconds: `wit/outbox.wit` says what each figure vouches for. Without one
/// the careful way is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contract {
    pub deduplicates_for: Option<u64>,
    pub looks_up: bool,
    pub absent_is_final_after: Option<u64>,
    pub cancels: bool,
    pub clock_within: Option<u64>,
}

impl Contract {
    /// Of each promise the weaker one: what was never vouched for, or no longer is, proves nothing.
    #[must_use]
    pub fn weaker(self, other: Contract) -> Contract {
        let both = |one: Option<u64>, other: Option<u64>, pick: fn(u64, u64) -> u64| Some(pick(one?, other?));
        Contract {
            deduplicates_for: both(self.deduplicates_for, other.deduplicates_for, u64::min),
            looks_up: self.looks_up && other.looks_up,
            absent_is_final_after: both(self.absent_is_final_after, other.absent_is_final_after, u64::max),
            cancels: self.cancels && other.cancels,
            clock_within: both(self.clock_within, other.clock_within, u64::max),
        }
    }
}

/// What a worker saw of one attempt: no more than it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Nothing reached the provider.
    NotSent,
    /// Nothing was done, and the provider asked for a pause of so many milliseconds.
    Throttled(u32),
    /// The provider refused for good.
    Rejected,
    /// The provider has it and has not finished.
    Accepted,
    Finished,
    Failed,
    Cancelled,
    /// The provider says that it never saw it.
    Absent,
    /// It may or may not have been taken.
    Unclear,
}

/// One execution of a step, stored before it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub step: Step,
    pub claimed_at: Timestamp,
    /// The worker begins nothing that may still be sent later.
    pub lease_until: Timestamp,
}

/// When requests that may have reached the provider were sent: not before `first`, not after `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    pub first: Timestamp,
    pub last: Timestamp,
}

impl Sent {
    /// At any time: the clock contradicted itself.
    pub const UNTOLD: Sent = Sent { first: Timestamp::MIN, last: Timestamp::MAX };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cancel {
    No,
    Asked,
    /// The provider said that it cannot be cancelled.
    Refused,
}

/// All that is known of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub state: State,
    pub deadline: Timestamp,
    pub cancel: Cancel,
    /// Sendings that may have reached the provider, and when. None once it is established that none has.
    pub attempts: u32,
    pub sent: Option<Sent>,
    /// The provider has said that it has it.
    pub exists: bool,
    /// The provider has refused it for good.
    pub rejected: bool,
    /// Attempts since the provider last said something new: pauses grow with them.
    pub fruitless: u32,
    /// What a worker has in hand.
    pub attempt: Option<Attempt>,
    /// When there is something to do; none if there is nothing.
    pub due: Option<Timestamp>,
    /// The latest reading of the clock.
    pub clock: Timestamp,
}

impl Operation {
    /// One that was just recorded.
    #[must_use]
    pub fn new(now: Timestamp, deadline: Timestamp) -> Operation {
        Operation {
            state: State::Accepted,
            deadline,
            cancel: Cancel::No,
            attempts: 0,
            sent: None,
            exists: false,
            rejected: false,
            fruitless: 0,
            attempt: None,
            due: Some(now),
            clock: now,
        }
    }
}
