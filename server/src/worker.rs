//! The worker: claims what is due, carries it out at the provider, settles what it saw. Several may run at once; one that
//! dies is noticed when its leases are over, and what it had in hand counts as possibly sent.

use crate::owner::{Owner, OwnerError};
use crate::stop::Stop;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use host_example::types::State;
use host_example::{Claimed, Observation, ProviderContract, Task, observation_name, step_name};
use http::Provider;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};

pub mod http;
pub mod options;

/// How long after it was told to stop, or could not go on, a worker goes on trying to record what it saw. What it cannot
/// record is learnt again once the lease is over.
const GRACE: Duration = Duration::from_secs(10);

/// The permission that its work takes.
const DISPATCH: &str = "dispatch";

pub struct Worker {
    pub owner: Arc<Owner>,
    pub provider: Provider,
    pub contract: ProviderContract,
    /// The most attempts at a time, 1 to 64.
    pub concurrency: u32,
    /// The cap of one attempt.
    pub attempt: Duration,
    /// How long an attempt is this worker's alone; longer than the cap.
    pub lease: Duration,
    /// How often to look for what others have recorded.
    pub poll: Duration,
    /// Whether to end when nothing is due.
    pub once: bool,
    pub stop: Stop,
    /// When it began to finish what is in hand.
    pub ended: OnceLock<Instant>,
}

impl Worker {
    /// Works until it is told to stop, or once, until nothing is due. What is in hand is finished first.
    ///
    /// # Errors
    ///
    /// What cannot mend by itself, such as a database that is damaged or owned by another process; if it works once, also
    /// what might. What was in hand is finished, if it can be.
    pub async fn run(self) -> Result<(), OwnerError> {
        let worker = Arc::new(self);
        let mut in_hand = JoinSet::new();
        let result = worker.work(&mut in_hand).await;
        worker.ended.get_or_init(Instant::now);
        if !in_hand.is_empty() {
            info!(attempts = in_hand.len(), "finishing what is in hand");
        }
        while in_hand.join_next().await.is_some() {}
        result
    }

    async fn work(self: &Arc<Self>, in_hand: &mut JoinSet<()>) -> Result<(), OwnerError> {
        let mut pauses = pauses();
        loop {
            let mut wait = self.poll;
            let free = self.concurrency.saturating_sub(in_hand.len() as u32);
            if free > 0 {
                // Before the component looks at its clock, so that the lease is not longer than it says.
                let claimed_at = Instant::now();
                match self.claim(free).await {
                    Ok(Claimed { tasks, next_due }) => {
                        pauses = self::pauses();
                        let rest = next_due.map_or(self.poll, until);
                        // A claim looks at a part of what is due, if that is much.
                        if self.once && tasks.is_empty() && in_hand.is_empty() && !rest.is_zero() {
                            return Ok(());
                        }
                        // No sooner than in a moment, lest a clock that is finer than the component's has it ask in vain.
                        wait = wait.min(rest.max(Duration::from_millis(1)));
                        for task in tasks {
                            in_hand.spawn(Arc::clone(self).carry_out(task, claimed_at));
                        }
                    }
                    Err(error) if error.is_retryable() && !self.once => {
                        warn!(%error, "cannot claim what is due");
                        wait = pauses.next().unwrap_or(self.poll);
                    }
                    Err(error) => return Err(error),
                }
            }
            tokio::select! {
                () = self.stop.wait() => return Ok(()),
                Some(_) = in_hand.join_next() => {}
                () = sleep(wait) => {}
            }
        }
    }

    async fn claim(&self, limit: u32) -> Result<Claimed, OwnerError> {
        let (lease, contract) = (self.lease.as_millis() as u32, self.contract);
        self.owner.run(DISPATCH, move |instance| instance.claim(limit, lease, &contract)).await
    }

    /// One attempt, from its claim to its settlement.
    async fn carry_out(self: Arc<Self>, task: Task, claimed_at: Instant) {
        let (operation, attempt) = (task.operation_id.as_str(), task.attempt_id.as_str());
        let step = step_name(task.step);
        info!(operation, attempt, step, "begun");
        // Whoever takes over when the lease is over relies on it that nothing is sent any more.
        // By both clocks: one stands still while the machine sleeps, the other may be set.
        let is_over = claimed_at.elapsed() + self.attempt > self.lease || until(task.lease_until) < self.attempt;
        let observation = if is_over {
            Observation::NotSent("its lease was nearly over".to_owned())
        } else {
            self.provider.attempt(&task).await
        };
        let saw = observation_name(&observation);
        // What the provider says is not for the log; that it cannot be reached is.
        if let Observation::NotSent(why) = &observation {
            warn!(operation, attempt, step, why, "not sent");
        }
        for pause in pauses() {
            let (id, seen) = (task.attempt_id.clone(), observation.clone());
            match self.owner.run(DISPATCH, move |instance| instance.settle(&id, &seen)).await {
                Ok(now) => {
                    let exists = matches!(observation, Observation::Accepted(_) | Observation::Finished(_));
                    if exists && matches!(now.state, State::Failed | State::Cancelled) {
                        error!(
                            operation,
                            attempt,
                            step,
                            saw,
                            state = state_name(now.state),
                            "contradicts what is recorded"
                        );
                    }
                    info!(operation, attempt, step, saw, state = state_name(now.state), "settled");
                    return;
                }
                Err(error) if error.is_retryable() && !self.is_past_grace() => {
                    warn!(operation, attempt, step, saw, %error, "cannot settle yet");
                    sleep(pause).await;
                }
                Err(error) => {
                    error!(operation, attempt, step, saw, %error, "not settled: learnt again once its lease is over");
                    return;
                }
            }
        }
    }

    fn is_past_grace(&self) -> bool {
        self.ended.get().is_some_and(|ended| ended.elapsed() > GRACE)
    }
}

/// Between tries at the database.
fn pauses() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new().with_min_delay(Duration::from_millis(50));
    pauses.with_max_delay(Duration::from_secs(2)).with_jitter().without_max_times().build()
}

/// By the system's clock, which the component's times are taken from.
fn until(due: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(due).saturating_sub(now)
}

pub fn state_name(state: State) -> &'static str {
    match state {
        State::Accepted => "accepted",
        State::Running => "running",
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        State::CancelRequested => "cancel_requested",
        State::Cancelled => "cancelled",
        State::OutcomeUnknown => "outcome_unknown",
    }
}
