//! What the worker sends, and what it takes each answer for: what never left is told apart from all that may have.

use crate::harness::*;
use crate::scripted::{Request, SUCCEEDED, Scripted, answer, succeeded};
use crate::world::*;
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const KEYS: &str = "deduplicates-for=1h,clock-within=10ms";

/// A loopback address that refuses connections for as long as the streams live: the port of a client is nobody else's.
fn refusing() -> (String, [TcpStream; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, address) = listener.accept().unwrap();
    (format!("http://{address}/deployments"), [client, server])
}

#[test]
fn what_never_left_is_sent_once_as_soon_as_the_provider_is_there() {
    // Nothing vouches for the provider, so one doubtful attempt would be the last.
    let provider = Provider::start(&["--contract", "none"]);
    let (refusing, _streams) = refusing();
    let no_tls = provider.url().replace("http://", "https://");
    let cases = [refusing.as_str(), "http://nothing.invalid/deployments", &no_tls].map(|url| {
        let (world, url) = (World::new(), url.to_owned());
        thread::spawn(move || {
            let id = world.deploy("k");
            let mut worker = world.worker(&url, "none", &["--attempt-timeout", "5s", "--lease", "10s"]);
            until(|| (world.attempts(&id).len() >= 2).then_some(()));
            worker.process.signal("TERM");
            worker.process.wait();
            (world, id, url)
        })
    });
    for (world, id, url) in cases.map(|case| case.join().unwrap()) {
        assert!(world.attempts(&id).iter().all(|attempt| attempt == "submit not-sent"), "{:?}", world.attempts(&id));
        assert_eq!(taken(&provider, &id), [], "{url}");

        let _worker = world.worker(&provider.url(), "none", &[]);
        let operation = world.until_settled(&id);

        assert_eq!((&operation["state"], &operation["attempts"]), (&json!("succeeded"), &json!(1)), "{url}");
        assert_eq!(taken(&provider, &id).len(), 1, "{url}");
    }
}

#[test]
fn an_operation_that_cannot_be_sent_says_what_keeps_it() {
    let (url, _streams) = refusing();
    let world = World::new();
    let id = world.deploy("k");

    let ran = world.work_once(&url, "none");

    let operation = world.operation(&id);
    assert_eq!((ran.code, world.attempts(&id)), (0, vec!["submit not-sent".to_owned()]), "{}", ran.stderr);
    assert_eq!((&operation["state"], &operation["attempts"]), (&json!("accepted"), &json!(0)));
    assert!(operation["detail"].as_str().unwrap().contains("refused"), "{operation}");
    assert_eq!(operation["next_action"], "Wait, then ask again. It can be cancelled.");
}

#[test]
fn a_connection_that_is_not_made_in_time_has_sent_nothing() {
    // It accepts, and never answers the first word of TLS.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = World::new();
    let id = world.deploy("k");

    let url = format!("https://{}/deployments", listener.local_addr().unwrap());
    let ran = world.work_once(&url, "none");

    assert_eq!((ran.code, world.attempts(&id)), (0, vec!["submit not-sent".to_owned()]), "{}", ran.stderr);
    assert_eq!(world.operation(&id)["state"], "accepted");
}

#[test]
fn each_answer_to_a_submission_is_taken_for_no_more_than_it_says() {
    let deployment = |fields: Value| answer("200 OK", "", &fields.to_string());
    let bare = |status: &str| answer(status, "", r#"{"detail":"why"}"#);
    let elsewhere = Provider::start(&["--contract", "none"]);
    let away = answer("302 Found", &format!("Location: {}\r\n", elsewhere.url()), "");
    let again = answer("307 Temporary Redirect", &format!("Location: {}\r\n", elsewhere.url()), "");
    let long = format!(r#"{{"id":"dep-1","state":"succeeded","detail":"{}"}}"#, "x".repeat(65_536));
    // The answer to the first sending, what it is taken for, and the state after it or, where it is sent again, in the end.
    let cases = [
        (deployment(json!({ "id": "dep-1", "state": "succeeded" })), "finished", "succeeded"),
        (deployment(json!({ "id": "dep-1", "state": "running" })), "accepted", "outcome-unknown"),
        (deployment(json!({ "state": "failed" })), "failed", "failed"),
        (deployment(json!({ "state": "cancelled" })), "cancelled", "cancelled"),
        // An answer that cannot be understood, or that is another place's.
        (deployment(json!({ "state": "succeeded" })), "unclear", "outcome-unknown"),
        (deployment(json!({ "id": "", "state": "succeeded" })), "unclear", "outcome-unknown"),
        (deployment(json!({ "id": "x".repeat(201), "state": "running" })), "unclear", "outcome-unknown"),
        (deployment(json!({ "id": "dep-1", "state": "absent" })), "unclear", "outcome-unknown"),
        (answer("200 OK", "", "<html>Welcome</html>"), "unclear", "outcome-unknown"),
        (answer("204 No Content", "", ""), "unclear", "outcome-unknown"),
        (answer("200 OK", "", &long), "unclear", "outcome-unknown"),
        (answer("200 OK", "", r#"["dep-1","succeeded",null]"#), "unclear", "outcome-unknown"),
        (away, "unclear", "outcome-unknown"),
        (again, "unclear", "outcome-unknown"),
        (String::new(), "unclear", "outcome-unknown"),
        (answer("200 OK", "", SUCCEEDED).replace("succeeded", "succ"), "unclear", "outcome-unknown"),
        // The provider may be at work on it, or has failed in the middle.
        (bare("408 Request Timeout"), "unclear", "outcome-unknown"),
        (bare("409 Conflict"), "unclear", "outcome-unknown"),
        (bare("425 Too Early"), "unclear", "outcome-unknown"),
        (bare("500 Internal Server Error"), "unclear", "outcome-unknown"),
        (bare("502 Bad Gateway"), "unclear", "outcome-unknown"),
        (bare("503 Service Unavailable"), "unclear", "outcome-unknown"),
        (answer("503 Service Unavailable", "Retry-After: soon\r\n", ""), "unclear", "outcome-unknown"),
        (bare("504 Gateway Timeout"), "unclear", "outcome-unknown"),
        // Nothing was done, and it asks for a pause.
        (answer("429 Too Many Requests", "Retry-After: 1\r\n", ""), "throttled", "succeeded"),
        (bare("429 Too Many Requests"), "throttled", "succeeded"),
        // A status says the same whatever comes after it.
        (answer("429 Too Many Requests", "", &long), "throttled", "succeeded"),
        (answer("403 Forbidden", "", &long), "rejected", "failed"),
        (answer("503 Service Unavailable", "Retry-After: 1\r\n", ""), "throttled", "succeeded"),
        // It is refused for good.
        (bare("400 Bad Request"), "rejected", "failed"),
        (bare("401 Unauthorized"), "rejected", "failed"),
        (bare("403 Forbidden"), "rejected", "failed"),
        (answer("404 Not Found", "", r#"{"state":"absent"}"#), "rejected", "failed"),
        (bare("405 Method Not Allowed"), "rejected", "failed"),
        (bare("422 Unprocessable Entity"), "rejected", "failed"),
    ];
    let answers = Mutex::new(cases.clone().map(|(answer, ..)| Some(answer)));
    let provider = Scripted::start(move |_, request| {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let case: usize = body["request"]["revision"].as_str().unwrap().parse().unwrap();
        answers.lock().unwrap()[case].take().unwrap_or_else(succeeded)
    });
    let world = World::new();
    let ids: Vec<_> =
        (0..cases.len()).map(|case| world.deploy_revision(&case.to_string(), &case.to_string())).collect();

    let _worker = world.worker(&provider.url(), "none", &["--attempt-timeout", "5s", "--lease", "10s"]);

    for ((text, seen, state), id) in cases.iter().zip(&ids) {
        until(|| SETTLED.contains(&world.state(id).as_str()).then_some(()));
        let case = text.lines().next().unwrap_or("nothing");
        assert_eq!(world.state(id), *state, "{case}");
        assert_eq!(world.attempts(id)[0], format!("submit {seen}"), "{case}");
        let sent = provider.requests().iter().filter(|request| request.body.contains(id)).count();
        assert_eq!(sent, if *seen == "throttled" { 2 } else { 1 }, "{case}");
    }
    assert_eq!(elsewhere.effects()["total"], 0);
    let bad = cases.iter().position(|(text, ..)| text.starts_with("HTTP/1.1 400 ")).unwrap();
    assert_eq!(world.operation(&ids[bad])["detail"], "The provider refused it: 400 Bad Request: why");
}

#[test]
fn a_pause_that_the_provider_asks_for_is_kept() {
    let begun = Instant::now();
    // It has no fractions of a second, so it is three seconds off, or more.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(4));
    for (status, pause) in [("429 Too Many Requests", "2"), ("503 Service Unavailable", date.as_str())] {
        let provider = Scripted::answers(&[&answer(status, &format!("Retry-After: {pause}\r\n"), ""), &succeeded()]);
        let world = World::new();
        let id = world.deploy("k");

        let _worker = world.worker(&provider.url(), "none", &[]);
        world.until_state(&id, "succeeded");

        let requests = provider.requests();
        assert_eq!(requests.len(), 2, "{status}");
        let waited = if pause == "2" { requests[1].at - requests[0].at } else { requests[1].at - begun };
        let least = if pause == "2" { 2_000 } else { 2_990 };
        assert!(waited >= Duration::from_millis(least), "{status}: {waited:?}");
    }
}

#[test]
fn only_the_words_of_an_absence_are_taken_for_one() {
    let closed = String::new();
    let answers = |look_up: String| {
        let closed = closed.clone();
        Scripted::start(move |number, request: &Request| match (request.line.starts_with("GET "), number) {
            (false, _) => closed.clone(),
            (true, 1) => look_up.clone(),
            (true, _) => answer("200 OK", "", SUCCEEDED),
        })
    };
    thread::scope(|scope| {
        for (look_up, seen, state) in [
            (answer("404 Not Found", "", r#"{"state":"absent"}"#), "absent", "outcome-unknown"),
            (answer("404 Not Found", "", ""), "unclear", "succeeded"),
            (answer("404 Not Found", "", r#"{"detail":"There is nothing at this address."}"#), "unclear", "succeeded"),
            (answer("404 Not Found", "", "absent"), "unclear", "succeeded"),
            (answer("410 Gone", "", r#"{"state":"absent"}"#), "rejected", "succeeded"),
            (answer("200 OK", "", r#"{"state":"absent"}"#), "unclear", "succeeded"),
            (answer("403 Forbidden", "", ""), "rejected", "succeeded"),
            (answer("405 Method Not Allowed", "", ""), "rejected", "succeeded"),
        ] {
            let provider = answers(look_up.clone());
            scope.spawn(move || {
                let world = World::new();
                let id = world.deploy("k");
                let _worker = world.worker(&provider.url(), "looks-up", &[]);
                until(|| SETTLED.contains(&world.state(&id).as_str()).then_some(()));
                let attempts = world.attempts(&id);
                assert_eq!(attempts[..2], ["submit unclear".to_owned(), format!("lookup {seen}")], "{look_up}");
                assert_eq!(world.state(&id), state, "{look_up}");
                let asked = format!("GET /deployments?client_reference={id}");
                assert_eq!(provider.requests()[1].line, asked);
                assert_eq!(provider.requests().iter().filter(|request| request.line.starts_with("POST")).count(), 1);
            });
        }
    });
}

#[test]
fn every_sending_of_one_operation_is_the_same_request_under_the_same_key() {
    // Incident 3. The attempts are another worker's, too.
    let unclear = |status| answer(status, "", "");
    let [closed, failed, again] = [String::new(), unclear("500 Internal Server Error"), unclear("409 Conflict")];
    let provider = Scripted::answers(&[&closed, &failed, &again, &succeeded()]);
    let world = World::new();
    let id = world.deploy("k");
    let key = || world.text("SELECT coalesce(provider_key, '') FROM operations", []);
    assert_eq!(key(), "");

    let mut first = world.worker(&provider.url(), KEYS, &[]);
    until(|| (world.attempts(&id).get(1)? == "submit unclear").then_some(()));
    first.process.kill();
    let _second = world.worker(&provider.url(), KEYS, &[]);
    world.until_state(&id, "succeeded");

    let requests = provider.requests();
    assert_eq!(requests.len(), 4);
    let body = json!({ "client_reference": id, "request": { "service": "web", "revision": "r1" } });
    for request in &requests {
        assert_eq!(request.line, "POST /deployments");
        assert_eq!(request.header("idempotency-key"), Some(key().as_str()));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(serde_json::from_str::<Value>(&request.body).unwrap(), body);
        assert_eq!(request.header("authorization"), None);
    }
}

#[test]
fn the_token_is_sent_with_everything_and_stands_in_no_log() {
    const TOKEN: &str = "s3cret-t0ken";
    let is_to_stop = AtomicBool::new(false);
    let provider = Scripted::start(move |_, request| match request.line.as_str() {
        "POST /deployments/cancel" => {
            is_to_stop.store(true, SeqCst);
            answer("409 Conflict", "", "")
        }
        _ if is_to_stop.load(SeqCst) => answer("200 OK", "", SUCCEEDED),
        _ => answer("200 OK", "", r#"{"id":"dep-1","state":"running"}"#),
    });
    let contract = "looks-up,cancels";
    let world = World::new();
    let id = world.deploy_revision("buy-k3y", "rev1s1on");
    let mut command = world.work(&provider.url(), contract, &[]);
    command.env("COUNTERFOIL_PROVIDER_TOKEN", TOKEN).env("RUST_LOG", "trace");

    let worker = world.worker_with(command);
    until(|| (world.attempts(&id).first()? == "submit accepted").then_some(()));
    assert_eq!(world.cancel(&id)["state"], "cancel_requested");
    world.until_state(&id, "succeeded");

    let lines: Vec<_> = provider.requests().into_iter().map(|request| request.line).collect();
    assert!(lines.contains(&"POST /deployments/cancel".to_owned()), "{lines:?}");
    for request in provider.requests() {
        assert_eq!(request.header("authorization"), Some(format!("Bearer {TOKEN}").as_str()), "{request:?}");
    }
    worker.until_logged("state=\"succeeded\"");
    let (log, key) = (worker.log(), world.text("SELECT provider_key FROM operations", []));
    assert!(log.contains(&id), "{log}");
    for word in [TOKEN, "buy-k3y", "rev1s1on", &key] {
        assert!(!log.contains(word), "{word} in: {log}");
    }
    assert!(!world.attempts(&id).is_empty());
}

#[test]
fn a_token_that_is_no_header_is_wrong_usage_and_is_not_shown() {
    let world = World::new();
    let mut command = world.work("http://127.0.0.1:1/deployments", "none", &["--once"]);

    let ran = Ran::of(command.env("COUNTERFOIL_PROVIDER_TOKEN", "s3cret\nt0ken"));

    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("cannot use the provider") && !ran.stderr.contains("s3cret"), "{}", ran.stderr);
    // One that was meant and is missing is not left out in silence.
    let mut command = world.work("http://127.0.0.1:1/deployments", "none", &["--once"]);
    let ran = Ran::of(command.env("COUNTERFOIL_PROVIDER_TOKEN", ""));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("COUNTERFOIL_PROVIDER_TOKEN is empty"), "{}", ran.stderr);
    assert!(!world.path().exists());
}
