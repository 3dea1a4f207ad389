//! The verbs of the tests of a database: one folder, one database in it, and all that happens to it happens in processes.

use crate::harness::*;
use host_example::{Files, Host, Instance, Invocation, Limits, Principal};
use rusqlite::{Connection, OpenFlags, Params, Row};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};
use test_support::xtask;

/// Once it was compiled by one process, the others find it compiled.
fn compiled(component: PathBuf) -> PathBuf {
    let ran = Ran::of(counterfoil(&["tools", "--component"]).arg(&component));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    component
}

/// The component, built once.
pub fn component() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled(xtask(&["component"])))
}

/// The component of `tests/tools`, whose tools trap.
pub fn test_component() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled(xtask(&["component", "test"])))
}

/// The host with the component.
pub fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::load(component(), Limits::default()).unwrap())
}

/// An instance in this process, which Ada calls.
pub fn instance(host: &Host, files: Files) -> Instance {
    let permissions = ["read", "write-notes", "deploy"].map(str::to_owned).to_vec();
    let ada = Principal { workspace: "acme".to_owned(), subject: "ada".to_owned(), permissions };
    host.instance(move |_| Some(ada.clone()), files).unwrap()
}

/// A database in a folder of its own, removed at the end. Ada of acme calls its tools.
pub struct World {
    folder: Arc<TempDir>,
    name: &'static str,
}

impl World {
    pub fn new() -> World {
        World { folder: Arc::new(tempfile::tempdir().unwrap()), name: "test.db" }
    }

    /// Another database in the same folder.
    pub fn beside(&self, name: &'static str) -> World {
        World { folder: Arc::clone(&self.folder), name }
    }

    /// A file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The database.
    pub fn path(&self) -> PathBuf {
        self.file(self.name)
    }

    /// The program on this database, as Ada.
    pub fn program(&self, arguments: &[&str]) -> Command {
        self.program_with(component(), arguments)
    }

    pub fn program_with(&self, component: &Path, arguments: &[&str]) -> Command {
        let mut command = counterfoil(&[]);
        command.arg("--component").arg(component).arg("--db").arg(self.path());
        command.args(["--as", "ada@acme", "--allow", "read,write-notes,deploy,mark"]).args(arguments);
        command
    }

    /// Runs a command that ends by itself.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.program(arguments))
    }

    pub fn call(&self, tool: &str, arguments: &Value) -> Ran {
        self.run(&["call", tool, &arguments.to_string()])
    }

    /// Records a deployment and returns its operation's id.
    #[track_caller]
    pub fn deploy(&self, key: &str) -> String {
        self.deploy_revision(key, "r1")
    }

    #[track_caller]
    pub fn deploy_revision(&self, key: &str, revision: &str) -> String {
        let reply = self.call("start_deployment", &deployment(key, revision)).reply();
        assert_eq!((&reply["status"], &reply["state"]), (&json!("succeeded"), &json!("accepted")), "{reply}");
        reply["operation_id"].as_str().unwrap().to_owned()
    }

    /// Records many deployments, through the library, and returns their operations' ids.
    pub fn deploy_many(&self, count: usize) -> Vec<String> {
        self.deploy_many_as("k", count)
    }

    /// Under keys that begin so.
    pub fn deploy_many_as(&self, key: &str, count: usize) -> Vec<String> {
        deploy_many(host(), &self.path(), key, count)
    }

    /// Owns the database for the time of `meanwhile`, and records a deployment.
    pub fn deploy_as_owner(&self, key: &str, meanwhile: impl FnOnce()) -> String {
        let mut owner = instance(host(), Files::sole(&self.path(), Duration::from_secs(10)).unwrap());
        let reply = owner.call_one("start_deployment", &deployment(key, "r1").to_string()).unwrap();
        meanwhile();
        let reply: Value = serde_json::from_str(&reply.body).unwrap();
        reply["operation_id"].as_str().unwrap().to_owned()
    }

    /// What `get_operation` answers.
    #[track_caller]
    pub fn operation(&self, id: &str) -> Value {
        let reply = self.call("get_operation", &json!({ "operation_id": id })).reply();
        assert_eq!(reply["status"], "succeeded", "{reply}");
        reply
    }

    /// What `cancel_operation` answers.
    #[track_caller]
    pub fn cancel(&self, id: &str) -> Value {
        let reply = self.call("cancel_operation", &json!({ "operation_id": id })).reply();
        assert_eq!(reply["status"], "succeeded", "{reply}");
        reply
    }

    /// Waits until `get_operation` would answer this state, and returns that answer.
    #[track_caller]
    pub fn until_state(&self, id: &str, state: &str) -> Value {
        self.until_one_of(id, &[&state.replace('_', "-")])
    }

    /// Waits until nothing more is to be done about it before an hour has passed, and returns what `get_operation` answers.
    #[track_caller]
    pub fn until_settled(&self, id: &str) -> Value {
        self.until_one_of(id, &SETTLED)
    }

    #[track_caller]
    fn until_one_of(&self, id: &str, states: &[&str]) -> Value {
        until_or(
            || states.contains(&self.state(id).as_str()).then_some(()),
            || format!("{} after {:?}, and not {states:?}", self.state(id), self.attempts(id)),
        );
        self.operation(id)
    }

    /// The state as it is stored, with hyphens.
    pub fn state(&self, id: &str) -> String {
        self.text("SELECT state FROM operations WHERE operation_id = ?1", [id])
    }

    /// The steps and observations of the operation's attempts, in their order, such as `submit unclear`. The observation of
    /// one that was not settled is missing.
    pub fn attempts(&self, id: &str) -> Vec<String> {
        let sql = "SELECT rtrim(step || ' ' || coalesce(observation, '')) FROM attempts WHERE operation_id = ?1
                   ORDER BY attempt_id";
        self.rows(sql, [id], |row| row.get(0))
    }

    pub fn text(&self, sql: &str, parameters: impl Params) -> String {
        query(&self.path(), sql, parameters, |row| row.get(0)).remove(0)
    }

    pub fn number(&self, sql: &str) -> i64 {
        query(&self.path(), sql, [], |row| row.get(0)).remove(0)
    }

    pub fn rows<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Vec<T> {
        query(&self.path(), sql, parameters, read)
    }

    /// Changes the rows behind the component's back.
    pub fn edit(&self, sql: &str) {
        open(&self.path()).execute_batch(sql).unwrap();
    }

    /// A worker for the provider at `url`, with short figures unless `arguments` say otherwise.
    pub fn worker(&self, url: &str, contract: &str, arguments: &[&str]) -> Worker {
        self.worker_with(self.work(url, contract, arguments))
    }

    /// The command of such a worker.
    pub fn work(&self, url: &str, contract: &str, arguments: &[&str]) -> Command {
        let mut command = self.program(&["work", "--provider", url, "--contract", contract]);
        for (name, figure) in [("--attempt-timeout", "1s"), ("--lease", "2s"), ("--poll", "20ms")] {
            if !arguments.contains(&name) {
                command.args([name, figure]);
            }
        }
        command.args(arguments);
        command
    }

    pub fn worker_with(&self, mut command: Command) -> Worker {
        let log = NamedTempFile::new_in(self.folder.path()).unwrap();
        command.stdout(Stdio::null()).stderr(log.reopen().unwrap());
        Worker { process: Process::start(&mut command), log }
    }

    /// Works until nothing is due.
    pub fn work_once(&self, url: &str, contract: &str) -> Ran {
        Ran::of(&mut self.work(url, contract, &["--once"]))
    }

    #[track_caller]
    pub fn assert_whole(&self) {
        let ran = self.run(&["verify"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"), "{}", ran.stderr);
    }
}

/// The states after which a worker has nothing to do for now, as they are stored.
pub const SETTLED: [&str; 4] = ["succeeded", "failed", "cancelled", "outcome-unknown"];

pub struct Worker {
    pub process: Process,
    log: NamedTempFile,
}

impl Worker {
    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    #[track_caller]
    pub fn until_logged(&self, text: &str) {
        until(|| self.log().contains(text).then_some(()));
    }
}

pub fn deploy_many(host: &Host, database: &Path, key: &str, count: usize) -> Vec<String> {
    const BATCH: usize = 64;
    let mut instance = instance(host, Files::shared(database).unwrap());
    let calls: Vec<_> = (0..count)
        .map(|number| Invocation {
            tool: "start_deployment".to_owned(),
            arguments: deployment(&format!("{key}{number}"), "r1").to_string(),
        })
        .collect();
    let mut batch = |calls: &[Invocation]| {
        // Others may keep the database busy.
        until(|| {
            let replies = instance.call(calls).unwrap();
            let replies = replies.iter().map(|reply| serde_json::from_str::<Value>(&reply.body).unwrap());
            replies.map(|reply| reply["operation_id"].as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        })
    };
    calls.chunks(BATCH).flat_map(&mut batch).collect()
}

/// The arguments of `start_deployment`.
pub fn deployment(key: &str, revision: &str) -> Value {
    json!({ "idempotency_key": key, "service": "web", "revision": revision })
}

pub fn note(key: &str, body: &str) -> Value {
    json!({ "idempotency_key": key, "body": body })
}

/// What a program that has ended left.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(command: &mut Command) -> Ran {
        Ran::from(command.output().expect("the program starts"))
    }

    #[track_caller]
    pub fn reply(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code().expect("an exit code"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn open(file: &Path) -> Connection {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    connection
}

/// What native SQLite answers.
pub fn query<T>(
    file: &Path,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let connection = open(file);
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map(parameters, read).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The write lock of a database, held by native SQLite until this is dropped.
pub struct NativeLock(Connection);

impl NativeLock {
    pub fn write(file: &Path) -> NativeLock {
        NativeLock::hold(file, "BEGIN IMMEDIATE")
    }

    /// The lock that keeps readers out as well.
    pub fn exclusive(file: &Path) -> NativeLock {
        NativeLock::hold(file, "BEGIN EXCLUSIVE")
    }

    fn hold(file: &Path, sql: &str) -> NativeLock {
        let connection = open(file);
        connection.execute_batch(sql).unwrap();
        NativeLock(connection)
    }
}

impl Drop for NativeLock {
    fn drop(&mut self) {
        drop(self.0.execute_batch("ROLLBACK"));
    }
}

/// What the provider has under a client reference: the number, key and state of each row.
pub fn taken(provider: &Provider, reference: &str) -> Vec<(u32, String, String)> {
    let sql = "SELECT number, key, state FROM deployments WHERE client_reference = ?1 ORDER BY number";
    query(&provider.store(), sql, [reference], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}
