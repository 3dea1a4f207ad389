//! A copy of a database that others may be using, made under SQLite's locks but without SQLite: bytes are copied, and where
//! they alone would not do, the answer is [`CopyError::Unsettled`].

use crate::files::{beside, canonical};
use crate::locks::{F_RDLCK, F_WRLCK, OWNER, RESERVED, blocked, owner, release, share};
use crate::{Files, OpenError, Part};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{error, fmt, thread};

/// Why a database was not copied. Nothing is left of the copy, as far as it can be removed, and the database is as it was.
#[derive(Debug)]
pub enum CopyError {
    /// The database cannot be opened, or was in use for the whole wait.
    Open(OpenError),
    /// Committed changes may be in its WAL, or uncommitted ones in the file itself, whose writer died. Any call of the
    /// component's on the database moves or undoes them; then try again.
    Unsettled(PathBuf),
    /// This file is in the way, and is left as it is.
    Exists(PathBuf),
    /// The copy cannot be made or stored.
    Io(PathBuf, io::Error),
}

impl Files {
    /// Copies the database to the new file `to`, with the same permissions. Once this returns, the copy would survive a
    /// power cut; until then it is `to` with `.partial` at its end.
    ///
    /// A shared database is copied as of its last commit. Waits for as long as `wait` for a writer, who is done in a
    /// moment. While bytes are read, others may read and prepare their changes, but not commit: a file that takes longer to
    /// read than they wait makes them answer `busy`.
    ///
    /// Of a database that is its owner's alone ([`Files::sole`]) the bytes are copied as they are. No call may be running
    /// on it, and the last one must have been [`crate::Instance::checkpoint`] or [`crate::Instance::close`].
    ///
    /// What is copied need not be a database: that is not looked at.
    ///
    /// # Errors
    ///
    /// If the database cannot be opened, is in use or is not settled; if `to`, `to.partial` or what SQLite would take for
    /// the copy's journal or WAL is there already; if its folder is not there or has no room.
    pub fn copy(&self, to: &Path, wait: Duration) -> Result<(), CopyError> {
        let to = canonical(to).map_err(|error| CopyError::Io(to.to_owned(), error))?;
        let mut partial = to.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if [Part::Journal, Part::Wal].iter().any(|part| beside(self.database(), *part) == to) {
            let error = io::Error::new(ErrorKind::InvalidInput, "SQLite would take it for the database's own");
            return Err(CopyError::Io(to, error));
        }
        // A journal that an earlier database left would be played back into the copy.
        let names = [Part::Database, Part::Journal, Part::Wal].map(|part| beside(&to, part));
        if let Some(name) = names.into_iter().find(|name| name.symlink_metadata().is_ok()) {
            return Err(CopyError::Exists(name));
        }

        let database = self.settled(wait)?;
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
        let copy = new.map_err(|error| at(&partial, error))?;
        let stored = self.fill(copy, database).map_err(|error| at(&partial, error)).and_then(|()| {
            // Standalone components do not see our lock, but make theirs before they change anything.
            self.refuse_standalone().map_err(CopyError::Open)?;
            rename_to_new(&partial, &to).map_err(|error| at(&to, error))?;
            let stored = File::open(to.parent().unwrap_or(Path::new("/"))).and_then(|folder| folder.sync_all());
            stored.map_err(|error| {
                drop(fs::remove_file(&to));
                at(&to, error)
            })
        });
        if stored.is_err() {
            drop(fs::remove_file(&partial));
        }
        stored
    }

    /// The database, in which all that is committed is, and which nobody changes while this is held.
    fn settled(&self, wait: Duration) -> Result<Held, CopyError> {
        let failed = |error| CopyError::Open(OpenError::Io(self.database().to_owned(), error));
        let database = Held(File::open(self.database()).map_err(failed)?);
        let is_settled = if self.is_shared() {
            let start = Instant::now();
            while !share(&database.0).map_err(failed)? {
                if blocked(&database.0, F_RDLCK, OWNER).map_err(failed)? {
                    return Err(CopyError::Open(OpenError::Owned(self.database().to_owned(), owner(&database.0))));
                }
                if start.elapsed() >= wait {
                    return Err(CopyError::Open(OpenError::Busy(self.database().to_owned())));
                }
                thread::sleep(Duration::from_millis(1));
            }
            self.is_settled(&database.0)
        } else {
            self.in_place().map_err(|_| CopyError::Unsettled(self.database().to_owned()))?;
            // Its owner checkpoints and leaves the mark of a WAL.
            self.has_wal().and_then(|has| Ok(!has && !self.has_journal()?))
        };
        if is_settled.map_err(failed)? { Ok(database) } else { Err(CopyError::Unsettled(self.database().to_owned())) }
    }

    /// Whether the file alone holds what is committed, and nothing else. The lock `shared` is held.
    fn is_settled(&self, database: &File) -> io::Result<bool> {
        // Those who use a WAL write to the file under other locks than ours, so that an empty WAL proves nothing.
        // (<https://sqlite.org/fileformat2.html>, "File format version numbers")
        if bytes_at(database, 18)?.is_some_and(|versions: [u8; 2]| versions.contains(&2)) || self.has_wal()? {
            return Ok(false);
        }
        // A journal is hot, which is to say that its writer died, if nobody holds RESERVED
        // (<https://sqlite.org/lockingv3.html>, "hot journal"). We cannot take one for a living writer's, since both looks
        // come after our lock: whoever would play a hot journal back needs EXCLUSIVE, which we keep from them, and nobody
        // gets RESERVED before that is done. So a hot journal that is there at all is there for both looks, with RESERVED
        // free; and a writer who takes RESERVED later changes no byte of the file before we let go.
        //
        // The other error, a living writer's journal taken for a hot one, costs another try. The journal comes first, so that
        // it takes a writer who undoes his changes between the looks, and not just one who begins to write.
        Ok(!self.has_journal()? || blocked(database, F_WRLCK, RESERVED)?)
    }

    /// Whether a journal is there that SQLite would play back: with zeros at its beginning it would not.
    fn has_journal(&self) -> io::Result<bool> {
        match File::open(beside(self.database(), Part::Journal)) {
            Ok(journal) => Ok(bytes_at(&journal, 0)?.is_some_and(|[first]| first != 0)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn has_wal(&self) -> io::Result<bool> {
        match fs::metadata(beside(self.database(), Part::Wal)) {
            Ok(wal) => Ok(wal.len() > 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets go of the database as soon as it is read: storing the copy may take longer than others wait.
    fn fill(&self, mut copy: File, mut database: Held) -> io::Result<()> {
        self.make_like_database(&copy)?;
        io::copy(&mut database.0, &mut copy)?;
        drop(database);
        copy.sync_all()
    }
}

/// The open database and whatever lock is held on it.
struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        release(&self.0);
    }
}

/// None past the end.
fn bytes_at<const N: usize>(file: &File, offset: u64) -> io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Never takes the place of another file, as renaming would. Where there are no hard links, another process that makes
/// the same file at the same moment would lose it.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !to.exists() => return fs::rename(from, to),
        linked => linked?,
    }
    fs::remove_file(from).inspect_err(|_| drop(fs::remove_file(to)))
}

fn at(path: &Path, error: io::Error) -> CopyError {
    match error.kind() {
        ErrorKind::AlreadyExists => CopyError::Exists(path.to_owned()),
        _ => CopyError::Io(path.to_owned(), error),
    }
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Open(error) => error.fmt(f),
            CopyError::Unsettled(path) => {
                let path = path.display();
                write!(f, "{path} is not settled without its journal or WAL: ")?;
                write!(f, "open it once with the component, then try again")
            }
            CopyError::Exists(path) => write!(f, "{} is there already", path.display()),
            CopyError::Io(path, error) => write!(f, "cannot make the copy {}: {error}", path.display()),
        }
    }
}

impl error::Error for CopyError {}
