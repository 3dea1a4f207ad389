//! `serve`: the tools, for agents.

use crate::connections;
use crate::http::{self, Gate};
use crate::mcp::Tools;
use crate::metrics::Metrics;
use crate::owner::{Owner, OwnerError};
use crate::stop::{self, Stop};
use crate::tokens::Tokens;
use crate::upkeep::Upkeep;
use crate::worker::options::Outbox;
use clap::Args;
use host_example::commands::{Failure, Options, say};
use host_example::{Files, Instance, Limits};
use reqwest::Url;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{duplex, split};
use tokio::net::TcpListener;
use tracing::{error, info};

/// Serves the tools to agents by the Model Context Protocol: over standard input and output, to one agent, as the caller that
/// --as and --allow name; or, with --http, to whoever has a token. The database is this process's alone meanwhile.
///
/// What was accepted is done and answered, also when the input ends, and at SIGTERM and SIGINT; a second signal ends the
/// process at once. Calls that wait at the same time share a commit. One that has waited for 2.5 s is refused as `busy`; one
/// that takes more than 4.5 s is answered `unconfirmed`, and goes on.
#[derive(Args)]
pub struct Serve {
    /// Listen at this address, such as 127.0.0.1:8080; with port 0 a free one, which is printed. Requests are not encrypted:
    /// to reach it from elsewhere, put a proxy with TLS before it.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tokens")]
    http: Option<SocketAddr>,
    /// The file of tokens that `token new` makes. It is read at each request.
    #[arg(long, value_name = "FILE", requires = "http")]
    tokens: Option<PathBuf>,
    /// How clients reach it, if not by its address: the URL that ends in /mcp, whose host is let in, as are those of this machine.
    #[arg(long, value_name = "URL", requires = "http")]
    public_url: Option<Url>,
    /// Let web pages of this origin call, such as https://agents.example:443; may be given more than once. Others are refused.
    #[arg(long, value_name = "ORIGIN", requires = "http")]
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

/// A batch of the largest calls takes a tenth of it. What takes longer is cut off, and made again.
const COMPUTING: Duration = Duration::from_secs(2);

/// What one agent's messages may fill while they are not read.
const BUFFER: usize = 64 << 10;

impl Serve {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let outbox = self.outbox.prepare()?;
        self.upkeep.check().map_err(Failure::usage)?;
        let way = match (self.http, self.tokens) {
            (Some(address), Some(file)) => {
                if options.has_principal() {
                    return Err(Failure::usage("--as and --allow are for one agent: with --http tokens say who calls"));
                }
                Way::Http { address, tokens: Tokens::load(file).map_err(Failure::usage)? }
            }
            _ => Way::Stdio(options.principal()?),
        };
        let files = Files::sole(options.database()?, WAIT)?;
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
            let stop = stop::on_signal()?;
            let descriptions = owner.run("maintain", |instance| instance.describe().map(Ok)).await?;
            // A database that cannot be used is told at once, and what a dead process left is settled.
            owner.run("maintain", Instance::restored).await?;
            let upkeep = tokio::spawn(self.upkeep.run(Arc::clone(&owner), copied, name.to_string_lossy().into_owned()));
            let worker = outbox.map(|outbox| {
                let worker = outbox.worker(Arc::clone(&owner), false, stop.clone());
                tokio::spawn(async move {
                    if let Err(error) = worker.run().await {
                        error!(%error, "the worker cannot go on: nothing is sent any more");
                    }
                })
            });
            let served = match way {
                Way::Stdio(principal) => {
                    let tools = Tools::new(Arc::clone(&owner), metrics, descriptions, Some(principal))?;
                    stdio(tools, stop.clone()).await
                }
                Way::Http { address, tokens } => {
                    let tools = Tools::new(Arc::clone(&owner), Arc::clone(&metrics), descriptions, None)?;
                    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
                    let local = Url::parse(&format!("http://{}/mcp", listener.local_addr()?))?;
                    let url = self.public_url.unwrap_or_else(|| local.clone());
                    let gate = Gate { metrics, tokens, url, origins: self.allow_origin };
                    let router = http::router(gate, tools);
                    say(format_args!("listening on {local}"))?;
                    connections::serve(listener, router, self.connections as usize, stop.wait()).await;
                    Ok(())
                }
            };
            upkeep.abort();
            stop.now();
            if let Some(worker) = worker {
                drop(worker.await);
            }
            served
        });
        // It may be reading an input that does not end.
        runtime.shutdown_background();
        owner.end();
        thread.join().map_err(|_| "the component's thread has ended by a bug")?;
        info!("the database is closed");
        served.map(|()| ExitCode::SUCCESS)
    }
}

enum Way {
    Stdio(host_example::Principal),
    Http { address: SocketAddr, tokens: Tokens },
}

/// Until the input ends, or it is told to stop, which is taken for its end: what was read before is answered.
async fn stdio(tools: Tools, stop: Stop) -> Result<(), Failure> {
    let (input, output) = rmcp::transport::io::stdio_pipes();
    let (mut written, read) = duplex(BUFFER);
    tokio::spawn(async move {
        let mut input = input;
        tokio::select! {
            _ = tokio::io::copy(&mut input, &mut written) => {}
            () = stop.wait() => {}
        }
    });
    match tools.serve((split(read).0, output)).await {
        Ok(service) => drop(service.waiting().await?),
        // Whoever looks whether the program starts says nothing.
        Err(ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
