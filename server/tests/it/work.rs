//! The worker and a provider that misbehaves: one effect, and an outcome that is true.
//!
//! In each case the provider does what the worker was told it does, and no more: where keys are not compared, a second
//! sending would be a second row.

use crate::harness::*;
use crate::world::*;
use serde_json::{Value, json};
use std::thread;

const NONE: &str = "none";
const KEYS: &str = "deduplicates-for=1h,clock-within=10ms";
const LOOKS_UP: &str = "looks-up";
const FINAL: &str = "looks-up,absent-is-final-after=1s,clock-within=10ms";
const EVERYTHING: &str = "deduplicates-for=1h,looks-up,absent-is-final-after=1s,cancels,clock-within=10ms";

#[derive(Clone, Copy, PartialEq)]
enum End {
    Succeeded,
    /// By the provider's word.
    Failed,
    /// A person must look.
    Unknown,
}
use End::{Failed, Succeeded, Unknown};

/// What the first sending meets, whether it is taken all the same, and the end under NONE, KEYS, LOOKS_UP, FINAL and
/// EVERYTHING, where the provider keeps its contract from then on.
const TABLE: [(&str, bool, [End; 5]); 10] = [
    // It may have been taken, and was not.
    ("drop-before", false, [Unknown, Succeeded, Unknown, Succeeded, Succeeded]),
    ("error-before", false, [Unknown, Succeeded, Unknown, Succeeded, Succeeded]),
    // It may have been taken, and was.
    ("late=1:1h", true, [Unknown, Succeeded, Succeeded, Succeeded, Succeeded]),
    ("error-after", true, [Unknown, Succeeded, Succeeded, Succeeded, Succeeded]),
    ("drop-after", true, [Unknown, Succeeded, Succeeded, Succeeded, Succeeded]),
    ("half-answer", true, [Unknown, Succeeded, Succeeded, Succeeded, Succeeded]),
    // The provider says what happened, and needs no contract for that.
    ("throttle=1:1s", false, [Succeeded; 5]),
    ("unavailable=1:1s", false, [Succeeded; 5]),
    ("reject", false, [Failed; 5]),
    ("fail", true, [Failed; 5]),
];

#[test]
fn without_a_contract_what_may_have_happened_is_left_to_a_person() {
    meet_every_fault(NONE, 0);
}

#[test]
fn a_key_that_is_compared_is_sent_again_until_the_outcome_is_known() {
    meet_every_fault(KEYS, 1);
}

#[test]
fn an_absence_that_is_never_final_leads_to_no_second_sending() {
    meet_every_fault(LOOKS_UP, 2);
}

#[test]
fn what_is_absent_for_good_is_sent_again_and_what_is_there_is_not() {
    meet_every_fault(FINAL, 3);
}

#[test]
fn with_the_whole_contract_no_person_is_asked() {
    meet_every_fault(EVERYTHING, 4);
}

fn meet_every_fault(contract: &str, column: usize) {
    thread::scope(|scope| {
        for (fault, is_taken, ends) in TABLE {
            scope.spawn(move || meet(contract, fault, is_taken, ends[column]));
        }
    });
}

fn meet(contract: &str, fault: &str, is_taken: bool, end: End) {
    let case = format!("{fault} under {contract}");
    let (world, provider) = (World::new(), Provider::start(&["--contract", contract, "--faults", fault]));
    let id = world.deploy("k");

    let _worker = world.worker(&provider.url(), contract, &[]);
    until(|| world.attempts(&id).iter().any(|attempt| attempt.starts_with("submit ")).then_some(()));
    provider.set_faults("none");
    let operation = world.until_settled(&id);

    let rows = taken(&provider, &id);
    let state = match end {
        Succeeded => "succeeded",
        Failed => "failed",
        Unknown => "outcome_unknown",
    };
    assert_eq!(operation["state"], state, "{case}: {operation}");
    assert_eq!(rows.len(), usize::from(is_taken || end == Succeeded), "{case}: {rows:?}");
    let is_effect = end == Succeeded || end == Unknown && is_taken;
    assert_eq!(provider.effects_of(&id), u64::from(is_effect), "{case}");
    match end {
        Succeeded => {
            assert_eq!(operation["resource_id"], format!("dep-{}", rows[0].0), "{case}");
            assert_eq!(
                (&operation["detail"], &operation["next_action"]),
                (&json!(""), &json!("Nothing is left to do."))
            );
        }
        Failed => {
            let detail = match fault {
                "fail" => "It failed, as it was told to.",
                _ => "The provider refused it: 403 Forbidden: Rejected, as told.",
            };
            assert_eq!(operation["detail"], detail, "{case}");
            let next = "Read detail, and decide again. Another try is a new action, under a new key.";
            assert_eq!(operation["next_action"], next);
        }
        Unknown => resolve(&world, &provider, &operation, &case),
    }
    world.assert_whole();
}

/// The answer sends a person to look for what the provider really has, and takes the finding.
fn resolve(world: &World, provider: &Provider, operation: &Value, case: &str) {
    let id = operation["operation_id"].as_str().unwrap();
    let rows = taken(provider, id);
    let key = world.text("SELECT provider_key FROM operations WHERE operation_id = ?1", [id]);
    let check = format!(
        "Have a person check at the provider whether it took a request with client reference {id} and idempotency key \
         {key}, and an operator record it with resolve. Do not start it again under a new key: that could act twice."
    );
    assert_eq!(operation["next_action"], check, "{case}");
    assert!(rows.iter().all(|(_, taken, _)| *taken == key), "{case}: {rows:?}");
    assert!(operation["resource_id"].is_null(), "{case}: {operation}");
    // Asking to cancel it now establishes nothing.
    assert_eq!(world.cancel(id)["state"], "outcome_unknown", "{case}");

    let (found, other, ended) = match rows.first() {
        Some((number, ..)) => (vec!["happened".to_owned(), format!("--resource=dep-{number}")], "did-not", "succeeded"),
        None => (vec!["did-not".to_owned()], "happened", "failed"),
    };
    let found: Vec<_> = ["resolve", id].into_iter().chain(found.iter().map(String::as_str)).collect();
    for _ in 0..2 {
        let ran = world.run(&found);
        assert_eq!((ran.code, ran.stdout), (0, format!("{id} {ended}\n")), "{case}: {}", ran.stderr);
    }
    let ran = world.run(&["resolve", id, other]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{case}");
    assert!(ran.stderr.contains("The operation's outcome is not unknown."), "{}", ran.stderr);

    let now = world.operation(id);
    assert_eq!(now["state"], ended, "{case}");
    match rows.first() {
        Some((number, ..)) => assert_eq!(now["resource_id"], format!("dep-{number}"), "{case}"),
        None => assert_eq!(now["detail"], "A person found that it did not happen.", "{case}"),
    }
    assert_eq!(taken(provider, id), rows, "{case}: nothing is sent after a finding");
}

#[test]
fn what_is_still_under_way_is_neither_sent_anew_nor_called_absent() {
    // The first sending arrives long after the worker has stopped waiting for it.
    thread::scope(|scope| {
        for (contract, state) in [
            (NONE, "outcome_unknown"),
            (KEYS, "succeeded"),
            (LOOKS_UP, "outcome_unknown"),
            ("looks-up,absent-is-final-after=6s,clock-within=10ms", "succeeded"),
        ] {
            scope.spawn(move || assert_eq!(under_way(contract), (state.to_owned(), 1), "{contract}"));
        }
    });
}

/// The state, and how many rows there are once it has arrived.
fn under_way(contract: &str) -> (String, usize) {
    let (world, provider) = (World::new(), Provider::start(&["--contract", contract, "--faults", "under-way=1:4s"]));
    let id = world.deploy("k");
    let _worker = world.worker(&provider.url(), contract, &[]);
    until(|| world.attempts(&id).contains(&"submit unclear".to_owned()).then_some(()));
    provider.set_faults("none");
    let operation = world.until_settled(&id);
    until(|| (!taken(&provider, &id).is_empty()).then_some(()));
    if operation["state"] == "outcome_unknown" {
        resolve(&world, &provider, &operation, contract);
    }
    (operation["state"].as_str().unwrap().to_owned(), taken(&provider, &id).len())
}

#[test]
fn every_attempt_carries_the_key_that_was_stored_before_the_first() {
    // Incident 3: a key was accepted, and not passed on.
    let (world, provider) = (World::new(), Provider::start(&["--contract", KEYS, "--faults", "drop-after"]));
    let id = world.deploy("k");
    let mut worker = world.worker(&provider.url(), KEYS, &[]);
    until(|| (world.attempts(&id).len() >= 2).then_some(()));
    worker.process.kill();
    let key = world.text("SELECT provider_key FROM operations WHERE operation_id = ?1", [&id]);
    provider.set_faults("none");

    let _worker = world.worker(&provider.url(), KEYS, &[]);
    world.until_state(&id, "succeeded");

    let rows = taken(&provider, &id);
    assert_eq!(rows.iter().map(|(_, key, _)| key.as_str()).collect::<Vec<_>>(), [&key]);
    assert_eq!(key.len(), 36);
}

#[test]
fn a_deployment_that_runs_is_followed_until_it_has_ended() {
    let contract = "looks-up";
    let provider = Provider::start(&["--contract", contract, "--finish-after", "1s"]);
    let world = World::new();
    let id = world.deploy("k");

    let _worker = world.worker(&provider.url(), contract, &[]);

    until(|| (world.attempts(&id).first()? == "submit accepted").then_some(()));
    let operation = world.until_state(&id, "succeeded");
    assert_eq!((&operation["resource_id"], &operation["attempts"]), (&json!("dep-1"), &json!(1)));
    let attempts = world.attempts(&id);
    assert_eq!(attempts.last().unwrap(), "lookup finished");
    assert_eq!(attempts.iter().filter(|attempt| attempt.starts_with("submit")).count(), 1, "{attempts:?}");
    assert_eq!(provider.effects_of(&id), 1);
}

#[test]
fn an_outcome_that_nobody_can_ask_about_names_the_resource_to_look_at() {
    let provider = Provider::start(&["--contract", "none", "--finish-after", "1h"]);
    let world = World::new();
    let id = world.deploy("k");

    let _worker = world.worker(&provider.url(), "none", &[]);

    let operation = world.until_state(&id, "outcome_unknown");
    assert_eq!(operation["resource_id"], "dep-1");
    let next = "Have a person check at the provider how dep-1 ended, and an operator record it with resolve. Do not start \
                it again under a new key: that could act twice.";
    assert_eq!(operation["next_action"], next);
    assert_eq!(taken(&provider, &id).len(), 1);
}

#[test]
fn only_an_outcome_that_is_unknown_is_resolved() {
    let (world, provider) = (World::new(), Provider::start(&["--contract", NONE, "--faults", "throttle"]));
    let id = world.deploy("k");
    let absent = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (id, says) in
        [(id.as_str(), "The operation's outcome is not unknown."), (absent, "There is no operation of this id")]
    {
        for finding in ["happened", "did-not"] {
            let ran = world.run(&["resolve", id, finding]);
            assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{finding}");
            assert!(ran.stderr.contains(says), "{finding}: {}", ran.stderr);
        }
    }
    assert_eq!(world.operation(&id)["state"], "accepted");

    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    provider.set_faults("none");
    let _worker = world.worker(&provider.url(), NONE, &[]);
    world.until_state(&id, "succeeded");
    let ran = world.run(&["resolve", &id, "did-not"]);
    assert_eq!((ran.code, world.operation(&id)["state"].clone()), (3, json!("succeeded")));
    // What is known already may be found again.
    assert_eq!(world.run(&["resolve", &id, "happened"]).stdout, format!("{id} succeeded\n"));
}
