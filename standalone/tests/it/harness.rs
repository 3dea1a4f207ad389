//! The verbs of the tests.

use crate::disk::Disk;
use crate::host::{Counted, Plan, State, World, engine, linker};
use host_example::Invocation;
use host_example::bindings::{Serving, ServingPre};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use test_support::xtask;
use wasmtime::Store;
use wasmtime::component::Component;

/// The component that everybody is given: the tools alone, for any host.
pub fn standalone() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["component", "--standalone"]))
}

/// The component for hosts that bring files and locks of their own.
pub fn service() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| xtask(&["component"]))
}

/// The same adapter under all of the component's exports, so that a test can make batches and verify.
fn serving() -> &'static ServingPre<State> {
    static SERVING: OnceLock<ServingPre<State>> = OnceLock::new();
    SERVING.get_or_init(|| {
        let adapter = standalone().with_file_name("counterfoil-adapter.wasm");
        let folder = tempfile::tempdir().unwrap();
        let plugged = folder.path().join("serving.wasm");
        let mut plug = Command::new(env!("CARGO_BIN_EXE_counterfoil-plug"));
        plug.arg(service()).arg(adapter).arg("--output").arg(&plugged).args(["--wit", "../wit"]);
        assert!(plug.status().unwrap().success());
        let component = Component::from_file(&engine(), &plugged).unwrap();
        ServingPre::new(linker(&component).instantiate_pre(&component).unwrap()).unwrap()
    })
}

pub const ADA: [(&str, &str); 4] = [
    ("COUNTERFOIL_SUBJECT", "ada"),
    ("COUNTERFOIL_WORKSPACE", "acme"),
    ("COUNTERFOIL_PERMISSIONS", "read,write-notes,write-automations,maintain"),
    // More than two megabytes of changes are written in part before their commit.
    ("COUNTERFOIL_CACHE", "2"),
];

/// A fresh instance, called by Ada.
pub struct Client {
    pub store: Store<State>,
    exports: Serving,
}

impl Client {
    pub fn new(world: &World) -> Client {
        Client::with(world, Counted::Changes, Plan::None)
    }

    pub fn with(world: &World, counted: Counted, plan: Plan) -> Client {
        let mut store = Store::new(serving().engine(), State::new(world, &ADA, counted, plan));
        let exports = serving().instantiate(&mut store).unwrap();
        Client { store, exports }
    }

    /// An error is a trap: the process was killed.
    pub fn batch(&mut self, calls: &[(&str, Value)]) -> wasmtime::Result<Vec<Value>> {
        let invocation = |(tool, arguments): &(&str, Value)| Invocation {
            tool: (*tool).to_owned(),
            arguments: arguments.to_string(),
        };
        let calls: Vec<_> = calls.iter().map(invocation).collect();
        let replies = self.exports.counterfoil_tools_toolbox().call_call(&mut self.store, &calls)?;
        Ok(replies.iter().map(|reply| serde_json::from_str(&reply.body).unwrap()).collect())
    }

    pub fn try_call(&mut self, tool: &str, arguments: Value) -> wasmtime::Result<Value> {
        Ok(self.batch(&[(tool, arguments)])?.remove(0))
    }

    #[track_caller]
    pub fn note(&mut self, key: &str, body: &str) -> Value {
        self.try_call("create_note", note(key, body)).unwrap()
    }

    pub fn verify(&mut self) -> Vec<String> {
        let wrong = self.exports.counterfoil_tools_upkeep().call_verify(&mut self.store).unwrap();
        wrong.unwrap_or_else(|refusal| vec![refusal.message])
    }
}

pub fn note(key: &str, body: &str) -> Value {
    json!({ "idempotency_key": key, "body": body })
}

/// A database with one note, made by an instance that is gone.
pub fn old_world() -> World {
    let world = World::new(Disk::new());
    assert_fresh(&Client::new(&world).note("key-0", "old"));
    world
}

/// The same disk as it is now, for another history.
pub fn copy(world: &World) -> World {
    World::new(world.disk().clone())
}

#[track_caller]
pub fn assert_nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} are wrong, among them: {:#?}", wrong.len(), &wrong[..3.min(wrong.len())]);
}

#[track_caller]
pub fn assert_fresh(answer: &Value) {
    assert_eq!((&answer["status"], &answer["replayed"]), (&json!("succeeded"), &json!(false)), "{answer}");
}
