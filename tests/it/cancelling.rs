//! Cancelling and refusing: the last rows of the table at the head of `src/engine/next.rs`, and what a clock that steps
//! proves. Incidents are numbered as in CONTRACT.md.

use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Observation::{Absent, Cancelled as Stopped, Throttled};
use host_example::ProviderContract;
use host_example::Step::{Cancel as Stop, Lookup, Submit};
use host_example::types::State::*;

const EVERY: [ProviderContract; 5] = [NONE, KEYED, ASKED, BOTH, CANCELS];

/// Row 6.
#[test]
fn what_was_not_sent_is_cancelled_at_once_and_never_sent() {
    for contract in EVERY {
        for before in [&[][..], &[Get(Submit), See(not_sent(), Accepted)]] {
            let mut story = Story::new(contract);
            story.play(before).play(&[Cancel(Cancelled), Cancel(Cancelled), Later(DAY), Idle, Is(Cancelled)]);
            let now = story.now();
            assert_eq!((now["attempts"].as_u64(), now["detail"].as_str()), (Some(0), Some("")));
        }
    }
}

/// Row 7, in a worker's hand; incidents 4 and 16. Nobody knows yet whether it was sent, and nobody says so.
#[test]
fn a_cancel_while_it_is_being_sent_is_asked_for_and_success_wins_the_race() {
    for (contract, seen, then) in [
        (NONE, finished(), &[Is(Succeeded), Cancel(Succeeded)][..]),
        (NONE, failed(), &[Is(Failed)]),
        (NONE, Stopped, &[Is(Cancelled)]),
        (NONE, not_sent(), &[Is(Cancelled)]),
        (NONE, Throttled(5), &[Is(Cancelled)]),
        (NONE, rejected(), &[Is(Cancelled)]),
        (NONE, unclear(), &[Is(OutcomeUnknown)]),
        (NONE, accepted(), &[Is(OutcomeUnknown)]),
        (CANCELS, finished(), &[Is(Succeeded)]),
        (CANCELS, not_sent(), &[Is(Cancelled)]),
        (CANCELS, accepted(), &[Is(CancelRequested), Due, Get(Stop)]),
        (CANCELS, unclear(), &[Is(CancelRequested), Due, Get(Stop)]),
        (BOTH, accepted(), &[Is(CancelRequested), Due, Get(Lookup)]),
        (BOTH, unclear(), &[Is(CancelRequested), Due, Get(Lookup)]),
        (ASKED, unclear(), &[Is(CancelRequested), Due, Get(Lookup)]),
    ] {
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), Cancel(CancelRequested), Idle, Cancel(CancelRequested)]);
        assert!(story.now()["next_action"].as_str().unwrap().contains("it may still succeed"));
        let told = story.client.settle(&story.tasks[0], &seen);
        story.play(then);
        if matches!(told.state, Succeeded | Failed | Cancelled) {
            story.play(&[Later(DAY), Idle, Cancel(told.state)]);
        }
    }
}

/// Row 7; incidents 4 and 16: no worker is alive to act on it.
#[test]
fn a_cancel_that_no_worker_acts_on_is_never_reported_as_done() {
    for contract in EVERY {
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), Cancel(CancelRequested), Later(LEASE), Is(CancelRequested)]);
        story.play(&[Later(30 * DAY), Is(CancelRequested), Cancel(CancelRequested)]);
        assert_eq!(story.now()["attempts"], 1);
    }
}

/// Row 7: the provider is asked, and what it says is final.
#[test]
fn a_cancel_after_dispatch_ends_as_the_provider_says() {
    let there = [Get(Submit), See(accepted(), Running), Cancel(CancelRequested), Get(Stop)];
    let unclear_first = [Get(Submit), See(unclear(), Running), Cancel(CancelRequested), Get(Stop)];
    for (before, then) in [
        (&there, &[See(Stopped, Cancelled)][..]),
        (&there, &[See(finished(), Succeeded)]),
        (&there, &[See(failed(), Failed)]),
        // Who does not hear that it is to stop may tell that it has ended: it is told and asked in turn.
        (&there, &[See(accepted(), CancelRequested), Due, Get(Lookup), See(Stopped, Cancelled)]),
        (&there, &[See(unclear(), CancelRequested), Due, Get(Lookup), See(finished(), Succeeded)]),
        (
            &there,
            &[See(not_sent(), CancelRequested), Due, Get(Lookup), See(unclear(), CancelRequested), Due, Get(Stop)],
        ),
        (&there, &[Later(LEASE), Get(Stop), See(Stopped, Cancelled)]),
        // It cannot be stopped: it goes on, and how it ends is asked.
        (&there, &[See(rejected(), CancelRequested), Due, Get(Lookup), See(finished(), Succeeded)]),
        (&there, &[See(rejected(), CancelRequested), Due, Get(Lookup), See(failed(), Failed)]),
        // It has it, and never saw it, also when nothing can still arrive.
        (&there, &[See(Absent, CancelRequested), Due, Get(Lookup), See(Absent, OutcomeUnknown)]),
        (&unclear_first, &[See(Stopped, Cancelled)]),
        (&unclear_first, &[See(finished(), Succeeded)]),
        (&unclear_first, &[See(accepted(), CancelRequested), Due, Get(Stop)]),
        // A request under way may still arrive, until it cannot.
        (&unclear_first, &[See(Absent, CancelRequested), Due, Get(Lookup), See(Absent, Cancelled)]),
    ] {
        Story::new(CANCELS).play(before).play(then);
    }
}

/// Row 7, for a provider that cannot be asked to stop: it is asked how it is.
#[test]
fn a_cancel_that_the_provider_does_not_offer_ends_as_it_ends() {
    let cancelled = [Get(Submit), See(accepted(), Running), Cancel(CancelRequested)];
    for contract in [ASKED, BOTH] {
        let then = [Get(Lookup), See(accepted(), CancelRequested), Due, Get(Lookup), See(finished(), Succeeded)];
        Story::new(contract).play(&cancelled).play(&then);
    }
    Story::new(KEYED).play(&cancelled).play(&[Later(HOUR), Idle, Is(OutcomeUnknown), Cancel(OutcomeUnknown)]);
}

/// A refusal says nothing of an earlier sending.
#[test]
fn a_rejected_request_is_failed_unless_an_earlier_one_may_have_been_taken() {
    let unclear_first = [Get(Submit), See(unclear(), Running), Due, Get(Submit)];
    for contract in EVERY {
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), See(rejected(), Failed), Later(DAY), Idle]);
        let now = story.now();
        assert_eq!(now["detail"], "The provider refused it: no such service");
        assert_eq!(now["attempts"], 0);
    }
    for (contract, then) in [
        (KEYED, &[See(rejected(), OutcomeUnknown), Later(DAY), Idle][..]),
        (BOTH, &[See(rejected(), Running), Due, Get(Lookup), See(finished(), Succeeded)]),
        (BOTH, &[See(rejected(), Running), Later(HOUR), Get(Lookup), See(Absent, Failed)]),
        (CANCELS, &[See(rejected(), Running), Due, Get(Lookup), See(Absent, Running), Due, Get(Lookup)]),
    ] {
        let mut story = Story::new(contract);
        story.play(&unclear_first).play(then);
        if story.now()["state"] == "failed" {
            assert_eq!(story.now()["detail"], "The provider refused it.");
        }
    }
}

/// Incident 13: nothing is delayed by as much as the clock stepped back.
#[test]
fn a_clock_that_steps_back_delays_nothing() {
    for contract in EVERY {
        // Recorded, and never tried.
        Story::new(contract).play(&[Earlier(DAY), Get(Submit)]);
        // The pause is as long as it was.
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), See(not_sent(), Accepted), Earlier(DAY), Due]);
        assert!((500..=1000).contains(&(story.world.clock.now() - (START - DAY))));
        story.play(&[Get(Submit), See(finished(), Succeeded)]);
        // So is a lease, and nobody else is given what is in hand.
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), Later(LEASE / 2), Earlier(DAY), Due]);
        assert_eq!(story.world.clock.now(), START - DAY + LEASE / 2 + LEASE);
        // And the pause that a provider asked for.
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), See(Throttled(20_000), Accepted), Earlier(DAY), Due]);
        assert_eq!(story.world.clock.now(), START - DAY + 20 * SECOND);
    }
}

/// Incident 13; D4: what was sent is not sent again on the word of a clock that steps.
#[test]
fn a_clock_that_steps_either_way_proves_nothing_and_sends_nothing_twice() {
    let sent = [Get(Submit), See(unclear(), Running)];
    for (contract, then) in [
        (KEYED, &[Earlier(DAY), Due, Idle, Is(OutcomeUnknown)][..]),
        (KEYED, &[Later(DAY), Idle, Is(OutcomeUnknown), Earlier(DAY), Idle]),
        // What is within the clock's error is no step.
        (KEYED, &[Later(10 * SECOND), Get(Submit), See(unclear(), Running), Earlier(2 * SECOND), Due, Get(Submit)]),
        (KEYED, &[Later(10 * SECOND), Get(Submit), See(unclear(), Running), Earlier(9 * SECOND), Due, Idle]),
        // Neither final nor a window, also when the clock is where it was: a person is asked, and so is the provider.
        (BOTH, &[Earlier(DAY), Due, Get(Lookup), See(Absent, OutcomeUnknown), Later(DAY), Get(Lookup)]),
        (
            ASKED,
            &[
                Earlier(DAY),
                Due,
                Get(Lookup),
                See(Absent, OutcomeUnknown),
                Due,
                Get(Lookup),
                See(Absent, OutcomeUnknown),
            ],
        ),
        (
            ASKED,
            &[
                Earlier(DAY),
                Due,
                Get(Lookup),
                See(Absent, OutcomeUnknown),
                Due,
                Get(Lookup),
                See(finished(), Succeeded),
            ],
        ),
        (BOTH, &[Later(DAY), Get(Lookup), See(unclear(), OutcomeUnknown), Earlier(DAY), Due, Get(Lookup)]),
    ] {
        let mut story = Story::new(contract);
        story.play(&sent).play(then);
    }
    // Wrong when it was sent, or when that was recorded, and right since.
    let (ask, lost) = (See(unclear(), Running), See(Absent, OutcomeUnknown));
    for (contract, story) in [
        (ASKED, &[Earlier(HOUR), Get(Submit), ask.clone(), Later(HOUR + 2 * SECOND), Get(Lookup), lost.clone()][..]),
        (ASKED, &[Get(Submit), Earlier(HOUR), ask.clone(), Later(HOUR + 2 * SECOND), Get(Lookup), lost.clone()]),
        (
            BOTH,
            &[
                Later(HOUR),
                Get(Submit),
                ask.clone(),
                Earlier(HOUR),
                Due,
                Get(Lookup),
                ask.clone(),
                Later(HOUR),
                Get(Lookup),
            ],
        ),
        (
            KEYED,
            &[Later(HOUR), Get(Submit), ask.clone(), Earlier(HOUR), Due, Idle, Is(OutcomeUnknown), Later(HOUR), Idle],
        ),
    ] {
        Story::new(contract).play(story);
    }
    // A lease in hand, seen from a day later and a day earlier.
    for contract in [NONE, KEYED] {
        let mut story = Story::new(contract);
        story.play(&[Get(Submit), Later(DAY), Idle, Is(OutcomeUnknown), Earlier(2 * DAY), Idle, Later(DAY), Idle]);
        assert_eq!(story.now()["attempts"], 1);
        // The worker was only slow.
        story.play(&[Late(0, finished(), Succeeded)]);
    }
}
