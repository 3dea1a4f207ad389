//! The component: compiled once, instantiated for a caller and a storage, within limits.

use crate::bindings::ServingPre;
use crate::bindings::counterfoil::tools::{caller, storage};
use crate::{Instance, Principal, Storage};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wasmtime::component::{Component, HasSelf, InstancePre, Linker, ResourceTable};
use wasmtime::error::Context;
use wasmtime::{Cache, CacheConfig, Config, Engine, Result, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline};
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::p2::bindings::cli as wasi_cli;
use wasmtime_wasi::{HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// What one instance may use. Reaching a limit is a refusal or a trap, never a stuck host; after a trap the same call
/// can be made again, on a new instance, with the same key.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory: usize,
    /// Computing time of one call or batch. Time spent in [`Storage`] does not count: a slow disk must not trap a call
    /// that has just committed.
    pub computing: Duration,
    /// How long one call or batch may wait for locks on the database, all its waits together. Does not count as computing.
    pub lock_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory: 64 << 20, computing: Duration::from_secs(10), lock_wait: Duration::from_secs(2) }
    }
}

impl Limits {
    /// For what an operator asks for, which takes as long as the database is large: a day of computing.
    #[must_use]
    pub fn operator() -> Self {
        Limits { computing: Duration::from_secs(86_400), ..Limits::default() }
    }
}

/// How often computing time is looked at.
const TICK: Duration = Duration::from_millis(10);

/// A compiled component, all that it is linked to, and what each instance of it is given.
///
/// ```no_run
/// use host_example::{Host, Limits};
/// use std::time::Duration;
///
/// // Time stands still, and receipts are kept for a day.
/// let host = Host::load("counterfoil.wasm".as_ref(), Limits::default())?
///     .with_clock(|| Duration::from_secs(1_800_000_000))
///     .with_variable("COUNTERFOIL_RETENTION", "1d");
/// # Ok::<(), wasmtime::Error>(())
/// ```
pub struct Host {
    component: InstancePre<State>,
    limits: Limits,
    clock: Clock,
    variables: Vec<(String, String)>,
}

#[derive(Clone)]
struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl HostWallClock for Clock {
    /// The finest there is: nobody can tell how often a function's answer changes.
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Host {
    /// Compiles the component in `file`, or takes it from wasmtime's
    /// [cache](https://docs.wasmtime.dev/cli-cache.html).
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no component, or if the component imports more than a caller, a storage, and
    /// what Rust's standard library brings (clocks, random, environment, standard streams).
    pub fn load(file: &Path, limits: Limits) -> Result<Host> {
        let mut config = Config::new();
        config.epoch_interruption(true);
        match Cache::new(CacheConfig::new()) {
            Ok(cache) => _ = config.cache(Some(cache)),
            Err(error) => tracing::warn!(%error, "no cache of compiled code: the component is compiled at each start"),
        }
        let engine = Engine::new(&config)?;
        let component = Component::from_file(&engine, file)
            .with_context(|| format!("cannot load the component {}", file.display()))?;

        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_proxy_interfaces_sync(&mut linker)?;
        wasi_cli::environment::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::exit::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::terminal_input::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::terminal_output::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::terminal_stdin::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::terminal_stdout::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        wasi_cli::terminal_stderr::add_to_linker::<State, WasiCli>(&mut linker, State::cli)?;
        caller::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
        storage::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
        let component = linker.instantiate_pre(&component)?;

        // Ends with the engine.
        let weak = engine.weak();
        std::thread::Builder::new().name("epoch".to_owned()).spawn(move || {
            while let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        })?;
        // A clock that is set before 1970 stands at its beginning.
        let system = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Host { component, limits, clock: Clock(Arc::new(system)), variables: Vec::new() })
    }

    /// What instances made from now on take for the time, in place of the system's clock: `clock` answers the time since
    /// 1970-01-01T00:00:00Z. It is asked often, by many instances at once. The limits, and waiting, go by the system's
    /// monotonic clock all the same.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Host {
        self.clock = Clock(Arc::new(clock));
        self
    }

    /// An environment variable of instances made from now on, which have no others. Of two with one name the last holds.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Host {
        let name = name.into();
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.into()));
        self
    }

    /// What instances made from now on may use.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// An instance of the world `serving`, which `service` includes. `caller` says who makes call number n of a batch;
    /// none denies it.
    ///
    /// # Errors
    ///
    /// If the component exports another world, or wasmtime has no memory for it.
    pub fn instance(
        &self,
        caller: impl FnMut(u32) -> Option<Principal> + Send + 'static,
        storage: impl Storage,
    ) -> Result<Instance> {
        let mut store = self.store(caller, storage);
        let exports = ServingPre::new(self.component.clone())?.instantiate(&mut store)?;
        Ok(Instance::new(store, exports))
    }

    /// What an instance of any world is made of: instantiate [`Host::component`] in it, and before each call of an export
    /// say [`State::begin_call`].
    pub fn store(
        &self,
        caller: impl FnMut(u32) -> Option<Principal> + Send + 'static,
        storage: impl Storage,
    ) -> Store<State> {
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true).inherit_stderr().envs(&self.variables);
        wasi.wall_clock(self.clock.clone());
        let state = State {
            wasi: wasi.build(),
            table: ResourceTable::new(),
            memory: StoreLimitsBuilder::new().memory_size(self.limits.memory).build(),
            limits: self.limits,
            caller: Box::new(caller),
            storage: Box::new(storage),
            started: Instant::now(),
            in_storage: Duration::ZERO,
            waited: Duration::ZERO,
            is_spent: false,
        };
        let mut store = Store::new(self.component.engine(), state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            let state = store.data();
            let computing = state.started.elapsed().saturating_sub(state.in_storage);
            Ok(if computing > state.limits.computing { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) })
        });
        store
    }

    #[must_use]
    pub fn component(&self) -> &InstancePre<State> {
        &self.component
    }
}

/// What belongs to one instance.
pub struct State {
    wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    memory: StoreLimits,
    pub(crate) limits: Limits,
    caller: Box<dyn FnMut(u32) -> Option<Principal> + Send>,
    pub(crate) storage: Box<dyn Storage>,
    /// When the running call began, what of it was spent in storage, and what of that waiting for locks.
    started: Instant,
    pub(crate) in_storage: Duration,
    pub(crate) waited: Duration,
    pub(crate) is_spent: bool,
}

impl State {
    /// Lets the limits of one call begin anew. [`Instance`] does so; whoever calls exports on a [`Host::store`] must.
    pub fn begin_call(&mut self) {
        self.started = Instant::now();
        self.in_storage = Duration::ZERO;
        self.waited = Duration::ZERO;
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl caller::Host for State {
    fn current(&mut self, call: u32) -> Result<Option<Principal>> {
        Ok((self.caller)(call))
    }
}
