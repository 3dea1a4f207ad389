//! One instance and its calls, with what of them stands in the log.

use crate::bindings::Serving;
use crate::component::State;
use crate::limits;
use crate::types::{self, Operation, Refusal};
use crate::{
    Claimed, Description, Invocation, ListedOperation, Observation, ProviderContract, Reply, Restoration, Step,
};
use serde::Deserialize;
use uuid::Uuid;
use wasmtime::{Result, Store, bail, ensure};

/// One instance. Dropping it at any moment is safe: what it did not answer is settled by making the call again, with
/// the same key, on another.
pub struct Instance {
    store: Store<State>,
    exports: Serving,
    has_trapped: bool,
}

impl Instance {
    pub(crate) fn new(store: Store<State>, exports: Serving) -> Instance {
        Instance { store, exports, has_trapped: false }
    }

    /// Whether it trapped or its storage failed: drop it and make a new one. Every further call fails or is refused. It
    /// holds no lock on a shared database any more; one that it owns it holds until it is dropped.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.store.data().is_spent
    }

    /// The tools, as agents are shown them.
    ///
    /// # Errors
    ///
    /// A trap, as for [`Instance::call`].
    pub fn describe(&mut self) -> Result<Vec<Description>> {
        self.run(|store, exports| exports.counterfoil_tools_toolbox().call_describe(store))
    }

    /// Runs the calls in order and in one commit, and answers each.
    ///
    /// # Errors
    ///
    /// A trap: all of the calls committed or none did. Make them again, one at a time, with the same keys, on a new
    /// instance.
    pub fn call(&mut self, calls: &[Invocation]) -> Result<Vec<Reply>> {
        // Where nobody looks, none are made.
        let logged = if tracing::enabled!(tracing::Level::DEBUG) { calls.len() } else { 0 };
        self.attempt(calls, &(0..logged).map(|_| Uuid::new_v4()).collect::<Vec<_>>())
    }

    /// The same, with an id for each call, under which it stands in the log at level debug: an attempt is one execution, an
    /// operation is what all attempts with one key come to.
    ///
    /// # Errors
    ///
    /// As for [`Instance::call`].
    pub fn attempt(&mut self, calls: &[Invocation], attempts: &[Uuid]) -> Result<Vec<Reply>> {
        for (attempt, call) in attempts.iter().zip(calls) {
            tracing::debug!(%attempt, tool = log_name(&call.tool), "call");
        }
        let replies = self.run(|store, exports| exports.counterfoil_tools_toolbox().call_call(store, calls))?;
        let logged = if tracing::enabled!(tracing::Level::DEBUG) { attempts } else { &[] };
        for (attempt, reply) in logged.iter().zip(&replies) {
            let Logged { status, operation_id, replayed, code } = serde_json::from_str(&reply.body).unwrap_or_default();
            tracing::debug!(%attempt, operation = operation_id, status, replayed, code, "answer");
        }
        Ok(replies)
    }

    /// One call of one tool.
    ///
    /// # Errors
    ///
    /// A trap: the call committed or not. Make it again, with the same key, on a new instance.
    pub fn call_one(&mut self, tool: &str, arguments: &str) -> Result<Reply> {
        let call = Invocation { tool: tool.to_owned(), arguments: arguments.to_owned() };
        match self.call(&[call])?.pop() {
            Some(reply) => Ok(reply),
            None => bail!("the component answered no reply to a call"),
        }
    }

    /// Takes on at most `limit` (1 to 64) tasks that are due, for `lease_ms` (100 to 600,000 milliseconds). They are
    /// stored before they are returned. The caller needs `dispatch`.
    ///
    /// # Errors
    ///
    /// A trap: tasks may have been leased, and are due again when their lease is over.
    pub fn claim(
        &mut self,
        limit: u32,
        lease_ms: u32,
        contract: &ProviderContract,
    ) -> Result<Result<Claimed, Refusal>> {
        let claimed = self
            .run(|store, exports| exports.counterfoil_tools_outbox().call_claim(store, limit, lease_ms, *contract))?;
        for task in claimed.iter().flat_map(|claimed| &claimed.tasks) {
            let step = step_name(task.step);
            tracing::debug!(operation = task.operation_id, attempt = task.attempt_id, step, "claim");
        }
        Ok(claimed)
    }

    /// Records what an attempt saw; the caller needs `dispatch`.
    ///
    /// # Errors
    ///
    /// A trap: it was recorded or not. Record it again, on a new instance: repeating it changes nothing.
    pub fn settle(&mut self, attempt_id: &str, observation: &Observation) -> Result<Result<Operation, Refusal>> {
        let settled =
            self.run(|store, exports| exports.counterfoil_tools_outbox().call_settle(store, attempt_id, observation))?;
        if let Ok(operation) = &settled {
            let observed = observation_name(observation);
            tracing::debug!(operation = operation.operation_id, attempt = attempt_id, observed, "settle");
        }
        Ok(settled)
    }

    /// Records a person's finding on an operation whose outcome is unknown: whether it happened, and the id of what it
    /// made. The caller needs `dispatch`.
    ///
    /// # Errors
    ///
    /// A trap, as for [`Instance::settle`].
    pub fn resolve(
        &mut self,
        operation_id: &str,
        happened: bool,
        resource_id: Option<&str>,
    ) -> Result<Result<Operation, Refusal>> {
        self.run(|store, exports| {
            exports.counterfoil_tools_outbox().call_resolve(store, operation_id, happened, resource_id)
        })
    }

    /// Turns at most `limit` (1 to 10,000) expired receipts into tombstones, and says how many; the caller needs
    /// `maintain`.
    ///
    /// # Errors
    ///
    /// A trap: they were or not. Repeating it is safe.
    pub fn sweep(&mut self, limit: u32) -> Result<Result<u32, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_sweep(store, limit))
    }

    /// What is wrong with the database; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap.
    pub fn verify(&mut self) -> Result<Result<Vec<String>, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_verify(store))
    }

    /// Moves the log into the database file; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap. Nothing committed is lost.
    pub fn checkpoint(&mut self) -> Result<Result<(), Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_checkpoint(store))
    }

    /// Closes the database cleanly; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap. Nothing committed is lost.
    pub fn close(&mut self) -> Result<Result<(), Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_close(store))
    }

    /// Marks the database as restored from an older copy; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap: it is marked or not. Repeating it changes nothing.
    pub fn mark_restored(&mut self) -> Result<Result<Restoration, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_mark_restored(store))
    }

    /// What the database is marked with, if it is marked as restored; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap.
    pub fn restored(&mut self) -> Result<Result<Option<Restoration>, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_restored(store))
    }

    /// Takes the mark away and returns what it held for; the caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap: the mark is gone or not. Repeating it is safe; the second answer is none.
    pub fn accept_restored(&mut self) -> Result<Result<Option<Restoration>, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_accept_restored(store))
    }

    /// At most `limit` (1 to 1,000) operations whose effect is outside the database, in `state` or in any, the oldest first:
    /// those after the one whose id is `after`, or from the first on. The caller needs `maintain`.
    ///
    /// # Errors
    ///
    /// A trap.
    pub fn list_operations(
        &mut self,
        state: Option<types::State>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Result<Vec<ListedOperation>, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_list_operations(store, state, after, limit))
    }

    /// How many operations whose effect is outside the database there are in each state, each state once and in their
    /// order; the caller needs `maintain`. Cheap enough to be asked again and again.
    ///
    /// # Errors
    ///
    /// A trap.
    pub fn count_operations(&mut self) -> Result<Result<Vec<(types::State, u64)>, Refusal>> {
        self.run(|store, exports| exports.counterfoil_tools_upkeep().call_count_operations(store))
    }

    fn run<T>(&mut self, call: impl FnOnce(&mut Store<State>, &Serving) -> Result<T>) -> Result<T> {
        // After what is no trap of the component's own, such as a reply that is too long, wasmtime would let it go on.
        ensure!(!self.has_trapped, "an earlier call has trapped");
        self.store.data_mut().begin_call();
        let result = call(&mut self.store, &self.exports);
        self.has_trapped = result.is_err();
        let state = self.store.data_mut();
        state.end_call();
        state.is_spent |= result.is_err();
        if state.is_spent {
            // With its files go their locks.
            state.table = limits::table();
        }
        result
    }
}

/// What of a reply may stand in a log: no argument, result or key.
#[derive(Default, Deserialize)]
struct Logged {
    status: String,
    operation_id: Option<String>,
    #[serde(default)]
    replayed: bool,
    code: Option<String>,
}

/// A tool's name comes from outside: anything that does not look like one might be anything.
fn log_name(tool: &str) -> &str {
    let is_name = tool.len() <= 64 && tool.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_name { tool } else { "?" }
}

/// The step, as it stands in logs.
#[must_use]
pub fn step_name(step: Step) -> &'static str {
    match step {
        Step::Submit => "submit",
        Step::Lookup => "lookup",
        Step::Cancel => "cancel",
    }
}

/// The observation's kind, as it stands in logs: what it says may be anything.
#[must_use]
pub fn observation_name(observation: &Observation) -> &'static str {
    match observation {
        Observation::NotSent(_) => "not-sent",
        Observation::Throttled(_) => "throttled",
        Observation::Rejected(_) => "rejected",
        Observation::Accepted(_) => "accepted",
        Observation::Finished(_) => "finished",
        Observation::Failed(_) => "failed",
        Observation::Cancelled => "cancelled",
        Observation::Absent => "absent",
        Observation::Unclear(_) => "unclear",
    }
}
