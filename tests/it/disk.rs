//! A disk in memory that fails, fills up, dies and loses power on command.
//!
//! A file is what was synced and the changes since. A killed process leaves both, as the page cache does; a power cut
//! keeps the synced part, and of each later change whatever sectors the seed says, and likewise of the folder's entries.

use host_example::{Error, LockLevel, Part, Sharing, Storage, StorageFile};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Default)]
struct Content {
    synced: Vec<u8>,
    current: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, written) => put(bytes, *offset, written),
            Change::Size(size) => bytes.resize(*size, 0),
        }
    }
}

/// What goes wrong, counting the calls from 1.
#[derive(Clone, Copy, Default)]
pub enum Fault {
    #[default]
    None,
    /// This one call fails, having done nothing.
    Fail(u64, Error),
    /// This call and all later ones fail.
    FailFrom(u64, Error),
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

#[derive(Clone, Default)]
struct State {
    sharing: Option<Sharing>,
    contents: Vec<Content>,
    /// The folder: which content each part's name leads to, now and after a power cut.
    names: [Option<usize>; 3],
    synced_names: [Option<usize>; 3],
    fault: Fault,
    calls: u64,
    writes: u64,
    highest_lock: u8,
    died_in_sync: bool,
    /// Controls: so many syncs do nothing.
    lies: u32,
}

#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn new(sharing: Sharing) -> Disk {
        Disk(Arc::new(Mutex::new(State { sharing: Some(sharing), ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn storage_mode(&self) -> Sharing {
        self.state().sharing.unwrap()
    }

    /// For one instance.
    pub fn storage(&self) -> Mounted {
        let mut state = self.state();
        if state.sharing == Some(Sharing::SoleAtomic) {
            // What was not synced was never stored.
            for content in &mut state.contents {
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
        (state.calls, state.writes, state.highest_lock) = (0, 0, 0);
        state.fault = fault;
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Calls that change something, and the highest lock taken, since the last [`Disk::fault`].
    pub fn writes_and_lock(&self) -> (u64, u8) {
        let state = self.state();
        (state.writes, state.highest_lock)
    }

    /// Bytes stored now.
    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// The next syncs do nothing and say that they did.
    pub fn lie(&self, syncs: u32) {
        self.state().lies = syncs;
    }

    pub fn has(&self, part: Part) -> bool {
        self.state().names[part as usize].is_some()
    }

    /// The same disk as it is now, for another life of it, in working order, in the given mode.
    pub fn copy(&self, sharing: Sharing) -> Disk {
        let state = State { sharing: Some(sharing), fault: Fault::None, ..self.state().clone() };
        Disk(Arc::new(Mutex::new(state)))
    }

    /// What a power cut leaves. Seed 0 drops all that was not synced, seed 1 keeps it, others choose at random.
    pub fn power_cut(&self, seed: u64) -> Disk {
        let state = self.state();
        let sharing = state.sharing.unwrap();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut keep = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            seed == 1 || (seed > 1 && random >> 40 & 1 == 1)
        };
        // Under sole-atomic nothing lands before the sync, and in it all or nothing.
        let all = keep() && state.died_in_sync;
        let mut keep = || if sharing == Sharing::SoleAtomic { all } else { keep() };
        let names: Vec<_> = state
            .names
            .iter()
            .zip(state.synced_names)
            .map(|(now, synced)| if keep() { *now } else { synced })
            .collect();
        let contents = state.contents.iter().map(|content| {
            let mut bytes = content.synced.clone();
            for change in &content.since {
                match change {
                    Change::Size(size) if keep() => bytes.resize(*size, 0),
                    Change::Size(_) => {}
                    Change::Write(offset, written) => {
                        let mut from = 0;
                        while from < written.len() {
                            let to = (from + 512 - (offset + from) % 512).min(written.len());
                            if keep() {
                                put(&mut bytes, offset + from, &written[from..to]);
                            }
                            from = to;
                        }
                    }
                }
            }
            Content { synced: bytes.clone(), current: bytes, since: Vec::new() }
        });
        let names = [names[0], names[1], names[2]];
        let contents = contents.collect();
        Disk(Arc::new(Mutex::new(State {
            sharing: Some(sharing),
            contents,
            names,
            synced_names: names,
            ..State::default()
        })))
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}

impl State {
    fn used(&self) -> usize {
        self.names.iter().flatten().map(|&content| self.contents[content].current.len()).sum()
    }

    /// Counts a call. An error is the call's; true means that the machine dies in it.
    fn enter(&mut self) -> Result<bool, Error> {
        self.calls += 1;
        match self.fault {
            Fault::Fail(at, error) if self.calls == at => Err(error),
            Fault::FailFrom(at, error) if self.calls >= at => Err(error),
            Fault::Die(at) if self.calls > at => Err(Error::Io),
            Fault::Die(at) => Ok(self.calls == at),
            _ => Ok(false),
        }
    }

    fn change(&mut self, content: usize, change: Change, dies: bool) -> Result<(), Error> {
        self.writes += 1;
        let content = &mut self.contents[content];
        change.apply(&mut content.current);
        content.since.push(change);
        if dies { Err(Error::Io) } else { Ok(()) }
    }
}

pub struct Mounted {
    disk: Disk,
    sync_failed: Arc<Mutex<bool>>,
}

impl Storage for Mounted {
    fn sharing(&self) -> Result<Sharing, String> {
        Ok(self.disk.state().sharing.unwrap())
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let mut state = self.disk.state();
        let dies = state.enter()?;
        if state.sharing == Some(Sharing::SoleAtomic) && part != Part::Database {
            assert!(!create, "sole-atomic has a database alone");
            return Err(Error::NotFound);
        }
        let content = match state.names[part as usize] {
            Some(content) => content,
            None if create => {
                state.contents.push(Content::default());
                let content = state.contents.len() - 1;
                state.names[part as usize] = Some(content);
                content
            }
            None => return Err(Error::NotFound),
        };
        if dies {
            return Err(Error::Io);
        }
        let sync_failed = Arc::clone(&self.sync_failed);
        Ok(Box::new(OpenPart { disk: self.disk.clone(), part, content, sync_failed }))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        let mut state = self.disk.state();
        state.enter()?;
        Ok(state.names[part as usize].is_some_and(|content| !state.contents[content].current.is_empty()))
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter()?;
        state.writes += 1;
        state.names[part as usize].take().ok_or(Error::NotFound)?;
        if dies {
            return Err(Error::Io);
        }
        state.synced_names[part as usize] = None;
        Ok(())
    }
}

struct OpenPart {
    disk: Disk,
    part: Part,
    content: usize,
    sync_failed: Arc<Mutex<bool>>,
}

impl StorageFile for OpenPart {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        let mut state = self.disk.state();
        state.enter()?;
        let current = &state.contents[self.content].current;
        let from = current.len().min(offset as usize);
        let to = current.len().min(from + length as usize);
        Ok(current[from..to].to_vec())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter()?;
        if let Fault::Full(most) = state.fault {
            let end = offset as usize + bytes.len();
            let grows = end.saturating_sub(state.contents[self.content].current.len());
            if grows > 0 && state.used() + grows > most {
                return Err(Error::NoSpace);
            }
        }
        if matches!(state.fault, Fault::FailWritesTo(part) if part == self.part) {
            return Err(Error::Io);
        }
        state.change(self.content, Change::Write(offset as usize, bytes.to_vec()), dies)
    }

    fn size(&mut self) -> Result<u64, Error> {
        let mut state = self.disk.state();
        state.enter()?;
        Ok(state.contents[self.content].current.len() as u64)
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        let mut state = self.disk.state();
        let dies = state.enter()?;
        state.change(self.content, Change::Size(size as usize), dies)
    }

    fn sync(&mut self) -> Result<(), Error> {
        let mut state = self.disk.state();
        let mut failed = self.sync_failed.lock().unwrap();
        // Once one has failed, all later ones of this instance do.
        let entered = state.enter();
        if matches!(state.fault, Fault::ForgetAt(at) if at == state.calls) {
            state.contents[self.content].since.clear();
            *failed = true;
            return Err(Error::Io);
        }
        state.died_in_sync |= matches!(entered, Ok(true));
        if *failed || !matches!(entered, Ok(false)) {
            *failed = true;
            return Err(Error::Io);
        }
        if state.lies > 0 {
            state.lies -= 1;
        } else {
            let part = self.part as usize;
            if state.names[part] == Some(self.content) {
                state.synced_names[part] = Some(self.content);
            }
            // A process may have died in a removal.
            let State { names, synced_names, .. } = &mut *state;
            synced_names.iter_mut().zip(names).for_each(|(synced, now)| *synced = synced.filter(|_| now.is_some()));
            let content = &mut state.contents[self.content];
            // Not simply a copy of what is in memory: a part of that may have been forgotten.
            for change in std::mem::take(&mut content.since) {
                change.apply(&mut content.synced);
            }
        }
        Ok(())
    }

    /// One instance at a time: what locks do is tested on real files.
    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        let mut state = self.disk.state();
        state.enter()?;
        state.highest_lock = state.highest_lock.max(level as u8);
        Ok(level)
    }

    fn unlock(&mut self, _: LockLevel) -> Result<(), Error> {
        self.disk.state().enter().map(drop)
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        self.disk.state().enter()?;
        Ok(false)
    }
}
