//! The component: compiled once, instantiated for a caller and a storage, called.

use crate::bindings::counterfoil::tools::{caller, storage, types};
use crate::bindings::{Serving, ServingPre};
use crate::{Description, Invocation, Principal, Reply, Storage};
use serde::Deserialize;
use std::path::Path;
use std::time::{Duration, Instant};
use wasmtime::component::{Component, HasSelf, InstancePre, Linker, ResourceTable};
use wasmtime::error::Context;
use wasmtime::{
    Cache, CacheConfig, Config, Engine, Result, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline, bail,
};
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::p2::bindings::cli as wasi_cli;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

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

/// How often computing time is looked at.
const TICK: Duration = Duration::from_millis(10);

/// A compiled component and all that it is linked to.
pub struct Host {
    component: InstancePre<State>,
    limits: Limits,
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
            Err(error) => tracing::warn!(%error, "no cache of compiled code"),
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
        Ok(Host { component, limits })
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
        Ok(Instance { store, exports })
    }

    /// What an instance of any world is made of: instantiate [`Host::component`] in it, and before each call of an export
    /// say [`State::begin_call`].
    pub fn store(
        &self,
        caller: impl FnMut(u32) -> Option<Principal> + Send + 'static,
        storage: impl Storage,
    ) -> Store<State> {
        let state = State {
            wasi: WasiCtxBuilder::new().allow_blocking_current_thread(true).inherit_stderr().build(),
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

/// One instance. Dropping it at any moment is safe: what it did not answer is settled by making the call again, with
/// the same key, on another.
pub struct Instance {
    store: Store<State>,
    exports: Serving,
}

impl Instance {
    /// Whether it trapped or its storage failed: drop it and make a new one. Every further call fails or is refused. It
    /// holds no lock on a shared database any more; one that it owns it holds until it is dropped.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.store.data().is_spent
    }

    /// The tools, as agents are shown them.
    ///
    /// # Errors
    ///
    /// A trap, as for [`Instance::call`].
    pub fn describe(&mut self) -> Result<Vec<Description>> {
        self.run(|store, exports| exports.counterfoil_tools_toolbox().call_describe(store))
    }

    /// Runs the calls in order and in one commit, and answers each.
    ///
    /// # Errors
    ///
    /// A trap: all of the calls committed or none did. Make them again, one at a time, with the same keys, on a new
    /// instance.
    pub fn call(&mut self, calls: &[Invocation]) -> Result<Vec<Reply>> {
        // For the log alone: an attempt is one execution, an operation is what all attempts with one key come to.
        let logged = if tracing::enabled!(tracing::Level::DEBUG) { calls.len() } else { 0 };
        let attempts: Vec<_> = (0..logged).map(|_| uuid::Uuid::new_v4()).collect();
        for (attempt, call) in attempts.iter().zip(calls) {
            tracing::debug!(%attempt, tool = log_name(&call.tool), "call");
        }
        let replies = self.run(|store, exports| exports.counterfoil_tools_toolbox().call_call(store, calls))?;
        for (attempt, reply) in attempts.iter().zip(&replies) {
            let Logged { status, operation_id, replayed, code } = serde_json::from_str(&reply.body).unwrap_or_default();
            tracing::debug!(%attempt, operation = operation_id, status, replayed, code, "answer");
        }
        Ok(replies)
    }

    /// One call of one tool.
    ///
    /// # Errors
    ///
    /// A trap: the call committed or not. Make it again, with the same key, on a new instance.
    pub fn call_one(&mut self, tool: &str, arguments: &str) -> Result<Reply> {
        let call = Invocation { tool: tool.to_owned(), arguments: arguments.to_owned() };
        match self.call(&[call])?.pop() {
            Some(reply) => Ok(reply),
            None => bail!("the component answered no reply to a call"),
        }
    }

    /// What is wrong with the database; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap.
    pub fn verify(&mut self) -> Result<Result<Vec<String>, types::Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_verify(store))
    }

    /// Moves the log into the database file; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap. Nothing committed is lost.
    pub fn checkpoint(&mut self) -> Result<Result<(), types::Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_checkpoint(store))
    }

    /// Closes the database cleanly; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap. Nothing committed is lost.
    pub fn close(&mut self) -> Result<Result<(), types::Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_close(store))
    }

    fn run<T>(&mut self, call: impl FnOnce(&mut Store<State>, &Serving) -> Result<T>) -> Result<T> {
        self.store.data_mut().begin_call();
        let result = call(&mut self.store, &self.exports);
        let state = self.store.data_mut();
        state.is_spent |= result.is_err();
        if state.is_spent {
            // With its files go their locks.
            state.table = ResourceTable::new();
        }
        result
    }
}

/// What of a reply may stand in a log: no argument, result or key.
#[derive(Default, Deserialize)]
struct Logged {
    status: String,
    operation_id: Option<String>,
    #[serde(default)]
    replayed: bool,
    code: Option<String>,
}

/// A tool's name comes from outside: anything that does not look like one might be anything.
fn log_name(tool: &str) -> &str {
    let is_name = tool.len() <= 64 && tool.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_name { tool } else { "?" }
}
