//! What an instance has of WASI: what Rust's standard library asks for, and no more. Two things are narrower than wasmtime's
//! own. Nothing sleeps for longer than it may compute, since no limit reaches a thread that sleeps. And what the component
//! writes to stderr is an event of the log: it may be anything, and any amount.

use crate::component::State;
use bytes::Bytes;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wasmtime::Result;
use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::clocks::WasiClocksView;
use wasmtime_wasi::p2::bindings::cli::{self, stderr};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock::{self, Instant};
use wasmtime_wasi::p2::{DynOutputStream, DynPollable, OutputStream, Pollable, StreamResult};

pub fn add_to_linker(linker: &mut Linker<State>) -> Result<()> {
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_sync(linker)?;
    cli::environment::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::exit::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(linker, State::cli)?;
    linker.allow_shadowing(true);
    monotonic_clock::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    stderr::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl monotonic_clock::Host for State {
    fn now(&mut self) -> Result<Instant> {
        self.clocks().now()
    }

    fn resolution(&mut self) -> Result<u64> {
        self.clocks().resolution()
    }

    fn subscribe_instant(&mut self, when: Instant) -> Result<Resource<DynPollable>> {
        let now = self.clocks().now()?;
        self.subscribe_duration(when.saturating_sub(now))
    }

    fn subscribe_duration(&mut self, nanoseconds: u64) -> Result<Resource<DynPollable>> {
        let left = self.limits.computing.saturating_sub(self.used.computing());
        let time = Duration::from_nanos(nanoseconds).min(left);
        self.clocks().subscribe_duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl stderr::Host for State {
    fn get_stderr(&mut self) -> Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(self.stderr.clone());
        Ok(self.table.push(stream)?)
    }
}

/// What the running call has written to stderr: a panic's message, most of the time.
#[derive(Clone, Default)]
pub struct Stderr(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    beginning: Vec<u8>,
    left_out: usize,
}

impl Stderr {
    /// How much of it is logged, in bytes a call.
    const LOGGED: usize = 4096;

    /// Logs what was written.
    pub fn log(&self) {
        let Written { beginning, left_out } = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if !beginning.is_empty() {
            // Escaped, so that it can pass for nobody else's lines.
            tracing::warn!(text = ?String::from_utf8_lossy(&beginning), left_out, "the component wrote to stderr");
        }
    }
}

impl OutputStream for Stderr {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Stderr::LOGGED - written.beginning.len();
        let logged = &bytes[..bytes.len().min(room)];
        written.beginning.extend_from_slice(logged);
        written.left_out += bytes.len() - logged.len();
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(Stderr::LOGGED)
    }
}

#[async_trait]
impl Pollable for Stderr {
    async fn ready(&mut self) {}
}
