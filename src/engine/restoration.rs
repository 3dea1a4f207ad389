//! A database that was restored from an older copy. Calls that committed after the copy was made are lost from it: their
//! keys look new, and what they sent looks unsent. Until an operator says otherwise, neither is believed.

use super::operation::Sent;
use super::outbox;
use crate::Timestamp;
use crate::refusal::{Failure, Refusal};
use crate::storage::{Database, Snapshot};
use rusqlite::{Connection, OptionalExtension};

/// What holds while a database is marked.
pub(crate) struct Restoration {
    pub since: Timestamp,
    /// Operations that have not ended. All count as possibly sent.
    pub unfinished: u32,
}

/// Refuses to take for new, or for absent, what has no receipt, if the receipt may have been lost.
pub(super) fn confirm_absence(database: &Snapshot<'_>) -> Result<(), Failure> {
    if is_marked(database.connection())? { Err(Refusal::lost_receipts().into()) } else { Ok(()) }
}

pub(super) fn is_marked(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM restored)")?.query_row([], |row| row.get(0))
}

/// Marks the database. Nothing that it says was not sent is believed, and of what was, nobody knows when last. Until the
/// mark is accepted nothing is sent at all, not even again: it may have been cancelled in the time that was lost.
pub(crate) fn mark(database: &Database) -> Result<Restoration, Refusal> {
    let write = database.write()?;
    let connection = database.connection();
    let now = Timestamp::now();
    // A copy that was made while its database was marked has the mark already, but not for what came after.
    connection.execute("DELETE FROM restored", [])?;
    connection.execute("INSERT INTO restored (since) VALUES (?1)", [now])?;
    // A worker of the time that was lost may still hold its lease.
    let last_sent = now.plus(u64::from(*outbox::LEASE_MS.end()));
    let sql = "UPDATE operations SET
                 attempts = attempts + 1, first_sent = coalesce(first_sent, 0),
                 last_sent = max(coalesce(last_sent, 0), ?4), attempt_id = NULL,
                 since = iif(state = 'accepted', ?3, since), state = iif(state = 'accepted', 'running', state),
                 due = ?3, planned_at = ?3
               WHERE operation_id > ?1 AND operation_id <= ?2 AND state IN ('accepted', 'running', 'cancel-requested')";
    in_steps(connection, |after, to| connection.prepare_cached(sql)?.execute((after, to, now, last_sent)))?;
    let restoration = read(connection)?.ok_or(Refusal::damaged())?;
    database.commit(write)?;
    Ok(restoration)
}

pub(crate) fn find(database: &Database) -> Result<Option<Restoration>, Refusal> {
    let found = read(database.connection())?;
    database.make_durable()?;
    Ok(found)
}

/// Takes the mark away: what it made doubtful, and nothing has settled since, counts as unsent again. What was asked to be
/// cancelled meanwhile stays doubtful: `cancelled` is said of what is known to have stopped, and the provider may tell.
pub(crate) fn accept(database: &Database) -> Result<Option<Restoration>, Refusal> {
    let write = database.write()?;
    let connection = database.connection();
    let Some(restoration) = read(connection)? else {
        drop(write);
        database.make_durable()?;
        return Ok(None);
    };
    let now = Timestamp::now();
    connection.execute("DELETE FROM restored", [])?;
    let unsent = "UPDATE operations SET
                    attempts = 0, first_sent = NULL, last_sent = NULL,
                    since = ?3, state = 'accepted', due = ?3, planned_at = ?3
                  WHERE operation_id > ?1 AND operation_id <= ?2
                    AND state = 'running' AND first_sent = 0 AND last_sent < ?4 AND attempt_id IS NULL AND NOT is_there";
    // What waited for this.
    let waiting = "UPDATE operations SET due = ?3, planned_at = ?3, fruitless = 0
                   WHERE operation_id > ?1 AND operation_id <= ?2
                     AND due > ?3 AND attempt_id IS NULL AND state IN ('accepted', 'running') AND NOT is_there";
    in_steps(connection, |after, to| {
        connection.prepare_cached(unsent)?.execute((after, to, now, Sent::UNTOLD.last))?;
        connection.prepare_cached(waiting)?.execute((after, to, now))
    })?;
    database.commit(write)?;
    Ok(Some(restoration))
}

/// Changes what is pending or sent, a thousand operations at a time, those with an id after the first and up to the second: what
/// one statement has changed, SQLite keeps in memory as it was until the statement ends.
fn in_steps(
    connection: &Connection,
    mut change: impl FnMut(&str, &str) -> rusqlite::Result<usize>,
) -> rusqlite::Result<()> {
    // Each of the three reads the index of states in the order of the ids.
    const LAST: &str = "
        SELECT max(operation_id) FROM (
          SELECT operation_id FROM operations WHERE state = 'accepted' AND operation_id > ?1
          UNION ALL SELECT operation_id FROM operations WHERE state = 'running' AND operation_id > ?1
          UNION ALL SELECT operation_id FROM operations WHERE state = 'cancel-requested' AND operation_id > ?1
          ORDER BY operation_id LIMIT 1000)";
    let mut after = String::new();
    while let Some(to) = connection.prepare_cached(LAST)?.query_row([&after], |row| row.get::<_, Option<String>>(0))? {
        change(&after, &to)?;
        after = to;
    }
    Ok(())
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Restoration>> {
    const SQL: &str =
        concat!("SELECT since, (SELECT count(*) FROM operations WHERE ", unfinished!(), ") FROM restored");
    let restoration = |row: &rusqlite::Row<'_>| Ok(Restoration { since: row.get(0)?, unfinished: row.get(1)? });
    connection.query_row(SQL, [], restoration).optional()
}
