//! A part of the database as the VFS uses it. What is written to a WAL is gathered: SQLite writes the header of each page and
//! the page by themselves, and to cross to the host costs more than to copy them. Until a `sync`, which hands them over
//! first, they are of a transaction that has not committed, so that no commit depends on what was only gathered.

use crate::imports::storage::{self, Error, LockLevel, Part};

/// What is gathered at most, in bytes: the commit of a batch of calls of the usual size.
const MOST: usize = 128 << 10;

pub struct File {
    file: storage::File,
    gathers: bool,
    offset: u64,
    gathered: Vec<u8>,
}

impl File {
    pub fn open(part: Part, create: bool) -> Result<File, Error> {
        let file = storage::File::open(part, create)?;
        Ok(File { file, gathers: part == Part::Wal, offset: 0, gathered: Vec::new() })
    }

    /// Hands over what was gathered, which is gone after an error. SQLite counts on it, but commits nothing after an error of a
    /// write: the commit that writes is rolled back, and a transaction that wrote before its commit, for want of memory,
    /// can only be rolled back from then on (`PAGER_ERROR` in <https://sqlite.org/src/file/src/pager.c>).
    fn flush(&mut self) -> Result<(), Error> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let written = self.file.write(self.offset, &self.gathered);
        self.gathered.clear();
        written
    }

    fn end(&self) -> u64 {
        self.offset + self.gathered.len() as u64
    }

    /// What was gathered is read from here: to hand it over could fail for want of room, which is no error of a read.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        let (from, to) = (offset.max(self.offset), self.end().min(offset + u64::from(length)));
        if from >= to {
            return read_whole(&self.file, offset, length);
        }
        let gathered = &self.gathered[(from - self.offset) as usize..(to - self.offset) as usize];
        if gathered.len() == length as usize {
            return Ok(gathered.to_vec());
        }
        let mut bytes = read_whole(&self.file, offset, length)?;
        let place = (from - offset) as usize..(to - offset) as usize;
        bytes.resize(bytes.len().max(place.end), 0);
        bytes[place].copy_from_slice(gathered);
        Ok(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if !self.gathers {
            return self.file.write(offset, bytes);
        }
        if self.end() != offset || self.gathered.len() + bytes.len() > MOST {
            self.flush()?;
        }
        if self.gathered.is_empty() {
            self.offset = offset;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    pub fn size(&mut self) -> Result<u64, Error> {
        let size = self.file.size()?;
        Ok(if self.gathered.is_empty() { size } else { size.max(self.end()) })
    }

    pub fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.gathered.truncate(size.saturating_sub(self.offset) as usize);
        self.file.set_size(size)
    }

    /// `no-space` if what was gathered could not be written, and nothing was.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.file.sync().map_err(|_| Error::Io)
    }

    pub fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        self.file.lock(level)
    }

    pub fn unlock(&mut self, level: LockLevel) -> Result<(), Error> {
        self.file.unlock(level)
    }

    pub fn is_reserved(&mut self) -> Result<bool, Error> {
        self.file.is_reserved()
    }
}

/// Reads fewer bytes than `length` only at the end of the file. A host that breaks this promise is not believed: SQLite
/// takes what is missing for zeros, and would go on with a page that never was.
pub fn read_whole(file: &storage::File, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
    // Where others share the file, it may have grown between the two questions.
    for _ in 0..2 {
        let bytes = file.read(offset, length)?;
        let (count, length) = (bytes.len() as u64, u64::from(length));
        if count == length || (count < length && count >= file.size()?.saturating_sub(offset)) {
            return Ok(bytes);
        }
    }
    Err(Error::Io)
}
