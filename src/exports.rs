//! The world that this component exports. Every function is a pass-through to the engine: a typed one writes its
//! arguments as JSON, so that each call, however it came, takes the same walk.

use crate::bindings::{self, Guest, counterfoil::tools::types};
use crate::engine::operations::{FindOperation, GetOperation, Operation, State};
use crate::engine::{self, receipts};
use crate::refusal::{Code, Refusal};
use crate::tool::{Query, Tool};
use crate::tools::REGISTRY;
use crate::tools::automations::{Automation, CreateAutomation, GetAutomation, SetInterval};
use crate::tools::notes::{CreateNote, GetNote, Note, NoteCreated};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

struct Component;

bindings::export!(Component with_types_in crate::bindings);

impl Guest for Component {
    fn create_note(idempotency_key: String, body: String) -> Result<types::NoteCreated, types::Refusal> {
        let arguments = json!({ "idempotency_key": idempotency_key, "body": body });
        let (NoteCreated { note_id }, receipt) = act::<CreateNote>(&arguments)?;
        Ok(types::NoteCreated { note_id, receipt })
    }

    fn get_note(note_id: String) -> Result<types::Note, types::Refusal> {
        let Note { note_id, body, created_at } = read::<GetNote>(&json!({ "note_id": note_id }))?;
        Ok(types::Note { note_id, body, created_at: created_at.milliseconds() })
    }

    fn create_automation(
        idempotency_key: String,
        interval_minutes: u32,
    ) -> Result<types::AutomationWritten, types::Refusal> {
        let arguments = json!({ "idempotency_key": idempotency_key, "interval_minutes": interval_minutes });
        written(act::<CreateAutomation>(&arguments))
    }

    fn set_interval(
        idempotency_key: String,
        automation_id: String,
        expected_version: u32,
        interval_minutes: u32,
    ) -> Result<types::AutomationWritten, types::Refusal> {
        written(act::<SetInterval>(&json!({
            "idempotency_key": idempotency_key,
            "automation_id": automation_id,
            "expected_version": expected_version,
            "interval_minutes": interval_minutes,
        })))
    }

    fn get_automation(automation_id: String) -> Result<types::Automation, types::Refusal> {
        Ok(read::<GetAutomation>(&json!({ "automation_id": automation_id }))?.into())
    }

    fn get_operation(operation_id: String) -> Result<types::Operation, types::Refusal> {
        Ok(read::<GetOperation>(&json!({ "operation_id": operation_id }))?.into())
    }

    fn find_operation(tool: String, idempotency_key: String) -> Result<types::Operation, types::Refusal> {
        Ok(read::<FindOperation>(&json!({ "tool": tool, "idempotency_key": idempotency_key }))?.into())
    }
}

fn act<T: Tool>(arguments: &Value) -> Result<(T::Reply, types::Receipt), types::Refusal> {
    let reply = call(T::NAME, arguments)?;
    let receipt = reply.receipt.expect("a tool that acts answers a receipt").into();
    Ok((typed(reply.result)?, receipt))
}

fn read<Q: Query>(arguments: &Value) -> Result<Q::Reply, types::Refusal> {
    typed(call(Q::NAME, arguments)?.result)
}

fn call(tool: &str, arguments: &Value) -> Result<engine::Reply, types::Refusal> {
    let outcome = engine::run(&REGISTRY, &[(tool, &arguments.to_string())]).pop();
    Ok(outcome.expect("one call has one outcome")?)
}

/// A stored result that no longer has the tool's shape was written by other means than the tool.
fn typed<R: DeserializeOwned>(result: serde_json::Map<String, Value>) -> Result<R, types::Refusal> {
    serde_json::from_value(Value::Object(result)).map_err(|_| Refusal::damaged().into())
}

fn written(
    outcome: Result<(Automation, types::Receipt), types::Refusal>,
) -> Result<types::AutomationWritten, types::Refusal> {
    outcome.map(|(automation, receipt)| types::AutomationWritten { automation: automation.into(), receipt })
}

impl From<Automation> for types::Automation {
    fn from(Automation { automation_id, interval_minutes, version }: Automation) -> Self {
        types::Automation { automation_id, interval_minutes, version }
    }
}

impl From<receipts::Receipt> for types::Receipt {
    fn from(receipt: receipts::Receipt) -> Self {
        types::Receipt {
            operation_id: receipt.operation_id,
            replayed: receipt.replayed,
            committed_at: receipt.committed_at.milliseconds(),
            valid_until: receipt.valid_until.milliseconds(),
        }
    }
}

impl From<Operation> for types::Operation {
    fn from(operation: Operation) -> Self {
        types::Operation {
            operation_id: operation.operation_id,
            tool: operation.tool,
            state: match operation.state {
                State::Succeeded => types::State::Succeeded,
            },
            since: operation.since.milliseconds(),
            attempts: operation.attempts,
            resource_id: operation.resource_id,
            detail: operation.detail,
            next_action: operation.next_action,
        }
    }
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

#[cfg(feature = "service")]
mod service {
    use super::Component;
    use crate::bindings::counterfoil::tools::types;
    use crate::bindings::exports::counterfoil::tools::{toolbox, upkeep};
    use crate::tools::REGISTRY;
    use crate::{engine, reply};

    impl toolbox::Guest for Component {
        fn describe() -> Vec<toolbox::Description> {
            let describe = |tool: crate::tool::Description| toolbox::Description {
                name: tool.name.to_owned(),
                title: tool.title.to_owned(),
                description: tool.description,
                input_schema: tool.input_schema,
                output_schema: tool.output_schema,
                permission: tool.permission.map(str::to_owned),
                read_only: tool.read_only,
                destructive: tool.destructive,
                // By their keys, and by reading only.
                idempotent: true,
                // Nothing outside the database is touched.
                open_world: false,
            };
            REGISTRY.describe().into_iter().map(describe).collect()
        }

        fn call(invocations: Vec<toolbox::Invocation>) -> Vec<toolbox::Reply> {
            let calls: Vec<_> = invocations.iter().map(|call| (call.tool.as_str(), call.arguments.as_str())).collect();
            let outcomes = engine::run(&REGISTRY, &calls);
            let answer = |outcome| toolbox::Reply { body: reply::json(&outcome), refused: outcome.is_err() };
            outcomes.into_iter().map(answer).collect()
        }
    }

    impl upkeep::Guest for Component {
        fn verify() -> Result<Vec<String>, types::Refusal> {
            Ok(crate::upkeep::verify(&REGISTRY)?)
        }

        fn checkpoint() -> Result<(), types::Refusal> {
            Ok(crate::upkeep::checkpoint(&REGISTRY)?)
        }

        fn close() -> Result<(), types::Refusal> {
            Ok(crate::upkeep::close()?)
        }
    }
}
