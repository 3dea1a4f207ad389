//! Many calls in one commit: each is answered for itself, and none says more than the commit did.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::Sharing::{Shared, Sole, SoleAtomic};
use host_example::{Error, Files, Host, Limits, Part};
use serde_json::{Value, json};

fn create(key: &str, body: &str) -> (&'static str, Value) {
    ("create_note", note(key, body))
}

#[test]
fn one_refused_call_undoes_itself_alone() {
    let db = Database::new();
    let mut client = db.shared();
    let automation = client.call("create_automation", &automation("auto", 60));
    let replies = client.batch(&[
        create("key-1", "first"),
        ("set_interval", interval("edit-1", &automation, 7, 30)),
        ("create_note", json!({ "idempotency_key": "key-2", "body": "" })),
        create("key-3", "third"),
        ("set_interval", interval("edit-2", &automation, 1, 15)),
    ]);
    assert_fresh(&replies[0]);
    assert_refused(&replies[1], "version_conflict");
    assert_refused(&replies[2], "invalid_argument");
    assert_fresh(&replies[3]);
    assert_fresh(&replies[4]);
    assert_eq!(db.sql("SELECT body FROM notes ORDER BY body"), "first\nthird");
    assert_eq!(db.sql("SELECT version, interval_minutes FROM automations"), "2|15");
    assert_eq!(db.sql("SELECT idempotency_key FROM receipts ORDER BY 1"), "auto\nedit-2\nkey-1\nkey-3");
}

/// Five megabytes, which fit into 16, the default, and not into 2.
#[test]
fn an_instance_keeps_as_much_of_the_database_in_memory_as_it_was_told() {
    let body = "\u{1f95b}".repeat(10_000);
    let calls: Vec<_> = (0..64).map(|number| create(&format!("key-{number}"), &body)).collect();
    let host = || Host::load(component(), Limits::default()).unwrap();
    for (host, is_kept) in [(host(), true), (with_small_cache(host()), false)] {
        let disk = Disk::new(Sole);
        let mut client = Client::new(&host, disk.storage());
        client.batch(&calls).iter().for_each(assert_fresh);
        disk.fault(Fault::None);
        assert!(client.batch(&calls).iter().all(|answer| answer["replayed"] == true));
        assert_eq!(disk.calls() == 0, is_kept, "{} calls of storage", disk.calls());
    }
}

/// With the most that it may keep, an instance of the usual 64 MB has room left for a large batch.
#[test]
fn an_instance_that_keeps_the_most_has_room_to_work() {
    let body = "\u{1f95b}".repeat(10_000);
    let host = Host::load(component(), Limits::default()).unwrap().with_variable("COUNTERFOIL_CACHE", "32");
    let mut client = Client::new(&host, Disk::new(Sole).storage());
    // 40 MB.
    for batch in 0..8 {
        let calls: Vec<_> = (0..64).map(|number| create(&format!("key-{batch}-{number}"), &body)).collect();
        client.batch(&calls).iter().for_each(assert_fresh);
    }
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// B12.
#[test]
fn a_key_that_occurs_twice_in_a_batch_acts_once() {
    let db = Database::new();
    let mut client = db.shared();
    let automation = client.call("create_automation", &automation("auto", 60));

    let equal = client.batch(&[create("key-1", "first"), create("key-1", "first")]);
    assert_replay_of(&equal[0], &equal[1]);

    let unequal = client.batch(&[create("key-2", "second"), create("key-2", "other")]);
    assert_fresh(&unequal[0]);
    assert_refused(&unequal[1], "key_conflict");

    let refused_first = client.batch(&[
        ("set_interval", interval("edit", &automation, 9, 30)),
        ("set_interval", interval("edit", &automation, 1, 30)),
    ]);
    assert_refused(&refused_first[0], "version_conflict");
    assert_fresh(&refused_first[1]);

    assert_eq!(db.sql("SELECT body FROM notes ORDER BY body"), "first\nsecond");
    assert_eq!(db.count("receipts"), "4");
}

#[test]
fn later_calls_of_a_batch_see_what_earlier_ones_did() {
    let db = Database::new();
    let mut client = db.shared();
    let automation = client.call("create_automation", &automation("auto", 60));
    let get = json!({ "automation_id": automation["automation_id"] });
    let replies = client.batch(&[
        ("get_automation", get.clone()),
        ("set_interval", interval("edit", &automation, 1, 30)),
        ("get_automation", get),
    ]);
    assert_eq!((&replies[0]["version"], &replies[2]["version"]), (&json!(1), &json!(2)));
}

#[test]
fn each_call_of_a_batch_has_its_own_caller() {
    let db = Database::new();
    let mut client = db.shared();
    client.callers(vec![Some(ada()), Some(bo()), None, Some(principal("ada@acme", &["read"])), Some(ada())]);
    let same = || create("key-1", "first");
    let replies = client.batch(&[same(), same(), same(), same(), same()]);
    assert_fresh(&replies[0]);
    assert_fresh(&replies[1]);
    assert_refused(&replies[2], "denied");
    assert_refused(&replies[3], "denied");
    assert_replay_of(&replies[0], &replies[4]);
    assert_eq!(db.sql("SELECT subject FROM receipts ORDER BY 1"), "ada\nbo");
}

#[test]
fn a_batch_of_replays_and_reads_writes_nothing_and_takes_no_write_lock() {
    const SHARED_LOCK: u8 = 1;
    let disk = Disk::new(Shared);
    let mut client = Client::new(host(), disk.storage());
    let first = client.batch(&[create("key-1", "first"), create("key-2", "second")]);
    disk.fault(Fault::None);
    let read = ("get_note", json!({ "note_id": first[0]["note_id"] }));
    let again = client.batch(&[create("key-2", "second"), read, create("key-1", "first"), create("key-1", "other")]);
    assert_replay_of(&first[1], &again[0]);
    assert_eq!(again[1]["body"], "first");
    assert_replay_of(&first[0], &again[2]);
    assert_refused(&again[3], "key_conflict");
    assert_eq!(disk.writes_and_lock(), (0, SHARED_LOCK));
}

#[test]
fn more_than_64_calls_are_refused_and_none_runs() {
    let db = Database::new();
    let mut client = db.shared();
    let calls: Vec<_> = (0..65).map(|number| create(&format!("key-{number}"), "body")).collect();
    for refused in client.batch(&calls) {
        assert_refused(&refused, "invalid_argument");
    }
    for fresh in client.batch(&calls[..64]) {
        assert_fresh(&fresh);
    }
    assert_eq!(client.batch(&[]), Vec::<Value>::new());
    assert_eq!(db.count("notes"), "64");
}

/// Makes the calls of a failed batch again, one by one, as an owner does: whatever became of them, each acts once.
fn settle(disk: &Disk, calls: &[(&str, Value)]) {
    let mut client = Client::new(host(), disk.storage());
    for (tool, arguments) in calls {
        let reply = client.call(tool, arguments);
        assert_eq!(reply["status"], "succeeded");
        assert_replay_of(
            &{
                let mut first = reply.clone();
                first["replayed"] = false.into();
                first
            },
            &client.call(tool, arguments),
        );
    }
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// C3: SQLite rolls the whole transaction back by itself, and what ran next would commit alone.
#[test]
fn a_disk_that_fills_up_in_the_middle_of_a_batch_refuses_all_of_it() {
    for sharing in [Sole, Shared, SoleAtomic] {
        let disk = Disk::new(sharing);
        let mut client = Client::new(host(), disk.storage());
        assert_fresh(&client.call("create_note", &note("key-0", "old")));
        let calls: Vec<_> = (1..=64).map(|number| create(&format!("key-{number}"), &"x".repeat(10_000))).collect();
        // From a disk without any room up to one with enough for all.
        let mut refused = 0;
        for room in (0..).step_by(100_000) {
            let disk = disk.copy(sharing);
            let mut client = Client::new(host(), disk.storage());
            assert_eq!(client.call("create_note", &note("key-0", "old"))["replayed"], true);
            disk.fault(Fault::Full(disk.used() + room));
            let replies = client.batch(&calls);
            disk.fault(Fault::None);
            if replies.iter().all(|reply| reply["status"] == "succeeded") {
                break;
            }
            for reply in &replies {
                assert_refused(reply, "unavailable");
                assert_eq!(reply["retryable"], true);
            }
            refused += 1;
            for (tool, arguments) in &calls {
                let key = json!({ "tool": tool, "idempotency_key": arguments["idempotency_key"] });
                assert_refused(&client.call("find_operation", &key), "not_found");
            }
            drop(client);
            settle(&disk, &calls);
        }
        assert!(refused > 3, "{sharing:?}: {refused}");
    }
}

/// C5: if the commit fails, every answer is the failure's, those of replays included.
#[test]
fn a_commit_that_fails_answers_no_success() {
    for sharing in [Sole, Shared, SoleAtomic] {
        let disk = Disk::new(sharing);
        assert_fresh(&Client::new(host(), disk.storage()).call("create_note", &note("key-0", "old")));
        let calls = [create("key-1", "first"), create("key-0", "old"), create("key-2", "second")];
        let clean = disk.copy(sharing);
        clean.fault(Fault::None);
        let mut client = Client::new(host(), clean.storage());
        client.batch(&calls);
        let count = clean.calls();
        drop(client);
        let mut unconfirmed = 0;
        for at in 1..=count {
            let failing = disk.copy(sharing);
            failing.fault(Fault::Fail(at, Error::Io));
            let replies = Client::new(host(), failing.storage()).batch(&calls);
            failing.fault(Fault::None);
            let codes: Vec<_> = replies.iter().map(|reply| reply["code"].as_str().unwrap_or("none")).collect();
            assert!(["none", "unavailable", "unconfirmed"].iter().any(|code| codes == [*code; 3]), "{codes:?}");
            unconfirmed += u32::from(codes[0] == "unconfirmed");
            settle(&failing, &calls);
        }
        assert!(unconfirmed > 0, "{sharing:?}: no commit failed");
    }
}

#[test]
fn a_trap_in_the_middle_of_a_batch_leaves_nothing_of_it() {
    let db = Database::new();
    let storage = || Files::shared(&db.path()).unwrap();
    let mark = |key: &str| ("mark", json!({ "idempotency_key": key, "text": key }));
    let mut client = Client::new(test_host(), storage());
    let trap = ("fail", json!({ "idempotency_key": "bad", "how": "trap" }));
    assert!(client.try_batch(&[mark("key-1"), trap, mark("key-2")]).is_err());
    assert!(client.instance.is_spent());
    assert!(client.try_batch(&[mark("key-1")]).is_err());
    drop(client);
    let mut client = Client::new(test_host(), storage());
    assert_fresh(&client.batch(&[mark("key-1")])[0]);
    assert_fresh(&client.batch(&[mark("key-2")])[0]);
    assert_eq!(db.sql("SELECT text FROM marks ORDER BY 1"), "key-1\nkey-2");
    assert_eq!(db.count("receipts"), "2");
}

/// The journal and the WAL are there only in the modes that keep them.
#[test]
fn sole_atomic_keeps_neither_journal_nor_wal() {
    for (sharing, journal, wal) in [(Sole, false, true), (Shared, true, false), (SoleAtomic, false, false)] {
        let disk = Disk::new(sharing);
        let mut client = Client::new(host(), disk.storage());
        assert_fresh(&client.call("create_note", &note("key-1", "first")));
        assert_eq!((disk.has(Part::Journal), disk.has(Part::Wal)), (journal, wal), "{sharing:?}");
        client.instance.close().unwrap().unwrap();
        assert!(!disk.has(Part::Wal), "a clean close leaves the database alone");
    }
}
