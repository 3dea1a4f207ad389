//! `sweep`: expired receipts become tombstones.

use clap::Args;
use host_example::Limits;
use host_example::commands::{Failure, Options, operator, say};
use std::process::ExitCode;
use tracing::info;

/// Turns expired receipts into tombstones, which hold neither request nor result and refuse their keys for ever. Others may
/// use the database meanwhile; stopped half-way, it has done a part. Prints how many receipts there were.
#[derive(Args)]
pub struct Sweep {
    /// How many receipts to sweep in one transaction, which is for how long others have to wait.
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    step: u32,
}

impl Sweep {
    pub fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let files = options.existing()?;
        let mut instance = options.host(Limits::operator())?.instance(|_| Some(operator("maintain")), files)?;
        let mut swept = 0_u64;
        loop {
            let step = instance.sweep(self.step)?.map_err(|refusal| {
                let Failure(code, error) = Failure::refused(&refusal);
                Failure(code, format!("{error} Receipts swept: {swept}; they stay so.").into())
            })?;
            swept += u64::from(step);
            if step < self.step {
                break;
            }
            info!(swept, "sweeping");
        }
        say(format_args!("receipts swept: {swept}"))?;
        Ok(ExitCode::SUCCESS)
    }
}
