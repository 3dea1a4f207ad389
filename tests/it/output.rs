//! What the program `host-example` does when nobody can take what it prints: the call is settled all the same.

use crate::harness::*;
use serde_json::json;
use std::fs::File;
use std::io;
use std::process::Stdio;

/// Where nothing can be written: a full device, and a pipe that nobody reads.
fn lost() -> [Stdio; 2] {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    [File::options().write(true).open("/dev/full").unwrap().into(), writer.into()]
}

#[test]
fn a_reply_that_cannot_be_written_is_a_failure_and_the_retry_a_replay() {
    for format in ["json", "text"] {
        for stdout in lost() {
            let db = Database::new();
            let mut program = db.program(&["call", "create_note", r#"{"body":"hello"}"#, "--format", format]);

            let ran = run(program.stdout(stdout));

            assert_eq!(ran.code, 1);
            assert!(ran.stderr.lines().last().unwrap().starts_with("error: "), "{}", ran.stderr);
            let key = ran.made_key().expect("a key");
            let (exit, replay) = db.call_in_process("create_note", &note(key, "hello"));
            assert_eq!((exit, &replay["status"], &replay["replayed"]), (0, &json!("succeeded"), &json!(true)));
            assert_eq!(counts(&db), ["1", "0", "1"]);
        }
    }
}

#[test]
fn a_verdict_that_cannot_be_written_is_a_failure() {
    let db = Database::new();
    assert_fresh(&db.shared().call("create_note", &note("key-1", "first")));
    for stdout in lost() {
        let ran = run(db.program(&["verify"]).stdout(stdout));
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    }
}

/// As `counterfoil tools | head` has it: whoever went away has read what they wanted.
#[test]
fn a_list_whose_reader_goes_away_ends_and_one_that_cannot_be_written_is_a_failure() {
    let [full, nobody] = lost();
    let db = Database::new();
    let ran = run(db.program(&["tools"]).stdout(nobody));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let ran = run(db.program(&["tools"]).stdout(full));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.starts_with("error: stdout does not take the list: "), "{}", ran.stderr);
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_a_call() {
    for stderr in lost() {
        let db = Database::new();
        let mut program = db.program(&["call", "create_note", &note("key-1", "hello").to_string()]);
        let output = program.env("RUST_LOG", "debug").stderr(stderr).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_fresh(&serde_json::from_slice(&output.stdout).unwrap());
    }
}

#[test]
fn without_a_place_to_print_the_key_nothing_is_called() {
    for stderr in lost() {
        let db = Database::new();
        let output = db.program(&["call", "create_note", r#"{"body":"hello"}"#]).stderr(stderr).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), b"".as_slice()));
        assert!(!db.path().exists());
    }
}
