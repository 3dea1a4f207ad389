//! The component on a thread of its own, the only one that uses its instance: whoever needs it hands in work and waits for
//! the answer, without blocking a thread that serves others. Calls that wait at the same time share a commit, and retries
//! among them go before it.
//!
//! | What goes wrong | What follows |
//! |---|---|
//! | as many calls wait as may | refused at once: nothing was done |
//! | a call's time is over before its turn | refused: nothing was done. Once it is in a batch, nothing cuts it short |
//! | a batch traps, or cannot commit, or loses its transaction | each call is made again by itself, under its own key |
//! | so does a call by itself, unless it has computed too long | made again once, on a new instance |
//! | the last try is refused for what may mend, and one before it was cut off | it may have committed: that is the answer |
//! | whoever asked has gone | what was accepted is done all the same |

mod made;
#[cfg(test)]
mod tests;
mod thread;

use crate::metrics::Metrics;
use host_example::types::{Refusal, State};
use host_example::{Invocation, OpenError, Principal, Reply};
use prometheus_client::metrics::gauge::Gauge;
use std::fmt;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{AcqRel, Acquire},
};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
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
    #[must_use]
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
pub struct Callers(Arc<Mutex<Vec<Arc<Principal>>>>);

impl Callers {
    pub fn get(&self, call: u32) -> Option<Principal> {
        let callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        callers.get(call as usize).map(|caller| Principal::clone(caller))
    }

    fn set(&self, callers: Vec<Arc<Principal>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = callers;
    }
}

/// What a caller asks for. The id is the transport's request's, for the log.
pub struct Call {
    pub id: Uuid,
    pub caller: Principal,
    pub invocation: Invocation,
}

type Work<I> = Box<dyn FnOnce(Result<&mut I, OwnerError>) + Send>;

enum Job<I> {
    Call(Waiting, Place),
    /// What only an operator or a worker asks for, with its permission.
    Work(&'static str, Work<I>, Place),
    End,
}

/// A call that was accepted.
struct Waiting {
    id: Uuid,
    caller: Arc<Principal>,
    invocation: Invocation,
    turn: Turn,
    answer: oneshot::Sender<Result<Reply, OwnerError>>,
}

/// A place in the queue, until it is dropped. Those of calls are numbered.
struct Place(Gauge, #[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

impl Place {
    fn new(queued: &Gauge, permit: Option<OwnedSemaphorePermit>) -> Place {
        queued.inc();
        Place(queued.clone(), permit)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.dec();
    }
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

/// What the thread needs of an instance.
pub trait Instance: 'static {
    /// As [`host_example::Instance::attempt`].
    ///
    /// # Errors
    ///
    /// A trap: all of the calls committed or none did.
    fn attempt(&mut self, calls: &[Invocation], attempts: &[Uuid]) -> wasmtime::Result<Vec<Reply>>;

    fn is_spent(&self) -> bool;

    /// # Errors
    ///
    /// A trap, or why they cannot be counted.
    fn count_operations(&mut self) -> wasmtime::Result<Result<Vec<(State, u64)>, Refusal>>;

    /// # Errors
    ///
    /// A trap, or why the database is not closed.
    fn close(&mut self) -> wasmtime::Result<Result<(), Refusal>>;
}

impl Instance for host_example::Instance {
    fn attempt(&mut self, calls: &[Invocation], attempts: &[Uuid]) -> wasmtime::Result<Vec<Reply>> {
        self.attempt(calls, attempts)
    }

    fn is_spent(&self) -> bool {
        self.is_spent()
    }

    fn count_operations(&mut self) -> wasmtime::Result<Result<Vec<(State, u64)>, Refusal>> {
        self.count_operations()
    }

    fn close(&mut self) -> wasmtime::Result<Result<(), Refusal>> {
        self.close()
    }
}

pub struct Owner<I = host_example::Instance> {
    queue: SyncSender<Job<I>>,
    /// For calls.
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    turn: Duration,
    answer: Duration,
}

/// Places for work, which is the program's own and bounded: calls, however many there are, do not keep it out.
const FOR_WORK: usize = 256;

/// For how long a call waits for its turn.
const TURN: Duration = Duration::from_millis(2_500);
/// By when its caller has an answer in any case. Clients give up after 5 s or more.
const ANSWER: Duration = Duration::from_millis(4_500);

impl<I: Instance> Owner<I> {
    /// Starts the thread, which says at its end whether it closed the database. `instance` makes an instance, called by those callers, when there is none or the last one is spent.
    /// At most so many calls wait.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(
        most: usize,
        metrics: Arc<Metrics>,
        instance: impl FnMut(Callers) -> Result<I, OwnerError> + Send + 'static,
    ) -> std::io::Result<(Owner<I>, JoinHandle<bool>)> {
        let (queue, jobs) = sync_channel(most + FOR_WORK);
        let counted = Arc::clone(&metrics);
        let run = move || thread::Thread::new(Box::new(instance), counted).run(&jobs);
        let thread = std::thread::Builder::new().name("component".to_owned()).spawn(run)?;
        Ok((Owner { queue, places: Arc::new(Semaphore::new(most)), metrics, turn: TURN, answer: ANSWER }, thread))
    }

    /// Does `work` on the instance, with one permission of an operator's, after all that was handed in before.
    ///
    /// # Errors
    ///
    /// See [`OwnerError`] for what holds after each.
    pub async fn run<T: Send + 'static>(
        &self,
        permission: &'static str,
        work: impl FnOnce(&mut I) -> wasmtime::Result<Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, OwnerError> {
        let (answer, answered) = oneshot::channel();
        let work: Work<I> = Box::new(move |instance| {
            let done = instance.and_then(|instance| match work(instance) {
                Ok(result) => result.map_err(OwnerError::Refused),
                Err(trap) => Err(OwnerError::Failed(format!("{trap:#}"))),
            });
            // Nobody waits any more: what was done stays done.
            drop(answer.send(done));
        });
        self.hand_in(Job::Work(permission, work, Place::new(&self.metrics.queued, None)))?;
        answered.await.unwrap_or_else(|_| Err(lost()))
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
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| OwnerError::Busy)?;
        let place = Place::new(&self.metrics.queued, Some(place));
        let Call { id, caller, invocation } = call;
        let waiting = Waiting { id, caller: Arc::new(caller), invocation, turn: turn.clone(), answer };
        self.hand_in(Job::Call(waiting, place))?;
        let answer = match timeout_at(accepted + self.turn, &mut answered).await {
            Err(_) if turn.give_up() => return Err(OwnerError::Busy),
            Err(_) => timeout_at(accepted + self.answer, answered).await.map_err(|_| OwnerError::Slow)?,
            Ok(answer) => answer,
        };
        // Nobody will answer it. What had begun may have been done.
        answer.unwrap_or_else(|_| Err(if turn.give_up() { OwnerError::Ended } else { lost() }))
    }

    /// Ends the thread once all that was handed in before is done. Later work is refused.
    pub fn end(&self) {
        // It fails if the thread has ended.
        drop(self.queue.send(Job::End));
    }

    fn hand_in(&self, job: Job<I>) -> Result<(), OwnerError> {
        self.queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => OwnerError::Busy,
            TrySendError::Disconnected(_) => OwnerError::Ended,
        })
    }
}

fn lost() -> OwnerError {
    OwnerError::Failed("the component's thread has ended".to_owned())
}
