//! Assumptions taken away while the contract still claims them. Each must break something: or it would be no assumption.

use super::world::Truth;
use super::{CANCELS, FINAL, KEYS, LOOKUP};

pub struct Lie {
    pub what: &'static str,
    /// What the provider is said to offer, and how far the clock is said to be off.
    pub offers: u8,
    pub clock: Option<u64>,
    pub truth: fn(Truth) -> Truth,
}

type Line = (&'static str, u8, Option<u64>, fn(Truth) -> Truth);

/// A tick less is known, a tick later arrives: the figures have no room to spare.
const TABLE: &[Line] = &[
    ("keys are not compared", KEYS, Some(0), |it| Truth { knows_keys_for: None, ..it }),
    ("keys are known for a tick less", KEYS, Some(0), one_tick_less),
    ("keys are known for a tick less, with a clock that is off", KEYS, Some(1), one_tick_less),
    ("requests arrive a tick later", LOOKUP | FINAL, Some(0), one_tick_later),
    ("requests arrive a tick later, with a clock that is off", LOOKUP | FINAL, Some(1), one_tick_later),
    ("requests arrive a tick later than keys allow for", KEYS, Some(0), one_tick_later),
    ("the clock steps forward further", LOOKUP | FINAL, Some(0), |it| Truth { errors: &[0, 2], ..it }),
    ("the clock steps back further", KEYS, Some(0), |it| Truth { errors: &[0, -2], ..it }),
    ("the clock is off by more than half a tick", KEYS, Some(1), |it| Truth { errors: &[-3, 3], ..it }),
    ("a worker sends after its lease", LOOKUP | FINAL, Some(0), sends_later),
    ("a worker sends after its lease, under a key", KEYS, Some(0), sends_later),
    ("absent is said of what exists", LOOKUP | FINAL, Some(0), |it| Truth { absent_lags_for: None, ..it }),
    ("absent is said by a cancellation", CANCELS | FINAL, Some(0), |it| Truth { absent_lags_for: None, ..it }),
    ("requests are delivered twice", 0, Some(0), |it| Truth { duplicates: true, ..it }),
    ("cancelled is said of what goes on", CANCELS, Some(0), |it| Truth { cancelled_is_true: false, ..it }),
    ("throttled is said of what was taken", LOOKUP, None, |it| Truth { refused_is_true: false, ..it }),
];

fn one_tick_less(truth: Truth) -> Truth {
    Truth { knows_keys_for: truth.knows_keys_for.map(|limit| limit - 1), ..truth }
}

fn one_tick_later(truth: Truth) -> Truth {
    Truth { lateness: truth.lateness + 1, ..truth }
}

fn sends_later(truth: Truth) -> Truth {
    Truth { sends_until: truth.sends_until + 1, ..truth }
}

pub fn all() -> impl Iterator<Item = Lie> {
    TABLE.iter().map(|&(what, offers, clock, truth)| Lie { what, offers, clock, truth })
}
