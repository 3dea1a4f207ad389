//! What the system forgets: a sync fails, and what it did not write is in memory as if it were written.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use host_example::Sharing::{Shared, Sole};
use serde_json::Value;

const CALLS: [(&str, &str); 3] = [("key-1", "first"), ("key-2", "second"), ("key-3", "third")];
const SEEDS: [u64; 4] = [0, 1, 2, 3];

/// Creates the notes one after the other, as far as the disk lets it, and returns the answers of those that succeeded.
fn create_notes(disk: &Disk) -> Vec<Value> {
    let mut client = Client::new(host(), disk.storage());
    let answers = CALLS.map(|(key, body)| client.call("create_note", &note(key, body)));
    answers.into_iter().filter(|answer| answer["status"] == "succeeded").collect()
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
    let wrong = client.verify();
    if !wrong.is_empty() {
        return Err(format!("verify says {wrong:?}"));
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

/// C3: a second sync may succeed falsely, so whoever opens the log next writes what is in it anew.
#[test]
fn a_commit_whose_sync_failed_is_not_taken_for_durable_by_the_next_instance() {
    let disk = Disk::new(Sole);
    assert_fresh(&Client::new(host(), disk.storage()).call("create_note", &note("key-0", "old")));
    let disk = disk.power_cut(1);
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
