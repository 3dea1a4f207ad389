//! What the program `host-example` promises on the command line: its output, its exit codes, its keys and its logs.

use crate::harness::*;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

#[test]
fn stdout_is_the_reply_and_one_newline() {
    let db = Database::new();
    let created = run(&mut db.program(&["call", "create_note", &note("k", "two\nlines\n").to_string()]));
    let id = json!({ "note_id": created.reply()["note_id"] });
    let read = run(&mut db.program(&["call", "get_note", &id.to_string()]));
    let refused = run(&mut db.program(&["call", "create_note", "{"]));

    assert_fresh(&created.reply());
    assert_eq!(read.reply()["body"], "two\nlines\n");
    assert_refused(&refused.reply(), "invalid_argument");
    let replayed = db.shared().instance.call_one("create_note", &note("k", "two\nlines\n").to_string()).unwrap();
    assert_eq!(created.stdout.replace(r#""replayed":false"#, r#""replayed":true"#), replayed.body + "\n");
    for ran in [created, read, refused] {
        assert!(ran.stdout.starts_with('{') && ran.stdout.ends_with("}\n"), "{}", ran.stdout);
        assert_eq!((ran.stdout.lines().count(), ran.stderr.as_str()), (1, ""));
    }
}

#[test]
fn the_exit_code_is_0_after_success_and_3_after_a_refusal() {
    let db = Database::new();
    let unknown = json!({ "note_id": "01890a5d-ac96-774b-bcce-b302099a8057" });

    assert_eq!(db.call_in_process("create_note", &note("k", "hello")).0, 0);
    assert_eq!(db.call_in_process("create_note", &note("k", "hello")).0, 0);
    for (tool, arguments, code) in [
        ("create_note", note("k", "other"), "key_conflict"),
        ("create_note", note("k", ""), "invalid_argument"),
        ("no_such_tool", json!({}), "invalid_argument"),
        ("get_note", unknown, "not_found"),
    ] {
        let (exit, reply) = db.call_in_process(tool, &arguments);
        assert_refused(&reply, code);
        assert_eq!((exit, &reply["retryable"]), (3, &json!(false)));
    }
    let denied = run(bare(&["--as", "ada@acme", "call", "create_note", "{}", "--db"]).arg(db.path()));
    assert_eq!((denied.code, &denied.reply()["code"]), (3, &json!("denied")));
    assert_eq!(counts(&db), ["1", "0", "1"]);
}

#[test]
fn a_call_that_waits_says_so_and_ends_retryable_with_exit_code_4() {
    let db = Database::new();
    db.call_in_process("create_note", &note("there", "hello"));
    let lock = NativeLock::write(&db);

    let ran = run(&mut db.program(&["call", "create_note", r#"{"body":"hello"}"#]));

    assert_eq!(ran.code, 4);
    assert_refused(&ran.reply(), "busy");
    assert_eq!((&ran.reply()["retryable"], &ran.reply()["retry_after_ms"]), (&json!(true), &json!(250)));
    assert_eq!(ran.stderr.matches("waiting for another process").count(), 1, "{}", ran.stderr);
    let key = ran.made_key().expect("a key");
    assert!(ran.stderr.find(key) < ran.stderr.find("waiting for another process"), "{}", ran.stderr);
    drop(lock);
    assert_eq!(db.count("receipts"), "1");
    assert_fresh(&db.call_in_process("create_note", &note(key, "hello")).1);
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

#[test]
fn a_call_that_waits_succeeds_once_the_other_process_has_finished() {
    let db = Database::new();
    db.call_in_process("create_note", &note("there", "hello"));
    let lock = NativeLock::write(&db);
    let mut command = db.program(&["call", "create_note", &note("k", "hello").to_string()]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    drop(lock);
    let (exit, reply) = finish(process);

    assert!(line.contains("waiting for another process"), "{line}");
    assert_eq!((exit, &reply["replayed"]), (0, &json!(false)));
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

#[test]
fn wrong_usage_has_exit_code_2_and_says_what_is_missing_and_calls_nothing() {
    let db = Database::new();
    let path: &str = &db.path().display().to_string();
    for (arguments, word) in [
        (&["--as", "ada@acme", "call", "create_note", "{}"][..], "--db"),
        (&["--db", path, "call", "create_note", "{}"], "--as"),
        (&["verify"], "--db"),
        (&["--db", path, "--as", "ada", "call", "create_note", "{}"], "SUBJECT@WORKSPACE"),
        (&["--db", path, "--as", "@acme", "call", "create_note", "{}"], "SUBJECT@WORKSPACE"),
        (&["--db", path, "--as", "ada@acme", "call", "create_note"], "JSON"),
        (&["--db", path, "--as", "ada@acme", "call", "create_note", "{}", "--format", "xml"], "--format"),
        (&["--db", path, "--as", "ada@acme", "call", "create_note", "@/no/such/file"], "/no/such/file"),
        (&["--db", path, "--as", "ada@acme", "undo"], "undo"),
        (&[], "Usage"),
    ] {
        let ran = run(&mut bare(arguments));

        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{arguments:?}: no {word} in: {}", ran.stderr);
        assert!(!db.path().exists(), "{arguments:?}");
    }
}

#[test]
fn a_failure_has_exit_code_1_and_says_why_on_stderr() {
    let db = Database::new();
    let folder = db.path().parent().unwrap().to_owned();
    fs::write(folder.join("text"), "no component").unwrap();
    for component in ["text", "absent"].map(|name| folder.join(name)) {
        let ran = run(db.program(&["call", "create_note", "{}", "--component"]).arg(&component));

        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        let says = format!("error: cannot load the component {}", component.display());
        assert!(ran.stderr.starts_with(&says), "{}", ran.stderr);
    }
    assert!(!db.path().exists());
}

#[test]
fn arguments_are_read_from_stdin_or_from_a_file() {
    let db = Database::new();
    let [stdin, file] = ["stdin", "json"].map(|name| db.path().with_extension(name));
    fs::write(&stdin, r#"{"body":"from stdin"}"#).unwrap();
    fs::write(&file, r#"{"body":"from a file"}"#).unwrap();

    let from_stdin = run(db.program(&["call", "create_note", "-"]).stdin(File::open(&stdin).unwrap()));
    let from_file = run(&mut db.program(&["call", "create_note", &format!("@{}", file.display())]));

    for ran in [from_stdin, from_file] {
        assert_fresh(&ran.reply());
    }
    assert_eq!(db.sql("SELECT body FROM notes ORDER BY note_id"), "from stdin\nfrom a file");
}

#[test]
fn arguments_that_are_no_utf8_are_wrong_usage() {
    let db = Database::new();
    let bytes = b"{\"body\":\"\xff\"}";
    let file = db.path().with_extension("json");
    fs::write(&file, bytes).unwrap();

    let from_stdin = run(db.program(&["call", "create_note", "-"]).stdin(File::open(&file).unwrap()));
    let from_file = run(&mut db.program(&["call", "create_note", &format!("@{}", file.display())]));
    let given = run(db.program(&["call", "create_note"]).arg(OsStr::from_bytes(bytes)));

    for ran in [from_stdin, from_file, given] {
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
        assert!(ran.stderr.contains("UTF-8"), "{}", ran.stderr);
    }
    assert!(!db.path().exists());
}

#[test]
fn the_text_format_is_a_line_for_each_field() {
    let db = Database::new();

    let text = |json: &str| run(&mut db.program(&["call", "create_automation", json, "--format", "text"]));
    let [created, refused] = [&automation("k", 30).to_string(), "{"].map(text);

    assert_eq!((created.code, refused.code), (0, 3));
    for line in ["status: succeeded\n", "replayed: false\n", "interval_minutes: 30\n", "operation_id: "] {
        assert!(created.stdout.contains(line), "no {line} in: {}", created.stdout);
    }
    assert_eq!(created.stdout.lines().count(), 9);
    assert!(refused.stdout.contains("status: refused\n") && refused.stdout.contains("code: invalid_argument\n"));
}

#[test]
fn text_in_a_field_cannot_pass_for_another_field() {
    let db = Database::new();
    let created = db.call_in_process("create_note", &note("k", "hello\ncode: denied")).1;

    let arguments = json!({ "note_id": created["note_id"] }).to_string();
    let read = run(&mut db.program(&["call", "get_note", &arguments, "--format", "text"]));

    assert!(read.stdout.lines().all(|line| !line.starts_with("code: ")), "{}", read.stdout);
}

#[test]
fn a_key_is_made_and_printed_before_the_call_and_replays_it() {
    let db = Database::new();
    let mut program = db.program(&["call", "create_note", r#"{"body":"hello"}"#]);

    let ran = run(program.env("RUST_LOG", "host_example=debug"));
    let key = ran.made_key().expect("a key").to_owned();
    let (exit, replay) = db.call_in_process("create_note", &note(&key, "hello"));

    assert_eq!((ran.code, exit, key.len()), (0, 0, 36));
    assert!(ran.stderr.find("idempotency_key: ") < ran.stderr.find("call attempt="), "{}", ran.stderr);
    assert_replay_of(&ran.reply(), &replay);
    assert_eq!(counts(&db), ["1", "0", "1"]);
}

#[test]
fn a_key_is_added_to_the_text_as_it_stands() {
    for (arguments, code, says) in [
        (" \r\n\t{\n  \"body\" : \"hello\"\n}\n", 0, r#""replayed":false"#),
        (r#"{"body":"}{"}"#, 0, r#""replayed":false"#),
        ("{}", 3, "missing field `body`"),
        (" \n{ \n\t} \n", 3, "missing field `body`"),
        (r#"{"body":{"idempotency_key":"k"}}"#, 3, "body: invalid type: map"),
        (r#"{"body":"a","body":"a"}"#, 3, "duplicate field `body`"),
        (r#"{"body":"a","deep":{"a":[{},{"b":[]}]}}"#, 3, "unknown field `deep`"),
    ] {
        let db = Database::new();
        drop(db.shared().verify()); // makes the tables
        let ran = run(&mut db.program(&["call", "create_note", arguments]));
        assert!(ran.made_key().is_some(), "{arguments}: {}", ran.stderr);
        assert!(ran.stdout.contains(says), "{arguments}: {}", ran.stdout);
        let count = if code == 0 { "1" } else { "0" };
        assert_eq!((ran.code, counts(&db)), (code, [count, "0", count].map(str::to_owned)), "{arguments}");
    }
}

#[test]
fn no_key_is_made_where_none_is_missing_or_taken() {
    let db = Database::new();
    for (tool, arguments) in [
        ("get_note", r#"{"note_id":"01890a5d-ac96-774b-bcce-b302099a8057"}"#),
        ("find_operation", r#"{"tool":"create_note"}"#),
        ("no_such_tool", "{}"),
        ("create_note", r#"{"idempotency_key":"k","body":""}"#),
        ("create_note", r#"{"idempotency_key":null,"body":"a"}"#),
        ("create_note", "[]"),
        ("create_note", "{"),
        ("create_note", ""),
    ] {
        let ran = run(&mut db.program(&["call", tool, arguments]));

        assert_eq!((ran.code, ran.stderr.as_str()), (3, ""), "{tool} {arguments}");
        assert_eq!(ran.reply()["status"], "refused");
    }
    assert_eq!(counts(&db), ["0", "0", "0"]);
}

#[test]
fn tools_lists_all_tools_with_their_schemas_and_opens_no_database() {
    let folder = tempfile::tempdir().unwrap();

    let ran = run(bare(&["tools"]).current_dir(&folder));

    let mut names = Vec::new();
    for tool in ran.stdout.trim_end().split("\n\n") {
        let lines: Vec<_> = tool.lines().collect();
        let [name, permission, description, arguments, reply] = lines[..] else { panic!("{tool}") };
        names.push(name);
        assert!(permission.starts_with("  permission: ") && description.trim().ends_with('.'), "{tool}");
        for schema in [arguments.strip_prefix("  arguments: "), reply.strip_prefix("  reply: ")] {
            let schema: Value = serde_json::from_str(schema.expect("a schema")).unwrap();
            assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
        }
    }
    let expected = "create_note get_note create_automation set_interval get_automation \
                    start_deployment cancel_operation get_operation find_operation";
    assert_eq!((ran.code, names.join(" ").as_str()), (0, expected));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn verify_prints_ok_or_what_is_wrong() {
    const BOTH: &str = "a row of automations has no receipt\nautomation ID is at version 1 but has 0 receipts\n";
    for (sql, code, says) in [
        ("SELECT 1", 0, "ok\n"),
        ("DELETE FROM receipts WHERE tool = 'create_note'", 1, "a row of notes has no receipt\n"),
        ("UPDATE notes SET operation_id = 'x'", 1, "a row of notes has no receipt\n"),
        ("UPDATE automations SET version = 2", 1, "automation ID is at version 2 but has 1 receipts\n"),
        ("DELETE FROM receipts WHERE tool = 'create_automation'", 1, BOTH),
    ] {
        let db = Database::new();
        db.call_in_process("create_note", &note("k", "hello"));
        let automation = db.call_in_process("create_automation", &automation("k", 5)).1;
        db.sql(&format!("PRAGMA foreign_keys = OFF; {sql}"));

        let ran = run(bare(&["verify", "--db"]).arg(db.path()));

        assert_eq!(ran.stdout, says.replace("ID", automation["automation_id"].as_str().unwrap()), "{sql}");
        assert_eq!((ran.code, ran.stderr.as_str()), (code, ""), "{sql}");
    }
}

#[test]
fn help_names_the_exit_codes() {
    let ran = run(&mut bare(&["--help"]));

    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = "Exit codes: 0 succeeded; 1 failed, with nothing called unless stderr says to repeat the call with the \
        same key; 2 wrong usage, nothing was called; 3 refused, nothing was changed; 4 refused, and the same call with \
        the same key can succeed later.";
    assert!(text.contains(says), "{text}");
    assert_eq!(ran.code, 0);
}

#[test]
fn a_database_with_an_owner_is_answered_with_who_it_is_and_what_to_do() {
    let db = Database::new();
    let mut owner = db.sole();
    assert_fresh(&owner.call("create_note", &note("there", "hello")));

    for arguments in [&["call", "create_note", r#"{"idempotency_key":"k","body":"hello"}"#][..], &["verify"]] {
        let ran = run(&mut db.program(arguments));

        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        let who = format!("{} is owned by process {} (", db.path().display(), std::process::id());
        assert!(ran.stderr.contains(&who), "{}", ran.stderr);
        assert!(ran.stderr.contains("send the call to it, or stop it first"), "{}", ran.stderr);
    }

    drop(owner);
    assert_fresh(&db.call_in_process("create_note", &note("k", "hello")).1);
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

#[test]
fn logs_name_operation_and_attempt_and_never_what_was_said() {
    let db = Database::new();
    let (body, key) = ("Wombats-dig-cubes", "key-Quokka-4711");
    let first = db.call_in_process("create_note", &note(key, body)).1;
    let read = json!({ "note_id": first["note_id"] });
    let find = json!({ "tool": "create_note", "idempotency_key": key });
    let unknown = json!({ "idempotency_key": key, "body": body, body: "x" });
    let allowed: &str = &ALL.join(",");
    for (allow, tool, arguments, code) in [
        (allowed, "create_note", note("key-Quokka-4712", body), None),
        (allowed, "create_note", note(key, body), None),
        (allowed, "get_note", read, None),
        (allowed, "find_operation", find, None),
        (allowed, "create_note", note(key, "Wombats-dig-cubes-too"), Some("key_conflict")),
        (allowed, "create_note", note("key-Quokka/4711", body), Some("invalid_argument")),
        (allowed, "create_note", unknown, Some("invalid_argument")),
        (allowed, "Wombats", note(key, body), Some("invalid_argument")),
        ("read", "create_note", note(key, body), Some("denied")),
    ] {
        let mut program = bare(&["--as", "ada@acme", "--allow", allow, "call", tool, &arguments.to_string(), "--db"]);

        let ran = run(program.arg(db.path()).env("RUST_LOG", "trace"));

        let reply = ran.reply();
        assert_eq!(reply["code"].as_str(), code, "{reply}");
        let logged: Vec<_> = ran.stderr.lines().filter(|line| line.contains("attempt=")).collect();
        let [call, answer] = logged[..] else { panic!("{logged:?}") };
        let attempt = call.split("attempt=").nth(1).unwrap().split(' ').next().unwrap();
        assert_eq!((attempt.len(), answer.contains(attempt)), (36, true), "{answer}");
        assert!(answer.contains(reply["operation_id"].as_str().unwrap_or("answer")), "{answer}");
        assert!(code.is_none() || !ran.stderr.contains(first["operation_id"].as_str().unwrap()), "{answer}");
        for secret in ["Wombats", "Quokka"] {
            assert!(!ran.stderr.contains(secret), "{tool}: {secret} is in the log");
        }
    }
    assert_eq!(counts(&db), ["2", "0", "2"]);
}
