//! SQLite's operating system: a [VFS](https://sqlite.org/vfs.html) of one-line pass-throughs to the host's `storage`.
//!
//! Compiled with `SQLITE_OS_OTHER`, SQLite brings no operating-system layer of its own and asks for this one in
//! `sqlite3_os_init`. All hand-written `unsafe` of the crate is here. Left out: shared memory, since a WAL is only kept
//! by an instance that owns its database (`locking_mode=EXCLUSIVE`), and temporary files, which stay in memory
//! (`SQLITE_TEMP_STORE=3`).
//!
//! Two arguments hold for every callback below. SQLite calls them with the pointers that its documentation of
//! [`sqlite3_vfs`](https://sqlite.org/c3ref/vfs.html) and [`sqlite3_io_methods`](https://sqlite.org/c3ref/io_methods.html)
//! promises, valid for the call; and it passes as a file only memory of `szOsFile` bytes that `open` has filled with an
//! [`OpenFile`], until `close`.

#![allow(unsafe_code, reason = "SQLite calls a VFS through C pointers")]

use super::file::File;
use crate::imports::storage::{self, Error, LockLevel, Part};
use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const NAME: &CStr = c"counterfoil";

/// Whether storage failed at any time in this instance's life. What earlier writes did is uncertain from then on, and
/// a second sync may succeed falsely, so nothing on this instance is trusted again (contract rule C3).
pub fn failed() -> bool {
    FAILED.get()
}

/// Storage failed: from now on [`failed`] says so.
pub fn fail() {
    FAILED.set(true);
}

thread_local! {
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// For a new instance on the same thread.
#[cfg(not(target_family = "wasm"))]
pub fn reset() {
    FAILED.set(false);
}

fn failed_with(io: c_int) -> c_int {
    fail();
    io
}

/// SQLite makes some operations after its commit, so whatever makes one fail, the state is uncertain. The exceptions are
/// `open`, and `write` where there is no room.
fn done(result: Result<(), Error>, io: c_int) -> c_int {
    result.map_or_else(|_| failed_with(io), |()| ffi::SQLITE_OK)
}

/// Without room nothing was changed, and the instance may go on.
fn written(result: Result<(), Error>, io: c_int) -> c_int {
    if result == Err(Error::NoSpace) { ffi::SQLITE_FULL } else { done(result, io) }
}

/// What SQLite knows as a `sqlite3_file`: the base comes first, as it requires.
#[repr(C)]
struct OpenFile {
    base: ffi::sqlite3_file,
    file: File,
    held: LockLevel,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

#[cfg(target_family = "wasm")]
#[unsafe(no_mangle)] // SAFETY: with SQLITE_OS_OTHER nothing else defines this symbol, and SQLite expects it.
extern "C" fn sqlite3_os_init() -> c_int {
    register(true)
}

/// A native SQLite has an operating system, and is given this one beside it.
#[cfg(not(target_family = "wasm"))]
pub fn init() -> rusqlite::Result<()> {
    static REGISTERED: std::sync::OnceLock<c_int> = std::sync::OnceLock::new();
    match *REGISTERED.get_or_init(|| register(false)) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

fn register(as_default: bool) -> c_int {
    let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<OpenFile>() as c_int,
        mxPathname: 64,
        pNext: ptr::null_mut(),
        zName: NAME.as_ptr(),
        pAppData: ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: None,
        xGetLastError: None,
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }));
    // SAFETY: the structure lives for ever, as SQLite requires of a registered VFS.
    unsafe { ffi::sqlite3_vfs_register(vfs, c_int::from(as_default)) }
}

#[cfg(target_family = "wasm")]
#[unsafe(no_mangle)] // SAFETY: as for `sqlite3_os_init`.
extern "C" fn sqlite3_os_end() -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    _: *const c_char,
    out: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: `out` points to `szOsFile` bytes. No methods means that SQLite will not call `close`.
    unsafe { (*out).pMethods = ptr::null() };
    let part = match flags & (ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL) {
        ffi::SQLITE_OPEN_MAIN_DB => Part::Database,
        ffi::SQLITE_OPEN_MAIN_JOURNAL => Part::Journal,
        ffi::SQLITE_OPEN_WAL => Part::Wal,
        _ => return ffi::SQLITE_CANTOPEN,
    };
    match File::open(part, flags & ffi::SQLITE_OPEN_CREATE != 0) {
        Err(Error::NoSpace) => ffi::SQLITE_FULL,
        Err(Error::ReadOnly) => ffi::SQLITE_READONLY,
        Err(Error::NotFound) => ffi::SQLITE_CANTOPEN,
        Err(Error::Io) => failed_with(ffi::SQLITE_CANTOPEN),
        Ok(file) => {
            let base = ffi::sqlite3_file { pMethods: &METHODS };
            // SAFETY: `out` points to `szOsFile` bytes, aligned to 8 and not yet an `OpenFile`, so nothing is dropped.
            unsafe { out.cast::<OpenFile>().write(OpenFile { base, file, held: LockLevel::None }) };
            if !out_flags.is_null() {
                // SAFETY: not null, so an int of SQLite's.
                unsafe { *out_flags = flags };
            }
            ffi::SQLITE_OK
        }
    }
}

/// The part that SQLite means by the name of a file: it adds these endings to the database's name.
///
/// # Safety
///
/// `name` is a string with its NUL.
unsafe fn part(name: *const c_char) -> Part {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    match name {
        _ if name.ends_with(b"-journal") => Part::Journal,
        _ if name.ends_with(b"-wal") => Part::Wal,
        _ => Part::Database,
    }
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, _: c_int) -> c_int {
    // Always durable, though SQLite asks for it only under synchronous=EXTRA: a removed journal or WAL that is back after
    // a power cut would undo or overwrite what was committed since.
    // SAFETY: SQLite passes a string with its NUL.
    match storage::remove(unsafe { part(name) }) {
        Err(Error::NotFound) => ffi::SQLITE_IOERR_DELETE_NOENT,
        result => done(result, ffi::SQLITE_IOERR_DELETE),
    }
}

unsafe extern "C" fn access(_: *mut ffi::sqlite3_vfs, name: *const c_char, _: c_int, out: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a string with its NUL.
    let exists = storage::exists(unsafe { part(name) });
    // SAFETY: `out` is an int of SQLite's.
    done(exists.map(|exists| unsafe { *out = c_int::from(exists) }), ffi::SQLITE_IOERR_ACCESS)
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    size: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite passes a string with its NUL.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if name.len() > size as usize {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has room for `size` bytes, which is enough, and does not overlap SQLite's copy of the name.
    unsafe { ptr::copy_nonoverlapping(name.as_ptr().cast(), out, name.len()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, size: c_int, out: *mut c_char) -> c_int {
    // SAFETY: `out` has room for `size` bytes, in SQLite's generator, which is static and so initialised.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), size as usize) };
    match getrandom::fill(out) {
        Ok(()) => size,
        Err(_) => 0,
    }
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    std::thread::sleep(Duration::from_micros(microseconds as u64));
    microseconds
}

unsafe extern "C" fn current_time_int64(_: *mut ffi::sqlite3_vfs, out: *mut i64) -> c_int {
    // SQLite counts milliseconds from noon in Greenwich on November 24, 4714 B.C.
    const UNIX_EPOCH_JULIAN_MS: i64 = 210_866_760_000_000;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // SAFETY: `out` is an integer of SQLite's.
    unsafe { *out = UNIX_EPOCH_JULIAN_MS + since.as_millis() as i64 };
    ffi::SQLITE_OK
}

/// The open file behind a pointer of SQLite's.
///
/// # Safety
///
/// `file` was filled by `open`, is not closed, and no other reference to it is alive.
unsafe fn this<'a>(file: *mut ffi::sqlite3_file) -> &'a mut OpenFile {
    // SAFETY: as the caller promises; `OpenFile` starts with the `sqlite3_file`.
    unsafe { &mut *file.cast::<OpenFile>() }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite does not use the file after this, so it is dropped once; dropping releases its locks.
    unsafe { ptr::drop_in_place(file.cast::<OpenFile>()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, out: *mut c_void, size: c_int, offset: i64) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    let (out, size) = (out.cast::<u8>(), size as usize);
    match file.file.read(offset as u64, size as u32) {
        Ok(bytes) => {
            // SAFETY: `out` has room for `size` bytes, of which the first are copied from a vector of our own, which has no
            // more, and the rest, at the end of the file, zeroed as SQLite wants it.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len());
                out.add(bytes.len()).write_bytes(0, size - bytes.len());
            }
            if bytes.len() == size { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_SHORT_READ }
        }
        Err(_) => failed_with(ffi::SQLITE_IOERR_READ),
    }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, bytes: *const c_void, size: c_int, offset: i64) -> c_int {
    // SAFETY: see `this`; `bytes` points to `size` bytes.
    let (file, bytes) = unsafe { (this(file), std::slice::from_raw_parts(bytes.cast::<u8>(), size as usize)) };
    written(file.file.write(offset as u64, bytes), ffi::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    done(file.file.set_size(size as u64), ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    // What was gathered is written now: SQLite syncs a WAL to commit, and rolls back if it cannot.
    written(file.file.sync(), ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, out: *mut i64) -> c_int {
    // SAFETY: see `this`.
    let size = unsafe { this(file) }.file.size();
    // SAFETY: `out` is an integer of SQLite's.
    done(size.map(|size| unsafe { *out = size as i64 }), ffi::SQLITE_IOERR_FSTAT)
}

const LEVELS: [LockLevel; 5] =
    [LockLevel::None, LockLevel::Shared, LockLevel::Reserved, LockLevel::Pending, LockLevel::Exclusive];

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    let wanted = LEVELS[level as usize];
    if file.held >= wanted {
        return ffi::SQLITE_OK;
    }
    match file.file.lock(wanted) {
        Err(_) => failed_with(ffi::SQLITE_IOERR_LOCK),
        Ok(held) => {
            file.held = held;
            if held >= wanted { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
        }
    }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    let wanted = LEVELS[level as usize];
    if file.held <= wanted {
        return ffi::SQLITE_OK;
    }
    file.held = wanted;
    done(file.file.unlock(wanted), ffi::SQLITE_IOERR_UNLOCK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: see `this`.
    let file = unsafe { this(file) };
    let reserved = if file.held >= LockLevel::Reserved { Ok(true) } else { file.file.is_reserved() };
    // SAFETY: `out` is an int of SQLite's.
    done(reserved.map(|held| unsafe { *out = c_int::from(held) }), ffi::SQLITE_IOERR_CHECKRESERVEDLOCK)
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    // A write changes no byte beside those it was given, even in a power cut: SQLite assumes the same on Unix.
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}
