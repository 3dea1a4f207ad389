//! `resolve`: a person's finding.

use crate::worker::state_name;
use clap::{Args, ValueEnum};
use host_example::Limits;
use host_example::commands::{Failure, Options, operator, say};
use host_example::types::State;
use std::process::ExitCode;

/// Records what a person found out about an operation whose outcome is unknown: what `get_operation` calls
/// `outcome_unknown`. Be certain: nothing is looked up any more, and the caller takes it for what was.
#[derive(Args)]
pub struct Resolve {
    /// The operation's id.
    operation: String,
    finding: Finding,
    /// The id of what the provider made.
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Finding {
    /// It was done: the operation has succeeded.
    Happened,
    /// It was not done, and cannot be any more: the operation has failed.
    DidNot,
}

impl Resolve {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        if self.finding == Finding::DidNot && self.resource.is_some() {
            return Err(Failure::usage("--resource: what did not happen has made nothing"));
        }
        let files = options.existing()?;
        let mut instance = options.host(Limits::default())?.instance(|_| Some(operator("dispatch")), files)?;
        let happened = self.finding == Finding::Happened;
        let resolved = instance.resolve(&self.operation, happened, self.resource.as_deref())?;
        let operation = resolved.map_err(|refusal| Failure::refused(&refusal))?;
        let expected = if happened { State::Succeeded } else { State::Failed };
        let is_other = self.resource.is_some() && self.resource != operation.resource_id;
        if operation.state != expected || is_other {
            let was = format!("{} is {} already", operation.operation_id, state_name(operation.state));
            let what = operation.resource_id.map(|id| format!(", as {id}")).unwrap_or_default();
            return Err(Failure(3, format!("{was}{what}: nothing was recorded").into()));
        }
        say(format_args!("{} {}", operation.operation_id, state_name(operation.state)))?;
        Ok(ExitCode::SUCCESS)
    }
}
