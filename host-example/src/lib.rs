//! A small wasmtime host for counterfoil's component, to read and to embed.
//!
//! It supplies the two things that must be trusted: who is calling, and the SQLite file. It knows no tool by name and
//! no SQL.
//!
//! ```no_run
//! use host_example::{Files, Host, Limits, Principal};
//!
//! let host = Host::load("counterfoil.wasm".as_ref(), Limits::default())?; // once
//! let ada = Principal {
//!     workspace: "acme".to_owned(),
//!     subject: "ada".to_owned(),
//!     permissions: vec!["write-notes".to_owned()],
//! };
//! let caller = move |_call| Some(ada.clone());
//! let mut instance = host.instance(caller, Files::shared("notes.db".as_ref())?)?; // for many calls, or for one
//! let reply = instance.call_one("create_note", r#"{"idempotency_key":"k1","body":"hello"}"#)?;
//! println!("{}", reply.body);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | File | What is there |
//! |---|---|
//! | `component.rs` | engine, linker, what an instance is given |
//! | `limits.rs` | what an instance may use |
//! | `wasi.rs` | what it has of WASI |
//! | `instance.rs` | an instance and its calls |
//! | `storage.rs` | the trait [`Storage`], and the component's import made of it |
//! | `files.rs` | `Storage` over real files, with SQLite's locks |
//! | `owned.rs` | the file of a database that is one owner's alone |
//! | `locks.rs` | Linux's locks on ranges of bytes, and who holds them |
//! | `copy.rs` | a copy of a database that others are using |
//! | `commands.rs`, `commands/` | what the program `host-example` does, for other programs to do as well |

pub mod commands;
mod component;
mod copy;
mod files;
mod instance;
mod limits;
mod locks;
mod owned;
mod storage;
mod wasi;

pub use component::{Host, State};
pub use copy::CopyError;
pub use files::{Files, OpenError};
pub use instance::{Instance, observation_name, step_name};
pub use limits::Limits;
pub use storage::{Storage, StorageFile};

pub use bindings::counterfoil::tools::caller::Principal;
pub use bindings::counterfoil::tools::storage::{Error, LockLevel, Part, Sharing};
pub use bindings::counterfoil::tools::types;
pub use bindings::exports::counterfoil::tools::outbox::{Claimed, Observation, ProviderContract, Step, Task};
pub use bindings::exports::counterfoil::tools::toolbox::{Description, Invocation, Reply};
pub use bindings::exports::counterfoil::tools::upkeep::{ListedOperation, Restoration};

#[allow(missing_docs, reason = "generated from the WIT, whose documents are there")]
pub mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "serving",
        imports: { default: trappable },
        additional_derives: [PartialEq, PartialOrd],
        with: { "counterfoil:tools/storage.file": crate::storage::OpenFile },
    });
}
