//! Storage that fails in ways of its own: it fills up, a checkpoint fails, a receipt cannot be inserted. `crashes.rs` fails
//! every call.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::Sharing::{Shared, Sole, SoleAtomic};
use host_example::{Error, Host, Limits, Part};

const MODES: [host_example::Sharing; 3] = [Sole, Shared, SoleAtomic];

/// A full disk is not a failed one: once there is room, the same instance goes on.
#[test]
fn a_disk_that_was_full_is_used_again_when_there_is_room() {
    for sharing in MODES {
        let disk = Disk::new(sharing);
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

/// Both the host (the first size that is asked for) and the component (the second) look whether a read that answered less ended
/// at the end of the file.
#[test]
fn a_file_that_grew_and_shrank_between_two_looks_is_not_a_failed_one() {
    for sharing in MODES {
        for at in [1, 2] {
            let disk = Disk::new(sharing);
            disk.fault(Fault::Grows(at));
            let mut client = Client::new(host(), disk.storage());
            assert_fresh(&client.call("create_note", &note("key", "first")));
            assert!(disk.sizes() > at);
            assert_eq!(client.verify(), Vec::<String>::new());
        }
    }
}

/// An instance that was answered more than it asked for goes no further, and the host knows.
#[test]
fn reads_that_answer_too_much_end_the_instance() {
    for sharing in MODES {
        let warm = Disk::new(sharing);
        assert_fresh(&Client::new(host(), warm.storage()).call("create_note", &note("key", "first")));
        let clean = warm.copy(sharing);
        clean.fault(Fault::None);
        Client::new(host(), clean.storage()).call("create_note", &note("next", "second"));
        let mut ended = 0;
        for at in 1..=clean.calls() {
            let disk = warm.copy(sharing);
            disk.fault(Fault::LongFrom(at));
            let mut client = Client::new(host(), disk.storage());
            let answer = client.call("create_note", &note("next", "second"));
            disk.fault(Fault::None);
            if client.instance.is_spent() {
                ended += 1;
                client = Client::new(host(), disk.storage());
            } else {
                assert_fresh(&answer);
            }
            let again = client.call("create_note", &note("next", "second"));
            assert_eq!(again["replayed"], answer["status"] == "succeeded", "{sharing:?}, call {at}: {answer}");
            assert_eq!(client.verify(), Vec::<String>::new());
        }
        assert!(ended > 0);
    }
}

/// C5, incident 6: a checkpoint after the commit is clean-up.
#[test]
fn a_failed_checkpoint_after_the_commit_does_not_fail_the_call() {
    let disk = Disk::new(Sole);
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

/// Also in a batch that is larger than SQLite's cache, which is written in part before its commit.
#[test]
fn an_answer_of_a_batch_is_kept_whatever_failed_meanwhile() {
    let host = with_small_cache(Host::load(component(), Limits::default()).unwrap());
    let client = |disk: &Disk| Client::new(&host, disk.storage());
    for (most, body) in [(64, "hello".to_owned()), (30, "\u{1f95b}".repeat(10_000))] {
        // The first once more at the end: what it left is read again, from what was written before the commit.
        let numbers = (1..most).chain([1]);
        let calls: Vec<_> = numbers.map(|number| ("create_note", note(&format!("key-{number}"), &body))).collect();
        let disk = Disk::new(Sole);
        assert_fresh(&client(&disk).call("create_note", &note("key", "old")));
        let clean = disk.copy(Sole);
        clean.fault(Fault::None);
        client(&clean).batch(&calls);
        let count = clean.calls();
        for (error, from) in [(Error::NoSpace, 1), (Error::ReadOnly, 2)] {
            for at in from..=count {
                let failing = disk.copy(Sole);
                failing.fault(Fault::Fail(at, error));
                let mut asked = client(&failing);
                let answers = asked.batch(&calls);
                failing.fault(Fault::None);
                if asked.instance.is_spent() {
                    asked = client(&failing);
                }
                assert_eq!(asked.call("create_note", &note("key", "old"))["replayed"], true, "at {at} of {count}");
                for (answer, (tool, arguments)) in answers.iter().zip(&calls).take(calls.len() - 1) {
                    if answer["status"] == "succeeded" {
                        assert_replay_of(answer, &asked.call(tool, arguments));
                    }
                }
                assert_eq!(asked.verify(), Vec::<String>::new(), "{error:?} at call {at} of {count}");
            }
        }
    }
}

/// What a batch wrote before its commit, over what was there, cannot be undone while no write has room. Under `sole-atomic` no file
/// tells how: the instance has to do it, also when it is closed first.
#[test]
fn a_batch_for_which_there_was_no_room_is_undone_before_the_database_is_closed() {
    let host = with_small_cache(Host::load(component(), Limits::default()).unwrap());
    // Keys in no order, so that the batch changes pages all over the index.
    let key = |number: u64| format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let batch = |first: u64, body: &str| -> Vec<_> {
        (first..first + 64).map(|number| ("create_note", note(&key(number), body))).collect()
    };
    let large = batch(2048, &"\u{1f95b}".repeat(10_000));
    for sharing in MODES {
        let disk = Disk::new(sharing);
        let mut client = Client::new(&host, disk.storage());
        for first in (0..2048).step_by(64) {
            client.batch(&batch(first, "first"));
        }
        drop(client);
        let clean = disk.copy(sharing);
        clean.fault(Fault::None);
        Client::new(&host, clean.storage()).batch(&large);
        let calls = clean.calls();
        for at in (1..calls).step_by(calls as usize / 24) {
            let failing = disk.copy(sharing);
            failing.fault(Fault::NoRoomFrom(at));
            let mut client = Client::new(&host, failing.storage());
            let answer = client.batch(&large).remove(0);
            let closed = client.instance.close().unwrap();
            assert!(closed.is_ok() || !client.instance.is_spent(), "{sharing:?}, call {at} of {calls}: {closed:?}");
            failing.fault(Fault::None);
            client.instance.close().unwrap().unwrap();
            assert_eq!(client.call("create_note", &note(&key(7), "first"))["replayed"], true);
            assert_eq!(client.verify(), Vec::<String>::new(), "{sharing:?}, call {at} of {calls}");
            drop(client);
            let mut client = Client::new(&host, failing.power_cut(0).storage());
            assert_eq!(client.verify(), Vec::<String>::new(), "{sharing:?}, call {at} of {calls}, after a power cut");
            let (tool, arguments) = &large[0];
            let again = client.call(tool, arguments);
            assert_eq!(again["replayed"], answer["status"] == "succeeded", "{again}");
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
