//! What the component imports. A native program has no host: there it is what the program gave to
//! [`native::Instance::new`](crate::native::Instance::new).

pub use crate::serving::bindings::counterfoil::tools::types;

#[cfg(target_family = "wasm")]
pub use crate::serving::bindings::counterfoil::tools::{caller, storage};

#[cfg(not(target_family = "wasm"))]
pub mod caller {
    pub use crate::serving::bindings::counterfoil::tools::caller::Principal;

    use std::cell::RefCell;

    type Caller = Box<dyn FnMut(u32) -> Option<Principal>>;

    thread_local! {
        static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
    }

    /// Says whether there was one.
    pub fn set(caller: Option<Caller>) -> bool {
        CALLER.replace(caller).is_some()
    }

    pub fn current(call: u32) -> Option<Principal> {
        CALLER.with_borrow_mut(|caller| caller.as_mut().and_then(|caller| caller(call)))
    }
}

#[cfg(not(target_family = "wasm"))]
pub mod storage {
    pub use crate::serving::bindings::counterfoil::tools::storage::{Error, LockLevel, Part, Sharing};

    use std::cell::RefCell;

    /// The files of one database. What each function promises stands in `wit/storage.wit`.
    #[expect(clippy::missing_errors_doc, reason = "they stand in the WIT")]
    pub trait Storage {
        fn sharing(&mut self) -> Result<Sharing, String>;
        fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn StorageFile>, Error>;
        fn exists(&mut self, part: Part) -> Result<bool, Error>;
        fn remove(&mut self, part: Part) -> Result<(), Error>;
        /// Unless the files are shared, there is nobody to wait for.
        fn wait(&mut self, _attempt: u32) -> bool {
            false
        }
    }

    /// One open part. Dropping it releases its locks.
    #[expect(clippy::missing_errors_doc, reason = "they stand in the WIT")]
    pub trait StorageFile {
        fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error>;
        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error>;
        fn size(&mut self) -> Result<u64, Error>;
        fn set_size(&mut self, size: u64) -> Result<(), Error>;
        fn sync(&mut self) -> Result<(), Error>;
        fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error>;
        fn unlock(&mut self, level: LockLevel) -> Result<(), Error>;
        fn is_reserved(&mut self) -> Result<bool, Error>;
    }

    thread_local! {
        static STORAGE: RefCell<Option<Box<dyn Storage>>> = const { RefCell::new(None) };
    }

    pub fn set(storage: Option<Box<dyn Storage>>) {
        STORAGE.set(storage);
    }

    fn with<T>(ask: impl FnOnce(&mut (dyn Storage + 'static)) -> Result<T, Error>) -> Result<T, Error> {
        STORAGE.with_borrow_mut(|storage| storage.as_deref_mut().map_or(Err(Error::Io), ask))
    }

    pub struct File(RefCell<Box<dyn StorageFile>>);

    impl File {
        pub fn open(part: Part, create: bool) -> Result<File, Error> {
            with(|storage| storage.open(part, create)).map(|file| File(RefCell::new(file)))
        }

        pub fn read(&self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
            self.0.borrow_mut().read(offset, length)
        }

        pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
            self.0.borrow_mut().write(offset, bytes)
        }

        pub fn size(&self) -> Result<u64, Error> {
            self.0.borrow_mut().size()
        }

        pub fn set_size(&self, size: u64) -> Result<(), Error> {
            self.0.borrow_mut().set_size(size)
        }

        pub fn sync(&self) -> Result<(), Error> {
            self.0.borrow_mut().sync()
        }

        pub fn lock(&self, level: LockLevel) -> Result<LockLevel, Error> {
            self.0.borrow_mut().lock(level)
        }

        pub fn unlock(&self, level: LockLevel) -> Result<(), Error> {
            self.0.borrow_mut().unlock(level)
        }

        pub fn is_reserved(&self) -> Result<bool, Error> {
            self.0.borrow_mut().is_reserved()
        }
    }

    pub fn sharing_mode() -> Result<Sharing, String> {
        STORAGE.with_borrow_mut(|storage| match storage {
            Some(storage) => storage.sharing(),
            None => Err("The thread has no instance.".to_owned()),
        })
    }

    pub fn exists(part: Part) -> Result<bool, Error> {
        with(|storage| storage.exists(part))
    }

    pub fn remove(part: Part) -> Result<(), Error> {
        with(|storage| storage.remove(part))
    }

    pub fn wait(attempt: u32) -> bool {
        STORAGE.with_borrow_mut(|storage| storage.as_deref_mut().is_some_and(|storage| storage.wait(attempt)))
    }
}
