//! New files for the database, after the lock was taken from somebody who may yet be alive. What such a one does to the
//! files that it has open is then done to files that no name leads to.
//!
//! | Step | Why |
//! |---|---|
//! | remove the copies of earlier takers | one that was overtaken here could still put its own in place |
//! | copy the log, the journal, then the database, and sync the copies | |
//! | copy again what has become another length meanwhile | a late commit empties the journal: a part of it would undo a part of what it belongs to |
//! | rename the copies over the originals, in the same order | what is in place in between has the same content |
//! | sync the folder | a power cut must not bring back what was changed late |
//!
//! The token is looked at on the way and at the end. A taker that is overtaken finds its copy gone; so may, rarely, the rightful
//! one, if the other was just about to begin. Then the lock stays held, and the next one raises the fence.

use crate::bindings::exports::counterfoil::tools::storage::Part;
use crate::files::name;
use crate::folder;
use crate::lock::{Lock, Lost};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::random::random::get_random_u64;

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
/// How much is written before it is synced, and the lock renewed: a sync of all at once may take longer than a lease.
const SYNC: u64 = 16 << 20;
/// How often a file may change while it is copied, and a folder while it is listed: one that was overtaken changes one once.
const TRIES: u32 = 3;
const LOOKS: u32 = 100;

/// Gives the database in this folder new files. The lock is held.
pub fn raise(lock: &mut Lock) -> Result<(), FenceError> {
    lock.check()?;
    remove_copies(lock)?;
    let nonce = get_random_u64();
    let copies =
        [Part::Wal, Part::Journal, Part::Database].map(|part| (format!("{COPY}{}.{nonce:016x}", name(part)), part));
    let raised = copy_all(lock, &copies);
    if raised.is_err() {
        for (copy, _) in &copies {
            // Those that are there would only take up room.
            let _gone = lock.remove(copy);
        }
    }
    raised
}

fn copy_all(lock: &mut Lock, copies: &[(String, Part)]) -> Result<(), FenceError> {
    let mut there = Vec::new();
    for (copy, part) in copies {
        match lock.parent().open_at(PathFlags::empty(), name(*part), OpenFlags::empty(), DescriptorFlags::READ) {
            Err(ErrorCode::NoEntry) => {}
            original => {
                let original = original?;
                let mut tries = TRIES;
                while !fill(lock, copy, &original)? {
                    // Whoever goes on changing it takes no part in the lock.
                    tries -= 1;
                    if tries == 0 {
                        return Err(ErrorCode::Busy.into());
                    }
                }
                there.push((copy, name(*part)));
            }
        }
    }
    lock.check()?;
    for (copy, name) in there {
        match lock.parent().rename_at(&lock.path(copy), lock.parent(), name) {
            Err(ErrorCode::NoEntry) => return Err(FenceError::Lost),
            renamed => renamed?,
        }
    }
    folder::sync(lock.parent())?;
    Ok(lock.check()?)
}

pub fn remove_copies(lock: &Lock) -> Result<(), ErrorCode> {
    for _ in 0..LOOKS {
        // Something was just renamed: look again.
        let Some(names) = lock.names()? else { continue };
        for copy in names.iter().filter(|name| name.starts_with(COPY)) {
            lock.remove(copy)?;
        }
        return Ok(());
    }
    Err(ErrorCode::Busy)
}

/// Copies the file. False if it has become shorter or longer meanwhile: whoever was overtaken has one late change, so that
/// happens once.
fn fill(lock: &mut Lock, name: &str, original: &Descriptor) -> Result<bool, FenceError> {
    let copy =
        lock.parent().open_at(PathFlags::empty(), &lock.path(name), OpenFlags::CREATE, DescriptorFlags::WRITE)?;
    copy.set_size(0)?;
    let (mut offset, mut unsynced) = (0, 0);
    loop {
        lock.check()?;
        let (bytes, is_end) = original.read(CHUNK, offset)?;
        let mut written = 0;
        while written < bytes.len() {
            match copy.write(&bytes[written..], offset + written as u64)? {
                0 => return Err(ErrorCode::Io.into()),
                more => written += more as usize,
            }
        }
        offset += written as u64;
        unsynced += written as u64;
        if is_end || bytes.is_empty() {
            break;
        }
        if unsynced >= SYNC {
            copy.sync_data()?;
            unsynced = 0;
        }
    }
    copy.sync()?;
    lock.synced();
    Ok(original.stat()?.size == offset)
}
