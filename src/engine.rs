//! The walk of one call, and of a batch of them in one commit. This file alone knows its order:
//!
//! 1. caller: who is this, says the host, and may they use this tool: else `denied`
//! 2. arguments: parse, validate, canonical form: else `invalid_argument`
//! 3. begin: the write lock: else `busy`
//! 4. access: is the resource still the caller's: else `not_found`
//! 5. receipt of this workspace, subject, tool and key: expired is `key_expired`, of other arguments or another
//!    revision `key_conflict`, else it is the answer: a replay
//! 6. act: the tool's own SQL, with its own conditions: `version_conflict` and others
//! 7. receipt: the canonical arguments and the result
//! 8. commit: durable, then answer; else `unavailable`, or `unconfirmed`
//!
//! Where others use the file, 4 and 5 are also done before 3, so that a replay waits for nobody.
//!
//! Access comes before the receipt, since an old receipt must not outlive access. The tool's conditions come after it,
//! since a committed call has moved the version on, and its retry must be recognised.

use crate::Principal;
use crate::Timestamp;
use crate::arguments;
use crate::imports::caller;
use crate::refusal::{Failure, Refusal};
use crate::storage::{self, Begun, Database, Snapshot, Transaction};
use crate::tool::{Query, Registry, Tool, Unkeyed};
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

/// In SQL: an operation that has not ended for good.
macro_rules! unfinished {
    () => {
        "state IN ('accepted', 'running', 'cancel-requested', 'outcome-unknown')"
    };
}

pub mod listing;
pub mod next;
pub mod operation;
pub mod operations;
pub mod outbox;
pub mod receipts;
pub(crate) mod restoration;
pub mod retention;

use receipts::Receipt;

/// The engine's own tables. A component's schema lists them, in this order among its own; in one that has databases, what is
/// new stands at the end.
pub const MIGRATION_1: &str = include_str!("engine/receipts.sql");
/// The second of them.
pub const MIGRATION_2: &str = include_str!("engine/outbox.sql");

/// The most calls in one batch.
pub const MAX_BATCH: usize = 64;

/// What a call answers: the tool's own fields, and for one that changed something the receipt.
#[derive(Clone, Debug)]
pub struct Reply {
    pub receipt: Option<Receipt>,
    pub result: Map<String, Value>,
}

/// What a call came to.
pub type Outcome = Result<Reply, Refusal>;

/// Runs the calls, each a tool's name and its arguments in JSON, in their order and in one transaction, and answers
/// each. A refusal undoes its own call alone.
///
/// If the transaction is lost, every answer is that failure's: `unconfirmed` if it may have committed, else nothing of
/// the batch has. Only calls that were refused before the database was asked keep their own refusal.
#[must_use]
pub fn run(registry: &'static Registry, calls: &[(&str, &str)]) -> Vec<Outcome> {
    if calls.len() > MAX_BATCH {
        let refusal = format!("The batch has {} calls; at most {MAX_BATCH} are allowed.", calls.len());
        return vec![Err(Refusal::invalid_argument(refusal)); calls.len()];
    }
    let prepared: Vec<_> = (0..).zip(calls).map(|(number, call)| prepare(registry, number, *call)).collect();
    if prepared.iter().all(Result::is_err) {
        return prepared.into_iter().filter_map(Result::err).map(Err).collect();
    }
    let outcomes = storage::with(&registry.schema, |database| {
        let batch = Batch { registry, database };
        // An owner waits for nobody: to look first would be to look twice.
        if !database.is_owned()
            && let Some(outcomes) = batch.look(&prepared)?
        {
            return Ok(outcomes);
        }
        batch.act(&prepared)
    });
    outcomes.unwrap_or_else(|mut lost| {
        // By themselves the others may succeed.
        lost.retryable |= prepared.len() > 1;
        prepared.into_iter().map(|call| Err(call.err().unwrap_or_else(|| lost.clone()))).collect()
    })
}

/// A call that has passed steps 1 and 2.
pub(crate) trait Call {
    /// Steps 4 and 5. None if the call must act.
    fn look(&self, batch: &Batch<'_>) -> Result<Option<Reply>, Failure>;
    /// Steps 6 and 7.
    fn act(&self, batch: &Batch<'_>) -> Result<Reply, Failure>;
}

/// A call, or why it is refused before the database is asked.
pub(crate) type Prepared = Result<Box<dyn Call>, Refusal>;

/// Steps 1 and 2.
fn prepare(registry: &'static Registry, number: u32, (tool, json): (&str, &str)) -> Prepared {
    let principal = caller::current(number).ok_or_else(Refusal::no_caller)?;
    let entry = registry.find(tool).ok_or_else(Refusal::no_such_tool)?;
    if let Some(permission) = entry.permission {
        principal.require(permission)?;
    }
    (entry.parse)(principal, json)
}

pub(crate) struct Batch<'a> {
    registry: &'static Registry,
    database: &'a Database,
}

/// What a refusal can undo.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// All of it alone.
    Transaction,
    /// Its own call.
    Call,
}

impl Batch<'_> {
    /// Answers without the write lock if no call has to act: replays and reads see one state of the database.
    /// Otherwise none is answered, since what one call changes the next one sees.
    fn look(&self, calls: &[Prepared]) -> Result<Option<Vec<Outcome>>, Refusal> {
        let read = self.database.read()?;
        let mut outcomes = Vec::with_capacity(calls.len());
        for call in calls {
            outcomes.push(match call {
                Err(refusal) => Err(refusal.clone()),
                Ok(call) => {
                    let found = call.look(self);
                    if !read.is_alive() {
                        return Err(lost(found.err()));
                    }
                    match found {
                        Ok(None) => return Ok(None),
                        Ok(Some(reply)) => Ok(reply),
                        Err(failure) => Err(failure.into()),
                    }
                }
            });
        }
        drop(read);
        self.database.make_durable()?;
        Ok(Some(outcomes))
    }

    /// Steps 3 to 8. Nearly every refusal comes before its call has changed anything, and savepoints cost a quarter of a
    /// call. So there are none until one turns out to be needed: then the transaction is begun anew, with one for each call.
    fn act(&self, calls: &[Prepared]) -> Result<Vec<Outcome>, Refusal> {
        match self.transact(calls, Undo::Transaction)? {
            Some(outcomes) => Ok(outcomes),
            None => Ok(self.transact(calls, Undo::Call)?.unwrap_or_default()),
        }
    }

    /// Looks under the lock: where others use the file, one may have committed meanwhile. None if a call was refused after it
    /// had changed something, and could not be undone by itself.
    fn transact(&self, calls: &[Prepared], undo: Undo) -> Result<Option<Vec<Outcome>>, Refusal> {
        let write = self.database.write()?;
        let mut acted = false;
        let mut outcomes = Vec::with_capacity(calls.len());
        for call in calls {
            let outcome = match call {
                Err(refusal) => Err(refusal.clone()),
                Ok(call) => {
                    let before = write.changes();
                    let outcome = self.one(&write, call.as_ref(), undo, &mut acted)?;
                    if outcome.is_err() && undo == Undo::Transaction && calls.len() > 1 && write.changes() != before {
                        return Ok(None);
                    }
                    outcome
                }
            };
            outcomes.push(outcome);
        }
        if !acted {
            drop(write);
            self.database.make_durable()?;
            return Ok(Some(outcomes));
        }
        // Once this has succeeded, nothing may fail (contract rule C5).
        self.database.commit(write)?;
        Ok(Some(outcomes))
    }

    /// One call's part of the transaction. An error means that the transaction is lost, with all that it held.
    fn one(&self, write: &Begun<'_>, call: &dyn Call, undo: Undo, acted: &mut bool) -> Result<Outcome, Refusal> {
        let mut work = || match call.look(self)? {
            Some(replay) => Ok(replay),
            None => call.act(self).inspect(|_| *acted = true),
        };
        let result = match undo {
            Undo::Transaction => work(),
            Undo::Call => write.savepoint(work)?,
        };
        if write.is_alive() { Ok(result.map_err(Refusal::from)) } else { Err(lost(result.err())) }
    }

    fn snapshot<'a>(&'a self, principal: &'a Principal) -> Snapshot<'a> {
        Snapshot::new(self.database.connection(), principal, self.registry)
    }
}

/// Why a transaction is lost, in the words of SQLite's error if the call knows it. Whatever else the call came to follows from what
/// is not trusted any more, and is no answer to the others: a tool may have passed over the error, and so may SQLite.
fn lost(failure: Option<Failure>) -> Refusal {
    match failure {
        Some(Failure::Storage(error)) => error.into(),
        Some(Failure::Refused(_)) | None => Refusal::storage_failed(),
    }
}

struct ToolCall<T> {
    principal: Principal,
    tool: T,
    /// What calls under the same key are compared by.
    canonical: String,
}

pub(crate) fn parse_tool<T: Tool>(principal: Principal, json: &str) -> Prepared {
    let tool: T = arguments::parse(json)?;
    let canonical = receipts::canonical(&tool);
    Ok(Box::new(ToolCall { principal, tool, canonical }))
}

impl<T: Tool> Call for ToolCall<T> {
    fn look(&self, batch: &Batch<'_>) -> Result<Option<Reply>, Failure> {
        let snapshot = batch.snapshot(&self.principal);
        self.tool.access(&snapshot)?;
        receipts::replay(&snapshot, &self.tool, &self.canonical)
    }

    fn act(&self, batch: &Batch<'_>) -> Result<Reply, Failure> {
        let transaction = Transaction::new(batch.snapshot(&self.principal), Uuid::now_v7(), Timestamp::now());
        restoration::confirm_absence(&transaction)?;
        let reply = self.tool.act(&transaction)?;
        receipts::insert(&transaction, &self.tool, &self.canonical, &reply)
    }
}

struct UnkeyedCall<U> {
    principal: Principal,
    request: U,
}

pub(crate) fn parse_unkeyed<U: Unkeyed>(principal: Principal, json: &str) -> Prepared {
    Ok(Box::new(UnkeyedCall { principal, request: arguments::parse::<U>(json)? }))
}

/// Without a key there is no receipt: what the database says already is the answer.
impl<U: Unkeyed> Call for UnkeyedCall<U> {
    fn look(&self, batch: &Batch<'_>) -> Result<Option<Reply>, Failure> {
        let reply = self.request.read(&batch.snapshot(&self.principal))?;
        Ok(reply.map(|reply| Reply { receipt: None, result: object(&reply) }))
    }

    fn act(&self, batch: &Batch<'_>) -> Result<Reply, Failure> {
        let transaction = Transaction::new(batch.snapshot(&self.principal), Uuid::nil(), Timestamp::now());
        Ok(Reply { receipt: None, result: object(&self.request.act(&transaction)?) })
    }
}

struct QueryCall<Q> {
    principal: Principal,
    query: Q,
}

pub(crate) fn parse_query<Q: Query>(principal: Principal, json: &str) -> Prepared {
    Ok(Box::new(QueryCall { principal, query: arguments::parse::<Q>(json)? }))
}

impl<Q: Query> Call for QueryCall<Q> {
    fn look(&self, batch: &Batch<'_>) -> Result<Option<Reply>, Failure> {
        let reply = self.query.read(&batch.snapshot(&self.principal))?;
        Ok(Some(Reply { receipt: None, result: object(&reply) }))
    }

    fn act(&self, _: &Batch<'_>) -> Result<Reply, Failure> {
        unreachable!("a query is answered by looking")
    }
}

/// # Panics
///
/// If a tool's reply is not written as an object: a bug of its author.
fn object<R: Serialize>(reply: &R) -> Map<String, Value> {
    match serde_json::to_value(reply) {
        Ok(Value::Object(object)) => object,
        _ => panic!("a tool's reply must be written as a JSON object"),
    }
}
