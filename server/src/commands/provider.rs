//! `counterfoil provider`: reads the arguments, opens the store and the port, and serves until a signal.

use crate::contract::Contract;
use crate::provider::faults::Faults;
use crate::provider::store::Store;
use crate::provider::{self, Settings};
use crate::{connections, stop};
use clap::Args;
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Runs a provider of deployments that misbehaves on command, to run a worker against.
///
/// It deploys nothing: it notes what it took, in a file of its own, so that the effects of any retries can be counted
/// (GET /effects). Its first line on stdout is `listening on http://ADDRESS/deployments`. SIGTERM and SIGINT end it, after
/// the requests that are being answered, or after 5 seconds.
#[derive(Args)]
pub struct Provider {
    /// Where to listen: a loopback address, since whoever can connect is obeyed. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    listen: SocketAddr,
    /// The SQLite database; made if it is not there. A provider that was killed goes on with what it had.
    #[arg(long, value_name = "FILE")]
    store: PathBuf,
    /// What it does when nothing goes wrong: these words, separated by commas, or `none`.
    ///
    ///   deduplicates-for=24h       A key is known for this long after it was first received, and a little
    ///                              longer, for requests under way. Otherwise every POST is a new deployment.
    ///   looks-up                   It can be asked by client reference. Otherwise GET is answered 405.
    ///   cancels                    It can be asked to stop. Otherwise that is answered 405.
    ///   absent-is-final-after=1m   For the worker alone: no request arrives later than this.
    ///   clock-within=1s            For the worker alone: how far its clock may be from the true time.
    #[arg(long, value_name = "CONTRACT", verbatim_doc_comment)]
    contract: Contract,
    /// What goes wrong: these words, separated by commas, or `none`. PUT /faults replaces them.
    ///
    /// NAME happens always, NAME=0.1 with this probability, NAME=0.1:500ms with this probability and duration.
    ///
    /// To any request:
    ///   drop-before               nothing is done, and the connection is closed without an answer
    ///   error-before              nothing is done: 500
    ///   throttle=1:1s             nothing is done: 429 with Retry-After, in seconds or as a date
    ///   unavailable=1:1s          nothing is done: 503 with Retry-After
    ///   late=1:2s                 it is done, and answered only after this long
    ///   error-after               it is done: 500
    ///   drop-after                it is done, and the connection is closed without an answer
    ///   half-answer               it is done, and the answer breaks off half-way
    /// To a deployment:
    ///   reject                    nothing is done: 403
    ///   under-way=1:2s            it is taken only after this long, even if the client has gone
    ///   forget-keys=500ms         keys are known for this long, whatever the contract says
    ///   fail                      it ends as failed
    /// To a look-up or a cancellation:
    ///   refuse-lookup             403
    ///   refuse-cancel             409
    ///   succeed-while-cancelling  the deployment succeeds all the same, at once or when its time comes
    #[arg(long, value_name = "FAULTS", default_value = "none", verbatim_doc_comment)]
    faults: Faults,
    /// How long a deployment runs.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    finish_after: Duration,
    /// Repeats the chances of an earlier run, for the same requests in the same order [default: a new one, on stderr].
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// How long the requests that are being answered may take once it is to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// # Errors
///
/// The store cannot be opened, the address is taken, or stdout is closed: nothing was served.
pub fn run(arguments: Provider) -> Result<(), Box<dyn Error + Send + Sync>> {
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => {
            let seed = fastrand::u64(..);
            writeln!(io::stderr(), "seed: {seed}")?;
            seed
        }
    };
    let store = Store::open(&arguments.store).map_err(|error| format!("{}: {error}", arguments.store.display()))?;
    tracing::info!(contract = %arguments.contract, faults = %arguments.faults, "starting");
    let settings = Settings { contract: arguments.contract, finish_after: arguments.finish_after };
    let provider = provider::Provider::new(settings, arguments.faults, seed, store);
    tokio::runtime::Runtime::new()?.block_on(async {
        // Before the address is announced: whoever has read it may send a signal.
        let stop = stop::on_signal()?;
        let listener = TcpListener::bind(arguments.listen).await;
        let listener = listener.map_err(|error| format!("{}: {error}", arguments.listen))?;
        let mut out = io::stdout();
        writeln!(out, "listening on http://{}/deployments", listener.local_addr()?)?;
        out.flush()?;
        connections::serve(
            listener,
            provider::api::router(provider),
            Semaphore::MAX_PERMITS,
            LAST_ANSWERS,
            stop.wait(),
        )
        .await;
        Ok(())
    })
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:0 or [::1]:8080".to_owned())?;
    if !address.ip().is_loopback() {
        return Err(format!("{} is not a loopback address, such as 127.0.0.1 or [::1]", address.ip()));
    }
    Ok(address)
}
