//! Agent tools that are safe to retry, for WebAssembly components.
//!
//! A tool's change and a receipt of it commit in one SQLite transaction; the same key with the same arguments returns
//! the receipt instead of acting again. To read how, start at [`engine`], which is the walk of one call.
//!
//! | Module | What is there |
//! |---|---|
//! | [`tool`] | what a tool's author writes: the traits `Tool`, `Query` and `Unkeyed`, and the registry |
//! | [`arguments`] | types for arguments that hold valid values only, and their canonical form |
//! | [`engine`] | the walk; receipts; the outbox and what follows from what was seen; looking operations up |
//! | [`refusal`] | why a call failed, and what SQLite's errors mean |
//! | [`reply`] | the JSON that answers a call, and its schema |
//! | [`settings`] | what an operator may set |
//! | [`storage`] | open, migrate, transactions; what a tool may do with the database; SQLite's VFS |
//! | [`serving`] | the exports for a host that serves agents: [`serve!`] |
//! | `imports`, `native` | what a host gives; the same for a native program, without one |
//! | `tools`, `exports` | notes, automations and deployments, and their typed functions: the features `service` and `tools` |
//!
//! Without its features the crate is the engine as a library: it imports `counterfoil:tools/caller` and
//! `counterfoil:tools/storage`, exports nothing, and lets another component offer tools of its own.

pub mod arguments;
pub mod engine;
// A native linker takes no names such as `counterfoil:tools/toolbox#call`.
#[cfg(all(feature = "tools", target_family = "wasm"))]
mod exports;
mod imports;
#[cfg(not(target_family = "wasm"))]
pub mod native;
pub mod refusal;
pub mod reply;
pub mod serving;
pub mod settings;
pub mod storage;
mod timestamp;
pub mod tool;
#[cfg(feature = "tools")]
pub mod tools;

pub use imports::caller::Principal;
pub use refusal::Refusal;
pub use timestamp::Timestamp;

/// Its example must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

impl Principal {
    /// # Errors
    ///
    /// `denied`, if the host does not grant the permission now.
    pub fn require(&self, permission: &str) -> Result<(), Refusal> {
        if self.permissions.iter().any(|granted| granted == permission) {
            Ok(())
        } else {
            Err(Refusal::lacks(permission))
        }
    }
}
