//! The repository's chores, on a machine with rustup's toolchain, a C compiler for the machine itself, and python3.
//! Each command first sets up what it needs.

use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, process};

mod clients;
mod demo;
mod fuzz;
mod hosts;
mod mutants;
mod packages;
mod setup;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Cli {
    /// Get what building the component takes: the wasm target and a C compiler for it.
    Setup,
    /// Build the component and print its path as the last line.
    Component {
        #[arg(value_enum, default_value = "service")]
        world: World,
        /// Build the tools alone, for any runtime with WASI 0.2: with the adapter of `standalone`.
        #[arg(long, conflicts_with = "world")]
        standalone: bool,
    },
    /// Build components with a fault each, which tests must notice, and print their folder as the last line.
    Mutants,
    /// Build the program `host-example` and print its path as the last line.
    Host,
    /// Build the program `counterfoil` and print its path as the last line.
    Server,
    /// Lose answers, race, revoke, deploy: a story on a database in a temporary folder, checked step by step.
    Demo,
    /// Build all that tests need and run every test. What follows is handed to the tests: a part of a name, or options
    /// such as --skip.
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure the component against what one would pick instead, in some minutes on an idle machine, and print tables in
    /// Markdown; all figures go to `bench.json` in the target folder. What follows is handed to the program: --help says what.
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Put hosts that others wrote into the target folder (wasmtime-py, the wasmtime program, jco; needs Node 20 with npm), and
    /// try the standalone component under each.
    Hosts,
    /// Put MCP clients that others wrote into the target folder (PyPI's mcp, the MCP Inspector; needs Python 3.10, and
    /// Node 20 with npm), and try `counterfoil serve` under each, over stdio and HTTP.
    Clients,
    /// Feed the engine and the server with input that libFuzzer makes, and look whether anything breaks them (needs a C++
    /// compiler).
    Fuzz {
        /// What to feed, of the folders in fuzz/corpus; all unless some are named.
        targets: Vec<String>,
        /// For how long, each.
        #[arg(long, value_name = "N", default_value = "60")]
        seconds: u32,
        /// Feed the one target that is named with this file alone.
        #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
        input: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum World {
    /// The tools, and what only a host may call.
    Service,
    /// The tools alone, for hosts that show every export to a model.
    Tools,
    /// Not this component, but that of `tests/tools`.
    Test,
    /// Nor this: that of `tests/hostile`, which means harm.
    Hostile,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    setup::run()?;
    match cli {
        Cli::Setup => println!("ready"),
        Cli::Component { standalone: true, .. } => println!("{}", standalone()?.display()),
        Cli::Component { world, .. } => println!("{}", component(world)?.display()),
        Cli::Mutants => println!("{}", mutants::run()?.display()),
        Cli::Host => println!("{}", program("host-example")?.display()),
        Cli::Server => println!("{}", program("counterfoil")?.display()),
        Cli::Demo => {
            component(World::Service)?;
            demo::run(&program("counterfoil")?)?;
        }
        Cli::Test { arguments } => {
            for world in [World::Service, World::Test, World::Hostile] {
                component(world)?;
            }
            standalone()?;
            mutants::run()?;
            program("host-example")?;
            execute(cargo(&["test", "--workspace", "--"]).args(arguments))?;
        }
        Cli::Bench { arguments } => bench(&component(World::Service)?, &arguments)?,
        Cli::Hosts => hosts::run(&standalone()?)?,
        Cli::Clients => {
            let component = component(World::Service)?;
            clients::run(&program("counterfoil")?, &component)?;
        }
        Cli::Fuzz { targets, input: Some(input), .. } => match targets.as_slice() {
            [target] => fuzz::again(target, &input)?,
            _ => return Err("--input: name the one target that it is for".into()),
        },
        Cli::Fuzz { targets, seconds, .. } => fuzz::run(&targets, seconds)?,
    }
    Ok(())
}

/// As a cdylib alone, since Cargo does not optimise across crates for a library that is an rlib as well; and everywhere else an rlib
/// alone, so that every build of it has a file name of its own.
const LIBRARY: [&str; 6] = ["rustc", "--lib", "--crate-type", "cdylib", "--profile", "component"];

/// Builds the component for one world and returns where it is.
fn component(world: World) -> Result<PathBuf> {
    let target = target_folder()?;
    // Cargo gives every build of one library the same file name, whatever its features, and takes the file of one for
    // that of another. So each has a folder of its own.
    let (mut cargo, built, kept) = match world {
        World::Service => {
            (cargo(&LIBRARY), target.join("wasm32-wasip2/component/counterfoil.wasm"), "counterfoil.wasm")
        }
        World::Tools => {
            let folder = target.join("world-tools");
            let mut cargo = cargo(&LIBRARY);
            cargo.args(["--no-default-features", "--features", "tools", "--target-dir"]).arg(&folder);
            (cargo, folder.join("wasm32-wasip2/component/counterfoil.wasm"), "counterfoil-tools.wasm")
        }
        World::Test => (
            cargo(&["build", "--package", "test-tools"]),
            target.join("wasm32-wasip2/debug/test_tools.wasm"),
            "test-tools.wasm",
        ),
        World::Hostile => (
            cargo(&["build", "--package", "test-hostile"]),
            target.join("wasm32-wasip2/debug/test_hostile.wasm"),
            "test-hostile.wasm",
        ),
    };
    execute(cargo.args(["--target", setup::TARGET]))?;
    keep(&built, target.join(kept))
}

/// Builds the component for hosts that offer WASI 0.2 alone, and returns where it is.
fn standalone() -> Result<PathBuf> {
    let tools = component(World::Tools)?;
    let target = target_folder()?;
    execute(cargo(&LIBRARY).args(["--package", "counterfoil-standalone", "--target", setup::TARGET]))?;
    let adapter = target.join("wasm32-wasip2/component/counterfoil_standalone.wasm");
    let adapter = keep(&adapter, target.join("counterfoil-adapter.wasm"))?;
    let plugged = target.join("counterfoil-standalone.wasm");
    let mut plug = cargo(&["run", "--quiet", "--package", "counterfoil-standalone", "--"]);
    execute(plug.args([&tools, &adapter]).arg("--output").arg(&plugged).args(["--wit", "wit"]))?;
    Ok(plugged)
}

fn keep(built: &Path, kept: PathBuf) -> Result<PathBuf> {
    // A running program may be reading the file, so it is replaced as a whole.
    let copy = kept.with_extension(process::id().to_string());
    fs::copy(built, &copy)?;
    fs::rename(&copy, &kept)?;
    Ok(kept)
}

/// Builds everything native that tests build: with a part of it, dependencies would have other features, and all of
/// wasmtime would be built twice.
fn program(name: &str) -> Result<PathBuf> {
    const PACKAGES: [&str; 3] = ["counterfoil", "host-example", "counterfoil-server"];
    execute(cargo(&["build"]).args(PACKAGES.map(|package| format!("--package={package}"))))?;
    Ok(target_folder()?.join("debug").join(name))
}

fn bench(component: &Path, arguments: &[String]) -> Result<()> {
    const PACKAGES: [&str; 2] = ["--package=counterfoil-bench", "--package=counterfoil-server"];
    execute(cargo(&["build", "--profile", "bench", "--bins"]).args(PACKAGES))?;
    let target = target_folder()?;
    let (programs, disk) = (target.join("release"), target.join("tmp"));
    fs::create_dir_all(&disk)?;
    let mut bench = Command::new(programs.join("counterfoil-bench"));
    bench.arg("--component").arg(component).arg("--program").arg(programs.join("counterfoil"));
    execute(bench.arg("--disk").arg(disk).arg("--json").arg(target.join("bench.json")).args(arguments))
}

/// This program is in `debug` of the target folder.
fn target_folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    Ok(program.parent().and_then(Path::parent).ok_or("this program is in no target folder")?.to_owned())
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs a command to its end.
fn execute(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}").into()) }
}
