//! `serve`: the tools, for agents.

use crate::mcp::Tools;
use crate::owner::{Owner, OwnerError};
use clap::Args;
use host_example::commands::{Failure, Options};
use host_example::{Files, Limits};
use rmcp::ServiceExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Serves the tools to an agent over standard input and output, by the Model Context Protocol, as the caller that --as and
/// --allow name. The database is this process's alone meanwhile.
#[derive(Args)]
pub struct Serve {
    /// The most calls that wait; more are answered `busy`.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    queue: u32,
}

/// How long to wait for those who are using the database.
const WAIT: Duration = Duration::from_secs(2);

impl Serve {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let principal = options.principal()?;
        let files = Files::sole(options.database()?, WAIT)?;
        let host = options.host(Limits::default())?;
        let (owner, thread) = Owner::start(self.queue as usize, move |callers| {
            let instance = host.instance(move |call| callers.get(call), files.again());
            instance.map_err(|error| OwnerError::Failed(format!("{error:#}")))
        })?;
        let owner = Arc::new(owner);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let descriptions = owner.run("maintain", |instance| instance.describe().map(Ok)).await?;
            let tools = Tools::new(Arc::clone(&owner), descriptions, Some(principal))?;
            let service = tools.serve(rmcp::transport::stdio()).await?;
            service.waiting().await?;
            Ok::<_, Failure>(())
        })?;
        drop(runtime);
        // What was accepted is done, and the log moved into the file.
        drop(owner);
        thread.join().map_err(|_| "the component's thread has ended by a bug")?;
        Ok(ExitCode::SUCCESS)
    }
}
