//! One state of the world, and what can happen in it.

use super::properties::Property;
use counterfoil::Timestamp;
use counterfoil::engine::operation::{Operation, Seen};
use std::fmt;

/// The true time in every state: what is older lies further before it.
pub const NOW: u64 = 1_000;
/// Ages of requests under way: some more than matter, for a world in which they arrive later.
pub const AGES: usize = 4;

/// What a clock says that is so many milliseconds off.
pub fn reading(error: i8) -> Timestamp {
    Timestamp::from_milliseconds(NOW.saturating_add_signed(i64::from(error)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    None,
    Running,
    Finished,
    Failed,
    Cancelled,
}

/// How far a worker is with the attempt in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It may send until its lease has run out.
    MaySend {
        elapsed: u8,
    },
    TooLateToSend,
    /// Its submission was sent so long ago and is under way.
    Sent {
        age: u8,
    },
    /// It was taken, or known again.
    Received,
    Lost,
    /// It may ask.
    MayAsk,
    WasToldAbsent,
}

/// One state; ages are in ticks. A crash needs no move of its own: a dead worker is one that does nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scene {
    pub operation: Operation,
    /// The worker of the attempt in hand.
    pub in_hand: Option<Phase>,
    /// A worker that may still send though its attempt was given up: how long it has had it.
    pub former: Option<u8>,
    pub effect: Effect,
    /// Effects that the provider ever started.
    pub taken: u8,
    /// Since the provider first received the key.
    pub key_age: u8,
    /// Submissions that nobody waits for, by age.
    pub under_way: [u8; AGES],
    /// Since what was taken was last sent.
    pub quiet_for: u8,
    /// What the machine did wrong just now.
    pub broken: Option<Property>,
}

/// Everything that can happen. Where the machine is asked, `error` says how wrong the clock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Tick,
    DeadlineComes,
    DeadlinePasses,
    Claims {
        error: i8,
    },
    /// The worker of the attempt in hand sends; or a former one does, for whose answer nobody waits.
    Sends,
    FormerSends,
    IsReceived,
    IsToldAbsent,
    Settles {
        seen: Seen,
        error: i8,
    },
    /// An attempt given up, or one that has settled.
    SettlesLate {
        seen: Seen,
        error: i8,
    },
    /// A submission that nobody waits for reaches the provider.
    Arrives,
    Ends(Effect),
    CallerCancels {
        error: i8,
    },
    PersonFinds {
        happened: bool,
        error: i8,
    },
}

pub type Moves = Vec<(Move, Scene)>;

impl Scene {
    /// Nothing is under way or running, and no worker may still send: a person can find out what happened.
    pub fn is_quiet(&self) -> bool {
        let may_send =
            matches!(self.in_hand, Some(Phase::MaySend { .. } | Phase::Sent { .. })) || self.former.is_some();
        !may_send && self.under_way == [0; AGES] && self.effect != Effect::Running
    }
}

/// What a provider says of something that has ended.
pub fn end(effect: Effect) -> Option<Seen> {
    match effect {
        Effect::None | Effect::Running => None,
        Effect::Finished => Some(Seen::Finished),
        Effect::Failed => Some(Seen::Failed),
        Effect::Cancelled => Some(Seen::Cancelled),
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { state, cancel, attempts, sent, exists, rejected, attempt, .. } = &self.operation;
        let at = |at: Timestamp| at.milliseconds().cast_signed() - NOW.cast_signed();
        write!(out, "{state:?}")?;
        if !state.is_final() {
            write!(out, ", cancel {cancel:?}, {attempts} sendings")?;
        }
        if let Some(sent) = sent {
            write!(out, " from {:+} to {:+} ms", at(sent.first), at(sent.last))?;
        }
        if let Some(attempt) = attempt {
            write!(out, ", {:?} in hand since {:+} ms: {:?}", attempt.step, at(attempt.claimed_at), self.in_hand)?;
        }
        let marks = [(*exists, "exists"), (*rejected, "rejected"), (self.former.is_some(), "a former worker may send")];
        for (_, mark) in marks.iter().filter(|(is_set, _)| *is_set) {
            write!(out, ", {mark}")?;
        }
        write!(out, "; {} under way; the provider has {:?}", self.under_way.iter().sum::<u8>(), self.effect)
    }
}
