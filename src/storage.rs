//! One SQLite database over the host's `storage`: open, migrate, begin, commit, close.
//!
//! What holds here (contract rules C1 to C6): nothing read is answered before it is durable; a transaction that is
//! dropped is rolled back; a failed commit says whether it may have happened.

use crate::engine;
use crate::imports::storage::{self as host, Sharing};
use crate::refusal::{Failure, Refusal};
use crate::settings;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::cell::{Cell, RefCell};

mod access;
mod file;
mod remains;
mod transaction;
pub(crate) mod vfs;

pub use access::{Snapshot, Transaction};
use remains::{failure, is_wal, rewrite_wal, sync_all};
pub(crate) use transaction::{Begun, CommitError};

/// The tables of a component, and whose they are.
pub struct Schema {
    /// Marks the file as this component's, in SQLite's
    /// [`application_id`](https://sqlite.org/pragma.html#pragma_application_id). Another value is refused.
    pub application_id: i32,
    /// SQL scripts in the order in which they are applied. SQLite's `user_version` counts those that were; a database
    /// with more than are known here is refused. Only ever add to the end.
    pub migrations: &'static [&'static str],
    /// Queries for `verify`, each of which returns a sentence for every fault that it finds.
    pub checks: &'static [&'static str],
}

/// After how many pages a WAL is moved into the database, by whichever call comes then: 8 MB, twice SQLite's default. That call
/// and those that wait for it take many times as long as others, and should be fewer than one in a hundred.
const AUTOCHECKPOINT: u32 = 2000;

pub(crate) struct Database {
    connection: Connection,
    sharing: Sharing,
    /// SQLite's `data_version` when all that was on disk was last made durable.
    durable: Cell<Option<i64>>,
    is_migrated: bool,
}

thread_local! {
    static DATABASE: RefCell<Option<Database>> = const { RefCell::new(None) };
}

/// Runs `work` on the instance's database, which the first call opens.
pub(crate) fn with<T>(schema: &Schema, work: impl FnOnce(&Database) -> Result<T, Refusal>) -> Result<T, Refusal> {
    DATABASE.with_borrow_mut(|slot| {
        if vfs::failed() {
            return Err(Refusal::storage_failed());
        }
        let database = match slot {
            Some(database) => {
                database.reopen_if_moved(schema)?;
                // What SQLite was asked there may have failed, and may now succeed.
                if vfs::failed() {
                    return Err(Refusal::storage_failed());
                }
                database
            }
            None => slot.insert(Database::open(schema)?),
        };
        database.migrate(schema)?;
        work(database)
    })
}

/// Closes the database, so that the file alone holds everything. The next call opens it again.
///
/// After an error it is open as before, unless storage failed.
pub(crate) fn close() -> Result<(), Refusal> {
    // A host that knows of it has taken the files away already.
    if vfs::failed() {
        return Err(Refusal::storage_failed());
    }
    DATABASE.with_borrow_mut(|slot| {
        // What others share, whoever comes next rolls back; it may also be an owner's by now.
        if let Some(database) = slot.as_ref().filter(|database| database.is_owned()) {
            database.checkpoint()?;
        }
        if let Some(database) = slot.take() {
            database.connection.close().map_err(|(_, error)| Refusal::from(error))?;
        }
        if vfs::failed() { Err(Refusal::storage_failed()) } else { Ok(()) }
    })
}

/// Ends the thread's instance.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn reset() {
    drop(DATABASE.take());
    vfs::reset();
}

impl Database {
    /// Opens in the host's sharing mode, whatever mode the file was left in. After an error nothing is open.
    fn open(schema: &Schema) -> Result<Database, Refusal> {
        let lists = |migration| schema.migrations.contains(&migration);
        assert!(
            lists(engine::MIGRATION_1) && lists(engine::MIGRATION_2),
            "the schema must list the engine's migrations"
        );
        let settings = settings::get()?;
        let sharing = host::sharing_mode().map_err(Refusal::not_to_be_opened)?;
        let connection = match sharing {
            Sharing::Sole => open_sole(schema, "wal"),
            Sharing::SoleAtomic => open_sole(schema, "memory"),
            Sharing::Shared => open_shared(schema),
        }?;
        // SQLite's default, which syncs at each commit; EXTRA would add what the VFS does anyway when it removes a file.
        connection.execute_batch("PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF")?;
        connection.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT)?;
        // Negative: kibibytes, not pages.
        connection.pragma_update(None, "cache_size", -1024 * i64::from(settings.cache_mb))?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Database { connection, sharing, durable: Cell::new(None), is_migrated: false })
    }

    /// While this instance held no lock, an owner may have come, switched the file to a WAL, and gone. SQLite then
    /// cannot open it without shared memory, so it is opened anew.
    fn reopen_if_moved(&mut self, schema: &Schema) -> Result<(), Refusal> {
        if self.sharing == Sharing::Shared
            && let Err(error) = self.data_version()
            && error.sqlite_error_code() == Some(ErrorCode::CannotOpen)
            && !vfs::failed()
        {
            *self = Database::open(schema)?;
        }
        Ok(())
    }

    /// Brings the schema up to date. After an error the file holds the old one or the new one; the database stays open, since
    /// what could not be rolled back for want of room still has to be (see [`Database::checkpoint`]).
    fn migrate(&mut self, schema: &Schema) -> Result<(), Refusal> {
        let known = schema.migrations.len();
        if !self.is_migrated && version(&self.connection, schema)? < known {
            self.apply(schema)?;
        }
        self.is_migrated = true;
        Ok(())
    }

    fn apply(&self, schema: &Schema) -> Result<(), Refusal> {
        let write = self.write()?;
        for migration in &schema.migrations[version(&self.connection, schema)?..] {
            self.connection.execute_batch(migration)?;
        }
        self.connection.pragma_update(None, "application_id", schema.application_id)?;
        self.connection.pragma_update(None, "user_version", schema.migrations.len() as i64)?;
        Ok(write.commit()?)
    }

    /// Begins a transaction that sees one state of the database and changes nothing.
    pub fn read(&self) -> rusqlite::Result<Begun<'_>> {
        self.begin("BEGIN DEFERRED")
    }

    /// Begins a transaction that holds the write lock from the start, so that what it looks up stays true until it
    /// commits (contract rule C4).
    pub fn write(&self) -> rusqlite::Result<Begun<'_>> {
        self.begin("BEGIN IMMEDIATE")
    }

    /// Whether nobody else has the file: to begin to write is then to wait for nobody.
    pub fn is_owned(&self) -> bool {
        self.sharing != Sharing::Shared
    }

    fn begin(&self, sql: &'static str) -> rusqlite::Result<Begun<'_>> {
        Begun::new(&self.connection, sql)
    }

    /// Commits. If nothing was changed, SQLite syncs nothing, so what was read is made durable before it is answered
    /// (contract rule C2).
    pub fn commit(&self, write: Begun<'_>) -> Result<(), Refusal> {
        if write.has_changed() {
            return Ok(write.commit()?);
        }
        drop(write);
        self.make_durable()
    }

    /// Returns once all that this connection may have read would survive a power cut (contract rule C2).
    ///
    /// An owner has done so when it opened; where others share the file, one of them may have died between its last
    /// write and the sync.
    pub fn make_durable(&self) -> Result<(), Refusal> {
        if self.is_owned() {
            return Ok(());
        }
        let version = self.data_version()?;
        if self.durable.get() != Some(version) {
            sync_all()?;
            self.durable.set(Some(version));
        }
        Ok(())
    }

    /// Changes when another connection has committed.
    fn data_version(&self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
    }

    /// What is wrong with the file: SQLite's integrity check, effects without their receipt, which the tools' tables
    /// declare as foreign keys, and the component's own checks.
    pub fn check(&self, schema: &Schema) -> Result<Vec<String>, Refusal> {
        const BUILT_IN: [&str; 4] = [
            "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
            r#"SELECT 'a row of ' || "table" || ' has no receipt' FROM pragma_foreign_key_check"#,
            "SELECT 'operation ' || operation_id || ' has an attempt in hand that is not there' FROM operations
             WHERE attempt_id IS NOT NULL AND attempt_id NOT IN (SELECT attempt_id FROM attempts)",
            "SELECT 'the operations in state ' || state || ' are miscounted'
             FROM (SELECT state, count(*) AS found FROM operations GROUP BY state) FULL JOIN operation_counts USING (state)
             WHERE coalesce(found, 0) IS NOT number",
        ];
        let mut wrong = Vec::new();
        for sql in BUILT_IN.iter().chain(schema.checks) {
            let mut check = self.connection.prepare(sql)?;
            for sentence in check.query_map([], |row| row.get(0))? {
                wrong.push(sentence?);
            }
        }
        self.make_durable()?;
        Ok(wrong)
    }

    /// Rolls back what could not be for want of room, and moves the WAL into the database file. When SQLite closes a database, it
    /// drops a journal that is in memory alone (`sole-atomic`), and does not say whether it moved a WAL.
    pub fn checkpoint(&self) -> Result<(), Refusal> {
        // A connection whose rollback failed rolls back before it reads
        // (<https://sqlite.org/src/file/src/pager.c>, at `sqlite3PagerSharedLock`).
        self.data_version()?;
        if self.sharing != Sharing::Sole {
            return Ok(());
        }
        let is_busy: bool = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if is_busy { Err(Refusal::busy()) } else { Ok(()) }
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// The host holds the file for this instance, so SQLite takes its lock once and keeps it.
fn open_sole(schema: &Schema, journal_mode: &str) -> Result<Connection, Failure> {
    let connection = connect()?;
    rewrite_wal().map_err(failure)?;
    // Now that the file is there, so that its existence is durable as well.
    sync_all()?;
    // Before the first read: a WAL without shared memory can be opened in this mode only.
    set(&connection, "locking_mode", "exclusive")?;
    version(&connection, schema)?;
    set(&connection, "journal_mode", journal_mode)?;
    Ok(connection)
}

fn open_shared(schema: &Schema) -> Result<Connection, Failure> {
    let mut attempt = 0;
    loop {
        match try_open_shared(schema) {
            // Two instances that convert a WAL at the same moment are in each other's way: both let go and try again.
            Err(Failure::Storage(error)) if is_in_the_way(&error) && !vfs::failed() && host::wait(attempt) => {
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn is_in_the_way(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked | CannotOpen))
}

fn try_open_shared(schema: &Schema) -> Result<Connection, Failure> {
    let connection = connect()?;
    let is_wal = is_wal()?;
    if is_wal {
        set(&connection, "locking_mode", "exclusive")?;
    }
    version(&connection, schema)?;
    if is_wal {
        // Without shared memory SQLite reads a WAL under the exclusive lock only, and keeps it in this mode.
        rewrite_wal().map_err(failure)?;
    }
    set(&connection, "journal_mode", "truncate")?;
    if is_wal {
        set(&connection, "locking_mode", "normal")?;
        // The exclusive lock is let go at the end of the next read.
        version(&connection, schema)?;
    }
    Ok(connection)
}

/// How many of the schema's migrations the file has. Tested before anything in it is changed.
fn version(connection: &Connection, schema: &Schema) -> Result<usize, Failure> {
    // One statement, since another instance may be making the tables at this moment.
    const SQL: &str = "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
                       FROM pragma_user_version, pragma_application_id";
    let (version, owner, tables): (i64, i64, i64) =
        connection.query_row(SQL, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if owner != i64::from(schema.application_id) && (owner, version, tables) != (0, 0, 0) {
        return Err(Refusal::foreign_database().into());
    }
    match usize::try_from(version) {
        Ok(version) if version <= schema.migrations.len() => Ok(version),
        _ => Err(Refusal::newer_database().into()),
    }
}

fn connect() -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[cfg(not(target_family = "wasm"))]
    vfs::init()?;
    let mut connection = Connection::open_with_flags_and_vfs("database", flags, vfs::NAME)?;
    // As SQLite is compiled for wasm.
    #[cfg(not(target_family = "wasm"))]
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.busy_handler(Some(|attempt: i32| host::wait(attempt.unsigned_abs())))?;
    Ok(connection)
}

/// Sets a pragma that answers the value now in force, which is the old one where SQLite could not comply.
fn set(connection: &Connection, pragma: &str, value: &str) -> Result<(), Failure> {
    let mut statement = connection.prepare(&format!("PRAGMA {pragma} = {value}"))?;
    let mut rows = statement.query([])?;
    let now: String = rows.next()?.map(|row| row.get(0)).transpose()?.unwrap_or_default();
    // The answer comes first: what it changes in the file commits as it ends, and may fail then.
    while rows.next()?.is_some() {}
    if now.eq_ignore_ascii_case(value) { Ok(()) } else { Err(Refusal::wrong_mode().into()) }
}
