//! Sweeping, and copies: made while others call, put back, and not believed until an operator says so.

use crate::harness::*;
use crate::world::*;
use serde_json::json;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

const NONE: &str = "none";
const KEYS: &str = "deduplicates-for=1h,clock-within=10ms";
const FINAL: &str = "looks-up,absent-is-final-after=1s,clock-within=10ms";

#[track_caller]
fn back_up(world: &World) -> World {
    let copy = world.beside("copy.db");
    let ran = world.run(&["backup", &copy.path().display().to_string()]);
    let text = format!("{} is a copy of {}\n", copy.path().display(), world.path().display());
    assert_eq!((ran.code, ran.stdout), (0, text), "{}", ran.stderr);
    copy
}

/// Makes the database of a copy.
fn restore(restored: &World, copy: &World) -> Ran {
    restored.run(&["restore", &copy.path().display().to_string()])
}

#[test]
fn sweeping_leaves_tombstones_of_what_has_expired_and_of_nothing_else() {
    let (world, provider) = (World::new(), Provider::start(&["--contract", NONE, "--faults", "drop-after"]));
    for number in 0..7 {
        assert_eq!(world.call("create_note", &note(&format!("k{number}"), "hello")).code, 0);
    }
    let unknown = world.deploy("unknown");
    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    assert_eq!(world.state(&unknown), "outcome-unknown");
    let sweep = |arguments: &[&str]| {
        let ran = world.run(&[&["sweep"], arguments].concat());
        (ran.code, ran.stdout)
    };
    assert_eq!(sweep(&[]), (0, "receipts swept: 0\n".to_owned()));
    world.edit("UPDATE receipts SET valid_until = 1 WHERE idempotency_key <> 'k6'");

    // In steps of which the last is whole, and once more.
    assert_eq!(sweep(&["--step", "2"]), (0, "receipts swept: 6\n".to_owned()));
    assert_eq!(sweep(&["--step", "2"]), (0, "receipts swept: 0\n".to_owned()));

    let late = world.call("create_note", &note("k0", "hello"));
    assert_eq!((late.code, &late.reply()["code"]), (3, &json!("key_expired")));
    let other = world.call("create_note", &note("k1", "other"));
    assert_eq!(other.reply()["code"], "key_expired");
    assert_eq!(world.call("create_note", &note("k6", "hello")).reply()["replayed"], true);
    // A receipt is kept for as long as a person is asked about its operation.
    assert!(world.operation(&unknown)["next_action"].as_str().unwrap().contains(&unknown));
    assert_eq!(world.run(&["resolve", &unknown, "happened"]).code, 0);
    assert_eq!(sweep(&[]), (0, "receipts swept: 1\n".to_owned()));
    assert_eq!(world.operation(&unknown)["state"], "succeeded");
    assert_eq!(world.number("SELECT count(*) FROM notes"), 7);
    world.assert_whole();
}

#[test]
fn a_copy_is_whole_and_has_all_that_was_answered_before_it_was_begun() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    let (answered, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for caller in 0..2 {
            let (world, answered, is_over) = (&world, &answered, &is_over);
            scope.spawn(move || {
                for number in (0..).take_while(|_| !is_over.load(SeqCst)) {
                    let ran = world.call("create_note", &note(&format!("k{caller}-{number}"), "hello"));
                    assert_eq!(ran.code, 0, "{}", ran.stderr);
                    answered.fetch_add(1, SeqCst);
                }
            });
        }
        for number in 0..6 {
            let least = until(|| Some(answered.load(SeqCst)).filter(|count| *count >= 2 * number));

            let copy = back_up(&world);

            copy.assert_whole();
            let notes = copy.number("SELECT count(*) FROM notes");
            assert!(notes > least as i64, "{notes} of {least} and one more");
            fs::remove_file(copy.path()).unwrap();
        }
        is_over.store(true, SeqCst);
    });
    world.assert_whole();
}

#[test]
fn a_copy_takes_the_place_of_nothing() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    let there = world.file("there.db");
    fs::write(&there, "something").unwrap();
    let path = there.display().to_string();

    let taken = world.run(&["backup", &path]);
    let onto_itself = world.run(&["backup", &world.path().display().to_string()]);
    let no_folder = world.run(&["backup", "/no/such/folder/copy.db"]);

    for ran in [&taken, &onto_itself, &no_folder] {
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    }
    assert!(taken.stderr.contains(&format!("{path} is there already")), "{}", taken.stderr);
    assert_eq!(fs::read_to_string(&there).unwrap(), "something");
    assert_eq!(world.number("SELECT count(*) FROM notes"), 1);
}

#[test]
fn a_writer_that_keeps_its_lock_delays_a_copy_or_ends_it() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    let copy = world.file("copy.db");
    let mut exclusive = world.program(&["backup", &copy.display().to_string()]);
    let lock = NativeLock::exclusive(&world.path());

    let ran = Ran::of(&mut exclusive);
    drop(lock);
    let later = Ran::of(&mut exclusive);

    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("is in use by another process: try again when it has finished"), "{}", ran.stderr);
    assert_eq!(later.code, 0, "{}", later.stderr);
}

#[test]
fn a_restored_copy_believes_no_new_key_until_it_is_accepted() {
    let world = World::new();
    let waiting = world.deploy("waiting");
    let before = world.call("create_note", &note("before", "hello")).reply();
    let (copy, restored) = (back_up(&world), world.beside("restored.db"));
    let bytes = fs::read(copy.path()).unwrap();
    assert_eq!(world.call("create_note", &note("lost", "hello")).code, 0);

    let ran = restore(&restored, &copy);

    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let meaning =
        "Keys without a receipt are refused as unconfirmed, and 1 unfinished operations count as possibly sent.";
    assert!(ran.stdout.contains(&format!("restored.db is restored. {meaning}\n")), "{}", ran.stdout);
    assert_eq!(fs::read(copy.path()).unwrap(), bytes, "the copy stays as it is");
    let marked = restored.run(&["restored"]);
    assert_eq!(marked.code, 0);
    assert!(
        marked.stdout.starts_with("restored since 2") && marked.stdout.ends_with(&format!("Z. {meaning}\n")),
        "{}",
        marked.stdout
    );
    let lost = restored.call("create_note", &note("lost", "hello"));
    assert_eq!(
        (lost.code, &lost.reply()["code"], &lost.reply()["retryable"]),
        (3, &json!("unconfirmed"), &json!(false))
    );
    let replay = restored.call("create_note", &note("before", "hello")).reply();
    assert_eq!((&replay["replayed"], &replay["note_id"]), (&json!(true), &before["note_id"]));
    let operation = restored.operation(&waiting);
    assert_eq!((&operation["state"], &operation["attempts"]), (&json!("running"), &json!(1)));

    let accepted = restored.run(&["restored", "--accept"]);

    let text = "accepted: keys without a receipt are new again, and 1 unfinished operations are as the copy has them\n";
    assert_eq!((accepted.code, accepted.stdout.as_str()), (0, text));
    for arguments in [&["restored"][..], &["restored", "--accept"]] {
        let ran = restored.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "not marked as restored\n"));
    }
    assert_eq!(restored.call("create_note", &note("lost", "hello")).reply()["replayed"], false);
    let operation = restored.operation(&waiting);
    assert_eq!((&operation["state"], &operation["attempts"]), (&json!("accepted"), &json!(0)));
    restored.assert_whole();
    // The database that the copy was made of knows nothing of all this.
    assert_eq!(world.run(&["restored"]).stdout, "not marked as restored\n");
}

#[test]
fn a_database_is_restored_only_where_there_is_none() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    let (copy, restored) = (back_up(&world), world.beside("restored.db"));

    for name in ["restored.db", "restored.db-journal", "restored.db-wal", "restored.db.restoring"] {
        fs::write(world.file(name), "something").unwrap();
        let ran = restore(&restored, &copy);
        assert!([1, 2].contains(&ran.code) && ran.stdout.is_empty(), "{name}: {ran:?}");
        assert!(ran.stderr.contains(&format!("{} is there already", world.file(name).display())), "{}", ran.stderr);
        assert_eq!(fs::read_to_string(world.file(name)).unwrap(), "something", "{name}");
        fs::remove_file(world.file(name)).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(world.file("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        ["copy.db", "test.db", "test.db-journal", "test.db-lock"],
        "nothing is left of a restoration that failed"
    );
    fs::write(world.file("text"), "no database").unwrap();
    assert_ne!(restore(&restored, &world.beside("text")).code, 0);
    assert!(!restored.path().exists());

    assert_eq!(restore(&restored, &copy).code, 0);
}

#[test]
fn what_was_sent_after_a_copy_was_made_has_one_effect_when_the_copy_is_put_back() {
    thread::scope(|scope| {
        // The contract, whether it was sent after the copy, the state in the end.
        for (contract, is_sent, state) in [
            (NONE, true, "outcome_unknown"),
            // When it was sent first is not known, so neither is whether its key is.
            (KEYS, true, "outcome_unknown"),
            ("looks-up", true, "succeeded"),
            ("looks-up", false, "outcome_unknown"),
            (FINAL, true, "succeeded"),
        ] {
            scope.spawn(move || {
                let case = format!("{contract}, sent: {is_sent}");
                let (world, provider) = (World::new(), Provider::start(&["--contract", contract]));
                let id = world.deploy("k");
                let (copy, restored) = (back_up(&world), world.beside("restored.db"));
                if is_sent {
                    assert_eq!(world.work_once(&provider.url(), contract).code, 0);
                    assert_eq!(world.state(&id), "succeeded", "{case}");
                }

                assert_eq!(restore(&restored, &copy).code, 0);
                let _worker = restored.worker(&provider.url(), contract, &[]);
                let operation = restored.until_settled(&id);

                assert_eq!(operation["state"], state, "{case}");
                let rows = usize::from(is_sent || state == "succeeded");
                assert_eq!(taken(&provider, &id).len(), rows, "{case}");
                if state == "outcome_unknown" && is_sent {
                    let key = &taken(&provider, &id)[0].1;
                    assert!(operation["next_action"].as_str().unwrap().contains(key), "{case}: {operation}");
                }
            });
        }
    });
}

#[test]
fn from_a_restored_copy_nothing_is_sent_before_it_is_accepted() {
    // Nothing speaks for a second sending once it is absent for good: a lease is ten minutes at most, and an absence is final
    // a second later. But it may have been cancelled in the time that was lost.
    let (world, provider) = (World::new(), Provider::start(&["--contract", FINAL]));
    let id = world.deploy("k");
    let (copy, restored) = (back_up(&world), world.beside("restored.db"));
    assert_eq!(restore(&restored, &copy).code, 0);

    let _worker = restored.worker(&provider.url(), FINAL, &[]);
    until(|| (restored.attempts(&id).first()? == "lookup absent").then_some(()));
    let left = restored.number("SELECT due - planned_at FROM operations");
    assert!((500_000..=601_020).contains(&left), "{left}");
    restored.edit("UPDATE operations SET last_sent = last_sent - 600000, due = planned_at");
    until(|| (restored.state(&id) == "accepted").then_some(()));
    // It is due, and put off again and again.
    until(|| (restored.number("SELECT fruitless FROM operations") > 4).then_some(()));
    assert!(restored.attempts(&id).iter().all(|attempt| attempt == "lookup absent"), "{:?}", restored.attempts(&id));
    assert_eq!(taken(&provider, &id), []);

    assert_eq!(restored.run(&["restored", "--accept"]).code, 0);

    let operation = restored.until_state(&id, "succeeded");
    assert_eq!((&operation["attempts"], taken(&provider, &id).len()), (&json!(1), 1));
    assert_eq!(restored.attempts(&id).last().unwrap(), "submit finished");
}

#[test]
fn a_copy_that_is_damaged_is_not_restored() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    let (copy, restored) = (back_up(&world), world.beside("restored.db"));
    copy.edit("PRAGMA foreign_keys = OFF; DELETE FROM receipts");

    let ran = restore(&restored, &copy);

    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("copy.db is damaged: "), "{}", ran.stderr);
    assert!(!restored.path().exists() && !world.file("restored.db.restoring").exists());
}

#[test]
fn a_copy_that_is_accepted_unsent_is_sent() {
    let (world, provider) = (World::new(), Provider::start(&["--contract", NONE]));
    let id = world.deploy("k");
    let (copy, restored) = (back_up(&world), world.beside("restored.db"));
    assert_eq!(restore(&restored, &copy).code, 0);
    assert_eq!(restored.run(&["restored", "--accept"]).code, 0);

    let ran = restored.work_once(&provider.url(), NONE);

    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(taken(&provider, &id).len(), 1);
    let operation = restored.operation(&id);
    assert_eq!((&operation["state"], &operation["attempts"]), (&json!("succeeded"), &json!(1)));
}

#[test]
fn a_copy_of_a_database_whose_writer_was_killed_is_whole() {
    let (world, provider) = (World::new(), Provider::start(&["--contract", NONE]));
    for round in 0..5 {
        world.deploy_many_as(&format!("{round}-"), 30);
        let mut worker = world.worker(&provider.url(), NONE, &[]);
        until(|| (world.number("SELECT count(*) FROM operations WHERE state = 'succeeded'") > round * 4).then_some(()));
        worker.process.kill();

        let copy = back_up(&world);

        copy.assert_whole();
        fs::remove_file(copy.path()).unwrap();
    }
}
