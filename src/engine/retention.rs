//! Receipts whose time is over. Whether one has expired is judged when its key is looked up; sweeping only reclaims space.
//! What it leaves is a tombstone, which refuses the key for ever.

use crate::Timestamp;
use crate::refusal::Refusal;
use crate::storage::Database;
use rusqlite::Connection;

/// The most receipts that one sweep turns into tombstones.
pub const MAX_SWEEP: u32 = 10_000;

/// Turns at most `limit` expired receipts into tombstones, and returns how many. Those of unfinished operations stay.
pub(crate) fn sweep(database: &Database, limit: u32) -> Result<u32, Refusal> {
    if !(1..=MAX_SWEEP).contains(&limit) {
        return Err(Refusal::invalid_argument(format!("limit: {limit}, expected 1 to {MAX_SWEEP}.")));
    }
    let write = database.write()?;
    let swept = bury(database.connection(), limit)?;
    database.commit(write)?;
    Ok(swept)
}

fn bury(connection: &Connection, limit: u32) -> rusqlite::Result<u32> {
    let expired: Vec<String> = connection
        .prepare_cached(concat!(
            "SELECT operation_id FROM receipts WHERE valid_until < ?1 AND arguments <> '' AND NOT EXISTS (
               SELECT 1 FROM operations WHERE operations.operation_id = receipts.operation_id AND ",
            unfinished!(),
            ") ORDER BY valid_until LIMIT ?2",
        ))?
        .query_map((Timestamp::now(), limit), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for operation_id in &expired {
        for sql in [
            "UPDATE receipts SET arguments = '', result = '' WHERE operation_id = ?1",
            "UPDATE operations SET request = '', detail = '' WHERE operation_id = ?1",
            "DELETE FROM attempts WHERE operation_id = ?1",
        ] {
            connection.prepare_cached(sql)?.execute([operation_id])?;
        }
    }
    Ok(expired.len() as u32)
}
