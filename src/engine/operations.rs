//! What became of an operation: two queries that every component can list among its tools.

use super::operation::State;
use super::restoration;
use crate::Timestamp;
use crate::arguments::{Id, Key, Text};
use crate::refusal::{Failure, Refusal};
use crate::storage::Snapshot;
use crate::tool::Query;
use rusqlite::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What [`status`] reads of a receipt `r` and an operation `o`, if there is one: whose effect is in the database alone has a
/// receipt and nothing else.
macro_rules! columns {
    () => {
        "r.operation_id, revision, coalesce(state, 'succeeded') AS state, \
         coalesce(since, committed_at) AS since, coalesce(attempts, 0) AS attempts, \
         coalesce(o.resource_id, r.resource_id) AS resource_id, coalesce(detail, '') AS detail, provider_key, \
         o.operation_id IS NOT NULL AS is_outside"
    };
}

pub(super) use columns;

macro_rules! select {
    ($which:literal) => {
        concat!("SELECT ", columns!(), " FROM receipts r LEFT JOIN operations o USING (operation_id) WHERE ", $which)
    };
}

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

/// What is established of an operation.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Status {
    pub operation_id: String,
    /// The tool that started it.
    pub tool: String,
    pub state: State,
    /// When `state` last changed.
    pub since: Timestamp,
    /// Attempts that may have reached a provider outside the database.
    pub attempts: u32,
    /// What was created or changed, or the provider's resource, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// Why it failed or is unknown, or what keeps it; empty otherwise.
    pub detail: String,
    pub next_action: String,
}

pub(super) const NOT_FOUND: &str = "There is no such operation in your workspace.";

impl Query for GetOperation {
    const NAME: &'static str = "get_operation";
    const TITLE: &'static str = "Get operation";
    const DESCRIPTION: &'static str =
        "What became of an operation of your workspace, by the operation_id that a call answered.";
    const PERMISSION: Option<&'static str> = Some("read");
    type Reply = Status;

    fn read(&self, database: &Snapshot<'_>) -> Result<Status, Failure> {
        find(database, &self.operation_id.text())
    }
}

impl Query for FindOperation {
    const NAME: &'static str = "find_operation";
    const TITLE: &'static str = "Find operation by key";
    const DESCRIPTION: &'static str = "What became of your own earlier call of a tool whose answer was lost, by the \
        idempotency_key it carried. not_found means that no call with this key has committed; one may still be in \
        flight, so repeat the call with the same key. Requires what the tool requires.";
    const PERMISSION: Option<&'static str> = None;
    type Reply = Status;

    fn read(&self, database: &Snapshot<'_>) -> Result<Status, Failure> {
        let entry = database.registry().find(self.tool.as_str());
        let Some((family, permission)) = entry.and_then(|entry| entry.revision_of.zip(entry.permission)) else {
            return Err(Refusal::invalid_argument("tool: no tool of this name takes a key.").into());
        };
        database.principal().require(permission)?;
        const SQL: &str = select!("workspace = ?1 AND subject = ?2 AND tool = ?3 AND idempotency_key = ?4");
        let key = self.idempotency_key.as_str();
        let parameters = (database.workspace(), &database.principal().subject, family, key);
        if let Some(found) = database.query_row(SQL, parameters, status)? {
            return Ok(found);
        }
        restoration::confirm_absence(database)?;
        Err(Refusal {
            next_action: "Repeat the call with this key: it acts at most once.".into(),
            ..Refusal::not_found("No call of this tool with this key has committed.")
        }
        .into())
    }
}

/// An operation of the caller's workspace.
pub(super) fn find(database: &Snapshot<'_>, operation_id: &str) -> Result<Status, Failure> {
    const SQL: &str = select!("r.operation_id = ?1 AND workspace = ?2");
    if let Some(found) = database.query_row(SQL, (operation_id, database.workspace()), status)? {
        return Ok(found);
    }
    restoration::confirm_absence(database)?;
    Err(Refusal::not_found(NOT_FOUND).into())
}

pub(super) const BY_ID: &str = select!("r.operation_id = ?1");

pub(super) fn status(row: &Row<'_>) -> rusqlite::Result<Status> {
    let mut status = Status {
        operation_id: row.get("operation_id")?,
        tool: row.get("revision")?,
        state: row.get("state")?,
        since: row.get("since")?,
        attempts: row.get("attempts")?,
        resource_id: row.get("resource_id")?,
        detail: row.get("detail")?,
        next_action: String::new(),
    };
    let key: Option<String> = row.get("provider_key")?;
    status.next_action = next_action(&status, row.get("is_outside")?, key.as_deref().unwrap_or_default());
    Ok(status)
}

fn next_action(status: &Status, is_outside: bool, provider_key: &str) -> String {
    let Status { operation_id, resource_id, .. } = status;
    match status.state {
        State::Succeeded if is_outside => "Nothing is left to do.".to_owned(),
        State::Succeeded => "Nothing is left to do. Read the resource to see its present state.".to_owned(),
        State::Accepted | State::Running => "Wait, then ask again. It can be cancelled.".to_owned(),
        State::CancelRequested => {
            "Wait, then ask again: it is not established yet whether it stopped, and it may still succeed.".to_owned()
        }
        State::Cancelled => "Nothing is left to do. Start it under a new key if it is wanted after all.".to_owned(),
        State::Failed => "Read detail, and decide again. Another try is a new action, under a new key.".to_owned(),
        State::OutcomeUnknown => {
            let check = match resource_id {
                Some(id) => format!("how {id} ended"),
                None => format!(
                    "whether it took a request with client reference {operation_id} and idempotency key {provider_key}"
                ),
            };
            format!(
                "Have a person check at the provider {check}, and an operator record it with resolve. Do not start it \
                 again under a new key: that could act twice."
            )
        }
    }
}
