//! What `wit/outbox.wit` promises. All of it requires `dispatch`, or is `denied`.

use super::bindings::exports::counterfoil::tools::outbox as wit;
use super::permitted;
use crate::Timestamp;
use crate::engine::operation::{Contract, Seen, Step};
use crate::engine::outbox::{self, Observation};
use crate::imports::types;
use crate::storage;
use crate::tool::Registry;

/// Stores and returns at most `limit` (1 to 64) tasks that are due, leased for `lease` (100 to 600,000) milliseconds.
///
/// # Errors
///
/// `invalid-argument`; or as for any call that cannot use the database. Nothing is handed out; after `unconfirmed`,
/// what may have been is noticed when its lease is over.
pub fn claim(
    registry: &'static Registry,
    limit: u32,
    lease: u32,
    contract: &wit::ProviderContract,
) -> Result<wit::Claimed, types::Refusal> {
    permitted("dispatch")?;
    let contract = Contract {
        deduplicates_for: contract.deduplicates_for,
        looks_up: contract.looks_up,
        absent_is_final_after: contract.absent_is_final_after,
        cancels: contract.cancels,
        clock_within: contract.clock_within,
    };
    let claimed = storage::with(&registry.schema, |database| outbox::claim(database, limit, lease, contract))?;
    Ok(wit::Claimed {
        tasks: claimed.tasks.into_iter().map(task).collect(),
        next_due: claimed.next_due.map(Timestamp::milliseconds),
    })
}

/// Records what an attempt saw. Repeating it changes nothing.
///
/// # Errors
///
/// `not-found` for an attempt that is unknown; `invalid-argument` for a resource's id out of its limits; or as for any
/// call that cannot use the database. Nothing is recorded, or after `unconfirmed` perhaps: repeat it.
pub fn settle(
    registry: &'static Registry,
    attempt_id: &str,
    observation: wit::Observation,
) -> Result<types::Operation, types::Refusal> {
    permitted("dispatch")?;
    let observation = observed(observation);
    let status = storage::with(&registry.schema, |database| outbox::settle(database, attempt_id, &observation))?;
    Ok(status.into())
}

/// Records a person's finding on an operation in `outcome-unknown`. Repeating it changes nothing.
///
/// # Errors
///
/// `not-found`; `version-conflict` if its outcome is known, and is another; `invalid-argument`; or as for any call that
/// cannot use the database. Nothing is recorded, or after `unconfirmed` perhaps: repeat it.
pub fn resolve(
    registry: &'static Registry,
    operation_id: &str,
    happened: bool,
    resource_id: Option<String>,
) -> Result<types::Operation, types::Refusal> {
    permitted("dispatch")?;
    let status =
        storage::with(&registry.schema, |database| outbox::resolve(database, operation_id, happened, resource_id))?;
    Ok(status.into())
}

fn task(task: outbox::Task) -> wit::Task {
    wit::Task {
        operation_id: task.operation_id,
        attempt_id: task.attempt_id,
        step: match task.step {
            Step::Submit => wit::Step::Submit,
            Step::Lookup => wit::Step::Lookup,
            Step::Cancel => wit::Step::Cancel,
        },
        provider_key: task.provider_key,
        request: task.request,
        lease_until: task.lease_until.milliseconds(),
        deadline: task.deadline.milliseconds(),
    }
}

fn observed(observation: wit::Observation) -> Observation {
    use wit::Observation as Wit;
    let (seen, text, resource_id) = match observation {
        Wit::NotSent(why) => (Seen::NotSent, why, None),
        Wit::Throttled(pause) => {
            (Seen::Throttled(pause), format!("The provider asked for a pause of {pause} ms."), None)
        }
        Wit::Rejected(why) => (Seen::Rejected, why, None),
        Wit::Accepted(id) => (Seen::Accepted, String::new(), Some(id)),
        Wit::Finished(id) => (Seen::Finished, String::new(), Some(id)),
        Wit::Failed(why) => (Seen::Failed, why, None),
        Wit::Cancelled => (Seen::Cancelled, String::new(), None),
        Wit::Absent => (Seen::Absent, String::new(), None),
        Wit::Unclear(why) => (Seen::Unclear, why, None),
    };
    Observation { seen, text, resource_id }
}
