//! `call`: one tool, until it is answered or the budget is used up.

use crate::retry::{self, Outcome, Verdict};
use backon::{BackoffBuilder, ExponentialBuilder};
use clap::Args;
use host_example::commands::{Call as Once, Failure, Options, Prepared};
use host_example::{Files, Host, Limits, Principal, Reply};
use serde::Deserialize;
use serde_json::Value;
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
    code: String,
    retryable: bool,
    retry_after_ms: Option<u64>,
}

impl Call {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let caller = options.principal()?;
        let database = options.database()?;
        drop(options.shared()?);
        let mut call = self.call.prepare()?;
        let mut host = options.host(Limits::default())?;
        call.ensure_key(&mut host.instance(|_| None, options.shared()?)?)?;

        // The component is compiled by now, which the budget has no part in.
        let start = Instant::now();
        let left = || self.budget.saturating_sub(start.elapsed());
        let mut pauses = ExponentialBuilder::new().with_jitter().with_min_delay(Duration::from_millis(200)).build();
        let (mut attempt, mut in_doubt) = (0, false);
        loop {
            attempt += 1;
            host.set_limits(within(left()));
            let result = match once(&host, &caller, database, &call) {
                Err(Failure(_, error)) if in_doubt => return Err(doubtful(&call, attempt, &error.to_string())),
                result => result?,
            };
            let outcome = outcome(&result);
            let pause = pauses.next().unwrap_or(Duration::from_secs(1));
            match retry::next(outcome, attempt, self.attempts, left(), pause) {
                Verdict::Again { after } => {
                    in_doubt |= outcome.is_in_doubt();
                    info!(attempt, ?after, "no answer yet: made again with the same key");
                    sleep(after);
                }
                _ => {
                    return match result {
                        Err(trap) => Err(doubtful(&call, attempt, &format!("{trap:#}"))),
                        Ok(reply) if reply.refused && in_doubt => {
                            self.call.print(&reply)?;
                            Err(doubtful(&call, attempt, "the last attempt was refused"))
                        }
                        Ok(reply) => {
                            let code = self.call.print(&reply)?;
                            if matches!(outcome, Outcome::Refused { retryable: true, .. }) {
                                hand_over(&format!("gave up after {attempt} attempts"), &call);
                            }
                            Ok(code)
                        }
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
        Ok(Advice { code, retryable, retry_after_ms }) if reply.refused => Outcome::Refused {
            retryable,
            retry_after: retry_after_ms.map(Duration::from_millis),
            in_doubt: code == "unconfirmed",
        },
        _ => Outcome::Answered,
    }
}

/// What is left of the budget caps an attempt; the first has some time in any case.
fn within(left: Duration) -> Limits {
    let default = Limits::default();
    let left = left.max(Duration::from_millis(100));
    Limits { computing: ATTEMPT.min(left), lock_wait: default.lock_wait.min(left), ..default }
}

/// An attempt got no answer, and none that came later tells what became of it.
fn doubtful(call: &Prepared, attempts: u32, error: &str) -> Failure {
    let text = format!("an attempt (of {attempts}) may have committed or not: {error}");
    Failure(1, with_key(&text, call).into())
}

/// Whoever takes over needs the key, so that the last word carries it.
fn hand_over(text: &str, call: &Prepared) {
    drop(writeln!(io::stderr(), "{}", with_key(text, call)));
}

fn with_key(text: &str, call: &Prepared) -> String {
    let arguments = serde_json::from_str::<Value>(&call.arguments).ok();
    match arguments.as_ref().and_then(|arguments| arguments["idempotency_key"].as_str()) {
        Some(key) => format!("{text}: repeat the same call, with idempotency_key {key}"),
        None => format!("{text}: repeat the same call"),
    }
}
