//! `tools`: what the component offers.

use super::{Failure, Options, show};
use crate::{Files, Limits};
use clap::Args;
use std::process::ExitCode;

/// Lists the tools: names, descriptions, and the JSON Schemas of arguments and replies.
#[derive(Args, Clone, Copy, Debug)]
pub struct Tools {}

impl Tools {
    /// Prints the list on stdout.
    ///
    /// # Errors
    ///
    /// As for [`Options::host`], or if the component traps or stdout does not take the list.
    pub fn run(&self, options: &Options) -> Result<ExitCode, Failure> {
        let host = options.host(Limits::default())?;
        // To describe themselves they open no database.
        let mut instance = host.instance(|_| None, Files::shared(&options.component()?.with_extension("none"))?)?;
        for tool in instance.describe()? {
            let permission = tool.permission.as_deref().unwrap_or("see the description");
            let shown = show(&format!(
                "{}\n  permission: {permission}\n  {}\n  arguments: {}\n  reply: {}\n\n",
                tool.name, tool.description, tool.input_schema, tool.output_schema
            ))?;
            if !shown {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
