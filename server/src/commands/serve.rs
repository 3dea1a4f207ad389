//! `serve`: the tools, for agents.

use crate::connections;
use crate::http::{self, Gate, MOST_LARGE, READ_METRICS};
use crate::mcp::Tools;
use crate::metrics::Metrics;
use crate::owner::{Owner, OwnerError};
use crate::stdio;
use crate::stop::{self, Stop};
use crate::tokens::Tokens;
use crate::upkeep::Upkeep;
use crate::worker::options::{Outbox, Prepared};
use clap::Args;
use host_example::commands::{Failure, Options, say};
use host_example::{Description, Files, Instance, Limits, Principal};
use reqwest::Url;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::{info, warn};

/// Serves the tools to agents by the Model Context Protocol: over standard input and output, to one agent, as the caller that
/// --as and --allow name; or, with --http, to whoever has a token. The database is this process's alone meanwhile.
///
/// What was accepted is done and answered, also when the input ends, and at SIGTERM and SIGINT; a second signal ends the
/// process at once. Calls that wait at the same time share a commit. One that has waited for 2.5 s is refused as `busy`; one
/// that takes more than 4.5 s is answered `unconfirmed` (`unavailable` if it only reads), and goes on.
#[derive(Args)]
pub struct Serve {
    /// Listen at this address, such as 127.0.0.1:8080; with port 0 a free one, which is printed. Requests are not encrypted:
    /// to reach it from elsewhere, put a proxy with TLS before it.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tokens", value_parser = address)]
    http: Option<SocketAddr>,
    /// The file of tokens that `token new` makes. It is read at each request.
    #[arg(long, value_name = "FILE", requires = "http")]
    tokens: Option<PathBuf>,
    /// How clients reach it, if not by its address: the URL that ends in /mcp, whose host is let in, as are those of this machine.
    #[arg(long, value_name = "URL", requires = "http", value_parser = public_url)]
    public_url: Option<Url>,
    /// Let web pages of this origin call, such as https://agents.example:443; may be given more than once. Others are refused.
    #[arg(long, value_name = "ORIGIN", requires = "http", value_parser = origin)]
    allow_origin: Vec<String>,
    /// The most connections; more wait to be accepted.
    #[arg(long, value_name = "N", default_value = "1024", requires = "http", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    connections: u32,
    /// The most calls that wait; more are refused as `busy`.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    queue: u32,
    #[command(flatten)]
    upkeep: Upkeep,
    #[command(flatten)]
    outbox: Outbox,
}

/// How long to wait for those who are using the database.
const WAIT: Duration = Duration::from_secs(2);

/// A batch of the largest calls takes a tenth of it. One that takes longer is cut off, and its calls are made one by one.
const COMPUTING: Duration = Duration::from_secs(2);

/// How long the last requests over HTTP may take, which may be on their way when it is to stop.
const LAST_REQUESTS: Duration = http::READING.saturating_add(stdio::LAST_ANSWERS);

impl Serve {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let outbox = self.outbox.prepare()?;
        self.upkeep.check().map_err(Failure::usage)?;
        let way = match (self.http, self.tokens) {
            (Some(address), Some(file)) => {
                if options.has_principal() {
                    return Err(Failure::usage("--as and --allow are for one agent: with --http tokens say who calls"));
                }
                let tokens = Tokens::load(file).map_err(Failure::usage)?;
                let listener = std::net::TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))?;
                listener.set_nonblocking(true)?;
                let local = Url::parse(&format!("http://{}/mcp", listener.local_addr()?))?;
                let url = self.public_url.unwrap_or(local);
                let (origins, connections) = (self.allow_origin, self.connections as usize);
                Way::Http { listener, tokens, url, origins, connections }
            }
            _ => Way::Stdio(options.principal()?),
        };
        let files = Files::sole(options.database()?, WAIT)?;
        info!(version = env!("CARGO_PKG_VERSION"), database = %options.database()?.display(), "starting");
        info!("loading the component, which takes a while where it was not compiled before");
        let host = options.host(Limits { computing: COMPUTING, ..Limits::default() })?;
        let metrics = Arc::new(Metrics::of_owner());
        let (copied, name) = (files.again(), options.database()?.file_stem().unwrap_or_default().to_owned());
        let (owner, thread) = Owner::start(self.queue as usize, Arc::clone(&metrics), move |callers| {
            let instance = host.instance(move |call| callers.get(call), files.again());
            instance.map_err(|error| OwnerError::Failed(format!("{error:#}")))
        })?;
        let owner = Arc::new(owner);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let served = runtime.block_on(async {
            let serving = Serving { owner: Arc::clone(&owner), metrics, stop: stop::on_signal()?, way, outbox };
            tokio::select! {
                served = serving.run(self.upkeep, copied, name.to_string_lossy().into_owned()) => served,
                () = ended(&thread) => Ok(()),
            }
        });
        // A second signal is heard while the last work is done.
        owner.end();
        let ended = thread.join();
        // It may be reading an input that does not end.
        runtime.shutdown_background();
        if ended.map_err(|_| "the component's thread has ended by a bug: what had begun may have been done")? {
            info!("the database is closed");
        }
        served.map(|()| ExitCode::SUCCESS)
    }
}

/// Only a bug ends it while anybody could hand in work.
async fn ended(thread: &JoinHandle<bool>) {
    while !thread.is_finished() {
        sleep(Duration::from_millis(500)).await;
    }
}

enum Way {
    Stdio(Principal),
    Http { listener: std::net::TcpListener, tokens: Tokens, url: Url, origins: Vec<String>, connections: usize },
}

struct Serving {
    owner: Arc<Owner>,
    metrics: Arc<Metrics>,
    stop: Stop,
    way: Way,
    outbox: Option<Prepared>,
}

impl Serving {
    /// Until it is told to stop, or the input ends, or the worker cannot go on.
    async fn run(self, upkeep: Upkeep, files: Files, name: String) -> Result<(), Failure> {
        let Serving { owner, metrics, stop, way, mut outbox } = self;
        let descriptions = owner.run("maintain", |instance| instance.describe().map(Ok)).await?;
        // A database that cannot be used is told at once, and what a dead process left is settled.
        if let Some(mark) = owner.run("maintain", Instance::restored).await? {
            // What a worker asks about in vain ends as unknown, for good.
            let has_worker = outbox.take().is_some();
            let what = "the database is a copy that was not accepted yet: no new key acts, and nothing is sent. See \
                        `counterfoil restored`";
            warn!(unfinished = mark.unfinished, has_worker, "{what}");
        }
        match &way {
            Way::Stdio(principal) => warn_of_unknown(&principal.permissions, &descriptions),
            Way::Http { tokens, .. } => warn_of_unknown(&tokens.permissions(), &descriptions),
        }
        let principal = if let Way::Stdio(principal) = &way { Some(principal.clone()) } else { None };
        let tools = Tools::new(Arc::clone(&owner), Arc::clone(&metrics), descriptions, principal)?;

        if let Way::Http { listener, .. } = &way {
            say(format_args!("listening on http://{}/mcp", listener.local_addr()?))?;
        }

        // From here on nothing fails before the worker has finished what it has in hand.
        let upkeep = tokio::spawn(upkeep.run(Arc::clone(&owner), Arc::clone(&metrics), files, name));
        let worker = outbox.map(|outbox| tokio::spawn(work(outbox, owner, stop.clone())));
        let served = match way {
            Way::Stdio(_) => {
                let (input, output) = rmcp::transport::io::stdio_pipes();
                stdio::serve(tools, stop.clone(), input, output).await.map_err(Failure::from)
            }
            Way::Http { listener, tokens, url, origins, connections } => {
                let large = Semaphore::new(MOST_LARGE);
                let router = http::router(Gate { metrics, tokens, url, origins, large }, tools);
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        connections::serve(listener, router, connections, LAST_REQUESTS, stop.wait()).await;
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        };
        upkeep.abort();
        stop.now();
        match worker {
            Some(worker) => served.and(worker.await?),
            None => served,
        }
    }
}

/// A server that took on what nobody sends would be found out late, so it ends with its worker.
async fn work(outbox: Prepared, owner: Arc<Owner>, stop: Stop) -> Result<(), Failure> {
    let worked = outbox.worker(owner, false, stop.clone()).run().await;
    stop.now();
    worked.map_err(|error| format!("the worker cannot go on: {error}").into())
}

/// What is misspelt would be noticed by refusals alone.
fn warn_of_unknown(permissions: &[String], descriptions: &[Description]) {
    let asked: Vec<_> = descriptions.iter().filter_map(|tool| tool.permission.as_deref()).collect();
    for permission in permissions.iter().filter(|name| !asked.contains(&name.as_str()) && *name != READ_METRICS) {
        warn!(permission, known = asked.join(","), "no tool asks for this permission");
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:8080, and no name".to_owned())
}

fn public_url(text: &str) -> Result<Url, String> {
    let is_ours = |url: &Url| ["http", "https"].contains(&url.scheme()) && url.path().ends_with("/mcp");
    let url = Url::parse(text).ok().filter(is_ours);
    url.ok_or_else(|| "expected a URL that ends in /mcp, such as https://tools.example/mcp".to_owned())
}

fn origin(text: &str) -> Result<String, String> {
    let is_origin = Url::parse(text).is_ok_and(|url| url.has_host() && url.path() == "/" && !text.ends_with('/'));
    if is_origin {
        Ok(text.to_owned())
    } else {
        Err("expected an origin, such as https://agents.example:443".to_owned())
    }
}
