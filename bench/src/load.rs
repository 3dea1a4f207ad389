//! Callers at work for a while, each with one call at a time.

use crate::contenders::{Contender, Result};
use crate::work::Caller;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// What one round of a contender came to.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Answered calls a second.
    pub rate: f64,
    /// How long each took, sorted.
    pub took: Vec<Duration>,
    /// Calls that had no answer, or a wrong one.
    pub failed: usize,
}

impl Round {
    /// The time that so many of a hundred calls did not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        let index = (self.took.len() as f64 * percent / 100.0) as usize;
        self.took.get(index.min(self.took.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Runs all callers at once. They are given back, for a further round.
pub fn run(
    runtime: &Handle,
    contender: &Contender,
    callers: Vec<Caller>,
    time: Duration,
) -> Result<(Round, Vec<Caller>)> {
    let start = Instant::now();
    let until = start + time;
    let ends: Vec<_> = if contender.blocks() {
        let threads: Vec<_> = callers
            .into_iter()
            .map(|caller| {
                let (runtime, contender) = (runtime.clone(), contender.clone());
                std::thread::spawn(move || runtime.block_on(one(contender, caller, until)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a caller panicked")).collect::<Vec<_>>()
    } else {
        let tasks: Vec<_> =
            callers.into_iter().map(|caller| runtime.spawn(one(contender.clone(), caller, until))).collect();
        tasks.into_iter().map(|task| runtime.block_on(task).map_err(|_| "a caller panicked")).collect()
    };
    let mut round = Round::default();
    let mut callers = Vec::new();
    for end in ends {
        let (caller, took, failed) = end?;
        callers.push(caller);
        round.took.extend(took);
        round.failed += failed;
    }
    // Until the last has its answer.
    round.rate = round.took.len() as f64 / start.elapsed().as_secs_f64();
    round.took.sort_unstable();
    Ok((round, callers))
}

async fn one(contender: Contender, mut caller: Caller, until: Instant) -> (Caller, Vec<Duration>, usize) {
    let (mut took, mut failed) = (Vec::new(), 0);
    while Instant::now() < until {
        let call = caller.next();
        let start = Instant::now();
        match contender.call(call).await {
            Ok(answer) if caller.accepts(&answer) => took.push(start.elapsed()),
            _ => failed += 1,
        }
    }
    (caller, took, failed)
}
