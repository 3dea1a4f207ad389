//! Makes one component of two: the tools, and the adapter that gives them what they ask of their host. The result brings the
//! documentation of its functions, which hosts show to a model and compilers leave out.

use clap::Parser;
use std::borrow::Cow;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, process};
use wac_graph::types::Package;
use wac_graph::{CompositionGraph, EncodeOptions, plug};
use wasm_encoder::{ComponentSection, CustomSection};
use wit_parser::{PackageMetadata, Resolve};

/// Plugs a component together with the adapter for hosts that offer WASI 0.2 alone, and validates the result.
#[derive(Parser)]
#[command(name = "counterfoil-plug", version)]
struct Arguments {
    /// The component with the tools.
    tools: PathBuf,
    /// The component that exports what the tools import.
    adapter: PathBuf,
    /// Where to put the result. A file that is there is replaced as a whole.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The folder with the WIT of the tools' package, for the documentation.
    #[arg(long, value_name = "FOLDER")]
    wit: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let mut component = compose(&arguments.tools, &arguments.adapter)?;
    documentation(&arguments.wit)?.append_to_component(&mut component);
    // A running program may be reading the file.
    let draft = arguments.output.with_extension(process::id().to_string());
    fs::write(&draft, component)?;
    Ok(fs::rename(&draft, &arguments.output)?)
}

fn compose(tools: &Path, adapter: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut graph = CompositionGraph::new();
    let [tools, adapter] = [("tools", tools), ("adapter", adapter)].map(|(name, path)| {
        let package = Package::from_file(name, None, path, graph.types_mut());
        let package = package.map_err(|error| format!("{}: {error:#}", path.display()))?;
        Ok::<_, Box<dyn Error>>(graph.register_package(package)?)
    });
    plug(&mut graph, vec![adapter?], tools?)?;
    Ok(graph.encode(EncodeOptions::default())?)
}

/// The doc comments of the WIT, as a section of their own.
fn documentation(wit: &Path) -> Result<CustomSection<'static>, Box<dyn Error>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit).map_err(|error| format!("{}: {error:#}", wit.display()))?;
    // Of a component its readers know one world, by this name, and refuse documents of another.
    let tools = resolve.packages[package].worlds.get("tools").copied().ok_or("the WIT has no world `tools`")?;
    resolve.packages[package].worlds = [("root".to_owned(), tools)].into_iter().collect();
    resolve.packages[package].interfaces.clear();
    let data = PackageMetadata::extract(&resolve, package).encode()?;
    Ok(CustomSection { name: PackageMetadata::SECTION_NAME.into(), data: Cow::Owned(data) })
}
