//! What each of the provider's faults does, and that effects are counted truly all the same.

use crate::harness::*;
use serde_json::json;
use std::io::Read;
use std::time::{Duration, Instant};

/// The status, none if there is no whole answer, and whether it is done all the same.
const TRANSPORT: [(&str, Option<u16>, bool); 8] = [
    ("drop-before", None, false),
    ("error-before", Some(500), false),
    ("throttle", Some(429), false),
    ("unavailable", Some(503), false),
    ("late=1:1ms", Some(200), true),
    ("error-after", Some(500), true),
    ("drop-after", None, true),
    ("half-answer", None, true),
];

#[test]
fn what_goes_wrong_before_has_no_effect_and_what_goes_wrong_after_has_one() {
    let provider = full(&[]);
    for (fault, status, is_done) in [("reject", Some(403), false)].iter().chain(&TRANSPORT) {
        let name = fault.split('=').next().unwrap();
        provider.set_faults(fault);
        let answered = provider.submit(name, name).ok().map(|answer| answer.status);
        let effects = provider.effects_of(name);
        provider.set_faults("none");
        let again = provider.submit(name, name).unwrap().status;

        assert_eq!(answered, status.map(|status| if status == 200 { 201 } else { status }), "{fault}");
        assert_eq!(effects, u64::from(*is_done), "{fault}");
        assert_eq!(again, if *is_done { 200 } else { 201 }, "{fault}");
        assert_eq!(provider.effects_of(name), 1, "{fault}");
    }
}

#[test]
fn look_ups_and_cancellations_meet_the_same_faults_on_their_way() {
    let provider = full(&["--finish-after", "1h"]);
    for (fault, status, is_done) in TRANSPORT {
        let name = fault.split('=').next().unwrap();
        provider.submit(name, name).unwrap();
        provider.set_faults(fault);
        let looked_up = provider.look_up(name).ok().map(|answer| answer.status);
        let cancelled = provider.cancel(name).ok().map(|answer| answer.status);
        provider.set_faults("none");

        assert_eq!((looked_up, cancelled), (status, status), "{fault}");
        let state = if is_done { "cancelled" } else { "running" };
        assert_eq!(provider.look_up(name).unwrap().state(), state, "{fault}");
    }
}

#[test]
fn half_an_answer_has_a_length_or_chunks_and_not_all_of_it() {
    let provider = full(&["--faults", "half-answer"]);
    let (mut with_length, mut chunked) = (0, 0);
    for number in 0..32 {
        let key = [("Idempotency-Key", "k")];
        let mut text = String::new();
        let mut stream = provider.send("POST", "/deployments", &key, &submission("r")).unwrap();
        drop(stream.read_to_string(&mut text));

        let status = if number == 0 { "HTTP/1.1 201 " } else { "HTTP/1.1 200 " };
        assert!(text.starts_with(status), "{text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let half = r#"{"id":"dep-1","st"#;
        assert!(body.contains(half) && !body.contains("succeeded"), "{text}");
        with_length += usize::from(head.contains("content-length: 34") && body == half);
        chunked += usize::from(head.contains("transfer-encoding: chunked") && !body.contains("\r\n0\r\n"));
    }
    assert!(with_length > 0 && chunked > 0 && with_length + chunked == 32, "{with_length} {chunked}");
    assert_eq!(provider.effects_of("r"), 1);
}

#[test]
fn a_pause_is_asked_for_in_seconds_or_as_a_date() {
    for (fault, status) in [("throttle=1:3s", 429), ("unavailable=1:3s", 503)] {
        let provider = full(&["--faults", fault]);
        let pause = |_| {
            let answer = provider.submit("k", "r").unwrap();
            assert_eq!(answer.status, status);
            answer.header("retry-after").unwrap().to_owned()
        };
        let (seconds, dates): (Vec<_>, Vec<_>) = (0..32).map(pause).partition(|pause| pause == "3");

        assert!(!seconds.is_empty() && !dates.is_empty(), "{fault}: {seconds:?} {dates:?}");
        assert!(dates.iter().all(|date| date.len() == 29 && date.ends_with(" GMT")), "{dates:?}");
    }
}

#[test]
fn a_late_answer_is_of_something_long_done() {
    let provider = full(&["--faults", "late=1:300ms"]);
    let begun = Instant::now();
    assert_eq!(provider.submit("k", "r").unwrap().status, 201);
    assert!(begun.elapsed() >= Duration::from_millis(300));

    provider.set_faults("late=1:1h");
    let waiting = provider.send("POST", "/deployments", &[("Idempotency-Key", "l")], &submission("s")).unwrap();
    until(|| (provider.effects_of("s") == 1).then_some(()));
    waiting.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    Answer::read(&waiting).unwrap_err();
}

#[test]
fn what_is_under_way_is_absent_and_arrives_although_its_client_has_gone() {
    let hold = Duration::from_secs(1);
    let provider = full(&["--faults", "under-way=1:1s"]);
    let begun = Instant::now();
    drop(provider.send("POST", "/deployments", &[("Idempotency-Key", "k")], &submission("r")).unwrap());

    let cancelled = provider.cancel("r").unwrap();
    // Unless this machine is so slow that it has arrived.
    if begun.elapsed() < hold {
        cancelled.assert_absent();
    }
    until(|| {
        let answer = provider.look_up("r").unwrap();
        if answer.status == 200 {
            return Some(());
        }
        answer.assert_absent();
        None
    });

    assert!(begun.elapsed() >= hold);
    assert_eq!(provider.effects_of("r"), 1);
    provider.set_faults("none");
    assert_eq!(provider.submit("k", "r").unwrap().status, 200);
}

#[test]
fn a_look_up_is_refused() {
    let provider = full(&["--faults", "refuse-lookup"]);
    provider.submit("k", "r").unwrap();

    for reference in ["r", "unknown"] {
        assert_eq!(provider.look_up(reference).unwrap().status, 403);
    }
}

#[test]
fn a_cancellation_is_refused_and_changes_nothing() {
    let provider = full(&["--faults", "refuse-cancel", "--finish-after", "1h"]);
    provider.submit("k", "r").unwrap();

    let answer = provider.cancel("r").unwrap();

    assert_eq!(answer.status, 409);
    assert!(answer.json()["detail"].is_string());
    assert_eq!(provider.look_up("r").unwrap().state(), "running");
}

#[test]
fn a_deployment_succeeds_while_it_is_being_cancelled_at_once_or_later() {
    let provider = full(&["--faults", "succeed-while-cancelling", "--finish-after", "1h"]);
    let cancel = |number: u32| {
        let reference = format!("r{number}");
        provider.submit(&reference, &reference).unwrap();
        let answered = provider.cancel(&reference).unwrap().state();
        assert_eq!(provider.look_up(&reference).unwrap().state(), answered);
        answered
    };
    let states: Vec<_> = (0..32).map(cancel).collect();
    let count = |state| states.iter().filter(|found| *found == state).count();
    assert!(count("running") > 0 && count("succeeded") > 0, "{states:?}");
    assert_eq!((count("running") + count("succeeded"), provider.effects()["total"].as_u64()), (32, Some(32)));

    let provider = full(&["--faults", "succeed-while-cancelling,fail", "--finish-after", "500ms"]);
    provider.submit("k", "r").unwrap();
    let answered = provider.cancel("r").unwrap().state();
    let ended = until(|| Some(provider.look_up("r").unwrap().state()).filter(|state| state != "running"));
    // On a slow machine it may have failed before it was to be cancelled.
    assert_eq!(ended, if answered == "failed" { "failed" } else { "succeeded" });
}

#[test]
fn a_deployment_that_failed_is_no_effect() {
    let provider = full(&["--faults", "fail"]);
    let taken = provider.submit("k", "r").unwrap();

    assert_eq!((taken.status, taken.state().as_str()), (201, "failed"));
    assert!(taken.json()["detail"].is_string());
    assert_eq!(provider.look_up("r").unwrap().json(), taken.json());
    assert_eq!(provider.effects(), json!({ "total": 0, "by_reference": {}, "more_than_one": [] }));
}

#[test]
fn a_chance_is_met_now_and_then_and_a_seed_repeats_it() {
    let statuses = |seed| {
        let provider = Provider::start(&["--contract", FULL, "--faults", "error-before=0.5", "--seed", seed]);
        (0..32).map(|_| provider.submit("k", "r").unwrap().status).collect::<Vec<_>>()
    };
    let first = statuses("7");

    assert!(first.contains(&500) && first.contains(&201), "{first:?}");
    assert_eq!(statuses("7"), first);
    assert_ne!(statuses("8"), first);
}

#[test]
fn a_seed_that_was_not_given_is_told() {
    let unseeded = Provider::start(&["--contract", FULL]);

    let seed = unseeded.log().lines().find_map(|line| line.strip_prefix("seed: ").map(str::to_owned)).unwrap();
    assert!(seed.parse::<u64>().is_ok(), "{seed}");
    assert!(!full(&[]).log().contains("seed: "));
}

#[test]
fn faults_are_shown_and_replaced_while_it_runs() {
    let provider = full(&["--faults", "drop-before,late=0.5:90s"]);
    let shown = || provider.request("GET", "/faults", &[], "").unwrap().body;
    assert_eq!(shown(), "drop-before=1,late=0.5:1m 30s");

    let refused = provider.request("PUT", "/faults", &[], "drop").unwrap();

    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("there is no `drop`; allowed are drop-before, "), "{}", refused.body);
    assert_eq!(shown(), "drop-before=1,late=0.5:1m 30s");
    provider.set_faults("none\n");
    assert_eq!(shown(), "none");
    assert_eq!(provider.submit("k", "r").unwrap().status, 201);
}
