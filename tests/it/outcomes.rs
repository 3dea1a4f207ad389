//! What becomes of an effect outside the database: each row of the table at the head of `src/engine/next.rs`, through the
//! component, for providers that are known to do more or less. Incidents are numbered as in CONTRACT.md.

use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Step::{Cancel as Stop, Lookup, Submit};
use host_example::types::State::*;
use host_example::{Observation, ProviderContract};
use serde_json::json;

const EVERY: [ProviderContract; 5] = [NONE, KEYED, ASKED, BOTH, CANCELS];

/// The story, and what Ada is told at its end of attempts that may have reached the provider.
#[track_caller]
fn plays(contract: ProviderContract, moves: &[Move], attempts: u32) -> Story {
    let mut story = Story::new(contract);
    story.play(moves);
    assert_eq!(story.now()["attempts"], attempts, "{contract:?}: {moves:?}");
    story
}

/// Row 1.
#[test]
fn what_was_not_sent_is_tried_until_the_deadline_and_then_failed() {
    for contract in EVERY {
        let tried = [Get(Submit), See(not_sent(), Accepted), Due, Get(Submit), See(not_sent(), Accepted)];
        let mut story = plays(contract, &[&tried[..], &[Due, Get(Submit), See(finished(), Succeeded)]].concat(), 1);
        assert_eq!(story.now()["resource_id"], "d-1");

        let mut story = plays(contract, &[&tried[..], &[Later(DAY), Idle, Is(Failed), Later(DAY), Idle]].concat(), 0);
        assert_eq!(story.now()["detail"], "Nothing was done before its deadline. no route");

        // Never tried at all: the last millisecond is still in time.
        plays(contract, &[Later(DAY - 1), Get(Submit), See(finished(), Succeeded)], 1);
        let mut story = plays(contract, &[Later(DAY), Idle, Is(Failed)], 0);
        assert_eq!(story.now()["detail"], "Nothing was done before its deadline.");

        // The pause after it would end beyond the deadline.
        plays(contract, &[Later(DAY - 500), Get(Submit), See(not_sent(), Failed), Idle], 0);
    }
}

/// Row 2; incident 7.
#[test]
fn what_may_have_been_sent_is_sent_again_under_its_key_while_the_window_is_open() {
    for contract in [KEYED, BOTH, CANCELS] {
        let again = [Due, Get(Submit), See(unclear(), Running)];
        let moves = [&[Get(Submit), See(unclear(), Running)], &again[..], &again, &[Due, Get(Submit)]].concat();
        let mut story = plays(contract, &moves, 4);
        story.play(&[See(finished(), Succeeded), Later(DAY), Idle]);
    }
}

/// Row 2: the window counts from the first sending, to the end of the lease, less twice the clock's error.
#[test]
fn a_key_is_not_relied_on_at_the_end_of_its_window() {
    let last = HOUR - LEASE - 2 * SECOND;
    let sent = [Get(Submit), See(unclear(), Running)];
    for (contract, later, then) in [
        (KEYED, last, &[Get(Submit), See(unclear(), Running)][..]),
        (KEYED, last + 1, &[Idle, Is(OutcomeUnknown), Later(DAY), Idle]),
        (BOTH, last, &[Get(Submit), See(unclear(), Running)]),
        (BOTH, last + 1, &[Get(Lookup), See(finished(), Succeeded)]),
        (CANCELS, last + 1, &[Get(Lookup), See(unclear(), Running), Due, Get(Lookup)]),
    ] {
        Story::new(contract).play(&sent).play(&[Later(later)]).play(then);
        // A second sending in between does not begin it anew.
        let between = [Later(HOUR / 2), Get(Submit), See(unclear(), Running), Later(later - HOUR / 2)];
        Story::new(contract).play(&sent).play(&between).play(then);
    }
}

/// Row 2: `absent` counts once no request can still be under way.
#[test]
fn an_absence_is_asked_for_again_until_it_is_final_and_then_it_is_sent_anew() {
    let mut story = Story::new(ASKED);
    story.play(&[Get(Submit), See(unclear(), Running), Due, Get(Lookup), See(Observation::Absent, Running), Due]);
    assert_eq!(story.world.clock.now(), START + 12 * SECOND);
    story.play(&[Get(Lookup), See(Observation::Absent, Accepted)]);
    assert_eq!((&story.now()["attempts"], &story.now()["resource_id"]), (&json!(0), &json!(null)));
    story.play(&[Get(Submit), See(finished(), Succeeded)]);
    assert_eq!(story.now()["attempts"], 1);

    // Of a worker that was lost nobody knows that it was done sooner than its lease.
    let mut story = Story::new(ASKED);
    story.play(&[Get(Submit), Later(LEASE), Get(Lookup), See(Observation::Absent, Running), Due]);
    assert_eq!(story.world.clock.now(), START + LEASE + 12 * SECOND);
    // What it says at last is about another request.
    story.play(&[Get(Lookup), See(Observation::Absent, Accepted), Get(Submit), Late(0, unclear(), Running)]);
}

/// Row 2: what is absent for good is over, if it is too late to send it or nobody wants it.
#[test]
fn a_final_absence_after_the_deadline_is_failed_and_of_what_is_to_be_cancelled_cancelled() {
    let sent = [Get(Submit), See(unclear(), Running)];
    for (contract, moves, detail) in [
        (
            ASKED,
            &[Later(DAY), Get(Lookup), See(Observation::Absent, Failed)][..],
            "Nothing was done before its deadline.",
        ),
        (BOTH, &[Later(DAY), Get(Lookup), See(Observation::Absent, Failed)], "Nothing was done before its deadline."),
        (ASKED, &[Cancel(CancelRequested), Later(HOUR), Get(Lookup), See(Observation::Absent, Cancelled)], ""),
        (CANCELS, &[Cancel(CancelRequested), Later(HOUR), Get(Stop), See(Observation::Absent, Cancelled)], ""),
    ] {
        let mut story = plays(contract, &[&sent[..], moves, &[Later(DAY), Idle]].concat(), 0);
        assert_eq!(story.now()["detail"], detail);
    }
}

/// Row 2; D4 and D5: without the figure nothing is proved, and a person is asked.
#[test]
fn what_nobody_vouches_for_proves_nothing() {
    let no_clock = |contract| ProviderContract { clock_within: None, ..contract };
    let no_figure = ProviderContract { absent_is_final_after: None, ..ASKED };
    let no_look_up = ProviderContract { looks_up: false, ..ASKED };
    let sent = [Get(Submit), See(unclear(), OutcomeUnknown)];
    let asked = [Get(Submit), See(unclear(), Running), Due, Get(Lookup), See(Observation::Absent, OutcomeUnknown)];
    for (contract, moves) in [
        (NONE, &sent[..]),
        (no_clock(KEYED), &sent),
        (no_look_up, &sent),
        (no_figure, &asked),
        (no_clock(ASKED), &asked),
        (no_clock(BOTH), &asked),
        // What it has said that it has cannot be absent.
        (ASKED, &[Get(Submit), See(accepted(), Running), Later(HOUR), Get(Lookup), asked[4].clone()]),
    ] {
        let mut story = plays(contract, moves, 1);
        // Nothing is sent any more; the provider is asked, if it can be.
        for _ in 0..3 {
            story.world.clock.advance(3 * HOUR);
            match contract.looks_up {
                true => story.play(&[Get(Lookup), See(Observation::Absent, OutcomeUnknown)]),
                false => story.play(&[Idle]),
            };
        }
        assert_eq!(story.now()["attempts"], 1);
    }
}

/// D5: with what a person must check, at the provider.
#[test]
fn an_unknown_outcome_names_the_client_reference_and_the_providers_key_or_the_resource() {
    let mut story = plays(NONE, &[Get(Submit), See(unclear(), OutcomeUnknown)], 1);
    let (id, key) = (&story.id.clone(), &story.tasks[0].provider_key.clone());
    assert_eq!(
        story.now(),
        json!({
            "status": "succeeded",
            "replayed": false,
            "retryable": false,
            "operation_id": id,
            "tool": "start_deployment",
            "state": "outcome_unknown",
            "since": "2027-01-15T08:00:00.000Z",
            "attempts": 1,
            "detail": "timed out",
            "next_action": format!(
                "Have a person check at the provider whether it took a request with client reference {id} and \
                 idempotency key {key}, and an operator record it with resolve. Do not start it again under a new key: \
                 that could act twice."
            ),
        })
    );

    let mut story = plays(NONE, &[Get(Submit), See(accepted(), OutcomeUnknown)], 1);
    let now = story.now();
    assert_eq!(now["resource_id"], "d-1");
    assert!(now["next_action"].as_str().unwrap().starts_with("Have a person check at the provider how d-1 ended, "));
}

/// Row 4; incident 7: its worker may have sent it.
#[test]
fn a_lease_that_ended_never_leads_to_a_plain_second_sending() {
    for (contract, then, attempts) in [
        (NONE, &[Idle, Is(OutcomeUnknown), Later(DAY), Idle][..], 1),
        (ProviderContract { cancels: true, ..NONE }, &[Idle, Is(OutcomeUnknown), Later(DAY), Idle], 1),
        (KEYED, &[Get(Submit), Is(Running)], 2),
        (ASKED, &[Get(Lookup), Is(Running)], 1),
        (BOTH, &[Get(Submit), Is(Running)], 2),
        (CANCELS, &[Get(Submit), Is(Running)], 2),
    ] {
        let lost = [Get(Submit), Later(LEASE - 1), Idle, Is(Running), Later(1)];
        let mut story = plays(contract, &[&lost[..], then].concat(), attempts);
        if contract.deduplicates_for.is_none() && !contract.looks_up {
            assert_eq!(story.now()["detail"], "The worker that had it in hand was lost.");
        }
    }
}

/// Row 3: learnt again.
#[test]
fn what_the_provider_did_and_nobody_recorded_is_learnt_by_look_up_or_by_the_same_key() {
    for (contract, then) in [
        (KEYED, [Later(LEASE), Get(Submit), See(finished(), Succeeded)]),
        (ASKED, [Later(LEASE), Get(Lookup), See(finished(), Succeeded)]),
        (BOTH, [Later(HOUR), Get(Lookup), See(finished(), Succeeded)]),
        (BOTH, [Later(HOUR), Get(Lookup), See(failed(), Failed)]),
    ] {
        let mut story = Story::new(contract);
        story.play(&[Get(Submit)]).play(&then).play(&[Later(DAY), Idle]);
        let found = story.now();
        let expected = if found["state"] == "failed" { ("exit code 1", &json!(null)) } else { ("", &json!("d-1")) };
        assert_eq!((found["detail"].as_str().unwrap(), &found["resource_id"]), expected);
    }
}

/// Row 5.
#[test]
fn a_throttled_attempt_is_due_after_the_pause_and_not_before() {
    let throttled = |milliseconds: u64| Observation::Throttled(milliseconds as u32);
    for contract in EVERY {
        let mut story = plays(contract, &[Get(Submit), See(throttled(20 * SECOND), Accepted), Due], 0);
        assert_eq!(story.world.clock.now(), START + 20 * SECOND);
        story.play(&[Get(Submit), See(finished(), Succeeded)]);

        // The pause ends before the deadline, or it is not worth waiting for.
        plays(contract, &[Get(Submit), See(throttled(DAY - 1), Accepted), Due, Get(Submit)], 1);
        let mut story = plays(contract, &[Get(Submit), See(throttled(DAY), Failed), Later(2 * DAY), Idle], 0);
        assert_eq!(
            story.now()["detail"],
            "Nothing was done before its deadline. The provider asked for a pause of 86400000 ms."
        );
    }
    // What an earlier attempt may have done it may have done all the same.
    let unclear_first = [Get(Submit), See(unclear(), Running), Due, Get(Submit)];
    let mut story = plays(KEYED, &[&unclear_first[..], &[See(throttled(20 * SECOND), Running)]].concat(), 1);
    let before = story.world.clock.now();
    story.play(&[Due]);
    assert_eq!(story.world.clock.now(), before + 20 * SECOND);
    plays(KEYED, &[&unclear_first[..], &[See(throttled(HOUR), Running), Due, Idle, Is(OutcomeUnknown)]].concat(), 1);
    // A question is throttled as well.
    let asked = [Get(Submit), See(unclear(), Running), Due, Get(Lookup), See(throttled(20 * SECOND), Running)];
    plays(ASKED, &[&asked[..], &[Due, Get(Lookup)]].concat(), 1);
}

/// Pauses are random, so that many workers do not ask at once, and grow up to two minutes.
#[test]
fn pauses_grow_and_are_not_the_same_for_all() {
    let world = World::new();
    let mut client = world.client();
    let ids: Vec<_> = (0..16).map(|number| client.start(&format!("k{number}"))).collect();
    for (least, most) in [(500, 1000), (1000, 2000), (2000, 4000), (4000, 8000)] {
        let tasks = client.claim(NONE).tasks;
        assert_eq!(tasks.len(), ids.len());
        for task in &tasks {
            client.settle(task, &not_sent());
        }
        let sql = format!("SELECT count(DISTINCT due) > 4, min(due) - {0}, max(due) - {0}", world.clock.now());
        let found = world.db.sql(&format!("{sql} FROM operations"));
        let [differ, shortest, longest]: [i64; 3] =
            found.split('|').map(|number| number.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
        assert!(differ == 1 && shortest >= least && longest <= most, "{found}, {least} to {most}");
        world.clock.advance(most as u64);
    }
}
