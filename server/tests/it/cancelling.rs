//! Cancelling: what is answered is established, and success may win.

use crate::harness::*;
use crate::world::*;
use serde_json::json;
use std::thread;

const NONE: &str = "none";
const EVERYTHING: &str = "deduplicates-for=1h,looks-up,absent-is-final-after=1s,cancels,clock-within=10ms";

#[test]
fn what_was_never_begun_is_cancelled_at_once_and_never_sent() {
    // Incidents 4 and 16: no worker lives, and none is needed to know this.
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let (cancelled, kept) = (world.deploy("k"), world.deploy("l"));

    let answered = world.cancel(&cancelled);
    let again = world.cancel(&cancelled);

    assert_eq!((&answered["state"], &answered["attempts"]), (&json!("cancelled"), &json!(0)));
    assert_eq!(answered["next_action"], "Nothing is left to do. Start it under a new key if it is wanted after all.");
    assert_eq!(again, answered);
    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    assert_eq!((taken(&provider, &cancelled).len(), taken(&provider, &kept).len()), (0, 1));
    assert_eq!(world.attempts(&cancelled), [""; 0]);
    // The key still stands for the action that was cancelled.
    let replay = world.call("start_deployment", &deployment("k", "r1")).reply();
    assert_eq!((&replay["replayed"], &replay["operation_id"]), (&json!(true), &json!(cancelled)));
    assert_eq!(world.operation(&cancelled), answered);
}

#[test]
fn what_may_have_been_sent_is_not_called_cancelled_while_no_worker_lives() {
    // Incident 16: a cancel was acknowledged with no worker alive to act on it. The request is settled, not in hand.
    let provider = Provider::start(&["--contract", EVERYTHING, "--faults", "drop-after", "--finish-after", "1h"]);
    let world = World::new();
    let id = world.deploy("k");
    assert_eq!(world.work_once(&provider.url(), EVERYTHING).code, 0);
    assert_eq!(world.attempts(&id), ["submit unclear"]);
    provider.set_faults("none");

    let answered = world.cancel(&id);
    let again = world.cancel(&id);

    assert_eq!(answered["state"], "cancel_requested");
    let next = "Wait, then ask again: it is not established yet whether it stopped, and it may still succeed.";
    assert_eq!(answered["next_action"], next);
    assert_eq!((&again, world.operation(&id)), (&answered, answered.clone()));
    assert_eq!(provider.look_up(&id).unwrap().state(), "running");

    let _worker = world.worker(&provider.url(), EVERYTHING, &[]);
    world.until_state(&id, "cancelled");
    assert_eq!(provider.look_up(&id).unwrap().state(), "cancelled");
    assert_eq!((taken(&provider, &id).len(), provider.effects_of(&id)), (1, 0));
}

#[test]
fn what_a_killed_worker_had_in_hand_is_not_called_cancelled_before_it_is_known() {
    // Incident 16 again: its lease still runs.
    let provider = Provider::start(&["--contract", EVERYTHING, "--faults", "late=1:1h", "--finish-after", "1h"]);
    let world = World::new();
    let id = world.deploy("k");
    let mut worker = world.worker(&provider.url(), EVERYTHING, &["--attempt-timeout", "2s", "--lease", "4s"]);
    until(|| (provider.effects_of(&id) == 1).then_some(()));
    worker.process.kill();
    provider.set_faults("none");

    assert_eq!(world.cancel(&id)["state"], "cancel_requested");

    let _worker = world.worker(&provider.url(), EVERYTHING, &[]);
    world.until_state(&id, "cancelled");
    assert_eq!((taken(&provider, &id).len(), provider.effects_of(&id)), (1, 0));
}

/// What the only sending meets, how long a deployment runs, what the cancellation meets, the contract; the end, and the
/// state of the provider's row, if there is one.
const ENDS: [[&str; 6]; 9] = [
    ["drop-after", "1h", "none", EVERYTHING, "cancelled", "cancelled"],
    // It was never taken: known once its absence is final.
    ["drop-before", "1h", "none", EVERYTHING, "cancelled", ""],
    // Success wins.
    ["drop-after", "0s", "none", EVERYTHING, "succeeded", "succeeded"],
    ["drop-after", "1h", "succeed-while-cancelling", EVERYTHING, "succeeded", "succeeded"],
    ["drop-after", "4s", "refuse-cancel", EVERYTHING, "succeeded", "succeeded"],
    ["drop-after,fail", "0s", "none", EVERYTHING, "failed", "failed"],
    // The provider cannot be asked to stop.
    ["drop-after", "4s", "none", "looks-up", "succeeded", "succeeded"],
    ["drop-before", "4s", "none", "looks-up", "outcome_unknown", ""],
    ["drop-after", "4s", "none", NONE, "outcome_unknown", "succeeded"],
];

#[test]
fn a_cancelled_operation_ends_as_the_provider_says() {
    // Incident 4: "cancelled" was reported; the work had committed.
    thread::scope(|scope| {
        for [fault, runs, later, contract, state, row] in ENDS {
            scope.spawn(move || {
                let case = format!("{fault}, {later} under {contract}");
                let provider = Provider::start(&["--contract", contract, "--faults", fault, "--finish-after", runs]);
                let world = World::new();
                let id = world.deploy("k");
                assert_eq!(world.work_once(&provider.url(), contract).code, 0);
                assert_eq!(world.attempts(&id), ["submit unclear"], "{case}");
                provider.set_faults(later);
                // Without any way to ask, it is a person's already.
                let asked = if contract == NONE { "outcome_unknown" } else { "cancel_requested" };
                assert_eq!(world.cancel(&id)["state"], asked, "{case}");

                let _worker = world.worker(&provider.url(), contract, &[]);
                world.until_state(&id, state);

                // `succeed-while-cancelling` may be told later, when its time comes: then it runs.
                until(|| {
                    let found: Vec<_> = taken(&provider, &id).into_iter().map(|(_, _, state)| state).collect();
                    provider.effects();
                    (found.concat() == row).then_some(())
                });
                let sent = world.attempts(&id).iter().filter(|attempt| attempt.starts_with("submit")).count();
                assert_eq!(sent, 1, "{case}");
            });
        }
    });
}

#[test]
fn of_many_cancellations_that_race_success_each_is_reported_as_it_was() {
    // Incident 4. They are asked for at all moments between the sending and the end.
    let faults = "succeed-while-cancelling=0.2,refuse-cancel=0.2,drop-after=0.2";
    let arguments = ["--contract", EVERYTHING, "--faults", faults, "--finish-after", "1500ms", "--seed", "1"];
    let provider = Provider::start(&arguments);
    let world = World::new();
    let ids = world.deploy_many(24);
    let _workers = [0, 1].map(|_| world.worker(&provider.url(), EVERYTHING, &[]));

    let answered: Vec<_> = ids.iter().map(|id| world.cancel(id)["state"].as_str().unwrap().to_owned()).collect();
    for id in &ids {
        until(|| SETTLED.contains(&world.state(id).as_str()).then_some(()));
    }

    provider.effects();
    for (id, answered) in ids.iter().zip(&answered) {
        let (state, rows) = (world.state(id), taken(&provider, id));
        let there: Vec<_> = rows.iter().map(|(_, _, state)| state.as_str()).collect();
        match state.as_str() {
            "succeeded" => assert_eq!(there, ["succeeded"], "{id}"),
            "cancelled" => assert!(there.is_empty() || there == ["cancelled"], "{id}: {there:?}"),
            other => panic!("{id} is {other}"),
        }
        // What was said to be established stays.
        if answered != "cancel_requested" {
            assert_eq!(*answered, state, "{id}");
        }
    }
    world.assert_whole();
}
