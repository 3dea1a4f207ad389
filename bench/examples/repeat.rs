//! For a profiler: makes notes, or replays one, again and again. Under `valgrind --tool=callgrind` the difference of two runs
//! is exact.
//!
//! ```text
//! repeat engine|component new|replay CALLS-IN-A-BATCH BATCHES
//! ```

#![expect(clippy::unwrap_used, reason = "a program for who develops this")]

use counterfoil::native::{self, Memory};
use counterfoil::tools::REGISTRY;
use host_example::{Files, Host, Invocation, Limits};
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [who, what, calls, batches] = &arguments[..] else { panic!("engine|component new|replay CALLS BATCHES") };
    let (calls, batches): (u64, u64) = (calls.parse().unwrap(), batches.parse().unwrap());
    let note = |number: u64| {
        let key = format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        format!(r#"{{"idempotency_key":"{key}","body":"Milk, bread, and a screwdriver."}}"#)
    };
    let is_new = what == "new";
    let batch = move |batch: u64| {
        let first = if is_new { batch * calls } else { 0 };
        (first..first + calls).map(note)
    };
    let permissions = ["read", "write-notes"].map(str::to_owned).to_vec();
    let (workspace, subject) = ("acme".to_owned(), "ada".to_owned());
    let tool = "create_note".to_owned();
    let took = if who == "engine" {
        let ada = counterfoil::Principal { workspace, subject, permissions };
        let mut instance = native::Instance::new(&REGISTRY, move |_| Some(ada.clone()), Memory::default());
        repeat(batches, |number| {
            let calls: Vec<_> =
                batch(number).map(|arguments| native::Invocation { tool: tool.clone(), arguments }).collect();
            assert!(instance.call(&calls).iter().all(|reply| !reply.refused));
        })
    } else {
        let ada = host_example::Principal { workspace, subject, permissions };
        let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/counterfoil.wasm");
        let host = Host::load(&component, Limits::default()).unwrap();
        let folder = TempDir::new_in("/dev/shm").unwrap();
        let files = Files::sole(&folder.path().join("repeat.db"), Duration::ZERO).unwrap();
        let mut instance = host.instance(move |_| Some(ada.clone()), files).unwrap();
        repeat(batches, |number| {
            let calls: Vec<_> = batch(number).map(|arguments| Invocation { tool: tool.clone(), arguments }).collect();
            assert!(instance.call(&calls).unwrap().iter().all(|reply| !reply.refused));
        })
    };
    println!("{:.2} µs a call", took.as_secs_f64() * 1e6 / (calls * batches) as f64);
}

/// The first, which opens the database, is not counted.
fn repeat(batches: u64, mut work: impl FnMut(u64)) -> Duration {
    work(0);
    let start = Instant::now();
    (1..=batches).for_each(work);
    start.elapsed()
}
