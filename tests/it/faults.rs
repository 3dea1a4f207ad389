//! Storage that fails at any call: the answer is true, nothing is half done, and the retry settles it.

use crate::crashes::old_disk;
use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::Sharing::{Shared, Sole, SoleAtomic};
use host_example::{Error, Part};
use serde_json::{Value, json};

const MODES: [host_example::Sharing; 3] = [Sole, Shared, SoleAtomic];

fn found(client: &mut Client, key: &str) -> bool {
    client.call("find_operation", &json!({ "tool": "create_note", "idempotency_key": key }))["status"] == "succeeded"
}

/// Runs `work` against the disk once for each call to storage that it makes, failing that call.
fn fail_everywhere(
    disk: &Disk,
    fault: impl Fn(u64) -> Fault,
    work: impl Fn(&Disk) -> (Client, Vec<Value>),
    check: impl Fn(u64, Client, &Disk, &[Value]),
) {
    let sharing = disk.storage_mode();
    let clean = disk.copy(sharing);
    clean.fault(Fault::None);
    drop(work(&clean));
    let calls = clean.calls();
    assert!(calls > 15, "{calls}");
    for at in 1..=calls {
        let failing = disk.copy(sharing);
        failing.fault(fault(at));
        let (client, answers) = work(&failing);
        failing.fault(Fault::None);
        check(at, client, &failing, &answers);
    }
}

const NOTES: [(&str, &str); 2] = [("key-1", "first"), ("key-2", "second")];

fn create_notes(disk: &Disk) -> (Client, Vec<Value>) {
    let mut client = Client::new(host(), disk.storage());
    let answers = NOTES.map(|(key, body)| client.call("create_note", &note(key, body)));
    (client, answers.to_vec())
}

/// C1, C3, C5, incident 5: only `unconfirmed` leaves open whether the call committed.
#[test]
fn a_refusal_for_failed_storage_has_changed_nothing_and_the_retry_acts_once() {
    for sharing in MODES {
        for (error, persists) in [
            (Error::Io, false),
            (Error::Io, true),
            (Error::NoSpace, false),
            (Error::NoSpace, true),
            (Error::ReadOnly, false),
        ] {
            let fault = |at| if persists { Fault::FailFrom(at, error) } else { Fault::Fail(at, error) };
            fail_everywhere(&old_disk(sharing), fault, create_notes, |at, old, disk, answers| {
                let context = format!("{sharing:?}, {error:?} at call {at}, persists {persists}: {answers:?}");
                drop(old);
                let mut client = Client::new(host(), disk.storage());
                for (answer, (key, body)) in answers.iter().zip(NOTES) {
                    let committed = found(&mut client, key);
                    match (answer["status"].as_str(), answer["code"].as_str()) {
                        (Some("succeeded"), _) => assert!(committed, "{context}"),
                        (Some("refused"), Some("unavailable")) => assert!(!committed, "{context}"),
                        (Some("refused"), Some("unconfirmed")) => {
                            assert_eq!(answer["retryable"], true, "{context}");
                        }
                        _ => panic!("{context}"),
                    }
                    let retry = client.call("create_note", &note(key, body));
                    assert_eq!(retry["status"], "succeeded", "{context}");
                    assert_eq!(retry["replayed"], committed, "{context}");
                }
                assert_eq!(client.verify(), Vec::<String>::new(), "{context}");
            });
        }
    }
}

/// C3: what an earlier write or sync did is uncertain.
#[test]
fn an_instance_whose_storage_failed_answers_no_more() {
    for sharing in MODES {
        for error in [Error::Io, Error::NoSpace, Error::ReadOnly] {
            let fault = |at| Fault::Fail(at, error);
            fail_everywhere(&old_disk(sharing), fault, create_notes, |at, mut client, _, answers| {
                let context = format!("{sharing:?}, {error:?} at call {at}: {answers:?}");
                // The host and the component agree.
                let is_spent = client.instance.is_spent();
                assert!(is_spent || error != Error::Io, "{context}");
                let later = client.call("create_note", &note("key-1", "first"));
                let answer = (&later["status"], &later["code"], &later["retryable"]);
                let refused = (&json!("refused"), &json!("unavailable"), &json!(true));
                assert_eq!(answer == refused, is_spent, "{context}: {later}");
            });
        }
    }
}

/// A full disk is not a failed one: once there is room, the same instance goes on.
#[test]
fn a_disk_that_was_full_is_used_again_when_there_is_room() {
    for sharing in MODES {
        let disk = old_disk(sharing);
        let mut client = Client::new(host(), disk.storage());
        assert_fresh(&client.call("create_note", &note("key-1", "first")));
        disk.fault(Fault::Full(disk.used()));
        // Large enough to need new pages in every mode.
        let large = note("key-2", &"x".repeat(10_000));
        let refused = client.call("create_note", &large);
        assert_refused(&refused, "unavailable");
        assert_eq!(refused["retryable"], true);
        assert_eq!(client.call("create_note", &note("key-1", "first"))["replayed"], true, "reading needs no room");
        disk.fault(Fault::None);
        assert_fresh(&client.call("create_note", &large));
        assert_eq!(client.verify(), Vec::<String>::new());
    }
}

/// C5, incident 6: a checkpoint after the commit is clean-up.
#[test]
fn a_failed_checkpoint_after_the_commit_does_not_fail_the_call() {
    let disk = old_disk(Sole);
    let mut client = Client::new(host(), disk.storage());
    assert_fresh(&client.call("create_note", &note("key-a", "first")));
    // Commits write the WAL; a checkpoint, which SQLite makes after some of them, writes the database.
    disk.fault(Fault::FailWritesTo(Part::Database));
    let calls: Vec<_> = (1..1000).map(|number| note(&format!("key-{number}"), &"x".repeat(10_000))).collect();
    let checkpointed = calls.iter().find_map(|arguments| {
        let answer = client.call("create_note", arguments);
        assert_fresh(&answer);
        client.instance.is_spent().then_some((arguments, answer))
    });
    let (arguments, answer) = checkpointed.expect("a checkpoint within 1,000 commits");
    assert_refused(&client.call("create_note", arguments), "unavailable");

    disk.fault(Fault::None);
    let mut client = Client::new(host(), disk.storage());
    assert_replay_of(&answer, &client.call("create_note", arguments));
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// A batch that is larger than SQLite's cache is written in part before its commit.
#[test]
fn an_answer_of_a_batch_that_spills_is_kept_whatever_failed_meanwhile() {
    let calls: Vec<_> =
        (0..64).map(|number| ("create_note", note(&format!("key-{number}"), &"\u{1f95b}".repeat(10_000)))).collect();
    let disk = old_disk(Sole);
    let clean = disk.copy(Sole);
    clean.fault(Fault::None);
    Client::new(host(), clean.storage()).batch(&calls);
    let count = clean.calls();
    for (error, from) in [(Error::NoSpace, 1), (Error::ReadOnly, 2)] {
        for at in (from..=count).step_by(97) {
            let failing = disk.copy(Sole);
            failing.fault(Fault::Fail(at, error));
            let answers = Client::new(host(), failing.storage()).batch(&calls);
            failing.fault(Fault::None);
            let mut client = Client::new(host(), failing.storage());
            for (answer, (tool, arguments)) in answers.iter().zip(&calls) {
                if answer["status"] == "succeeded" {
                    assert_replay_of(answer, &client.call(tool, arguments));
                }
            }
            assert_eq!(client.verify(), Vec::<String>::new(), "{error:?} at call {at} of {count}");
        }
    }
}

/// A receipt that cannot be inserted takes its effect with it.
#[test]
fn a_failing_receipt_insert_rolls_the_effect_back() {
    for raise in ["ABORT", "FAIL", "ROLLBACK"] {
        let db = Database::new();
        let mut client = db.shared();
        let automation = client.call("create_automation", &automation("auto", 60));
        db.sql(&format!(
            "CREATE TRIGGER broken BEFORE INSERT ON receipts BEGIN SELECT RAISE({raise}, 'out of order'); END"
        ));
        let refused = client.call("create_note", &note("key-1", "first"));
        assert_refused(&refused, "unavailable");
        assert_refused(&client.call("set_interval", &interval("edit", &automation, 1, 30)), "unavailable");
        assert_eq!(db.count("notes"), "0", "{raise}");
        assert_eq!(db.sql("SELECT version, interval_minutes FROM automations"), "1|60", "{raise}");
        db.sql("DROP TRIGGER broken");
        assert_fresh(&client.call("create_note", &note("key-1", "first")));
        assert_eq!(client.call("set_interval", &interval("edit", &automation, 1, 30))["version"], 2);
        assert_eq!(client.verify(), Vec::<String>::new());
    }
}
