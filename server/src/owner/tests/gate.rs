//! Files whose syncs a test holds back, or lets fail.

use host_example::{Error, Files, LockLevel, Part, Sharing, Storage, StorageFile};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

/// What a test does to syncs of the WAL.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    pub syncs: AtomicUsize,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// How many pass although it is closed.
    may_pass: usize,
    /// How many syncs wait before it.
    waiting: usize,
    /// Which syncs fail, counted from 1.
    failing: std::ops::Range<usize>,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().unwrap().closed = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().closed = false;
        self.changed.notify_all();
    }

    /// The next sync alone.
    pub fn let_one_pass(&self) {
        self.state.lock().unwrap().may_pass = 1;
        self.changed.notify_all();
    }

    pub fn fail(&self, syncs: std::ops::Range<usize>) {
        self.state.lock().unwrap().failing = syncs;
    }

    /// Until a batch is in the middle of its commit.
    pub fn wait_for_commit(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    fn pass(&self) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.closed && state.may_pass == 0).unwrap();
        state.may_pass = state.may_pass.saturating_sub(1);
        state.waiting -= 1;
        let number = self.syncs.fetch_add(1, SeqCst) + 1;
        if state.failing.contains(&number) { Err(Error::Io) } else { Ok(()) }
    }
}

pub struct Gated(pub Files, pub Arc<Gate>);

impl Storage for Gated {
    fn sharing(&self) -> Result<Sharing, String> {
        self.0.sharing()
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let file = self.0.open(part, create)?;
        let gate = (part == Part::Wal).then(|| Arc::clone(&self.1));
        Ok(Box::new(GatedFile(file, gate)))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        self.0.exists(part)
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        self.0.remove(part)
    }
}

struct GatedFile(Box<dyn StorageFile>, Option<Arc<Gate>>);

impl StorageFile for GatedFile {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.0.read(offset, length)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(offset, bytes)
    }

    fn size(&mut self) -> Result<u64, Error> {
        self.0.size()
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.0.set_size(size)
    }

    fn sync(&mut self) -> Result<(), Error> {
        if let Some(gate) = &self.1 {
            gate.pass()?;
        }
        self.0.sync()
    }

    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        self.0.lock(level)
    }

    fn unlock(&mut self, level: LockLevel) -> Result<(), Error> {
        self.0.unlock(level)
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        self.0.is_reserved()
    }
}
