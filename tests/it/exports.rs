//! The typed functions, and what each component imports and exports.

use crate::harness::*;
use host_example::{Files, Host, Limits, Principal, State, types};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use wasmtime::Store;
use wasmtime::component::types::ComponentItem;

mod typed {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "tools",
        with: {
            "counterfoil:tools/caller": host_example::bindings::counterfoil::tools::caller,
            "counterfoil:tools/storage": host_example::bindings::counterfoil::tools::storage,
            "counterfoil:tools/types": host_example::bindings::counterfoil::tools::types,
        },
    });
}

mod deploying {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "deploying",
        with: { "counterfoil:tools/types": host_example::bindings::counterfoil::tools::types },
    });
}

/// An instance of the world `tools`, called by the principal.
fn typed(host: &Host, db: &Database, caller: Principal) -> (Store<State>, typed::Tools) {
    let mut store = host.store(move |_| Some(caller.clone()), Files::shared(&db.path()).unwrap());
    let tools = typed::ToolsPre::new(host.component().clone()).unwrap().instantiate(&mut store).unwrap();
    (store, tools)
}

fn typed_host() -> Host {
    Host::load(tools_component(), Limits::default()).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, types::Refusal>, code: types::RefusalCode) -> types::Refusal {
    let refusal = outcome.unwrap_err();
    assert_eq!((refusal.code, refusal.retryable, refusal.retry_after), (code, false, None), "{refusal:?}");
    assert!(!refusal.message.is_empty() && !refusal.next_action.is_empty(), "{refusal:?}");
    refusal
}

/// B1 to B3, B5 to B7 and B9, through the typed functions.
#[test]
fn typed_functions_give_the_same_promises() {
    let db = Database::new();
    let host = typed_host();
    let (mut store, tools) = typed(&host, &db, ada());

    let noted = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    assert!(!noted.receipt.replayed);
    assert_eq!(noted.receipt.valid_until - noted.receipt.committed_at, 2_592_000_000);
    let created = tools.call_create_automation(&mut store, "c", 10).unwrap().unwrap();
    let id = created.automation.automation_id.as_str();
    assert_eq!(
        (created.automation.interval_minutes, created.automation.version, created.receipt.replayed),
        (10, 1, false)
    );
    let edited = tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap().unwrap();
    assert_eq!(
        (edited.automation.interval_minutes, edited.automation.version, edited.receipt.replayed),
        (30, 2, false)
    );

    let mut replay = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    assert!(std::mem::replace(&mut replay.receipt.replayed, false));
    assert_eq!(replay, noted);
    let mut replay = tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap().unwrap();
    assert!(std::mem::replace(&mut replay.receipt.replayed, false));
    assert_eq!(replay, edited);

    use types::RefusalCode::*;
    let conflict = refused(tools.call_create_note(&mut store, "n", "other").unwrap(), KeyConflict);
    assert_eq!(conflict.message, "This key was used with other arguments.");
    refused(tools.call_set_interval(&mut store, "e", id, 1, 31).unwrap(), KeyConflict);
    refused(tools.call_create_automation(&mut store, "c", 11).unwrap(), KeyConflict);
    refused(tools.call_set_interval(&mut store, "new", id, 1, 30).unwrap(), VersionConflict);
    refused(tools.call_set_interval(&mut store, "new", id, 2, 4).unwrap(), InvalidArgument);
    refused(tools.call_create_note(&mut store, "a b", "x").unwrap(), InvalidArgument);
    refused(tools.call_get_note(&mut store, id).unwrap(), NotFound);
    refused(tools.call_find_operation(&mut store, "create_note", "new").unwrap(), NotFound);

    let read = tools.call_get_note(&mut store, &noted.note_id).unwrap().unwrap();
    assert_eq!((read.body.as_str(), read.created_at), ("hello", noted.receipt.committed_at));
    let read = tools.call_get_automation(&mut store, id).unwrap().unwrap();
    assert_eq!(read, edited.automation);
    let found = tools.call_find_operation(&mut store, "set_interval", "e").unwrap().unwrap();
    assert_eq!(found, tools.call_get_operation(&mut store, &edited.receipt.operation_id).unwrap().unwrap());
    assert_eq!(
        (found.tool.as_str(), found.state, found.since, found.attempts, found.resource_id.as_deref()),
        ("set_interval", types::State::Succeeded, edited.receipt.committed_at, 0, Some(id))
    );

    let (mut store, tools) = typed(&host, &db, cy());
    refused(tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap(), NotFound);
    let (mut store, tools) = typed(&host, &db, principal("ada@acme", &["read"]));
    refused(tools.call_create_note(&mut store, "n", "hello").unwrap(), Denied);
    refused(tools.call_find_operation(&mut store, "create_note", "n").unwrap(), Denied);
    db.sql("UPDATE receipts SET valid_until = 1");
    let (mut store, tools) = typed(&host, &db, ada());
    refused(tools.call_create_note(&mut store, "n", "hello").unwrap(), KeyExpired);

    assert_eq!(
        (db.count("notes"), db.count("automations"), db.count("receipts")),
        ("1".into(), "1".into(), "3".into())
    );
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B2: whichever way the first call came.
#[test]
fn typed_functions_and_the_toolbox_share_their_receipts() {
    let db = Database::new();
    let (mut store, tools) = typed(host(), &db, ada());
    let mut client = db.shared();

    let by_type = tools.call_create_note(&mut store, "k1", "hé\"llo\u{7}").unwrap().unwrap();
    let by_json = client.call("create_note", &note("k2", "hé\"llo\u{7}"));
    let replayed_json = client.call("create_note", &note("k1", "hé\"llo\u{7}"));
    let replayed_type = tools.call_create_note(&mut store, "k2", "hé\"llo\u{7}").unwrap().unwrap();

    assert!(!by_type.receipt.replayed && replayed_type.receipt.replayed);
    assert_fresh(&by_json);
    assert_eq!((&replayed_json["status"], &replayed_json["replayed"]), (&json!("succeeded"), &json!(true)));
    assert_eq!(
        (&replayed_json["operation_id"], &replayed_json["note_id"]),
        (&json!(by_type.receipt.operation_id), &json!(by_type.note_id))
    );
    assert_eq!(
        (&by_json["operation_id"], &by_json["note_id"]),
        (&json!(replayed_type.receipt.operation_id), &json!(replayed_type.note_id))
    );
    assert_refused(&client.call("create_note", &note("k1", "other")), "key_conflict");
    assert_eq!((db.count("notes"), db.count("receipts")), ("2".into(), "2".into()));
}

/// B1 to B3, B6 and B9, for effects outside the database; E3: asking twice is asking once.
#[test]
fn typed_deployments_give_the_same_promises() {
    let db = Database::new();
    let deployments = |caller: Principal| {
        let mut store = host().store(move |_| Some(caller.clone()), Files::shared(&db.path()).unwrap());
        let pre = deploying::DeployingPre::new(host().component().clone()).unwrap();
        let exports = pre.instantiate(&mut store).unwrap();
        (store, exports)
    };
    let (mut store, exports) = deployments(ada());
    let exports = exports.counterfoil_tools_deployments();
    let mut client = db.shared();

    let started = exports.call_start_deployment(&mut store, "k", "web", "r1").unwrap().unwrap();
    let id = started.receipt.operation_id.as_str();
    assert!(!started.receipt.replayed);
    let operation = &started.operation;
    assert_eq!((operation.operation_id.as_str(), operation.tool.as_str()), (id, "start_deployment"));
    assert_eq!((operation.state, operation.since), (types::State::Accepted, started.receipt.committed_at));
    assert_eq!((operation.attempts, &operation.resource_id, operation.detail.as_str()), (0, &None, ""));
    assert_eq!(operation.next_action, "Ask get_operation what has become of it.");

    use types::RefusalCode::*;
    refused(exports.call_start_deployment(&mut store, "k", "web", "r2").unwrap(), KeyConflict);
    refused(exports.call_start_deployment(&mut store, "new", "", "r2").unwrap(), InvalidArgument);
    refused(exports.call_cancel_operation(&mut store, "x").unwrap(), InvalidArgument);
    let nobodys = "01890a5d-ac96-774b-bcce-b302099a8057";
    let absent = refused(exports.call_cancel_operation(&mut store, nobodys).unwrap(), NotFound);
    for (caller, start, cancel) in [(cy(), None, NotFound), (principal("ada@acme", &["read"]), Some(Denied), Denied)] {
        let (mut store, exports) = deployments(caller);
        let exports = exports.counterfoil_tools_deployments();
        let refusal = refused(exports.call_cancel_operation(&mut store, id).unwrap(), cancel);
        assert_eq!(refusal == absent, cancel == NotFound);
        if let Some(code) = start {
            refused(exports.call_start_deployment(&mut store, "k", "web", "r1").unwrap(), code);
        }
    }

    let cancelled = exports.call_cancel_operation(&mut store, id).unwrap().unwrap();
    assert_eq!((cancelled.operation_id.as_str(), cancelled.state), (id, types::State::Cancelled));
    assert_eq!(exports.call_cancel_operation(&mut store, id).unwrap().unwrap(), cancelled);
    // As the toolbox has it.
    let (mut typed_store, tools) = typed(host(), &db, ada());
    assert_eq!(tools.call_get_operation(&mut typed_store, id).unwrap().unwrap(), cancelled);
    let found = client.call("find_operation", &json!({ "tool": "start_deployment", "idempotency_key": "k" }));
    assert_eq!((&found["state"], &found["operation_id"]), (&json!("cancelled"), &json!(id)));
    let mut replay = exports.call_start_deployment(&mut store, "k", "web", "r1").unwrap().unwrap();
    assert!(std::mem::replace(&mut replay.receipt.replayed, false));
    assert_eq!(replay, started);
    assert_eq!((db.count("operations"), db.count("receipts")), ("1".into(), "1".into()));
}

/// `Limits` are those of one call, and a host may keep an instance of any world for many calls.
#[test]
fn limits_begin_anew_with_each_typed_call() {
    let db = Database::new();
    let each = Duration::from_millis(500);
    let host = Host::load(tools_component(), Limits { computing: each, lock_wait: each, ..Limits::default() }).unwrap();
    let (mut store, tools) = typed(&host, &db, ada());
    let noted = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    let lock = NativeLock::write(&db);

    let waited = ["k1", "k2"].map(|key| {
        let start = Instant::now();
        store.data_mut().begin_call();
        let refusal = tools.call_create_note(&mut store, key, "hello").unwrap().unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), (types::RefusalCode::Busy, true));
        start.elapsed()
    });
    drop(lock);
    let idle = Instant::now();
    while idle.elapsed() < 2 * each {
        std::thread::yield_now();
    }
    store.data_mut().begin_call();
    let replay = tools.call_create_note(&mut store, "n", "hello").map(|outcome| outcome.unwrap().receipt);

    assert!(waited.iter().all(|&time| time >= each), "{waited:?}");
    assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
    let replay = replay.expect("an idle instance is not interrupted");
    assert_eq!((replay.replayed, replay.operation_id), (true, noted.receipt.operation_id));
}

/// The component's exports that are functions, and its interfaces that have functions.
fn exports(file: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let host = Host::load(file, Limits::default()).unwrap();
    let component = host.component().component();
    let (mut functions, mut interfaces) = (BTreeSet::new(), BTreeSet::new());
    for (name, export) in component.component_type().exports(component.engine()) {
        match export.ty {
            ComponentItem::ComponentFunc(_) => _ = functions.insert(name.to_owned()),
            ComponentItem::ComponentInstance(instance) => {
                let mut items = instance.exports(component.engine());
                if items.any(|(_, item)| !matches!(item.ty, ComponentItem::Type(_))) {
                    interfaces.insert(name.to_owned());
                }
            }
            ComponentItem::Type(_) => {}
            other => panic!("{name} is {other:?}"),
        }
    }
    (functions, interfaces)
}

/// Where each export is shown to a model, it is shown neither upkeep nor what only a worker calls.
#[test]
fn each_component_exports_its_world_and_no_more() {
    let functions = [
        "create-automation",
        "create-note",
        "find-operation",
        "get-automation",
        "get-note",
        "get-operation",
        "set-interval",
    ];
    let serving = ["outbox", "toolbox", "upkeep"].map(|name| format!("counterfoil:tools/{name}@0.1.0"));
    let service = ["deployments", "outbox", "toolbox", "upkeep"].map(|name| format!("counterfoil:tools/{name}@0.1.0"));
    let functions = BTreeSet::from(functions.map(str::to_owned));

    assert_eq!(exports(tools_component()), (functions.clone(), BTreeSet::new()));
    assert_eq!(exports(component()), (functions, BTreeSet::from(service)));
    assert_eq!(exports(test_component()), (BTreeSet::new(), BTreeSet::from(serving)));
}

/// No file system, no sockets, no HTTP: nothing but the host's `caller` and `storage`, and what Rust's standard library
/// brings.
#[test]
fn no_component_can_reach_files_or_a_network() {
    for file in [component(), tools_component(), test_component()] {
        let host = Host::load(file, Limits::default()).unwrap();
        let component = host.component().component();
        let kind = component.component_type();
        let imports: Vec<_> = kind.imports(component.engine()).map(|(name, _)| name).collect();

        let (own, wasi): (Vec<_>, Vec<_>) = imports.iter().partition(|name| name.starts_with("counterfoil:"));
        let allowed = ["caller", "storage", "types"].map(|name| format!("counterfoil:tools/{name}@0.1.0"));
        assert!(own.iter().all(|name| allowed.iter().any(|allowed| allowed == *name)), "{own:?}");
        assert!(own.contains(&allowed[0].as_str()) && own.contains(&allowed[1].as_str()), "{own:?}");
        for name in wasi {
            let packages = ["wasi:cli/", "wasi:io/", "wasi:clocks/", "wasi:random/"];
            assert!(packages.iter().any(|package| name.starts_with(package)), "{}: {name}", file.display());
        }
    }
}
