//! A wasmtime host that knows nothing of counterfoil. With [`Disk`] in memory it has a clock of its own, which moves as
//! instances wait, and can stop or kill an instance at any of its calls to the file system.

use crate::disk::{Disk, Node, ROOT};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use wasmtime::component::{Component, Linker, Resource, ResourceTable, ResourceType};
use wasmtime::{Config, Engine, Result, StoreContextMut, bail};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, ErrorCode, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{Pollable, subscribe};
use wasmtime_wasi::{HostMonotonicClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// What instances share: the disk and the clock.
#[derive(Clone)]
pub struct World {
    disk: Arc<Mutex<Disk>>,
    /// In nanoseconds.
    clock: Arc<Mutex<u64>>,
    /// How long each sync takes, in nanoseconds.
    sync: u64,
}

impl World {
    pub fn new(disk: Disk) -> World {
        World { disk: Arc::new(Mutex::new(disk)), clock: Arc::default(), sync: 0 }
    }

    pub fn with_slow_sync(self, sync: Duration) -> World {
        World { sync: sync.as_nanos() as u64, ..self }
    }

    fn sync(&self, node: Node) -> Result<(), ErrorCode> {
        *self.clock.lock().unwrap() += self.sync;
        self.disk().sync(node)
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }
}

impl HostMonotonicClock for World {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        *self.clock.lock().unwrap()
    }
}

/// What becomes of an instance at one of its calls to the file system, counted from 1: before it does anything, and after
/// whatever made it call.
pub enum Plan {
    None,
    /// The process is killed.
    Kill(u64),
    /// It tells so, and waits until it is let go on.
    Stop(u64, SyncSender<()>, Receiver<()>),
    /// The call fails, having done nothing.
    Fail(u64, ErrorCode),
}

pub struct State {
    wasi: WasiCtx,
    table: ResourceTable,
    pub world: World,
    pub plan: Plan,
    /// Calls that count: those that change something, or all.
    pub counted: Counted,
    pub calls: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    Changes,
    All,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl State {
    pub fn new(world: &World, environment: &[(&str, &str)], counted: Counted, plan: Plan) -> State {
        let mut wasi = WasiCtxBuilder::new();
        wasi.envs(environment).monotonic_clock(world.clone()).allow_blocking_current_thread(true);
        State { wasi: wasi.build(), table: ResourceTable::new(), world: world.clone(), plan, counted, calls: 0 }
    }

    /// An error is the call's; a trap kills.
    fn enter(&mut self, what: &str, changes: bool) -> Result<Result<(), ErrorCode>> {
        if self.counted == Counted::Changes && !changes {
            return Ok(Ok(()));
        }
        self.calls += 1;
        match &self.plan {
            Plan::Fail(at, error) if *at == self.calls => return Ok(Err(*error)),
            Plan::Kill(at) if *at == self.calls => bail!("killed at call {at}, {what}"),
            Plan::Stop(at, stopped, go_on) if *at == self.calls => {
                stopped.send(())?;
                go_on.recv()?;
            }
            _ => {}
        }
        Ok(Ok(()))
    }

    fn node(&self, descriptor: &Resource<Descriptor>) -> Result<Node> {
        Ok(self.table.get(descriptor)?.0)
    }

    fn push(&mut self, node: Result<Node, ErrorCode>) -> Result<Result<Resource<Descriptor>, ErrorCode>> {
        Ok(match node {
            Ok(node) => Ok(self.table.push(Descriptor(node))?),
            Err(error) => Err(error),
        })
    }
}

pub struct Descriptor(Node);

struct Entries(Node, std::vec::IntoIter<String>);

/// A pause that is over at once, the clock having moved.
struct Over;

#[wasmtime_wasi::async_trait]
impl Pollable for Over {
    async fn ready(&mut self) {}
}

pub fn engine() -> Engine {
    Engine::new(&Config::new()).unwrap()
}

/// The version of an interface that the component imports.
fn versions(component: &Component, interface: &str) -> Vec<String> {
    let kind = component.component_type();
    let names = kind.imports(component.engine()).map(|(name, _)| name.to_owned());
    let names: Vec<_> = names.filter(|name| name.split('@').next() == Some(interface)).collect();
    assert!(!names.is_empty(), "the component does not import {interface}");
    names
}

/// WASI, with the file system and the clock of a [`World`].
pub fn linker(component: &Component) -> Linker<State> {
    let mut linker = Linker::new(component.engine());
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker).unwrap();
    linker.allow_shadowing(true);
    file_system(&mut linker, component).unwrap();
    clock(&mut linker, component).unwrap();
    linker
}

/// Time passes so many times faster than is waited, or tests would do little else than look at the lock again.
const FASTER: u64 = 16;

fn clock(linker: &mut Linker<State>, component: &Component) -> Result<()> {
    for name in versions(component, "wasi:clocks/monotonic-clock") {
        let mut clock = linker.instance(&name)?;
        clock.func_wrap("subscribe-duration", |mut store: StoreContextMut<'_, State>, (pause,): (u64,)| {
            let state = store.data_mut();
            *state.world.clock.lock().unwrap() += pause * FASTER;
            let over = state.table.push(Over)?;
            Ok((subscribe(&mut state.table, over)?,))
        })?;
    }
    Ok(())
}

/// How much a host reads at a time is its own affair.
const MAX_READ: u64 = 4096;

type Call<'a> = StoreContextMut<'a, State>;
type This = Resource<Descriptor>;

fn file_system(linker: &mut Linker<State>, component: &Component) -> Result<()> {
    for name in versions(component, "wasi:filesystem/preopens") {
        linker.instance(&name)?.func_wrap("get-directories", |mut call: Call<'_>, (): ()| {
            let root = call.data_mut().table.push(Descriptor(ROOT))?;
            Ok((vec![(root, "/data".to_owned())],))
        })?;
    }
    for name in versions(component, "wasi:filesystem/types") {
        let mut types = linker.instance(&name)?;
        types.resource("descriptor", ResourceType::host::<Descriptor>(), |mut call, handle| {
            call.data_mut().table.delete(Resource::<Descriptor>::new_own(handle))?;
            Ok(())
        })?;
        types.resource("directory-entry-stream", ResourceType::host::<Entries>(), |mut call, handle| {
            call.data_mut().table.delete(Resource::<Entries>::new_own(handle))?;
            Ok(())
        })?;
        /// Defines one function: how it is logged, whether it changes anything, and what it does.
        macro_rules! define {
            ($name:literal, $changes:expr, |$state:ident, $this:ident $(, $argument:ident: $type:ty)*| $work:expr) => {
                types.func_wrap(
                    concat!("[method]descriptor.", $name),
                    |mut call: Call<'_>, (this, $($argument),*): (This, $($type),*)| {
                        let $state = call.data_mut();
                        let $this = $state.node(&this)?;
                        match $state.enter($name, $changes)? {
                            Ok(()) => Ok(($work,)),
                            Err(error) => Ok((Err(error),)),
                        }
                    },
                )?;
            };
        }
        define!(
            "open-at",
            open.contains(OpenFlags::CREATE),
            |state, this, _flags: PathFlags, path: String, open: OpenFlags, _access: DescriptorFlags| {
                let has = |flag| open.contains(flag);
                let (create, exclusive) = (has(OpenFlags::CREATE), has(OpenFlags::EXCLUSIVE));
                let node = state.world.disk().open(this, &path, create, exclusive, has(OpenFlags::DIRECTORY));
                state.push(node)?
            }
        );
        define!("create-directory-at", true, |state, this, path: String| state.world.disk().create_folder(this, &path));
        define!("remove-directory-at", true, |state, this, path: String| state.world.disk().unlink(this, &path));
        define!("unlink-file-at", true, |state, this, path: String| state.world.disk().unlink(this, &path));
        define!("rename-at", true, |state, this, old: String, to: This, new: String| {
            let to = state.node(&to)?;
            state.world.disk().rename(this, &old, to, &new)
        });
        define!("stat", false, |state, this| Ok::<_, ErrorCode>(stat(&state.world.disk(), this)));
        define!("stat-at", false, |state, this, _flags: PathFlags, path: String| {
            let disk = state.world.disk();
            disk.stat(this, &path).map(|node| stat(&disk, node))
        });
        define!("read", false, |state, this, length: u64, offset: u64| {
            state.world.disk().read(this, offset, length.min(MAX_READ))
        });
        define!("write", true, |state, this, bytes: Vec<u8>, offset: u64| {
            state.world.disk().write(this, offset, bytes)
        });
        define!("set-size", true, |state, this, size: u64| state.world.disk().set_size(this, size));
        define!("sync", true, |state, this| state.world.sync(this));
        define!("sync-data", true, |state, this| state.world.sync(this));
        define!("read-directory", false, |state, this| {
            let names = state.world.disk().names(this);
            match names {
                Ok(names) => Ok(state.table.push(Entries(this, names.into_iter()))?),
                Err(error) => Err(error),
            }
        });
        types.func_wrap(
            "[method]directory-entry-stream.read-directory-entry",
            |mut call: Call<'_>, (this,): (Resource<Entries>,)| {
                let state = call.data_mut();
                if let Err(error) = state.enter("read-directory-entry", false)? {
                    return Ok((Err(error),));
                }
                let Entries(folder, names) = state.table.get_mut(&this)?;
                let entry = names.next().map(|name| {
                    // As wasmtime has it, of a name that is no longer there.
                    state.world.disk().stat(*folder, &name)?;
                    Ok(DirectoryEntry { type_: DescriptorType::Unknown, name })
                });
                Ok((entry.transpose(),))
            },
        )?;
    }
    Ok(())
}

fn stat(disk: &Disk, node: Node) -> DescriptorStat {
    DescriptorStat {
        type_: if disk.is_folder(node) { DescriptorType::Directory } else { DescriptorType::RegularFile },
        link_count: 1,
        size: disk.size(node),
        data_access_timestamp: None,
        data_modification_timestamp: None,
        status_change_timestamp: None,
    }
}
