//! A host with a clock of its own, and a look at a database that does not go through the component.

use crate::disk::Disk;
use crate::harness::{Client, with_small_cache};
use crate::outbox_harness::{Clock, START};
use host_example::{Host, Limits};
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// For one thread.
pub struct Stage {
    pub clock: Clock,
    host: Host,
    folder: TempDir,
}

impl Stage {
    pub fn new(component: &Path) -> Stage {
        let clock = Clock::new(START);
        // Nobody lets go of a lock here.
        let limits = Limits { lock_wait: Duration::from_millis(20), ..Limits::default() };
        let told = clock.clone();
        let host = Host::load(component, limits).unwrap().with_clock(move || Duration::from_millis(told.now()));
        Stage { clock, host: with_small_cache(host), folder: TempDir::new().unwrap() }
    }

    pub fn client(&self, disk: &Disk) -> Client {
        Client::new(&self.host, disk.storage())
    }

    /// A file for SQLite as it is everywhere.
    pub fn native(&self) -> PathBuf {
        self.folder.path().join("native.db")
    }

    /// Every effect and every receipt, without ids and times, as SQLite itself reads them from the file alone; and what
    /// is wrong with it.
    pub fn summary(&self, disk: &Disk) -> Result<String, String> {
        const LINES: &str = "
            SELECT 'note ' || iif(length(body) < 100, body, length(body)) || ' of ' || coalesce(idempotency_key, 'nobody')
              || CASE WHEN arguments = '' THEN '' WHEN note_id = r.resource_id AND note_id = result ->> 'note_id' THEN ''
                ELSE ', another in its receipt' END AS line
              FROM notes LEFT JOIN receipts r USING (operation_id)
            UNION ALL SELECT 'automation every ' || interval_minutes || ' at version ' || version
              || ' of ' || coalesce(idempotency_key, 'nobody') FROM automations LEFT JOIN receipts USING (operation_id)
            UNION ALL SELECT 'receipt ' || tool || ' ' || idempotency_key || iif(arguments = '', ', tombstone', '') FROM receipts
            UNION ALL SELECT 'operation ' || state || ' ' || coalesce(o.resource_id, '') || ' of ' || coalesce(idempotency_key, 'nobody')
              FROM operations o LEFT JOIN receipts USING (operation_id)
            UNION ALL SELECT 'marked' FROM restored
            UNION ALL SELECT 'SQLite says ' || integrity_check FROM pragma_integrity_check";
        let mut database = disk.database();
        // A WAL was closed, and is none any more.
        if let Some(versions) = database.get_mut(18..20) {
            versions.fill(1);
        }
        let path = self.native();
        fs::write(&path, database).map_err(|error| error.to_string())?;
        let read = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&path, flags)?;
            let sql = format!("SELECT group_concat(line, '\n') FROM (SELECT line FROM ({LINES}) ORDER BY line)");
            connection.query_row(&sql, [], |row| row.get(0))
        };
        read().map_err(|error: rusqlite::Error| error.to_string())
    }
}
