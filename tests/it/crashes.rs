//! What survives when the process or the machine dies at any call to storage: every answered call, once.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::Sharing::{self, Shared, Sole, SoleAtomic};
use serde_json::Value;

const CALLS: [(&str, &str); 3] = [("key-1", "first"), ("key-2", "second"), ("key-3", "third")];

/// Creates the notes one after the other, as far as the disk lets it, and returns the answers of those that succeeded.
fn create_notes(disk: &Disk) -> Vec<Value> {
    let mut client = Client::new(host(), disk.storage());
    let answers = CALLS.map(|(key, body)| client.call("create_note", &note(key, body)));
    answers.into_iter().filter(|answer| answer["status"] == "succeeded").collect()
}

/// A disk with a database on it, as an instance that was dropped left it, all synced.
pub fn old_disk(sharing: Sharing) -> Disk {
    let disk = Disk::new(sharing);
    assert_fresh(&Client::new(host(), disk.storage()).call("create_note", &note("key-0", "old")));
    disk.power_cut(1)
}

/// How many answered notes are lost or changed, and whether anything else is wrong. Ends with every note there once.
fn check(disk: &Disk, answered: &[Value]) -> Result<(), String> {
    let mut client = Client::new(host(), disk.storage());
    for (earlier, (key, body)) in answered.iter().zip(CALLS) {
        let mut replay = client.call("create_note", &note(key, body));
        replay["replayed"] = earlier["replayed"].clone();
        if replay != *earlier {
            return Err(format!("an answered note is lost: {earlier} and now {replay}"));
        }
    }
    match client.instance.verify().unwrap() {
        Ok(wrong) if wrong.is_empty() => {}
        wrong => return Err(format!("verify says {wrong:?}")),
    }
    for (key, body) in CALLS {
        let retry = client.call("create_note", &note(key, body));
        let note = client.call("get_note", &serde_json::json!({ "note_id": retry["note_id"] }));
        if note["body"] != body {
            return Err(format!("the retry is {retry}, the note {note}"));
        }
    }
    Ok(())
}

/// Dies at every call, and recovers from every image that the seeds make of it. Returns how many were tried, and what
/// was wrong.
fn die_everywhere(
    disk: &Disk,
    images: &[u64],
    then: impl Fn(&Disk, u64, &[Value]) -> Result<(), String>,
) -> Vec<String> {
    let sharing = disk.storage_mode();
    let clean = disk.copy(sharing);
    clean.fault(Fault::None);
    assert_eq!(create_notes(&clean).len(), 3);
    let calls = clean.calls();
    assert!(calls > 15, "{calls}");
    let mut wrong = Vec::new();
    for at in 1..=calls {
        for &seed in images {
            let dying = disk.copy(sharing);
            dying.fault(Fault::Die(at));
            let answered = create_notes(&dying);
            if let Err(what) = then(&dying, seed, &answered) {
                wrong.push(format!("{sharing:?}, dead at call {at} of {calls}, seed {seed}: {what}"));
            }
        }
    }
    wrong
}

const SEEDS: [u64; 4] = [0, 1, 2, 3];

/// C1, C5, incident 22.
#[test]
fn an_answered_call_survives_a_power_cut_at_any_call_to_storage() {
    for sharing in [Sole, Shared, SoleAtomic] {
        for disk in [Disk::new(sharing), old_disk(sharing)] {
            let wrong = die_everywhere(&disk, &SEEDS, |dead, seed, answered| check(&dead.power_cut(seed), answered));
            assert_nothing(&wrong);
        }
    }
}

#[track_caller]
fn assert_nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} are wrong, among them: {:#?}", wrong.len(), &wrong[..3.min(wrong.len())]);
}

/// The control: where sync does nothing, the test above must find losses.
#[test]
fn a_disk_that_lies_about_sync_is_noticed() {
    for sharing in [Sole, Shared, SoleAtomic] {
        let disk = old_disk(sharing);
        disk.lie(u32::MAX);
        let wrong = die_everywhere(&disk, &SEEDS, |dead, seed, answered| check(&dead.power_cut(seed), answered));
        assert!(!wrong.is_empty(), "{sharing:?}");
    }
}

/// C2: what a killed process wrote and did not sync is only in the page cache. A new instance reads it, so it must make
/// it durable before it answers from it.
fn replay_then_cut(dead: &Disk, seed: u64, _: &[Value]) -> Result<(), String> {
    // The retry, on what the killed process left in the page cache; dropped without closing.
    let answered = create_notes(dead);
    check(&dead.power_cut(seed), &answered)
}

#[test]
fn a_receipt_replayed_after_a_kill_survives_the_power_cut_that_follows() {
    for sharing in [Sole, Shared] {
        let wrong = die_everywhere(&old_disk(sharing), &SEEDS, |dead, seed, answered| {
            let cache = dead.copy(sharing);
            replay_then_cut(&cache, seed, answered)
        });
        assert_nothing(&wrong);
    }
}

/// The control: without the sync before the first answer, the test above must find losses.
#[test]
fn a_recovery_that_does_not_sync_is_noticed() {
    for sharing in [Sole, Shared] {
        let wrong = die_everywhere(&old_disk(sharing), &SEEDS, |dead, seed, answered| {
            let cache = dead.copy(sharing);
            // One for each part that is there.
            cache.lie(2);
            replay_then_cut(&cache, seed, answered)
        });
        assert!(!wrong.is_empty(), "{sharing:?}");
    }
}

/// Switching between journal and WAL is itself a change that the machine may die in, and a journal that came back from
/// the dead would undo what was committed since.
#[test]
fn a_change_of_mode_survives_a_power_cut_at_any_call_to_storage() {
    for (left, opened) in [(Sole, Shared), (Shared, Sole)] {
        let disk = old_disk(left).copy(opened);
        let wrong = die_everywhere(&disk, &SEEDS, |dead, seed, answered| check(&dead.power_cut(seed), answered));
        assert_nothing(&wrong);
    }
}

/// C3: a second sync may succeed falsely, so whoever opens the log next writes what is in it anew.
#[test]
fn a_commit_whose_sync_failed_is_not_taken_for_durable_by_the_next_instance() {
    let disk = old_disk(Sole);
    let clean = disk.copy(Sole);
    clean.fault(Fault::None);
    create_notes(&clean);
    for at in 1..=clean.calls() {
        for (seed, next) in SEEDS.into_iter().flat_map(|seed| [(seed, Sole), (seed, Shared)]) {
            let forgetful = disk.copy(Sole);
            forgetful.fault(Fault::ForgetAt(at));
            create_notes(&forgetful);
            let forgetful = forgetful.copy(next);
            let answered = create_notes(&forgetful);
            assert_eq!(answered.len(), 3, "sync {at}");
            let left = check(&forgetful.power_cut(seed), &answered);
            assert_eq!(left, Ok(()), "sync {at}, seed {seed}, then {next:?}");
        }
    }
}

/// The same, if the next instance dies while it takes the log over, and the power goes: of a log whose end was not
/// stored, the beginning is older than what was moved out of it, and together they are no state of the database.
#[test]
fn a_log_that_was_not_stored_survives_a_power_cut_while_it_is_taken_over() {
    // So many that the index on keys has several pages, of which the last call changes another one than the first.
    let disk = Disk::new(Sole);
    let mut client = Client::new(host(), disk.storage());
    for batch in 0..6 {
        let keys = (0..64).map(|number| format!("key-{batch}-{number:02}"));
        let calls: Vec<_> = keys.map(|key| ("create_note", note(&key, "old"))).collect();
        client.batch(&calls).iter().for_each(assert_fresh);
    }
    client.instance.close().unwrap().unwrap();
    let disk = disk.power_cut(1);
    let keys = ["key-0-00-first", "key-5-63-last"];
    let create = |disk: &Disk| {
        let mut client = Client::new(host(), disk.storage());
        keys.map(|key| client.call("create_note", &note(key, "new"))["status"] == "succeeded")
    };
    let last_sync = {
        let clean = disk.copy(Sole);
        clean.fault(Fault::None);
        create(&clean);
        let fails = |at: &u64| {
            let forgetful = disk.copy(Sole);
            forgetful.fault(Fault::ForgetAt(*at));
            create(&forgetful) == [true, false]
        };
        (1..=clean.calls()).rev().find(fails).expect("the sync of the second commit")
    };
    let forgetful = disk.copy(Sole);
    forgetful.fault(Fault::ForgetAt(last_sync));
    create(&forgetful);
    for next in [Sole, Shared] {
        for dies in 1..60 {
            let dying = forgetful.copy(next);
            dying.fault(Fault::Die(dies));
            create(&dying);
            let mut client = Client::new(host(), dying.power_cut(0).storage());
            assert_eq!(client.verify(), Vec::<String>::new(), "then {next:?}, dead at call {dies}");
            assert_eq!(client.call("create_note", &note(keys[0], "new"))["replayed"], true, "{next:?}, {dies}");
            assert_eq!(client.call("create_note", &note(keys[1], "new"))["status"], "succeeded", "{next:?}, {dies}");
        }
    }
}

/// Each mode opens what each mode left behind, cleanly closed or not. sole-atomic has no log to open: an operator
/// brings a database there by way of shared.
#[test]
fn a_database_moves_between_modes_without_help() {
    for (left, opened) in [
        (Sole, Shared),
        (Shared, Sole),
        (Sole, Sole),
        (Shared, Shared),
        (Shared, SoleAtomic),
        (SoleAtomic, Sole),
        (SoleAtomic, Shared),
    ] {
        for close in [true, false] {
            let disk = Disk::new(left);
            let mut client = Client::new(host(), disk.storage());
            let first = client.call("create_note", &note("key-1", "first"));
            if close {
                client.instance.close().unwrap().unwrap();
            }
            drop(client);
            let disk = disk.copy(opened);
            let mut client = Client::new(host(), disk.storage());
            assert_replay_of(&first, &client.call("create_note", &note("key-1", "first")));
            assert_fresh(&client.call("create_note", &note("key-2", "second")));
            assert_eq!(client.verify(), Vec::<String>::new(), "{left:?} to {opened:?}");
        }
    }
}
