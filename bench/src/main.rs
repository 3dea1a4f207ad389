//! Measures the component against what one would pick instead, all in one run, and writes what came out.

mod busy;
mod contenders;
mod counts;
mod load;
mod matrix;
mod processes;
mod report;
mod sizes;
mod work;

use clap::{Parser, ValueEnum};
use contenders::Result;
use host_example::{Host, Limits};
use report::Report;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use work::Work;

/// Measures, and prints tables in Markdown.
#[derive(Parser)]
struct Arguments {
    /// The component.
    #[arg(long)]
    component: PathBuf,
    /// The program `counterfoil`.
    #[arg(long)]
    program: PathBuf,
    /// A folder on a disk.
    #[arg(long)]
    disk: PathBuf,
    /// A folder in memory.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// For how long each time, in milliseconds.
    #[arg(long, default_value_t = 500)]
    time: u64,
    /// Only these parts: matrix, busy, sizes, counts, processes.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Of the matrix only this work.
    #[arg(long, value_delimiter = ',', default_values_t = Work::value_variants().iter().copied(), value_enum)]
    work: Vec<Work>,
    /// Of the matrix only so many callers.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    callers: Vec<usize>,
    /// Where all figures are written, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Where databases are put.
struct Place {
    path: PathBuf,
    /// The kind of file system.
    kind: String,
    is_disk: bool,
}

impl Place {
    fn new(path: PathBuf, is_disk: bool) -> Result<Place> {
        let kind = output(Command::new("stat").args(["-f", "-c", "%T"]).arg(&path))?;
        // The kernel's name for all of them.
        Ok(Place { path, kind: kind.replace("ext2/ext3", "ext4"), is_disk })
    }

    /// A new one, removed at the end.
    fn folder(&self) -> Result<TempDir> {
        Ok(TempDir::new_in(&self.path)?)
    }
}

struct Bench {
    component: PathBuf,
    program: PathBuf,
    places: Vec<Place>,
    rounds: usize,
    time: Duration,
    work: Vec<Work>,
    callers: Vec<usize>,
    runtime: Runtime,
}

impl Bench {
    fn host(&self) -> Result<Host> {
        Ok(Host::load(&self.component, Limits::default())?)
    }

    /// It takes some minutes.
    fn say(&self, what: &str) {
        eprintln!("{what}");
    }
}

type Part = fn(&Bench, &mut Report) -> Result<()>;

const PARTS: [(&str, Part); 5] = [
    ("matrix", matrix::run),
    ("busy", busy::run),
    ("sizes", sizes::run),
    ("counts", counts::run),
    ("processes", processes::run),
];

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    if let Some(name) = arguments.only.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        return Err(format!("there is no part {name}: matrix, busy, sizes, counts, processes").into());
    }
    let bench = Bench {
        places: vec![Place::new(arguments.disk, true)?, Place::new(arguments.memory, false)?],
        component: arguments.component,
        program: arguments.program,
        rounds: arguments.rounds,
        time: Duration::from_millis(arguments.time),
        work: arguments.work,
        callers: arguments.callers,
        runtime: tokio::runtime::Builder::new_multi_thread().enable_time().build()?,
    };
    let mut report = Report { about: about(&bench)?, ..Report::default() };
    for (name, part) in PARTS {
        if arguments.only.is_empty() || arguments.only.iter().any(|only| only == name) {
            part(&bench, &mut report)?;
        }
    }
    println!("{}", report.text());
    if let Some(file) = arguments.json {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

fn about(bench: &Bench) -> Result<Vec<(String, String)>> {
    let processor = std::fs::read_to_string("/proc/cpuinfo")?;
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let processors = std::thread::available_parallelism()?;
    let kernel = output(Command::new("uname").arg("-sr"))?;
    let places: Vec<_> = bench.places.iter().map(|place| place.kind.as_str()).collect();
    Ok(vec![
        ("machine".to_owned(), format!("{processors} x {}, {kernel}", processor.trim_start_matches([' ', ':', '\t']))),
        ("file systems".to_owned(), places.join(", ")),
        ("SQLite".to_owned(), rusqlite::version().to_owned()),
        ("component".to_owned(), format!("{} bytes", size(&bench.component)?)),
        ("rounds".to_owned(), format!("{} of {} ms", bench.rounds, bench.time.as_millis())),
    ])
}

fn size(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file)?.len())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", command.get_program().display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
