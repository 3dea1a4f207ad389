//! What the program `host-example` promises on the command line: its output, its exit codes, its keys and its logs.

use crate::harness::*;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

/// The program as Ada, with its default log and no colours.
fn program(db: &Database, arguments: &[&str]) -> Command {
    let mut program = db.program(arguments);
    program.env_remove("RUST_LOG").env("NO_COLOR", "1");
    program
}

/// The program with these arguments alone.
fn bare(arguments: &[&str]) -> Command {
    let mut program = Command::new(host_program());
    program.env_remove("RUST_LOG").env("NO_COLOR", "1").args(arguments);
    program
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn reply(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// The key that the program made and printed.
    fn made_key(&self) -> Option<&str> {
        self.stderr.lines().find_map(|line| line.strip_prefix("idempotency_key: "))
    }
}

fn run(program: &mut Command) -> Ran {
    let output = program.output().unwrap();
    Ran {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run_with_stdin(program: &mut Command, stdin: &[u8]) -> Ran {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(stdin).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    run(program.stdin(file))
}

/// The sqlite3 program (or python3's SQLite) in a transaction that holds the write lock until this is dropped.
struct WriteLock(Child);

fn hold_write_lock(db: &Database) -> WriteLock {
    const SCRIPT: &str = "import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    for row in connection.execute(line):
        print(*row, flush=True)";
    let spawn = |program: &mut Command| program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let holder = spawn(Command::new("sqlite3").arg("-bail").arg(db.path()));
    let mut holder = holder.or_else(|_| spawn(Command::new("python3").args(["-c", SCRIPT]).arg(db.path()))).unwrap();
    holder.stdin.as_mut().unwrap().write_all(b"BEGIN IMMEDIATE;\nSELECT 'held';\n").unwrap();
    let mut answer = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert_eq!(answer, "held\n");
    WriteLock(holder)
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn stdout_is_the_reply_and_one_newline() {
    let db = Database::new();

    let created = run(&mut program(&db, &["call", "create_note", &note("k", "two\nlines\n").to_string()]));
    let id = created.reply()["note_id"].as_str().unwrap().to_owned();
    let read = run(&mut program(&db, &["call", "get_note", &json!({ "note_id": id }).to_string()]));
    let refused = run(&mut program(&db, &["call", "create_note", "{"]));

    assert_fresh(&created.reply());
    assert_eq!(read.reply()["body"], "two\nlines\n");
    assert_refused(&refused.reply(), "invalid_argument");
    let replayed = db.shared().instance.call_one("create_note", &note("k", "two\nlines\n").to_string()).unwrap();
    assert_eq!(created.stdout.replace(r#""replayed":false"#, r#""replayed":true"#), replayed.body + "\n");
    for ran in [created, read, refused] {
        assert!(ran.stdout.starts_with('{') && ran.stdout.ends_with("}\n"), "{}", ran.stdout);
        assert_eq!(ran.stdout.lines().count(), 1);
        assert_eq!(ran.stderr, "");
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
    assert_refused(&denied.reply(), "denied");
    assert_eq!(denied.code, 3);
    assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
}

#[test]
fn a_call_that_waits_says_so_and_ends_retryable_with_exit_code_4() {
    let db = Database::new();
    db.call_in_process("create_note", &note("there", "hello"));
    let lock = hold_write_lock(&db);

    let ran = run(&mut program(&db, &["call", "create_note", r#"{"body":"hello"}"#]));

    assert_eq!(ran.code, 4);
    assert_refused(&ran.reply(), "busy");
    assert_eq!((&ran.reply()["retryable"], &ran.reply()["retry_after_ms"]), (&json!(true), &json!(250)));
    assert_eq!(ran.stderr.matches("waiting for another process").count(), 1, "{}", ran.stderr);
    let key = ran.made_key().expect("a key");
    assert!(ran.stderr.find(key) < ran.stderr.find("waiting for another process"), "{}", ran.stderr);
    drop(lock);
    assert_eq!(db.count("receipts"), "1");
    let (exit, reply) = db.call_in_process("create_note", &note(key, "hello"));
    assert_fresh(&reply);
    assert_eq!((exit, db.count("notes")), (0, "2".into()));
}

#[test]
fn a_call_that_waits_succeeds_once_the_other_process_has_finished() {
    let db = Database::new();
    db.call_in_process("create_note", &note("there", "hello"));
    let lock = hold_write_lock(&db);
    let mut command = program(&db, &["call", "create_note", &note("k", "hello").to_string()]);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    drop(lock);
    let (exit, reply) = finish(process);

    assert!(line.contains("waiting for another process"), "{line}");
    assert_fresh(&reply);
    assert_eq!((exit, db.count("notes"), db.count("receipts")), (0, "2".into(), "2".into()));
}

#[test]
fn wrong_usage_has_exit_code_2_and_says_what_is_missing_and_calls_nothing() {
    let db = Database::new();
    let path = db.path();
    let path = path.to_str().unwrap();
    for (arguments, word) in [
        (&["--as", "ada@acme", "call", "create_note", "{}"][..], "--db"),
        (&["--db", path, "call", "create_note", "{}"], "--as"),
        (&["verify"], "--db"),
        (&["--db", path, "--as", "ada", "call", "create_note", "{}"], "SUBJECT@WORKSPACE"),
        (&["--db", path, "--as", "@acme", "call", "create_note", "{}"], "SUBJECT@WORKSPACE"),
        (&["--db", path, "--as", "ada@", "call", "create_note", "{}"], "SUBJECT@WORKSPACE"),
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
    for (component, words) in [("text", "cannot load the component"), ("absent", "cannot load the component")] {
        let component = folder.join(component);

        let ran = run(program(&db, &["call", "create_note", "{}", "--component"]).arg(&component));

        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(words), "{}", ran.stderr);
        assert!(ran.stderr.contains(component.to_str().unwrap()), "{}", ran.stderr);
    }
    assert!(!db.path().exists());
}

#[test]
fn arguments_are_read_from_stdin_or_from_a_file() {
    let db = Database::new();
    let file = db.path().with_extension("json");
    fs::write(&file, note("file", "from a file").to_string()).unwrap();

    let from_stdin = run_with_stdin(&mut program(&db, &["call", "create_note", "-"]), br#"{"body":"from stdin"}"#);
    let from_file = run(&mut program(&db, &["call", "create_note", &format!("@{}", file.display())]));

    assert_fresh(&from_stdin.reply());
    assert_fresh(&from_file.reply());
    assert_eq!((from_stdin.code, from_file.code), (0, 0));
    assert_eq!(db.sql("SELECT body FROM notes ORDER BY created_at"), "from stdin\nfrom a file");
}

#[test]
fn arguments_that_are_no_utf8_are_wrong_usage() {
    let db = Database::new();
    let bytes = b"{\"body\":\"\xff\"}";
    let file = db.path().with_extension("json");
    fs::write(&file, bytes).unwrap();

    let from_stdin = run_with_stdin(&mut program(&db, &["call", "create_note", "-"]), bytes);
    let from_file = run(&mut program(&db, &["call", "create_note", &format!("@{}", file.display())]));
    let given = run(program(&db, &["call", "create_note"]).arg(OsStr::from_bytes(bytes)));

    for ran in [from_stdin, from_file, given] {
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
        assert!(ran.stderr.contains("UTF-8"), "{}", ran.stderr);
    }
    assert!(!db.path().exists());
}

#[test]
fn the_text_format_is_a_line_for_each_field() {
    let db = Database::new();

    let text = |json: &str| run(&mut program(&db, &["call", "create_note", json, "--format", "text"]));
    let created = text(&note("k", "hello").to_string());
    let refused = text("{");

    assert_eq!((created.code, refused.code), (0, 3));
    for line in ["status: succeeded", "replayed: false", "retryable: false"] {
        assert!(created.stdout.lines().any(|found| found == line), "no {line} in: {}", created.stdout);
    }
    let names: Vec<_> = created.stdout.lines().map(|line| line.split(": ").next().unwrap()).collect();
    for name in ["operation_id", "note_id", "committed_at", "valid_until"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(names.len(), 7);
    assert!(refused.stdout.contains("status: refused\n") && refused.stdout.contains("code: invalid_argument\n"));
}

#[test]
fn text_in_a_field_cannot_pass_for_another_field() {
    let db = Database::new();
    let created = db.call_in_process("create_note", &note("k", "hello\nstatus: refused\ncode: denied")).1;

    let arguments = json!({ "note_id": created["note_id"] }).to_string();
    let read = run(&mut program(&db, &["call", "get_note", &arguments, "--format", "text"]));

    assert_eq!(read.code, 0);
    let names: Vec<_> = read.stdout.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert!(!names.contains(&"code"), "{}", read.stdout);
}

#[test]
fn a_key_is_made_and_printed_before_the_call_and_replays_it() {
    let db = Database::new();
    let arguments = r#"{"body":"hello"}"#;

    let ran = run(program(&db, &["call", "create_note", arguments]).env("RUST_LOG", "host_example=debug"));
    let key = ran.made_key().expect("a key").to_owned();
    let (exit, replay) = db.call_in_process("create_note", &note(&key, "hello"));

    assert_eq!((ran.code, exit, key.len()), (0, 0, 36));
    assert!(ran.stderr.find("idempotency_key: ") < ran.stderr.find("call attempt="), "{}", ran.stderr);
    assert_replay_of(&ran.reply(), &replay);
    assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
}

#[test]
fn a_key_is_added_to_the_text_as_it_stands() {
    for (arguments, says) in [
        ("{}", "missing field `body`"),
        (" \n{ \n\t} \n", "missing field `body`"),
        (" \r\n\t{\n  \"body\" : \"hello\"\n}\n", ""),
        (r#"{"body":"}{"}"#, ""),
        (r#"{"body":{"idempotency_key":"k"}}"#, "body: invalid type: map"),
        (r#"{"body":"a","body":"a"}"#, "duplicate field `body`"),
        (r#"{"body":"a","deep":{"a":[{},{"b":[]}]}}"#, "unknown field `deep`"),
    ] {
        let db = Database::new();

        let ran = run(&mut program(&db, &["call", "create_note", arguments]));

        assert!(ran.made_key().is_some(), "{arguments}: {}", ran.stderr);
        if says.is_empty() {
            assert_fresh(&ran.reply());
            assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
        } else {
            assert_refused(&ran.reply(), "invalid_argument");
            assert!(ran.reply()["message"].as_str().unwrap().contains(says), "{arguments}: {}", ran.stdout);
            assert_eq!((db.count("notes"), db.count("receipts")), ("0".into(), "0".into()));
        }
    }
}

#[test]
fn no_key_is_made_where_none_is_missing_or_taken() {
    let db = Database::new();
    for (tool, arguments) in [
        ("get_note", r#"{"note_id":"01890a5d-ac96-774b-bcce-b302099a8057"}"#),
        ("get_note", "{}"),
        ("find_operation", r#"{"tool":"create_note"}"#),
        ("no_such_tool", "{}"),
        ("create_note", r#"{"idempotency_key":"k","body":""}"#),
        ("create_note", r#"{"idempotency_key":null,"body":"a"}"#),
        ("create_note", "[]"),
        ("create_note", "{"),
        ("create_note", ""),
    ] {
        let ran = run(&mut program(&db, &["call", tool, arguments]));

        assert_eq!((ran.code, ran.stderr.as_str()), (3, ""), "{tool} {arguments}");
        assert_eq!(ran.reply()["status"], "refused");
    }
    assert_eq!((db.count("notes"), db.count("receipts")), ("0".into(), "0".into()));
}

#[test]
fn tools_lists_seven_tools_with_their_schemas_and_opens_no_database() {
    let folder = tempfile::tempdir().unwrap();

    let ran = run(bare(&["tools"]).current_dir(&folder));

    assert_eq!(ran.code, 0);
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
    let expected = ["create_note", "get_note", "create_automation", "set_interval", "get_automation", "get_operation"];
    assert_eq!((&names[..6], names[6], names.len()), (&expected[..], "find_operation", 7));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn verify_prints_ok_or_what_is_wrong() {
    for (sql, code, says) in [
        ("SELECT 1", 0, "ok\n"),
        ("DELETE FROM receipts WHERE tool = 'create_note'", 1, "row 1 of notes has no receipt\n"),
        ("UPDATE notes SET operation_id = 'x'", 1, "row 1 of notes has no receipt\n"),
        ("UPDATE automations SET version = 2", 1, "automation ID is at version 2 but has 1 receipts\n"),
        (
            "DELETE FROM receipts WHERE tool = 'create_automation'",
            1,
            "row 1 of automations has no receipt\nautomation ID is at version 1 but has 0 receipts\n",
        ),
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
    for words in [
        "Exit codes: 0 succeeded;",
        "1 failed, and the call may have committed or not: repeat it with the same key;",
        "2 wrong usage, nothing was called;",
        "3 refused, nothing was changed;",
        "4 refused, and the same call with the same key can succeed later.",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(ran.code, 0);
}

#[test]
fn a_database_with_an_owner_is_answered_with_who_it_is_and_what_to_do() {
    let db = Database::new();
    let mut owner = db.sole();
    assert_fresh(&owner.call("create_note", &note("there", "hello")));

    for arguments in [&["call", "create_note", r#"{"idempotency_key":"k","body":"hello"}"#][..], &["verify"]] {
        let ran = run(&mut program(&db, arguments));

        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        for words in [
            db.path().to_str().unwrap(),
            &format!("is owned by process {} (", std::process::id()),
            "send the call to it, or stop it first",
        ] {
            assert!(ran.stderr.contains(words), "no {words} in: {}", ran.stderr);
        }
    }

    drop(owner);
    assert_fresh(&db.call_in_process("create_note", &note("k", "hello")).1);
    assert_eq!((db.count("notes"), db.count("receipts")), ("2".into(), "2".into()));
}

#[test]
fn logs_name_operation_and_attempt_and_never_what_was_said() {
    let db = Database::new();
    let (body, key) = ("Wombats-dig-cubes", "key-Quokka-4711");
    let created = db.call_in_process("create_note", &note(key, body)).1;
    let operation = created["operation_id"].as_str().unwrap();
    let read = json!({ "note_id": created["note_id"] });
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
        let path = db.path();
        let mut program = bare(&["--as", "ada@acme", "--allow", allow, "call", tool, &arguments.to_string()]);

        let ran = run(program.arg("--db").arg(path).env("RUST_LOG", "trace"));

        let reply = ran.reply();
        assert_eq!(reply["code"].as_str(), code, "{reply}");
        let logged: Vec<_> = ran.stderr.lines().filter(|line| line.contains("attempt=")).collect();
        let [call, answer] = logged[..] else { panic!("{logged:?}") };
        let attempt = call.split("attempt=").nth(1).unwrap().split(' ').next().unwrap();
        assert_eq!((attempt.len(), answer.contains(&format!("attempt={attempt}"))), (36, true), "{answer}");
        match reply["operation_id"].as_str().filter(|_| tool == "create_note") {
            Some(fresh_or_replayed) => assert!(answer.contains(fresh_or_replayed), "{answer}"),
            None => assert!(tool == "find_operation" || !ran.stderr.contains(operation), "{answer}"),
        }
        for secret in ["Wombats", "Quokka"] {
            assert!(!ran.stderr.contains(secret), "{tool}: {secret} is in the log");
        }
    }
    assert_eq!((db.count("notes"), db.count("receipts")), ("2".into(), "2".into()));
}

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
            let mut program = program(&db, &["call", "create_note", r#"{"body":"hello"}"#, "--format", format]);

            let mut process = program.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
            let mut stderr = String::new();
            process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();

            assert_eq!(process.wait().unwrap().code(), Some(1));
            assert!(stderr.lines().last().unwrap().starts_with("error: "), "{stderr}");
            let key = stderr.lines().find_map(|line| line.strip_prefix("idempotency_key: ")).expect("a key");
            let (exit, replay) = db.call_in_process("create_note", &note(key, "hello"));
            assert_eq!((exit, &replay["status"], &replay["replayed"]), (0, &json!("succeeded"), &json!(true)));
            assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
        }
    }
}

#[test]
fn a_list_or_a_verdict_that_cannot_be_written_is_a_failure() {
    let db = Database::new();
    for command in ["tools", "verify"] {
        for stdout in lost() {
            let output = program(&db, &[command]).stdout(stdout).output().unwrap();

            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{command}: {stderr}");
            assert!(stderr.starts_with("error: "), "{stderr}");
        }
    }
}
