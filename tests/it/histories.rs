//! Random histories of calls, retries, batches, crashes, restarts, revocations, moves, deletes, expiry and clocks that step, of
//! several callers, against a reference that holds nothing but sets. Whatever happened, each answer must be one that the reference
//! allows; at the end the power goes, everything that was asked is asked again, and the database must hold what the reference
//! holds.
//!
//! | File | What is there |
//! |---|---|
//! | `steps.rs` | what a history is made of, and how histories are made |
//! | `reference.rs` | what must come of each step: the contract's rules over sets |
//! | `judge.rs` | whether what happened is that; after a crash, in which of the possible worlds |
//! | `life.rs`, `image.rs` | a history as it happens to the real component, on a disk in memory |
//! | `found.rs` | histories that once found a fault |
//! | `controls.rs` | rules that are wrong and a disk that lies, each of which must be found |
//!
//! `COUNTERFOIL_HISTORIES` says how many, and `COUNTERFOIL_SEED` which. Left out: several instances at a time, which
//! `concurrency.rs` has; what a provider may do, which is explored by `model.rs`; restored copies.

mod controls;
mod found;
mod image;
mod judge;
mod life;
mod reference;
mod steps;

use judge::{Seen, count, judge};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use reference::RULES;
use std::cell::RefCell;
use std::io::{self, Write};
use std::thread;
use std::time::Instant;
use steps::{Deed, History, Mode, Step, Then, histories};
use test_support::{number, seed};

const HISTORIES: u32 = 2400;
/// Each has a stream of histories of its own, so that they are the same on any number of processors.
const PARTS: u8 = 4;

/// Those of the n-th part, the same whenever the seed is.
fn runner(seed: u64, part: u8, cases: u32) -> TestRunner {
    let mut bytes = [part; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// How many steps of each kind there were and how many verdicts, or a shortest history that disagrees, and why.
type Ran = Result<(Seen, Seen), (History, String)>;

fn run(mut runner: TestRunner, disk_lies: bool) -> Ran {
    let world = life::world();
    let counted = RefCell::new((Seen::new(), Seen::new()));
    let result = runner.run(&histories(), |history| {
        let events = life::play(&world, &history, disk_lies);
        let verdicts = judge(&RULES, &events).map_err(TestCaseError::fail)?;
        let (steps, seen) = &mut *counted.borrow_mut();
        history.steps.iter().flat_map(kinds).for_each(|kind| count(steps, kind, 1));
        verdicts.into_iter().for_each(|(verdict, number)| count(seen, verdict, number));
        Ok(())
    });
    match result {
        Ok(()) => Ok(counted.into_inner()),
        Err(TestError::Fail(reason, history)) => Err((history, reason.message().to_owned())),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

fn kinds(step: &Step) -> Vec<&'static str> {
    let next = |next| if next == Mode::Same { "the same mode" } else { "another mode" };
    match step {
        Step::Do(Deed::Calls(attempts)) if attempts.len() == 1 => vec!["call"],
        Step::Do(Deed::Calls(_)) => vec!["batch"],
        Step::Do(Deed::Sweep) => vec!["sweep"],
        Step::Break { then, next: mode, .. } => {
            let then = match then {
                Then::GoOn => "goes on",
                Then::Kill => "kill",
                Then::PowerCut(_) => "power cut",
            };
            vec![then, next(*mode)]
        }
        Step::Restart { closes: true, next: mode } => vec!["clean restart", next(*mode)],
        Step::Restart { closes: false, next: mode } => vec!["restart", next(*mode)],
        Step::Revoke(..) => vec!["revoke"],
        Step::Grant(..) => vec!["grant"],
        Step::Move(_) => vec!["move"],
        Step::Delete(_) => vec!["delete"],
        Step::Later(_) => vec!["later"],
        Step::Earlier(_) => vec!["earlier"],
        Step::Work(_) => vec!["work"],
    }
}

/// A test whose branches are never reached proves nothing.
const KINDS: [&str; 16] = [
    "call",
    "batch",
    "sweep",
    "goes on",
    "kill",
    "power cut",
    "the same mode",
    "another mode",
    "clean restart",
    "restart",
    "revoke",
    "grant",
    "move",
    "delete",
    "later",
    "earlier",
];
const VERDICTS: [&str; 20] = [
    "fresh",
    "replay",
    "replay of an answer that was lost",
    "read",
    "status",
    "denied",
    "invalid_argument",
    "not_found",
    "key_expired",
    "key_conflict",
    "version_conflict",
    "unavailable",
    "in doubt, done",
    "in doubt, not done",
    "swept",
    "handed out",
    "dies",
    "fails",
    "has no space",
    "forgets",
];

/// B1 to B12, C1 to C3, C5, C8, E4, F2, G1, G4.
#[test]
fn every_answer_of_every_history_is_one_that_the_contract_allows() {
    let seed = seed();
    let cases = number("COUNTERFOIL_HISTORIES").unwrap_or(HISTORIES).div_ceil(PARTS.into());
    let start = Instant::now();
    let parts = (0..PARTS).map(|part| thread::spawn(move || run(runner(seed, part, cases), false)));
    let parts: Vec<_> = parts.collect::<Vec<_>>().into_iter().map(|part| part.join().unwrap()).collect();
    let (mut steps, mut seen) = (Seen::new(), Seen::new());
    for part in parts {
        let part = part.unwrap_or_else(|(history, why)| {
            panic!("{why}\n{history:#?}\nTo see it again, set COUNTERFOIL_SEED={seed}.")
        });
        part.0.into_iter().for_each(|(kind, number)| count(&mut steps, kind, number));
        part.1.into_iter().for_each(|(verdict, number)| count(&mut seen, verdict, number));
    }
    let (histories, seconds) = (cases * u32::from(PARTS), start.elapsed().as_secs());
    // To be seen in every run, past the capture of a passing test's output.
    let line = format!("histories: {histories}, {seconds} s, COUNTERFOIL_SEED={seed}");
    writeln!(io::stderr(), "{line}\n  steps {steps:?}\n  verdicts {seen:?}").unwrap();
    if histories >= HISTORIES {
        assert_eq!(KINDS.iter().find(|kind| !steps.contains_key(*kind)), None);
        assert_eq!(VERDICTS.iter().find(|verdict| !seen.contains_key(*verdict)), None);
    }
}
