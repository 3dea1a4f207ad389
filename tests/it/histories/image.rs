//! The database as a file, read and changed by native SQLite while no instance has it open: what an operator, or another program
//! with its own use of the tables, does to notes and automations.

use super::judge::Image;
use crate::disk::Disk;
use host_example::{Part, Storage};
use rusqlite::{Connection, Row};
use std::error::Error;
use std::fs;
use std::path::Path;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// What the database holds, which was closed cleanly.
pub fn read(disk: &Disk, at: &Path) -> Result<Image> {
    opened(disk, at, |connection| {
        let notes = "SELECT note_id, workspace, body FROM notes";
        let automations = "SELECT automation_id, workspace, interval_minutes, version FROM automations";
        let receipts = "SELECT operation_id, workspace, subject, tool, idempotency_key, arguments = '' FROM receipts";
        let open = "SELECT operation_id FROM operations WHERE state NOT IN ('succeeded', 'failed', 'cancelled')";
        Ok(Image {
            notes: rows(connection, notes, |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?,
            automations: rows(connection, automations, |row| {
                Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
            })?,
            receipts: rows(connection, receipts, |row| {
                Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?)))
            })?,
            open: rows(connection, open, |row| row.get(0))?,
        })
    })
}

fn rows<T, C: FromIterator<T>>(
    connection: &Connection,
    sql: &str,
    row: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<C> {
    connection.prepare(sql)?.query_map([], |found| row(found))?.collect()
}

/// Moves the note or automation to another workspace; deletes it, if there is none.
pub fn relocate(disk: &Disk, at: &Path, id: &str, to: Option<&str>) -> Result<()> {
    opened(disk, at, |connection| {
        for (table, column) in [("notes", "note_id"), ("automations", "automation_id")] {
            match to {
                Some(to) => {
                    let sql = format!("UPDATE {table} SET workspace = ?1 WHERE {column} = ?2");
                    connection.execute(&sql, [to, id])?
                }
                None => connection.execute(&format!("DELETE FROM {table} WHERE {column} = ?1"), [id])?,
            };
        }
        Ok(())
    })?;
    let bytes = fs::read(at)?;
    let mut file = disk.storage().open(Part::Database, false)?;
    file.write(0, &bytes)?;
    file.set_size(bytes.len() as u64)?;
    Ok(file.sync()?)
}

/// Opens a copy of the database as the file `at`.
fn opened<T>(disk: &Disk, at: &Path, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    // One that is empty may be left by a crash, and holds nothing.
    if disk.storage().exists(Part::Wal)? {
        return Err("a log is left after closing".into());
    }
    let mut file = disk.storage().open(Part::Database, false)?;
    let size = file.size()?;
    fs::write(at, file.read(0, size as u32)?)?;
    let connection = Connection::open(at)?;
    connection.pragma_update(None, "synchronous", "off")?;
    let result = work(&connection)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(result)
}
