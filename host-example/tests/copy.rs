//! Copies of databases that SQLite itself is using, or was when it died.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]

use host_example::{CopyError, Files, OpenError};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NO_WAIT: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(10);

/// A database with a note in it, in a folder of its own, which is removed at the end.
struct Database(TempDir);

impl Database {
    fn new() -> Database {
        let db = Database(TempDir::new().unwrap());
        db.sql("CREATE TABLE notes (body); INSERT INTO notes VALUES ('there')");
        db
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn files(&self) -> Files {
        Files::shared(&self.path("test.db")).unwrap()
    }

    fn copy(&self, wait: Duration) -> Result<(), CopyError> {
        self.files().copy(&self.path("copy.db"), wait)
    }

    fn sql(&self, sql: &str) -> String {
        Native::start(&self.path("test.db")).ask(sql)
    }

    /// The notes in the copy, which is a sound database.
    fn copied(&self) -> String {
        let mut copy = Native::start(&self.path("copy.db"));
        assert_eq!(copy.ask("PRAGMA integrity_check"), "ok");
        copy.ask("SELECT body FROM notes")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// SQLite in a process of its own, on one connection, which waits for no lock.
struct Native(Child, BufReader<std::process::ChildStdout>);

impl Native {
    fn start(database: &Path) -> Native {
        const SCRIPT: &str = "import sqlite3, sys\n\
            connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n\
            for line in sys.stdin:\n\
            \x20 rows = [row for sql in line.split(';') for row in connection.execute(sql)]\n\
            \x20 print(*(value for row in rows for value in row), flush=True)";
        let mut python = Command::new("python3");
        python.args(["-c", SCRIPT]).arg(database).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Native(child, answers)
    }

    /// Statements, separated by `;`, and all values that they answer.
    fn ask(&mut self, sql: &str) -> String {
        writeln!(self.0.stdin.as_ref().unwrap(), "{sql}").unwrap();
        let mut answer = String::new();
        self.1.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "SQLite failed: {sql}");
        answer.trim_end().to_owned()
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[track_caller]
fn assert_unsettled(result: &Result<(), CopyError>) {
    assert!(matches!(result, Err(CopyError::Unsettled(_))), "{result:?}");
}

#[test]
fn a_copy_is_a_database_of_its_own_with_the_same_permissions() {
    let db = Database::new();
    fs::set_permissions(db.path("test.db"), fs::Permissions::from_mode(0o640)).unwrap();

    db.copy(NO_WAIT).unwrap();

    assert_eq!(fs::read(db.path("copy.db")).unwrap(), fs::read(db.path("test.db")).unwrap());
    assert_eq!(fs::metadata(db.path("copy.db")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(db.names(), ["copy.db", "test.db"]);
    db.sql("INSERT INTO notes VALUES ('later')");
    assert_eq!(db.copied(), "there");
}

#[test]
fn a_copy_beside_a_reader_and_a_writer_has_what_was_committed_and_hinders_neither() {
    let db = Database::new();
    let mut reader = Native::start(&db.path("test.db"));
    let mut writer = Native::start(&db.path("test.db"));
    assert_eq!(reader.ask("BEGIN; SELECT body FROM notes"), "there");
    // Without syncs the journal has its first bytes from the beginning, as a hot one has.
    writer.ask("PRAGMA synchronous = OFF; BEGIN IMMEDIATE; INSERT INTO notes VALUES ('uncommitted')");
    assert_ne!(fs::read(db.path("test.db-journal")).unwrap()[0], 0);

    db.copy(NO_WAIT).unwrap();

    assert_eq!(db.copied(), "there");
    reader.ask("COMMIT");
    writer.ask("COMMIT");
    assert_eq!(db.sql("SELECT body FROM notes"), "there uncommitted");
}

#[test]
fn a_writer_who_commits_is_waited_for_within_the_bound() {
    let db = Database::new();
    let mut writer = Native::start(&db.path("test.db"));
    writer.ask("BEGIN EXCLUSIVE; INSERT INTO notes VALUES ('second')");

    let start = Instant::now();
    let refused = db.copy(Duration::from_millis(100));
    let waited = start.elapsed();

    assert!(matches!(refused, Err(CopyError::Open(OpenError::Busy(_)))), "{refused:?}");
    assert!(waited >= Duration::from_millis(100) && waited < LONG, "{waited:?}");
    assert_eq!(db.names(), ["test.db", "test.db-journal"]);
    thread::scope(|scope| {
        let copying = scope.spawn(|| db.copy(LONG));
        thread::sleep(Duration::from_millis(50));
        writer.ask("COMMIT");
        copying.join().unwrap().unwrap();
    });
    assert_eq!(db.copied(), "there second");
}

#[test]
fn a_database_with_an_owner_is_not_copied() {
    let db = Database::new();
    let files = db.files();
    let owner = Files::sole(&db.path("test.db"), NO_WAIT).unwrap();

    let refused = files.copy(&db.path("copy.db"), LONG);

    assert!(matches!(refused, Err(CopyError::Open(OpenError::Owned(_, Some(_))))), "{refused:?}");
    drop(owner);
    db.copy(NO_WAIT).unwrap();
}

/// With a small cache SQLite writes to the file before the commit.
#[test]
fn a_journal_whose_writer_died_is_noticed() {
    let db = Database::new();
    let mut writer = Native::start(&db.path("test.db"));
    writer.ask("PRAGMA cache_size = 2; BEGIN");
    for _ in 0..20 {
        writer.ask("INSERT INTO notes VALUES (hex(zeroblob(5000)))");
    }
    assert!(matches!(db.copy(NO_WAIT), Err(CopyError::Open(OpenError::Busy(_)))), "nothing was written early");
    writer.kill();

    assert_unsettled(&db.copy(NO_WAIT));
    assert_unsettled(&Files::sole(&db.path("test.db"), NO_WAIT).unwrap().copy(&db.path("copy.db"), NO_WAIT));

    assert_eq!(db.names(), ["test.db", "test.db-journal"]);
    assert_eq!(db.sql("SELECT body FROM notes"), "there");
    db.copy(NO_WAIT).unwrap();
    assert_eq!(db.copied(), "there");
}

#[test]
fn a_journal_that_is_kept_and_not_hot_is_in_nobodys_way() {
    let db = Database::new();
    db.sql("PRAGMA journal_mode = PERSIST; INSERT INTO notes VALUES ('second')");
    assert!(fs::metadata(db.path("test.db-journal")).unwrap().len() > 0);

    db.copy(NO_WAIT).unwrap();

    assert_eq!(db.copied(), "there second");
}

#[test]
fn a_shared_database_that_says_wal_is_never_trusted() {
    let db = Database::new();
    let mut native = Native::start(&db.path("test.db"));
    native.ask("PRAGMA journal_mode = WAL; INSERT INTO notes VALUES ('in the WAL')");
    assert_unsettled(&db.copy(NO_WAIT));
    native.ask("PRAGMA wal_checkpoint(TRUNCATE)");
    assert_eq!(fs::metadata(db.path("test.db-wal")).unwrap().len(), 0);
    assert_unsettled(&db.copy(NO_WAIT));
    drop(native);
    assert_eq!(db.names(), ["test.db"]);
    assert_unsettled(&db.copy(NO_WAIT));

    db.sql("PRAGMA journal_mode = TRUNCATE");

    db.copy(NO_WAIT).unwrap();
    assert_eq!(db.copied(), "there in the WAL");
}

#[test]
fn an_owner_copies_a_wal_database_once_the_wal_is_empty() {
    let db = Database::new();
    let mut native = Native::start(&db.path("test.db"));
    native.ask("PRAGMA journal_mode = WAL; INSERT INTO notes VALUES ('second')");
    native.kill();
    let copy = || Files::sole(&db.path("test.db"), NO_WAIT).unwrap().copy(&db.path("copy.db"), NO_WAIT);

    assert_unsettled(&copy());
    db.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    copy().unwrap();

    assert_eq!(db.copied(), "there second");
}

#[test]
fn what_is_in_the_way_of_a_copy_is_named_and_left_as_it_is() {
    for name in ["copy.db", "copy.db-journal", "copy.db-wal", "copy.db.partial"] {
        let db = Database::new();
        fs::write(db.path(name), "precious").unwrap();

        match db.copy(NO_WAIT) {
            Err(CopyError::Exists(path)) => assert_eq!(path.canonicalize().unwrap(), db.path(name)),
            other => panic!("{name}: {other:?}"),
        }

        assert_eq!(fs::read(db.path(name)).unwrap(), b"precious");
        assert_eq!(db.names(), [name, "test.db"]);
    }
}

#[test]
fn a_place_that_no_copy_can_have_is_named() {
    let db = Database::new();
    fs::create_dir(db.path("folder")).unwrap();
    std::os::unix::fs::symlink(db.path("nowhere"), db.path("link")).unwrap();
    let before = db.names();
    for name in ["absent/copy.db", "folder", "link", "test.db-journal", "test.db-wal"] {
        let error = db.files().copy(&db.path(name), NO_WAIT).unwrap_err();

        assert!(matches!(error, CopyError::Io(..)), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(db.names(), before);
    }
    let error = db.files().copy(&db.path("test.db"), NO_WAIT).unwrap_err();
    assert!(matches!(error, CopyError::Exists(_)), "{error:?}");
}

#[test]
fn a_database_that_is_not_there_is_not_copied() {
    let db = Database::new();
    let error = Files::shared(&db.path("absent.db")).unwrap().copy(&db.path("copy.db"), NO_WAIT).unwrap_err();

    assert!(matches!(error, CopyError::Open(OpenError::Io(..))), "{error:?}");
    assert_eq!(db.names(), ["test.db"]);
}

/// In a process of its own, whose files may not grow beyond 1 KiB.
#[test]
fn a_copy_for_which_there_is_no_room_leaves_nothing() {
    const VARIABLE: &str = "COPY_THE_DATABASE_IN";
    if let Ok(folder) = std::env::var(VARIABLE) {
        let folder = Path::new(&folder);
        let error = Files::shared(&folder.join("test.db")).unwrap().copy(&folder.join("copy.db"), NO_WAIT).unwrap_err();
        assert!(matches!(error, CopyError::Io(..)), "{error:?}");
        return;
    }
    let db = Database::new();

    let mut limited = Command::new("bash");
    limited.args(["-c", r#"ulimit -f 1; trap "" XFSZ; exec "$0" --exact "$1""#]).arg(std::env::current_exe().unwrap());
    limited.arg("a_copy_for_which_there_is_no_room_leaves_nothing").env(VARIABLE, db.0.path());
    let output = limited.output().unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(db.names(), ["test.db"]);
}

/// Each commit adds a note and counts it, in a page of its own.
#[test]
fn copies_made_while_others_write_are_each_of_one_moment() {
    const COPIES: usize = 10;
    let db = Database::new();
    db.sql("CREATE TABLE counted (n); INSERT INTO counted SELECT count(*) FROM notes");
    let script = "import sqlite3, sys, random\n\
        connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)\n\
        connection.execute('PRAGMA cache_size = 2')\n\
        print('ready', flush=True)\n\
        while True:\n\
        \x20 connection.execute('BEGIN IMMEDIATE')\n\
        \x20 connection.execute('INSERT INTO notes VALUES (hex(zeroblob(3000)))')\n\
        \x20 connection.execute('UPDATE counted SET n = n + 1')\n\
        \x20 connection.execute(random.choice(['COMMIT', 'COMMIT', 'ROLLBACK']))";
    let mut writers: Vec<_> = (0..2)
        .map(|_| {
            let mut python = Command::new("python3");
            python.args(["-c", script]).arg(db.path("test.db")).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for writer in &mut writers {
        BufReader::new(writer.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    }

    let start = Instant::now();
    let mut counts = Vec::new();
    while counts.len() < COPIES {
        match db.copy(LONG) {
            Ok(()) => {
                let mut copy = Native::start(&db.path("copy.db"));
                assert_eq!(copy.ask("PRAGMA integrity_check"), "ok");
                assert_eq!(copy.ask("SELECT count(*) - (SELECT n FROM counted) FROM notes"), "0");
                counts.push(copy.ask("SELECT n FROM counted").parse::<u32>().unwrap());
                drop(copy);
                fs::remove_file(db.path("copy.db")).unwrap();
            }
            // A writer undid its changes between the two looks.
            Err(CopyError::Unsettled(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < 10 * LONG, "only {} copies", counts.len());
    }
    for mut writer in writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }

    assert!(counts.is_sorted() && counts.first() < counts.last(), "nobody wrote: {counts:?}");
}
