//! `call`: one tool, until it is answered or the budget is used up.

use crate::retry::{self, Outcome, Verdict};
use backon::{BackoffBuilder, ExponentialBuilder};
use clap::Args;
use host_example::commands::{Call as Once, Failure, Options, Prepared};
use host_example::{Files, Host, Limits, Principal, Reply};
use serde::Deserialize;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tracing::info;

/// Calls a tool and prints its reply, one JSON object, on stdout. Where a retry can help, the call is made again with the
/// same key, after a random pause.
// The group that clap would make has the name of the other one.
#[derive(Args)]
#[group(skip)]
pub struct Call {
    #[command(flatten)]
    call: Once,
    /// For how long at most, all attempts and pauses together. 0s: one attempt.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    budget: Duration,
    /// The most attempts.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
}

/// The cap of one attempt's computing time.
const ATTEMPT: Duration = Duration::from_secs(8);

/// What of a reply the policy looks at.
#[derive(Deserialize)]
struct Advice {
    retryable: bool,
    retry_after_ms: Option<u64>,
}

impl Call {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let start = Instant::now();
        let left = || self.budget.saturating_sub(start.elapsed());
        let caller = options.principal()?;
        let database = options.database()?;
        drop(options.shared()?);
        let mut call = self.call.prepare()?;
        let mut host = options.host(Limits::default())?;
        call.ensure_key(&mut host.instance(|_| None, options.shared()?)?)?;

        let mut pauses = ExponentialBuilder::new().with_jitter().with_min_delay(Duration::from_millis(200)).build();
        let mut attempt = 0;
        loop {
            attempt += 1;
            host.set_limits(within(left()));
            let result = once(&host, &caller, database, &call)?;
            let pause = pauses.next().unwrap_or(Duration::from_secs(1));
            match retry::next(outcome(&result), attempt, self.attempts, left(), pause) {
                Verdict::Again { after } => {
                    info!(attempt, ?after, "no answer yet: made again with the same key");
                    sleep(after);
                }
                Verdict::Done => return self.call.print(&result?),
                Verdict::GiveUp => {
                    report(&call, attempt);
                    return match result {
                        Ok(reply) => self.call.print(&reply),
                        Err(trap) => Err(Failure::uncertain(&trap)),
                    };
                }
            }
        }
    }
}

/// One attempt, on an instance of its own. An error is one that no retry mends; a trap is not.
fn once(host: &Host, caller: &Principal, database: &Path, call: &Prepared) -> Result<wasmtime::Result<Reply>, Failure> {
    let (files, caller) = (Files::shared(database)?, caller.clone());
    Ok(call.attempt(&mut host.instance(move |_| Some(caller.clone()), files)?))
}

fn outcome(result: &wasmtime::Result<Reply>) -> Outcome {
    let Ok(reply) = result else { return Outcome::Lost };
    match serde_json::from_str(&reply.body) {
        Ok(Advice { retryable, retry_after_ms }) if reply.refused => {
            Outcome::Refused { retryable, retry_after: retry_after_ms.map(Duration::from_millis) }
        }
        _ => Outcome::Answered,
    }
}

/// What is left of the budget caps an attempt; the first has some time in any case.
fn within(left: Duration) -> Limits {
    let default = Limits::default();
    let left = left.max(Duration::from_millis(100));
    Limits { computing: ATTEMPT.min(left), lock_wait: default.lock_wait.min(left), ..default }
}

/// The last word carries the key: whoever takes over needs it.
fn report(call: &Prepared, attempts: u32) {
    let key = serde_json::from_str::<serde_json::Value>(&call.arguments).ok();
    let key = key.as_ref().and_then(|arguments| arguments["idempotency_key"].as_str()).unwrap_or("(none)");
    let text = format!("gave up after {attempts} attempts: repeat the same call later, with idempotency_key {key}");
    drop(writeln!(io::stderr(), "{text}"));
}
