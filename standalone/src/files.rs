//! `storage`: the database's files in one folder, under one lock for all that SQLite locks.

use crate::Adapter;
use crate::bindings::exports::counterfoil::tools::storage::{Error, File, Guest, GuestFile, LockLevel, Part, Sharing};
use crate::folder;
use crate::lock::{Lock, Lost, WAIT};
use std::cell::{Cell, RefCell};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::random::random::get_random_u64;

const LOCK: &str = "counterfoil.db-lock";

pub fn name(part: Part) -> &'static str {
    match part {
        Part::Database => "counterfoil.db",
        Part::Journal => "counterfoil.db-journal",
        Part::Wal => "counterfoil.db-wal",
    }
}

/// The database of this instance.
struct Store {
    lock: Lock,
    /// Whether a change or a sync failed. What was to be stored may be gone from memory, so no later sync proves anything.
    failed: bool,
}

thread_local! {
    static STORE: RefCell<Option<Store>> = const { RefCell::new(None) };
    /// Since when this call waits for the lock.
    static WAITING: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A call has begun, with all its time to wait for the lock.
pub fn begin_call() {
    WAITING.set(None);
}

fn with<T>(work: impl FnOnce(&mut Store) -> Result<T, Error>) -> Result<T, Error> {
    STORE.with_borrow_mut(|store| work(store.as_mut().ok_or(Error::Io)?))
}

impl Guest for Adapter {
    type File = OpenPart;

    fn sharing_mode() -> Result<Sharing, String> {
        STORE.with_borrow_mut(|store| {
            if store.is_none() {
                let lock = Lock::open(folder::find()?, LOCK)?;
                *store = Some(Store { lock, failed: false });
            }
            Ok(Sharing::Shared)
        })
    }

    fn exists(part: Part) -> Result<bool, Error> {
        with(|store| {
            let exists = match store.lock.parent().stat_at(PathFlags::empty(), name(part)) {
                Ok(stat) => stat.size > 0,
                Err(ErrorCode::NoEntry) => false,
                Err(error) => return Err(io("look for", error)),
            };
            // What another holder's file is like says nothing about ours.
            store.sees_its_own()?;
            Ok(exists)
        })
    }

    /// Empties it: by name, a holder that is late would remove the file of its successor.
    fn remove(part: Part) -> Result<(), Error> {
        let file = OpenPart::open(part, false)?;
        file.set_size(0)?;
        file.sync()
    }

    fn wait(attempt: u32) -> bool {
        const FIRST: Duration = Duration::from_micros(125);
        let since = WAITING.get().unwrap_or_else(Instant::now);
        WAITING.set(Some(since));
        let left = WAIT.saturating_sub(since.elapsed());
        // Random, so that those who wait for each other fall out of step.
        let jitter = 0.5 + (get_random_u64() >> 32) as f64 / f64::from(u32::MAX);
        sleep((FIRST * (1 << attempt.min(4))).mul_f64(jitter).min(left));
        !left.is_zero()
    }
}

impl Store {
    /// Opens the part that is the database's now. While the lock is held, it stays that until the lock is lost.
    fn open(&self, part: Part, flags: OpenFlags) -> Result<Descriptor, ErrorCode> {
        let write = DescriptorFlags::READ | DescriptorFlags::WRITE;
        self.lock.parent().open_at(PathFlags::empty(), name(part), flags, write)
    }

    /// While the lock is held: whether what was just found by name is what this holder's files are.
    fn sees_its_own(&mut self) -> Result<(), Error> {
        if self.lock.generation().is_some() { self.owns() } else { Ok(()) }
    }

    /// Whoever takes the lock over writes everything anew, in new files.
    fn fail(&mut self) -> Error {
        self.failed = true;
        Error::Io
    }

    fn owns(&mut self) -> Result<(), Error> {
        self.lock.check().map_err(|Lost| {
            eprintln!("counterfoil: the lock of the database was lost to another instance");
            Error::Io
        })
    }
}

pub struct OpenPart {
    part: Part,
    opened: RefCell<Opened>,
    held: Cell<LockLevel>,
    /// Whether the folder's entry for it may not be durable yet, whoever made it.
    has_new_entry: Cell<bool>,
}

struct Opened {
    file: Descriptor,
    generation: Option<u64>,
}

impl OpenPart {
    /// Does something with the file, which is opened anew if the lock was taken over since.
    fn with<T>(&self, work: impl FnOnce(&Descriptor, &mut Store) -> Result<T, Error>) -> Result<T, Error> {
        with(|store| {
            let mut opened = self.opened.borrow_mut();
            let generation = store.lock.generation();
            if generation.is_some() && opened.generation != generation {
                let file = store.open(self.part, OpenFlags::empty()).map_err(|error| io("open", error))?;
                store.owns()?;
                *opened = Opened { file, generation };
            }
            work(&opened.file, store)
        })
    }

    /// Writes after a look at the lock, and says how much. Only for want of room does that fail and leave things as they were.
    fn write_some(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        self.with(|file, store| {
            store.owns()?;
            match file.write(bytes, offset) {
                Ok(0) => Err(store.fail()),
                Ok(written) => Ok(written),
                Err(error) => match reason("write", error) {
                    Error::NoSpace => Err(Error::NoSpace),
                    _ => Err(store.fail()),
                },
            }
        })
    }
}

impl GuestFile for OpenPart {
    fn open(part: Part, create: bool) -> Result<File, Error> {
        Ok(File::new(OpenPart::open(part, create)?))
    }

    fn read(&self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.with(|file, store| {
            store.lock.keep();
            let length = length as usize;
            let mut bytes = Vec::new();
            loop {
                let (left, from) = ((length - bytes.len()) as u64, offset + bytes.len() as u64);
                let (more, is_end) = file.read(left, from).map_err(|error| io("read", error))?;
                let is_end = is_end || more.is_empty();
                bytes.extend(more);
                if is_end || bytes.len() >= length {
                    return Ok(bytes);
                }
            }
        })
    }

    fn write(&self, mut offset: u64, bytes: Vec<u8>) -> Result<(), Error> {
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            let written = self.write_some(offset, bytes)?;
            bytes = bytes.get(written as usize..).ok_or(Error::Io)?;
            offset += written;
        }
        Ok(())
    }

    fn size(&self) -> Result<u64, Error> {
        self.with(|file, _| Ok(file.stat().map_err(|error| io("measure", error))?.size))
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        self.with(|file, store| {
            store.owns()?;
            if let Err(error) = file.set_size(size) {
                reason("cut", error);
                return Err(store.fail());
            }
            // It may have been the commit: that the lock was held after it, too, makes it one.
            store.owns()
        })
    }

    fn sync(&self) -> Result<(), Error> {
        self.with(|file, store| {
            if store.failed {
                return Err(Error::Io);
            }
            store.sees_its_own()?;
            let mut synced = file.sync_data();
            if self.has_new_entry.get() {
                synced = synced.and_then(|()| folder::sync(store.lock.parent()));
            }
            if let Err(error) = synced {
                reason("sync", error);
                return Err(store.fail());
            }
            self.has_new_entry.set(false);
            store.lock.synced();
            store.sees_its_own()
        })
    }

    /// All levels but `none` are the one lock: its holder is alone.
    fn lock(&self, level: LockLevel) -> Result<LockLevel, Error> {
        with(|store| {
            let held = self.held.get();
            if level <= held {
                return Ok(held);
            }
            let taken = if held == LockLevel::None {
                // A takeover takes its own time, so it is begun while there is some left.
                let is_late = WAITING.get().is_some_and(|since| since.elapsed() > WAIT * 2 / 3);
                let begun = Instant::now();
                let taken = store.lock.acquire(!is_late).map_err(|error| io("lock", error))?;
                if taken {
                    // The copying is no waiting.
                    WAITING.set(WAITING.get().map(|since| since + begun.elapsed()));
                }
                taken
            } else {
                match store.lock.check() {
                    Ok(()) => true,
                    // Nothing was changed yet: it is as if others were in the way.
                    Err(Lost) if level == LockLevel::Reserved => false,
                    Err(Lost) => return Err(Error::Io),
                }
            };
            self.held.set(if taken { level } else { held });
            Ok(self.held.get())
        })
    }

    fn unlock(&self, level: LockLevel) -> Result<(), Error> {
        if level == LockLevel::None {
            self.release();
        }
        self.held.set(level);
        Ok(())
    }

    /// Asked by one that holds the lock, beside whom there is nobody.
    fn is_reserved(&self) -> Result<bool, Error> {
        Ok(false)
    }
}

impl OpenPart {
    fn open(part: Part, create: bool) -> Result<OpenPart, Error> {
        with(|store| {
            let flags = if create { OpenFlags::CREATE } else { OpenFlags::empty() };
            let file = store.open(part, flags).map_err(|error| reason("open", error))?;
            store.sees_its_own()?;
            let opened = Opened { file, generation: store.lock.generation() };
            Ok(OpenPart {
                part,
                opened: RefCell::new(opened),
                held: Cell::new(LockLevel::None),
                has_new_entry: Cell::new(true),
            })
        })
    }

    fn release(&self) {
        if self.held.get() != LockLevel::None {
            STORE.with_borrow_mut(|store| match store {
                Some(store) if store.failed => store.lock.abandon(),
                Some(store) => store.lock.release(),
                None => {}
            });
        }
    }
}

impl Drop for OpenPart {
    fn drop(&mut self) {
        self.release();
    }
}

fn io(what: &str, error: ErrorCode) -> Error {
    reason(what, error);
    Error::Io
}

/// The component is told the kind, the operator's log the rest.
fn reason(what: &str, error: ErrorCode) -> Error {
    let kind = match error {
        ErrorCode::NoEntry => return Error::NotFound,
        ErrorCode::InsufficientSpace | ErrorCode::Quota | ErrorCode::FileTooLarge => Error::NoSpace,
        ErrorCode::Access | ErrorCode::NotPermitted | ErrorCode::ReadOnly => Error::ReadOnly,
        _ => Error::Io,
    };
    eprintln!("counterfoil: cannot {what} the database: {}", error.name());
    kind
}
