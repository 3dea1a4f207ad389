//! What an earlier process left, which may be in the system's memory alone: it is made durable before it is trusted.

use super::file::read_whole;
use super::vfs;
use crate::imports::storage::{self as host, Part};
use crate::refusal::Refusal;

/// Whether the file's header says that a WAL belongs to it (<https://sqlite.org/fileformat.html>, offset 18).
pub fn is_wal() -> Result<bool, Refusal> {
    let versions = host::File::open(Part::Database, false).and_then(|file| read_whole(&file, 18, 2));
    Ok(versions.map_err(failure)?.contains(&2))
}

/// What an earlier instance failed to sync, the system may hold in memory as if it were written, and a second sync then
/// succeeds falsely. So the WAL is written anew, byte for byte, before it is synced and read. (A checkpoint would not do:
/// of a WAL whose end was never stored, a power cut would leave the beginning, older than what was moved out of it.)
pub fn rewrite_wal() -> Result<(), host::Error> {
    const CHUNK: u32 = 1 << 18;
    let file = match host::File::open(Part::Wal, false) {
        Err(host::Error::NotFound) => return Ok(()),
        file => file?,
    };
    let mut offset = 0;
    loop {
        let bytes = read_whole(&file, offset, CHUNK)?;
        if bytes.is_empty() {
            return Ok(());
        }
        file.write(offset, &bytes)?;
        offset += bytes.len() as u64;
    }
}

/// Makes durable what a dead process may have left in the page cache alone.
pub fn sync_all() -> Result<(), Refusal> {
    for part in [Part::Database, Part::Journal, Part::Wal] {
        match host::File::open(part, false) {
            Err(host::Error::NotFound) => {}
            file => file.and_then(|file| file.sync()).map_err(failure)?,
        }
    }
    Ok(())
}

/// An error of a call that does not go through SQLite.
pub fn failure(error: host::Error) -> Refusal {
    if error == host::Error::Io {
        vfs::fail();
    }
    error.into()
}
