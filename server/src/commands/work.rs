//! `work`: the worker, as a process of its own.

use crate::contract::Contract;
use crate::owner::{Owner, OwnerError};
use crate::worker::Worker;
use crate::worker::http::Provider;
use clap::Args;
use host_example::commands::{Failure, Options};
use host_example::{Files, Limits, ProviderContract};
use reqwest::Url;
use std::env;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Carries out what the tools have recorded for a provider, and records what became of it. Several may work at once.
/// SIGTERM and SIGINT let it finish what it has in hand; a second one ends it at once.
///
/// The provider is sent COUNTERFOIL_PROVIDER_TOKEN, if it is set, as `Authorization: Bearer`.
#[derive(Args)]
pub struct Work {
    /// Where the provider takes requests; it is asked at URL?client_reference=ID and told to cancel at URL/cancel.
    #[arg(long, value_name = "URL")]
    provider: Url,
    /// What the provider is known to do: `deduplicates-for=24h`, `looks-up`, `absent-is-final-after=1m`, `cancels`,
    /// `clock-within=1s` (this host's clock), separated by commas, or `none`. Each is an assumption on which the
    /// guarantee rests: leave out what you would not vouch for.
    #[arg(long)]
    contract: Contract,
    /// End as soon as nothing is due.
    #[arg(long)]
    once: bool,
    /// The cap of one attempt, 1ms to 5m.
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = humantime::parse_duration)]
    attempt_timeout: Duration,
    /// How long an attempt is one worker's alone, up to 10m and at least twice its cap: what a worker that dies has in hand
    /// is taken up by another after that [default: three times the cap of an attempt].
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
    /// The most attempts at a time.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// How often to look for new work, 1ms to 1h.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    poll: Duration,
}

impl Work {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let range = |name: &str, value: Duration, most: Duration| {
            let fits = (Duration::from_millis(1)..=most).contains(&value);
            let error = || Failure::usage(format!("--{name}: expected 1ms to {}", humantime::format_duration(most)));
            fits.then_some(value).ok_or_else(error)
        };
        let attempt = range("attempt-timeout", self.attempt_timeout, Duration::from_secs(300))?;
        let poll = range("poll", self.poll, Duration::from_secs(3600))?;
        let lease = self.lease.unwrap_or((attempt * 3).clamp(Duration::from_secs(1), Duration::from_secs(600)));
        if lease < attempt * 2 || !(Duration::from_millis(100)..=Duration::from_secs(600)).contains(&lease) {
            return Err(Failure::usage("--lease: expected 100ms to 10m, and at least twice --attempt-timeout"));
        }
        if !["http", "https"].contains(&self.provider.scheme()) {
            return Err(Failure::usage("--provider: expected a URL that begins with http:// or https://"));
        }
        let token = match env::var("COUNTERFOIL_PROVIDER_TOKEN") {
            Ok(token) if token.is_empty() => {
                return Err(Failure::usage("COUNTERFOIL_PROVIDER_TOKEN is empty: set a token, or unset it"));
            }
            Ok(token) => Some(token),
            Err(env::VarError::NotPresent) => None,
            Err(_) => return Err(Failure::usage("COUNTERFOIL_PROVIDER_TOKEN is no UTF-8")),
        };
        let has_figures = self.contract.deduplicates_for.or(self.contract.absent_is_final_after).is_some();
        if self.contract.clock_within.is_none() && has_figures {
            tracing::warn!(
                "nobody vouches for this host's clock (clock-within): no figure of the contract can be used"
            );
        }
        drop(rustls::crypto::ring::default_provider().install_default());
        let provider = Provider::new(self.provider, token.as_deref(), attempt)
            .map_err(|error| Failure::usage(format!("cannot use the provider: {error}")))?;

        drop(options.existing()?);
        let host = options.host(Limits::default())?;
        let database = options.database()?.to_owned();
        // Each attempt at a time has one thing to ask for.
        let (owner, _) = Owner::start(self.concurrency as usize + 1, move |callers| {
            let files = Files::shared(&database).map_err(OwnerError::Open)?;
            let instance = host.instance(move |call| callers.get(call), files);
            instance.map_err(|error| OwnerError::Failed(format!("{error:#}")))
        })?;
        let owner = Arc::new(owner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (told, stop) = watch::channel(false);
            let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            tokio::spawn(async move {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                told.send_replace(true);
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                // Who is told twice leaves what is in hand: it is noticed when its lease is over.
                std::process::exit(1);
            });
            let contract = ProviderContract {
                deduplicates_for: self.contract.deduplicates_for,
                looks_up: self.contract.looks_up,
                absent_is_final_after: self.contract.absent_is_final_after,
                cancels: self.contract.cancels,
                clock_within: self.contract.clock_within,
            };
            let (once, concurrency) = (self.once, self.concurrency);
            let ended = OnceLock::new();
            let worker = Worker { owner, provider, contract, concurrency, attempt, lease, poll, once, stop, ended };
            match worker.run().await {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(OwnerError::Refused(refusal)) => Err(Failure::refused(&refusal)),
                Err(error) => Err(error.into()),
            }
        })
    }
}
