//! The deployments as typed functions: with `serving` and `tools`, the world `service`.

use super::{act, call, typed};
use crate::engine::operations::Status;
use crate::imports::types;
use crate::tool::{Tool, Unkeyed};
use crate::tools::deployments::{CancelOperation, DeploymentStarted, StartDeployment};
use bindings::exports::counterfoil::tools::deployments::Guest;
use serde_json::json;

mod bindings {
    #![allow(unsafe_code, clippy::all, clippy::pedantic, reason = "generated from the WIT")]

    wit_bindgen::generate!({
        path: "wit",
        world: "deploying",
        with: { "counterfoil:tools/types@0.1.0": crate::imports::types },
    });
}

struct Component;

bindings::export!(Component with_types_in bindings);

impl Guest for Component {
    fn start_deployment(
        idempotency_key: String,
        service: String,
        revision: String,
    ) -> Result<types::OperationStarted, types::Refusal> {
        let arguments = json!({ "idempotency_key": idempotency_key, "service": service, "revision": revision });
        let (DeploymentStarted { state, next_action }, receipt): (_, types::Receipt) =
            act::<StartDeployment>(&arguments)?;
        let operation = types::Operation {
            operation_id: receipt.operation_id.clone(),
            tool: StartDeployment::NAME.to_owned(),
            state: state.into(),
            since: receipt.committed_at,
            attempts: 0,
            resource_id: None,
            detail: String::new(),
            next_action,
        };
        Ok(types::OperationStarted { operation, receipt })
    }

    fn cancel_operation(operation_id: String) -> Result<types::Operation, types::Refusal> {
        let status: Status = typed(call(CancelOperation::NAME, &json!({ "operation_id": operation_id }))?.result)?;
        Ok(status.into())
    }
}
