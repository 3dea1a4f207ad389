//! Who may do what, and what a refusal leaves behind: the contract's rules B5, B6, B9 and B10, one instance at a time.

use crate::harness::*;
use host_example::{Files, Host, Limits, Principal};
use serde_json::json;
use std::time::Duration;

const NOBODYS: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// B6: of several faults in one call, the one that is checked first.
#[test]
fn refusals_come_in_the_documented_order() {
    let db = Database::new();
    let mut client = db.shared();
    let foreign = client.caller(cy()).call("create_automation", &automation("c", 10));
    let created = client.caller(ada()).call("create_automation", &automation("c", 10));
    let used = interval("used", &created, 1, 30);
    let first = client.call("set_interval", &used);
    assert_fresh(&client.call("set_interval", &interval("old", &created, 2, 40)));
    db.sql("UPDATE receipts SET valid_until = 1 WHERE idempotency_key = 'old'");
    let before = rows(&db);

    let reader = principal("ada@acme", &["read"]);
    for (caller, tool, arguments, code) in [
        (None, "no_such_tool", json!([]), "denied"),
        (None, "set_interval", used.clone(), "denied"),
        (Some(reader.clone()), "set_interval", json!({}), "denied"),
        (Some(reader), "set_interval", used.clone(), "denied"),
        (Some(ada()), "no_such_tool", json!({}), "invalid_argument"),
        (Some(ada()), "set_interval", interval("used", &foreign, 1, 4), "invalid_argument"),
        (Some(ada()), "set_interval", interval("used", &foreign, 1, 30), "not_found"),
        (Some(ada()), "set_interval", interval("old", &foreign, 1, 30), "not_found"),
        (Some(ada()), "set_interval", interval("old", &created, 1, 99), "key_expired"),
        (Some(ada()), "set_interval", interval("used", &created, 1, 99), "key_conflict"),
        (Some(ada()), "set_interval", interval("new", &created, 1, 99), "version_conflict"),
    ] {
        assert_refused(&client.caller(caller).call(tool, &arguments), code);
    }
    assert_replay_of(&first, &client.caller(ada()).call("set_interval", &used));

    assert_eq!(counts(&db), ["0", "2", "4"]);
    assert_eq!(rows(&db), before);
}

/// B6; incident 14.
#[test]
fn a_replay_is_denied_while_the_permission_is_taken_away() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let calls = [
        ("create_note", note("n", "hello"), ["read", "write-automations"]),
        ("set_interval", interval("e", &created, 1, 30), ["read", "write-notes"]),
    ];

    for (tool, call, others) in calls {
        let first = client.caller(ada()).call(tool, &call);
        assert_refused(&client.caller(principal("ada@acme", &others)).call(tool, &call), "denied");
        assert_refused(&client.caller(None::<Principal>).call(tool, &call), "denied");
        assert_replay_of(&first, &client.caller(ada()).call(tool, &call));
    }

    assert_eq!(counts(&db), ["1", "1", "3"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B9: the receipt is there, the resource is not the caller's any more.
#[test]
fn an_edit_of_a_moved_or_deleted_resource_is_refused_and_resurrects_nothing() {
    for (gone, left) in [
        ("UPDATE automations SET workspace = 'other'", ["0", "1", "2"]),
        ("PRAGMA foreign_keys = OFF; DELETE FROM automations", ["0", "0", "2"]),
    ] {
        let db = Database::new();
        let mut client = db.shared();
        let created = client.call("create_automation", &automation("c", 10));
        let edit = interval("e", &created, 1, 30);
        assert_fresh(&client.call("set_interval", &edit));
        db.sql(gone);
        let before = rows(&db);

        assert_refused(&client.call("set_interval", &edit), "not_found");
        assert_refused(&db.shared().call("set_interval", &edit), "not_found");
        assert_refused(&client.call("set_interval", &interval("new", &created, 2, 40)), "not_found");

        assert_eq!(counts(&db), left);
        assert_eq!(rows(&db), before);
    }
}

/// B9; incident 14: it names no earlier resource, so it replays as long as its permission holds.
#[test]
fn a_creation_replays_although_its_resource_was_moved_or_deleted() {
    for (gone, left) in [
        ("UPDATE notes SET workspace = 'other'; UPDATE automations SET workspace = 'other'", ["1", "1", "2"]),
        ("DELETE FROM notes; DELETE FROM automations", ["0", "0", "2"]),
    ] {
        let db = Database::new();
        let mut client = db.shared();
        let noted = client.call("create_note", &note("n", "hello"));
        let created = client.call("create_automation", &automation("c", 10));
        db.sql(gone);

        assert_replay_of(&noted, &client.call("create_note", &note("n", "hello")));
        assert_replay_of(&created, &client.call("create_automation", &automation("c", 10)));
        assert_refused(&client.call("get_note", &json!({ "note_id": noted["note_id"] })), "not_found");

        assert_eq!(counts(&db), left);
    }
}

/// B9.
#[test]
fn absent_and_foreign_ids_get_the_same_answer_byte_for_byte() {
    let db = Database::new();
    let mut client = db.shared();
    let noted = client.caller(cy()).call("create_note", &note("n", "hello"));
    let created = client.call("create_automation", &automation("c", 10));
    client.caller(ada());
    let before = rows(&db);

    for (tool, foreign, name) in [
        ("get_note", json!({ "note_id": noted["note_id"] }), "note_id"),
        ("get_automation", json!({ "automation_id": created["automation_id"] }), "automation_id"),
        ("set_interval", interval("e", &created, 1, 30), "automation_id"),
        ("set_interval", interval("e", &created, 9, 30), "automation_id"),
        ("get_operation", json!({ "operation_id": noted["operation_id"] }), "operation_id"),
        // Of another subject's key and of one that nobody used.
        ("find_operation", json!({ "tool": "create_note", "idempotency_key": "n" }), "idempotency_key"),
    ] {
        let absent = with(foreign.clone(), name, NOBODYS);
        let [foreign, absent] =
            [foreign, absent].map(|call| client.instance.call_one(tool, &call.to_string()).unwrap());
        assert_refused(&serde_json::from_str(&foreign.body).unwrap(), "not_found");
        assert_eq!(foreign.body, absent.body, "{tool}");
    }

    assert_eq!(rows(&db), before);
}

/// B10; incident 15: with the same arguments where that makes sense, and with others.
#[test]
fn a_refused_call_leaves_its_key_unused() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let reader = principal("ada@acme", &["read"]);

    for (caller, tool, refused, code, later) in [
        (reader.clone(), "create_note", note("k1", "a"), "denied", note("k1", "b")),
        (reader, "create_note", note("k2", "a"), "denied", note("k2", "a")),
        (ada(), "create_note", note("k3", ""), "invalid_argument", note("k3", "b")),
        (ada(), "create_automation", automation("k4", 4), "invalid_argument", automation("k4", 5)),
        (ada(), "set_interval", interval("k5", &created, 7, 30), "version_conflict", interval("k5", &created, 1, 40)),
        (
            ada(),
            "set_interval",
            with(interval("k6", &created, 2, 30), "automation_id", NOBODYS),
            "not_found",
            interval("k6", &created, 2, 50),
        ),
    ] {
        assert_refused(&client.caller(caller).call(tool, &refused), code);
        let first = client.caller(ada()).call(tool, &later);
        assert_replay_of(&first, &client.call(tool, &later));
    }

    assert_eq!(counts(&db), ["3", "2", "7"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY automation_id"), "50|3\n5|1");
}

/// B10, for the codes that a single call can be given. The order is tested above; here, that nothing is left.
#[test]
fn every_refusal_changes_nothing() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    client.call("create_note", &note("n", "hello"));
    client.call("create_note", &note("old", "hello"));
    db.sql("UPDATE receipts SET valid_until = 1 WHERE idempotency_key = 'old'");
    let before = rows(&db);
    let new = interval("new", &created, 1, 30);

    for (caller, tool, arguments, code) in [
        (None, "create_note", note("new", "a"), "denied"),
        (None, "create_automation", automation("new", 5), "denied"),
        (None, "set_interval", new.clone(), "denied"),
        (Some(ada()), "create_note", note("new", ""), "invalid_argument"),
        (Some(ada()), "create_automation", automation("new", 1441), "invalid_argument"),
        (Some(ada()), "set_interval", with(new.clone(), "expected_version", 0), "invalid_argument"),
        (Some(cy()), "set_interval", new.clone(), "not_found"),
        (Some(ada()), "create_note", note("old", "hello"), "key_expired"),
        (Some(ada()), "create_note", note("n", "other"), "key_conflict"),
        (Some(ada()), "create_automation", automation("c", 11), "key_conflict"),
        (Some(ada()), "set_interval", with(new.clone(), "expected_version", 2), "version_conflict"),
    ] {
        let reply = client.caller(caller).call(tool, &arguments);
        assert_refused(&reply, code);
        assert_eq!(reply["retryable"], false, "{code}");
        assert_eq!(counts(&db), ["2", "1", "3"], "{code}");
        assert_eq!(rows(&db), before, "{code}");
    }

    db.sql("PRAGMA user_version = 99");
    let reply = db.shared().call("set_interval", &new);
    assert_refused(&reply, "unavailable");
    assert_eq!(reply["retryable"], false);
    assert_eq!(counts(&db), ["2", "1", "3"]);
    assert_eq!(rows(&db), before);
}

/// B10; incident 5.
#[test]
fn a_retryable_refusal_has_changed_nothing_and_the_same_call_then_acts() {
    let db = Database::new();
    assert_fresh(&db.shared().call("create_note", &note("first", "hello")));
    let host = Host::load(component(), Limits { lock_wait: Duration::ZERO, ..Limits::default() }).unwrap();
    let mut client = Client::new(&host, Files::shared(&db.path()).unwrap());
    let lock = NativeLock::write(&db);

    let reply = client.call("create_note", &note("k", "hello"));

    assert_refused(&reply, "busy");
    assert_eq!((&reply["retryable"], &reply["retry_after_ms"]), (&json!(true), &json!(250)));
    assert_eq!(counts(&db), ["1", "0", "1"]);
    drop(lock);
    let first = client.call("create_note", &note("k", "hello"));
    assert_replay_of(&first, &client.call("create_note", &note("k", "hello")));
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

/// B5; incident 21: by id and by key alone, from another instance.
#[test]
fn an_operation_is_found_by_its_id_and_by_its_key() {
    let db = Database::new();
    let mut client = db.shared();
    let noted = client.call("create_note", &note("n", "hello"));
    let created = client.call("create_automation", &automation("c", 10));
    let edited = client.call("set_interval", &interval("e", &created, 1, 30));
    let mut client = db.shared();

    for (tool, key, first, resource) in [
        ("create_note", "n", &noted, &noted["note_id"]),
        ("create_automation", "c", &created, &created["automation_id"]),
        ("set_interval", "e", &edited, &created["automation_id"]),
    ] {
        let expected = json!({
            "status": "succeeded",
            "replayed": false,
            "retryable": false,
            "operation_id": first["operation_id"],
            "tool": tool,
            "state": "succeeded",
            "since": first["committed_at"],
            "attempts": 0,
            "resource_id": resource,
            "detail": "",
            "next_action": "Nothing is left to do. Read the resource to see its present state.",
        });
        let by_key = json!({ "tool": tool, "idempotency_key": key });
        assert_eq!(client.call("find_operation", &by_key), expected);
        assert_eq!(client.call("get_operation", &json!({ "operation_id": first["operation_id"] })), expected);
    }

    assert_eq!(counts(&db), ["1", "1", "3"]);
}

/// G4: one's own calls, with the permission of the tool that is asked about.
#[test]
fn finding_an_operation_requires_what_its_tool_requires() {
    let db = Database::new();
    let mut client = db.shared();
    let noted = client.call("create_note", &note("k", "hello"));
    let by_id = json!({ "operation_id": noted["operation_id"] });
    let by_key = |tool: &str| json!({ "tool": tool, "idempotency_key": "k" });
    let reader = principal("ada@acme", &["read", "write-automations"]);
    let writer = principal("ada@acme", &["write-notes"]);
    let before = rows(&db);

    for (caller, tool, arguments, code) in [
        (Some(reader.clone()), "find_operation", by_key("create_note"), "denied"),
        (None, "find_operation", by_key("create_note"), "denied"),
        (Some(writer.clone()), "get_operation", by_id.clone(), "denied"),
        (Some(ada()), "find_operation", by_key("no_such_tool"), "invalid_argument"),
        (Some(ada()), "find_operation", by_key("get_note"), "invalid_argument"),
        (Some(ada()), "find_operation", by_key("find_operation"), "invalid_argument"),
        (Some(ada()), "find_operation", by_key("create_automation"), "not_found"),
        (Some(bo()), "find_operation", by_key("create_note"), "not_found"),
        (Some(principal("ada@other", &ALL)), "find_operation", by_key("create_note"), "not_found"),
        (Some(cy()), "get_operation", by_id.clone(), "not_found"),
    ] {
        assert_refused(&client.caller(caller).call(tool, &arguments), code);
    }
    for (caller, tool, arguments) in [
        (writer, "find_operation", by_key("create_note")),
        (reader, "get_operation", by_id.clone()),
        (bo(), "get_operation", by_id),
    ] {
        let found = client.caller(caller).call(tool, &arguments);
        assert_eq!((&found["status"], &found["resource_id"]), (&json!("succeeded"), &noted["note_id"]), "{tool}");
    }

    assert_eq!(rows(&db), before);
}
