//! What a tool may do with the database: read one state of it, and in a transaction change it. No COMMIT, ROLLBACK,
//! SAVEPOINT, ATTACH or PRAGMA: those are the engine's.

use crate::tool::Registry;
use crate::{Principal, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};
use std::ops::Deref;
use uuid::Uuid;

/// One state of the database, and who is asking.
pub struct Snapshot<'a> {
    connection: &'a Connection,
    principal: &'a Principal,
    registry: &'static Registry,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn new(connection: &'a Connection, principal: &'a Principal, registry: &'static Registry) -> Self {
        Snapshot { connection, principal, registry }
    }

    /// Confines every look-up: a statement that leaves it out shows one customer's data to another.
    #[must_use]
    pub fn workspace(&self) -> &str {
        &self.principal.workspace
    }

    #[must_use]
    pub fn principal(&self) -> &Principal {
        self.principal
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.connection
    }

    /// The component's tools.
    #[must_use]
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// The first row of a `SELECT`, if there is one.
    ///
    /// # Errors
    ///
    /// SQLite's. Hand it on with `?`: the engine knows what it means.
    ///
    /// # Panics
    ///
    /// If `sql` does not only read.
    pub fn query_row<T>(
        &self,
        sql: &'static str,
        parameters: impl Params,
        row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.statement(sql)?.query_row(parameters, row).optional()
    }

    /// All rows of a `SELECT`. Bound them with a `LIMIT`: a result has one, and so has the component's memory.
    ///
    /// # Errors
    ///
    /// As for [`Snapshot::query_row`].
    ///
    /// # Panics
    ///
    /// As for [`Snapshot::query_row`].
    pub fn query_rows<T>(
        &self,
        sql: &'static str,
        parameters: impl Params,
        row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.statement(sql)?.query_map(parameters, row)?.collect()
    }

    fn statement(&self, sql: &'static str) -> rusqlite::Result<CachedStatement<'_>> {
        check(sql, &["SELECT", "WITH"]);
        let statement = self.connection.prepare_cached(sql)?;
        assert!(statement.readonly(), "changes the database: {sql}");
        Ok(statement)
    }
}

/// The transaction in which a tool acts. The engine commits it together with the receipt, or rolls it back.
pub struct Transaction<'a> {
    snapshot: Snapshot<'a>,
    operation_id: Uuid,
    now: Timestamp,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(snapshot: Snapshot<'a>, operation_id: Uuid, now: Timestamp) -> Self {
        Transaction { snapshot, operation_id, now }
    }

    /// The operation that this call is, as its receipt will name it. Store it beside the effect, as a deferred foreign
    /// key to `receipts`: SQLite then commits no effect without its receipt, and `verify` finds one that lost it.
    #[must_use]
    pub fn operation_id(&self) -> Uuid {
        self.operation_id
    }

    /// The receipt's `committed_at`.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Runs one `INSERT`, `REPLACE`, `UPDATE` or `DELETE` and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// SQLite's. Hand it on with `?`: the engine rolls this call back and knows what to answer.
    ///
    /// # Panics
    ///
    /// If `sql` is another statement, or if an earlier error has ended the transaction and the tool went on: what it
    /// did now would commit alone.
    pub fn execute(&self, sql: &'static str, parameters: impl Params) -> rusqlite::Result<usize> {
        assert!(!self.snapshot.connection.is_autocommit(), "the transaction is gone: {sql}");
        check(sql, &["INSERT", "UPDATE", "DELETE", "REPLACE"]);
        self.snapshot.connection.prepare_cached(sql)?.execute(parameters)
    }
}

impl<'a> Deref for Transaction<'a> {
    type Target = Snapshot<'a>;

    fn deref(&self) -> &Snapshot<'a> {
        &self.snapshot
    }
}

/// A statement is written by the tool's author, never made from input, so another one is a bug and traps.
fn check(sql: &str, allowed: &[&str]) {
    let verb = sql.split_whitespace().next().unwrap_or_default();
    assert!(allowed.iter().any(|allowed| verb.eq_ignore_ascii_case(allowed)), "expected one of {allowed:?}: {sql}");
}
