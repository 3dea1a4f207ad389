//! A transaction as the engine uses it: begun, committed or rolled back, with what is known after each.

use super::vfs;
use rusqlite::{Connection, ErrorCode};

/// Why a commit failed, which says what became of the changes.
pub(crate) enum CommitError {
    /// Rolled back: nothing is changed.
    Undone(rusqlite::Error),
    /// Storage failed on the way: the next instance finds all of the changes or none.
    Unknown,
}

/// A transaction. Dropped, it is rolled back.
#[must_use]
pub(crate) struct Begun<'a> {
    connection: &'a Connection,
    /// How many rows the connection had changed before.
    before: u64,
}

impl<'a> Begun<'a> {
    pub fn new(connection: &'a Connection, sql: &'static str) -> rusqlite::Result<Begun<'a>> {
        run(connection, sql)?;
        Ok(Begun { connection, before: connection.total_changes() })
    }

    /// Whether SQLite still has the transaction: an error may have rolled it back
    /// (<https://sqlite.org/c3ref/get_autocommit.html>), and what ran next would commit alone (contract rule C3).
    /// Nor does it go on once storage has failed.
    pub fn is_alive(&self) -> bool {
        !self.connection.is_autocommit() && !vfs::failed()
    }

    pub(super) fn has_changed(&self) -> bool {
        self.changes() != self.before
    }

    /// Grows with every row that is changed, also by triggers and foreign keys
    /// (<https://sqlite.org/c3ref/total_changes.html>).
    pub fn changes(&self) -> u64 {
        self.connection.total_changes()
    }

    /// Runs `work` so that its refusal undoes it alone. An error means that this could not be done: the transaction
    /// must not go on.
    pub fn savepoint<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> rusqlite::Result<Result<T, E>> {
        run(self.connection, "SAVEPOINT one_call")?;
        let result = work();
        if self.is_alive() {
            if result.is_err() {
                run(self.connection, "ROLLBACK TO one_call")?;
            }
            run(self.connection, "RELEASE one_call")?;
        }
        Ok(result)
    }

    /// Commits durably. See [`CommitError`] for what holds after an error.
    ///
    /// # Panics
    ///
    /// If SQLite fails in a way that does not tell, such as for want of memory after it wrote the commit: the next
    /// instance finds out.
    pub(super) fn commit(self) -> Result<(), CommitError> {
        use ErrorCode::{ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull};
        match run(self.connection, "COMMIT") {
            Ok(()) => Ok(()),
            Err(_) if vfs::failed() => Err(CommitError::Unknown),
            Err(error) => match error.sqlite_error_code() {
                Some(ConstraintViolation | DatabaseBusy | DatabaseLocked | DiskFull) => Err(CommitError::Undone(error)),
                code => panic!("a commit failed in an unknown way: {code:?}"),
            },
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.connection.is_autocommit() {
            let result = run(self.connection, "ROLLBACK");
            // The next instance rolls back when it opens. A trap ends this one, and with it the lock that it holds.
            assert!(result.is_ok() || vfs::failed(), "a rollback failed");
        }
    }
}

fn run(connection: &Connection, sql: &'static str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}
