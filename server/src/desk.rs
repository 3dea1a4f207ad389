//! The component on a thread of its own: whoever needs it hands in work and waits for the answer, without blocking a
//! thread that serves others. One instance is used for as long as it is sound.

use host_example::types::Refusal;
use host_example::{Instance, OpenError};
use std::fmt;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Why work was not done.
#[derive(Debug)]
pub enum DeskError {
    /// The component refused it.
    Refused(Refusal),
    /// The instance trapped, or there could be none: whatever was asked for happened or not.
    Failed(String),
    /// The database cannot be opened.
    Open(OpenError),
    /// The component's thread is gone, by a bug.
    Ended,
}

impl DeskError {
    /// Whether the same work can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            DeskError::Refused(refusal) => refusal.retryable,
            DeskError::Failed(_) | DeskError::Open(OpenError::Busy(_)) => true,
            DeskError::Open(_) | DeskError::Ended => false,
        }
    }
}

impl fmt::Display for DeskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeskError::Refused(refusal) => write!(f, "{} {}", refusal.message, refusal.next_action),
            DeskError::Failed(why) => f.write_str(why),
            DeskError::Open(error) => error.fmt(f),
            DeskError::Ended => f.write_str("the component's thread has ended"),
        }
    }
}

impl std::error::Error for DeskError {}

type Work = Box<dyn FnOnce(Result<&mut Instance, DeskError>) + Send>;

/// Dropped, it ends the thread once the work at hand is done.
pub struct Desk {
    work: mpsc::Sender<Work>,
}

impl Desk {
    /// Starts the thread. `instance` makes an instance when there is none, or the last one is spent.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(mut instance: impl FnMut() -> Result<Instance, DeskError> + Send + 'static) -> std::io::Result<Desk> {
        let (sender, work) = mpsc::channel::<Work>();
        std::thread::Builder::new().name("component".to_owned()).spawn(move || {
            let mut current: Option<Instance> = None;
            for work in work {
                work(match current {
                    Some(ref mut sound) => Ok(sound),
                    None => instance().map(|new| current.insert(new)),
                });
                if current.as_ref().is_some_and(Instance::is_spent) {
                    current = None;
                }
            }
        })?;
        Ok(Desk { work: sender })
    }

    /// Does `work` on the instance, after all that was handed in before.
    ///
    /// # Errors
    ///
    /// See [`DeskError`] for what holds after each.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Instance) -> wasmtime::Result<Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, DeskError> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |instance| {
            let done = instance.and_then(|instance| match work(instance) {
                Ok(result) => result.map_err(DeskError::Refused),
                Err(trap) => Err(DeskError::Failed(format!("{trap:#}"))),
            });
            // Nobody waits any more: what was done stays done.
            drop(answer.send(done));
        });
        self.work.send(work).map_err(|_| DeskError::Ended)?;
        answered.await.map_err(|_| DeskError::Ended)?
    }
}
