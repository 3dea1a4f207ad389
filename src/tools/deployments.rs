//! Deployments: an effect outside the database, recorded here and carried out by the host's worker.

use crate::arguments::{Id, Key, Text};
use crate::engine::operation::State;
use crate::engine::operations::Status;
use crate::engine::outbox;
use crate::refusal::Failure;
use crate::storage::{Snapshot, Transaction};
use crate::tool::{Tool, Unkeyed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartDeployment {
    idempotency_key: Key,
    service: Text<200>,
    revision: Text<200>,
}

/// What the provider is sent.
#[derive(Serialize)]
struct Request<'a> {
    service: &'a str,
    revision: &'a str,
}

/// The operation as it was when it was recorded.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct DeploymentStarted {
    pub state: State,
    pub next_action: String,
}

impl Tool for StartDeployment {
    const NAME: &'static str = "start_deployment";
    const TITLE: &'static str = "Start deployment";
    const DESCRIPTION: &'static str = "Records the intent to deploy revision of service (1 to 200 characters each) and \
        answers at once with an operation_id; a worker carries it out. The answer, also when it is replayed, tells the \
        state at that moment: follow it with get_operation, and stop it with cancel_operation.";
    const PERMISSION: &'static str = "deploy";
    const OPEN_WORLD: bool = true;
    type Reply = DeploymentStarted;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<DeploymentStarted, Failure> {
        outbox::intend(transaction, &Request { service: self.service.as_str(), revision: self.revision.as_str() })?;
        let next_action = "Ask get_operation what has become of it.".to_owned();
        Ok(DeploymentStarted { state: State::Accepted, next_action })
    }

    fn resource_id(_: &DeploymentStarted) -> Option<&str> {
        None
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelOperation {
    operation_id: Id,
}

impl Unkeyed for CancelOperation {
    const NAME: &'static str = "cancel_operation";
    const TITLE: &'static str = "Cancel operation";
    const DESCRIPTION: &'static str = "Asks for a deployment of your workspace to be cancelled, by the operation_id that \
        start_deployment answered. Takes no key: asking twice is asking once. The answer says what is established now: \
        cancel_requested means that it may still succeed, and cancelled that it is known to have stopped.";
    const PERMISSION: &'static str = "deploy";
    const DESTRUCTIVE: bool = true;
    const OPEN_WORLD: bool = true;
    type Reply = Status;

    fn read(&self, database: &Snapshot<'_>) -> Result<Option<Status>, Failure> {
        outbox::find_cancelled::<StartDeployment>(database, &self.operation_id.text())
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Status, Failure> {
        outbox::cancel(transaction, &self.operation_id.text())
    }
}
