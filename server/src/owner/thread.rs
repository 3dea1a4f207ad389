//! The thread: takes what waits, makes batches, and makes the calls of a batch that failed one by one.

use super::made::Made;
use super::{Callers, Instance, Job, OwnerError, Waiting};
use crate::metrics::{InState, Metrics};
use crate::worker::state_name;
use host_example::Reply;
use host_example::commands::operator;
use serde::Deserialize;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tracing::{Level, debug, enabled, warn};
use uuid::Uuid;
use wasmtime::Trap;

/// The most calls in one commit (`wit/toolbox.wit`).
const MAX_BATCH: usize = 64;

/// How often operations are counted at most.
const COUNTING: Duration = Duration::from_secs(1);

pub type Make<I> = Box<dyn FnMut(Callers) -> Result<I, OwnerError>>;

pub struct Thread<I> {
    callers: Callers,
    make: Make<I>,
    current: Option<I>,
    made: Made,
    metrics: Arc<Metrics>,
    /// When operations were last counted.
    counted: Instant,
}

impl<I: Instance> Thread<I> {
    pub fn new(make: Make<I>, metrics: Arc<Metrics>) -> Thread<I> {
        let (callers, made) = (Callers::default(), Made::default());
        Thread { callers, make, current: None, made, metrics, counted: Instant::now() }
    }

    /// Until it is told to end, or nobody is left who could hand in work.
    /// Says whether the database is closed.
    pub fn run(mut self, jobs: &Receiver<Job<I>>) -> bool {
        let mut next = jobs.recv().ok();
        while let Some(job) = next {
            next = match job {
                Job::Work(permission, work, place) => {
                    drop(place);
                    self.callers.set(vec![operator(permission)]);
                    work(self.instance());
                    None
                }
                Job::Call(first, place) => {
                    drop(place);
                    let (batch, next) = waiting(first, jobs);
                    // A retry waits for the commit that it came into, not for the next one as well.
                    let (retries, others) = batch.into_iter().partition(|waiting| self.made.knows(&waiting.call));
                    self.answer(retries, false);
                    self.answer(others, true);
                    next
                }
                Job::End => break,
            }
            .or_else(|| self.wait(jobs));
        }
        self.close()
    }

    /// While nothing else is to be done, and a second has passed, operations are counted.
    fn wait(&mut self, jobs: &Receiver<Job<I>>) -> Option<Job<I>> {
        let Some(operations) = self.metrics.operations.clone() else { return jobs.recv().ok() };
        match jobs.recv_timeout(COUNTING.saturating_sub(self.counted.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            job => return job.ok(),
        }
        self.callers.set(vec![operator("maintain")]);
        match self.instance().map(I::count_operations) {
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

    fn answer(&mut self, mut batch: Vec<Waiting>, is_new: bool) {
        batch.retain(|waiting| waiting.turn.begin());
        let (mut replies, mut was_cut_off) = (Vec::new(), false);
        if batch.len() > 1 {
            match self.attempt(&batch) {
                Ok(made) => replies = made,
                Err(error) => {
                    was_cut_off = true;
                    warn!(%error, calls = batch.len(), "a batch failed: its calls are made one by one");
                }
            }
        }
        let mut replies = replies.into_iter();
        for waiting in batch {
            let reply = match replies.next() {
                Some(reply) => match code(&reply) {
                    Some("busy" | "unavailable") => self.make_alone(&waiting, false),
                    Some("unconfirmed") => self.make_alone(&waiting, true),
                    _ => Ok(reply),
                },
                None => self.make_alone(&waiting, was_cut_off),
            };
            if is_new && reply.as_ref().is_ok_and(|reply| !reply.refused) {
                self.made.remember(&waiting.call);
            }
            // Whoever has gone finds the answer by its key.
            drop(waiting.answer.send(reply));
        }
    }

    /// Under its key it acts at most once, however often it is made. It is `in_doubt` if it may have committed already.
    fn make_alone(&mut self, call: &Waiting, mut in_doubt: bool) -> Result<Reply, OwnerError> {
        let calls = std::slice::from_ref(call);
        let mut tried = self.attempt(calls);
        let may_mend = match &tried {
            Ok(replies) => self.is_spent() && replies.iter().any(|reply| code(reply).is_some_and(is_uncertain)),
            // What computes too long would do so again.
            Err(Attempted { was_interrupted, .. }) => !was_interrupted && !in_doubt,
        };
        if may_mend {
            in_doubt |=
                tried.as_ref().map_or(true, |replies| replies.iter().any(|reply| code(reply) == Some("unconfirmed")));
            tried = self.attempt(calls);
        }
        let none = || OwnerError::Failed("the component answered no reply to a call".to_owned());
        let reply = tried
            .map_err(|attempted| match attempted.error {
                error if in_doubt => OwnerError::Failed(error.to_string()),
                error => error,
            })?
            .pop()
            .ok_or_else(none)?;
        match code(&reply) {
            // A refusal of this attempt says nothing about the one before.
            Some(code) if in_doubt && code != "unconfirmed" && is_uncertain(code) => {
                Err(OwnerError::Failed(format!("an attempt was cut off, and the next one refused as {code}")))
            }
            _ => Ok(reply),
        }
    }

    fn is_spent(&self) -> bool {
        self.current.as_ref().is_none_or(I::is_spent)
    }

    /// In one commit, once.
    fn attempt(&mut self, calls: &[Waiting]) -> Result<Vec<Reply>, Attempted> {
        self.callers.set(calls.iter().map(|waiting| waiting.call.caller.clone()).collect());
        let invocations: Vec<_> = calls.iter().map(|waiting| waiting.call.invocation.clone()).collect();
        // Where nobody looks, none are made.
        let logged = if enabled!(Level::DEBUG) { calls.len() } else { 0 };
        let attempts: Vec<_> = (0..logged).map(|_| Uuid::new_v4()).collect();
        for (waiting, attempt) in calls.iter().zip(&attempts) {
            debug!(call = %waiting.call.id, %attempt, batch = calls.len(), "attempt");
        }
        let begun = Instant::now();
        let instance = self.instance().map_err(|error| Attempted { error, was_interrupted: false })?;
        let replies = instance.attempt(&invocations, &attempts);
        self.metrics.batch_seconds.observe(begun.elapsed().as_secs_f64());
        self.metrics.batch_calls.observe(calls.len() as f64);
        replies.map_err(|trap| Attempted {
            was_interrupted: trap.downcast_ref() == Some(&Trap::Interrupt),
            error: OwnerError::Failed(format!("{trap:#}")),
        })
    }

    fn instance(&mut self) -> Result<&mut I, OwnerError> {
        if self.is_spent() {
            // The one before lets go of the database first.
            self.current = None;
            self.current = Some((self.make)(self.callers.clone())?);
        }
        self.current.as_mut().ok_or(OwnerError::Ended)
    }

    /// So that the file alone is a copy. What is not closed is recovered by whoever opens it next.
    fn close(&mut self) -> bool {
        self.callers.set(vec![operator("maintain")]);
        match self.current.as_mut().filter(|instance| !instance.is_spent()).map(I::close) {
            Some(Ok(Ok(()))) => return true,
            None => {}
            Some(Ok(Err(refusal))) => warn!(error = refusal.message, "the database is not closed"),
            Some(Err(trap)) => warn!(error = %format_args!("{trap:#}"), "the database is not closed"),
        }
        false
    }
}

/// An attempt that ended without replies.
struct Attempted {
    error: OwnerError,
    /// Whether it had used up its computing time.
    was_interrupted: bool,
}

impl fmt::Display for Attempted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// All the calls that wait, up to a batch, and the work that comes after them.
fn waiting<I>(first: Waiting, jobs: &Receiver<Job<I>>) -> (Vec<Waiting>, Option<Job<I>>) {
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH {
        match jobs.try_recv() {
            Ok(Job::Call(call, place)) => {
                drop(place);
                batch.push(call);
            }
            Ok(other) => return (batch, Some(other)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    (batch, None)
}

/// Of a refusal.
fn code(reply: &Reply) -> Option<&str> {
    #[derive(Deserialize)]
    struct Code<'a> {
        code: &'a str,
    }
    let body = reply.refused.then(|| serde_json::from_str::<Code<'_>>(&reply.body).ok())?;
    body.map(|body| body.code)
}

/// Whether such a refusal can come although an earlier attempt has committed: storage failed, or the receipt was not looked
/// for.
fn is_uncertain(code: &str) -> bool {
    matches!(code, "busy" | "unavailable" | "unconfirmed" | "denied" | "not_found")
}
