//! The corpus is replayed, so that what once broke a target does not again, and the targets themselves do not rot.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use fuzz::TARGETS;
use std::fs;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// One after the other: they share a server.
#[test]
fn no_input_of_the_corpus_breaks_anything() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = take_hook();
    // Also what panics on another thread, or in a task that nobody asks.
    set_hook(Box::new(move |info| {
        if info.location().is_none_or(|place| !place.file().ends_with("corpus.rs")) {
            PANICS.fetch_add(1, SeqCst);
        }
        hook(info);
    }));
    for (target, run) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        let mut inputs = 0;
        for input in fs::read_dir(folder).unwrap() {
            let path = input.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let done = catch_unwind(|| run(&bytes));
            assert!(done.is_ok() && PANICS.load(SeqCst) == 0, "{}", path.display());
            inputs += 1;
        }
        assert!(inputs > 10, "{target} has {inputs}");
    }
}
