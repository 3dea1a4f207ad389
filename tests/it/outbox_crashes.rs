//! What survives of the outbox when storage fails, or the process or the machine dies, at any call to storage: what was
//! handed out is stored, what was settled is settled, and nothing is handed out twice.

use crate::crashes::old_disk;
use crate::disk::{Disk, Fault};
use crate::outbox_harness::*;
use host_example::Error;
use host_example::Sharing::{Shared, Sole, SoleAtomic};
use host_example::Task;
use host_example::types::State;
use serde_json::json;

/// What was answered.
struct Life {
    started: Option<String>,
    task: Option<Task>,
    is_settled: bool,
}

/// A deployment is started, taken on and carried out, as far as the disk lets it.
fn live(world: &World, disk: &Disk) -> Life {
    let mut client = world.client_on(disk.storage());
    let started = client.call("start_deployment", &deploy("k", "web", "r1"));
    let claimed = client.try_claim(1, LEASE as u32, NONE).ok();
    let task = claimed.and_then(|claimed| claimed.tasks.into_iter().next());
    let told = task.as_ref().map(|task| client.try_settle(&task.attempt_id, &finished()));
    Life {
        started: started["operation_id"].as_str().map(str::to_owned),
        task,
        is_settled: told.is_some_and(|told| told.is_ok_and(|told| told.state == State::Succeeded)),
    }
}

/// The next life finds what was answered, and nothing that was not.
fn check(world: &World, disk: &Disk, life: &Life, context: &str) {
    let mut client = world.client_on(disk.storage());
    assert_eq!(client.verify(), Vec::<String>::new(), "{context}");
    let found = client.call("find_operation", &json!({ "tool": "start_deployment", "idempotency_key": "k" }));
    if let Some(id) = &life.started {
        assert_eq!(found["operation_id"], *id, "{context}: {found}");
    }
    match (&life.task, life.is_settled) {
        (Some(_), true) => assert_eq!(found["state"], "succeeded", "{context}"),
        (Some(_), false) => assert!(found["state"] == "running" || found["state"] == "succeeded", "{context}: {found}"),
        (None, _) => assert_ne!(found["state"], "succeeded", "{context}: {found}"),
    }
    let again = client.claim(NONE).tasks;
    assert!(life.task.is_none() || again.is_empty(), "{context}: handed out twice");
    // Without word of it, it is not sent again.
    let is_in_hand = life.task.is_none() && found["state"] == "running";
    assert!(!is_in_hand || again.is_empty(), "{context}: handed out twice");
    for task in life.task.iter().chain(&again) {
        assert_eq!(client.settle(task, &finished()).state, State::Succeeded, "{context}");
    }
    if is_in_hand {
        world.clock.advance(LEASE);
        assert_eq!(client.claim(NONE).tasks, [], "{context}");
        let found = client.call("find_operation", &json!({ "tool": "start_deployment", "idempotency_key": "k" }));
        assert_eq!(found["state"], "outcome_unknown", "{context}");
        world.clock.set(START);
    }
}

/// How many calls to storage a life makes that nothing disturbs.
fn calls(world: &World, disk: &Disk) -> u64 {
    let clean = disk.copy(disk.storage_mode());
    clean.fault(Fault::None);
    assert!(live(world, &clean).is_settled);
    assert!(clean.calls() > 30, "{}", clean.calls());
    clean.calls()
}

/// C1, C5; incidents 7 and 22.
#[test]
fn what_was_handed_out_or_settled_survives_a_power_cut_at_any_call_to_storage() {
    let world = World::new();
    for sharing in [Sole, Shared, SoleAtomic] {
        let disk = old_disk(sharing);
        for at in 1..=calls(&world, &disk) {
            for seed in [0, 1, 2] {
                let dying = disk.copy(sharing);
                dying.fault(Fault::Die(at));
                let life = live(&world, &dying);
                check(&world, &dying.power_cut(seed), &life, &format!("{sharing:?}, dead at {at}, seed {seed}"));
            }
        }
    }
}

/// C3, C5; incident 5: a refusal other than `unconfirmed` has changed nothing.
#[test]
fn a_claim_or_a_settlement_that_storage_failed_is_whole_or_not_there() {
    let world = World::new();
    for sharing in [Sole, Shared, SoleAtomic] {
        for error in [Error::Io, Error::NoSpace] {
            let disk = old_disk(sharing);
            for at in 1..=calls(&world, &disk) {
                let failing = disk.copy(sharing);
                failing.fault(Fault::Fail(at, error));
                let life = live(&world, &failing);
                failing.fault(Fault::None);
                check(&world, &failing, &life, &format!("{sharing:?}, {error:?} at {at}"));
            }
        }
    }
}
