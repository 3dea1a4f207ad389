//! What survives when storage fails, or the process or the machine dies, at any call to storage: every answered call, once.
//!
//! | File | What is there |
//! |---|---|
//! | `plot.rs`, `step.rs` | what is tried: what is on a disk, and the steps that are taken |
//! | `scene.rs`, `stage.rs` | one of them, without a fault and after one; the host, and a look at the database from outside |
//! | `cut.rs`, `errors.rs` | the faults: the machine or the process dies; a call fails |
//! | `controls.rs` | disks and components that are broken, which must be found |
//! | `failed_sync.rs` | what the system forgets of a sync that failed |
//!
//! `COUNTERFOIL_SEED` moves the images of power cuts, `COUNTERFOIL_IMAGES` says how many random ones are made of each call, and
//! `COUNTERFOIL_SCENE` names the one scene to be tried.

mod controls;
mod cut;
mod errors;
mod failed_sync;
mod plot;
mod scene;
mod stage;
mod step;

use crate::harness::*;
use cut::{Found, MODES, Seeds, crash_everywhere, try_all};
use host_example::Sharing;
use scene::Scene;
use stage::Stage;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use test_support::number;

/// Whoever tries all scenes takes all processors, and is measured.
fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stage() -> Stage {
    Stage::new(component())
}

fn all_scenes() -> Vec<Scene> {
    let stage = stage();
    let scenes: Vec<_> = MODES.into_iter().flat_map(|mode| plot::scenes(&stage, mode, only().as_deref())).collect();
    assert!(!scenes.is_empty(), "there is no scene {:?}", only());
    scenes
}

fn only() -> Option<String> {
    std::env::var("COUNTERFOIL_SCENE").ok()
}

fn seeds() -> Seeds {
    Seeds { first: number("COUNTERFOIL_SEED").unwrap_or(1), images: number("COUNTERFOIL_IMAGES").unwrap_or(6) }
}

/// To be seen in every run, past the capture of a passing test's output.
fn tell(what: &str, found: &Found, took: Duration) {
    let Found { scenes, calls, recoveries, bad } = found;
    let bad = bad.len();
    let line = format!("{what}: {scenes} scenes, {calls} calls, {recoveries} recoveries, {bad} bad, {took:.0?}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// C1, C2, C5; incidents 7 and 22.
#[test]
fn what_was_answered_survives_a_crash_at_any_call_to_storage() {
    let _turn = in_turn();
    let (start, seeds) = (Instant::now(), seeds());
    let found = try_all(stage, &all_scenes(), |stage, scene| crash_everywhere(stage, scene, seeds));
    tell(&format!("crashes with seed {}", seeds.first), &found, start.elapsed());
    found.assert_nothing_bad();
    assert!(found.recoveries >= 20_000 || only().is_some(), "{}", found.recoveries);
}

/// A checkpoint reads and writes each of some 2,000 pages, so that the scene of one has one.
#[test]
fn a_checkpoint_that_sqlite_makes_by_itself_is_among_what_is_tried() {
    let scenes = plot::scenes(&stage(), Sharing::Sole, Some(plot::CHECKPOINTED));
    let [scene] = &scenes[..] else { panic!("{} scenes", scenes.len()) };
    let clean = scene.clean(&stage());
    assert!(clean.calls > 4000, "{} calls to storage", clean.calls);
}

/// C1, C3, C5; incident 5: only `unconfirmed` leaves open whether a call committed.
#[test]
fn a_call_to_storage_that_fails_is_a_clean_refusal_and_the_retry_acts_once() {
    let _turn = in_turn();
    let start = Instant::now();
    let found = try_all(stage, &all_scenes(), errors::fail_everywhere);
    tell("errors", &found, start.elapsed());
    found.assert_nothing_bad();
}
