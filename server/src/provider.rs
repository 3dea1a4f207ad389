//! A provider of deployments that keeps its contract, or breaks it on command: what a worker is tested against.
//!
//! It deploys nothing, knows no workspaces and asks for no credentials: it listens to its own machine alone. Its rows are
//! the truth about effects that a test compares with what the worker came to believe.

pub mod api;
pub mod faults;
pub mod store;
pub mod transport;

use crate::contract::Contract;
use faults::{Fate, Fault, Faults};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::Store;

/// What does not change while it runs.
pub struct Settings {
    pub contract: Contract,
    /// How long a deployment runs once it is taken.
    pub finish_after: Duration,
}

/// What all requests share.
pub struct Provider {
    settings: Settings,
    faults: Mutex<Faults>,
    random: Mutex<fastrand::Rng>,
    store: Mutex<Store>,
}

impl Provider {
    pub fn new(settings: Settings, faults: Faults, seed: u64, store: Store) -> Arc<Self> {
        Arc::new(Provider {
            settings,
            faults: Mutex::new(faults),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            store: Mutex::new(store),
        })
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    /// Decides what goes wrong with the next request.
    fn draw(&self) -> Fate {
        self.faults().draw(&mut lock(&self.random))
    }

    /// Runs `work` where it may wait for the disk.
    ///
    /// # Errors
    ///
    /// What failed, for people. The transaction may have committed if the disk failed in the middle of it.
    async fn with_store<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Store) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let provider = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&mut lock(&provider.store)));
        done.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// How long a key is known after it was first received, in milliseconds. None if keys are not compared.
    fn keys_known_for(&self) -> Option<u64> {
        keys_known_for(&self.settings.contract, &self.faults())
    }
}

/// The contract counts from the first sending to the last, and the provider from receipt to receipt. So that no key is
/// forgotten early, it adds a second, and what the last may be held under way. It adds no more than that, so that a worker
/// that sends too late is found out.
fn keys_known_for(contract: &Contract, faults: &Faults) -> Option<u64> {
    let promised = contract.deduplicates_for?;
    if let Some(known) = faults.duration(Fault::ForgetKeys) {
        return Some(milliseconds(known));
    }
    let under_way = faults.duration(Fault::UnderWay).unwrap_or_default();
    Some(promised.saturating_add(1_000).saturating_add(milliseconds(under_way)))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970-01-01T00:00:00Z, by the wall clock: rows outlive the process. It may step either way.
fn now() -> u64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// What the locks guard is whole at every moment: a panic elsewhere leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_for_longer_than_promised_by_what_a_request_may_be_under_way() {
        for (contract, faults, known) in [
            ("none", "none", None),
            ("none", "forget-keys=1s", None),
            ("deduplicates-for=1m", "none", Some(61_000)),
            ("deduplicates-for=1m", "under-way=0.1:5s", Some(66_000)),
            ("deduplicates-for=1m", "under-way=0.1:5s,forget-keys=300ms", Some(300)),
            ("deduplicates-for=1m", "forget-keys=1h", Some(3_600_000)),
        ] {
            let (contract, faults) = (contract.parse().unwrap(), faults.parse().unwrap());
            assert_eq!(keys_known_for(&contract, &faults), known, "{contract} {faults}");
        }
    }
}
