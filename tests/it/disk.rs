//! A disk in memory that fails, fills up, dies and loses power on command.
//!
//! A file is what was synced and the changes since. A killed process leaves both, as the page cache does; what a power cut
//! leaves is in `disk/stored.rs`.

use host_example::{Error, LockLevel, Part, Sharing, Storage, StorageFile};
use std::sync::{Arc, Mutex, MutexGuard};

mod stored;

use stored::{Change, Content, Stored};
pub use stored::{Moment, mix};

/// The calls to storage. Those from `Open` on may change what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Call {
    Exists,
    Read,
    Size,
    Lock,
    Open,
    Write,
    SetSize,
    Sync,
    Remove,
}

/// What goes wrong, counting the calls from 1.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// This one call fails, having done nothing.
    Fail(u64, Error),
    /// This call and all later ones fail.
    FailFrom(u64, Error),
    /// From this call on there is no room for any write, not even over what is there.
    NoRoomFrom(u64),
    /// If this call is a read, it answers fewer bytes than there are; and so do all later ones.
    Short(u64),
    ShortFrom(u64),
    /// From this call on every read answers a byte more than was asked for.
    LongFrom(u64),
    /// Of the sizes asked for since a read first answered fewer bytes than asked for, this one is larger than the file: another
    /// process wrote there, and takes it back at once.
    Grows(u64),
    /// If this call is a sync, it fails, and the system forgets what it did not write: it is in memory as if it were
    /// written, and a later sync succeeds without writing it.
    ForgetAt(u64),
    /// Every write to this part fails.
    FailWritesTo(Part),
    /// The machine dies in this call: a write may have reached the disk or not, and nothing happens afterwards.
    Die(u64),
    /// No more than so many bytes are stored.
    Full(usize),
}

struct State {
    sharing: Sharing,
    stored: Stored,
    fault: Fault,
    /// See [`Disk::broke`].
    broke: Option<Call>,
    calls: u64,
    writes: u64,
    /// See [`Disk::sizes`].
    sizes: Option<u64>,
    highest_lock: u8,
    /// Every so many calls, what a machine leaves that dies in the call is kept; never if 0.
    every: u64,
    /// Whether the last call that changed something was a sync.
    has_synced: bool,
    moments: Vec<Moment>,
}

#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn new(sharing: Sharing) -> Disk {
        Disk::with(sharing, Stored::default())
    }

    fn with(sharing: Sharing, stored: Stored) -> Disk {
        Disk(Arc::new(Mutex::new(State {
            sharing,
            stored,
            fault: Fault::None,
            broke: None,
            calls: 0,
            writes: 0,
            sizes: None,
            highest_lock: 0,
            every: 0,
            has_synced: false,
            moments: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn storage_mode(&self) -> Sharing {
        self.state().sharing
    }

    /// For one instance.
    pub fn storage(&self) -> Mounted {
        let mut state = self.state();
        if state.sharing == Sharing::SoleAtomic {
            // What was not synced was never stored.
            for content in &mut state.stored.contents {
                content.current = content.synced.clone();
                content.since.clear();
            }
        }
        drop(state);
        Mounted { disk: self.clone(), sync_failed: Arc::default() }
    }

    /// Counts the calls anew and sets what goes wrong.
    pub fn fault(&self, fault: Fault) {
        let mut state = self.state();
        (state.calls, state.writes, state.sizes, state.highest_lock) = (0, 0, None, 0);
        (state.fault, state.broke) = (fault, None);
    }

    /// The call in which a [`Fault`] first acted that fails, dies or forgets.
    pub fn broke(&self) -> Option<Call> {
        self.state().broke
    }

    /// Counts the calls anew, and keeps what a machine leaves that dies in them: in every so many of a row of reads and writes, and
    /// in all that end or begin one.
    pub fn record(&self, every: u64) {
        self.fault(Fault::None);
        self.state().every = every;
    }

    /// What was kept, in the order of the calls.
    pub fn moments(&self) -> Vec<Moment> {
        std::mem::take(&mut self.state().moments)
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Sizes asked for since a read first answered fewer bytes than asked for.
    pub fn sizes(&self) -> u64 {
        self.state().sizes.unwrap_or(0)
    }

    /// Calls that change something, and the highest lock taken, since the last [`Disk::fault`].
    pub fn writes_and_lock(&self) -> (u64, u8) {
        let state = self.state();
        (state.writes, state.highest_lock)
    }

    /// Bytes stored now.
    pub fn used(&self) -> usize {
        self.state().stored.used()
    }

    /// The next syncs do nothing and say that they did.
    pub fn lie(&self, syncs: u32) {
        self.state().stored.lies = syncs;
    }

    /// From now on what was removed may be back after a power cut.
    pub fn forget_removals(&self) {
        self.state().stored.forgets_removals = true;
    }

    pub fn has(&self, part: Part) -> bool {
        self.state().stored.names[part as usize].is_some()
    }

    /// The same disk as it is now, for another life of it, in working order, in the given mode.
    pub fn copy(&self, sharing: Sharing) -> Disk {
        Disk::with(sharing, self.state().stored.clone())
    }
}

impl State {
    /// Counts a call. An error is the call's; true means that the machine dies in it.
    fn enter(&mut self, call: Call) -> Result<bool, Error> {
        self.calls += 1;
        let entered = match self.fault {
            Fault::Fail(at, error) if self.calls == at => Err(error),
            Fault::FailFrom(at, error) if self.calls >= at => Err(error),
            Fault::Die(at) if self.calls > at => Err(Error::Io),
            Fault::Die(at) => Ok(self.calls == at),
            _ => Ok(false),
        };
        if entered != Ok(false) {
            self.broke.get_or_insert(call);
        }
        entered
    }

    /// The call has done what it does to the disk, which is not synced, if it ends here.
    fn end(&mut self, call: Call, dies: bool) -> Result<(), Error> {
        self.stored.died_in_sync = call == Call::Sync;
        let changes = matches!(call, Call::Write | Call::SetSize | Call::Remove | Call::Sync);
        let is_edge = changes && (call != Call::Write || self.has_synced);
        if changes {
            self.has_synced = call == Call::Sync;
        }
        if self.every > 0 && (is_edge || self.calls.is_multiple_of(self.every)) {
            self.moments.push(Moment { at: self.calls, call, sharing: self.sharing, stored: self.stored.clone() });
        }
        if dies { Err(Error::Io) } else { Ok(()) }
    }

    /// A call that changes nothing.
    fn look(&mut self, call: Call) -> Result<(), Error> {
        self.enter(call)?;
        self.end(call, false)
    }

    fn change(&mut self, content: usize, change: Change, call: Call, dies: bool) -> Result<(), Error> {
        self.writes += 1;
        self.stored.change(content, change);
        self.end(call, dies)
    }
}

pub struct Mounted {
    disk: Disk,
    sync_failed: Arc<Mutex<bool>>,
}

impl Storage for Mounted {
    fn sharing(&self) -> Result<Sharing, String> {
        Ok(self.disk.state().sharing)
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let mut state = self.disk.state();
        let dies = state.enter(Call::Open)?;
        if state.sharing == Sharing::SoleAtomic && part != Part::Database {
            assert!(!create, "sole-atomic has a database alone");
            return Err(Error::NotFound);
        }
        let stored = &mut state.stored;
        let content = match stored.names[part as usize] {
            Some(content) => content,
            None if create => {
                stored.contents.push(Content::default());
                let content = stored.contents.len() - 1;
                stored.names[part as usize] = Some(content);
                content
            }
            None => {
                state.end(Call::Open, dies)?;
                return Err(Error::NotFound);
            }
        };
        state.end(Call::Open, dies)?;
        let sync_failed = Arc::clone(&self.sync_failed);
        Ok(Box::new(OpenPart { disk: self.disk.clone(), part, content, has_synced: false, sync_failed }))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        let mut state = self.disk.state();
        state.look(Call::Exists)?;
        let stored = &state.stored;
        Ok(stored.names[part as usize].is_some_and(|content| !stored.contents[content].current.is_empty()))
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter(Call::Remove)?;
        state.writes += 1;
        state.stored.names[part as usize].take().ok_or(Error::NotFound)?;
        state.end(Call::Remove, dies)?;
        if !state.stored.forgets_removals {
            state.stored.synced_names[part as usize] = None;
        }
        Ok(())
    }
}

struct OpenPart {
    disk: Disk,
    part: Part,
    content: usize,
    has_synced: bool,
    sync_failed: Arc<Mutex<bool>>,
}

impl StorageFile for OpenPart {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        let mut state = self.disk.state();
        state.look(Call::Read)?;
        let current = &state.stored.contents[self.content].current;
        let from = current.len().min(offset as usize);
        let mut to = current.len().min(from + length as usize);
        let is_short = match state.fault {
            Fault::Short(at) => state.calls == at,
            Fault::ShortFrom(at) => state.calls >= at,
            _ => false,
        };
        if is_short {
            // Nothing, a third, or two thirds.
            to = from + (to - from) * (state.calls % 3) as usize / 3;
        }
        let mut bytes = current[from..to].to_vec();
        if matches!(state.fault, Fault::LongFrom(at) if state.calls >= at) {
            bytes.resize(length as usize + 1, 0);
        }
        if bytes.len() < length as usize {
            state.sizes.get_or_insert(0);
        }
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter(Call::Write)?;
        if let Fault::Full(most) = state.fault {
            let end = offset as usize + bytes.len();
            let grows = end.saturating_sub(state.stored.contents[self.content].current.len());
            if grows > 0 && state.stored.used() + grows > most {
                return Err(Error::NoSpace);
            }
        }
        if matches!(state.fault, Fault::NoRoomFrom(at) if state.calls >= at) {
            return Err(Error::NoSpace);
        }
        if matches!(state.fault, Fault::FailWritesTo(part) if part == self.part) {
            return Err(Error::Io);
        }
        state.change(self.content, Change::Write(offset as usize, bytes.to_vec()), Call::Write, dies)
    }

    fn size(&mut self) -> Result<u64, Error> {
        let mut state = self.disk.state();
        state.look(Call::Size)?;
        let size = state.stored.contents[self.content].current.len() as u64;
        state.sizes = state.sizes.map(|asked| asked + 1);
        Ok(if matches!(state.fault, Fault::Grows(at) if state.sizes == Some(at)) { size + 4096 } else { size })
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter(Call::SetSize)?;
        state.change(self.content, Change::Size(size as usize), Call::SetSize, dies)
    }

    fn sync(&mut self) -> Result<(), Error> {
        let mut state = self.disk.state();
        let mut failed = self.sync_failed.lock().unwrap();
        // Once one has failed, all later ones of this instance do.
        let entered = state.enter(Call::Sync);
        if matches!(state.fault, Fault::ForgetAt(at) if at == state.calls) {
            state.broke.get_or_insert(Call::Sync);
            state.stored.contents[self.content].since.clear();
            *failed = true;
        }
        let entered = entered.and_then(|dies| state.end(Call::Sync, dies));
        *failed |= entered.is_err();
        if *failed {
            return Err(Error::Io);
        }
        // The first one syncs the folder as well.
        state.stored.sync(self.part, self.content, !std::mem::replace(&mut self.has_synced, true));
        Ok(())
    }

    /// One instance at a time: what locks do is tested on real files.
    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        let mut state = self.disk.state();
        state.look(Call::Lock)?;
        state.highest_lock = state.highest_lock.max(level as u8);
        Ok(level)
    }

    fn unlock(&mut self, _: LockLevel) -> Result<(), Error> {
        self.disk.state().look(Call::Lock)
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        self.disk.state().look(Call::Lock)?;
        Ok(false)
    }
}
