//! The world `serving`: JSON in, JSON out, and upkeep, for a host that serves agents whatever the tools are.
//!
//! A component of your own needs no WIT for it: write its tools, list them in a [`Registry`], and name that in
//! [`serve!`](crate::serve).

use crate::engine;
use crate::imports::{caller, types};
use crate::refusal::{Code, Refusal};
use crate::tool::{self, Registry};
use crate::{reply, storage};
use bindings::exports::counterfoil::tools::toolbox;

#[allow(missing_docs, unsafe_code, clippy::all, clippy::pedantic, reason = "generated from the WIT")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "serving",
        pub_export_macro: true,
        export_macro_name: "export_serving",
    });
}

/// Exports `toolbox` and `upkeep` for a component whose [`Registry`] is the given static.
#[macro_export]
macro_rules! serve {
    ($registry:path) => {
        // A native linker takes no names such as `counterfoil:tools/toolbox#call`.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code, reason = "of generated code")]
        const _: () = {
            use bindings::counterfoil::tools::types;
            use bindings::exports::counterfoil::tools::{toolbox, upkeep};
            use $crate::serving::{self, bindings};

            struct Component;

            impl toolbox::Guest for Component {
                fn describe() -> Vec<toolbox::Description> {
                    serving::describe(&$registry)
                }

                fn call(invocations: Vec<toolbox::Invocation>) -> Vec<toolbox::Reply> {
                    serving::call(&$registry, &invocations)
                }
            }

            impl upkeep::Guest for Component {
                fn verify() -> Result<Vec<String>, types::Refusal> {
                    serving::verify(&$registry)
                }

                fn checkpoint() -> Result<(), types::Refusal> {
                    serving::checkpoint(&$registry)
                }

                fn close() -> Result<(), types::Refusal> {
                    serving::close()
                }
            }

    bindings::export_serving!(Component with_types_in bindings);
        };
    };
}

/// What `wit/toolbox.wit` promises of `describe`.
#[must_use]
pub fn describe(registry: &'static Registry) -> Vec<toolbox::Description> {
    let describe = |tool: tool::Description| toolbox::Description {
        name: tool.name.to_owned(),
        title: tool.title.to_owned(),
        description: tool.description,
        input_schema: tool.input_schema,
        output_schema: tool.output_schema,
        permission: tool.permission.map(str::to_owned),
        read_only: tool.read_only,
        destructive: tool.destructive,
        // By their keys, or since they only read.
        idempotent: true,
        // Nothing outside the database is touched.
        open_world: false,
    };
    registry.describe().into_iter().map(describe).collect()
}

/// What `wit/toolbox.wit` promises of `call`.
#[must_use]
pub fn call(registry: &'static Registry, invocations: &[toolbox::Invocation]) -> Vec<toolbox::Reply> {
    let calls: Vec<_> = invocations.iter().map(|call| (call.tool.as_str(), call.arguments.as_str())).collect();
    let outcomes = engine::run(registry, &calls);
    outcomes.iter().map(|outcome| toolbox::Reply { body: reply::json(outcome), refused: outcome.is_err() }).collect()
}

/// SQLite's own integrity check, and one receipt to every effect. Returns what is wrong, a sentence each.
///
/// # Errors
///
/// `denied` without `maintain`; or as for any call that cannot use the database. Nothing is changed but what opening it
/// changes: its schema and its journal mode are brought up to date.
pub fn verify(registry: &'static Registry) -> Result<Vec<String>, types::Refusal> {
    permitted()?;
    Ok(storage::with(&registry.schema, |database| database.check(&registry.schema))?)
}

/// Moves the log into the database file, so that the file alone is a copy.
///
/// # Errors
///
/// `denied` without `maintain`; or as for any call that cannot use the database. Nothing committed is lost.
pub fn checkpoint(registry: &'static Registry) -> Result<(), types::Refusal> {
    permitted()?;
    Ok(storage::with(&registry.schema, storage::Database::checkpoint)?)
}

/// Closes the database cleanly; the next call opens it again.
///
/// # Errors
///
/// `denied` without `maintain`; `unavailable` if storage failed: the files are then as a killed process would leave
/// them, and nothing committed is lost.
pub fn close() -> Result<(), types::Refusal> {
    permitted()?;
    Ok(storage::close()?)
}

fn permitted() -> Result<(), Refusal> {
    caller::current(0).ok_or_else(Refusal::no_caller)?.require("maintain")
}

impl From<Refusal> for types::Refusal {
    fn from(refusal: Refusal) -> Self {
        types::Refusal {
            code: match refusal.code {
                Code::Denied => types::RefusalCode::Denied,
                Code::InvalidArgument => types::RefusalCode::InvalidArgument,
                Code::Busy => types::RefusalCode::Busy,
                Code::Unavailable => types::RefusalCode::Unavailable,
                Code::NotFound => types::RefusalCode::NotFound,
                Code::KeyExpired => types::RefusalCode::KeyExpired,
                Code::KeyConflict => types::RefusalCode::KeyConflict,
                Code::VersionConflict => types::RefusalCode::VersionConflict,
                Code::Unconfirmed => types::RefusalCode::Unconfirmed,
            },
            message: refusal.message.into_owned(),
            retryable: refusal.retryable,
            retry_after: refusal.retry_after_ms,
            next_action: refusal.next_action.into_owned(),
        }
    }
}
