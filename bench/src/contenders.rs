//! Who is compared: each answers the same calls, on a database file of its own.

mod direct;
mod owned;

pub use direct::{Persistent, Plain};
pub use owned::{NativeInstance, principal};

use crate::work::{Call, Prepared, note};
use counterfoil_server::metrics::Metrics;
use counterfoil_server::owner::{self, Owner, OwnerError};
use host_example::{Files, Host, Invocation, Storage};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uuid::Uuid;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The most calls that wait.
const QUEUE: usize = 1024;

/// A contender at work. Clones are the same one.
#[derive(Clone)]
pub enum Contender {
    /// The component, on a thread of its own: what a server has.
    Component(Arc<Owner>),
    /// The same engine natively behind the same owner: what the component could reach at most.
    Native(Arc<Owner<NativeInstance>>),
    /// One connection for all, and SQL written by hand.
    Persistent(Arc<Persistent>),
    /// A connection for each call, with default settings: what one writes first.
    Plain(Arc<Plain>),
}

/// The threads that serve a contender.
pub struct Running {
    pub contender: Contender,
    thread: Option<JoinHandle<bool>>,
}

impl Contender {
    pub const NAMES: [&str; 4] = ["component", "native engine", "persistent", "plain"];

    pub fn name(&self) -> &'static str {
        Contender::NAMES[match self {
            Contender::Component(_) => 0,
            Contender::Native(_) => 1,
            Contender::Persistent(_) => 2,
            Contender::Plain(_) => 3,
        }]
    }

    /// Whether a call blocks its thread, so that each caller needs one.
    pub fn blocks(&self) -> bool {
        matches!(self, Contender::Persistent(_) | Contender::Plain(_))
    }

    /// The answer, in JSON; or why there is none.
    pub async fn call(&self, call: Call) -> Result<String> {
        Ok(match self {
            Contender::Component(owner) => owner.call(waiting(call)).await?.body,
            Contender::Native(owner) => owner.call(waiting(call)).await?.body,
            Contender::Persistent(persistent) => persistent.call(&call)?,
            Contender::Plain(plain) => plain.call(&call)?,
        })
    }

    /// Makes what the work needs.
    pub async fn prepare(&self, callers: usize) -> Result<Prepared> {
        let keys: Vec<_> = (0..1000).map(|_| Uuid::new_v4().to_string()).collect();
        for key in &keys {
            self.call(note(key, "prepared")).await?;
        }
        let mut automations = Vec::new();
        for _ in 0..callers {
            let made: Value = serde_json::from_str(&self.call(Call::automation()).await?)?;
            automations.push(made["automation_id"].as_str().ok_or("no automation was made")?.to_owned());
        }
        Ok(Prepared { keys: keys.into(), automations: automations.into() })
    }
}

fn waiting(call: Call) -> owner::Call {
    let invocation = Invocation { tool: call.tool.to_owned(), arguments: call.arguments };
    owner::Call { id: Uuid::nil(), caller: principal(), invocation }
}

impl Running {
    pub fn component(host: Host, database: &Path) -> Result<Running> {
        let files = Files::sole(database, Duration::ZERO)?;
        Running::component_over(host, move || files.again())
    }

    /// Over a storage of one's own, made anew for each instance.
    pub fn component_over<S: Storage>(host: Host, storage: impl Fn() -> S + Send + 'static) -> Result<Running> {
        let (owner, thread) = Owner::start(QUEUE, Arc::new(Metrics::default()), move |callers| {
            let instance = host.instance(move |call| callers.get(call), storage());
            instance.map_err(|error| OwnerError::Failed(format!("{error:#}")))
        })?;
        Ok(Running { contender: Contender::Component(Arc::new(owner)), thread: Some(thread) })
    }

    pub fn native(database: &Path) -> Result<Running> {
        let files = Files::sole(database, Duration::ZERO)?;
        let (owner, thread) = Owner::start(QUEUE, Arc::new(Metrics::default()), move |callers| {
            Ok(NativeInstance::new(move |call| callers.get(call), files.again()))
        })?;
        Ok(Running { contender: Contender::Native(Arc::new(owner)), thread: Some(thread) })
    }

    pub fn persistent(database: &Path) -> Result<Running> {
        let contender = Contender::Persistent(Arc::new(Persistent::open(database)?));
        Ok(Running { contender, thread: None })
    }

    pub fn plain(database: &Path) -> Result<Running> {
        Ok(Running { contender: Contender::Plain(Arc::new(Plain::create(database)?)), thread: None })
    }

    /// One of each, on new files in the folder.
    pub fn all(folder: &Path, host: impl Fn() -> Result<Host>) -> Result<Vec<Running>> {
        Ok(vec![
            Running::component(host()?, &folder.join("component.db"))?,
            Running::native(&folder.join("native.db"))?,
            Running::persistent(&folder.join("persistent.db"))?,
            Running::plain(&folder.join("plain.db"))?,
        ])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match &self.contender {
            Contender::Component(owner) => owner.end(),
            Contender::Native(owner) => owner.end(),
            Contender::Persistent(_) | Contender::Plain(_) => {}
        }
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            drop(thread.join());
        }
    }
}
