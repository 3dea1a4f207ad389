//! What was accepted is done and answered, whatever becomes of whoever asked, and of the server.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const BUSY: (bool, bool, &str) = (true, false, "busy");

fn fail(key: &str, how: &str) -> Value {
    json!({ "idempotency_key": key, "how": how })
}

fn mark(key: &str) -> Value {
    json!({ "idempotency_key": key, "text": "hello" })
}

#[track_caller]
fn assert_closed(world: &World) {
    assert!(!world.file("test.db-wal").exists() && !world.file("test.db-journal").exists());
    // By whom, is all the same.
    world.assert_whole();
}

#[test]
fn what_was_written_before_the_end_of_the_input_is_answered() {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let mut pipe = world.pipe(revision, &[]);

        let ids: BTreeSet<_> =
            (0..50).map(|number| pipe.send_call("create_note", &note(&format!("k{number}"), "hello"))).collect();
        pipe.close();
        let answers = pipe.rest();

        assert!(answers.iter().all(|answer| Told::of(answer).outcome() == FRESH), "{answers:?}");
        assert_eq!(answers.iter().map(|answer| answer["id"].as_u64().unwrap() as usize).collect::<BTreeSet<_>>(), ids);
        assert_eq!(answers.len(), 50);
        assert_eq!(pipe.process.wait().code(), Some(0));
        assert_closed(&world);
        assert_eq!(world.number("SELECT count(*) FROM notes"), 50);
    }
}

#[test]
fn a_last_line_without_its_end_is_answered() {
    let world = World::new();
    let mut command = world.program(&["serve"]);
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let call = message(STATELESS, 7, "tools/call", json!({ "name": "find_operation", "arguments": {} }));

    server.stdin.take().unwrap().write_all(call.to_string().as_bytes()).unwrap();

    let output = server.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["id"], Told::of(&answer).outcome()), (&json!(7), (true, false, "invalid_argument")));
}

#[test]
fn an_input_that_ends_at_once_is_no_failure() {
    let world = World::new();
    let mut pipe = world.pipe(STATELESS, &[]);

    pipe.close();

    assert_eq!((pipe.rest(), pipe.process.wait().code()), (Vec::new(), Some(0)));
}

#[test]
fn calls_in_flight_are_answered_before_a_server_that_is_told_to_stop_ends() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "mark");
    let mut server = world.serve_test_tools(&[]);
    let caller = server.caller(&token);
    let spinning = caller.send_call("fail", &fail("spin", "spin")).unwrap();
    // It keeps the others waiting for 2 s.
    world.until_logged(ATTEMPT, 1);
    let waiting: Vec<_> =
        (0..3).map(|number| caller.send_call("mark", &mark(&format!("k{number}"))).unwrap()).collect();
    world.until_logged(ARRIVED, 4);

    server.process.signal("TERM");

    let told = |stream| Told::of(&Answer::read(stream).unwrap().json());
    assert_eq!(told(&spinning).outcome(), (true, false, "unconfirmed"));
    let waiting: Vec<_> = waiting.iter().map(told).collect();
    // On a slow machine some have waited too long.
    assert!(waiting.iter().all(|told| [FRESH, BUSY].contains(&told.outcome())), "{waiting:?}");
    assert_eq!(server.process.wait().code(), Some(0), "{}", world.log());
    assert!(!world.file("test.db-wal").exists());
    let made = waiting.iter().filter(|told| told.outcome() == FRESH).count();
    assert_eq!(world.number("SELECT count(*) FROM marks"), i64::try_from(made).unwrap());
}

#[test]
fn lines_that_were_read_are_answered_before_a_server_that_is_told_to_stop_ends() {
    let world = World::new();
    let mut pipe = world.pipe_with(test_component(), STATELESS, &[]);
    let spinning = pipe.send_call("fail", &fail("spin", "spin"));
    world.until_logged(ATTEMPT, 1);
    let waiting = [0, 1, 2].map(|number| pipe.send_call("mark", &mark(&format!("k{number}"))));
    world.until_logged(ARRIVED, 4);

    pipe.process.signal("TERM");

    let answers = pipe.rest();
    let of =
        |id: usize| Told::of(answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{answers:?}")));
    assert_eq!(of(spinning).outcome(), (true, false, "unconfirmed"));
    assert!(waiting.iter().all(|&id| [FRESH, BUSY].contains(&of(id).outcome())), "{answers:?}");
    assert_eq!((answers.len(), pipe.process.wait().code()), (4, Some(0)), "{}", world.log());
    assert!(!world.file("test.db-wal").exists());
}

#[test]
fn a_client_that_goes_away_after_sending_finds_its_call_done() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes,read-metrics");
    let server = world.serve(&[]);
    let mut caller = server.caller(&token);

    for number in 1..=20 {
        let key = format!("k{number}");
        drop(caller.send_call("create_note", &note(&key, "hello")).unwrap());
        let fresh = "counterfoil_answers_total{tool=\"create_note\",outcome=\"fresh\",code=\"\"}";
        until(|| (caller.metric(fresh) == number).then_some(()));

        assert_eq!(caller.call("create_note", &note(&key, "hello")).outcome(), REPLAYED);
    }
}

#[test]
fn a_call_that_is_cancelled_is_done_all_the_same() {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let mut pipe = world.pipe(revision, &[]);
        let id = pipe.send_call("create_note", &note("k", "hello"));
        let params = json!({ "requestId": id, "reason": "tired of waiting" });
        pipe.write(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string());
        pipe.close();
        pipe.rest();
        assert_eq!(pipe.process.wait().code(), Some(0));

        let mut again = world.pipe(revision, &[]);

        assert_eq!(again.call("create_note", &note("k", "hello")).outcome(), REPLAYED);
        assert_eq!(
            again.call("find_operation", &json!({ "tool": "create_note", "idempotency_key": "k" })).outcome(),
            FRESH
        );
    }
}

#[test]
fn a_full_queue_refuses_at_once_and_the_retry_succeeds() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "mark,read-metrics");
    let server = world.serve_test_tools(&["--queue", "1"]);
    let mut caller = server.caller(&token);
    let mut round = 0;
    // A machine that is slow may not have sent them all while the first one computes.
    let (key, told) = until(|| {
        round += 1;
        let spinning = caller.send_call("fail", &fail(&format!("spin-{round}"), "spin")).unwrap();
        world.until_logged(ATTEMPT, round);
        let keys = [0, 1, 2].map(|number| format!("k-{round}-{number}"));
        let sent = keys.clone().map(|key| caller.send_call("mark", &mark(&key)).unwrap());
        let told = sent.map(|stream| Told::of(&Answer::read(&stream).unwrap().json()));
        drop(Answer::read(&spinning));
        keys.into_iter().zip(told).find(|(_, told)| told.is_error)
    });

    assert_eq!((told.outcome(), &told.reply["retryable"]), (BUSY, &json!(true)), "{told:?}");
    assert!((100..400).contains(&told.reply["retry_after_ms"].as_u64().unwrap()), "{told:?}");
    let busy = "counterfoil_answers_total{tool=\"mark\",outcome=\"refused\",code=\"busy\"}";
    assert!(caller.metric(busy) >= 1);
    assert_eq!(until(|| Some(caller.call("mark", &mark(&key))).filter(|told| !told.is_error)).outcome(), FRESH);
}

/// What progress says, in the order in which it was told.
fn progress(messages: &[Value], token: &str) -> Vec<f64> {
    let told = messages.iter().filter(|message| message["method"] == "notifications/progress");
    told.filter(|message| message["params"]["progressToken"] == token)
        .map(|message| message["params"]["progress"].as_f64().unwrap())
        .collect()
}

fn asking_for_progress(tool: &str, arguments: &Value, token: &str) -> Value {
    json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": token } })
}

#[track_caller]
fn assert_told(progress: &[f64]) {
    assert!(progress.len() >= 3 && progress.is_sorted_by(|one, next| one < next), "{progress:?}");
    assert!((0.4..2.0).contains(&progress[0]), "{progress:?}");
}

#[test]
fn whoever_waits_is_told_so_and_has_an_answer_within_5_s_over_http() {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let token = world.token("ada", "ada@acme", "mark");
        let server = world.serve_test_tools(&[]);
        let mut caller = server.caller_of(revision, &token);
        let begun = Instant::now();

        let answer = caller.answer("tools/call", asking_for_progress("fail", &fail("k", "spin"), "p")).unwrap();

        let took = begun.elapsed();
        let messages = messages(&answer);
        assert_told(&progress(&messages, "p"));
        let told = Told::of(messages.last().unwrap());
        assert_eq!((told.outcome(), &told.reply["retryable"]), ((true, false, "unconfirmed"), &json!(true)));
        assert!(took < Duration::from_secs(5), "{took:?}");
        // Nothing of it is left, and others are answered.
        assert_eq!(caller.call("mark", &mark("k")).outcome(), FRESH);
        drop(server);
        assert_eq!(world.number("SELECT count(*) FROM marks"), 1);
    }
}

#[test]
fn whoever_waits_is_told_so_and_has_an_answer_within_5_s_over_stdio() {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let mut pipe = world.pipe_with(test_component(), revision, &[]);
        // It has begun to serve.
        assert_eq!(pipe.call("mark", &mark("first")).outcome(), FRESH);
        let begun = Instant::now();

        let id = pipe.send("tools/call", asking_for_progress("fail", &fail("k", "spin"), "p"));
        let answer = pipe.answer(id);

        assert_told(&progress(&pipe.others, "p"));
        assert_eq!(Told::of(&answer).outcome(), (true, false, "unconfirmed"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[test]
fn whoever_asked_for_progress_is_answered_at_the_end_of_the_input_too() {
    let world = World::new();
    let mut pipe = world.pipe_with(test_component(), STATELESS, &[]);
    let id = pipe.send("tools/call", asking_for_progress("fail", &fail("k", "spin"), "p"));
    world.until_logged(ATTEMPT, 1);

    pipe.close();

    assert_eq!(Told::of(&pipe.answer(id)).outcome(), (true, false, "unconfirmed"));
    assert_eq!(pipe.process.wait().code(), Some(0));
}

#[test]
fn whoever_asked_for_progress_is_answered_by_a_server_that_is_told_to_stop() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "mark");
    let mut server = world.serve_test_tools(&[]);
    let stream =
        server.caller(&token).send("tools/call", asking_for_progress("fail", &fail("k", "spin"), "p")).unwrap();
    world.until_logged(ATTEMPT, 1);

    server.process.signal("TERM");

    let messages = messages(&Answer::read(&stream).unwrap());
    assert_told(&progress(&messages, "p"));
    assert_eq!(Told::of(messages.last().unwrap()).outcome(), (true, false, "unconfirmed"));
    assert_eq!(server.process.wait().code(), Some(0));
}

#[test]
fn a_call_whose_client_goes_away_while_it_is_told_of_progress_is_done() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "mark");
    let server = world.serve_test_tools(&[]);
    let mut caller = server.caller(&token);
    let _spinning = caller.send_call("fail", &fail("spin", "spin")).unwrap();
    world.until_logged(ATTEMPT, 1);
    let mut stream = caller.send("tools/call", asking_for_progress("mark", &mark("k"), "p")).unwrap();
    // It has been told something.
    assert_eq!(stream.read(&mut [0; 12]).unwrap(), 12);

    drop(stream);

    let refused = "outcome=\"refused\" code=\"busy\"";
    until(|| (world.log().matches(ATTEMPT).count() > 1 || world.log().contains(refused)).then_some(()));
    let is_late = world.log().contains(refused);
    let told = until(|| Some(caller.call("mark", &mark("k"))).filter(|told| told.outcome() != BUSY));
    assert_eq!(told.outcome(), if is_late { FRESH } else { REPLAYED });
}

#[test]
fn others_of_a_batch_in_which_a_call_traps_succeed() {
    let world = World::new();
    let mut pipe = world.pipe_with(test_component(), STATELESS, &[]);
    assert_eq!(pipe.call("mark", &mark("first")).outcome(), FRESH);
    let mut rounds = 0;
    while !world.log().contains("a batch failed: its calls are made one by one") {
        assert!(rounds < 50, "no two calls are made together");
        rounds += 1;
        let ids: Vec<_> = (0..8)
            .map(|number| match number {
                4 => pipe.send_call("fail", &fail(&format!("{rounds}-{number}"), "trap")),
                _ => pipe.send_call("mark", &mark(&format!("{rounds}-{number}"))),
            })
            .collect();
        for (number, id) in ids.into_iter().enumerate() {
            let expected = if number == 4 { (true, false, "unconfirmed") } else { FRESH };
            assert_eq!(Told::of(&pipe.answer(id)).outcome(), expected);
        }
    }
    pipe.close();
    assert_eq!(pipe.process.wait().code(), Some(0));
    assert_eq!(world.number("SELECT count(*) FROM marks"), 1 + 7 * rounds);
}

#[test]
fn what_was_answered_is_there_after_a_kill() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let mut server = world.serve(&[]);
    let keys: Vec<_> = (0..8).map(|number| format!("k{number}")).collect();
    let caller = server.caller(&token);
    let first: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> =
            keys.iter().map(|key| scope.spawn(|| caller.clone().call("create_note", &note(key, "hello")))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });

    server.process.kill();
    let server = world.serve(&[]);

    for (key, first) in keys.iter().zip(first) {
        let replay = server.caller(&token).call("create_note", &note(key, "hello"));
        assert_eq!((first.outcome(), replay.outcome()), (FRESH, REPLAYED));
        assert_eq!(replay.reply["note_id"], first.reply["note_id"]);
    }
}
