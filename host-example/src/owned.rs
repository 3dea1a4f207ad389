//! The file of a database that is one owner's alone.

use crate::Error;
use crate::files::reason;
use crate::locks::{Bytes, F_UNLCK, F_WRLCK, PENDING, RESERVED, SHARED, release, set};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The database, held for one owner.
pub struct OwnedFile {
    pub file: File,
    pub path: PathBuf,
}

impl OwnedFile {
    /// Whether the file that is held is still the one of this name. Locks are on the file, and whoever comes takes it by its
    /// name. (SQLite looks as well, on Unix: <https://sqlite.org/c3ref/c_fcntl_begin_atomic_write.html>,
    /// `SQLITE_FCNTL_HAS_MOVED`.)
    pub fn is_in_place(&self) -> Result<(), Error> {
        let held = self.file.metadata().map_err(|error| reason("measure", &error))?;
        match fs::metadata(&self.path) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(reason("find", &error)),
            _ => {
                tracing::error!(database = %self.path.display(), "the database was moved or removed: put it back, or restart");
                Err(Error::Io)
            }
        }
    }

    /// All of SQLite's locks or none of them: a part of them, held while waiting for the rest, could stand in the way of
    /// a writer who waits likewise, or let a reader take a crashed writer's journal for that of a living one.
    pub fn take_all(&self) -> io::Result<bool> {
        const LOCKS: [Bytes; 3] = [PENDING, SHARED, RESERVED];
        for range in LOCKS {
            if !set(&self.file, F_WRLCK, range)? {
                for range in LOCKS {
                    set(&self.file, F_UNLCK, range)?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        release(&self.file);
    }
}
