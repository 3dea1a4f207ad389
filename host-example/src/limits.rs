//! What an instance may use. The component may be anybody's: whatever it does, the host stays up, and other databases are as
//! they were.

use crate::component::State;
use std::time::{Duration, Instant};
use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Result, Store, UpdateDeadline};

/// What one instance may use. Reaching a limit is a refusal or a trap, never a stuck host; after a trap the same call
/// can be made again, on a new instance, with the same key.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory, in bytes: all that the instance can address, and its tables.
    pub memory: usize,
    /// Computing time of one call or batch, in which sleeping counts. Time spent in [`crate::Storage`] does not count: a slow
    /// disk must not trap a call that has just committed.
    pub computing: Duration,
    /// Time in storage of one call or batch, so that an endless loop of syncs ends. To be generous with: what is cut off here
    /// may have committed, and a database that takes longer to recover after a crash can be opened by an operator alone.
    pub storage: Duration,
    /// How long one call or batch may wait for locks on the database, all its waits together. Counts as neither.
    pub lock_wait: Duration,
    /// Size of each file of the database, in bytes. There is no room for more, as on a disk that is full.
    pub file_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory: 64 << 20,
            computing: Duration::from_secs(10),
            storage: Duration::from_secs(60),
            lock_wait: Duration::from_secs(2),
            file_size: 1 << 40,
        }
    }
}

impl Limits {
    /// For what an operator asks for, which takes as long as the database is large: a day of computing, and of storage.
    #[must_use]
    pub fn operator() -> Self {
        let day = Duration::from_secs(86_400);
        Limits { computing: day, storage: day, ..Limits::default() }
    }
}

/// The most bytes of one `read` or `write`. SQLite has pages of up to 64 KiB, and the component copies a WAL by 256 KiB.
pub const AT_ONCE: usize = 1 << 20;

/// The most open files, streams and timers at a time. SQLite has three files.
const HANDLES: usize = 64;

/// The most handles at a time of what is open, of which one call can pass on many.
const LENT: usize = 1024;

/// The most bytes that the host takes from the component in one call of either's. 64 replies have 4 MiB.
const FROM_COMPONENT: usize = 16 << 20;

/// The most bytes of random numbers at once.
pub const RANDOM: u64 = 1 << 16;

/// How often storage may fail in one call. SQLite gives up soon, and each failure has a line in the log.
pub const FAILURES: u32 = 32;

/// What the running call has used.
pub struct Used {
    started: Instant,
    pub storage: Duration,
    pub waited: Duration,
    /// How often storage failed.
    pub failures: u32,
}

impl Used {
    pub fn new() -> Used {
        Used { started: Instant::now(), storage: Duration::ZERO, waited: Duration::ZERO, failures: 0 }
    }

    pub fn computing(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.storage + self.waited)
    }

    fn exceeds(&self, limits: &Limits) -> bool {
        self.computing() > limits.computing || self.storage > limits.storage
    }
}

pub fn apply(store: &mut Store<State>) {
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(FROM_COMPONENT);
    store.set_max_component_handles(LENT);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|store| {
        let State { used, limits, .. } = store.data();
        Ok(if used.exceeds(limits) { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) })
    });
}

pub fn table() -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(HANDLES);
    table
}

/// What is left of an instance's memory. wasmtime's own `StoreLimits` bound each memory by itself, of which there may be many.
pub struct Memory(usize);

impl Memory {
    pub fn new(limits: &Limits) -> Memory {
        Memory(limits.memory)
    }

    fn grow(&mut self, size: usize, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let left = desired.checked_sub(current).and_then(|more| self.0.checked_sub(more.checked_mul(size)?));
        let may = maximum.is_none_or(|maximum| desired <= maximum);
        Ok(may && left.map(|left| self.0 = left).is_some())
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        self.grow(1, current, desired, maximum)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        self.grow(size_of::<usize>(), current, desired, maximum)
    }

    /// Each takes some of the host's memory beside its own. Rust's components have six.
    fn instances(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        64
    }
}
