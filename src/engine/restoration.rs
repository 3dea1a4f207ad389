//! A database that was restored from an older copy. Calls that committed after the copy was made are lost from it: their
//! keys look new, and what they sent looks unsent. Until an operator says otherwise, neither is believed.

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

/// Refuses a key that has no receipt, if the receipt may have been lost.
pub(super) fn confirm_new_key(database: &Snapshot<'_>) -> Result<(), Failure> {
    match database.query_row("SELECT 1 FROM restored LIMIT 1", [], |_| Ok(()))? {
        None => Ok(()),
        Some(()) => Err(Refusal::lost_receipts().into()),
    }
}

/// Marks the database. Nothing that it says was not sent is believed, and of what was, nobody knows when last.
pub(crate) fn mark(database: &Database) -> Result<Restoration, Refusal> {
    let write = database.write()?;
    let connection = database.connection();
    if let Some(restoration) = read(connection)? {
        drop(write);
        database.make_durable()?;
        return Ok(restoration);
    }
    let now = Timestamp::now();
    connection.execute("INSERT INTO restored (since) VALUES (?1)", [now])?;
    connection.execute(
        "UPDATE operations SET
           attempts = attempts + 1, first_sent = coalesce(first_sent, 0), last_sent = ?2, attempt_id = NULL,
           since = iif(state = 'accepted', ?1, since), state = iif(state = 'accepted', 'running', state),
           due = ?1, planned_at = ?1
         WHERE state IN ('accepted', 'running', 'cancel-requested')",
        // A worker of the time that was lost may still hold its lease.
        (now, now.plus(u64::from(*outbox::LEASE_MS.end()))),
    )?;
    let restoration = read(connection)?.ok_or(Refusal::damaged())?;
    write.commit()?;
    Ok(restoration)
}

pub(crate) fn find(database: &Database) -> Result<Option<Restoration>, Refusal> {
    let found = read(database.connection())?;
    database.make_durable()?;
    Ok(found)
}

/// Takes the mark away: what it made doubtful, and nothing has settled since, counts as unsent again.
pub(crate) fn accept(database: &Database) -> Result<Option<Restoration>, Refusal> {
    let write = database.write()?;
    let connection = database.connection();
    let Some(restoration) = read(connection)? else {
        drop(write);
        database.make_durable()?;
        return Ok(None);
    };
    connection.execute("DELETE FROM restored", [])?;
    connection.execute(
        "UPDATE operations SET
               attempts = 0, first_sent = NULL, last_sent = NULL,
               since = iif(state = 'running', ?1, since), state = iif(state = 'running', 'accepted', state),
               due = ?1, planned_at = ?1
             WHERE state IN ('running', 'cancel-requested') AND first_sent = 0 AND attempts = 1 AND attempt_id IS NULL
               AND NOT is_there",
        [Timestamp::now()],
    )?;
    write.commit()?;
    Ok(Some(restoration))
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Restoration>> {
    const SQL: &str = "SELECT since, (SELECT count(*) FROM operations
                         WHERE state IN ('accepted', 'running', 'cancel-requested', 'outcome-unknown'))
                       FROM restored";
    let restoration = |row: &rusqlite::Row<'_>| Ok(Restoration { since: row.get(0)?, unfinished: row.get(1)? });
    connection.query_row(SQL, [], restoration).optional()
}
