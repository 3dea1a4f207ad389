//! The options of a worker, wherever it works.

use super::Worker;
use super::http::Provider;
use crate::contract::Contract;
use crate::owner::Owner;
use crate::stop::Stop;
use clap::Args;
use host_example::ProviderContract;
use host_example::commands::Failure;
use reqwest::Url;
use std::env;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[derive(Args)]
pub struct Outbox {
    /// Where the provider takes requests; it is asked at URL?client_reference=ID and told to cancel at URL/cancel.
    #[arg(long, value_name = "URL", requires = "contract")]
    provider: Option<Url>,
    /// What the provider is known to do: `deduplicates-for=24h`, `looks-up`, `absent-is-final-after=1m`, `cancels`,
    /// `clock-within=1s` (this host's clock), separated by commas, or `none`. Each is an assumption on which the
    /// guarantee rests: leave out what you would not vouch for.
    #[arg(long, requires = "provider")]
    contract: Option<Contract>,
    /// The cap of one attempt, 1ms to 5m.
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = humantime::parse_duration)]
    attempt_timeout: Duration,
    /// How long an attempt is one worker's alone, up to 10m and at least twice its cap: what a worker that dies has in hand
    /// is taken up by another after that [default: three times the cap of an attempt].
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
    /// The most attempts at a time.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub concurrency: u32,
    /// How often to look for new work, 1ms to 1h.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    poll: Duration,
}

/// What the options come to, checked.
pub struct Prepared {
    provider: Provider,
    contract: ProviderContract,
    concurrency: u32,
    attempt: Duration,
    lease: Duration,
    poll: Duration,
}

impl Outbox {
    /// None if no provider is named.
    ///
    /// # Errors
    ///
    /// If they do not fit together, or the provider's token is none: wrong usage.
    pub fn prepare(self) -> Result<Option<Prepared>, Failure> {
        let (Some(provider), Some(contract)) = (self.provider, self.contract) else { return Ok(None) };
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
        if !["http", "https"].contains(&provider.scheme()) {
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
        let has_figures = contract.deduplicates_for.or(contract.absent_is_final_after).is_some();
        if contract.clock_within.is_none() && has_figures {
            tracing::warn!(
                "nobody vouches for this host's clock (clock-within): no figure of the contract can be used"
            );
        }
        drop(rustls::crypto::ring::default_provider().install_default());
        let provider = Provider::new(provider, token.as_deref(), attempt)
            .map_err(|error| Failure::usage(format!("cannot use the provider: {error}")))?;
        let contract = ProviderContract {
            deduplicates_for: contract.deduplicates_for,
            looks_up: contract.looks_up,
            absent_is_final_after: contract.absent_is_final_after,
            cancels: contract.cancels,
            clock_within: contract.clock_within,
        };
        Ok(Some(Prepared { provider, contract, concurrency: self.concurrency, attempt, lease, poll }))
    }
}

impl Prepared {
    /// A worker on the owner's database, until it is told to stop, or, if `once`, until nothing is due.
    pub fn worker(self, owner: Arc<Owner>, once: bool, stop: Stop) -> Worker {
        let Prepared { provider, contract, concurrency, attempt, lease, poll } = self;
        Worker { owner, provider, contract, concurrency, attempt, lease, poll, once, stop, ended: OnceLock::new() }
    }
}
