//! The engine in this process, over a database in memory whose changes are counted.

use counterfoil::Principal;
use counterfoil::native::{Error, Instance, Invocation, LockLevel, Memory, Part, Reply, Sharing, Storage, StorageFile};
use counterfoil::serving::upkeep;
use counterfoil::tools::REGISTRY;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub struct Engine {
    /// None while it is made anew.
    instance: Option<Instance>,
    disk: Disk,
    callers: Rc<RefCell<Vec<Option<Principal>>>>,
}

thread_local! {
    /// A database with its tables, and nothing in them.
    static EMPTY: Memory = {
        let memory = Memory::default();
        let mut engine = Engine::over(memory.clone());
        engine.close();
        memory
    };
}

impl Engine {
    /// Over an empty database. A thread has one at a time.
    pub fn new() -> Engine {
        let mut engine = Engine::over(EMPTY.with(copy));
        engine.open();
        engine
    }

    fn over(memory: Memory) -> Engine {
        let disk = Disk { memory, changes: Rc::default() };
        let mut engine = Engine { instance: None, disk, callers: Rc::default() };
        engine.begin();
        engine
    }

    fn begin(&mut self) {
        let callers = Rc::clone(&self.callers);
        let current = move |call: u32| callers.borrow().get(call as usize).cloned().flatten();
        self.instance = Some(Instance::new(&REGISTRY, current, self.disk.clone()));
    }

    fn open(&mut self) {
        let found = self.as_operator("maintain", |_| upkeep::restored(&REGISTRY));
        assert!(found.is_ok(), "{found:?}");
    }

    fn close(&mut self) {
        self.open();
        let closed = self.as_operator("maintain", |_| upkeep::close());
        assert!(closed.is_ok(), "{closed:?}");
    }

    /// Another instance over the same database, whose files are closed first, or left as they are.
    pub fn again(&mut self, closes: bool) {
        if closes {
            self.close();
        }
        // A thread has one at a time.
        self.instance = None;
        self.begin();
        self.open();
    }

    /// In one batch. Who makes each call stands beside it.
    pub fn call(&mut self, calls: &[(Option<Principal>, Invocation)]) -> Vec<Reply> {
        let (callers, invocations): (Vec<_>, Vec<_>) = calls.iter().cloned().unzip();
        *self.callers.borrow_mut() = callers;
        self.instance.as_mut().map(|instance| instance.call(&invocations)).unwrap_or_default()
    }

    /// What is not a tool, for whoever has the permission.
    pub fn as_operator<T>(&mut self, permission: &str, work: impl FnOnce(&mut Engine) -> T) -> T {
        let principal = principal("operator@host", &[permission]);
        *self.callers.borrow_mut() = vec![Some(principal)];
        work(self)
    }

    /// How often anything of the files was changed.
    pub fn changes(&self) -> u64 {
        self.disk.changes.get()
    }

    /// # Panics
    ///
    /// If anything is wrong with the database.
    pub fn assert_whole(&mut self) {
        let found = self.as_operator("maintain", |_| upkeep::verify(&REGISTRY));
        assert!(found.as_ref().is_ok_and(Vec::is_empty), "{found:?}");
    }
}

/// Such as `ada@acme`.
pub fn principal(who: &str, permissions: &[&str]) -> Principal {
    let (subject, workspace) = who.split_once('@').unwrap_or((who, "none"));
    Principal {
        workspace: workspace.to_owned(),
        subject: subject.to_owned(),
        permissions: permissions.iter().map(|&name| name.to_owned()).collect(),
    }
}

#[expect(clippy::unwrap_used, reason = "memory does not fail")]
fn copy(from: &Memory) -> Memory {
    let (mut from, mut to) = (from.clone(), Memory::default());
    let mut file = from.open(Part::Database, false).unwrap();
    let size = file.size().unwrap();
    let bytes = file.read(0, u32::try_from(size).unwrap()).unwrap();
    to.open(Part::Database, true).unwrap().write(0, &bytes).unwrap();
    to
}

#[derive(Clone)]
struct Disk {
    memory: Memory,
    changes: Rc<Cell<u64>>,
}

impl Disk {
    fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
    }
}

impl Storage for Disk {
    fn sharing(&mut self) -> Result<Sharing, String> {
        self.memory.sharing()
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        Ok(Box::new(File(self.memory.open(part, create)?, self.clone())))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        self.memory.exists(part)
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        self.changed();
        self.memory.remove(part)
    }
}

struct File(Box<dyn StorageFile>, Disk);

impl StorageFile for File {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.0.read(offset, length)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.1.changed();
        self.0.write(offset, bytes)
    }

    fn size(&mut self) -> Result<u64, Error> {
        self.0.size()
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.1.changed();
        self.0.set_size(size)
    }

    fn sync(&mut self) -> Result<(), Error> {
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
