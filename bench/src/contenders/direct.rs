//! SQL written by hand, natively, without the engine: a table of keys beside the tables of effects.

use super::Result;
use crate::work::Call;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

const SCHEMA: &str = "
    CREATE TABLE notes (note_id TEXT PRIMARY KEY, body TEXT NOT NULL);
    CREATE TABLE automations (automation_id TEXT PRIMARY KEY, interval_minutes INTEGER NOT NULL, version INTEGER NOT NULL);
    CREATE TABLE keys (idempotency_key TEXT PRIMARY KEY, arguments TEXT NOT NULL, result TEXT NOT NULL);";

/// One connection for all callers, with a WAL that is synced at each commit, and statements that are kept.
pub struct Persistent(Mutex<Connection>);

impl Persistent {
    pub fn open(database: &Path) -> Result<Persistent> {
        let connection = Connection::open(database)?;
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Persistent(Mutex::new(connection)))
    }

    pub fn call(&self, call: &Call) -> Result<String> {
        handle(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), call)
    }
}

/// A connection for each call, with SQLite's and rusqlite's defaults: a journal that is removed, and 5 s for locks.
pub struct Plain(PathBuf);

impl Plain {
    pub fn create(database: &Path) -> Result<Plain> {
        Connection::open(database)?.execute_batch(SCHEMA)?;
        Ok(Plain(database.to_owned()))
    }

    pub fn call(&self, call: &Call) -> Result<String> {
        handle(&mut Connection::open(&self.0)?, call)
    }
}

fn handle(connection: &mut Connection, call: &Call) -> Result<String> {
    let arguments: Value = serde_json::from_str(&call.arguments)?;
    let key = arguments["idempotency_key"].as_str().ok_or("no key")?;
    // Most retries need no lock.
    if let Some(earlier) = earlier(connection, key, call)? {
        return Ok(earlier);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Some(earlier) = earlier(&transaction, key, call)? {
        return Ok(earlier);
    }
    let Some(result) = act(&transaction, call.tool, &arguments)? else {
        return Ok(json!({ "status": "refused", "code": "version_conflict" }).to_string());
    };
    let mut insert = transaction.prepare_cached("INSERT INTO keys VALUES (?1, ?2, ?3)")?;
    insert.execute((key, &call.arguments, result.to_string()))?;
    drop(insert);
    transaction.commit()?;
    Ok(answer(result, false))
}

fn earlier(connection: &Connection, key: &str, call: &Call) -> Result<Option<String>> {
    let mut select = connection.prepare_cached("SELECT arguments, result FROM keys WHERE idempotency_key = ?1")?;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let Some((arguments, result)) = select.query_row([key], row).optional()? else { return Ok(None) };
    if arguments != call.arguments {
        return Ok(Some(json!({ "status": "refused", "code": "key_conflict" }).to_string()));
    }
    Ok(Some(answer(serde_json::from_str(&result)?, true)))
}

/// None if the version has moved on.
fn act(transaction: &Transaction<'_>, tool: &str, arguments: &Value) -> Result<Option<Value>> {
    let id = Uuid::now_v7().to_string();
    match tool {
        "create_note" => {
            let body = arguments["body"].as_str().ok_or("no body")?;
            transaction.prepare_cached("INSERT INTO notes VALUES (?1, ?2)")?.execute((&id, body))?;
            Ok(Some(json!({ "note_id": id })))
        }
        "create_automation" => {
            let minutes = arguments["interval_minutes"].as_i64();
            transaction.prepare_cached("INSERT INTO automations VALUES (?1, ?2, 1)")?.execute((&id, minutes))?;
            Ok(Some(json!({ "automation_id": id })))
        }
        _ => {
            let (id, expected) = (arguments["automation_id"].as_str(), arguments["expected_version"].as_i64());
            let mut update = transaction.prepare_cached(
                "UPDATE automations SET interval_minutes = ?1, version = version + 1
                 WHERE automation_id = ?2 AND version = ?3",
            )?;
            let changed = update.execute((arguments["interval_minutes"].as_i64(), id, expected))?;
            Ok((changed == 1).then(|| json!({ "automation_id": id })))
        }
    }
}

fn answer(mut result: Value, replayed: bool) -> String {
    result["status"] = "succeeded".into();
    result["replayed"] = replayed.into();
    result.to_string()
}
