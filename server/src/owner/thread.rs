//! The thread: takes what waits, makes batches, and makes the calls of a batch that failed one by one.

use super::{Callers, Job, OwnerError, Waiting};
use crate::metrics::{InState, Metrics};
use crate::worker::state_name;
use host_example::commands::operator;
use host_example::{Instance, Reply};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use uuid::Uuid;

/// The most calls in one commit (`wit/toolbox.wit`).
const MAX_BATCH: usize = 64;

/// How often operations are counted at most.
const COUNTING: Duration = Duration::from_secs(1);

pub type Make = Box<dyn FnMut(Callers) -> Result<Instance, OwnerError> + Send>;

pub struct Thread {
    callers: Callers,
    make: Make,
    current: Option<Instance>,
    metrics: Arc<Metrics>,
    /// When operations were last counted.
    counted: Instant,
}

impl Thread {
    pub fn new(make: Make, metrics: Arc<Metrics>) -> Thread {
        Thread { callers: Callers::default(), make, current: None, metrics, counted: Instant::now() }
    }

    /// Until it is told to end, or nobody is left who could hand in work.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        let mut next = jobs.recv().ok();
        while let Some(job) = next {
            self.metrics.queued.dec();
            next = match job {
                Job::Work(permission, work) => {
                    self.callers.set(vec![operator(permission)]);
                    work(self.instance());
                    None
                }
                Job::Call(first) => {
                    let (batch, next) = self.waiting(first, jobs);
                    self.answer(batch);
                    next
                }
                Job::End => break,
            }
            .or_else(|| self.wait(jobs));
        }
        self.close();
    }

    /// While nothing else is to be done, and a second has passed, operations are counted.
    fn wait(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        let Some(operations) = self.metrics.operations.clone() else { return jobs.recv().ok() };
        match jobs.recv_timeout(COUNTING.saturating_sub(self.counted.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            job => return job.ok(),
        }
        self.callers.set(vec![operator("maintain")]);
        match self.instance().map(Instance::count_operations) {
            Ok(Ok(Ok(counts))) => {
                for (state, count) in counts {
                    let in_state = operations.get_or_create(&InState { state: state_name(state) }).clone();
                    in_state.set(i64::try_from(count).unwrap_or(i64::MAX));
                }
            }
            // The figures stay as they were. What is wrong is told when a call meets it.
            _ => debug!("operations are not counted"),
        }
        self.counted = Instant::now();
        // Nobody else changes them.
        jobs.recv().ok()
    }

    /// All the calls that wait, up to a batch, and the work that comes after them.
    fn waiting(&self, first: Waiting, jobs: &Receiver<Job>) -> (Vec<Waiting>, Option<Job>) {
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH {
            match jobs.try_recv() {
                Ok(Job::Call(call)) => {
                    self.metrics.queued.dec();
                    batch.push(call);
                }
                Ok(other) => return (batch, Some(other)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        (batch, None)
    }

    fn answer(&mut self, mut batch: Vec<Waiting>) {
        batch.retain(|waiting| waiting.turn.begin());
        let mut replies = Vec::new();
        if batch.len() > 1 {
            match self.attempt(&batch) {
                Ok(made) => replies = made,
                Err(error) => warn!(%error, calls = batch.len(), "a batch failed: its calls are made one by one"),
            }
        }
        let mut replies = replies.into_iter();
        for waiting in batch {
            let reply = match replies.next() {
                Some(reply) if !is_doubtful(&reply) => Ok(reply),
                _ => self.make_alone(&waiting),
            };
            // Whoever has gone finds the answer by its key.
            drop(waiting.answer.send(reply));
        }
    }

    /// Under its key it acts at most once, however often it is made.
    fn make_alone(&mut self, call: &Waiting) -> Result<Reply, OwnerError> {
        let call = std::slice::from_ref(call);
        let first = self.attempt(call);
        let is_spent = self.current.as_ref().is_none_or(Instance::is_spent);
        let reply = match first {
            Ok(replies) if !is_spent || !replies.iter().any(is_doubtful) => Ok(replies),
            _ => self.attempt(call),
        };
        reply?.pop().ok_or_else(|| OwnerError::Failed("the component answered no reply to a call".to_owned()))
    }

    /// In one commit, once.
    fn attempt(&mut self, calls: &[Waiting]) -> Result<Vec<Reply>, OwnerError> {
        self.callers.set(calls.iter().map(|waiting| waiting.call.caller.clone()).collect());
        let invocations: Vec<_> = calls.iter().map(|waiting| waiting.call.invocation.clone()).collect();
        let attempts: Vec<_> = calls.iter().map(|_| Uuid::new_v4()).collect();
        for (waiting, attempt) in calls.iter().zip(&attempts) {
            debug!(call = %waiting.call.id, %attempt, batch = calls.len(), "attempt");
        }
        let begun = Instant::now();
        let replies = self.instance()?.attempt(&invocations, &attempts);
        self.metrics.batch_seconds.observe(begun.elapsed().as_secs_f64());
        self.metrics.batch_calls.observe(calls.len() as f64);
        replies.map_err(|trap| OwnerError::Failed(format!("{trap:#}")))
    }

    fn instance(&mut self) -> Result<&mut Instance, OwnerError> {
        if self.current.as_ref().is_none_or(Instance::is_spent) {
            // The one before lets go of the database first.
            self.current = None;
            self.current = Some((self.make)(self.callers.clone())?);
        }
        self.current.as_mut().ok_or(OwnerError::Ended)
    }

    /// So that the file alone is a copy. What is not closed is recovered by whoever opens it next.
    fn close(&mut self) {
        self.callers.set(vec![operator("maintain")]);
        match self.current.as_mut().filter(|instance| !instance.is_spent()).map(Instance::close) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(refusal))) => warn!(error = refusal.message, "the database was not closed"),
            Some(Err(trap)) => warn!(error = %format_args!("{trap:#}"), "the database was not closed"),
        }
    }
}

/// Whether another try may tell more: storage failed, or the transaction that others shared.
fn is_doubtful(reply: &Reply) -> bool {
    #[derive(Deserialize)]
    struct Code<'a> {
        code: &'a str,
    }
    reply.refused
        && serde_json::from_str(&reply.body)
            .is_ok_and(|Code { code }| matches!(code, "busy" | "unavailable" | "unconfirmed"))
}
