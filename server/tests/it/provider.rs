//! The provider's contract, its file, and its command line.

use crate::harness::*;
use serde_json::json;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_key_that_is_sent_again_is_the_same_deployment() {
    let provider = full(&[]);
    let first = provider.submit("k", "r").unwrap();
    let again = provider.submit("k", "r").unwrap();

    assert_eq!((first.status, first.json()), (201, json!({ "id": "dep-1", "state": "succeeded" })));
    assert_eq!((again.status, again.json()), (200, first.json()));
    assert_eq!(provider.effects(), json!({ "total": 1, "by_reference": { "r": 1 }, "more_than_one": [] }));
}

#[test]
fn without_deduplication_every_post_is_an_effect() {
    let provider = Provider::start(&["--contract", "none"]);

    assert_eq!(provider.submit("k", "r").unwrap().status, 201);
    assert_eq!(provider.submit("k", "r").unwrap().status, 201);
    assert_eq!(provider.submit("l", "s").unwrap().status, 201);
    assert_eq!(provider.effects(), json!({ "total": 3, "by_reference": { "r": 2, "s": 1 }, "more_than_one": ["r"] }));
}

#[test]
fn of_many_at_once_with_one_key_one_is_taken() {
    let provider = full(&[]);
    let statuses: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| provider.submit("k", "r").unwrap().status)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });

    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 7, "{statuses:?}");
    assert_eq!(provider.effects_of("r"), 1);
}

#[test]
fn keys_are_forgotten_when_their_time_is_over_and_no_sooner() {
    for (contract, faults, known_for) in [
        ("deduplicates-for=24h", "forget-keys=300ms", 300),
        // A second is added, for what is under way.
        ("deduplicates-for=0s", "none", 1_000),
    ] {
        let provider = Provider::start(&["--contract", contract, "--faults", faults]);
        let begun = Instant::now();
        assert_eq!(provider.submit("k", "r").unwrap().status, 201);

        until(|| (provider.submit("k", "r").unwrap().status == 201).then_some(()));

        assert!(begun.elapsed() >= Duration::from_millis(known_for), "{contract} {faults}");
        let effects = json!({ "total": 2, "by_reference": { "r": 2 }, "more_than_one": ["r"] });
        assert_eq!(provider.effects(), effects, "{contract} {faults}");
    }
}

#[test]
fn a_request_that_is_wrong_is_refused_and_changes_nothing() {
    let provider = full(&[]);
    let (good, key) = (submission("r"), [("Idempotency-Key", "k")]);
    let long = "x".repeat(256);
    for (headers, body) in [
        (&[][..], good.as_str()),
        (&[("Idempotency-Key", "")], &good),
        (&[("Idempotency-Key", "k"), ("Idempotency-Key", "k")], &good),
        (&[("Idempotency-Key", &long)], &good),
        (&key, ""),
        (&key, "{"),
        (&key, r#"{"client_reference":"r"}"#),
        (&key, r#"{"client_reference":"r","request":1}"#),
        (&key, r#"{"client_reference":"","request":{}}"#),
        (&key, r#"{"client_reference":"r","request":{},"more":1}"#),
        (&key, &format!(r#"{{"client_reference":"{long}","request":{{}}}}"#)),
    ] {
        let answer = provider.request("POST", "/deployments", headers, body).unwrap();
        assert_eq!(answer.status, 400, "{headers:?} {body}");
        assert!(answer.json()["detail"].is_string(), "{answer:?}");
    }
    for (method, path, body) in [
        ("GET", "/deployments", ""),
        ("GET", "/deployments?client_reference=", ""),
        ("GET", "/deployments?reference=r", ""),
        ("POST", "/deployments/cancel", "{}"),
    ] {
        assert_eq!(provider.request(method, path, &[], body).unwrap().status, 400, "{method} {path}");
    }
    assert_eq!(provider.effects()["total"], 0);

    provider.submit("k", "r").unwrap();
    let other = provider.submit("k", "other").unwrap();
    assert_eq!(other.status, 422);
    assert!(other.json()["detail"].is_string());
    assert_eq!(provider.effects(), json!({ "total": 1, "by_reference": { "r": 1 }, "more_than_one": [] }));
}

#[test]
fn a_body_has_up_to_64_kib() {
    let provider = full(&[]);
    let body = |length: usize| {
        let empty = r#"{"client_reference":"r","request":{"x":""}}"#;
        empty.replace(r#""""#, &format!(r#""{}""#, "x".repeat(length - empty.len())))
    };
    let send = |key, length| provider.request("POST", "/deployments", &[("Idempotency-Key", key)], &body(length));

    assert_eq!(send("k", 65_536).unwrap().status, 201);
    // The connection may be reset before the answer is read, since not all that was sent is.
    assert!(send("l", 65_537).map_or(true, |answer| answer.status == 413));
    assert_eq!(provider.effects_of("r"), 1);
}

#[test]
fn only_a_look_up_or_a_cancellation_says_absent() {
    let provider = full(&[]);

    provider.look_up("r").unwrap().assert_absent();
    provider.cancel("r").unwrap().assert_absent();
    for path in ["/", "/deployment?client_reference=r", "/deployments/r", "/deployments/?client_reference=r"] {
        let answer = provider.request("GET", path, &[], "").unwrap();
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.json()["state"].is_null() && answer.json()["detail"].is_string(), "{answer:?}");
    }
}

#[test]
fn what_is_not_in_the_contract_is_answered_405() {
    let provider = Provider::start(&["--contract", "deduplicates-for=24h"]);
    provider.submit("k", "r").unwrap();

    let (looked_up, cancelled) = (provider.look_up("r").unwrap(), provider.cancel("r").unwrap());

    assert_eq!((looked_up.status, looked_up.header("allow")), (405, Some("POST")));
    assert_eq!(cancelled.status, 405);
    assert!(cancelled.json()["detail"].is_string());
}

#[test]
fn a_deployment_runs_and_then_succeeds() {
    let provider = full(&["--finish-after", "300ms"]);
    let begun = Instant::now();

    assert_eq!(provider.submit("k", "r").unwrap().state(), "running");

    until(|| (provider.look_up("r").unwrap().state() == "succeeded").then_some(()));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let found = provider.look_up("r").unwrap();
    assert_eq!((found.status, found.json()), (200, json!({ "id": "dep-1", "state": "succeeded" })));
    assert_eq!(provider.cancel("r").unwrap().state(), "succeeded");
    assert_eq!(provider.effects_of("r"), 1);
}

#[test]
fn a_running_deployment_that_is_cancelled_is_no_effect() {
    let provider = full(&["--finish-after", "1h"]);
    provider.submit("k", "r").unwrap();
    assert_eq!(provider.effects_of("r"), 1);

    let cancelled = provider.cancel("r").unwrap();

    assert_eq!((cancelled.status, cancelled.json()), (200, json!({ "id": "dep-1", "state": "cancelled" })));
    assert_eq!(provider.cancel("r").unwrap().state(), "cancelled");
    assert_eq!(provider.submit("k", "r").unwrap().state(), "cancelled");
    assert_eq!(provider.effects(), json!({ "total": 0, "by_reference": {}, "more_than_one": [] }));
}

#[test]
fn a_provider_that_was_killed_goes_on_with_what_it_had() {
    let arguments = ["--contract", FULL, "--finish-after", "1h"];
    let mut provider = Provider::start(&arguments);
    let taken = AtomicUsize::new(0);
    thread::scope(|scope| {
        let client = provider.client;
        let submit = move |number: usize| client.submit(&format!("r{number}"), &format!("r{number}"));
        let taken = &taken;
        scope.spawn(move || {
            while submit(taken.load(SeqCst)).is_ok_and(|answer| answer.status == 201) {
                taken.fetch_add(1, SeqCst);
            }
        });
        until(|| (taken.load(SeqCst) >= 20).then_some(()));
        provider.kill();
    });
    let taken = taken.into_inner();

    let provider = provider.restart(&arguments);

    let total = usize::try_from(provider.effects()["total"].as_u64().unwrap()).unwrap();
    assert!(total == taken || total == taken + 1, "{total} of {taken}");
    assert_eq!(provider.look_up("r0").unwrap().json(), json!({ "id": "dep-1", "state": "running" }));
    assert_eq!(provider.submit("r0", "r0").unwrap().status, 200);
    assert_eq!(provider.cancel("r0").unwrap().state(), "cancelled");
}

#[test]
fn a_signal_ends_it_after_the_answers_that_are_due() {
    for signal in ["TERM", "INT"] {
        let mut provider = full(&["--faults", "late=1:300ms"]);
        let waiting = provider.send("POST", "/deployments", &[("Idempotency-Key", "k")], &submission("r")).unwrap();
        until(|| (provider.effects_of("r") == 1).then_some(()));

        provider.signal(signal);

        assert_eq!(Answer::read(&waiting).unwrap().status, 201);
        assert_eq!(provider.wait().code(), Some(0), "{signal}");
        provider.submit("k", "r").unwrap_err();
    }
}

#[test]
fn wrong_arguments_end_with_exit_code_2_and_say_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("provider.db");
    let store = store.to_str().unwrap();
    for (arguments, said) in [
        (&["--contract", "looks-out"][..], "there is no `looks-out`; allowed are deduplicates-for=24h, looks-up, "),
        (&["--contract", "deduplicates-for"], "the figure of `deduplicates-for`: it is missing; allowed are "),
        (&["--contract", "cancels,cancels"], "`cancels` stands there twice; allowed are "),
        (&["--contract", "none", "--faults", "drop"], "there is no `drop`; allowed are drop-before, error-before, "),
        (&["--contract", "none", "--faults", "late=2"], "2 is not from 0 to 1; allowed is a probability from 0 to 1 "),
        (&["--contract", "none", "--finish-after", "soon"], "--finish-after <DURATION>"),
        (&["--contract", "none", "--seed", "x"], "--seed <NUMBER>"),
        (&["--contract", "none", "--listen", "0.0.0.0:0"], "0.0.0.0 is not a loopback address, such as 127.0.0.1 or "),
        (&["--contract", "none", "--listen", "192.0.2.1:80"], "192.0.2.1 is not a loopback address"),
        (&["--contract", "none", "--listen", "[::]:0"], ":: is not a loopback address"),
        (&["--contract", "none", "--listen", "localhost"], "expected ADDRESS:PORT, such as 127.0.0.1:0 or "),
        (&[], "--contract <CONTRACT>"),
    ] {
        let output = run(&[&["provider", "--store", store], arguments].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    assert!(!fs::exists(store).unwrap());
}

#[test]
fn a_file_that_is_no_store_of_its_own_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    let text = "These are notes, and no database. ".repeat(100);
    fs::write(&file, &text).unwrap();

    let output = run(&["provider", "--contract", "none", "--store", file.to_str().unwrap()]);

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{stderr}");
    assert!(stderr.contains("notes.txt"), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}
