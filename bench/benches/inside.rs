//! What one call costs by itself, without an owner: the engine natively in memory, and the component on files in memory.
//! For a profiler, and to see which part of a call a change made cheaper.

#![expect(clippy::unwrap_used, reason = "a benchmark that meets an error has failed")]

use counterfoil::native::{self, Memory};
use counterfoil::tools::REGISTRY;
use divan::Bencher;
use host_example::{Files, Host, Instance, Invocation, Limits};
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

fn main() {
    divan::main();
}

/// Each key once.
fn note(number: u64) -> (String, String) {
    // Spread over the index, as random keys are.
    let key = format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    ("create_note".to_owned(), format!(r#"{{"idempotency_key":"{key}","body":"Milk, bread, and a screwdriver."}}"#))
}

/// So many notes, of new keys or of one and the same.
fn notes(count: u64, is_new: bool) -> impl Fn() -> Vec<(String, String)> {
    let made = Cell::new(1);
    move || {
        let first = made.get();
        made.set(if is_new { first + count } else { first });
        (first..first + count).map(note).collect()
    }
}

const PERMISSIONS: [&str; 2] = ["read", "write-notes"];

mod engine {
    use super::*;

    fn run(bencher: Bencher<'_, '_>, count: u64, is_new: bool) {
        let ada = counterfoil::Principal {
            workspace: "acme".to_owned(),
            subject: "ada".to_owned(),
            permissions: PERMISSIONS.map(str::to_owned).to_vec(),
        };
        let mut instance = native::Instance::new(&REGISTRY, move |_| Some(ada.clone()), Memory::default());
        let make = notes(count, is_new);
        let input = || -> Vec<_> {
            make().into_iter().map(|(tool, arguments)| native::Invocation { tool, arguments }).collect()
        };
        instance.call(&input());
        bencher.with_inputs(input).bench_local_refs(|calls| instance.call(calls));
    }

    #[divan::bench(args = [1, 64])]
    fn new(bencher: Bencher<'_, '_>, count: u64) {
        run(bencher, count, true);
    }

    #[divan::bench(args = [1, 64])]
    fn replay(bencher: Bencher<'_, '_>, count: u64) {
        run(bencher, count, false);
    }
}

mod component {
    use super::*;

    /// On files in memory where there are some.
    fn instance() -> (TempDir, Instance) {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/counterfoil.wasm");
        let host = Host::load(&component, Limits::default()).unwrap();
        let ada = host_example::Principal {
            workspace: "acme".to_owned(),
            subject: "ada".to_owned(),
            permissions: PERMISSIONS.map(str::to_owned).to_vec(),
        };
        let files = Files::sole(&folder.path().join("bench.db"), Duration::ZERO).unwrap();
        (folder, host.instance(move |_| Some(ada.clone()), files).unwrap())
    }

    fn run(bencher: Bencher<'_, '_>, count: u64, is_new: bool) {
        let (_folder, mut instance) = instance();
        let make = notes(count, is_new);
        let input =
            || -> Vec<_> { make().into_iter().map(|(tool, arguments)| Invocation { tool, arguments }).collect() };
        instance.call(&input()).unwrap();
        bencher.with_inputs(input).bench_local_refs(|calls| instance.call(calls).unwrap());
    }

    #[divan::bench(args = [1, 64])]
    fn new(bencher: Bencher<'_, '_>, count: u64) {
        run(bencher, count, true);
    }

    #[divan::bench(args = [1, 64])]
    fn replay(bencher: Bencher<'_, '_>, count: u64) {
        run(bencher, count, false);
    }

    /// What crossing the boundary costs.
    #[divan::bench]
    fn nothing(bencher: Bencher<'_, '_>) {
        let (_folder, mut instance) = instance();
        bencher.bench_local(|| instance.call(&[]).unwrap());
    }
}
