//! What a caller may rely on: rules B1 to B3, B7, B8 and B11 of CONTRACT.md, one instance at a time. Batches (B12),
//! simultaneous calls (B4), limits, crashes and logs are tested elsewhere. Incidents are numbered as they are there.

use crate::harness::*;
use serde_json::{Value, json};

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
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY automation_id"), "30|2\n10|1");
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
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY automation_id"), "60|3\n45|2");
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
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations ORDER BY automation_id"), "40|3\n20|1");
    assert_eq!(db.sql("SELECT count(DISTINCT operation_id) FROM receipts"), "7");
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
