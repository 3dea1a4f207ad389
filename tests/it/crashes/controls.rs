//! Disks and components that are broken: what tries the real ones must find something bad.

use super::cut::{Found, Seeds, crash_everywhere, try_all};
use super::errors::fail_everywhere;
use super::plot::scenes;
use super::scene::Scene;
use super::stage::Stage;
use crate::harness::{component, mutant};
use host_example::Sharing::{self, Shared, Sole, SoleAtomic};
use std::path::Path;

const SEEDS: Seeds = Seeds { first: 1, images: 2 };

/// On a disk that `broken` has broken.
fn crash(component: &Path, mode: Sharing, scene: &str, broken: impl Fn(&Scene)) -> Found {
    let stage = || Stage::new(component);
    let scenes = scenes(&stage(), mode, Some(scene));
    scenes.iter().for_each(broken);
    try_all(stage, &scenes, |stage, scene| crash_everywhere(stage, scene, SEEDS))
}

fn on_an_honest_disk(_: &Scene) {}

#[track_caller]
fn assert_noticed(control: &str, found: &Found) {
    let Some(first) = found.bad.first() else { panic!("{control}: {} recoveries, and nothing bad", found.recoveries) };
    println!("{control}: {} of {} are bad, among them {first}", found.bad.len(), found.recoveries);
}

#[test]
fn a_disk_that_ignores_sync_is_noticed() {
    for mode in [Sole, Shared, SoleAtomic] {
        let found = crash(component(), mode, "create_note, warm", |scene| scene.disk.lie(u32::MAX));
        assert_noticed(&format!("no sync, {mode:?}"), &found);
    }
}

#[test]
fn a_component_that_does_not_sync_each_commit_is_noticed() {
    let found = crash(&mutant("synchronous-normal"), Sole, "create_note, warm", on_an_honest_disk);
    assert_noticed("synchronous=NORMAL", &found);
}

/// What is read was written by a process that died before it synced.
#[test]
fn a_component_that_does_not_sync_what_it_reads_is_noticed() {
    for mode in [Sole, Shared] {
        let found = crash(&mutant("no-sync-at-open"), mode, "create_note, warm", on_an_honest_disk);
        assert_noticed(&format!("no sync at open, {mode:?}"), &found);
    }
}

/// A journal that is removed at the commit, and back after a power cut, undoes what was answered. `storage.remove` promises
/// that it is not; the component does not rest its commits on that.
#[test]
fn a_journal_that_comes_back_is_noticed_and_the_component_leaves_none() {
    let forgetful = |scene: &Scene| scene.disk.forget_removals();
    let removing = mutant("journal-delete");
    let scene = "create_note, warm";
    assert_noticed("journal_mode=DELETE", &crash(&removing, Shared, scene, forgetful));
    crash(&removing, Shared, scene, on_an_honest_disk).assert_nothing_bad();
    crash(component(), Shared, scene, forgetful).assert_nothing_bad();
}

/// The host's sync is all or nothing, but what a failed call wrote before it is to be taken back first.
#[test]
fn a_component_that_cannot_roll_back_is_noticed() {
    let off = mutant("journal-off");
    let stage = || Stage::new(&off);
    let scenes = scenes(&Stage::new(component()), SoleAtomic, Some("batch that spills"));
    let found = try_all(stage, &scenes, fail_everywhere);
    assert_noticed("journal_mode=OFF", &found);
    assert!(found.bad.iter().any(|bad| bad.contains("The database is damaged.")));
}
