//! What the component stores its database in: a trait, so that the files can be elsewhere, or faulty in a test; and the
//! component's import `storage`, which passes each call on.

use crate::bindings::counterfoil::tools::storage::{Error, Host, HostFile, LockLevel, Part, Sharing};
use crate::component::State;
use crate::limits::{AT_ONCE, FAILURES};
use std::time::{Duration, Instant};
use wasmtime::component::Resource;
use wasmtime::{Result, ensure};

/// The files of one SQLite database. What each function promises stands in `wit/storage.wit`.
///
/// An instance that was answered [`Error::Io`] must not be used again ([`crate::Instance::is_spent`]).
#[expect(clippy::missing_errors_doc, reason = "they stand in the WIT")]
pub trait Storage: Send + 'static {
    fn sharing(&self) -> Result<Sharing, String>;
    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error>;
    fn exists(&mut self, part: Part) -> Result<bool, Error>;
    fn remove(&mut self, part: Part) -> Result<(), Error>;
}

/// One open part. Dropping it releases its locks.
#[expect(clippy::missing_errors_doc, reason = "they stand in the WIT")]
pub trait StorageFile: Send + 'static {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error>;
    fn size(&mut self) -> Result<u64, Error>;
    fn set_size(&mut self, size: u64) -> Result<(), Error>;
    fn sync(&mut self) -> Result<(), Error>;
    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error>;
    fn unlock(&mut self, level: LockLevel) -> Result<(), Error>;
    fn is_reserved(&mut self) -> Result<bool, Error>;
}

/// The component's resource `file`.
pub struct OpenFile(Box<dyn StorageFile>);

impl State {
    /// Runs one call of the component's, which pays for computing and not for a slow disk, and remembers whether
    /// storage failed.
    fn pass<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<Result<T, Error>>) -> Result<Result<T, Error>> {
        let start = Instant::now();
        let result = call(self);
        self.used.storage += start.elapsed();
        self.is_spent |= matches!(result, Err(_) | Ok(Err(Error::Io)));
        if matches!(&result, Ok(Err(error)) if *error != Error::NotFound) {
            self.used.failures += 1;
            ensure!(self.used.failures <= FAILURES, "storage failed {FAILURES} times, and the component went on");
        }
        result
    }

    /// On an open file nothing but a write can fail and leave things as they were.
    fn file<T>(
        &mut self,
        file: &Resource<OpenFile>,
        call: impl FnOnce(&mut dyn StorageFile) -> Result<T, Error>,
    ) -> Result<Result<T, Error>> {
        self.pass(|state| Ok(call(state.table.get_mut(file)?.0.as_mut()).map_err(|_| Error::Io)))
    }
}

/// Reads, and says whether it is as much as was asked for or all up to the end of the file. If it is not, the component goes no
/// further, and neither does the host.
fn read(file: &mut dyn StorageFile, offset: u64, length: u32) -> Result<(Vec<u8>, bool), Error> {
    let mut bytes = Vec::new();
    // Where others share the file, it may have grown between the two questions.
    for _ in 0..2 {
        bytes = file.read(offset, length)?;
        let (count, length) = (bytes.len() as u64, u64::from(length));
        if count == length || (count < length && count >= file.size()?.saturating_sub(offset)) {
            return Ok((bytes, true));
        }
    }
    Ok((bytes, false))
}

/// The one error after which the component may go on; whatever else fails is [`Error::Io`].
fn only(harmless: Error) -> impl Fn(Error) -> Error {
    move |error| if error == harmless { error } else { Error::Io }
}

impl Host for State {
    fn sharing_mode(&mut self) -> Result<Result<Sharing, String>> {
        Ok(self.storage.sharing())
    }

    fn exists(&mut self, part: Part) -> Result<Result<bool, Error>> {
        self.pass(|state| Ok(state.storage.exists(part).map_err(|_| Error::Io)))
    }

    fn remove(&mut self, part: Part) -> Result<Result<(), Error>> {
        self.pass(|state| Ok(state.storage.remove(part).map_err(only(Error::NotFound))))
    }

    fn wait(&mut self, attempt: u32) -> Result<bool> {
        let left = self.limits.lock_wait.saturating_sub(self.used.waited);
        if left.is_zero() {
            return Ok(false);
        }
        if self.used.waited.is_zero() {
            tracing::info!(at_most = ?self.limits.lock_wait, "waiting for another process to let go of the database");
        }
        let start = Instant::now();
        // Random, so that processes which wait for each other fall out of step.
        let pause = Duration::from_micros(500 << attempt.min(6)).mul_f64(0.5 + fastrand::f64());
        std::thread::sleep(pause.min(left));
        self.used.waited += start.elapsed();
        Ok(true)
    }
}

impl HostFile for State {
    fn open(&mut self, part: Part, create: bool) -> Result<Result<Resource<OpenFile>, Error>> {
        self.pass(|state| match state.storage.open(part, create) {
            Ok(file) => Ok(Ok(state.table.push(OpenFile(file))?)),
            Err(error) => Ok(Err(error)),
        })
    }

    fn read(&mut self, file: Resource<OpenFile>, offset: u64, length: u32) -> Result<Result<Vec<u8>, Error>> {
        ensure!(length as usize <= AT_ONCE, "the component reads {length} bytes at once");
        let read = self.file(&file, |file| read(file, offset, length))?;
        self.is_spent |= matches!(read, Ok((_, false)));
        Ok(read.map(|(bytes, _)| bytes))
    }

    fn write(&mut self, file: Resource<OpenFile>, offset: u64, bytes: Vec<u8>) -> Result<Result<(), Error>> {
        ensure!(bytes.len() <= AT_ONCE, "the component writes {} bytes at once", bytes.len());
        self.pass(|state| {
            let file = state.table.get_mut(&file)?;
            if offset.saturating_add(bytes.len() as u64) > state.limits.file_size {
                tracing::warn!(limit = state.limits.file_size, "no file of the database may be larger");
                return Ok(Err(Error::NoSpace));
            }
            Ok(file.0.write(offset, &bytes).map_err(only(Error::NoSpace)))
        })
    }

    fn size(&mut self, file: Resource<OpenFile>) -> Result<Result<u64, Error>> {
        self.file(&file, StorageFile::size)
    }

    fn set_size(&mut self, file: Resource<OpenFile>, size: u64) -> Result<Result<(), Error>> {
        let may = size <= self.limits.file_size;
        self.file(&file, |file| if may { file.set_size(size) } else { Err(Error::NoSpace) })
    }

    fn sync(&mut self, file: Resource<OpenFile>) -> Result<Result<(), Error>> {
        self.file(&file, StorageFile::sync)
    }

    fn lock(&mut self, file: Resource<OpenFile>, level: LockLevel) -> Result<Result<LockLevel, Error>> {
        self.file(&file, |file| file.lock(level))
    }

    fn unlock(&mut self, file: Resource<OpenFile>, level: LockLevel) -> Result<Result<(), Error>> {
        self.file(&file, |file| file.unlock(level))
    }

    fn is_reserved(&mut self, file: Resource<OpenFile>) -> Result<Result<bool, Error>> {
        self.file(&file, StorageFile::is_reserved)
    }

    fn drop(&mut self, file: Resource<OpenFile>) -> Result<()> {
        self.table.delete(file)?;
        Ok(())
    }
}
