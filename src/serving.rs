//! The world `serving`: JSON in, JSON out, the outbox, and upkeep, for a host that serves agents whatever the tools are.
//!
//! A component of your own needs no WIT for it: write its tools, list them in a [`Registry`], and name that in
//! [`serve!`](crate::serve).

use crate::engine;
use crate::engine::operation::State;
use crate::engine::operations::Status;
use crate::imports::{caller, types};
use crate::refusal::{Code, Refusal};
use crate::reply;
use crate::tool::{self, Registry};
use bindings::exports::counterfoil::tools::toolbox;

pub mod outbox;
pub mod upkeep;

#[allow(missing_docs, unsafe_code, clippy::all, clippy::pedantic, reason = "generated from the WIT")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "serving",
        pub_export_macro: true,
        export_macro_name: "export_serving",
    });
}

/// Exports `toolbox`, `outbox` and `upkeep` for a component whose [`Registry`] is the given static.
#[macro_export]
macro_rules! serve {
    ($registry:path) => {
        // A native linker takes no names such as `counterfoil:tools/toolbox#call`.
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code, reason = "of generated code")]
        const _: () = {
            use bindings::counterfoil::tools::types;
            use bindings::exports::counterfoil::tools::{outbox, toolbox, upkeep};
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

            impl outbox::Guest for Component {
                fn claim(
                    limit: u32,
                    lease: u32,
                    contract: outbox::ProviderContract,
                ) -> Result<outbox::Claimed, types::Refusal> {
                    serving::outbox::claim(&$registry, limit, lease, &contract)
                }

                fn settle(id: String, observation: outbox::Observation) -> Result<types::Operation, types::Refusal> {
                    serving::outbox::settle(&$registry, &id, observation)
                }

                fn resolve(
                    id: String,
                    happened: bool,
                    resource_id: Option<String>,
                ) -> Result<types::Operation, types::Refusal> {
                    serving::outbox::resolve(&$registry, &id, happened, resource_id)
                }
            }

            impl upkeep::Guest for Component {
                fn sweep(limit: u32) -> Result<u32, types::Refusal> {
                    serving::upkeep::sweep(&$registry, limit)
                }

                fn verify() -> Result<Vec<String>, types::Refusal> {
                    serving::upkeep::verify(&$registry)
                }

                fn checkpoint() -> Result<(), types::Refusal> {
                    serving::upkeep::checkpoint(&$registry)
                }

                fn close() -> Result<(), types::Refusal> {
                    serving::upkeep::close()
                }

                fn mark_restored() -> Result<upkeep::Restoration, types::Refusal> {
                    serving::upkeep::mark_restored(&$registry)
                }

                fn restored() -> Result<Option<upkeep::Restoration>, types::Refusal> {
                    serving::upkeep::restored(&$registry)
                }

                fn accept_restored() -> Result<Option<upkeep::Restoration>, types::Refusal> {
                    serving::upkeep::accept_restored(&$registry)
                }

                fn list_operations(
                    state: Option<types::State>,
                    after: Option<String>,
                    limit: u32,
                ) -> Result<Vec<upkeep::ListedOperation>, types::Refusal> {
                    serving::upkeep::list_operations(&$registry, state, after.as_deref(), limit)
                }

                fn count_operations() -> Result<Vec<(types::State, u64)>, types::Refusal> {
                    serving::upkeep::count_operations(&$registry)
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
        // By their keys, or since they only read, or since asking twice is asking once.
        idempotent: true,
        open_world: tool.open_world,
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

/// # Errors
///
/// `denied`, if the host names no caller, or one without the permission.
fn permitted(permission: &str) -> Result<(), Refusal> {
    caller::current(0).ok_or_else(Refusal::no_caller)?.require(permission)
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

impl From<Status> for types::Operation {
    fn from(operation: Status) -> Self {
        types::Operation {
            operation_id: operation.operation_id,
            tool: operation.tool,
            state: operation.state.into(),
            since: operation.since.milliseconds(),
            attempts: operation.attempts,
            resource_id: operation.resource_id,
            detail: operation.detail,
            next_action: operation.next_action,
        }
    }
}

impl From<State> for types::State {
    fn from(state: State) -> Self {
        match state {
            State::Accepted => types::State::Accepted,
            State::Running => types::State::Running,
            State::Succeeded => types::State::Succeeded,
            State::Failed => types::State::Failed,
            State::CancelRequested => types::State::CancelRequested,
            State::Cancelled => types::State::Cancelled,
            State::OutcomeUnknown => types::State::OutcomeUnknown,
        }
    }
}

impl From<types::State> for State {
    fn from(state: types::State) -> Self {
        match state {
            types::State::Accepted => State::Accepted,
            types::State::Running => State::Running,
            types::State::Succeeded => State::Succeeded,
            types::State::Failed => State::Failed,
            types::State::CancelRequested => State::CancelRequested,
            types::State::Cancelled => State::Cancelled,
            types::State::OutcomeUnknown => State::OutcomeUnknown,
        }
    }
}
