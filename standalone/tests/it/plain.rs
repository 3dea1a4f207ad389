//! A host that knows nothing of counterfoil: wasmtime, WASI 0.2 over real folders, and a fresh instance for each call.

use crate::harness::standalone;
use host_example::types::{NoteCreated, Refusal};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Cache, CacheConfig, Config, Engine, Store};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "tools",
        // For their types alone, so that answers of every host compare.
        with: {
            "counterfoil:tools/caller": host_example::bindings::counterfoil::tools::caller,
            "counterfoil:tools/storage": host_example::bindings::counterfoil::tools::storage,
            "counterfoil:tools/types": host_example::bindings::counterfoil::tools::types,
        },
    });
}

pub use bindings::Tools;
use bindings::ToolsPre;

/// In a child process: the file with the component, which its parent has built.
pub const COMPONENT: &str = "TEST_COMPONENT";

pub fn file() -> PathBuf {
    std::env::var_os(COMPONENT).map_or_else(|| standalone().to_owned(), PathBuf::from)
}

/// The component, compiled once.
fn tools() -> &'static ToolsPre<State> {
    static TOOLS: OnceLock<ToolsPre<State>> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let component = load(&file());
        let mut linker = Linker::new(component.engine());
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker).unwrap();
        ToolsPre::new(linker.instantiate_pre(&component).unwrap()).unwrap()
    })
}

/// Compiles it, or takes it from wasmtime's cache: a child process has no time to compile.
pub fn load(file: &Path) -> Component {
    let mut config = Config::new();
    config.cache(Some(Cache::new(CacheConfig::new()).unwrap()));
    Component::from_file(&Engine::new(&config).unwrap(), file).unwrap()
}

pub struct State {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// What an operator says once: which folders the component sees, under which names, and for whom it runs.
#[derive(Clone)]
pub struct Deployment {
    folders: Vec<(PathBuf, String)>,
    environment: BTreeMap<String, String>,
}

impl Deployment {
    /// Called by Ada, with one folder.
    pub fn new(folder: &Path) -> Deployment {
        Deployment::without_folders().folder(folder, "/data")
    }

    pub fn without_folders() -> Deployment {
        let ada = [
            ("COUNTERFOIL_SUBJECT", "ada"),
            ("COUNTERFOIL_WORKSPACE", "acme"),
            ("COUNTERFOIL_PERMISSIONS", "read,write-notes,write-automations"),
        ];
        let environment = ada.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Deployment { folders: Vec::new(), environment }
    }

    pub fn folder(mut self, folder: &Path, name: &str) -> Deployment {
        self.folders.push((folder.to_owned(), name.to_owned()));
        self
    }

    pub fn with(&self, variable: &str, value: &str) -> Deployment {
        let mut other = self.clone();
        other.environment.insert(variable.to_owned(), value.to_owned());
        other
    }

    pub fn without(&self, variable: &str) -> Deployment {
        let mut other = self.clone();
        other.environment.remove(variable);
        other
    }

    /// A call on an instance of its own.
    pub fn call<T>(&self, call: impl FnOnce(&Tools, &mut Store<State>) -> wasmtime::Result<T>) -> T {
        let mut wasi = WasiCtxBuilder::new();
        // Before the folders, which keep it.
        wasi.allow_blocking_current_thread(true).envs(&Vec::from_iter(&self.environment));
        for (folder, name) in &self.folders {
            wasi.preopened_dir(folder, name, FsPerms::ReadWrite).unwrap();
        }
        let state = State { wasi: wasi.build(), table: ResourceTable::new() };
        let mut store = Store::new(tools().engine(), state);
        let exports = tools().instantiate(&mut store).unwrap();
        call(&exports, &mut store).unwrap()
    }

    pub fn create_note(&self, key: &str, body: &str) -> Result<NoteCreated, Refusal> {
        self.call(|tools, store| tools.call_create_note(store, key, body))
    }
}
