//! What a component of the world `serving` exports beside its tools. Nobody calls it.

use crate::Component;
use crate::bindings::exports::counterfoil::tools::{outbox, upkeep};
use outbox::{Claimed, Observation, Operation, ProviderContract, Refusal};
use upkeep::{ListedOperation, Restoration, State};

impl outbox::Guest for Component {
    fn claim(_: u32, _: u32, _: ProviderContract) -> Result<Claimed, Refusal> {
        unreachable!()
    }

    fn settle(_: String, _: Observation) -> Result<Operation, Refusal> {
        unreachable!()
    }

    fn resolve(_: String, _: bool, _: Option<String>) -> Result<Operation, Refusal> {
        unreachable!()
    }
}

impl upkeep::Guest for Component {
    fn sweep(_: u32) -> Result<u32, Refusal> {
        unreachable!()
    }

    fn verify() -> Result<Vec<String>, Refusal> {
        unreachable!()
    }

    fn checkpoint() -> Result<(), Refusal> {
        unreachable!()
    }

    fn close() -> Result<(), Refusal> {
        unreachable!()
    }

    fn mark_restored() -> Result<Restoration, Refusal> {
        unreachable!()
    }

    fn restored() -> Result<Option<Restoration>, Refusal> {
        unreachable!()
    }

    fn accept_restored() -> Result<Option<Restoration>, Refusal> {
        unreachable!()
    }

    fn list_operations(_: Option<State>, _: Option<String>, _: u32) -> Result<Vec<ListedOperation>, Refusal> {
        unreachable!()
    }

    fn count_operations() -> Result<Vec<(State, u64)>, Refusal> {
        unreachable!()
    }
}
