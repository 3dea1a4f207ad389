//! The tools as typed functions: the world `tools`. Each writes its arguments as JSON, so that every call, however it
//! came, takes the same walk.

#![allow(unsafe_code, reason = "of generated code")]

use crate::engine::operations::{FindOperation, GetOperation};
use crate::engine::{self, receipts};
use crate::imports::types;
use crate::refusal::Refusal;
use crate::tool::{Query, Tool};
use crate::tools::REGISTRY;
use crate::tools::automations::{Automation, CreateAutomation, GetAutomation, SetInterval};
use crate::tools::notes::{CreateNote, GetNote, Note, NoteCreated};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

mod bindings {
    #![allow(unsafe_code, clippy::all, clippy::pedantic, reason = "generated from the WIT")]

    wit_bindgen::generate!({
        path: "wit",
        world: "tools",
        with: {
            "counterfoil:tools/caller@0.1.0": crate::imports::caller,
            "counterfoil:tools/storage@0.1.0": crate::imports::storage,
            "counterfoil:tools/types@0.1.0": crate::imports::types,
        },
    });
}

#[cfg(feature = "service")]
mod deployments;

#[cfg(feature = "service")]
crate::serve!(REGISTRY);

struct Component;

bindings::export!(Component with_types_in bindings);

impl bindings::Guest for Component {
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

#[expect(clippy::expect_used, reason = "the engine answers so")]
fn act<T: Tool>(arguments: &Value) -> Result<(T::Reply, types::Receipt), types::Refusal> {
    let reply = call(T::NAME, arguments)?;
    let receipt = reply.receipt.expect("a tool that acts answers a receipt").into();
    Ok((typed(reply.result)?, receipt))
}

fn read<Q: Query>(arguments: &Value) -> Result<Q::Reply, types::Refusal> {
    typed(call(Q::NAME, arguments)?.result)
}

#[expect(clippy::expect_used, reason = "the engine answers so")]
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
