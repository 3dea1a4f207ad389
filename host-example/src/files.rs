//! [`Storage`] over real files, with SQLite's own locks on SQLite's own bytes, so that the `sqlite3` program takes part.

use crate::locks::{F_RDLCK, F_UNLCK, F_WRLCK, OWNER, PENDING, RESERVED, SHARED, blocked, owner, release, set, share};
use crate::owned::OwnedFile;
use crate::{Error, LockLevel, Part, Sharing, Storage, StorageFile};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// One database's files: `FILE`, `FILE-journal` and `FILE-wal`.
pub struct Files {
    database: PathBuf,
    /// Held locked while this lives, if nobody else may open the database.
    owned: Option<Arc<OwnedFile>>,
    /// Whether a sync failed: what it was to make durable may be gone from memory, so another one proves nothing.
    failed: Arc<AtomicBool>,
}

/// Why a database cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process owns it and serves it; its process id and name, if they could be told.
    Owned(PathBuf, Option<String>),
    /// Somebody else used it for the whole wait.
    Busy(PathBuf),
    /// Standalone components use it, which cannot see the locks of files; the folder in which they keep their own lock.
    Standalone(PathBuf, PathBuf),
    Io(PathBuf, io::Error),
}

impl Files {
    /// The files of a database that other instances and processes may use at the same time.
    ///
    /// # Errors
    ///
    /// If the folder is not there, another process owns the database, or standalone components use it.
    pub fn shared(database: &Path) -> Result<Files, OpenError> {
        let database = canonical(database).map_err(|error| OpenError::Io(database.to_owned(), error))?;
        if let Ok(file) = File::open(&database)
            && blocked(&file, F_RDLCK, OWNER).unwrap_or(false)
        {
            return Err(OpenError::Owned(database, owner(&file)));
        }
        let files = Files { database, owned: None, failed: Arc::default() };
        files.refuse_standalone()?;
        Ok(files)
    }

    /// The files of a database that nobody else may open while this lives. Waits for as long as `wait` for those who
    /// are using it.
    ///
    /// # Errors
    ///
    /// If the folder is not there, the file cannot be made, another process owns it, standalone components use it, or
    /// somebody else uses it for the whole wait.
    pub fn sole(database: &Path, wait: Duration) -> Result<Files, OpenError> {
        let failed = |error| OpenError::Io(database.to_owned(), error);
        let database = canonical(database).map_err(failed)?;
        let files = Files { database, owned: None, failed: Arc::default() };
        files.refuse_standalone()?;
        let database = files.database.clone();
        let file = open(&database, true, 0o644).map_err(failed)?;
        if !set(&file, F_WRLCK, OWNER).map_err(failed)? {
            return Err(OpenError::Owned(database, owner(&file)));
        }
        let owned = Arc::new(OwnedFile { file, path: database.clone() });
        let start = Instant::now();
        while !owned.take_all().map_err(failed)? {
            if start.elapsed() >= wait {
                return Err(OpenError::Busy(database));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Files { owned: Some(owned), ..files })
    }

    /// The same files for another instance, once the one before is gone. What is owned stays so in between.
    #[must_use]
    pub fn again(&self) -> Files {
        Files { database: self.database.clone(), owned: self.owned.clone(), failed: Arc::default() }
    }

    pub(crate) fn refuse_standalone(&self) -> Result<(), OpenError> {
        let lock = self.lock_name();
        if lock.is_dir() { Err(OpenError::Standalone(self.database.clone(), lock)) } else { Ok(()) }
    }

    /// Leaves beside the database, under the name that standalone components give to the folder of their lock, a file: so
    /// they cannot make the folder, nor we the file where the folder is. It stays, since we cannot tell who else uses the
    /// database.
    fn mark(&self) -> Result<(), OpenError> {
        const TEXT: &str = "The database beside this file is used by hosts that lock files, which standalone components \
                            cannot. Where none runs any more, remove this file to let standalone components use it.\n";
        let lock = self.lock_name();
        match OpenOptions::new().write(true).create_new(true).open(&lock) {
            // What it says is for a person; that it is there is enough.
            Ok(mut file) => drop(file.write_all(TEXT.as_bytes())),
            Err(_) if lock.is_dir() => return Err(OpenError::Standalone(self.database.clone(), lock)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(OpenError::Io(lock, error)),
        }
        Ok(())
    }

    fn lock_name(&self) -> PathBuf {
        let mut name = OsString::from(&self.database);
        name.push("-lock");
        name.into()
    }

    /// Whether what is owned is still where it was.
    pub(crate) fn in_place(&self) -> Result<(), Error> {
        self.owned.as_ref().map_or(Ok(()), |owned| owned.is_in_place())
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.owned.is_none()
    }

    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    fn path(&self, part: Part) -> PathBuf {
        beside(&self.database, part)
    }

    /// A journal or WAL holds what the database holds, so nobody else may read it, and whoever may use the database must
    /// be able to open it. SQLite does likewise.
    pub(crate) fn make_like_database(&self, file: &File) -> io::Result<()> {
        let database = fs::metadata(&self.database)?;
        file.set_permissions(database.permissions())?;
        let ours = file.metadata()?;
        if (ours.uid(), ours.gid()) != (database.uid(), database.gid()) {
            // Allowed to few; where it is not, the file is ours to use at least.
            drop(std::os::unix::fs::fchown(file, Some(database.uid()), Some(database.gid())));
        }
        Ok(())
    }

    fn folder(&self) -> io::Result<File> {
        File::open(self.database.parent().unwrap_or(Path::new("/")))
    }
}

/// Where SQLite looks for a part of this database.
pub(crate) fn beside(database: &Path, part: Part) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(match part {
        Part::Database => "",
        Part::Journal => "-journal",
        Part::Wal => "-wal",
    });
    path.into()
}

/// The file's one real name, since SQLite finds a crashed writer's journal by it (<https://sqlite.org/howtocorrupt.html>,
/// "Multiple links to the same file").
pub(crate) fn canonical(database: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(database) {
        // Its target has a name of its own, which cannot be told before it is there.
        Err(error) if error.kind() == ErrorKind::NotFound && !database.is_symlink() => {
            let name = database.file_name().ok_or(error)?;
            let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(fs::canonicalize(folder)?.join(name))
        }
        // Opening a pipe would wait for ever.
        Ok(path) if !path.is_file() => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
        result => result,
    }
}

fn open(path: &Path, create: bool, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(mode).open(path)
}

impl Storage for Files {
    fn sharing(&self) -> Result<Sharing, String> {
        self.mark().map_err(|error| error.to_string())?;
        Ok(if self.is_shared() { Sharing::Shared } else { Sharing::Sole })
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let path = self.path(part);
        self.in_place()?;
        // Closed to others until it is made like the database.
        let is_new = create && part != Part::Database && !path.exists();
        let file = open(&path, create, if is_new { 0o600 } else { 0o644 }).map_err(|error| reason("open", &error))?;
        if is_new {
            self.make_like_database(&file).map_err(|error| reason("protect", &error))?;
        }
        // Its entry in the folder may not be durable yet, whoever made it.
        let unsynced_folder = Some(self.folder().map_err(|error| reason("open", &error))?);
        let locks = self.owned.is_none().then_some(LockLevel::None);
        let (owned, failed) = (self.owned.clone(), Arc::clone(&self.failed));
        Ok(Box::new(OpenPart { file, unsynced_folder, locks, owned, failed }))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        match fs::metadata(self.path(part)) {
            Ok(metadata) => Ok(metadata.len() > 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(reason("look for", &error)),
        }
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        fs::remove_file(self.path(part)).map_err(|error| reason("remove", &error))?;
        self.folder().and_then(|folder| folder.sync_all()).map_err(|error| reason("sync", &error))
    }
}

impl Drop for OpenPart {
    fn drop(&mut self) {
        if self.locks.is_some_and(|held| held != LockLevel::None) {
            release(&self.file);
        }
    }
}

struct OpenPart {
    file: File,
    unsynced_folder: Option<File>,
    /// The level held; none where one owner has the file, who needs no more locks.
    locks: Option<LockLevel>,
    owned: Option<Arc<OwnedFile>>,
    failed: Arc<AtomicBool>,
}

impl StorageFile for OpenPart {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(reason("read", &error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, offset).map_err(|error| reason("write", &error))
    }

    fn size(&mut self) -> Result<u64, Error> {
        Ok(self.file.metadata().map_err(|error| reason("measure", &error))?.len())
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.file.set_len(size).map_err(|error| reason("cut", &error))
    }

    fn sync(&mut self) -> Result<(), Error> {
        if self.failed.load(Relaxed) {
            return Err(Error::Io);
        }
        let sync = |file: &File| {
            file.sync_data().map_err(|error| {
                self.failed.store(true, Relaxed);
                reason("sync", &error);
                Error::Io
            })
        };
        sync(&self.file)?;
        // Nothing is answered from a file that nobody finds any more.
        if let Some(owned) = &self.owned {
            owned.is_in_place()?;
        }
        if let Some(folder) = &self.unsynced_folder {
            sync(folder)?;
            self.unsynced_folder = None;
        }
        Ok(())
    }

    /// <https://sqlite.org/lockingv3.html>, by these bytes of the file (r: read lock, w: write lock):
    ///
    /// | Level | pending | reserved | shared | Who else may hold |
    /// |---|---|---|---|---|
    /// | shared | r, let go again | | r | shared, reserved; and pending, which lets no new reader in |
    /// | reserved | | w | r | shared |
    /// | pending | w | w | r | shared, until they let go |
    /// | exclusive | w | w | w | nothing |
    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        let Some(held) = &mut self.locks else { return Ok(level) };
        let take = |kind, range| set(&self.file, kind, range).map_err(|error| reason("lock", &error));
        if *held < LockLevel::Shared && level >= LockLevel::Shared {
            if !share(&self.file).map_err(|error| reason("lock", &error))? {
                return Ok(*held);
            }
            *held = LockLevel::Shared;
        }
        // To play back a crashed writer's journal, SQLite goes from shared straight to exclusive.
        if level == LockLevel::Reserved && *held < LockLevel::Reserved && take(F_WRLCK, RESERVED)? {
            *held = LockLevel::Reserved;
        }
        if level >= LockLevel::Pending && *held < LockLevel::Pending && take(F_WRLCK, PENDING)? {
            *held = LockLevel::Pending;
        }
        if level == LockLevel::Exclusive && *held == LockLevel::Pending && take(F_WRLCK, SHARED)? {
            *held = LockLevel::Exclusive;
        }
        Ok(*held)
    }

    fn unlock(&mut self, level: LockLevel) -> Result<(), Error> {
        let Some(held) = &mut self.locks else { return Ok(()) };
        let give = |kind, range| set(&self.file, kind, range).map(drop).map_err(|error| reason("unlock", &error));
        if level == LockLevel::Shared {
            give(F_RDLCK, SHARED)?;
        } else {
            give(F_UNLCK, SHARED)?;
        }
        give(F_UNLCK, RESERVED)?;
        give(F_UNLCK, PENDING)?;
        *held = level;
        Ok(())
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        match self.locks {
            None => Ok(false),
            Some(_) => blocked(&self.file, F_WRLCK, RESERVED).map_err(|error| reason("lock", &error)),
        }
    }
}

/// The component is told the kind, the operator's log the rest.
pub(crate) fn reason(what: &str, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => return Error::NotFound,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            tracing::warn!(%error, "cannot {what} the database");
            return Error::NoSpace;
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            tracing::warn!(%error, "cannot {what} the database");
            return Error::ReadOnly;
        }
        _ => tracing::error!(%error, "cannot {what} the database"),
    }
    Error::Io
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Owned(path, who) => {
                let path = path.display();
                let who = who.as_deref().map(|who| format!("process {who}"));
                let who = who.as_deref().unwrap_or("another process");
                write!(f, "{path} is owned by {who}: send the call to it, or stop it first")
            }
            OpenError::Busy(path) => {
                write!(f, "{} is in use by another process: try again when it has finished", path.display())
            }
            OpenError::Standalone(path, lock) => write!(
                f,
                "{} is used by standalone components: stop all that use it, then remove {}",
                path.display(),
                lock.display()
            ),
            OpenError::Io(path, error) => write!(f, "cannot open {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}
