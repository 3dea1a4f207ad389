//! `work`: the worker, as a process of its own.

use crate::metrics::Metrics;
use crate::owner::{Owner, OwnerError};
use crate::stop;
use crate::worker::options::Outbox;
use clap::Args;
use host_example::commands::{Failure, Options};
use host_example::{Files, Limits};
use std::process::ExitCode;
use std::sync::Arc;

/// Carries out what the tools have recorded for a provider, and records what became of it. Several may work at once.
/// SIGTERM and SIGINT let it finish what it has in hand; a second one ends it at once.
///
/// The provider is sent COUNTERFOIL_PROVIDER_TOKEN, if it is set, as `Authorization: Bearer`.
#[derive(Args)]
pub struct Work {
    #[command(flatten)]
    outbox: Outbox,
    /// End as soon as nothing is due.
    #[arg(long)]
    once: bool,
}

impl Work {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        // Each attempt at a time has one thing to ask for.
        let most = self.outbox.concurrency as usize + 1;
        let outbox = self.outbox.prepare()?;
        let outbox = outbox.ok_or_else(|| Failure::usage("--provider URL and --contract CONTRACT are missing"))?;
        drop(options.existing()?);
        let host = options.host(Limits::default())?;
        let database = options.database()?.to_owned();
        let (owner, thread) = Owner::start(most, Arc::new(Metrics::default()), move |callers| {
            let files = Files::shared(&database).map_err(OwnerError::Open)?;
            let instance = host.instance(move |call| callers.get(call), files);
            instance.map_err(|error| OwnerError::Failed(format!("{error:#}")))
        })?;
        let owner = Arc::new(owner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let worker = outbox.worker(Arc::clone(&owner), self.once, stop::on_signal()?);
            let worked = worker.run().await.map_err(|error| match error {
                OwnerError::Refused(refusal) => Failure::refused(&refusal),
                error => error.into(),
            });
            // A second signal is heard while the database is closed.
            owner.end();
            let ended = tokio::task::spawn_blocking(|| thread.join()).await?;
            ended.map_err(|_| "the component's thread has ended by a bug")?;
            worked.map(|()| ExitCode::SUCCESS)
        })
    }
}
