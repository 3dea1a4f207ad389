//! Faults put into the function, each of which the search must find: or it would prove nothing.

use super::properties::Property::{self, *};
use super::world::{Machine, TICK};
use super::{CANCELS, FINAL, KEYS, LOOKUP};
use counterfoil::engine::next::{Event, Moment, next};
use counterfoil::engine::operation::{Contract, Operation, Seen, State, Step};

pub struct Mutant {
    pub fault: &'static str,
    /// What the provider offers, and how far the clock may be off.
    pub offers: u8,
    pub clock: Option<u64>,
    pub breaks: Property,
    pub machine: Machine,
}

fn is_settled(event: Event, step: Step, what: Seen) -> bool {
    matches!(event, Event::Settle { attempt, in_hand: true, seen } if attempt.step == step && seen == what)
}

/// As if nothing had been sent before the attempt in hand.
fn only_in_hand(operation: &Operation) -> Operation {
    Operation { attempts: operation.attempts.min(1), ..*operation }
}

fn unsent(operation: &Operation) -> Operation {
    Operation { attempts: 0, sent: None, ..*operation }
}

fn ended(operation: Operation, state: State) -> Operation {
    Operation { state, attempt: None, due: None, ..operation }
}

fn lost_lease_is_not_sent(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let is_lost = operation.attempt.is_some_and(|attempt| attempt.step == Step::Submit);
    let forgets = matches!(event, Event::Claim { .. }) && is_lost && !operation.exists;
    next(&if forgets { unsent(operation) } else { *operation }, event, contract, moment)
}

fn forgets_until_settled(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    match event {
        Event::Claim { .. } => Operation { attempts: operation.attempts, sent: operation.sent, ..after },
        _ => after,
    }
}

fn absent_is_final_at_once(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let contract = Contract { absent_is_final_after: contract.absent_is_final_after.map(|_| 0), ..*contract };
    next(operation, event, &contract, moment)
}

fn absence_ignores_clock_error(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let error = contract.clock_within.unwrap_or_default();
    let sooner = contract.absent_is_final_after.map(|after| after - 2 * error);
    next(operation, event, &Contract { absent_is_final_after: sooner, ..*contract }, moment)
}

fn trusts_any_clock(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let clock_within = contract.clock_within.or(Some(0));
    next(operation, event, &Contract { clock_within, ..*contract }, moment)
}

fn window_ignores_lease(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let Event::Claim { lease } = event else { return next(operation, event, contract, moment) };
    let deduplicates_for = contract.deduplicates_for.map(|window| window + lease);
    next(operation, event, &Contract { deduplicates_for, ..*contract }, moment)
}

fn window_ignores_clock_error(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let error = contract.clock_within.unwrap_or_default();
    let deduplicates_for = contract.deduplicates_for.map(|window| window + 2 * error);
    next(operation, event, &Contract { deduplicates_for, ..*contract }, moment)
}

fn window_never_shuts(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let deduplicates_for = contract.deduplicates_for.map(|_| 1000 * TICK);
    next(operation, event, &Contract { deduplicates_for, ..*contract }, moment)
}

/// The attempt in hand is taken to be sent last, though one before it may be sent later.
fn last_sent_is_of_the_last(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let mut after = next(operation, event, contract, moment);
    if let Event::Settle { attempt, in_hand: true, .. } = event
        && let (Step::Submit, Some(sent)) = (attempt.step, &mut after.sent)
    {
        sent.last = attempt.lease_until.min(moment.now);
    }
    after
}

/// It may be sent as long as its lease runs.
fn last_sent_is_the_claim(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let mut after = next(operation, event, contract, moment);
    if let (Event::Claim { .. }, Some(sent)) = (event, &mut after.sent) {
        sent.last = operation.sent.map_or(moment.now, |before| before.last);
    }
    after
}

fn late_not_sent_is_counted(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let mut after = next(operation, event, contract, moment);
    if let Event::Settle { in_hand: false, seen: Seen::NotSent, .. } = event {
        after.attempts = after.attempts.saturating_sub(1);
        after.sent = after.sent.filter(|_| after.attempts > 0 || after.exists);
    }
    after
}

fn throttled_clears_all(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let is_throttled = matches!(event, Event::Settle { in_hand: true, seen: Seen::Throttled(_), .. });
    next(&if is_throttled { only_in_hand(operation) } else { *operation }, event, contract, moment)
}

fn rejected_clears_all(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let is_rejected = is_settled(event, Step::Submit, Seen::Rejected);
    next(&if is_rejected { only_in_hand(operation) } else { *operation }, event, contract, moment)
}

fn unclear_is_not_sent(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    match event {
        Event::Settle { attempt, in_hand, seen: Seen::Unclear } => {
            next(operation, Event::Settle { attempt, in_hand, seen: Seen::NotSent }, contract, moment)
        }
        _ => next(operation, event, contract, moment),
    }
}

fn deadline_fails_what_was_sent(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    let fails = matches!(event, Event::Settle { .. }) && moment.now >= after.deadline && !after.state.is_final();
    if fails { ended(after, State::Failed) } else { after }
}

fn asked_is_cancelled(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    let asked = event == Event::Cancel && after.state == State::CancelRequested;
    if asked { ended(after, State::Cancelled) } else { after }
}

fn cancel_accepted_is_cancelled(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    if is_settled(event, Step::Cancel, Seen::Accepted) { ended(after, State::Cancelled) } else { after }
}

fn late_accepted_reopens(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    let reopens = matches!(event, Event::Settle { in_hand: false, seen: Seen::Accepted, .. });
    if reopens { Operation { state: State::Running, due: Some(moment.now), ..after } } else { after }
}

fn late_evidence_is_ignored(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let is_late = matches!(event, Event::Settle { in_hand: false, .. });
    if is_late { *operation } else { next(operation, event, contract, moment) }
}

fn findings_are_ignored(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    if matches!(event, Event::Resolve { .. }) { *operation } else { next(operation, event, contract, moment) }
}

fn unknown_is_never_asked_about(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    Operation { due: after.due.filter(|_| after.state != State::OutcomeUnknown), ..after }
}

fn unclear_is_given_up(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    let after = next(operation, event, contract, moment);
    let gives_up = is_settled(event, Step::Submit, Seen::Unclear) && !after.state.is_final();
    if gives_up { Operation { state: State::OutcomeUnknown, ..after } } else { after }
}

fn absent_proves_nothing(operation: &Operation, event: Event, contract: &Contract, moment: Moment) -> Operation {
    match event {
        Event::Settle { attempt, in_hand, seen: Seen::Absent } => {
            next(operation, Event::Settle { attempt, in_hand, seen: Seen::Unclear }, contract, moment)
        }
        _ => next(operation, event, contract, moment),
    }
}

type Line = (&'static str, u8, Option<u64>, Property, Machine);

const TABLE: &[Line] = &[
    ("a lost lease is taken for nothing sent", 0, Some(0), OneEffect, lost_lease_is_not_sent),
    ("a sending is recorded when it is settled", 0, Some(0), OneEffect, forgets_until_settled),
    ("an unclear answer is taken for nothing sent", LOOKUP, None, OneEffect, unclear_is_not_sent),
    ("absent is final at once", LOOKUP | FINAL, Some(0), OneEffect, absent_is_final_at_once),
    ("absence ignores the clock's error", LOOKUP | FINAL, Some(1), OneEffect, absence_ignores_clock_error),
    ("absence trusts any clock", LOOKUP | FINAL, None, OneEffect, trusts_any_clock),
    ("absence ignores the lease of a lost worker", LOOKUP | FINAL, Some(0), OneEffect, last_sent_is_the_claim),
    ("absence ignores all but the last sending", KEYS | LOOKUP | FINAL, Some(1), OneEffect, last_sent_is_of_the_last),
    ("the window ignores the lease", KEYS, Some(0), OneEffect, window_ignores_lease),
    ("the window ignores the clock's error", KEYS, Some(1), OneEffect, window_ignores_clock_error),
    ("the window never shuts", KEYS | LOOKUP, Some(0), OneEffect, window_never_shuts),
    ("the window trusts any clock", KEYS, None, OneEffect, trusts_any_clock),
    ("a late `not-sent` is counted", LOOKUP | FINAL, Some(0), OneEffect, late_not_sent_is_counted),
    ("throttled clears all sendings", KEYS, Some(0), OneEffect, throttled_clears_all),
    ("rejected clears all sendings", KEYS | LOOKUP, Some(0), NoFalseDenial, rejected_clears_all),
    ("the deadline fails what was sent", LOOKUP, Some(0), NoFalseDenial, deadline_fails_what_was_sent),
    ("asked to be cancelled is cancelled", CANCELS, Some(0), NoFalseDenial, asked_is_cancelled),
    ("cancelling is cancelled", CANCELS, Some(0), NoFalseDenial, cancel_accepted_is_cancelled),
    ("late evidence reopens what has ended", LOOKUP, Some(0), FinalStays, late_accepted_reopens),
    ("late evidence is ignored", 0, Some(0), EvidenceCounts, late_evidence_is_ignored),
    ("a person's finding is ignored", 0, None, EvidenceCounts, findings_are_ignored),
    ("what is unknown is never asked about", LOOKUP, None, IsDue, unknown_is_never_asked_about),
    ("an unclear answer is given up", KEYS | LOOKUP, Some(0), UnknownIsLast, unclear_is_given_up),
    ("absent proves nothing", LOOKUP | FINAL, Some(1), EndsOnceCalm, absent_proves_nothing),
];

pub fn all() -> impl Iterator<Item = Mutant> {
    TABLE.iter().map(|&(fault, offers, clock, breaks, machine)| Mutant { fault, offers, clock, breaks, machine })
}
