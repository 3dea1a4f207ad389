//! The program `counterfoil serve` under MCP clients that others made, over stdio and HTTP, in each revision of the protocol
//! that they speak. Versions are pinned, and installed into the target folder, once; the runs themselves need no network.

use crate::packages::{installed, need, npm, pip};
use crate::{Result, execute, root};
use std::path::Path;
use std::process::Command;

/// PyPI's, which needs Python 3.10.
const MCP: &str = "2.3.0";
/// npm's, of which the command line runs on Node 20, whatever the package says.
const INSPECTOR: &str = "2.12.0";

/// Checks the guarantees under each client.
///
/// # Errors
///
/// If a client cannot be installed, or a guarantee does not hold.
pub fn run(program: &Path, component: &Path) -> Result<()> {
    need(&["python3", "node"], "the server is tested under PyPI's mcp and npm's MCP Inspector")?;

    let mcp = pip("mcp", MCP)?;
    check("PyPI's mcp", "mcp_python", program, component, ("PYTHONPATH", &mcp))?;

    let inspector = installed("inspector", INSPECTOR, |folder| {
        npm(&[format!("@modelcontextprotocol/inspector@{INSPECTOR}")], folder)
    })?;
    check("the MCP Inspector's command line", "inspector", program, component, ("INSPECTOR", &inspector))
}

fn check(client: &str, driver: &str, program: &Path, component: &Path, (name, value): (&str, &Path)) -> Result<()> {
    println!("under {client}:");
    let scripts = root().join("server/tests/clients").canonicalize()?;
    let mut guarantees = Command::new("python3");
    guarantees.arg(scripts.join("guarantees.py"));
    guarantees.args([program.canonicalize()?, component.canonicalize()?]).arg(driver);
    guarantees.env(name, value.canonicalize()?).env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut guarantees).map_err(|_| format!("the server does not keep its guarantees under {client}").into())
}
