//! What follows from what was seen of an effect outside the database: a pure function, without clock, database or
//! network, so that every state that it can reach can be explored.
//!
//! | Window | What is known | What follows |
//! |---|---|---|
//! | before dispatch | nothing started | retry until the deadline, then `failed` |
//! | provider accepted, answer lost | it may exist | the same key within its window; else look-up, whose `absent` counts once it is final; else `outcome-unknown` |
//! | provider answered, settling failed | it exists | learnt again by look-up or by the same key |
//! | worker died holding a lease | it may have been sent | as "answer lost": never a plain second sending |
//! | throttled | nothing happened | the pause asked for, if it ends before the deadline |
//! | cancel before dispatch | nothing started | `cancelled` at once |
//! | cancel after dispatch | it may exist | `cancel-requested`; the provider is asked; what it says is final, success included |
//!
//! `succeeded`, `failed` and `cancelled` never change. `outcome-unknown` is settled by later evidence or by a person.

use super::operation::{Attempt, Cancel, Contract, Operation, Seen, Sent, State, Step};
use crate::Timestamp;

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It is due, and a worker asks for something to do, to hold it for so many milliseconds. An attempt that is still
    /// in hand is lost: whatever it did, it may have done.
    Claim { lease: u64 },
    /// A worker tells what an attempt saw: the one in hand, or one that was given up.
    Settle { attempt: Attempt, in_hand: bool, seen: Seen },
    /// Somebody wants it cancelled.
    Cancel,
    /// A person found out whether it happened.
    Resolve { happened: bool },
}

/// When an event happens, and how long to pause after it, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Timestamp,
    pub pause: u64,
    /// Where a person was asked and only late evidence is waited for.
    pub long_pause: u64,
}

/// What an operation becomes by an event.
#[must_use]
pub fn next(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let mut operation = *operation;
    if operation.state.is_final() {
        return operation;
    }
    operation.doubt_the_clock(contract, moment.now);
    match event {
        Event::Claim { lease } => operation.claim(contract, moment, lease),
        Event::Settle { attempt, in_hand, seen } => {
            let is_news = operation.learn(seen);
            if in_hand && !operation.state.is_final() {
                operation.fruitless = if is_news { 0 } else { operation.fruitless.saturating_add(1) };
                operation.settle(attempt, seen, contract, moment);
            }
        }
        Event::Cancel => operation.ask_to_cancel(moment.now),
        Event::Resolve { happened } if operation.state == State::OutcomeUnknown => {
            operation.end(if happened { State::Succeeded } else { State::Failed });
        }
        Event::Resolve { .. } => {}
    }
    operation.clock = operation.clock.max(moment.now);
    operation
}

/// What to do about an operation that has not ended.
enum Decision {
    Do(Step),
    End(State),
    /// Nothing can settle it by machine.
    GiveUp,
}

/// What an answer of `absent` proves.
enum Absence {
    Final,
    /// A request may still be under way for so many milliseconds.
    FinalIn(u64),
    NeverFinal,
}

impl Operation {
    fn claim(&mut self, contract: &Contract, moment: Moment, lease: u64) {
        self.attempt = None;
        let now = moment.now;
        match self.decide(contract, now, lease) {
            Decision::Do(step) => {
                let lease_until = now.plus(lease);
                if step == Step::Submit {
                    // From here on it may have been sent, whatever becomes of the worker.
                    self.attempts += 1;
                    // One that lost its lease by a clock that is wrong may be sent later still.
                    let sent = self.sent.unwrap_or(Sent { first: now, last: lease_until });
                    self.sent = Some(Sent { last: sent.last.max(lease_until), ..sent });
                    self.doubt_the_clock(contract, now);
                }
                self.attempt = Some(Attempt { step, claimed_at: now, lease_until });
                self.due = Some(lease_until);
                self.state = self.unfinished();
            }
            Decision::End(state) => self.end(state),
            Decision::GiveUp => self.give_up(contract, moment),
        }
    }

    /// Evidence of the effect counts whenever it comes. Returns whether there was any.
    fn learn(&mut self, seen: Seen) -> bool {
        match seen {
            Seen::Finished => self.end(State::Succeeded),
            Seen::Failed => self.end(State::Failed),
            Seen::Cancelled => self.end(State::Cancelled),
            Seen::Accepted if !self.exists => {
                self.exists = true;
                self.state = self.unfinished();
            }
            _ => return false,
        }
        true
    }

    /// Everything else counts of the attempt in hand alone: what an earlier one saw, others have passed.
    fn settle(&mut self, attempt: Attempt, seen: Seen, contract: &Contract, moment: Moment) {
        let Moment { now, pause, .. } = moment;
        self.attempt = None;
        let mut wait = pause;
        let mut gives_up = self.sent.is_some() && !self.exists && now >= self.deadline;
        if attempt.step == Step::Submit
            && self.attempts == 1
            && let Some(sent) = &mut self.sent
            && *sent != Sent::UNTOLD
        {
            // The worker is done with it, and no other has one: the rest of the lease need not be waited for.
            sent.last = sent.last.min(now);
        }
        match (attempt.step, seen) {
            (Step::Submit, Seen::NotSent) => self.was_not_sent(),
            (Step::Submit, Seen::Rejected) => {
                self.was_not_sent();
                self.rejected = true;
            }
            (step, Seen::Throttled(asked)) => {
                let left = self.deadline.milliseconds().saturating_sub(now.milliseconds());
                // Not past the time at which something else is to be done.
                wait = wait.max(u64::from(asked).min(left.max(moment.long_pause)));
                if step == Step::Submit {
                    self.was_not_sent();
                }
            }
            (Step::Cancel, Seen::Rejected) => self.cancel = Cancel::Refused,
            (Step::Lookup | Step::Cancel, Seen::Absent) => match self.absence(attempt.claimed_at, contract) {
                Absence::Final => {
                    (self.sent, self.attempts) = (None, 0);
                    (wait, gives_up) = (0, false);
                }
                Absence::FinalIn(left) => (wait, gives_up) = (wait.max(left), false),
                Absence::NeverFinal => gives_up = true,
            },
            _ => {}
        }
        if gives_up && (self.sent.is_some() || self.exists) {
            return self.give_up(contract, moment);
        }
        match self.decide(contract, now, 0) {
            // It would be sent after the deadline.
            Decision::Do(Step::Submit) if self.sent.is_none() && now.plus(wait) >= self.deadline => {
                self.end(State::Failed);
            }
            Decision::Do(_) => {
                self.state = self.unfinished();
                let least = if self.state == State::OutcomeUnknown { moment.long_pause } else { 0 };
                self.due = Some(now.plus(wait.max(least)));
            }
            Decision::End(state) => self.end(state),
            Decision::GiveUp => self.give_up(contract, moment),
        }
    }

    fn ask_to_cancel(&mut self, now: Timestamp) {
        if self.state == State::OutcomeUnknown || self.cancel != Cancel::No {
            return;
        }
        self.cancel = Cancel::Asked;
        // Once what is in hand is settled, it is the cancellation's turn.
        self.fruitless = u32::from(self.attempt.is_some());
        if self.sent.is_none() && !self.exists {
            return self.end(State::Cancelled);
        }
        self.state = self.unfinished();
        if self.attempt.is_none() {
            self.due = Some(now);
        }
    }

    fn decide(&self, contract: &Contract, now: Timestamp, lease: u64) -> Decision {
        let is_unknown = self.state == State::OutcomeUnknown;
        if self.sent.is_none() && !self.exists {
            return match () {
                () if self.cancel != Cancel::No => Decision::End(State::Cancelled),
                () if self.rejected || is_unknown || now >= self.deadline => Decision::End(State::Failed),
                () => Decision::Do(Step::Submit),
            };
        }
        if is_unknown {
            // A person may be at work on it: ask, and touch nothing.
            return if contract.looks_up { Decision::Do(Step::Lookup) } else { Decision::GiveUp };
        }
        let by_key = !self.rejected && self.is_window_open(contract, now, lease);
        let is_late = !self.exists && now >= self.deadline;
        // Sent again under its key, a request that was never taken starts now: not what is wanted of one that is known to
        // exist, is to be cancelled, or is past its deadline.
        let only_asks = self.exists || self.cancel != Cancel::No || is_late;
        // Whoever does not hear that it is to stop may still tell that it has ended, so both are asked in turn.
        let asks_otherwise = contract.looks_up || self.exists && by_key;
        match () {
            () if self.cancel == Cancel::Asked
                && contract.cancels
                && (self.fruitless.is_multiple_of(2) || !asks_otherwise) =>
            {
                Decision::Do(Step::Cancel)
            }
            () if contract.looks_up && (only_asks || !by_key) => Decision::Do(Step::Lookup),
            () if by_key && !is_late => Decision::Do(Step::Submit),
            () => Decision::GiveUp,
        }
    }

    /// Whether what is sent until the end of a lease from now on is certain to be compared with what was sent first.
    fn is_window_open(&self, contract: &Contract, now: Timestamp, lease: u64) -> bool {
        let (Some(window), Some(error), Some(sent)) = (contract.deduplicates_for, contract.clock_within, self.sent)
        else {
            return false;
        };
        let elapsed = now.plus(lease).milliseconds().saturating_sub(sent.first.milliseconds());
        elapsed.saturating_add(error.saturating_mul(2)) <= window
    }

    /// What it means that the provider, asked then, never saw the request.
    fn absence(&self, asked: Timestamp, contract: &Contract) -> Absence {
        let (Some(after), Some(error)) = (contract.absent_is_final_after, contract.clock_within) else {
            return Absence::NeverFinal;
        };
        let Some(sent) = self.sent.filter(|sent| *sent != Sent::UNTOLD) else { return Absence::NeverFinal };
        let final_at = sent.last.plus(after).plus(error.saturating_mul(2));
        match final_at.milliseconds().saturating_sub(asked.milliseconds()) {
            // It has said otherwise before.
            0 if self.exists => Absence::NeverFinal,
            0 => Absence::Final,
            left => Absence::FinalIn(left),
        }
    }

    /// Where no reading is further than was vouched for from the true time, none is earlier than another by twice as much.
    /// If one is, the clock was wrong then or is wrong now: when the request was sent cannot be told any more, neither for
    /// the provider's window nor for an absence, however the clock is put right.
    fn doubt_the_clock(&mut self, contract: &Contract, reading: Timestamp) {
        // Where nobody vouches for it, nothing is measured by it.
        let Some(error) = contract.clock_within else { return };
        if reading.plus(error.saturating_mul(2)) < self.clock
            && let Some(sent) = &mut self.sent
        {
            *sent = Sent::UNTOLD;
        }
    }

    fn was_not_sent(&mut self) {
        self.attempts = self.attempts.saturating_sub(1);
        if self.attempts == 0 && !self.exists {
            self.sent = None;
        }
    }

    fn unfinished(&self) -> State {
        match () {
            () if self.state == State::OutcomeUnknown => State::OutcomeUnknown,
            () if self.cancel != Cancel::No => State::CancelRequested,
            () if self.sent.is_some() || self.exists => State::Running,
            () => State::Accepted,
        }
    }

    fn end(&mut self, state: State) {
        self.state = state;
        self.attempt = None;
        self.due = None;
    }

    /// Asks a person, and goes on asking the provider, if it can be asked.
    fn give_up(&mut self, contract: &Contract, moment: Moment) {
        self.state = State::OutcomeUnknown;
        self.attempt = None;
        self.due = contract.looks_up.then(|| moment.now.plus(moment.long_pause));
    }
}
