//! Several instances, threads and processes on one file, and what is left when one of them is killed.

use crate::harness::*;
use host_example::{Error, Files, LockLevel, OpenError, Part, Sharing, Storage, StorageFile};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// An automation of which every edit through the component counts, by a trigger, in the same transaction as native increments
/// of the same counter do.
pub fn counted_automation(db: &Database) -> Value {
    let automation = db.shared().call("create_automation", &automation("auto", 60));
    db.sql("CREATE TABLE counter (n INTEGER NOT NULL)");
    db.sql("INSERT INTO counter VALUES (0)");
    db.sql("CREATE TRIGGER counts AFTER UPDATE ON automations BEGIN UPDATE counter SET n = n + 1; END");
    automation
}

/// How many of the replies are fresh, how many are replays, and how many conflict. There are no others.
fn tally(replies: &[Value]) -> (usize, usize, usize) {
    let count = |field: &str, value: Value| replies.iter().filter(|reply| reply[field] == value).count();
    let conflicts = count("code", json!("key_conflict"));
    let replays = count("replayed", json!(true));
    let fresh = count("status", json!("succeeded")) - replays;
    assert_eq!(fresh + replays + conflicts, replies.len(), "{replies:?}");
    (fresh, replays, conflicts)
}

/// C4, incident 2.
#[test]
fn of_simultaneous_equal_calls_by_threads_one_is_fresh_and_the_others_replay() {
    let db = Database::new();
    for round in 0..5 {
        let key = format!("key-{round}");
        let replies: Vec<Value> = thread::scope(|scope| {
            let racers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| db.shared().call("create_note", &note(&key, "raced")))).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        assert_eq!(tally(&replies), (1, 7, 0));
        assert!(replies.iter().all(|reply| reply["note_id"] == replies[0]["note_id"]));
    }
    assert_eq!((db.count("notes"), db.count("receipts")), ("5".to_owned(), "5".to_owned()));
}

#[test]
fn of_simultaneous_equal_calls_by_processes_one_is_fresh_and_the_others_replay() {
    let db = Database::new();
    let racers: Vec<Child> = (0..6).map(|_| db.start("create_note", &note("key-1", "raced"))).collect();
    let replies: Vec<Value> = racers.into_iter().map(|racer| finish(racer).1).collect();
    assert_eq!(tally(&replies), (1, 5, 0));
    assert_eq!((db.count("notes"), db.count("receipts")), ("1".to_owned(), "1".to_owned()));
}

/// C4: which one wins is not specified.
#[test]
fn of_simultaneous_unequal_calls_one_wins_and_the_others_are_refused() {
    let db = Database::new();
    let bodies: Vec<String> = (0..6).map(|number| format!("body {number}")).collect();
    let by_threads: Vec<Value> = thread::scope(|scope| {
        let racers: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| db.shared().call("create_note", &note("key-1", body)))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(tally(&by_threads), (1, 0, 5));
    let racers: Vec<Child> = bodies.iter().map(|body| db.start("create_note", &note("key-2", body))).collect();
    let by_processes: Vec<Value> = racers.into_iter().map(|racer| finish(racer).1).collect();
    assert_eq!(tally(&by_processes), (1, 0, 5));
    assert_eq!((db.count("notes"), db.count("receipts")), ("2".to_owned(), "2".to_owned()));
}

/// Each edits the version that it has read, until the edit is its own: with the locks gone, edits would be lost.
#[test]
fn instances_processes_and_native_sqlite_lose_no_edit_of_one_counter() {
    const EACH: u32 = 25;
    let db = Database::new();
    let automation = counted_automation(&db);
    let id = automation["automation_id"].as_str().unwrap();
    thread::scope(|scope| {
        for thread in 0..3 {
            let db = &db;
            scope.spawn(move || {
                let mut client = db.shared();
                for number in 0..EACH {
                    edit_until_done(&format!("t{thread}-{number}"), id, |tool, arguments| client.call(tool, arguments));
                }
            });
        }
        scope.spawn(|| {
            for number in 0..EACH / 5 {
                edit_until_done(&format!("p-{number}"), id, |tool, arguments| db.call_in_process(tool, arguments).1);
            }
        });
        scope.spawn(|| {
            for _ in 0..EACH {
                while db.try_sql("PRAGMA busy_timeout = 1000; UPDATE counter SET n = n + 1").is_err() {}
            }
        });
    });
    let edits = 3 * EACH + EACH / 5;
    assert_eq!(db.sql("SELECT n FROM counter"), (edits + EACH).to_string());
    assert_eq!(db.sql("SELECT version FROM automations"), (edits + 1).to_string());
    assert_eq!(db.sql("PRAGMA integrity_check"), "ok");
    assert_eq!(db.shared().verify(), Vec::<String>::new());
}

fn edit_until_done(key: &str, automation_id: &str, mut call: impl FnMut(&str, &Value) -> Value) {
    let automation = json!({ "automation_id": automation_id });
    for attempt in 0.. {
        let now = call("get_automation", &automation);
        let Some(version) = now["version"].as_u64() else {
            assert_eq!(now["code"], "busy", "{now}");
            continue;
        };
        let edit = interval(&format!("{key}-{attempt}"), &automation, version as u32, 5 + attempt % 1000);
        let reply = loop {
            let reply = call("set_interval", &edit);
            if reply["code"] != "busy" {
                break reply;
            }
        };
        if reply["status"] == "succeeded" {
            return;
        }
        assert_refused(&reply, "version_conflict");
    }
}

/// C6.
#[test]
fn a_lock_held_longer_than_the_wait_is_answered_busy_and_nothing_is_invented() {
    let db = Database::new();
    let first = db.shared().call("create_note", &note("key-1", "first"));
    let lock = NativeLock::write(&db);
    let refused = db.shared().call("create_note", &note("key-2", "second"));
    assert_refused(&refused, "busy");
    assert_eq!((&refused["retryable"], &refused["retry_after_ms"]), (&json!(true), &json!(250)));
    // A replay needs no write lock.
    assert_replay_of(&first, &db.shared().call("create_note", &note("key-1", "first")));
    drop(lock);
    assert_eq!(db.count("notes"), "1");
    assert_fresh(&db.shared().call("create_note", &note("key-2", "second")));
}

#[test]
fn a_file_with_an_owner_is_closed_to_everybody_else() {
    let db = Database::new();
    let mut owner = db.sole();
    assert_fresh(&owner.call("create_note", &note("key-1", "first")));
    let pid = std::process::id().to_string();
    let who = |result: Result<Files, OpenError>| match result {
        Err(OpenError::Owned(_, Some(who))) => who.split(' ').next().unwrap().to_owned(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("opened"),
    };
    assert_eq!(who(Files::shared(&db.path())), pid);
    assert_eq!(who(Files::sole(&db.path(), Duration::ZERO)), pid);
    assert!(db.try_sql("SELECT count(*) FROM notes").unwrap_err().contains("database is locked"));
    assert_fresh(&owner.call("create_note", &note("key-2", "second")));
    drop(owner);
    assert_eq!(db.shared().call("create_note", &note("key-2", "second"))["replayed"], true);
}

/// An instance that came first finds the file taken, and as it was left, without being told.
#[test]
fn an_instance_that_shares_outlives_an_owner_that_comes_and_goes() {
    let db = Database::new();
    let mut shared = db.shared();
    let first = shared.call("create_note", &note("key-1", "first"));
    let mut owner = db.sole();
    assert_replay_of(&first, &owner.call("create_note", &note("key-1", "first")));
    let second = owner.call("create_note", &note("key-2", "second"));
    assert_refused(&shared.call("create_note", &note("key-3", "third")), "busy");
    // Without closing: the WAL is left behind.
    drop(owner);
    assert_replay_of(&second, &shared.call("create_note", &note("key-2", "second")));
    assert_fresh(&shared.call("create_note", &note("key-3", "third")));
    assert_eq!(db.sql("SELECT body FROM notes ORDER BY 1"), "first\nsecond\nthird");
}

#[test]
fn an_owner_waits_for_those_who_use_the_file_and_not_for_ever() {
    let db = Database::new();
    assert_fresh(&db.shared().call("create_note", &note("key-1", "first")));
    let lock = NativeLock::write(&db);
    assert!(matches!(Files::sole(&db.path(), Duration::from_millis(50)), Err(OpenError::Busy(_))));
    drop(lock);
    assert_eq!(db.sole().call("create_note", &note("key-1", "first"))["replayed"], true);
}

/// An owner that waits for a writer keeps nobody else waiting, and no lock that the writer needs for its commit.
#[test]
fn an_owner_that_waits_lets_readers_in_and_writers_finish() {
    let db = Database::new();
    assert_fresh(&db.shared().call("create_note", &note("key-0", "old")));
    let writer = NativeLock::write(&db);
    thread::scope(|scope| {
        let owner = scope.spawn(|| Files::sole(&db.path(), Duration::from_secs(60)).map(drop));
        // Now and then the owner is in the way for a moment.
        let read = |_: &usize| db.try_sql("SELECT count(*) FROM notes") == Ok("1".to_owned());
        assert_eq!((0..1000).filter(read).take(50).count(), 50);
        drop(writer);
        owner.join().unwrap().unwrap();
    });
    let mut client = db.shared();
    let reader = NativeLock::read(&db);
    thread::scope(|scope| {
        let owner = scope.spawn(|| Files::sole(&db.path(), Duration::from_secs(60)).map(drop));
        let writer = scope.spawn(|| client.call("create_note", &note("key-1", "first")));
        drop(reader);
        // It may have come while the owner had the file, and can say so.
        let reply = writer.join().unwrap();
        assert!(reply["status"] == "succeeded" || reply["code"] == "busy", "{reply}");
        owner.join().unwrap().unwrap();
    });
    assert_eq!(db.shared().verify(), Vec::<String>::new());
}

#[test]
fn a_link_to_a_database_that_is_not_there_is_refused() {
    let db = Database::new();
    let link = db.path().with_extension("link");
    std::os::unix::fs::symlink(db.path(), &link).unwrap();
    assert!(matches!(Files::shared(&link), Err(OpenError::Io(..))));
    assert_fresh(&db.shared().call("create_note", &note("key-1", "first")));
    // Once its target is there, both names are one database.
    let mut client = Client::new(host(), Files::shared(&link).unwrap());
    assert_eq!(client.call("create_note", &note("key-1", "first"))["replayed"], true);
}

/// The journal and the WAL hold what the database holds.
#[test]
fn whoever_may_not_read_the_database_may_not_read_its_journal_or_wal() {
    use std::os::unix::fs::PermissionsExt;
    let db = Database::new();
    std::fs::File::create(db.path()).unwrap().set_permissions(PermissionsExt::from_mode(0o600)).unwrap();
    let mode = |name: &str| {
        let path = db.path().with_extension(name);
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    let mut shared = db.shared();
    assert_fresh(&shared.call("create_note", &note("key-1", "first")));
    assert_eq!(mode("db-journal"), 0o600);
    drop(shared);
    let mut owner = db.sole();
    assert_fresh(&owner.call("create_note", &note("key-2", "second")));
    assert_eq!(mode("db-wal"), 0o600);
}

/// Incident 18: what dies leaves neither a lock nor a record that blocks.
#[test]
fn a_process_killed_in_the_middle_of_its_commit_leaves_nothing_and_blocks_nobody() {
    let db = Database::new();
    assert_fresh(&db.shared().call("create_note", &note("key-0", "old")));
    kill_at(&db, "shared", "write database 2");
    assert!(db.path().with_extension("db-journal").metadata().unwrap().len() > 0, "the journal is hot");
    let mut client = db.shared();
    assert_fresh(&client.call("create_note", &note("key-1", "killed")));
    assert_eq!(client.verify(), Vec::<String>::new());
    assert_eq!(db.sql("SELECT body FROM notes ORDER BY 1"), "killed\nold");
}

/// C2 with real processes: the commit is in the page cache only, and is recognised.
#[test]
fn a_process_killed_between_write_and_sync_has_committed_once() {
    for (mode, at) in [("sole", "sync wal 2"), ("shared", "sync journal 3")] {
        let db = Database::new();
        assert_fresh(&db.shared().call("create_note", &note("key-0", "old")));
        kill_at(&db, mode, at);
        let (exit, reply) = db.call_in_process("create_note", &note("key-1", "killed"));
        assert_eq!((exit, &reply["replayed"]), (0, &json!(true)), "{mode}: {reply}");
        assert_eq!(db.sql("SELECT count(*) FROM notes WHERE body = 'killed'"), "1");
        assert_eq!(db.shared().verify(), Vec::<String>::new());
    }
}

/// Creates a note in a process of its own, which stops in the given call to storage and is killed there.
fn kill_at(db: &Database, mode: &str, at: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "concurrency::child", "--nocapture"]);
    child.env("TEST_CHILD", format!("{mode}/{at}")).env("TEST_DATABASE", db.path());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("stopped")), "{mode} never came to {at}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What [`kill_at`] starts. By itself it does nothing.
#[test]
fn child() {
    let Ok(order) = std::env::var("TEST_CHILD") else { return };
    let database = std::env::var_os("TEST_DATABASE").unwrap();
    let (mode, at) = order.split_once('/').unwrap();
    let files = match mode {
        "sole" => Files::sole(Path::new(&database), Duration::from_secs(5)).unwrap(),
        _ => Files::shared(Path::new(&database)).unwrap(),
    };
    let mut client = Client::new(host(), Stopping { files, at: at.to_owned() });
    client.call("create_note", &note("key-1", "killed"));
}

/// Files that stop for ever in one call, such as the second write to the database since the transaction's first write.
struct Stopping {
    files: Files,
    at: String,
}

impl Storage for Stopping {
    fn sharing(&self) -> Result<Sharing, String> {
        self.files.sharing()
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let file = self.files.open(part, create)?;
        let name = ["database", "journal", "wal"][part as usize];
        Ok(Box::new(StoppingFile { file, name, at: self.at.clone(), writes: 0, syncs: 0 }))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        self.files.exists(part)
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        self.files.remove(part)
    }
}

struct StoppingFile {
    file: Box<dyn StorageFile>,
    name: &'static str,
    at: String,
    writes: u32,
    syncs: u32,
}

impl StoppingFile {
    fn stop_if(&self, here: &str) {
        if self.at == here {
            println!("\nstopped");
            loop {
                thread::park();
            }
        }
    }
}

impl StorageFile for StoppingFile {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.file.read(offset, length)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.writes += 1;
        self.stop_if(&format!("write {} {}", self.name, self.writes));
        self.file.write(offset, bytes)
    }

    fn size(&mut self) -> Result<u64, Error> {
        self.file.size()
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.file.set_size(size)
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.syncs += 1;
        self.stop_if(&format!("sync {} {}", self.name, self.syncs));
        self.file.sync()
    }

    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        self.file.lock(level)
    }

    fn unlock(&mut self, level: LockLevel) -> Result<(), Error> {
        self.file.unlock(level)
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        self.file.is_reserved()
    }
}
