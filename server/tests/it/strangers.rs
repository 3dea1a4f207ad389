//! Clients and files that are not as one expects: nobody else is disturbed.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use serde_json::json;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_client_that_says_that_no_more_comes_is_answered() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&[]);
    let caller = server.caller(&token);

    let sent = caller.send_call("create_note", &note("k", "hello")).unwrap();
    sent.shutdown(Shutdown::Write).unwrap();

    assert_eq!(Told::of(&Answer::read(&sent).unwrap().json()).outcome(), FRESH);
}

/// Without a token: it takes the only place there is, for 30 s.
#[test]
fn a_client_that_does_not_read_its_answers_loses_its_connection() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&["--connections", "1"]);
    let mut stream = TcpStream::connect(server.client.address()).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let full = loop {
        if let Err(error) = stream.write_all(requests.as_bytes()) {
            break error.kind();
        }
    };
    assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&full), "{full:?}");
    let begun = Instant::now();

    // It waits for the place.
    let answer = server.caller(&token).note("k");

    assert_eq!(Told::of(&answer.json()).outcome(), FRESH);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    // What was on its way is still there; then it ends.
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest));
    assert!(String::from_utf8_lossy(&rest).contains("401 Unauthorized"));
}

#[test]
fn a_page_that_is_let_in_may_ask_whether_it_may_send_a_token() {
    let world = World::new();
    world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&["--allow-origin", "https://agents.example"]);
    let asked = |origin: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ];
        server.client.request("OPTIONS", "/mcp", &headers, "").unwrap()
    };

    let ours = asked("https://agents.example");
    assert_eq!((ours.status, ours.header("access-control-allow-origin")), (200, Some("https://agents.example")));
    assert_eq!(ours.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert_eq!(asked("https://elsewhere.example").header("access-control-allow-origin"), None);
}

#[test]
fn a_file_of_tokens_that_is_a_pipe_or_gone_lets_nobody_in_and_hangs_nothing() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let mut server = world.serve(&[]);
    let caller = server.caller(&token);
    let kept = world.file("kept.toml");

    for what in ["a pipe", "gone"] {
        fs::rename(world.tokens(), &kept).unwrap();
        if what == "a pipe" {
            assert!(Command::new("mkfifo").arg(world.tokens()).status().unwrap().success());
        }
        assert_eq!([caller.note("k").status, caller.note("k").status, caller.note("k").status], [503; 3], "{what}");
        fs::rename(&kept, world.tokens()).unwrap();
        assert_eq!(caller.note("k").status, 200, "{what}");
    }

    world.until_logged("nobody is let in", 2);
    world.until_logged("tokens read again", 2);
    server.stop();
}

#[test]
fn a_token_in_the_file_is_not_repeated_in_the_error() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    for wrong in [format!("{token} = 1\n"), format!("[[token]]\nname = \"{token}\"\n"), format!("x = {token}\n")] {
        fs::write(world.tokens(), &wrong).unwrap();
        let ran = Ran::of(&mut world.http_with(component(), &[]));
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("tokens.toml") && !ran.stderr.contains(&token), "{}", ran.stderr);
    }
    let entry = "[[token]]\nname = \"a\"\nsubject = \"ada\"\n";
    fs::write(world.tokens(), format!("# A comment.\n\n{entry}sha265 = \"\"\n")).unwrap();
    let ran = Ran::of(&mut world.http_with(component(), &[]));
    assert!(ran.stderr.contains("line 6: unknown field `sha265`"), "{}", ran.stderr);
}

#[test]
fn tokens_that_are_made_at_once_all_stand_in_the_file_and_no_name_stands_there_twice() {
    let world = World::new();
    let new = |name: &str, arguments: &[&str]| {
        let command = ["--as", "ada@acme", "--allow", "read", "token", "new", "--name", name, "--tokens"];
        Ran::of(counterfoil(&command).arg(world.tokens()).args(arguments))
    };
    thread::scope(|scope| {
        let made: Vec<_> =
            (0..16).map(|number| scope.spawn(move || new(&format!("n{}", number / 2), &[]).code)).collect();
        let codes: Vec<_> = made.into_iter().map(|made| made.join().unwrap()).collect();
        assert_eq!(codes.iter().filter(|code| **code == 0).count(), 8, "{codes:?}");
    });
    let twice = new("n1", &[]);
    assert_eq!(twice.code, 1, "{}", twice.stderr);
    assert!(twice.stderr.contains("there is another one of this name"), "{}", twice.stderr);
    let long = new("long", &["--valid-for", "10000years"]);
    assert_eq!(long.code, 2, "{}", long.stderr);
    assert!(!world.serve(&[]).client.request("GET", "/metrics", &[], "").unwrap().body.is_empty());
}

#[test]
fn what_does_not_fit_is_said_before_anything_is_done() {
    let world = World::new();
    world.token("ada", "ada@acme", "read");
    let taken = world.serve(&[]);
    let address = taken.client.address().to_string();
    let elsewhere = world.beside("other.db");
    let tokens = world.tokens().to_str().unwrap().to_owned();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--http", &address, "--tokens", &tokens], 1, "Address already in use"),
        (&["--http", "localhost:1", "--tokens", &tokens], 2, "expected ADDRESS:PORT"),
        (&["--http", "127.0.0.1:0", "--tokens", "none.toml"], 2, "cannot read none.toml"),
        (&["--http", "127.0.0.1:0", "--tokens", &tokens, "--public-url", "https://a.example"], 2, "ends in /mcp"),
        (&["--http", "127.0.0.1:0", "--tokens", &tokens, "--allow-origin", "a.example"], 2, "expected an origin"),
        (&["--http", "127.0.0.1:0", "--tokens", &tokens, "--backup", "nowhere"], 2, "nowhere is no folder"),
        (&[], 2, "--as SUBJECT@WORKSPACE is missing"),
    ];
    for (arguments, code, says) in cases {
        let ran = Ran::of(elsewhere.nobody(component(), &["serve"]).args(arguments));
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
        assert!(!elsewhere.path().exists(), "{says}");
    }
}

/// Linux ends a process that writes more than it may, unless it has asked for an error.
#[test]
fn a_database_that_may_not_grow_is_unavailable_and_what_is_there_is_kept() {
    let world = World::new();
    let body = "x".repeat(9_000);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 400; exec \"$@\"", "sh"]).arg(Path::new(env!("CARGO_BIN_EXE_counterfoil")));
    shell.arg("--component").arg(component()).arg("--db").arg(world.path());
    shell.args(["--as", "ada@acme", "--allow", "write-notes", "serve"]).env_remove("RUST_LOG");
    let mut pipe = Pipe::start(&world, &mut shell, STATELESS);

    let mut made = 0;
    let told = loop {
        let told = pipe.call("create_note", &note(&format!("k{made}"), &body));
        if told.is_error {
            break told;
        }
        made += 1;
    };

    assert!(["unavailable", "unconfirmed"].contains(&told.outcome().2), "{told:?}");
    assert!(made > 2, "{made}");
    assert_eq!(pipe.call("create_note", &note("k0", &body)).outcome(), REPLAYED);
    pipe.close();
    pipe.rest();
    assert_eq!(pipe.process.wait().code(), Some(0));
    world.assert_whole();
    assert!(world.number("SELECT count(*) FROM notes") >= made);
}

#[test]
fn a_finding_that_contradicts_what_is_recorded_is_told_so() {
    let (world, provider) = (World::new(), full(&[]));
    let operation = world.deploy("k");
    assert_eq!(world.work_once(&provider.url(), FULL).code, 0);
    let resolve = |arguments: &[&str]| world.run(&[&["resolve", operation.as_str()], arguments].concat());

    let cases: [(&[&str], &str); 2] = [
        (&["did-not"], "The operation's outcome is not unknown."),
        (&["happened", "--resource", "another"], "is succeeded already, as dep-1: nothing was recorded"),
    ];
    for (arguments, says) in cases {
        let ran = resolve(arguments);
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
    assert_eq!(resolve(&["happened"]).code, 0);
    let told = world.call("get_operation", &json!({ "operation_id": operation })).reply();
    assert_eq!((&told["state"], &told["resource_id"]), (&json!("succeeded"), &json!("dep-1")));
}
