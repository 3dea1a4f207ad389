//! Counterfoil as a library, in a component of somebody else's (`tests/tools`): revisions, defaults, results and faults
//! of its tools.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::{Files, Sharing};
use serde_json::{Value, json};

/// A new instance of the tests' own component, which shares the file with others.
pub fn open(db: &Database) -> Client {
    Client::new(test_host(), Files::shared(&db.path()).unwrap())
}

pub fn mark(key: &str, text: &str) -> Value {
    json!({ "idempotency_key": key, "text": text })
}

fn fail(key: &str, how: &str) -> Value {
    json!({ "idempotency_key": key, "how": how })
}

/// How many marks and receipts are left.
pub fn left(db: &Database) -> String {
    db.sql("SELECT (SELECT count(*) FROM marks), (SELECT count(*) FROM receipts)")
}

/// A4.
#[test]
fn revisions_of_a_tool_share_their_keys() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k1", "a"));
    let second = client.call("mark_v2", &mark("k2", "b"));
    assert_fresh(&first);
    assert_fresh(&second);

    for (tool, key, text, owner) in [("mark_v2", "k1", "a", "mark"), ("mark", "k2", "b", "mark_v2")] {
        for client in [&mut client, &mut open(&db)] {
            let reply = client.call(tool, &mark(key, text));
            assert_refused(&reply, "key_conflict");
            assert_eq!(reply["message"], format!("This key belongs to a call of {owner}."));
            assert_eq!(reply["next_action"], format!("Repeat the call as {owner}, or use a new key for a new action."));
        }
    }

    assert_replay_of(&first, &client.call("mark", &mark("k1", "a")));
    assert_replay_of(&second, &client.call("mark_v2", &mark("k2", "b")));
    assert_eq!(left(&db), "2|2");
    assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nB");
}

/// A4, B5: whichever revision is named, the answer says which was called.
#[test]
fn an_operation_is_found_by_the_name_of_any_revision() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k1", "a"));
    let second = client.call("mark_v2", &mark("k2", "b"));

    for name in ["mark", "mark_v2"] {
        for (key, called, reply) in [("k1", "mark", &first), ("k2", "mark_v2", &second)] {
            let found = client.call("find_operation", &json!({ "tool": name, "idempotency_key": key }));
            assert_eq!((&found["tool"], &found["state"]), (&json!(called), &json!("succeeded")), "{found}");
            assert_eq!(found["operation_id"], reply["operation_id"]);
            assert_eq!(found["resource_id"], Value::Null);
        }
    }

    assert_eq!(left(&db), "2|2");
}

/// B11; incident 11.
#[test]
fn a_default_left_out_and_the_same_default_spelled_are_the_same_request() {
    let db = Database::new();
    let mut client = open(&db);
    let spelled = |key: &str, more: &str| format!(r#"{{"idempotency_key":"{key}","text":"a"{more}}}"#);
    let forms = ["", r#","weight":1"#, r#","dry_run":false"#, r#","dry_run":false,"weight":1.0"#];

    // Whichever form came first.
    for (number, form) in forms.iter().enumerate() {
        let key = format!("k{number}");
        let first = client.call_text("mark", &spelled(&key, form));
        for other in forms {
            assert_replay_of(&first, &client.call_text("mark", &spelled(&key, other)));
        }
        assert_refused(&client.call_text("mark", &spelled(&key, r#","weight":2"#)), "key_conflict");
    }

    assert_eq!(left(&db), "4|4");
    assert_eq!(db.sql("SELECT DISTINCT text, weight FROM marks"), "a|1");
}

/// B11: a receipt from before the tool had its optional arguments.
#[test]
fn a_receipt_older_than_an_optional_argument_is_the_same_request_with_its_default() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k", "a"));
    db.sql(r#"UPDATE receipts SET arguments = '{"idempotency_key":"k","text":"a"}'"#);

    for (more, code) in
        [(json!({}), None), (json!({ "weight": 1 }), None), (json!({ "weight": 2 }), Some("key_conflict"))]
    {
        let mut call = mark("k", "a");
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = client.call("mark", &call);
        match code {
            None => assert_replay_of(&first, &reply),
            Some(code) => assert_refused(&reply, code),
        }
    }

    assert_eq!(left(&db), "1|1");
}

/// B11; incident 12.
#[test]
fn a_dry_run_and_a_live_call_under_one_key_conflict() {
    let db = Database::new();
    let mut client = open(&db);
    let call = |key: &str, dry: bool| json!({ "idempotency_key": key, "text": "a", "dry_run": dry });
    let dry = client.call("mark", &call("dry", true));
    let live = client.call("mark", &call("live", false));
    assert_eq!((&dry["dry_run"], &live["dry_run"]), (&json!(true), &json!(false)));

    assert_refused(&client.call("mark", &call("dry", false)), "key_conflict");
    assert_refused(&client.call("mark", &mark("dry", "a")), "key_conflict");
    assert_refused(&client.call("mark", &call("live", true)), "key_conflict");

    assert_replay_of(&dry, &client.call("mark", &call("dry", true)));
    assert_replay_of(&live, &client.call("mark", &call("live", false)));
    assert_eq!(left(&db), "1|2");
}

/// C1; incident 19. 27 bytes of the result stand around the text: `{"dry_run":false,"text":""}`.
#[test]
fn a_result_too_large_to_keep_is_refused_with_its_effect_and_the_key_stays_unused() {
    let db = Database::new();
    let mut client = open(&db);
    let grow = |bytes: u32| json!({ "idempotency_key": "k", "bytes": bytes });

    for bytes in [65_536 - 27 + 1, 1_000_000] {
        let reply = client.call("grow", &grow(bytes));
        assert_refused(&reply, "invalid_argument");
        assert_eq!(reply["retryable"], false);
        assert_eq!(left(&db), "0|0");
    }

    let first = client.call("grow", &grow(65_536 - 27));
    assert_replay_of(&first, &client.call("grow", &grow(65_536 - 27)));
    assert_eq!(left(&db), "1|1");
    assert_eq!(db.sql("SELECT length(result) FROM receipts"), "65536");
    assert_eq!(client.verify(), [""; 0]);
}

/// C1; incident 18: whatever ends an instance inside a call, and its key works at once on the next one.
#[test]
fn an_instance_that_is_ended_leaves_neither_effect_nor_lock_nor_used_key() {
    for (how, why) in [("trap", "unreachable"), ("spin", "interrupt"), ("hoard", "unreachable")] {
        let db = Database::new();
        let before = open(&db).call("mark", &mark("before", "a"));
        let mut client = open(&db);
        assert!(!client.instance.is_spent());

        let error = client.instance.call_one("fail", &fail("k", how).to_string()).map(|reply| reply.body).unwrap_err();

        assert!(format!("{error:?}").contains(why), "{how}: {error:?}");
        assert!(client.instance.is_spent(), "{how}");
        assert!(client.instance.call_one("mark", &mark("k", "b").to_string()).is_err(), "{how}");
        assert_eq!(left(&db), "1|1", "{how}");
        // The spent instance is still there, and what it locked stops no reading.
        let mut next = open(&db);
        let missing = json!({ "tool": "fail", "idempotency_key": "k" });
        assert_refused(&next.call("find_operation", &missing), "not_found");
        assert_replay_of(&before, &next.call("mark", &mark("before", "a")));
        drop(client);
        let error = next.instance.call_one("fail", &fail("k", how).to_string()).map(|reply| reply.body).unwrap_err();
        assert!(format!("{error:?}").contains(why), "{how}: {error:?}");
        drop(next);
        let mut last = open(&db);
        assert_fresh(&last.call("mark", &mark("k", "b")));
        assert_eq!(left(&db), "2|2", "{how}");
        assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nb");
        assert_eq!(last.verify(), [""; 0]);
    }
}

/// C1.
#[test]
fn an_effect_without_its_receipt_cannot_commit() {
    let db = Database::new();
    let mut client = open(&db);

    let reply = client.call("fail", &fail("k", "orphan"));

    assert_eq!(reply["status"], "refused", "{reply}");
    assert_eq!(reply["code"], "unavailable", "{reply}");
    assert_eq!(reply["retryable"], false);
    assert_eq!(left(&db), "0|0");
    assert!(!client.instance.is_spent());
    assert_fresh(&client.call("mark", &mark("k", "a")));
    assert_eq!(left(&db), "1|1");
    assert_eq!(client.verify(), [""; 0]);
}

/// C1: a refusal after the effect undoes its own call; a commit that fails and a trap undo the whole batch.
#[test]
fn a_call_refused_after_its_effect_is_undone_alone_and_a_lost_batch_altogether() {
    let db = Database::new();
    let mut client = open(&db);
    let grow = |key: &str| json!({ "idempotency_key": key, "bytes": 1_000_000 });

    let replies = client.batch(&[("mark", mark("k1", "a")), ("grow", grow("k1")), ("mark", mark("k2", "b"))]);
    assert_fresh(&replies[0]);
    assert_refused(&replies[1], "invalid_argument");
    assert_fresh(&replies[2]);
    assert_eq!(left(&db), "2|2");
    assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nb");

    let replies = client.batch(&[("mark", mark("k3", "c")), ("fail", fail("k3", "orphan")), ("mark", mark("k1", "a"))]);
    for reply in &replies {
        assert_refused(reply, "unavailable");
    }
    assert_eq!(left(&db), "2|2");

    assert!(client.try_batch(&[("mark", mark("k3", "c")), ("fail", fail("k3", "trap"))]).is_err());
    assert!(client.instance.is_spent());
    assert_eq!(left(&db), "2|2");
    client = open(&db);
    assert_fresh(&client.call("mark", &mark("k3", "c")));
    assert_eq!(client.call("mark", &mark("k1", "a"))["replayed"], true);
    assert_eq!(left(&db), "3|3");
}

fn failing(key: &str, how: &str) -> (&'static str, Value) {
    ("fail", json!({ "idempotency_key": key, "how": how }))
}

fn marked(key: &str) -> (&'static str, Value) {
    ("mark", mark(key, key))
}

/// C3: what it did next would have committed alone.
#[test]
fn a_tool_that_goes_on_after_its_transaction_is_gone_traps_and_leaves_nothing() {
    for sharing in [Sharing::Sole, Sharing::Shared, Sharing::SoleAtomic] {
        let disk = Disk::new(sharing);
        let mut client = Client::new(test_host(), disk.storage());
        assert_fresh(&client.batch(&[marked("old")])[0]);
        disk.fault(Fault::Full(disk.used() + 40_000));
        assert!(client.try_batch(&[marked("key-1"), failing("bad", "go_on"), marked("key-2")]).is_err());
        disk.fault(Fault::None);
        drop(client);
        let mut client = Client::new(test_host(), disk.storage());
        let found = json!({ "tool": "fail", "idempotency_key": "bad" });
        assert_refused(&client.call("find_operation", &found), "not_found");
        for key in ["key-1", "key-2"] {
            assert_fresh(&client.batch(&[marked(key)])[0]);
        }
        assert_eq!(client.verify(), Vec::<String>::new());
    }
}

#[test]
fn a_tool_that_rolls_back_takes_its_batch_with_it_and_nothing_more() {
    let db = Database::new();
    let mut client = Client::new(test_host(), Files::shared(&db.path()).unwrap());
    for reply in client.batch(&[marked("key-1"), failing("bad", "roll_back"), marked("key-2")]) {
        assert_refused(&reply, "unavailable");
        assert_eq!(reply["retryable"], true);
    }
    assert_eq!((db.count("marks"), db.count("receipts")), ("0".to_owned(), "0".to_owned()));
    assert_refused(&client.batch(&[failing("bad", "roll_back")])[0], "unavailable");
    assert_fresh(&client.batch(&[marked("key-1")])[0]);
    assert_eq!((db.count("marks"), db.count("receipts")), ("1".to_owned(), "1".to_owned()));
}
