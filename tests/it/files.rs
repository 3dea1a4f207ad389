//! Files that are no database of this component's: refused, and left as they are.

use crate::harness::*;
use crate::outbox_harness::deploy;
use host_example::{Files, OpenError};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Duration;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// How a database that cannot be used is opened: as one of many, and as its owner.
const WAYS: [fn(&Database) -> Client; 2] = [Database::shared, Database::sole];

/// Opens the file both ways, and expects a refusal, the file as it was, and nothing beside it.
#[track_caller]
fn assert_left_alone(db: &Database, message: &str) {
    let before = fs::read(db.path()).unwrap();
    for open in WAYS {
        let mut client = open(db);
        for (tool, arguments) in [("create_note", note("k", "hello")), ("get_note", json!({ "note_id": ID }))] {
            let reply = client.call(tool, &arguments);
            assert_refused(&reply, "unavailable");
            assert_eq!((&reply["message"], &reply["retryable"]), (&json!(message), &json!(false)));
        }
        assert_eq!(client.instance.verify().unwrap().unwrap_err().message, message);
        drop(client);
        assert!(fs::read(db.path()).unwrap() == before, "the file was changed");
        let names = fs::read_dir(db.path().parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        // Nothing but the mark, which comes before the first look at the file.
        assert_eq!(names, ["test.db", "test.db-lock"]);
    }
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    for length in [5000, 600, 20, 1] {
        let db = Database::new();
        fs::write(db.path(), &"Dear diary, nothing happened. ".repeat(200)[..length]).unwrap();

        assert_left_alone(&db, "The file is not a SQLite database.");
    }
}

#[test]
fn a_database_of_another_program_is_refused_and_left_as_it_is() {
    for sql in [
        "CREATE TABLE t(x)",
        "CREATE TABLE receipts(x); INSERT INTO receipts VALUES (1)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        "PRAGMA journal_mode = WAL; CREATE TABLE t(x)",
    ] {
        let db = Database::new();
        db.sql(sql);

        assert_left_alone(&db, "The file is the database of another program.");
    }
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_as_it_is() {
    for version in [4, 99, i32::MAX, -1] {
        let db = Database::new();
        let mut client = db.shared();
        assert_fresh(&client.call("create_note", &note("k", "hello")));
        drop(client);
        db.sql(&format!("PRAGMA user_version = {version}"));

        assert_left_alone(&db, "The database was written by a newer version of this component.");

        assert_eq!(counts(&db), ["1", "0", "1"]);
    }
}

/// Version 2 had no effects outside the database.
#[test]
fn a_database_of_the_version_before_is_brought_up_to_date_and_keeps_its_receipts() {
    for open in WAYS {
        let db = Database::new();
        let first = db.shared().call("create_note", &note("k", "hello"));
        let schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY name";
        let newest = db.sql(schema);
        db.sql("DROP TABLE attempts; DROP TABLE operations; DROP TABLE operation_counts; DROP TABLE restored; DROP INDEX receipts_by_expiry");
        db.sql("PRAGMA user_version = 2");

        let mut client = open(&db);
        assert_replay_of(&first, &client.call("create_note", &note("k", "hello")));
        assert_fresh(&client.call("start_deployment", &deploy("k", "web", "r1")));
        assert_eq!(client.verify(), Vec::<String>::new());
        client.instance.close().unwrap().unwrap();
        drop(client);

        assert_eq!((db.sql("PRAGMA user_version"), db.sql(schema)), ("3".to_owned(), newest));
        assert_eq!(db.count("receipts"), "2");
    }
}

#[test]
fn a_damaged_database_is_refused_as_unavailable() {
    let overwrite = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[4096..].fill(0xa5);
        fs::write(path, bytes).unwrap();
    };
    let truncate = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(4096 + 100).unwrap();
    for damage in [overwrite as fn(&Path), truncate] {
        for open in WAYS {
            let db = Database::new();
            let mut client = db.shared();
            assert_fresh(&client.call("create_note", &note("there", "hello")));
            drop(client);
            damage(&db.path());

            let mut client = open(&db);
            let write = client.call("create_note", &note("k", "hello"));
            let replay = client.call("create_note", &note("there", "hello"));
            let read = client.call("get_note", &json!({ "note_id": ID }));

            for reply in [write, replay, read] {
                assert_refused(&reply, "unavailable");
                let expected = (&json!("The database is damaged."), &json!(false));
                assert_eq!((&reply["message"], &reply["retryable"]), expected);
            }
        }
    }
}

#[test]
fn a_folder_that_is_absent_or_no_file_is_named_in_the_error() {
    let db = Database::new();
    let folder = db.path().parent().unwrap().to_owned();
    for path in [folder.join("absent/test.db"), folder.clone(), Path::new("/dev/null/test.db").to_owned()] {
        let errors = [Files::shared(&path).err(), Files::sole(&path, Duration::ZERO).err()];

        for error in errors {
            let text = error.expect("an error").to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.starts_with("cannot open "), "{text}");
        }
    }
    assert!(!folder.join("absent").exists());
}

/// Opening a pipe would wait for ever.
#[test]
fn a_pipe_in_the_place_of_a_database_is_refused_at_once() {
    let db = Database::new();
    assert!(std::process::Command::new("mkfifo").arg(db.path()).status().unwrap().success());
    let refused = |result: Result<Files, OpenError>| match result {
        Err(OpenError::Io(path, error)) => (path, error.to_string()),
        other => panic!("{:?}", other.map(drop)),
    };
    let expected = (db.path(), "not a regular file".to_owned());
    assert_eq!(refused(Files::shared(&db.path())), expected);
    assert_eq!(refused(Files::sole(&db.path(), Duration::ZERO)), expected);
}
