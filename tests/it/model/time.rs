//! Time, the clock, and what becomes of everything as it goes by.
//!
//! Times are kept as distances from the true time, which is always [`NOW`]: a tick makes everything one older. What is
//! older than the figures of the contract can tell apart is kept at one age. So there are finitely many states, and no
//! horizon.

use super::scene::{AGES, Move, Moves, NOW, Phase, Scene, reading};
use super::world::{LEASE, TICK, World};
use counterfoil::Timestamp;
use counterfoil::engine::operation::{Operation, Sent, Step};

/// A worker that has not settled so long after its claim never will.
const PATIENCE: u64 = TICK;

/// As far off as matters.
pub fn deadline_to_come() -> Timestamp {
    reading(0).plus(20)
}

impl World {
    /// What can make no difference any more is taken away: a submission that the provider will know again.
    pub fn prune(&self, scene: &mut Scene) {
        if scene.taken == 0 {
            scene.quiet_for = 0;
            return;
        }
        let limit = self.truth.knows_keys_for;
        let Some(known_for) = limit.and_then(|limit| limit.checked_sub(scene.key_age.into())) else { return };
        let lateness = u64::from(self.truth.lateness);
        for (age, count) in (0..=lateness).zip(&mut scene.under_way) {
            if lateness - age <= known_for {
                *count = 0;
            }
        }
        let arrives_within = |elapsed: u8| self.truth.sends_until - u64::from(elapsed) + lateness;
        scene.former = scene.former.filter(|elapsed| arrives_within(*elapsed) > known_for);
    }

    /// How wrong the clock can be.
    fn error(&self) -> u64 {
        self.truth.errors.iter().map(|error| u64::from(error.unsigned_abs())).max().unwrap_or_default()
    }

    /// Keeps of the times what the contract's figures can tell apart. Whatever nobody vouches for is kept as what could
    /// mislead most: sent just now for the window, long ago for absence.
    pub fn keep(&self, operation: &mut Operation) {
        let (error, contract) = (self.error(), &self.contract);
        let vouched = contract.clock_within.unwrap_or_default();
        let (mut first, mut last, mut claimed) = (NOW + error, NOW - error, NOW + error);
        // Even the earliest reading to come is credible.
        let mut clock = NOW - error + 2 * vouched;
        let after = contract.absent_is_final_after.filter(|_| contract.clock_within.is_some());
        if let (Some(window), Some(_)) = (contract.deduplicates_for, contract.clock_within) {
            // The window has shut by any reading.
            first = NOW - window - TICK;
        }
        if let Some(after) = after {
            // The earliest question that may still be answered: absence is final then, and its reading is credible.
            claimed = NOW - PATIENCE - error;
            last = claimed - after - 2 * error;
            clock = claimed + 2 * vouched;
        }
        let at_least = |at: &mut Timestamp, least| *at = (*at).max(Timestamp::from_milliseconds(least));
        at_least(&mut operation.clock, clock);
        if let Some(sent) = operation.sent.as_mut().filter(|sent| **sent != Sent::UNTOLD) {
            at_least(&mut sent.first, first);
            at_least(&mut sent.last, last);
            if after.is_none() {
                sent.last = Timestamp::from_milliseconds(last);
            }
        }
        if let Some(attempt) = &mut operation.attempt {
            let least = if attempt.step == Step::Submit && after.is_some() { last - LEASE } else { claimed };
            at_least(&mut attempt.claimed_at, least);
            attempt.lease_until = attempt.claimed_at.plus(LEASE);
        }
    }

    /// It comes at any time, and as the clock is, may have passed and not have passed for a while.
    pub fn deadline_moves(&self, scene: &Scene, out: &mut Moves) {
        let mut after = *scene;
        let past = Timestamp::from_milliseconds(NOW - self.error());
        if scene.operation.deadline == deadline_to_come() {
            after.operation.deadline = reading(1);
            out.push((Move::DeadlineComes, after));
        } else if scene.operation.deadline == reading(1) {
            after.operation.deadline = past;
            out.push((Move::DeadlinePasses, after));
        }
    }

    pub fn tick(&self, scene: &Scene) -> Scene {
        let mut before = *scene;
        let earliest = NOW - PATIENCE - self.error();
        if scene.operation.attempt.is_some_and(|it| it.claimed_at.milliseconds() < earliest + TICK) {
            before.in_hand = None;
            self.let_go(&mut before, scene.in_hand);
        }
        let mut after = before;
        let older = |at: &mut Timestamp| *at = Timestamp::from_milliseconds(at.milliseconds() - TICK);
        let operation = &mut after.operation;
        older(&mut operation.clock);
        if let Some(sent) = operation.sent.as_mut().filter(|sent| **sent != Sent::UNTOLD) {
            older(&mut sent.first);
            older(&mut sent.last);
        }
        if let Some(attempt) = &mut operation.attempt {
            older(&mut attempt.claimed_at);
        }
        self.keep(operation);
        let may_send = |elapsed: u8| u64::from(elapsed) < self.truth.sends_until;
        after.in_hand = before.in_hand.map(|phase| match phase {
            Phase::MaySend { elapsed } if may_send(elapsed) => Phase::MaySend { elapsed: elapsed + 1 },
            Phase::MaySend { .. } => Phase::TooLateToSend,
            Phase::Sent { age } if age < self.truth.lateness => Phase::Sent { age: age + 1 },
            Phase::Sent { .. } => Phase::Lost,
            phase => phase,
        });
        after.former = before.former.filter(|elapsed| may_send(*elapsed)).map(|elapsed| elapsed + 1);
        after.under_way = [0; AGES];
        for age in 0..usize::from(self.truth.lateness) {
            after.under_way[age + 1] = before.under_way[age];
        }
        let cap = |age: u8, limit: Option<u64>| limit.map_or(0, |limit| (u64::from(age) + 1).min(limit) as u8);
        after.key_age =
            cap(before.key_age, self.truth.knows_keys_for.filter(|_| scene.taken > 0).map(|limit| limit + 1));
        after.quiet_for = cap(before.quiet_for, self.truth.absent_lags_for);
        after
    }
}
