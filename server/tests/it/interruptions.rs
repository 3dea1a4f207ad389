//! Workers that die, stall, or are told to stop, and a database or a clock that is not theirs alone.

use crate::harness::*;
use crate::scripted::{Scripted, succeeded};
use crate::world::*;
use host_example::Files;
use serde_json::json;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

const NONE: &str = "none";
const KEYS: &str = "deduplicates-for=1h,clock-within=10ms";
const LOOKS_UP: &str = "looks-up";
const FINAL: &str = "looks-up,absent-is-final-after=1s,clock-within=10ms";

/// Long enough for what is to happen to an attempt in hand, and a short while to wait for the next worker.
const PATIENT: [&str; 4] = ["--attempt-timeout", "3s", "--lease", "6s"];

/// A provider that answers when it is told to.
fn holding() -> (Scripted, Sender<()>) {
    let (release, held) = mpsc::channel();
    let held = Mutex::new(held);
    let provider = Scripted::start(move |_, _| {
        _ = held.lock().unwrap().recv();
        succeeded()
    });
    (provider, release)
}

#[test]
fn what_a_killed_worker_had_not_sent_yet_is_not_plainly_sent() {
    thread::scope(|scope| {
        for (contract, state, rows) in [
            (NONE, "outcome_unknown", 0),
            (KEYS, "succeeded", 1),
            (LOOKS_UP, "outcome_unknown", 0),
            (FINAL, "succeeded", 1),
        ] {
            scope.spawn(move || {
                let (world, provider) = (World::new(), Provider::start(&["--contract", contract]));
                let id = world.deploy("k");
                // It is claimed, and gets no further than the first word of TLS.
                let silent = TcpListener::bind("127.0.0.1:0").unwrap();
                let nowhere = format!("https://{}/deployments", silent.local_addr().unwrap());
                let mut worker = world.worker(&nowhere, contract, &PATIENT);
                let _held = silent.accept().unwrap();
                until(|| (!world.attempts(&id).is_empty()).then_some(()));
                worker.process.kill();

                let operation = after_the_lease(&world, &provider, contract, &id);

                assert_eq!((&operation["state"], taken(&provider, &id).len()), (&json!(state), rows), "{contract}");
                if contract == NONE {
                    assert_eq!(operation["detail"], "The worker that had it in hand was lost.");
                }
            });
        }
    });
}

#[test]
fn what_a_killed_worker_had_sent_has_one_effect() {
    thread::scope(|scope| {
        for (contract, state) in
            [(NONE, "outcome_unknown"), (KEYS, "succeeded"), (LOOKS_UP, "succeeded"), (FINAL, "succeeded")]
        {
            scope.spawn(move || {
                let provider = Provider::start(&["--contract", contract, "--faults", "late=1:1h"]);
                let world = World::new();
                let id = world.deploy("k");
                let mut worker = world.worker(&provider.url(), contract, &PATIENT);
                until(|| (provider.effects_of(&id) == 1).then_some(()));
                worker.process.kill();
                provider.set_faults("none");

                let operation = after_the_lease(&world, &provider, contract, &id);

                assert_eq!((&operation["state"], taken(&provider, &id).len()), (&json!(state), 1), "{contract}");
            });
        }
    });
}

/// Another worker takes over, no sooner than the lease allows, and is given time to do too much.
fn after_the_lease(world: &World, provider: &Provider, contract: &str, id: &str) -> serde_json::Value {
    assert_eq!(world.attempts(id), ["submit"], "{contract}: killed too late");
    let _worker = world.worker(&provider.url(), contract, &[]);
    let operation = world.until_settled(id);
    let early = "SELECT count(*) FROM attempts a JOIN attempts b ON b.operation_id = a.operation_id
                 AND b.attempt_id > a.attempt_id AND a.settled_at IS NULL AND b.claimed_at < a.lease_until";
    assert_eq!(world.number(early), 0, "{contract}");
    world.assert_whole();
    operation
}

#[test]
fn a_worker_that_stalls_beyond_its_lease_changes_nothing_any_more() {
    // Incident 7: a lease expired, another worker took over, and a committed write was repeated.
    thread::scope(|scope| {
        for (contract, state) in [(NONE, "outcome_unknown"), (KEYS, "succeeded"), (LOOKS_UP, "succeeded")] {
            scope.spawn(move || {
                let provider = Provider::start(&["--contract", contract, "--faults", "late=1:1h"]);
                let world = World::new();
                let id = world.deploy("k");
                let stalled = world.worker(&provider.url(), contract, &PATIENT);
                until(|| (provider.effects_of(&id) == 1).then_some(()));
                stalled.process.signal("STOP");
                provider.set_faults("none");
                let other = world.worker(&provider.url(), contract, &[]);
                let operation = world.until_state(&id, state);

                stalled.process.signal("CONT");
                stalled.until_logged("settled");

                assert_eq!(world.operation(&id), operation, "{contract}");
                assert_eq!(taken(&provider, &id).len(), 1, "{contract}");
                drop(other);
            });
        }
    });
}

#[test]
fn an_answer_that_is_recorded_late_still_counts() {
    let (provider, release) = holding();
    let world = World::new();
    let id = world.deploy("k");
    let stalled = world.worker(&provider.url(), NONE, &PATIENT);
    until(|| (provider.requests().len() == 1).then_some(()));
    let lock = NativeLock::write(&world.path());
    release.send(()).unwrap();
    stalled.until_logged("cannot settle yet");
    stalled.process.signal("STOP");
    drop(lock);
    let _other = world.worker(&provider.url(), NONE, &[]);
    world.until_state(&id, "outcome_unknown");

    stalled.process.signal("CONT");

    let operation = world.until_state(&id, "succeeded");
    assert_eq!((&operation["resource_id"], &operation["detail"]), (&json!("dep-1"), &json!("")));
    assert_eq!(provider.requests().len(), 1);
}

#[test]
fn an_answer_is_kept_for_as_long_as_the_database_is_locked() {
    let (provider, release) = holding();
    let world = World::new();
    let id = world.deploy("k");
    let worker = world.worker(&provider.url(), NONE, &["--attempt-timeout", "10s", "--lease", "30s"]);
    until(|| (provider.requests().len() == 1).then_some(()));
    let lock = NativeLock::write(&world.path());
    release.send(()).unwrap();
    until(|| (worker.log().matches("cannot settle yet").count() == 2).then_some(()));
    assert_eq!(world.state(&id), "running");

    drop(lock);

    let operation = world.until_state(&id, "succeeded");
    assert_eq!((&operation["resource_id"], &operation["attempts"]), (&json!("dep-1"), &json!(1)));
    assert_eq!((provider.requests().len(), world.attempts(&id)), (1, vec!["submit finished".to_owned()]));
    world.assert_whole();
}

#[test]
fn of_two_workers_each_operation_is_one_s() {
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let ids = world.deploy_many(100);

    let _workers = [0, 1].map(|_| world.worker(&provider.url(), NONE, &["--attempt-timeout", "20s", "--lease", "60s"]));
    until(|| (world.number("SELECT count(*) FROM operations WHERE state <> 'succeeded'") == 0).then_some(()));

    for id in &ids {
        assert_eq!((world.attempts(id), taken(&provider, id).len()), (vec!["submit finished".to_owned()], 1));
    }
    assert_eq!(provider.effects()["total"], 100);
    world.assert_whole();
}

#[test]
fn a_worker_that_is_told_to_stop_finishes_what_it_has_in_hand() {
    for signal in ["TERM", "INT"] {
        let (provider, release) = holding();
        let world = World::new();
        let in_hand = world.deploy("k");
        let mut worker = world.worker(&provider.url(), NONE, &["--attempt-timeout", "20s", "--lease", "60s"]);
        until(|| (provider.requests().len() == 1).then_some(()));

        worker.process.signal(signal);
        worker.until_logged("finishing what is in hand");
        let later = world.deploy("l");
        release.send(()).unwrap();
        let answered = Instant::now();
        let status = worker.process.wait();

        assert_eq!(status.code(), Some(0), "{signal}: {}", worker.log());
        assert!(answered.elapsed() < Duration::from_secs(10), "{signal}");
        assert_eq!((world.state(&in_hand), world.state(&later)), ("succeeded".to_owned(), "accepted".to_owned()));
        assert_eq!((world.attempts(&later).len(), provider.requests().len()), (0, 1), "{signal}");
    }
}

#[test]
fn a_worker_that_is_told_to_stop_while_the_database_is_locked_records_what_it_saw() {
    let (provider, release) = holding();
    let world = World::new();
    let id = world.deploy("k");
    let mut worker = world.worker(&provider.url(), NONE, &["--attempt-timeout", "20s", "--lease", "60s"]);
    until(|| (provider.requests().len() == 1).then_some(()));
    let lock = NativeLock::write(&world.path());
    release.send(()).unwrap();
    worker.until_logged("cannot settle yet");

    worker.process.signal("TERM");
    worker.until_logged("finishing what is in hand");
    drop(lock);

    assert_eq!(worker.process.wait().code(), Some(0), "{}", worker.log());
    assert_eq!((world.state(&id), provider.requests().len()), ("succeeded".to_owned(), 1));
}

#[test]
fn a_worker_that_is_told_twice_ends_at_once_and_what_it_has_in_hand_is_doubtful() {
    let (provider, _release) = holding();
    let world = World::new();
    let id = world.deploy("k");
    let mut worker = world.worker(&provider.url(), NONE, &["--attempt-timeout", "3s", "--lease", "6s"]);
    until(|| (provider.requests().len() == 1).then_some(()));

    worker.process.signal("TERM");
    worker.until_logged("finishing what is in hand");
    worker.process.signal("TERM");

    assert_eq!(worker.process.wait().code(), Some(1), "{}", worker.log());
    assert_eq!((world.state(&id), world.attempts(&id)), ("running".to_owned(), vec!["submit".to_owned()]));
    let _worker = world.worker(&provider.url(), NONE, &[]);
    world.until_state(&id, "outcome_unknown");
    assert_eq!(provider.requests().len(), 1);
}

#[test]
fn a_worker_that_has_nothing_to_do_stops_at_once() {
    let world = World::new();
    world.deploy("k");
    let provider = Scripted::answers(&[&succeeded()]);
    let mut worker = world.worker(&provider.url(), NONE, &["--poll", "1h"]);
    until(|| (world.number("SELECT count(*) FROM operations WHERE state = 'succeeded'") == 1).then_some(()));

    worker.process.signal("TERM");

    assert_eq!(worker.process.wait().code(), Some(0), "{}", worker.log());
}

#[test]
fn working_once_ends_when_nothing_is_due() {
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let ids = world.deploy_many(3);

    for _ in 0..2 {
        let ran = world.work_once(&provider.url(), NONE);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
    }

    assert!(ids.iter().all(|id| world.state(id) == "succeeded" && taken(&provider, id).len() == 1));
    // What is to be tried later is not waited for.
    provider.set_faults("throttle=1:1h");
    let later = world.deploy("later");
    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    assert_eq!(
        (world.state(&later), world.attempts(&later)),
        ("accepted".to_owned(), vec!["submit throttled".to_owned()])
    );
}

#[test]
fn working_once_on_a_locked_database_can_be_tried_again() {
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let id = world.deploy("k");
    let lock = NativeLock::write(&world.path());

    let ran = world.work_once(&provider.url(), NONE);
    drop(lock);

    assert_eq!((ran.code, ran.stdout.as_str()), (4, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("The database stayed locked by another process."), "{}", ran.stderr);
    assert_eq!((world.state(&id), taken(&provider, &id).len()), ("accepted".to_owned(), 0));
}

#[test]
fn a_database_that_another_process_owns_is_refused_and_its_owner_named() {
    let world = World::new();
    let id = world.deploy("k");
    let owned = Files::sole(&world.path(), Duration::from_secs(2)).unwrap();

    let copy = world.file("copy.db").display().to_string();
    for arguments in [
        &["work", "--provider", "http://127.0.0.1:1/deployments", "--contract", "none"][..],
        &["resolve", &id, "happened"],
        &["operations"],
        &["sweep"],
        &["backup", &copy],
        &["restored"],
        &["verify"],
        &["call", "get_operation", &json!({ "operation_id": id }).to_string()],
    ] {
        let ran = world.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}");
        let owner = format!("error: {} is owned by process {} (", world.path().display(), std::process::id());
        assert!(ran.stderr.contains(&owner), "{arguments:?}: {}", ran.stderr);
    }
    assert!(!world.file("copy.db").exists());
    drop(owned);
    assert_eq!(world.operation(&id)["state"], "accepted");
}

#[test]
fn a_worker_goes_on_when_an_owner_of_the_database_has_gone() {
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let before = world.deploy("before");
    let mut worker = world.worker(&provider.url(), NONE, &[]);
    world.until_state(&before, "succeeded");

    let meanwhile = world.deploy_as_owner("meanwhile", || {
        until(|| worker.log().contains("cannot claim what is due").then_some(()));
    });

    world.until_state(&meanwhile, "succeeded");
    assert_eq!(taken(&provider, &meanwhile).len(), 1);
    worker.process.signal("TERM");
    assert_eq!(worker.process.wait().code(), Some(0), "{}", worker.log());
}

#[test]
fn what_was_planned_by_a_clock_that_was_fast_is_done_all_the_same() {
    // Incident 13: a clock stepped back, and a delay became longer than all time-outs.
    let provider = Provider::start(&["--contract", NONE]);
    let world = World::new();
    let id = world.deploy("k");
    let hour = 3_600_000;
    world.edit(&format!(
        "UPDATE operations SET due = due + {hour}, planned_at = planned_at + {hour}, clock = clock + {hour}"
    ));

    let _worker = world.worker(&provider.url(), NONE, &[]);

    world.until_state(&id, "succeeded");
    assert_eq!(taken(&provider, &id).len(), 1);
}

#[test]
fn a_clock_that_stepped_back_proves_no_window_open_and_no_absence_final() {
    // Incident 13.
    thread::scope(|scope| {
        for (contract, fault, rows) in [(KEYS, "drop-after", 1), (KEYS, "drop-before", 0), (FINAL, "drop-before", 0)] {
            scope.spawn(move || {
                let world = World::new();
                let provider = Provider::start(&["--contract", contract, "--faults", fault]);
                let id = world.deploy("k");
                let ran = world.work_once(&provider.url(), contract);
                assert_eq!((ran.code, world.attempts(&id)), (0, vec!["submit unclear".to_owned()]), "{contract}");
                provider.set_faults("none");
                // All of that was an hour ahead; the deadline is reached soon, so that this test ends.
                let clock = ["first_sent", "last_sent", "clock", "due", "planned_at"];
                let set = clock.map(|name| format!("{name} = {name} + 3600000")).join(", ");
                world.edit(&format!("UPDATE operations SET {set}, deadline = first_sent + 5000"));

                let _worker = world.worker(&provider.url(), contract, &[]);

                world.until_state(&id, "outcome_unknown");
                assert_eq!(taken(&provider, &id).len(), rows, "{contract} {fault}");
                let submissions = world.attempts(&id).iter().filter(|attempt| attempt.starts_with("submit")).count();
                assert_eq!(submissions, 1, "{contract} {fault}");
            });
        }
    });
}
