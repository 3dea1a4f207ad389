//! The thread: takes what waits, makes batches, and makes the calls of a batch that failed one by one.

use super::made::Made;
use super::{Callers, Instance, Job, OwnerError, Waiting};
use crate::metrics::{InState, Metrics};
use crate::worker::state_name;
use host_example::commands::operator;
use host_example::{Invocation, Principal, Reply};
use serde::Deserialize;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{Level, debug, enabled, warn};
use uuid::Uuid;
use wasmtime::Trap;

/// The most calls in one commit (`wit/toolbox.wit`).
const MAX_BATCH: usize = 64;

/// How often operations are counted at most.
const COUNTING: Duration = Duration::from_secs(1);

/// For how long the thread looks for more before it sleeps. To be woken takes up to half as long, in which whoever has just been
/// answered may have come again.
const LINGER: Duration = Duration::from_micros(100);

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
                    self.callers.set(vec![Arc::new(operator(permission))]);
                    work(self.instance());
                    None
                }
                Job::Call(first, place) => {
                    drop(place);
                    let (batch, next) = waiting(first, jobs);
                    let (mut retries, mut others) = (Vec::new(), Vec::new());
                    for waiting in batch {
                        let hash = self.made.hash(&waiting.caller, &waiting.invocation);
                        if self.made.knows(hash) { &mut retries } else { &mut others }.push((waiting, hash));
                    }
                    // A retry waits for the commit that it came into, not for the next one as well.
                    self.answer(retries);
                    self.answer(others);
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
        let operations = self.metrics.operations.clone();
        let is_due = operations.is_some() && self.counted.elapsed() >= COUNTING;
        let begun = Instant::now();
        while !is_due && begun.elapsed() < LINGER {
            match jobs.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
        let Some(operations) = operations else { return jobs.recv().ok() };
        match jobs.recv_timeout(COUNTING.saturating_sub(self.counted.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            job => return job.ok(),
        }
        self.callers.set(vec![Arc::new(operator("maintain"))]);
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

    /// Makes the calls together, and remembers the hashes of those that succeed.
    fn answer(&mut self, calls: Vec<(Waiting, u64)>) {
        let mut batch = Batch::default();
        let mut asked = Vec::with_capacity(calls.len());
        for (Waiting { id, caller, invocation, turn, answer }, hash) in calls {
            if turn.begin() {
                batch.ids.push(id);
                batch.callers.push(caller);
                batch.invocations.push(invocation);
                asked.push((answer, hash));
            }
        }
        let (mut replies, mut was_cut_off) = (Vec::new(), false);
        if asked.len() > 1 {
            match self.attempt(&batch, 0..asked.len()) {
                Ok(made) => {
                    // What has no reply has committed with the others.
                    was_cut_off = made.len() < asked.len();
                    replies = made;
                }
                Err(error) => {
                    was_cut_off = true;
                    warn!(%error, calls = asked.len(), "a batch failed: its calls are made one by one");
                }
            }
        }
        let mut replies = replies.into_iter();
        for (call, (answer, hash)) in asked.into_iter().enumerate() {
            let reply = match replies.next() {
                Some(reply) => match code(&reply) {
                    Some("busy" | "unavailable") => self.make_alone(&batch, call, false),
                    Some("unconfirmed") => self.make_alone(&batch, call, true),
                    _ => Ok(reply),
                },
                None => self.make_alone(&batch, call, was_cut_off),
            };
            if let Ok(Reply { refused: false, .. }) = reply {
                self.made.remember(hash);
            }
            // Whoever has gone finds the answer by its key.
            drop(answer.send(reply));
        }
    }

    /// Under its key it acts at most once, however often it is made. It is `in_doubt` if it may have committed already.
    fn make_alone(&mut self, batch: &Batch, call: usize, mut in_doubt: bool) -> Result<Reply, OwnerError> {
        let mut tried = self.attempt(batch, call..call + 1);
        let may_mend = match &tried {
            Ok(replies) => self.is_spent() && replies.iter().any(|reply| code(reply).is_some_and(is_uncertain)),
            // What computes too long would do so again.
            Err(Attempted { was_interrupted, .. }) => !was_interrupted && !in_doubt,
        };
        if may_mend {
            in_doubt |=
                tried.as_ref().map_or(true, |replies| replies.iter().any(|reply| code(reply) == Some("unconfirmed")));
            tried = self.attempt(batch, call..call + 1);
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

    /// Some of the calls in one commit, once.
    fn attempt(&mut self, batch: &Batch, calls: Range<usize>) -> Result<Vec<Reply>, Attempted> {
        self.callers.set(batch.callers[calls.clone()].to_vec());
        // Where nobody looks, neither here nor in the host, none are made.
        let is_logged = enabled!(Level::DEBUG) || enabled!(target: "host_example::instance", Level::DEBUG);
        let logged = if is_logged { calls.len() } else { 0 };
        let attempts: Vec<_> = (0..logged).map(|_| Uuid::new_v4()).collect();
        for (id, attempt) in batch.ids[calls.clone()].iter().zip(&attempts) {
            debug!(call = %id, %attempt, batch = calls.len(), "attempt");
        }
        let begun = Instant::now();
        let instance = self.instance().map_err(|error| Attempted { error, was_interrupted: false })?;
        let replies = instance.attempt(&batch.invocations[calls.clone()], &attempts);
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
        self.callers.set(vec![Arc::new(operator("maintain"))]);
        match self.current.as_mut().filter(|instance| !instance.is_spent()).map(I::close) {
            Some(Ok(Ok(()))) => return true,
            None => {}
            Some(Ok(Err(refusal))) => warn!(error = refusal.message, "the database is not closed"),
            Some(Err(trap)) => warn!(error = %format_args!("{trap:#}"), "the database is not closed"),
        }
        false
    }
}

/// Calls that are made together: what the instance needs of each.
#[derive(Default)]
struct Batch {
    ids: Vec<Uuid>,
    callers: Vec<Arc<Principal>>,
    invocations: Vec<Invocation>,
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
