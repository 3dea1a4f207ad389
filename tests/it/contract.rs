//! What a caller may rely on: the contract's rules B1 to B11, one instance at a time. Batches (B12), simultaneous calls
//! (B4), limits, crashes and logs are tested elsewhere; "incident 8" and the like are in the list of incidents.

use crate::harness::*;
use host_example::{Files, Host, Limits, Principal};
use serde_json::{Value, json};
use std::time::Duration;

const NOBODYS: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// B1, in either sharing mode.
#[test]
fn a_new_key_acts_once_and_keeps_the_result() {
    for open in [Database::shared, Database::sole] {
        let db = Database::new();
        let mut client = open(&db);

        let reply = client.call("create_note", &note("k", "hello"));

        assert_fresh(&reply);
        drop(client);
        assert_eq!(counts(&db), ["1", "0", "1"]);
        assert_eq!(db.sql("SELECT workspace, body FROM notes"), "acme|hello");
        assert_eq!(
            db.sql("SELECT workspace, subject, tool, idempotency_key, revision, arguments, result FROM receipts"),
            format!(
                r#"acme|ada|create_note|k|create_note|{{"idempotency_key":"k","body":"hello"}}|{{"note_id":{}}}"#,
                reply["note_id"]
            )
        );
        assert_eq!(db.sql("SELECT n.operation_id = r.operation_id FROM notes n, receipts r"), "1");
    }
}

/// B2; incidents 1 and 8.
#[test]
fn same_key_and_arguments_replay_the_first_result() {
    for open in [Database::shared, Database::sole] {
        let db = Database::new();
        let mut client = open(&db);
        let created = client.call("create_automation", &automation("c", 10));
        let edit = interval("e", &created, 1, 30);
        let edited = client.call("set_interval", &edit);
        let noted = client.call("create_note", &note("n", "hello"));

        for (tool, arguments, first) in [
            ("create_note", note("n", "hello"), &noted),
            ("create_automation", automation("c", 10), &created),
            ("set_interval", edit.clone(), &edited),
            ("set_interval", edit, &edited),
        ] {
            assert_replay_of(first, &client.call(tool, &arguments));
        }

        drop(client);
        assert_eq!(counts(&db), ["1", "1", "3"]);
        assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
    }
}

/// Incident 2: the same call under two transport requests, on two instances that both are open. B2: the answer is the
/// same to the byte, apart from the mark.
#[test]
fn a_call_dispatched_twice_is_one_fresh_answer_and_one_replay() {
    let db = Database::new();
    let (mut one, mut other) = (db.shared(), db.shared());
    let call = note("k", "hello").to_string();

    let first = one.instance.call_one("create_note", &call).unwrap().body;
    let second = other.instance.call_one("create_note", &call).unwrap().body;

    assert_fresh(&serde_json::from_str(&first).unwrap());
    assert_eq!(second, first.replace(r#""replayed":false"#, r#""replayed":true"#));
    assert_eq!(counts(&db), ["1", "0", "1"]);
}

/// A2: keys name intent, not content.
#[test]
fn equal_notes_under_two_keys_are_two_notes() {
    let db = Database::new();
    let mut client = db.shared();

    let first = client.call("create_note", &note("k1", "hello"));
    let second = client.call("create_note", &note("k2", "hello"));

    assert_fresh(&first);
    assert_fresh(&second);
    assert_ne!(first["note_id"], second["note_id"]);
    assert_ne!(first["operation_id"], second["operation_id"]);
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

/// Incidents 1 and 22.
#[test]
fn a_lost_answer_is_replayed_by_a_new_instance_and_a_new_process() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let edit = interval("e", &created, 1, 30);
    let edited = client.call("set_interval", &edit);
    let noted = client.call("create_note", &note("n", "hello"));
    drop(client);

    for (tool, arguments, first) in [
        ("create_note", note("n", "hello"), &noted),
        ("create_automation", automation("c", 10), &created),
        ("set_interval", edit, &edited),
    ] {
        assert_replay_of(first, &db.shared().call(tool, &arguments));
        let (exit, reply) = db.call_in_process(tool, &arguments);
        assert_eq!(exit, 0);
        assert_replay_of(first, &reply);
    }

    assert_eq!(counts(&db), ["1", "1", "3"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B3; incident 9: on the instance that acted, on a new one and in a new process.
#[test]
fn any_one_argument_changed_under_a_used_key_conflicts_and_writes_nothing() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let other = client.call("create_automation", &automation("o", 10));
    let edit = interval("e", &created, 1, 30);
    assert_fresh(&client.call("set_interval", &edit));
    assert_fresh(&client.call("create_note", &note("n", "hello")));
    let before = rows(&db);

    for (tool, arguments) in [
        ("create_note", note("n", "hello ")),
        ("create_automation", automation("c", 11)),
        ("set_interval", with(edit.clone(), "automation_id", other["automation_id"].clone())),
        ("set_interval", with(edit.clone(), "expected_version", 2)),
        ("set_interval", with(edit.clone(), "interval_minutes", 31)),
    ] {
        for client in [&mut client, &mut db.shared()] {
            assert_refused(&client.call(tool, &arguments), "key_conflict");
        }
        let (exit, reply) = db.call_in_process(tool, &arguments);
        assert_eq!(exit, 3);
        assert_refused(&reply, "key_conflict");
    }

    assert_eq!(counts(&db), ["1", "2", "4"]);
    assert_eq!(rows(&db), before);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY rowid"), "30|2\n10|1");
}

/// Incident 10.
#[test]
fn a_conflict_tells_nothing_about_the_first_request() {
    let bodies = ["the salary of Eve is 100", "x"].map(|first| {
        let db = Database::new();
        let mut client = db.shared();
        let created = client.call("create_note", &note("n", first));
        let conflict = client.instance.call_one("create_note", &note("n", "second").to_string()).unwrap().body;
        for secret in ["operation_id", "note_id", "committed_at", "valid_until"] {
            assert!(!conflict.contains(secret) && !conflict.contains(created[secret].as_str().unwrap()), "{conflict}");
        }
        assert_eq!(counts(&db), ["1", "0", "1"]);
        conflict
    });

    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(
        bodies[0],
        "{\"status\":\"refused\",\"replayed\":false,\"code\":\"key_conflict\",\
         \"message\":\"This key was used with other arguments.\",\"retryable\":false,\"next_action\":\
         \"Repeat the first call with its own arguments, or use a new key for a new action.\"}"
    );
}

/// B8.
#[test]
fn a_replay_does_not_undo_a_newer_edit() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let first = client.call("set_interval", &interval("e1", &created, 1, 30));
    assert_fresh(&client.call("set_interval", &interval("e2", &created, 2, 60)));

    let replay = client.call("set_interval", &interval("e1", &created, 1, 30));

    assert_replay_of(&first, &replay);
    assert_eq!((&replay["interval_minutes"], &replay["version"]), (&json!(30), &json!(2)));
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "60|3");
    let now = client.call("get_automation", &json!({ "automation_id": created["automation_id"] }));
    assert_eq!((&now["interval_minutes"], &now["version"], &now["replayed"]), (&json!(60), &json!(3), &json!(false)));
    assert_eq!(counts(&db), ["0", "1", "3"]);
}

/// B7.
#[test]
fn a_new_key_does_not_bypass_an_old_version() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    assert_fresh(&client.call("set_interval", &interval("e1", &created, 1, 30)));

    for (key, version) in [("e2", 1), ("e3", 3), ("e4", 4_294_967_294_u32)] {
        let reply = client.call("set_interval", &interval(key, &created, version, 60));
        assert_refused(&reply, "version_conflict");
        assert_eq!(reply["retryable"], false);
    }

    assert_eq!(counts(&db), ["0", "1", "2"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B6 and B7, the control: with a version alone an edit's own retry looks like a foreign edit, with its key it replays.
#[test]
fn a_version_alone_cannot_recognise_its_own_retry_and_the_key_can() {
    let db = Database::new();
    let mut client = db.shared();
    let [own, foreign] = ["c1", "c2"].map(|key| client.call("create_automation", &automation(key, 10)));

    // Plain SQL: it is the second caller's first attempt that the first one's retry cannot be told from.
    let update = |row: &Value, minutes: u32| {
        let id = row["automation_id"].as_str().unwrap();
        db.sql(&format!(
            "UPDATE automations SET interval_minutes = {minutes}, version = 2
             WHERE automation_id = '{id}' AND version = 1; SELECT changes()"
        ))
    };
    assert_eq!((update(&own, 30), update(&own, 30)), ("1".to_owned(), "0".to_owned()));
    assert_eq!((update(&foreign, 45), update(&foreign, 30)), ("1".to_owned(), "0".to_owned()));

    // The tool, with the version alone and then with the key.
    let edit = interval("e", &own, 2, 60);
    let first = client.call("set_interval", &edit);
    assert_fresh(&first);
    assert_refused(&client.call("set_interval", &with(edit.clone(), "idempotency_key", "new")), "version_conflict");
    assert_replay_of(&first, &client.call("set_interval", &edit));
    assert_eq!(counts(&db), ["0", "2", "3"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY rowid"), "60|3\n45|2");
}

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

/// A3; incident 20.
#[test]
fn a_key_is_private_to_workspace_subject_and_tool() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let uses = [
        (ada(), "create_note", note("k", "ada's")),
        (bo(), "create_note", note("k", "bo's")),
        (principal("ada@other", &ALL), "create_note", note("k", "the other Ada's")),
        (ada(), "create_automation", automation("k", 20)),
        (ada(), "set_interval", interval("k", &created, 1, 30)),
        (bo(), "set_interval", interval("k", &created, 2, 40)),
    ];

    let firsts: Vec<_> = uses.iter().map(|(who, tool, call)| client.caller(who.clone()).call(tool, call)).collect();

    for ((who, tool, call), first) in uses.iter().zip(&firsts) {
        assert_replay_of(first, &client.caller(who.clone()).call(tool, call));
    }
    assert_eq!(counts(&db), ["3", "2", "7"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY rowid"), "40|3\n20|1");
    assert_eq!(db.sql("SELECT count(DISTINCT operation_id) FROM receipts"), "7");
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
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY rowid"), "50|3\n5|1");
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
    let lock = WriteLock::hold(&db);

    let reply = client.call("create_note", &note("k", "hello"));

    assert_refused(&reply, "busy");
    assert_eq!((&reply["retryable"], &reply["retry_after_ms"]), (&json!(true), &json!(250)));
    assert_eq!(counts(&db), ["1", "0", "1"]);
    drop(lock);
    let first = client.call("create_note", &note("k", "hello"));
    assert_replay_of(&first, &client.call("create_note", &note("k", "hello")));
    assert_eq!(counts(&db), ["2", "0", "2"]);
}

/// B11: compared after validation, whatever the JSON looked like.
#[test]
fn spellings_of_the_same_arguments_are_the_same_request() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 30));
    let id = created["automation_id"].as_str().unwrap();
    let edited = client.call("set_interval", &interval("e", &created, 1, 30));
    let noted = client.call("create_note", &note("n", "hé/llo"));

    for number in ["30", "30.0", "3e1", "3.0E+1", "300e-1", "0.3e2"] {
        let call = format!(r#"{{"idempotency_key":"c","interval_minutes":{number}}}"#);
        assert_replay_of(&created, &client.call_text("create_automation", &call));
        let call = format!(
            r#"{{"idempotency_key":"e","automation_id":"{id}","expected_version":1.0,"interval_minutes":{number}}}"#
        );
        assert_replay_of(&edited, &client.call_text("set_interval", &call));
    }
    for id in [id.to_uppercase(), id.replace('-', ""), format!("{{{id}}}"), format!("urn:uuid:{id}")] {
        let call = with(interval("e", &created, 1, 30), "automation_id", id);
        assert_replay_of(&edited, &client.call("set_interval", &call));
    }
    for call in [
        r#" { "body" : "hé/llo" , "idempotency_key" : "n" } "#,
        r#"{"idempotency_key":"\u006e","body":"h\u00e9\/llo"}"#,
        r#"{"\u0062ody":"h\u00E9/llo","idempotency_key":"n"}"#,
    ] {
        assert_replay_of(&noted, &client.call_text("create_note", call));
    }

    assert_eq!(counts(&db), ["1", "1", "3"]);
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B11: text is compared as it is.
#[test]
fn text_that_only_looks_the_same_is_another_request() {
    let db = Database::new();
    let mut client = db.shared();
    let first = client.call("create_note", &note("k", "caf\u{e9}"));

    for other in ["cafe\u{301}", "Caf\u{e9}", "caf\u{e9} ", "caf\u{e9}\n", "\u{feff}caf\u{e9}", "caf\u{e9}\u{200b}"] {
        assert_refused(&client.call("create_note", &note("k", other)), "key_conflict");
    }

    assert_replay_of(&first, &client.call("create_note", &note("k", "caf\u{e9}")));
    assert_eq!(counts(&db), ["1", "0", "1"]);
    assert_eq!(db.sql("SELECT hex(body) FROM notes"), "636166C3A9");
}

/// G1: 30 days. The clock is the receipts' here: they are moved instead of it, past their end and back.
#[test]
fn an_expired_key_is_refused_and_replays_again_if_the_clock_goes_back() {
    let db = Database::new();
    let mut client = db.shared();
    let created = client.call("create_automation", &automation("c", 10));
    let edit = interval("e", &created, 1, 30);
    let edited = client.call("set_interval", &edit);
    assert_eq!(db.sql("SELECT DISTINCT valid_until - committed_at FROM receipts"), "2592000000");
    db.sql("UPDATE receipts SET valid_until = valid_until - 2592000001");
    let before = rows(&db);

    for (tool, call) in [
        ("create_automation", automation("c", 10)),
        ("create_automation", automation("c", 11)),
        ("set_interval", edit.clone()),
        ("set_interval", interval("e", &created, 2, 40)),
    ] {
        let reply = client.call(tool, &call);
        assert_refused(&reply, "key_expired");
        assert_eq!(reply["retryable"], false);
    }

    assert_eq!(counts(&db), ["0", "1", "2"]);
    assert_eq!(rows(&db), before);
    db.sql("UPDATE receipts SET valid_until = valid_until + 2592000001");
    assert_replay_of(&created, &client.call("create_automation", &automation("c", 10)));
    assert_replay_of(&edited, &client.call("set_interval", &edit));
    assert_eq!(counts(&db), ["0", "1", "2"]);
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
