//! The component on a thread of its own, the only one that uses its instance: whoever needs it hands in work and waits for
//! the answer, without blocking a thread that serves others. Calls that wait at the same time share a commit.
//!
//! | What goes wrong | What follows |
//! |---|---|
//! | the queue is full | refused at once: nothing was done |
//! | a call's time is over before its turn | refused: nothing was done. Once it is in a batch, nothing cuts it short |
//! | a batch traps, or cannot commit, or loses its transaction | each call is made again by itself, under its own key |
//! | so does a call by itself | made again once, on a new instance |
//! | whoever asked has gone | what was accepted is done all the same |

use host_example::commands::operator;
use host_example::types::Refusal;
use host_example::{Instance, Invocation, OpenError, Principal, Reply};
use serde::Deserialize;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;
use tracing::warn;

/// Why work was not done.
#[derive(Debug)]
pub enum OwnerError {
    /// The component refused it.
    Refused(Refusal),
    /// The instance trapped, or there could be none: whatever was asked for happened or not.
    Failed(String),
    /// The database cannot be opened.
    Open(OpenError),
    /// Too much is waiting, or waited for too long: nothing was done.
    Busy,
    /// It is stopping, or the thread is gone by a bug.
    Ended,
}

impl OwnerError {
    /// Whether the same work can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            OwnerError::Refused(refusal) => refusal.retryable,
            OwnerError::Failed(_) | OwnerError::Open(OpenError::Busy(_)) | OwnerError::Busy => true,
            OwnerError::Open(_) | OwnerError::Ended => false,
        }
    }
}

impl fmt::Display for OwnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnerError::Refused(refusal) => write!(f, "{} {}", refusal.message, refusal.next_action),
            OwnerError::Failed(why) => f.write_str(why),
            OwnerError::Open(error) => error.fmt(f),
            OwnerError::Busy => f.write_str("too much is waiting for the database"),
            OwnerError::Ended => f.write_str("the component's thread has ended"),
        }
    }
}

impl std::error::Error for OwnerError {}

/// Who makes each call of what the instance is doing.
#[derive(Clone, Default)]
pub struct Callers(Arc<Mutex<Vec<Principal>>>);

impl Callers {
    pub fn get(&self, call: u32) -> Option<Principal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(call as usize).cloned()
    }

    fn set(&self, callers: Vec<Principal>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = callers;
    }
}

type Work = Box<dyn FnOnce(Result<&mut Instance, OwnerError>) + Send>;

enum Job {
    Call(Call),
    /// What only an operator or a worker asks for, with its permission.
    Work(&'static str, Work),
}

struct Call {
    caller: Principal,
    invocation: Invocation,
    /// When whoever waits for it has no use for it any more.
    until: Instant,
    answer: oneshot::Sender<Result<Reply, OwnerError>>,
}

/// Dropped, it ends the thread once all that was handed in is done.
pub struct Owner {
    queue: SyncSender<Job>,
}

/// The most calls in one commit (`wit/toolbox.wit`).
const MAX_BATCH: usize = 64;

impl Owner {
    /// Starts the thread. `instance` makes an instance, called by those callers, when there is none or the last one is spent.
    /// At most so many calls and works wait.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(
        most: usize,
        instance: impl FnMut(Callers) -> Result<Instance, OwnerError> + Send + 'static,
    ) -> std::io::Result<(Owner, JoinHandle<()>)> {
        let (queue, jobs) = sync_channel(most);
        let thread = Thread { callers: Callers::default(), make: Box::new(instance), current: None };
        let thread = std::thread::Builder::new().name("component".to_owned()).spawn(move || thread.run(&jobs))?;
        Ok((Owner { queue }, thread))
    }

    /// Does `work` on the instance, with one permission of an operator's, after all that was handed in before.
    ///
    /// # Errors
    ///
    /// See [`OwnerError`] for what holds after each.
    pub async fn run<T: Send + 'static>(
        &self,
        permission: &'static str,
        work: impl FnOnce(&mut Instance) -> wasmtime::Result<Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, OwnerError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |instance| {
            let done = instance.and_then(|instance| match work(instance) {
                Ok(result) => result.map_err(OwnerError::Refused),
                Err(trap) => Err(OwnerError::Failed(format!("{trap:#}"))),
            });
            // Nobody waits any more: what was done stays done.
            drop(answer.send(done));
        });
        self.hand_in(Job::Work(permission, work))?;
        answered.await.map_err(|_| OwnerError::Ended)?
    }

    /// Makes a call, in one commit with others that wait. It begins before `until`, or not at all.
    ///
    /// # Errors
    ///
    /// See [`OwnerError`]. A refusal is a reply, not an error.
    pub async fn call(&self, caller: Principal, invocation: Invocation, until: Instant) -> Result<Reply, OwnerError> {
        let (answer, answered) = oneshot::channel();
        self.hand_in(Job::Call(Call { caller, invocation, until, answer }))?;
        answered.await.map_err(|_| OwnerError::Ended)?
    }

    fn hand_in(&self, job: Job) -> Result<(), OwnerError> {
        self.queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => OwnerError::Busy,
            TrySendError::Disconnected(_) => OwnerError::Ended,
        })
    }
}

type Make = Box<dyn FnMut(Callers) -> Result<Instance, OwnerError> + Send>;

struct Thread {
    callers: Callers,
    make: Make,
    current: Option<Instance>,
}

impl Thread {
    fn run(mut self, jobs: &Receiver<Job>) {
        let mut next = jobs.recv().ok();
        while let Some(job) = next {
            next = match job {
                Job::Work(permission, work) => {
                    self.callers.set(vec![operator(permission)]);
                    work(self.instance());
                    None
                }
                Job::Call(first) => {
                    let (batch, next) = waiting(first, jobs);
                    self.answer(batch);
                    next
                }
            }
            .or_else(|| jobs.recv().ok());
        }
    }

    fn instance(&mut self) -> Result<&mut Instance, OwnerError> {
        if self.current.as_ref().is_none_or(Instance::is_spent) {
            // The one before lets go of the database first.
            self.current = None;
            self.current = Some((self.make)(self.callers.clone())?);
        }
        self.current.as_mut().ok_or(OwnerError::Ended)
    }

    fn answer(&mut self, batch: Vec<Call>) {
        let now = Instant::now();
        let (batch, late): (Vec<_>, Vec<_>) = batch.into_iter().partition(|call| call.until > now);
        for call in late {
            drop(call.answer.send(Err(OwnerError::Busy)));
        }
        let mut replies = Vec::new();
        if batch.len() > 1 {
            match self.make_calls(&batch) {
                Ok(made) => replies = made,
                Err(error) => warn!(%error, calls = batch.len(), "a batch failed: its calls are made one by one"),
            }
        }
        let mut replies = replies.into_iter();
        for call in batch {
            let reply = match replies.next() {
                Some(reply) if !is_doubtful(&reply) => Ok(reply),
                _ => self.make_alone(&call),
            };
            drop(call.answer.send(reply));
        }
    }

    /// Under its key it acts at most once, however often it is made.
    fn make_alone(&mut self, call: &Call) -> Result<Reply, OwnerError> {
        let first = self.make_calls(std::slice::from_ref(call));
        let is_spent = self.current.as_ref().is_none_or(Instance::is_spent);
        let reply = match first {
            Ok(replies) if !is_spent || !replies.iter().any(is_doubtful) => Ok(replies),
            _ => self.make_calls(std::slice::from_ref(call)),
        };
        reply?.pop().ok_or_else(|| OwnerError::Failed("the component answered no reply to a call".to_owned()))
    }

    fn make_calls(&mut self, calls: &[Call]) -> Result<Vec<Reply>, OwnerError> {
        self.callers.set(calls.iter().map(|call| call.caller.clone()).collect());
        let invocations: Vec<_> = calls.iter().map(|call| call.invocation.clone()).collect();
        self.instance()?.call(&invocations).map_err(|trap| OwnerError::Failed(format!("{trap:#}")))
    }
}

/// All the calls that wait, up to a batch, and the work that comes after them.
fn waiting(first: Call, jobs: &Receiver<Job>) -> (Vec<Call>, Option<Job>) {
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH {
        match jobs.try_recv() {
            Ok(Job::Call(call)) => batch.push(call),
            Ok(work) => return (batch, Some(work)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    (batch, None)
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
