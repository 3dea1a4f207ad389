//! What the tests of every package need: what `cargo xtask` builds, what a person set for a run, and the sectors of a disk.

use std::env;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

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

/// A number that is set in the environment.
///
/// # Panics
///
/// If it is none.
#[must_use]
pub fn number<T: FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// A seed, random unless `COUNTERFOIL_SEED` says which, printed so that the run can be repeated.
#[must_use]
pub fn seed() -> u64 {
    let seed = number("COUNTERFOIL_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("COUNTERFOIL_SEED={seed}");
    seed
}

/// The least that a disk writes as a whole.
pub const SECTOR: usize = 512;

/// What of so many bytes, written there, is in one sector each.
pub fn sectors(offset: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let to = (from + SECTOR - (offset + from) % SECTOR).min(length);
        (from < length).then(|| std::mem::replace(&mut from, to)..to)
    })
}
