//! What the tests of every package need: what `cargo xtask` builds.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What `cargo xtask` prints as its last line: the path of what it built.
///
/// # Panics
///
/// If it fails.
#[must_use]
#[expect(clippy::expect_used, reason = "a test that meets an error has failed")]
pub fn xtask(arguments: &[&str]) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments);
    let output = cargo.stderr(Stdio::inherit()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo xtask {arguments:?} failed");
    String::from_utf8(output.stdout).expect("UTF-8").lines().last().expect("a path").into()
}
