//! The engine natively, in the owner's hands as a component's instance is, over the same files.

use counterfoil::native::{self, Error, LockLevel, Part, Sharing};
use counterfoil::tools::REGISTRY;
use counterfoil_server::owner;
use host_example::types::{Refusal, State};
use host_example::{Invocation, Principal, Reply};
use uuid::Uuid;

/// Who makes all calls.
pub fn principal() -> Principal {
    Principal {
        workspace: "acme".to_owned(),
        subject: "ada".to_owned(),
        permissions: ["read", "write-notes", "write-automations", "maintain"].map(str::to_owned).to_vec(),
    }
}

pub struct NativeInstance(native::Instance);

impl NativeInstance {
    pub fn new(
        mut caller: impl FnMut(u32) -> Option<Principal> + 'static,
        storage: impl host_example::Storage,
    ) -> NativeInstance {
        let caller = move |call| {
            let Principal { workspace, subject, permissions } = caller(call)?;
            Some(counterfoil::Principal { workspace, subject, permissions })
        };
        NativeInstance(native::Instance::new(&REGISTRY, caller, Adapted(storage)))
    }
}

impl owner::Instance for NativeInstance {
    fn attempt(&mut self, calls: &[Invocation], _: &[Uuid]) -> wasmtime::Result<Vec<Reply>> {
        let own = |call: &Invocation| native::Invocation { tool: call.tool.clone(), arguments: call.arguments.clone() };
        let calls: Vec<_> = calls.iter().map(own).collect();
        let replies = self.0.call(&calls);
        Ok(replies.into_iter().map(|reply| Reply { body: reply.body, refused: reply.refused }).collect())
    }

    fn is_spent(&self) -> bool {
        self.0.is_spent()
    }

    fn count_operations(&mut self) -> wasmtime::Result<Result<Vec<(State, u64)>, Refusal>> {
        Ok(Ok(Vec::new()))
    }

    /// It is closed when it is dropped.
    fn close(&mut self) -> wasmtime::Result<Result<(), Refusal>> {
        Ok(Ok(()))
    }
}

/// A storage of the host's as the engine takes it natively.
struct Adapted<S>(S);

struct AdaptedFile(Box<dyn host_example::StorageFile>);

impl<S: host_example::Storage> native::Storage for Adapted<S> {
    fn sharing(&mut self) -> Result<Sharing, String> {
        Ok(match self.0.sharing()? {
            host_example::Sharing::Sole => Sharing::Sole,
            host_example::Sharing::SoleAtomic => Sharing::SoleAtomic,
            host_example::Sharing::Shared => Sharing::Shared,
        })
    }

    fn open(&mut self, part: Part, create: bool) -> Result<Box<dyn native::StorageFile>, Error> {
        Ok(Box::new(AdaptedFile(self.0.open(to_part(part), create).map_err(error)?)))
    }

    fn exists(&mut self, part: Part) -> Result<bool, Error> {
        self.0.exists(to_part(part)).map_err(error)
    }

    fn remove(&mut self, part: Part) -> Result<(), Error> {
        self.0.remove(to_part(part)).map_err(error)
    }
}

impl native::StorageFile for AdaptedFile {
    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.0.read(offset, length).map_err(error)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(offset, bytes).map_err(error)
    }

    fn size(&mut self) -> Result<u64, Error> {
        self.0.size().map_err(error)
    }

    fn set_size(&mut self, size: u64) -> Result<(), Error> {
        self.0.set_size(size).map_err(error)
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.0.sync().map_err(error)
    }

    fn lock(&mut self, level: LockLevel) -> Result<LockLevel, Error> {
        self.0.lock(to_level(level)).map(from_level).map_err(error)
    }

    fn unlock(&mut self, level: LockLevel) -> Result<(), Error> {
        self.0.unlock(to_level(level)).map_err(error)
    }

    fn is_reserved(&mut self) -> Result<bool, Error> {
        self.0.is_reserved().map_err(error)
    }
}

fn error(error: host_example::Error) -> Error {
    match error {
        host_example::Error::NotFound => Error::NotFound,
        host_example::Error::NoSpace => Error::NoSpace,
        host_example::Error::ReadOnly => Error::ReadOnly,
        host_example::Error::Io => Error::Io,
    }
}

fn to_part(part: Part) -> host_example::Part {
    match part {
        Part::Database => host_example::Part::Database,
        Part::Journal => host_example::Part::Journal,
        Part::Wal => host_example::Part::Wal,
    }
}

fn to_level(level: LockLevel) -> host_example::LockLevel {
    match level {
        LockLevel::None => host_example::LockLevel::None,
        LockLevel::Shared => host_example::LockLevel::Shared,
        LockLevel::Reserved => host_example::LockLevel::Reserved,
        LockLevel::Pending => host_example::LockLevel::Pending,
        LockLevel::Exclusive => host_example::LockLevel::Exclusive,
    }
}

fn from_level(level: host_example::LockLevel) -> LockLevel {
    match level {
        host_example::LockLevel::None => LockLevel::None,
        host_example::LockLevel::Shared => LockLevel::Shared,
        host_example::LockLevel::Reserved => LockLevel::Reserved,
        host_example::LockLevel::Pending => LockLevel::Pending,
        host_example::LockLevel::Exclusive => LockLevel::Exclusive,
    }
}
