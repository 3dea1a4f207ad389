//! Receipts: what a key has led to. Inserted in the transaction of the effect, looked up before any effect.

use super::{Reply, object};
use crate::Timestamp;
use crate::refusal::{Failure, Refusal};
use crate::settings;
use crate::storage::{Snapshot, Transaction};
use crate::tool::Tool;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most that a result may be, in bytes of JSON. A larger one is undone before it commits, so that no effect is
/// left whose answer could not be kept.
pub const MAX_RESULT: usize = 64 * 1024;

/// Evidence that a change committed.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub operation_id: String,
    /// True if this call changed nothing and repeats an earlier answer.
    pub replayed: bool,
    pub committed_at: Timestamp,
    pub valid_until: Timestamp,
}

struct Stored {
    revision: String,
    arguments: String,
    result: String,
    receipt: Receipt,
}

/// The earlier answer to this call, if its key has led to one.
pub(super) fn replay<T: Tool>(database: &Snapshot<'_>, tool: &T, canonical: &str) -> Result<Option<Reply>, Failure> {
    let principal = database.principal();
    let stored = database.query_row(
        "SELECT revision, arguments, result, operation_id, committed_at, valid_until FROM receipts
         WHERE workspace = ?1 AND subject = ?2 AND tool = ?3 AND idempotency_key = ?4",
        (&principal.workspace, &principal.subject, T::REVISION_OF, tool.key().as_str()),
        |row| {
            let receipt = Receipt {
                operation_id: row.get(3)?,
                replayed: true,
                committed_at: row.get(4)?,
                valid_until: row.get(5)?,
            };
            Ok(Stored { revision: row.get(0)?, arguments: row.get(1)?, result: row.get(2)?, receipt })
        },
    )?;
    let Some(stored) = stored else { return Ok(None) };
    let is_over = stored.receipt.valid_until < Timestamp::now() && !is_unfinished(database, &stored.receipt)?;
    if is_over || stored.arguments.is_empty() {
        return Err(Refusal::key_expired().into());
    }
    if stored.revision != T::NAME {
        return Err(Refusal::key_of_other_revision(&stored.revision).into());
    }
    if !is_same::<T>(&stored.arguments, canonical) {
        return Err(Refusal::key_conflict().into());
    }
    let result = serde_json::from_str(&stored.result).map_err(|_| Refusal::damaged())?;
    Ok(Some(Reply { receipt: Some(stored.receipt), result }))
}

/// Whether its effect outside the database is not settled: until then the receipt stays, whatever its age.
fn is_unfinished(database: &Snapshot<'_>, receipt: &Receipt) -> rusqlite::Result<bool> {
    let found = database.query_row(
        concat!("SELECT 1 FROM operations WHERE operation_id = ?1 AND ", unfinished!()),
        [&receipt.operation_id],
        |_| Ok(()),
    )?;
    Ok(found.is_some())
}

/// Whether the stored arguments mean the same as these, whose canonical form is given. If the bytes differ, the stored
/// ones are read again with today's types, which fill in the default of an argument that was added since.
fn is_same<T: DeserializeOwned + Serialize>(stored: &str, canonical: &str) -> bool {
    stored == canonical || serde_json::from_str::<T>(stored).is_ok_and(|stored| self::canonical(&stored) == canonical)
}

/// Keeps the answer of a call that has just acted.
pub(super) fn insert<T: Tool>(
    transaction: &Transaction<'_>,
    tool: &T,
    canonical: &str,
    reply: &T::Reply,
) -> Result<Reply, Failure> {
    let result = object(reply);
    let json = Value::Object(result.clone()).to_string();
    if json.len() > MAX_RESULT {
        let message = format!("The result would have {} bytes; at most {MAX_RESULT} can be kept.", json.len());
        return Err(Refusal::invalid_argument(message).into());
    }
    let principal = transaction.principal();
    let receipt = Receipt {
        operation_id: transaction.operation_id().to_string(),
        replayed: false,
        committed_at: transaction.now(),
        valid_until: transaction.now().plus(settings::get()?.retention_ms),
    };
    transaction.execute(
        "INSERT INTO receipts (operation_id, workspace, subject, tool, idempotency_key, revision, arguments, result,
                               resource_id, committed_at, valid_until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        (
            &receipt.operation_id,
            &principal.workspace,
            &principal.subject,
            T::REVISION_OF,
            tool.key().as_str(),
            T::NAME,
            canonical,
            json,
            T::resource_id(reply),
            receipt.committed_at,
            receipt.valid_until,
        ),
    )?;
    Ok(Reply { receipt: Some(receipt), result })
}

/// What calls under one key are compared by: the validated arguments in a fixed order, defaults filled in.
///
/// # Panics
///
/// If the tool's arguments cannot be written as JSON: a bug of its author.
#[expect(clippy::expect_used, reason = "only a bug of the tool's author makes it fail")]
#[must_use]
pub fn canonical<T: Serialize>(arguments: &T) -> String {
    serde_json::to_string(arguments).expect("a tool's arguments are written as JSON")
}
