//! The database is the server's alone, and it keeps it: copies, and a sweep now and then.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use serde_json::json;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[test]
fn while_it_serves_all_others_are_told_who_owns_the_database() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let mut server = world.serve(&[]);
    assert_eq!(server.caller(&token).note("k").status, 200);
    let copy = world.file("copy.db").display().to_string();
    let tokens = world.tokens().display().to_string();
    let mut second = counterfoil(&["--component"]);
    second.arg(component()).arg("--db").arg(world.path()).args(["serve", "--http", "127.0.0.1:0", "--tokens", &tokens]);
    let mut others = vec![second];
    for arguments in [
        &["work", "--provider", "http://127.0.0.1:1/deployments", "--contract", "none"][..],
        &["call", "create_note", &note("l", "hello").to_string()],
        &["serve"],
        &["verify"],
        &["sweep"],
        &["backup", &copy],
        &["restored"],
    ] {
        others.push(world.program(arguments));
    }

    for mut other in others {
        let begun = Instant::now();
        let [out, err] = ["out", "err"].map(|name| world.file(name));
        other.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let code = Process::start(&mut other).wait().code();

        let [stdout, stderr] = [out, err].map(|file| fs::read_to_string(file).unwrap());
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{other:?}: {stderr}");
        let owner = format!("error: {} is owned by process {} (", world.path().display(), server.process.id());
        assert!(stderr.contains(&owner), "{other:?}: {stderr}");
        // A server waits for 2 s for others to go.
        assert!(begun.elapsed() < Duration::from_secs(8), "{other:?}: {:?}", begun.elapsed());
    }
    assert!(!world.file("copy.db").exists());
    server.stop();
    assert_eq!(world.number("SELECT count(*) FROM notes"), 1);
    assert_eq!(world.call("create_note", &note("k", "hello")).reply()["replayed"], true);
}

fn copies(world: &World) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.file("copies")).unwrap().map(|entry| entry.unwrap().path());
    let mut copies: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "db")).collect();
    copies.sort();
    copies
}

#[test]
fn copies_are_made_of_which_the_newest_are_kept_and_one_can_be_restored() {
    let world = World::new();
    let folder = world.file("copies");
    fs::create_dir(&folder).unwrap();
    let token = world.token("ada", "ada@acme", "write-notes");
    let bystander = folder.join("other-20200101T000000Z.db");
    fs::write(&bystander, "").unwrap();
    let of_test = || copies(&world).into_iter().filter(|copy| *copy != bystander).collect::<Vec<_>>();
    let folder = folder.display().to_string();
    let mut server = world.serve(&["--backup", &folder, "--backup-every", "1s", "--backup-keep", "2"]);
    let note = server.caller(&token).call("create_note", &note("k", "hello"));
    assert_eq!(note.outcome(), FRESH);
    let first = until(|| of_test().first().cloned());

    world.until_logged(": copied copy=", 4);
    until(|| (!first.exists()).then_some(()));
    server.stop();

    let copies = of_test();
    assert_eq!(copies.len(), 2, "{copies:?}");
    assert!(bystander.exists());
    let restored = world.beside("restored.db");
    let ran = restored.run(&["restore", &copies[1].display().to_string()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(
        restored.text("SELECT body FROM notes WHERE note_id = ?1", [note.reply["note_id"].as_str().unwrap()]),
        "hello"
    );
    restored.assert_whole();
}

/// Whoever moves the file away has not stopped the server: nothing more is told to have been done in it.
#[test]
fn nothing_succeeds_while_the_database_is_not_in_its_place() {
    let world = World::new();
    let mut pipe = world.pipe(STATELESS, &[]);
    assert_eq!(pipe.call("create_note", &note("before", "hello")).outcome(), FRESH);
    let elsewhere = world.file("elsewhere.db");
    fs::rename(world.path(), &elsewhere).unwrap();

    let told = pipe.call("create_note", &note("k", "hello"));
    assert!(told.is_error && told.reply["retryable"] == true, "{told:?}");
    assert!(!world.path().exists());

    fs::rename(&elsewhere, world.path()).unwrap();
    assert!(!pipe.call("create_note", &note("k", "hello")).is_error);
    assert_eq!(pipe.call("create_note", &note("before", "hello")).outcome(), REPLAYED);
    pipe.close();
    pipe.rest();
    assert_eq!((pipe.process.wait().code(), world.number("SELECT count(*) FROM notes")), (Some(0), 2));
    world.assert_whole();
}

/// What is asked about in vain would end as unknown, for good.
#[test]
fn a_restored_copy_is_served_without_a_worker_until_it_is_accepted() {
    let (world, provider) = (World::new(), full(&[]));
    world.deploy("k");
    let copy = world.file("copy").to_str().unwrap().to_owned();
    assert_eq!(world.run(&["backup", &copy]).code, 0);
    let restored = world.beside("restored.db");
    assert_eq!(restored.run(&["restore", &copy]).code, 0);
    let token = restored.token("ada", "ada@acme", "read,read-metrics");
    let url = provider.url();
    let arguments = ["--provider", &url, "--contract", FULL, "--poll", "1ms"];

    let mut server = restored.serve(&arguments);
    restored.until_logged("a copy that was not accepted yet", 1);
    let caller = server.caller(&token);
    // It counts as possibly sent, and nobody has asked.
    until(|| (caller.metric("counterfoil_operations{state=\"running\"}") == 1).then_some(()));
    server.stop();
    assert_eq!(provider.effects()["total"], 0, "{}", provider.effects());

    assert_eq!(restored.run(&["restored", "--accept"]).code, 0);
    let server = restored.serve(&arguments);
    let caller = server.caller(&token);
    until(|| (caller.metric("counterfoil_operations{state=\"succeeded\"}") == 1).then_some(()));
}

#[test]
fn a_restored_copy_is_served_and_refuses_new_keys_until_it_is_accepted() {
    let world = World::new();
    assert_eq!(world.call("create_note", &note("before", "hello")).code, 0);
    let copy = world.file("copy.db").display().to_string();
    assert_eq!(world.run(&["backup", &copy]).code, 0);
    let restored = world.beside("restored.db");
    assert_eq!(restored.run(&["restore", &copy]).code, 0);
    let mut pipe = restored.pipe(STATELESS, &[]);

    assert_eq!(pipe.call("create_note", &note("before", "hello")).outcome(), REPLAYED);
    let told = pipe.call("create_note", &note("new", "hello"));
    assert_eq!((told.outcome(), &told.reply["retryable"]), ((true, false, "unconfirmed"), &json!(false)));
}

#[test]
fn what_has_expired_is_swept_while_it_serves() {
    let world = World::new();
    for key in ["old", "new"] {
        assert_eq!(world.call("create_note", &note(key, "hello")).code, 0);
    }
    world.edit("UPDATE receipts SET valid_until = 1 WHERE idempotency_key = 'old'");
    let token = world.token("ada", "ada@acme", "write-notes");
    let mut command = world.http_with(component(), &["--sweep-every", "1s"]);
    let mut server = Server::start(&world, command.env("COUNTERFOIL_RETENTION", "1d"));

    world.until_logged("receipts swept swept=1", 1);

    let mut ada = server.caller(&token);
    assert_eq!(ada.call("create_note", &note("old", "hello")).outcome(), (true, false, "key_expired"));
    assert_eq!(ada.call("create_note", &note("new", "hello")).outcome(), REPLAYED);
    let day = ada.call("create_note", &note("day", "hello"));
    server.stop();
    let tombstones = "SELECT count(*) FROM receipts WHERE arguments = '' AND result = ''";
    assert_eq!((world.number(tombstones), world.number("SELECT count(*) FROM receipts")), (1, 3));
    assert_eq!(world.number("SELECT count(*) FROM notes"), 3);
    let kept = "SELECT valid_until - committed_at FROM receipts WHERE idempotency_key = 'day'";
    assert_eq!((day.outcome(), world.number(kept)), (FRESH, 86_400_000));
    world.assert_whole();
}
