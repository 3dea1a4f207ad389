//! `call`: the one layer that retries, within a budget.

use crate::harness::*;
use crate::world::*;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a process may take beside its budget: to start, to compile, and to be slow.
const MARGIN: Duration = Duration::from_secs(15);

/// A world with one note in it, so that nothing has to be made any more.
fn world() -> World {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("there", "hello")).code, 0);
    world
}

fn notes(world: &World) -> i64 {
    world.number("SELECT count(*) FROM notes")
}

/// How often it was made again, by the log.
fn retries(ran: &Ran) -> usize {
    ran.stderr.matches("made again with the same key").count()
}

#[test]
fn a_call_is_made_again_while_the_database_is_locked_and_then_answered() {
    let world = world();
    let lock = NativeLock::write(&world.path());
    let mut command =
        world.program(&["call", "create_note", r#"{"body":"hello"}"#, "--budget", "60s", "--attempts", "99"]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(process.stderr.take().unwrap());
    let (mut key, mut retries) = (None, 0);
    for line in stderr.lines().map(Result::unwrap) {
        key = key.or(line.strip_prefix("idempotency_key: ").map(str::to_owned));
        retries += usize::from(line.contains("made again with the same key"));
        if retries == 2 {
            break;
        }
    }
    assert_eq!(notes(&world), 1);

    drop(lock);
    let ran = Ran::from(process.wait_with_output().unwrap());

    assert_eq!((ran.code, &ran.reply()["status"], &ran.reply()["replayed"]), (0, &json!("succeeded"), &json!(false)));
    assert_eq!(notes(&world), 2);
    let replay = world.call("create_note", &note(&key.expect("a key"), "hello")).reply();
    assert_eq!((&replay["replayed"], &replay["operation_id"]), (&json!(true), &ran.reply()["operation_id"]));
    assert_eq!(notes(&world), 2);
}

#[test]
fn a_call_that_stays_busy_ends_within_its_budget_and_hands_over_its_key() {
    let world = world();
    let lock = NativeLock::write(&world.path());
    for (options, most_retries) in [
        (&["--budget", "0s"][..], 0),
        (&["--budget", "300ms", "--attempts", "99"], 1),
        (&["--budget", "4s", "--attempts", "99"], 9),
        (&["--budget", "60s", "--attempts", "1"], 0),
        (&["--budget", "60s", "--attempts", "2"], 1),
    ] {
        let begun = Instant::now();
        let arguments = [&["call", "create_note", r#"{"idempotency_key":"k","body":"hello"}"#], options].concat();
        let ran = world.run(&arguments);

        let budget = if options[1] == "60s" { Duration::from_secs(10) } else { Duration::from_secs(4) };
        assert!(begun.elapsed() < budget + MARGIN, "{options:?}: {:?}", begun.elapsed());
        assert_eq!((ran.code, &ran.reply()["code"]), (4, &json!("busy")), "{options:?}");
        assert!(retries(&ran) <= most_retries, "{options:?}: {}", ran.stderr);
        let last = ran.stderr.lines().last().unwrap();
        let attempts = retries(&ran) + 1;
        let expected = format!("gave up after {attempts} attempts: repeat the same call, with idempotency_key k");
        assert_eq!(last, expected, "{options:?}");
    }
    drop(lock);
    assert_eq!(notes(&world), 1);
    let ran = world.call("create_note", &note("k", "hello"));
    assert_eq!((ran.code, &ran.reply()["replayed"]), (0, &json!(false)));
}

#[test]
fn a_key_that_was_made_is_handed_over_too() {
    let world = world();
    let _lock = NativeLock::write(&world.path());

    let ran = world.run(&["call", "create_note", r#"{"body":"hello"}"#, "--budget", "0s"]);

    let made = ran.stderr.lines().find_map(|line| line.strip_prefix("idempotency_key: ")).expect("a key");
    assert!(ran.stderr.lines().last().unwrap().ends_with(&format!("with idempotency_key {made}")), "{}", ran.stderr);
    assert_eq!(ran.code, 4);
}

#[test]
fn a_call_that_traps_is_made_again_with_its_key_and_computes_no_longer_than_its_budget() {
    for (how, options, attempts) in [
        ("trap", ["--budget", "60s", "--attempts", "3"], 3),
        ("trap", ["--budget", "0s", "--attempts", "3"], 1),
        // It computes for ever.
        ("spin", ["--budget", "1s", "--attempts", "99"], 1),
    ] {
        let world = World::new();
        let arguments = json!({ "idempotency_key": "k", "how": how }).to_string();
        let component = test_component();
        let begun = Instant::now();
        let ran = Ran::of(&mut world.program_with(component, &[&["call", "fail", &arguments], &options[..]].concat()));

        assert!(begun.elapsed() < Duration::from_secs(5) + MARGIN, "{how}: {:?}", begun.elapsed());
        assert_eq!((ran.code, ran.stdout.as_str(), retries(&ran) + 1), (1, "", attempts), "{how}: {}", ran.stderr);
        let last = ran.stderr.lines().last().unwrap();
        let doubt = format!("error: an attempt (of {attempts}) may have committed or not: ");
        assert!(ran.stderr.contains(&doubt), "{how}: {}", ran.stderr);
        assert!(last.ends_with(": repeat the same call, with idempotency_key k"), "{how}: {last}");
        assert_eq!(world.number("SELECT count(*) FROM marks"), 0, "{how}");
    }
}

#[test]
fn what_no_retry_can_help_is_asked_once() {
    let world = world();
    let unknown = json!({ "note_id": "01890a5d-ac96-774b-bcce-b302099a8057" });
    for (tool, arguments, code) in [
        ("create_note", note("there", "other"), "key_conflict"),
        ("create_note", note("k", ""), "invalid_argument"),
        ("no_such_tool", json!({}), "invalid_argument"),
        ("get_note", unknown, "not_found"),
        ("cancel_operation", json!({ "operation_id": "01890a5d-ac96-774b-bcce-b302099a8057" }), "not_found"),
        ("find_operation", json!({ "tool": "create_note" }), "invalid_argument"),
        ("create_automation", json!({ "interval_minutes": 5 }), "denied"),
    ] {
        let mut command = world.program(&["call", tool, &arguments.to_string(), "--budget", "60s", "--attempts", "99"]);
        let ran = Ran::of(command.env("RUST_LOG", "counterfoil=info,host_example=debug"));

        let reply = ran.reply();
        assert_eq!((ran.code, &reply["status"], &reply["code"]), (3, &json!("refused"), &json!(code)), "{tool}");
        assert_eq!((retries(&ran), ran.stderr.matches(": answer ").count()), (0, 1), "{tool}: {}", ran.stderr);
        assert!(!ran.stderr.contains("gave up"), "{tool}");
    }
    assert_eq!(notes(&world), 1);
}

#[test]
fn an_answer_is_one_line_of_json_and_a_replay_is_the_same_one() {
    let world = World::new();

    let first = world.call("create_note", &note("k", "hello"));
    let again = world.call("create_note", &note("k", "hello"));

    assert_eq!((first.code, again.code), (0, 0));
    assert_eq!((first.stderr.as_str(), first.stdout.lines().count()), ("", 1));
    assert_eq!(first.stdout.replace(r#""replayed":false"#, r#""replayed":true"#), again.stdout);
    assert_eq!(notes(&world), 1);
}

#[test]
fn wrong_usage_calls_nothing() {
    let world = World::new();
    let call = ["call", "create_note", "{}"];
    let bare = |arguments: &[&str]| {
        let mut command = counterfoil(arguments);
        command.arg("--component").arg(component());
        command
    };
    let run = |command: &mut Command| Ran::of(command);
    for (ran, word) in [
        (run(bare(&call).args(["--as", "ada@acme"])), "--db"),
        (run(bare(&call).arg("--db").arg(world.path())), "--as"),
        (world.run(&["call", "create_note", "{}", "--budget", "soon"]), "--budget"),
        (world.run(&["call", "create_note", "{}", "--attempts", "0"]), "--attempts"),
        (world.run(&["call", "create_note"]), "JSON"),
        (world.run(&["resolve", "01890a5d-ac96-774b-bcce-b302099a8057", "perhaps"]), "perhaps"),
        (world.run(&["resolve", "01890a5d-ac96-774b-bcce-b302099a8057", "happened"]), "there is no such database"),
        (world.run(&["resolve", "x", "did-not", "--resource", "dep-1"]), "--resource"),
        (world.run(&["sweep"]), "there is no such database"),
        (world.run(&["sweep", "--step", "0"]), "--step"),
        (world.run(&["backup", "copy.db"]), "there is no such database"),
        (world.run(&["restored"]), "there is no such database"),
        (world.run(&["restore", "/no/such/copy.db"]), "/no/such/copy.db"),
        (world.run(&["work", "--contract", "none"]), "--provider"),
        (world.run(&["work", "--provider", "http://127.0.0.1:1/x"]), "--contract"),
        (world.run(&["work", "--provider", "ftp://127.0.0.1/x", "--contract", "none"]), "--provider"),
        (world.work_once("http://127.0.0.1:1/x", "none"), "there is no such database"),
        (world.work_once("http://127.0.0.1:1/x", "looks-up=1s"), "`looks-up` takes no figure"),
        (Ran::of(&mut world.work("http://127.0.0.1:1/x", "none", &["--once", "--attempt-timeout", "3s"])), "--lease"),
        (
            Ran::of(&mut world.work("http://127.0.0.1:1/x", "none", &["--once", "--attempt-timeout", "6m"])),
            "--attempt-timeout",
        ),
        (Ran::of(&mut world.work("http://127.0.0.1:1/x", "none", &["--once", "--poll", "0s"])), "--poll"),
    ] {
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{word}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "no {word} in: {}", ran.stderr);
        assert!(!world.path().exists(), "{word}");
    }
    for arguments in [&call[..], &["sweep"], &["work", "--provider", "http://127.0.0.1:1/x", "--contract", "none"]] {
        let ran = world.beside("no/such/folder.db").run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("cannot open "), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn what_the_environment_sets_wrongly_is_refused_before_anything_is_done() {
    let world = World::new();
    for (name, value) in
        [("COUNTERFOIL_RETENTION", "1h"), ("COUNTERFOIL_RETENTION", "long"), ("COUNTERFOIL_DEADLINE", "10ms")]
    {
        let arguments = ["call", "start_deployment", &deployment("k", "r1").to_string(), "--budget", "60s"];
        let ran = Ran::of(world.program(&arguments).env(name, value));

        assert_eq!((ran.code, &ran.reply()["code"]), (3, &json!("unavailable")), "{name}: {}", ran.stderr);
        assert!(ran.reply()["message"].as_str().unwrap().starts_with(name), "{}", ran.stdout);
    }
    let ran =
        Ran::of(world.program(&["call", "create_note", r#"{"body":"hello"}"#]).env("COUNTERFOIL_RETENTION", "1day"));
    assert_eq!(ran.code, 0);
    let kept = world.number("SELECT valid_until - committed_at FROM receipts");
    assert_eq!(kept, 86_400_000);
}
