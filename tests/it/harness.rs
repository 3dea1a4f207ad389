//! The verbs of the tests: real components, real files, real processes.

use host_example::{Files, Host, Instance, Invocation, Limits, Principal, Storage};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use test_support::xtask;

/// The component for the world `service`.
pub fn component() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["component"]))
}

/// The component for the world `tools` alone.
pub fn tools_component() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["component", "tools"]))
}

/// The component of `tests/tools`, which has tools of its own.
pub fn test_component() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["component", "test"]))
}

/// The component with one fault: see `xtask/src/mutants.rs`.
pub fn mutant(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["mutants"])).join(name).with_extension("wasm")
}

/// The program `host-example`, and the component that it finds by itself.
pub fn host_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    component();
    BUILT.get_or_init(|| xtask(&["host"]))
}

/// The host with this project's component.
pub fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::load(component(), Limits::default()).unwrap())
}

/// Instances write in part, before its commit, what changes more than two megabytes.
pub fn with_small_cache(host: Host) -> Host {
    host.with_variable("COUNTERFOIL_CACHE", "2")
}

/// The host with the tests' own component, and limits that are soon reached.
pub fn test_host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    let limits = Limits { computing: Duration::from_secs(2), ..Limits::default() };
    HOST.get_or_init(|| with_small_cache(Host::load(test_component(), limits).unwrap()))
}

pub fn principal(who: &str, permissions: &[&str]) -> Principal {
    let (subject, workspace) = who.split_once('@').expect("SUBJECT@WORKSPACE");
    Principal {
        workspace: workspace.to_owned(),
        subject: subject.to_owned(),
        permissions: permissions.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// Everything that the tools ask for.
pub const ALL: [&str; 7] = ["read", "write-notes", "write-automations", "deploy", "dispatch", "maintain", "mark"];

pub fn ada() -> Principal {
    principal("ada@acme", &ALL)
}

pub fn bo() -> Principal {
    principal("bo@acme", &ALL)
}

/// Of another workspace than Ada's.
pub fn cy() -> Principal {
    principal("cy@other", &ALL)
}

/// A database file in a folder of its own, removed at the end.
pub struct Database {
    folder: TempDir,
}

impl Database {
    pub fn new() -> Database {
        Database { folder: TempDir::new().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    /// A new instance that shares the file with others, called by Ada.
    pub fn shared(&self) -> Client {
        Client::new(host(), Files::shared(&self.path()).unwrap())
    }

    /// A new instance that owns the file, called by Ada.
    pub fn sole(&self) -> Client {
        Client::new(host(), Files::sole(&self.path(), Duration::from_secs(2)).unwrap())
    }

    /// The program `host-example` on this database, as Ada.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut program = bare(&[]);
        program.arg("--db").arg(self.path()).args(["--as", "ada@acme", "--allow", &ALL.join(",")]).args(arguments);
        program
    }

    /// Starts a call in a process of its own.
    pub fn start(&self, tool: &str, arguments: &Value) -> Child {
        let mut program = self.program(&["call", tool, &arguments.to_string()]);
        program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A call in a process of its own: its exit code and reply.
    pub fn call_in_process(&self, tool: &str, arguments: &Value) -> (i32, Value) {
        finish(self.start(tool, arguments))
    }

    /// What the native sqlite3 program answers, its columns separated by `|`.
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap()
    }

    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        let output = self.start_sql(sql).wait_with_output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        }
    }

    /// Starts the native sqlite3 program; where it is not installed, python3's SQLite in its place.
    pub fn start_sql(&self, sql: &str) -> Child {
        let start = |program: &mut Command| {
            program.arg(self.path()).arg(sql).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/xtask/native.py");
        let sqlite3 = start(Command::new("sqlite3").arg("-bail"));
        sqlite3.or_else(|_| start(Command::new("python3").arg(script))).unwrap()
    }

    pub fn count(&self, table: &str) -> String {
        self.sql(&format!("SELECT count(*) FROM {table}"))
    }
}

/// The exit code and the reply of a process that was started with [`Database::start`].
pub fn finish(process: Child) -> (i32, Value) {
    let ran = Ran::new(process.wait_with_output().unwrap());
    (ran.code, ran.reply())
}

/// One instance, and who calls it: by default Ada.
pub struct Client {
    pub instance: Instance,
    callers: Arc<Mutex<Vec<Option<Principal>>>>,
}

impl Client {
    pub fn new(host: &Host, storage: impl Storage) -> Client {
        let callers = Arc::new(Mutex::new(vec![Some(ada())]));
        let asked = Arc::clone(&callers);
        let caller = move |call: u32| {
            let callers = asked.lock().unwrap();
            callers.get(call as usize).or(callers.last()).cloned().flatten()
        };
        Client { instance: host.instance(caller, storage).unwrap(), callers }
    }

    /// From now on all calls are this one's.
    pub fn caller(&mut self, principal: impl Into<Option<Principal>>) -> &mut Client {
        self.callers(vec![principal.into()])
    }

    /// Who makes each call of the next batches.
    pub fn callers(&mut self, principals: Vec<Option<Principal>>) -> &mut Client {
        *self.callers.lock().unwrap() = principals;
        self
    }

    /// A call and its reply, which fits the tool's output schema.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.call_text(tool, &arguments.to_string())
    }

    pub fn call_text(&mut self, tool: &str, arguments: &str) -> Value {
        let reply = self.instance.call_one(tool, arguments).unwrap();
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(reply.refused, body["status"] == "refused", "{body}");
        body
    }

    /// One commit for all; an error if the instance trapped.
    pub fn try_batch(&mut self, calls: &[(&str, Value)]) -> wasmtime::Result<Vec<Value>> {
        let calls: Vec<_> = calls
            .iter()
            .map(|(tool, arguments)| Invocation { tool: (*tool).to_owned(), arguments: arguments.to_string() })
            .collect();
        let replies = self.instance.call(&calls)?;
        Ok(replies.iter().map(|reply| serde_json::from_str(&reply.body).unwrap()).collect())
    }

    pub fn batch(&mut self, calls: &[(&str, Value)]) -> Vec<Value> {
        self.try_batch(calls).unwrap()
    }

    pub fn verify(&mut self) -> Vec<String> {
        self.instance.verify().unwrap().unwrap()
    }
}

pub fn note(key: &str, body: &str) -> Value {
    json!({ "idempotency_key": key, "body": body })
}

pub fn automation(key: &str, minutes: u32) -> Value {
    json!({ "idempotency_key": key, "interval_minutes": minutes })
}

pub fn interval(key: &str, automation: &Value, version: u32, minutes: u32) -> Value {
    json!({
        "idempotency_key": key,
        "automation_id": automation["automation_id"],
        "expected_version": version,
        "interval_minutes": minutes,
    })
}

#[track_caller]
pub fn assert_fresh(reply: &Value) {
    assert_eq!((&reply["status"], &reply["replayed"]), (&json!("succeeded"), &json!(false)), "{reply}");
}

/// The same answer as the first, apart from the mark.
#[track_caller]
pub fn assert_replay_of(first: &Value, replay: &Value) {
    assert_fresh(first);
    let mut expected = first.clone();
    expected["replayed"] = true.into();
    assert_eq!(*replay, expected);
}

#[track_caller]
pub fn assert_refused(reply: &Value, code: &str) {
    assert_eq!((&reply["status"], &reply["code"]), (&json!("refused"), &json!(code)), "{reply}");
    assert_eq!(reply["replayed"], false);
    assert!(reply["message"].is_string() && reply["next_action"].is_string(), "{reply}");
}

/// How many notes, automations and receipts there are.
pub fn counts(db: &Database) -> [String; 3] {
    ["notes", "automations", "receipts"].map(|table| db.count(table))
}

/// The native sqlite3 program (or python3's SQLite) in a transaction that lasts until this is dropped.
pub struct NativeLock(Child);

impl NativeLock {
    /// Holds the write lock.
    pub fn write(db: &Database) -> NativeLock {
        NativeLock::hold(db, b"BEGIN IMMEDIATE;\nSELECT 'held';\n")
    }

    /// Reads, so that nobody can end a commit.
    pub fn read(db: &Database) -> NativeLock {
        NativeLock::hold(db, b"BEGIN;\nSELECT 'held' FROM sqlite_schema LIMIT 1;\n")
    }

    fn hold(db: &Database, sql: &[u8]) -> NativeLock {
        use std::io::{Read, Write};
        const SCRIPT: &str = "import sqlite3, sys\n\
            connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
            for line in sys.stdin: [print(*row, flush=True) for row in connection.execute(line)]";
        let spawn = |program: &mut Command| program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let sqlite3 = spawn(Command::new("sqlite3").arg("-bail").arg(db.path()));
        let mut holder =
            sqlite3.or_else(|_| spawn(Command::new("python3").args(["-c", SCRIPT]).arg(db.path()))).unwrap();
        holder.stdin.as_mut().unwrap().write_all(sql).unwrap();
        let mut answer = [0; 5];
        holder.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"held\n");
        NativeLock(holder)
    }
}

impl Drop for NativeLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// The program `host-example` with these arguments alone, its default log and no colours.
pub fn bare(arguments: &[&str]) -> Command {
    let mut program = Command::new(host_program());
    program.env("NO_COLOR", "1").args(arguments);
    for name in ["RUST_LOG", "COUNTERFOIL_CACHE", "COUNTERFOIL_DEADLINE", "COUNTERFOIL_RETENTION"] {
        program.env_remove(name);
    }
    program
}

/// What a program that has ended left.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn new(output: Output) -> Ran {
        Ran {
            code: output.status.code().expect("an exit code"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn reply(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// The key that the program made and printed.
    pub fn made_key(&self) -> Option<&str> {
        self.stderr.lines().find_map(|line| line.strip_prefix("idempotency_key: "))
    }
}

pub fn run(program: &mut Command) -> Ran {
    Ran::new(program.output().unwrap())
}

/// Every row of every table.
pub fn rows(db: &Database) -> String {
    db.sql("SELECT * FROM notes; SELECT * FROM automations; SELECT * FROM receipts")
}

/// The arguments with one of them set.
pub fn with(mut arguments: Value, name: &str, value: impl Into<Value>) -> Value {
    arguments[name] = value.into();
    arguments
}
