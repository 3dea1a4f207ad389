//! New files for the database, after the lock was taken from somebody who may yet be alive. What such a one does to the
//! files that it has open is then done to files that no name leads to.
//!
//! | Step | Why |
//! |---|---|
//! | remove the copies of earlier takers | one that was overtaken here could still put its own in place |
//! | copy the log, the journal, then the database, and sync the copies | |
//! | rename the copies over the originals, in the same order | a database that is changed late is put right by a journal that is not; a journal that is emptied late would put nothing right |
//! | sync the folder | a power cut must not bring back what was changed late |
//!
//! The token is looked at on the way and at the end. A taker that is overtaken finds its copy gone, or is not the last to
//! rename: whatever is in place by then is a copy of the same content.

use crate::files::name;
use crate::folder;
use crate::lock::{Lock, Lost};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::random::random::get_random_u64;

use crate::bindings::exports::counterfoil::tools::storage::Part;

pub enum FenceError {
    /// Somebody took the lock over meanwhile.
    Lost,
    /// Nothing is damaged, and the fence is still to be raised.
    Failed(ErrorCode),
}

impl From<Lost> for FenceError {
    fn from(_: Lost) -> Self {
        FenceError::Lost
    }
}

impl From<ErrorCode> for FenceError {
    fn from(error: ErrorCode) -> Self {
        FenceError::Failed(error)
    }
}

const COPY: &str = "copy.";
const CHUNK: u64 = 1 << 18;

/// Gives the database in this folder new files. The lock is held.
pub fn raise(lock: &mut Lock, parent: &Descriptor) -> Result<(), FenceError> {
    remove_copies(lock)?;
    let nonce = get_random_u64();
    let mut copies = Vec::new();
    for (number, part) in [Part::Wal, Part::Journal, Part::Database].into_iter().enumerate() {
        let original = match parent.open_at(PathFlags::empty(), name(part), OpenFlags::empty(), DescriptorFlags::READ) {
            Err(ErrorCode::NoEntry) => continue,
            original => original?,
        };
        let copy = format!("{COPY}{number}.{nonce:016x}");
        fill(lock, &copy, &original)?;
        copies.push((copy, name(part)));
    }
    lock.check()?;
    for (copy, name) in copies {
        match lock.folder().rename_at(&copy, parent, name) {
            Err(ErrorCode::NoEntry) => return Err(FenceError::Lost),
            renamed => renamed?,
        }
    }
    folder::sync(parent)?;
    Ok(lock.check()?)
}

pub fn remove_copies(lock: &Lock) -> Result<(), ErrorCode> {
    for copy in lock.names()?.iter().filter(|name| name.starts_with(COPY)) {
        match lock.folder().unlink_file_at(copy) {
            Ok(()) | Err(ErrorCode::NoEntry) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn fill(lock: &mut Lock, name: &str, original: &Descriptor) -> Result<(), FenceError> {
    let flags = OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let copy = lock.folder().open_at(PathFlags::empty(), name, flags, DescriptorFlags::WRITE)?;
    let mut offset = 0;
    loop {
        lock.check()?;
        let (bytes, is_end) = original.read(CHUNK, offset)?;
        let mut written = 0;
        while written < bytes.len() {
            written += copy.write(&bytes[written..], offset + written as u64)? as usize;
        }
        offset += written as u64;
        if is_end || bytes.is_empty() {
            break;
        }
    }
    Ok(copy.sync()?)
}
