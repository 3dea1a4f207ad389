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

#[cfg(test)]
mod tests;
mod thread;

use crate::metrics::Metrics;
use host_example::types::Refusal;
use host_example::{Instance, Invocation, OpenError, Principal, Reply};
use std::fmt;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{AcqRel, Acquire},
};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use uuid::Uuid;

/// Why there is no answer.
#[derive(Debug)]
pub enum OwnerError {
    /// The component refused the work.
    Refused(Refusal),
    /// The instance trapped, or there could be none: whatever was asked for happened or not.
    Failed(String),
    /// The database cannot be opened.
    Open(OpenError),
    /// Too much is waiting, or waited for too long: nothing was done.
    Busy,
    /// It is being done, and takes long: it happens or not.
    Slow,
    /// The program is stopping: nothing was done.
    Ended,
}

impl OwnerError {
    /// Whether the same work can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            OwnerError::Refused(refusal) => refusal.retryable,
            OwnerError::Failed(_) | OwnerError::Open(OpenError::Busy(_)) | OwnerError::Busy | OwnerError::Slow => true,
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
            OwnerError::Slow => f.write_str("the database takes long"),
            OwnerError::Ended => f.write_str("the program is stopping"),
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

/// What a caller asks for. The id is the transport's request's, for the log.
pub struct Call {
    pub id: Uuid,
    pub caller: Principal,
    pub invocation: Invocation,
}

type Work = Box<dyn FnOnce(Result<&mut Instance, OwnerError>) + Send>;

enum Job {
    Call(Waiting),
    /// What only an operator or a worker asks for, with its permission.
    Work(&'static str, Work),
    End,
}

/// A call that was accepted.
struct Waiting {
    call: Call,
    turn: Turn,
    answer: oneshot::Sender<Result<Reply, OwnerError>>,
}

/// Settles between two threads whether a call begins, or its caller has given it up: the first to say so.
#[derive(Clone, Default)]
struct Turn(Arc<AtomicU8>);

impl Turn {
    const BEGUN: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn begin(&self) -> bool {
        self.0.compare_exchange(0, Turn::BEGUN, AcqRel, Acquire).is_ok()
    }

    fn give_up(&self) -> bool {
        self.0.compare_exchange(0, Turn::GIVEN_UP, AcqRel, Acquire).is_ok()
    }
}

pub struct Owner {
    queue: SyncSender<Job>,
    metrics: Arc<Metrics>,
    turn: Duration,
    answer: Duration,
}

/// For how long a call waits for its turn.
const TURN: Duration = Duration::from_millis(2_500);
/// By when its caller has an answer in any case. Clients give up after 5 s or more.
const ANSWER: Duration = Duration::from_millis(4_500);

impl Owner {
    /// Starts the thread. `instance` makes an instance, called by those callers, when there is none or the last one is spent.
    /// At most so many calls and works wait.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(
        most: usize,
        metrics: Arc<Metrics>,
        instance: impl FnMut(Callers) -> Result<Instance, OwnerError> + Send + 'static,
    ) -> std::io::Result<(Owner, JoinHandle<()>)> {
        let (queue, jobs) = sync_channel(most);
        let thread = thread::Thread::new(Box::new(instance), Arc::clone(&metrics));
        let thread = std::thread::Builder::new().name("component".to_owned()).spawn(move || thread.run(&jobs))?;
        Ok((Owner { queue, metrics, turn: TURN, answer: ANSWER }, thread))
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

    /// Makes a call, in one commit with others that wait. It begins soon or not at all; begun, nothing cuts it short, whether
    /// anybody waits for this or not.
    ///
    /// # Errors
    ///
    /// See [`OwnerError`]. A refusal is a reply, not an error.
    pub async fn call(&self, call: Call) -> Result<Reply, OwnerError> {
        let accepted = tokio::time::Instant::now();
        let (answer, mut answered) = oneshot::channel();
        let turn = Turn::default();
        self.hand_in(Job::Call(Waiting { call, turn: turn.clone(), answer }))?;
        let answer = match timeout_at(accepted + self.turn, &mut answered).await {
            Err(_) if turn.give_up() => return Err(OwnerError::Busy),
            Err(_) => timeout_at(accepted + self.answer, answered).await.map_err(|_| OwnerError::Slow)?,
            Ok(answer) => answer,
        };
        answer.map_err(|_| OwnerError::Ended)?
    }

    /// Ends the thread once all that was handed in before is done. Later work is refused.
    pub fn end(&self) {
        // It fails if the thread has ended.
        drop(self.queue.send(Job::End));
    }

    fn hand_in(&self, job: Job) -> Result<(), OwnerError> {
        // Counted first, lest it is taken before it is counted.
        self.metrics.queued.inc();
        self.queue.try_send(job).map_err(|error| {
            self.metrics.queued.dec();
            match error {
                TrySendError::Full(_) => OwnerError::Busy,
                TrySendError::Disconnected(_) => OwnerError::Ended,
            }
        })
    }
}
