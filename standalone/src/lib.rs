//! What a component of counterfoil imports, `caller` and `storage`, made of the interfaces of WASI 0.2 alone. Plugged
//! together with a component (`cargo xtask component --standalone`), it loads in any runtime for components.
//!
//! Such a runtime may make an instance for each call, run calls at once, in several processes, end any of them at any
//! moment, and has no locks on files. So the lock is a file that is renamed (`lock`), a lock that was lost is noticed
//! before each change, and whoever takes over a lock from one that seems dead gives the database new files first
//! (`fence`): what the other may still write lands in a file that no name leads to. No clock is relied upon for that.
//!
//! | Module | What is there |
//! |---|---|
//! | `caller` | who is calling: the environment says it |
//! | `files` | `storage`: the database's files |
//! | `folder` | the folder in which they are |
//! | `token` | the names of the file that is the lock |
//! | `lock` | taking the lock, keeping it, taking it over |
//! | `fence` | new files for the database |

#![cfg(target_family = "wasm")]
#![allow(unsafe_code, reason = "of generated code")]

mod caller;
mod fence;
mod files;
mod folder;
mod lock;
mod token;

mod bindings {
    #![allow(unsafe_code, clippy::all, clippy::pedantic, reason = "generated from the WIT")]

    wit_bindgen::generate!({
        path: "../wit",
        inline: "
            package counterfoil:standalone;

            world adapter {
                export counterfoil:tools/caller@0.1.0;
                export counterfoil:tools/storage@0.1.0;
            }
        ",
        world: "counterfoil:standalone/adapter",
    });
}

struct Adapter;

bindings::export!(Adapter with_types_in bindings);
