//! What became of an operation: two queries that every component can list among its tools.

use crate::Timestamp;
use crate::arguments::{Id, Key, Text};
use crate::refusal::{Failure, Refusal};
use crate::storage::Snapshot;
use crate::tool::Query;
use rusqlite::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of an operation of the caller's workspace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetOperation {
    operation_id: Id,
}

/// What became of the caller's own earlier call, by the key it carried.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindOperation {
    /// The tool that was called.
    tool: Text<128>,
    /// The key that the call carried.
    idempotency_key: Key,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Committed.
    Succeeded,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    pub operation_id: String,
    /// The tool that started it.
    pub tool: String,
    pub state: State,
    /// When `state` last changed.
    pub since: Timestamp,
    /// Attempts that may have reached a provider outside the database.
    pub attempts: u32,
    /// What was created or changed.
    pub resource_id: Option<String>,
    /// Why it failed or is unknown; empty otherwise.
    pub detail: String,
    pub next_action: String,
}

impl Query for GetOperation {
    const NAME: &'static str = "get_operation";
    const TITLE: &'static str = "Get operation";
    const DESCRIPTION: &'static str =
        "What became of an operation of your workspace, by the operation_id that a call answered.";
    const PERMISSION: Option<&'static str> = Some("read");
    type Reply = Operation;

    fn read(&self, database: &Snapshot<'_>) -> Result<Operation, Failure> {
        let operation = database.query_row(
            "SELECT operation_id, revision, committed_at, resource_id FROM receipts
             WHERE operation_id = ?1 AND workspace = ?2",
            (self.operation_id.text(), database.workspace()),
            operation,
        )?;
        Ok(operation.ok_or(Refusal::not_found("There is no such operation in your workspace."))?)
    }
}

impl Query for FindOperation {
    const NAME: &'static str = "find_operation";
    const TITLE: &'static str = "Find operation by key";
    const DESCRIPTION: &'static str = "What became of your own earlier call of a tool whose answer was lost, by the \
        idempotency_key it carried. not_found means that no call with this key has committed; one may still be in \
        flight, so repeat the call with the same key. Requires what the tool requires.";
    const PERMISSION: Option<&'static str> = None;
    type Reply = Operation;

    fn read(&self, database: &Snapshot<'_>) -> Result<Operation, Failure> {
        let entry = database.registry().find(self.tool.as_str());
        let Some((family, permission)) = entry.and_then(|entry| entry.revision_of.zip(entry.permission)) else {
            return Err(Refusal::invalid_argument("tool: no tool of this name takes a key.").into());
        };
        database.principal().require(permission)?;
        let operation = database.query_row(
            "SELECT operation_id, revision, committed_at, resource_id FROM receipts
             WHERE workspace = ?1 AND subject = ?2 AND tool = ?3 AND idempotency_key = ?4",
            (database.workspace(), &database.principal().subject, family, self.idempotency_key.as_str()),
            operation,
        )?;
        Ok(operation.ok_or_else(|| Refusal {
            next_action: "Repeat the call with this key: it acts at most once.".into(),
            ..Refusal::not_found("No call of this tool with this key has committed.")
        })?)
    }
}

fn operation(row: &Row<'_>) -> rusqlite::Result<Operation> {
    Ok(Operation {
        operation_id: row.get(0)?,
        tool: row.get(1)?,
        state: State::Succeeded,
        since: row.get(2)?,
        attempts: 0,
        resource_id: row.get(3)?,
        detail: String::new(),
        next_action: "Nothing is left to do. Read the resource to see its present state.".to_owned(),
    })
}
