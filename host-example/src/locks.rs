//! Locks on ranges of a file's bytes, and who holds them: Linux's open file description locks (`fcntl(2)`). They exclude
//! other instances of this process as well as other processes, and vanish with whoever held them.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK};

/// A range of bytes: its start and length.
pub(crate) type Bytes = (i64, i64);
pub(crate) const PENDING: Bytes = (0x4000_0000, 1);
pub(crate) const RESERVED: Bytes = (0x4000_0001, 1);
pub(crate) const SHARED: Bytes = (0x4000_0002, 510);
/// Ours, not SQLite's: tells an owner, who has come to stay, from a writer, who will be gone in a moment.
pub(crate) const OWNER: Bytes = (0x3fff_ffff, 1);

/// To the end of the file, however long it grows (`fcntl(2)`).
const ALL: Bytes = (0, 0);

fn flock(kind: i32, (start, len): Bytes) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}

/// Takes or lets go a lock without waiting; false if somebody is in the way.
pub(crate) fn set(file: &File, kind: i32, range: Bytes) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&flock(kind, range))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes SQLite's lock `shared` without waiting; false if somebody is in the way. Under it nobody changes the database
/// file. `pending`, which it takes and lets go again, keeps out those who would read before a waiting writer.
pub(crate) fn share(file: &File) -> io::Result<bool> {
    if !set(file, F_RDLCK, PENDING)? {
        return Ok(false);
    }
    let taken = set(file, F_RDLCK, SHARED);
    set(file, F_UNLCK, PENDING)?;
    taken
}

/// Whether somebody else's lock is in the way of this one.
pub(crate) fn blocked(file: &File, kind: i32, range: Bytes) -> io::Result<bool> {
    let mut lock = flock(kind, range);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != F_UNLCK)
}

/// Which process owns the database: the kernel tells it of a process's own locks only, in `/proc/PID/fdinfo`, and of
/// those that this user may look into.
pub(crate) fn owner(file: &File) -> Option<String> {
    let ours = file.metadata().ok()?;
    let position = OWNER.0.to_string();
    let has_lock = |process: &Path, fd: &fs::DirEntry| {
        let same = fs::metadata(fd.path()).is_ok_and(|fd| (fd.dev(), fd.ino()) == (ours.dev(), ours.ino()));
        same && fs::read_to_string(process.join("fdinfo").join(fd.file_name())).is_ok_and(|info| {
            info.lines().any(|line| line.contains("OFDLCK") && line.split_whitespace().any(|word| word == position))
        })
    };
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut fds = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        fds.any(|fd| has_lock(&process.path(), &fd)).then(|| {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("{pid} ({})", name.trim_end())
        })
    })
}

/// Closing is not enough: a process that another thread is just starting holds a copy of the descriptor, and with it
/// the lock, until it has become another program.
pub(crate) fn release(file: &File) {
    if let Err(error) = set(file, F_UNLCK, ALL) {
        tracing::error!(%error, "cannot unlock the database");
    }
}
