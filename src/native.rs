//! The engine in a native program, where there is no host: for a tool's own unit tests, for measuring, and for feeding it
//! whatever input there is. The program gives what a component imports; all else is the same, but that a bug panics where
//! a component traps.
//!
//! ```
//! use counterfoil::Principal;
//! use counterfoil::native::{Instance, Invocation, Memory};
//! use counterfoil::tools::REGISTRY;
//!
//! let ada = Principal {
//!     workspace: "acme".to_owned(),
//!     subject: "ada".to_owned(),
//!     permissions: vec!["write-notes".to_owned()],
//! };
//! let mut instance = Instance::new(&REGISTRY, move |_| Some(ada.clone()), Memory::default());
//! let call = Invocation {
//!     tool: "create_note".to_owned(),
//!     arguments: r#"{"idempotency_key":"k","body":"b"}"#.to_owned(),
//! };
//! let first = instance.call(&[call.clone()]);
//! let again = instance.call(&[call]);
//! assert!(first[0].body.contains(r#""replayed":false"#), "{}", first[0].body);
//! assert_eq!(first[0].body.replace(r#""replayed":false"#, r#""replayed":true"#), again[0].body);
//! ```

pub use crate::imports::storage::{Error, LockLevel, Part, Sharing, Storage, StorageFile};
pub use crate::serving::bindings::exports::counterfoil::tools::toolbox::{Invocation, Reply};

use crate::imports::{caller, storage as import};
use crate::tool::Registry;
use crate::{Principal, serving, storage};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

/// One instance. A thread has one at a time, as a component's instance has one memory.
pub struct Instance {
    registry: &'static Registry,
    of_this_thread: PhantomData<*const ()>,
}

impl Instance {
    /// `caller` says who makes call number n of a batch; none denies it.
    ///
    /// # Panics
    ///
    /// If the thread has one already.
    #[must_use]
    pub fn new(
        registry: &'static Registry,
        caller: impl FnMut(u32) -> Option<Principal> + 'static,
        storage: impl Storage + 'static,
    ) -> Instance {
        assert!(!caller::set(Some(Box::new(caller))), "a thread has one instance at a time");
        import::set(Some(Box::new(storage)));
        Instance { registry, of_this_thread: PhantomData }
    }

    /// As `call` of the interface `toolbox`.
    pub fn call(&mut self, calls: &[Invocation]) -> Vec<Reply> {
        serving::call(self.registry, calls)
    }

    /// Whether its storage failed: drop it and make a new one.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        storage::vfs::failed()
    }
}

/// A database in memory, which an instance has for itself. Clones are the same database, for one instance after another.
#[derive(Clone, Default)]
pub struct Memory([Rc<RefCell<Option<Vec<u8>>>>; 3]);

impl Storage for Memory {
    fn sharing(&mut self) -> Result<Sharing, String> {
        Ok(Sharing::Sole)
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error> {
        let file = &self.0[part as usize];
        if create {
            file.borrow_mut().get_or_insert_default();
        }
        if file.borrow().is_some() { Ok(Box::new(InMemory(Rc::clone(file)))) } else { Err(Error::NotFound) }
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        Ok(self.0[part as usize].borrow().as_ref().is_some_and(|bytes| !bytes.is_empty()))
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        self.0[part as usize].take().map(drop).ok_or(Error::NotFound)
    }
}

struct InMemory(Rc<RefCell<Option<Vec<u8>>>>);

impl InMemory {
    /// A part that was removed holds nothing for whoever still has it open.
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, Error> {
        Ok(work(self.0.borrow_mut().as_mut().ok_or(Error::Io)?))
    }
}

impl StorageFile for InMemory {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.with(|bytes| {
            let from = bytes.len().min(offset as usize);
            bytes[from..bytes.len().min(from + length as usize)].to_vec()
        })
    }

    fn write(&mut self, offset: u64, written: &[u8]) -> Result<(), Error> {
        self.with(|bytes| {
            let from = offset as usize;
            let end = from + written.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[from..end].copy_from_slice(written);
        })
    }

    fn size(&mut self) -> Result<u64, Error> {
        self.with(|bytes| bytes.len() as u64)
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.with(|bytes| bytes.resize(size as usize, 0))
    }

    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        Ok(level)
    }

    fn unlock(&mut self, _: LockLevel) -> Result<(), Error> {
        Ok(())
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
}

impl Drop for Instance {
    /// Closes the database as SQLite does, which a component that is dropped does not.
    fn drop(&mut self) {
        storage::reset();
        import::set(None);
        caller::set(None);
    }
}
