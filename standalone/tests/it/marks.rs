//! One database, one kind of host: those that lock files and the standalone component, which cannot see those locks,
//! keep each other out by what stands under the name `counterfoil.db-lock`, until an operator says otherwise.

use crate::harness::service;
use crate::plain::Deployment;
use host_example::types::{NoteCreated, Refusal, RefusalCode};
use host_example::{CopyError, Files, Host, Instance, Limits, OpenError, Principal};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;
use tempfile::{TempDir, tempdir};

const MARK: &str = "counterfoil.db-lock";

/// A host that locks files.
fn locking() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::load(service(), Limits::default()).unwrap())
}

fn instance(files: Files) -> Instance {
    let ada = Principal {
        workspace: "acme".to_owned(),
        subject: "ada".to_owned(),
        permissions: vec!["write-notes".to_owned()],
    };
    locking().instance(move |_| Some(ada.clone()), files).unwrap()
}

fn create_note(instance: &mut Instance, key: &str) -> Value {
    let reply = instance.call_one("create_note", &json!({ "idempotency_key": key, "body": key }).to_string()).unwrap();
    serde_json::from_str(&reply.body).unwrap()
}

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempdir().unwrap())
    }

    fn database(&self) -> PathBuf {
        self.0.path().join("counterfoil.db")
    }

    fn mark(&self) -> PathBuf {
        self.0.path().join(MARK)
    }

    fn shared(&self) -> Result<Files, OpenError> {
        Files::shared(&self.database())
    }

    fn sole(&self) -> Result<Files, OpenError> {
        Files::sole(&self.database(), Duration::from_secs(2))
    }

    /// As the standalone component creates a note.
    fn standalone(&self, key: &str) -> Result<NoteCreated, Refusal> {
        Deployment::new(self.0.path()).create_note(key, key)
    }

    #[track_caller]
    fn refuses_standalone(&self) {
        let refusal = self.standalone("by-standalone").unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), (RefusalCode::Unavailable, false), "{refusal:?}");
        assert!(refusal.message.contains(MARK), "{refusal:?}");
        assert!(self.mark().is_file());
    }

    #[track_caller]
    fn refuses_locking(&self) {
        let mark = fs::canonicalize(self.mark()).unwrap();
        for refused in [self.shared(), self.sole()] {
            assert_is_standalone(&refused.err().expect("it is refused"), &mark);
        }
    }

    /// The keys of all notes, read natively once nobody uses the database.
    fn notes(&self) -> Vec<String> {
        let database = rusqlite::Connection::open(self.database()).unwrap();
        let mut notes =
            database.prepare("SELECT body FROM notes JOIN receipts USING (operation_id) ORDER BY 1").unwrap();
        notes.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

#[track_caller]
fn assert_is_standalone(error: &OpenError, mark: &Path) {
    assert!(matches!(error, OpenError::Standalone(_, lock) if lock == mark), "{error:?}");
    assert!(error.to_string().contains(&mark.display().to_string()), "{error}");
}

/// The same note and the same operation, whoever made it.
#[track_caller]
fn assert_same(by_locking: &Value, by_standalone: &NoteCreated) {
    let NoteCreated { note_id, receipt } = by_standalone;
    assert_eq!([&by_locking["note_id"], &by_locking["operation_id"]], [note_id, &receipt.operation_id], "{by_locking}");
    assert_ne!(by_locking["replayed"], receipt.replayed);
}

#[test]
fn a_database_that_a_host_with_locks_has_opened_is_refused_by_the_standalone_component() {
    for open in [Place::shared, Place::sole] {
        let place = Place::new();
        let mut client = instance(open(&place).unwrap());
        let first = create_note(&mut client, "key");
        assert_eq!(first["replayed"], false, "{first}");

        place.refuses_standalone();
        assert_eq!(create_note(&mut client, "key")["operation_id"], first["operation_id"]);
        drop(client);
        place.refuses_standalone();
        assert_eq!(place.notes(), ["key"]);
    }
}

#[test]
fn a_database_that_the_standalone_component_has_opened_is_refused_by_hosts_with_locks() {
    let place = Place::new();
    let before = place.shared().unwrap();
    assert!(!place.standalone("key").unwrap().receipt.replayed);

    place.refuses_locking();
    assert!(place.mark().is_dir());
    assert!(place.standalone("key").unwrap().receipt.replayed);

    // What was prepared earlier is refused where it would open the database.
    let copy = place.0.path().join("copy.db");
    match before.copy(&copy, Duration::ZERO) {
        Err(CopyError::Open(error)) => assert_is_standalone(&error, &fs::canonicalize(place.mark()).unwrap()),
        other => panic!("{other:?}"),
    }
    assert!(!copy.exists());
    let late = create_note(&mut instance(before), "late");
    assert_eq!([&late["code"], &late["retryable"]], [&json!("unavailable"), &json!(false)], "{late}");
    assert!(late["message"].as_str().unwrap().contains(MARK), "{late}");
    assert_eq!(place.notes(), ["key"]);
}

/// What only copies changes nothing.
#[test]
fn a_copy_that_a_host_with_locks_makes_keeps_nobody_out() {
    let place = Place::new();
    place.standalone("key").unwrap();
    fs::remove_dir_all(place.mark()).unwrap();

    let copy = Place::new();
    place.shared().unwrap().copy(&copy.database(), Duration::ZERO).unwrap();

    assert!(!place.mark().exists() && !copy.mark().exists());
    assert_eq!(copy.notes(), ["key"]);
    assert!(place.standalone("key").unwrap().receipt.replayed);
    assert!(copy.standalone("key").unwrap().receipt.replayed);
}

#[test]
fn once_its_mark_is_removed_a_database_moves_to_the_standalone_component_with_its_receipts() {
    for open in [Place::shared, Place::sole] {
        for closed in [false, true] {
            let place = Place::new();
            let mut client = instance(open(&place).unwrap());
            let first = create_note(&mut client, "key");
            if closed {
                drop(client.close());
            }
            drop(client);
            fs::remove_file(place.mark()).unwrap();

            assert_same(&first, &place.standalone("key").unwrap());
            assert!(!place.standalone("another").unwrap().receipt.replayed);
            assert!(place.standalone("another").unwrap().receipt.replayed);
            place.refuses_locking();
            assert_eq!(place.notes(), ["another", "key"]);
        }
    }
}

/// What a sole owner that was dropped without closing leaves.
#[test]
fn a_write_ahead_log_moves_to_the_standalone_component() {
    let place = Place::new();
    let mut client = instance(place.sole().unwrap());
    let made: Vec<_> = (0..20).map(|number| create_note(&mut client, &format!("key-{number}"))).collect();
    drop(client);
    let log = place.0.path().join("counterfoil.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    fs::remove_file(place.mark()).unwrap();

    for (number, made) in made.iter().enumerate() {
        assert_same(made, &place.standalone(&format!("key-{number}")).unwrap());
    }
    assert!(!log.exists() || fs::metadata(&log).unwrap().len() == 0, "all of it is in the database");
}

#[test]
fn once_its_mark_is_removed_a_database_moves_to_hosts_with_locks_with_its_receipts() {
    for open in [Place::shared, Place::sole] {
        let place = Place::new();
        let first = place.standalone("key").unwrap();
        fs::remove_dir_all(place.mark()).unwrap();

        let mut client = instance(open(&place).unwrap());
        assert_same(&create_note(&mut client, "key"), &first);
        assert_eq!(create_note(&mut client, "another")["replayed"], false);
        place.refuses_standalone();
        drop(client);

        // And back.
        fs::remove_file(place.mark()).unwrap();
        assert!(place.standalone("another").unwrap().receipt.replayed);
        assert_eq!(place.notes(), ["another", "key"]);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Locking,
    Standalone,
}

#[test]
fn of_both_kinds_that_come_at_the_same_moment_one_alone_gets_the_database() {
    const EACH: usize = 3;
    locking();
    Place::new().standalone("compiled").unwrap();
    let mut winners = Vec::new();
    for round in 0..40 {
        let place = Place::new();
        let start = Barrier::new(2 * EACH);
        let by_locking = |number: usize| {
            start.wait();
            // In every other round one of them wants the database for itself.
            let open = if round % 2 == 1 && number == 0 { Place::sole } else { Place::shared };
            let Ok(files) = open(&place) else { return None };
            let answer = create_note(&mut instance(files), &format!("locking-{number}"));
            (answer["status"] == "succeeded").then(|| format!("locking-{number}"))
        };
        let by_standalone = |number: usize| {
            start.wait();
            let key = format!("standalone-{number}");
            place.standalone(&key).is_ok().then_some(key)
        };

        let mut succeeded: Vec<_> = thread::scope(|scope| {
            let racers: Vec<_> = (0..EACH)
                .flat_map(|number| {
                    [scope.spawn(move || by_locking(number)), scope.spawn(move || by_standalone(number))]
                })
                .collect();
            racers.into_iter().filter_map(|racer| racer.join().unwrap()).collect()
        });

        let kind = |key: &String| if key.starts_with("locking") { Kind::Locking } else { Kind::Standalone };
        let winner = kind(succeeded.first().expect("one kind succeeds"));
        assert!(succeeded.iter().all(|key| kind(key) == winner), "round {round}: {succeeded:?}");
        assert_eq!(place.mark().is_dir(), winner == Kind::Standalone, "round {round}");
        succeeded.sort();
        assert_eq!(place.notes(), succeeded, "round {round}");
        winners.push(winner);
    }
    let by_locking = winners.iter().filter(|winner| **winner == Kind::Locking).count();
    eprintln!("hosts with locks came first in {by_locking} of {} rounds", winners.len());
}
