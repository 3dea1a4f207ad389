//! The component: compiled once, instantiated for a caller and a storage, within limits.

use crate::bindings::ServingPre;
use crate::bindings::counterfoil::tools::{caller, storage};
use crate::limits::{self, Memory, Used};
use crate::wasi::{self, Stderr};
use crate::{Instance, Limits, Principal, Storage};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wasmtime::component::{Component, HasSelf, InstancePre, Linker, ResourceTable};
use wasmtime::error::Context;
use wasmtime::{Cache, CacheConfig, Config, Engine, Result, Store};
use wasmtime_wasi::{HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

/// How often computing time is looked at.
const TICK: Duration = Duration::from_millis(10);

/// How well compiled code is packed in the cache: zstd's level that is soonest unpacked of those that wasmtime takes.
const PACKED: i32 = 1;

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
        // Half of what is kept of a compiled component, and a third of the time that it takes to load, would be tables that
        // say where in the file an instruction came from, and how to unwind it for debuggers.
        config.generate_address_map(false).native_unwind_info(false);
        let mut cache = CacheConfig::new();
        // Not packed better after many uses, as is wasmtime's default: that takes seconds, and a command ends before.
        cache.with_baseline_compression_level(PACKED).with_optimized_compression_level(PACKED);
        match Cache::new(cache) {
            Ok(cache) => _ = config.cache(Some(cache)),
            Err(error) => tracing::warn!(%error, "no cache of compiled code: the component is compiled at each start"),
        }
        let engine = Engine::new(&config)?;
        let component = Component::from_file(&engine, file)
            .with_context(|| format!("cannot load the component {}", file.display()))?;

        let mut linker = Linker::new(&engine);
        wasi::add_to_linker(&mut linker)?;
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
        let mut builder = WasiCtxBuilder::new();
        builder.allow_blocking_current_thread(true).envs(&self.variables).wall_clock(self.clock.clone());
        builder.max_random_size(limits::RANDOM);
        let state = State {
            wasi: builder.build(),
            table: limits::table(),
            stderr: Stderr::default(),
            memory: Memory::new(&self.limits),
            limits: self.limits,
            used: Used::new(),
            caller: Box::new(caller),
            storage: Box::new(storage),
            is_spent: false,
        };
        let mut store = Store::new(self.component.engine(), state);
        limits::apply(&mut store);
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
    pub(crate) stderr: Stderr,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    /// By the running call.
    pub(crate) used: Used,
    caller: Box<dyn FnMut(u32) -> Option<Principal> + Send>,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) is_spent: bool,
}

impl State {
    /// Lets the limits of one call begin anew. [`Instance`] does so; whoever calls exports on a [`Host::store`] must.
    pub fn begin_call(&mut self) {
        self.end_call();
        self.used = Used::new();
    }

    /// Logs what the component had to say.
    pub(crate) fn end_call(&mut self) {
        self.stderr.log();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.end_call();
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
