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
//! | `controls.rs` | rules that are wrong and a disk that lies, each of which must be found |
//!
//! `COUNTERFOIL_HISTORIES` says how many, and `COUNTERFOIL_SEED` which. Left out: several instances at a time, which
//! `concurrency.rs` has; what a provider may do, which is explored by `model.rs`; restored copies.

mod controls;
mod image;
mod judge;
mod life;
mod reference;
mod steps;

use judge::{Seen, judge};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use reference::{RULES, Rules};
use std::env;
use std::io::{self, Write};
use std::thread;
use std::time::Instant;
use steps::{Deed, History, Step, histories};
use uuid::Uuid;

const HISTORIES: u32 = 2400;
/// Each has a stream of histories of its own, so that they are the same on any number of processors.
const PARTS: u8 = 4;

/// What a run came to: how many steps and verdicts of each kind, or a shortest history that disagrees, and why.
type Ran = Result<(Seen, Seen), (History, String)>;

/// Runs so many histories of one part until one disagrees.
fn run(seed: u64, part: u8, cases: u32, rules: &Rules, disk_lies: bool) -> Ran {
    let mut bytes = [part; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let world = life::world();
    let counted = std::cell::RefCell::new((Seen::new(), Seen::new()));
    let result = runner.run(&histories(), |history| {
        let events = life::play(&world, &history, disk_lies);
        let verdicts = judge(rules, &events).map_err(TestCaseError::fail)?;
        let (steps, seen) = &mut *counted.borrow_mut();
        history.steps.iter().for_each(|step| judge::count(steps, kind(step)));
        verdicts.into_iter().for_each(|(verdict, number)| *seen.entry(verdict).or_default() += number);
        Ok(())
    });
    match result {
        Ok(()) => Ok(counted.into_inner()),
        Err(TestError::Fail(reason, history)) => Err((history, reason.message().to_owned())),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

fn kind(step: &Step) -> &'static str {
    match step {
        Step::Do(Deed::Calls(attempts)) if attempts.len() == 1 => "call",
        Step::Do(Deed::Calls(_)) => "batch",
        Step::Do(Deed::Sweep) => "sweep",
        Step::Break { .. } => "break",
        Step::Restart { .. } => "restart",
        Step::Revoke(..) => "revoke",
        Step::Grant(..) => "grant",
        Step::Move(_) => "move",
        Step::Delete(_) => "delete",
        Step::Later(_) => "later",
        Step::Earlier(_) => "earlier",
        Step::Work(_) => "work",
    }
}

fn number<T: std::str::FromStr>(name: &str, otherwise: impl FnOnce() -> T) -> T {
    let number = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number"));
    env::var(name).map_or_else(|_| otherwise(), number)
}

/// B1 to B12, C1 to C3, C5, C8, E4, F2, G1, G4.
#[test]
fn every_answer_of_every_history_is_one_that_the_contract_allows() {
    let seed = number("COUNTERFOIL_SEED", || Uuid::new_v4().as_u64_pair().0);
    let cases = number("COUNTERFOIL_HISTORIES", || HISTORIES).div_ceil(PARTS.into());
    let start = Instant::now();
    let parts = (0..PARTS).map(|part| thread::spawn(move || run(seed, part, cases, &RULES, false)));
    let parts: Vec<_> = parts.collect::<Vec<_>>().into_iter().map(|part| part.join().unwrap()).collect();
    let (mut steps, mut seen) = (Seen::new(), Seen::new());
    for part in parts {
        let (more_steps, more_seen) = part.unwrap_or_else(|(history, why)| {
            panic!("{why}\n{history:#?}\nTo see it again, set COUNTERFOIL_SEED={seed}.")
        });
        more_steps.into_iter().for_each(|(kind, number)| *steps.entry(kind).or_default() += number);
        more_seen.into_iter().for_each(|(verdict, number)| *seen.entry(verdict).or_default() += number);
    }
    // To be seen in every run, past the capture of a passing test's output.
    let (histories, total) = (cases * u32::from(PARTS), steps.values().sum::<u64>());
    let seconds = start.elapsed().as_secs();
    writeln!(
        io::stderr(),
        "histories: {histories}, {total} steps, {seconds} s, COUNTERFOIL_SEED={seed}\n  {steps:?}\n  {seen:?}"
    )
    .unwrap();
}
#[test]
fn dbg_time() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut r = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let world = life::world();
    let (mut g, mut p, mut j) = (0u128, 0u128, 0u128);
    for _ in 0..200 {
        let t = Instant::now();
        let h = histories().new_tree(&mut r).unwrap().current();
        g += t.elapsed().as_micros();
        let t = Instant::now();
        let e = life::play(&world, &h, false);
        p += t.elapsed().as_micros();
        let t = Instant::now();
        judge(&RULES, &e).unwrap();
        j += t.elapsed().as_micros();
    }
    eprintln!("gen {} play {} judge {}", g / 200, p / 200, j / 200);
}
