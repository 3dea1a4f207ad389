//! libFuzzer on the targets of the package `fuzz`: it makes input out of the corpus and of what it found itself, and looks
//! which code each reaches. What it finds stays in the target folder.
//!
//! The package's dependencies are those of every other build: the packages of this repository alone are compiled once more, so
//! that the input's way can be seen (`rustc-coverage`).

use crate::{Result, cargo, execute, root, target_folder};
use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What an input may take.
const MOST_MEGABYTES: u32 = 512;
const MOST_SECONDS: u32 = 10;
/// The most bytes of an input.
const LONGEST: u32 = 2048;

/// Runs the targets, or all, for so long each, as many at a time as there are processors.
///
/// # Errors
///
/// If something breaks one: then where the input is.
pub fn run(targets: &[String], seconds: u32) -> Result<()> {
    let program = build()?;
    let all = all()?;
    if let Some(unknown) = targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("{unknown} is no target: there are {}", all.join(", ")).into());
    }
    let waiting: VecDeque<_> = if targets.is_empty() { all } else { targets.to_vec() }.into();
    println!("{seconds} s each: {}", waiting.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
    let temporary = temporary()?;
    let (waiting, broken) = (Mutex::new(waiting), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(target) = next() {
                    match one(&program, &target, seconds, &temporary) {
                        Ok(told) => println!("{target}: {told}"),
                        Err(error) => {
                            broken.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{target}: {error}"));
                        }
                    }
                }
            });
        }
    });
    fs::remove_dir_all(temporary)?;
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
}

/// Runs a target on one input.
///
/// # Errors
///
/// If it breaks it.
pub fn again(target: &str, input: &Path) -> Result<()> {
    let input = input.canonicalize().map_err(|error| format!("{}: {error}", input.display()))?;
    let mut fuzz = Command::new(build()?);
    execute(fuzz.args(limits()).arg(input).env("COUNTERFOIL_FUZZ", target))
}

/// Each has its corpus.
fn all() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for folder in fs::read_dir(corpus())? {
        all.push(folder?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    Ok(all)
}

fn corpus() -> PathBuf {
    root().join("fuzz/corpus")
}

fn build() -> Result<PathBuf> {
    let compiler = env::var("CXX").unwrap_or("c++".to_owned());
    let found = Command::new(&compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(
            format!("{compiler} is not here: libFuzzer takes a C++ compiler, such as Debian's package g++").into()
        );
    }
    // All of the workspace, so that dependencies have the features that they have in every other build.
    let mut cargo = cargo(&["build", "--workspace", "--bin", "fuzz", "--features", "fuzz/libfuzzer"]);
    execute(cargo.env("RUSTC_WORKSPACE_WRAPPER", root().join("xtask/rustc-coverage").canonicalize()?))?;
    Ok(target_folder()?.join("debug/fuzz"))
}

fn limits() -> [String; 2] {
    [format!("-rss_limit_mb={MOST_MEGABYTES}"), format!("-timeout={MOST_SECONDS}")]
}

/// For the file of tokens, which is written for each input: in memory, where that is to be had.
fn temporary() -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    let folder = folder.join(format!("counterfoil-fuzz-{}", process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn one(program: &Path, target: &str, seconds: u32, temporary: &Path) -> Result<String> {
    let folder = target_folder()?.join("fuzz");
    let (finds, broke) = (folder.join(target), folder.join("broke"));
    for folder in [&finds, &broke] {
        fs::create_dir_all(folder)?;
    }
    let log = folder.join(format!("{target}.log"));
    let mut fuzz = Command::new(program);
    fuzz.env("COUNTERFOIL_FUZZ", target).env("TMPDIR", temporary).args(limits());
    fuzz.arg(format!("-artifact_prefix={}/{target}-", broke.display()));
    fuzz.arg(format!("-dict={}", root().join("fuzz/dictionary").display()));
    fuzz.args([format!("-max_total_time={seconds}"), format!("-max_len={LONGEST}")]);
    fuzz.args(["-len_control=0", "-print_final_stats=1"]).args([finds, corpus().join(target)]);
    let status = fuzz.stdout(Stdio::null()).stderr(File::create(&log)?).status()?;
    let log_text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.success() {
        return Ok(summary(&log_text));
    }
    let input = log_text.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, input)| input);
    let Some(input) = input else { return Err(format!("{status}: see {}", log.display()).into()) };
    let input = Path::new(input).canonicalize()?;
    Err(format!(
        "broken by {input}\n  what it said: {log}\n  again: cargo xtask fuzz {target} --input {input}\n  Once it is mended, keep \
         the input in fuzz/corpus/{target}.",
        input = input.display(),
        log = log.display(),
    )
    .into())
}

/// Out of libFuzzer's last lines.
fn summary(log: &str) -> String {
    let figure = |name: &str| log.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
    let covered = |which: &str| {
        let line = log.lines().find(|line| line.contains(which));
        line.and_then(|line| line.split_once(" cov: ")?.1.split(' ').next()).unwrap_or("?")
    };
    format!(
        "{} inputs, {} a second; {} places reached by the corpus, {} at the end; {} MB at most",
        figure("stat::number_of_executed_units:"),
        figure("stat::average_exec_per_sec:"),
        covered("INITED"),
        covered("DONE"),
        figure("stat::peak_rss_mb:"),
    )
}
