//! Operations and attempts as rows of the database.

use super::Task;
use crate::Timestamp;
use crate::engine::operation::{Attempt, Cancel, Contract, Operation, Seen, Sent, State, Step};
use crate::engine::operations::{self, Status};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, named_params};

/// An operation, and what is not needed to decide about it.
pub(super) struct Row {
    pub operation_id: String,
    pub known: Operation,
    pub request: String,
    pub detail: String,
    pub resource_id: Option<String>,
    pub provider_key: Option<String>,
    pub contract: Option<Contract>,
    pub attempt_id: Option<String>,
    state_before: State,
}

pub(super) struct AttemptRow {
    pub operation_id: String,
    pub attempt: Attempt,
    /// Whether its worker has told before what it saw.
    pub is_settled: bool,
}

macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT o.operation_id, request, state, detail, resource_id, provider_key, contract, deadline, cancel, \
             attempts, first_sent, last_sent, is_there, rejected, fruitless, clock, due, o.attempt_id, step, \
             claimed_at, lease_until FROM operations o LEFT JOIN attempts a ON a.attempt_id = o.attempt_id ",
            $which
        )
    };
}

pub(super) fn load(connection: &Connection, operation_id: &str) -> rusqlite::Result<Option<Row>> {
    const SQL: &str = select!("WHERE o.operation_id = ?1");
    connection.prepare_cached(SQL)?.query_row([operation_id], row).optional()
}

/// What has been due for longest.
pub(super) fn load_due(connection: &Connection, now: Timestamp) -> rusqlite::Result<Option<Row>> {
    const SQL: &str = select!("WHERE due <= ?1 ORDER BY due LIMIT 1");
    connection.prepare_cached(SQL)?.query_row([now], row).optional()
}

fn row(row: &SqlRow<'_>) -> rusqlite::Result<Row> {
    let state = row.get("state")?;
    let sent = match (row.get("first_sent")?, row.get("last_sent")?) {
        (Some(first), Some(last)) => Some(Sent { first, last }),
        _ => None,
    };
    let attempt_id: Option<String> = row.get("attempt_id")?;
    let attempt = attempt_id.is_some().then(|| attempt(row)).transpose()?;
    Ok(Row {
        operation_id: row.get("operation_id")?,
        known: Operation {
            state,
            deadline: row.get("deadline")?,
            cancel: row.get("cancel")?,
            attempts: row.get("attempts")?,
            sent,
            exists: row.get("is_there")?,
            rejected: row.get("rejected")?,
            fruitless: row.get("fruitless")?,
            attempt,
            due: row.get("due")?,
            clock: row.get("clock")?,
        },
        request: row.get("request")?,
        detail: row.get("detail")?,
        resource_id: row.get("resource_id")?,
        provider_key: row.get("provider_key")?,
        contract: row.get("contract")?,
        attempt_id,
        state_before: state,
    })
}

fn attempt(row: &SqlRow<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt { step: row.get("step")?, claimed_at: row.get("claimed_at")?, lease_until: row.get("lease_until")? })
}

pub(super) fn save(connection: &Connection, row: &Row, now: Timestamp) -> rusqlite::Result<()> {
    const SQL: &str = "UPDATE operations SET
        state = :state, since = iif(:changed, :now, since), detail = :detail, resource_id = :resource_id,
        provider_key = :provider_key, contract = :contract, cancel = :cancel, attempts = :attempts,
        first_sent = :first_sent, last_sent = :last_sent, is_there = :is_there, rejected = :rejected,
        fruitless = :fruitless, clock = :clock, due = :due, planned_at = :now, attempt_id = :attempt_id
      WHERE operation_id = :operation_id";
    let known = &row.known;
    connection.prepare_cached(SQL)?.execute(named_params! {
        ":state": known.state,
        ":changed": known.state != row.state_before,
        ":now": now,
        ":detail": row.detail,
        ":resource_id": row.resource_id,
        ":provider_key": row.provider_key,
        ":contract": row.contract,
        ":cancel": known.cancel,
        ":attempts": known.attempts,
        ":first_sent": known.sent.map(|sent| sent.first),
        ":last_sent": known.sent.map(|sent| sent.last),
        ":is_there": known.exists,
        ":rejected": known.rejected,
        ":fruitless": known.fruitless,
        ":clock": known.clock,
        ":due": known.due,
        ":attempt_id": row.attempt_id,
        ":operation_id": row.operation_id,
    })?;
    Ok(())
}

pub(super) fn insert_attempt(connection: &Connection, task: &Task, now: Timestamp) -> rusqlite::Result<()> {
    /// How many attempts of one operation that were never sent, or only asked, are kept: enough for a worker that repeats
    /// itself.
    const KEPT: u32 = 32;
    connection
        .prepare_cached(
            "INSERT INTO attempts (attempt_id, operation_id, step, claimed_at, lease_until) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((&task.attempt_id, &task.operation_id, task.step, now, task.lease_until))?;
    connection
        .prepare_cached(
            "DELETE FROM attempts WHERE attempt_id IN (
               SELECT attempt_id FROM attempts
               WHERE operation_id = ?1 AND (step <> 'submit' OR observation IN ('not-sent', 'throttled'))
               ORDER BY number DESC LIMIT -1 OFFSET ?2)",
        )?
        .execute((&task.operation_id, KEPT))?;
    Ok(())
}

pub(super) fn load_attempt(connection: &Connection, id: &str) -> rusqlite::Result<Option<AttemptRow>> {
    connection
        .prepare_cached(
            "SELECT operation_id, step, claimed_at, lease_until, settled_at IS NOT NULL AS is_settled
             FROM attempts WHERE attempt_id = ?1",
        )?
        .query_row([id], |row| {
            Ok(AttemptRow {
                operation_id: row.get("operation_id")?,
                attempt: attempt(row)?,
                is_settled: row.get("is_settled")?,
            })
        })
        .optional()
}

pub(super) fn settle_attempt(connection: &Connection, id: &str, seen: Seen, now: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE attempts SET observation = ?1, settled_at = ?2 WHERE attempt_id = ?3")?
        .execute((seen.name(), now, id))?;
    Ok(())
}

pub(super) fn status(connection: &Connection, operation_id: &str) -> rusqlite::Result<Status> {
    connection.prepare_cached(operations::BY_ID)?.query_row([operation_id], operations::status)
}

pub(super) fn is_any_due(connection: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM operations WHERE due <= ?1)
               OR EXISTS (SELECT 1 FROM operations WHERE due IS NOT NULL AND planned_at > ?1)",
        )?
        .query_row([now], |row| row.get(0))
}

pub(super) fn next_due(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    connection.prepare_cached("SELECT min(due) FROM operations WHERE due IS NOT NULL")?.query_row([], |row| row.get(0))
}

/// What was due in a while is due in the same while from now, not when the old reading comes round again.
pub(super) fn plan_anew_if_the_clock_stepped_back(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE operations SET due = max(?1, due - planned_at + ?1), planned_at = ?1
             WHERE due IS NOT NULL AND planned_at > ?1",
        )?
        .execute([now])?;
    Ok(())
}

macro_rules! as_text {
    ($type:ident { $($variant:ident = $text:literal),* }) => {
        impl ToSql for $type {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(match self { $($type::$variant => $text),* }.into())
            }
        }

        impl FromSql for $type {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                match value.as_str()? {
                    $($text => Ok($type::$variant),)*
                    _ => Err(FromSqlError::InvalidType),
                }
            }
        }
    };
}

as_text!(State {
    Accepted = "accepted",
    Running = "running",
    Succeeded = "succeeded",
    Failed = "failed",
    CancelRequested = "cancel-requested",
    Cancelled = "cancelled",
    OutcomeUnknown = "outcome-unknown"
});
as_text!(Step { Submit = "submit", Lookup = "lookup", Cancel = "cancel" });
as_text!(Cancel { No = "no", Asked = "asked", Refused = "refused" });

impl Seen {
    fn name(self) -> &'static str {
        match self {
            Seen::NotSent => "not-sent",
            Seen::Throttled(_) => "throttled",
            Seen::Rejected => "rejected",
            Seen::Accepted => "accepted",
            Seen::Finished => "finished",
            Seen::Failed => "failed",
            Seen::Cancelled => "cancelled",
            Seen::Absent => "absent",
            Seen::Unclear => "unclear",
        }
    }
}

impl ToSql for Contract {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let json =
            serde_json::to_string(self).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        Ok(json.into())
    }
}

impl FromSql for Contract {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        serde_json::from_str(value.as_str()?).map_err(|error| FromSqlError::Other(error.into()))
    }
}
