//! What must hold: of every step of the machine, in every state, and from every state once nothing goes wrong any more.

use super::scene::{Effect, Scene};
use super::world::{ASKED, FINAL_AFTER, LEASE, LONG_PAUSE};
use counterfoil::Timestamp;
use counterfoil::engine::next::Event;
use counterfoil::engine::operation::{Cancel, Contract, Operation, Seen, State, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// The provider starts at most one effect.
    OneEffect,
    /// `failed` and `cancelled` are not said of an effect that runs or has finished, nor of one that is yet to start.
    NoFalseDenial,
    /// `succeeded` is said only of an effect that has finished.
    NoFalseSuccess,
    /// A final state never changes; `outcome-unknown` only to a final one.
    FinalStays,
    /// What a provider says of an end, and what a person finds, is believed at once, whichever attempt it comes from.
    EvidenceCounts,
    /// A cancellation that was asked for shows, and at once ends what cannot have been sent.
    CancelIsHeard,
    /// Nothing is asked of the provider that it does not offer, nothing is sent once a person has been asked, and what
    /// is handed out to be sent is known as sent before it is.
    AsksWhatIsOffered,
    /// `outcome-unknown` is the last resort.
    UnknownIsLast,
    /// What has not ended is due within a bound, unless a person alone can settle it.
    IsDue,
    /// From here, once nothing goes wrong any more, it ends; in `outcome-unknown` only if the contract leaves no way.
    EndsOnceCalm,
}

pub const ALL: &[Property] = &[
    Property::OneEffect,
    Property::NoFalseDenial,
    Property::NoFalseSuccess,
    Property::FinalStays,
    Property::EvidenceCounts,
    Property::CancelIsHeard,
    Property::AsksWhatIsOffered,
    Property::UnknownIsLast,
    Property::IsDue,
    Property::EndsOnceCalm,
];

/// What one step of the machine broke.
pub fn of_step(
    contract: &Contract,
    before: &Operation,
    after: &Operation,
    event: Event,
    now: Timestamp,
) -> Option<Property> {
    if before.state.is_final() {
        return (after != before).then_some(Property::FinalStays);
    }
    let was_unknown = before.state == State::OutcomeUnknown;
    let is_unknown = after.state == State::OutcomeUnknown;
    let is_final = after.state.is_final();
    [
        (!was_unknown || is_unknown || is_final, Property::FinalStays),
        (counts(before, after, event), Property::EvidenceCounts),
        (is_heard(before, after, event), Property::CancelIsHeard),
        (asks_what_is_offered(contract, after, event, now), Property::AsksWhatIsOffered),
        (was_unknown || !is_unknown || is_last_resort(contract, before, event, now), Property::UnknownIsLast),
        (is_due(contract, after, now), Property::IsDue),
    ]
    .into_iter()
    .find_map(|(holds, property)| (!holds).then_some(property))
}

fn counts(before: &Operation, after: &Operation, event: Event) -> bool {
    match event {
        Event::Settle { seen: Seen::Finished, .. } => after.state == State::Succeeded,
        Event::Settle { seen: Seen::Failed, .. } => after.state == State::Failed,
        Event::Settle { seen: Seen::Cancelled, .. } => after.state == State::Cancelled,
        Event::Settle { seen: Seen::Accepted, .. } => after.exists,
        Event::Resolve { happened } if before.state == State::OutcomeUnknown => {
            after.state == if happened { State::Succeeded } else { State::Failed }
        }
        _ => true,
    }
}

fn is_heard(before: &Operation, after: &Operation, event: Event) -> bool {
    let is_shown = after.cancel == Cancel::No || !matches!(after.state, State::Accepted | State::Running);
    let was_handed_out = before.sent.is_some() || before.exists;
    is_shown
        && match event {
            Event::Cancel if before.state == State::OutcomeUnknown => after.state == before.state,
            Event::Cancel if was_handed_out => after.cancel != Cancel::No,
            Event::Cancel => after.state == State::Cancelled,
            _ => true,
        }
}

fn asks_what_is_offered(contract: &Contract, after: &Operation, event: Event, now: Timestamp) -> bool {
    let (Event::Claim { lease }, Some(attempt)) = (event, after.attempt) else { return true };
    let is_leased = attempt.claimed_at == now && attempt.lease_until == now.plus(lease);
    let is_known = after.state != State::OutcomeUnknown;
    is_leased
        && match attempt.step {
            Step::Submit => is_known && after.sent.is_some(),
            Step::Lookup => contract.looks_up,
            Step::Cancel => is_known && contract.cancels && after.cancel == Cancel::Asked,
        }
}

/// Before the deadline nothing but these leads there:
///
/// | The provider | What leads there |
/// |---|---|
/// | looks up, and `absent` becomes final | it says `absent` of what it said it had |
/// | looks up | it says `absent` |
/// | knows keys | its window may have shut; it refused for good; asked to cancel, it says `absent` |
/// | none of these | the answer does not tell the end |
fn is_last_resort(contract: &Contract, before: &Operation, event: Event, now: Timestamp) -> bool {
    let seen = if let Event::Settle { seen, .. } = event { Some(seen) } else { None };
    let is_absent = seen == Some(Seen::Absent);
    let may_exist = before.sent.is_some() || before.exists;
    let error = contract.clock_within;
    let leads_there = match (contract.deduplicates_for, before.sent, error) {
        _ if now >= before.deadline => true,
        _ if contract.looks_up && contract.absent_is_final_after.is_some() && error.is_some() => {
            is_absent && before.exists
        }
        _ if contract.looks_up => is_absent,
        (Some(window), Some(sent), Some(error)) => {
            let elapsed = now.milliseconds().saturating_sub(sent.first.milliseconds());
            let may_be_shut = elapsed + LEASE + 2 * error > window;
            may_be_shut || is_absent || before.rejected || seen == Some(Seen::Rejected)
        }
        _ => true,
    };
    may_exist && leads_there
}

fn is_due(contract: &Contract, after: &Operation, now: Timestamp) -> bool {
    let error = contract.clock_within.unwrap_or(3);
    let bound = LONG_PAUSE + u64::from(ASKED) + LEASE + FINAL_AFTER + 4 * error;
    match after.due {
        _ if after.state.is_final() => after.due.is_none() && after.attempt.is_none(),
        Some(due) => due <= now.plus(bound),
        None => after.state == State::OutcomeUnknown && !contract.looks_up,
    }
}

/// What is broken in a state.
pub fn of_scene(scene: &Scene) -> Option<Property> {
    let exists = matches!(scene.effect, Effect::Running | Effect::Finished);
    match scene.operation.state {
        _ if scene.taken > 1 => Some(Property::OneEffect),
        // Of one that is yet to start this is found in the state in which it has.
        State::Failed | State::Cancelled if exists => Some(Property::NoFalseDenial),
        State::Succeeded if scene.effect != Effect::Finished => Some(Property::NoFalseSuccess),
        _ => scene.broken,
    }
}
