//! Controls: rules that are wrong, each of which must be found by histories, and a disk that lies about what is durable. Else
//! what the histories agree with would prove nothing.

use super::judge::judge;
use super::life;
use super::reference::Check::{Access, Arguments, Condition, Permission, Receipt};
use super::reference::{RULES, Rules, World};
use super::steps::{Call, History, histories};
use super::{HISTORIES, run, runner};
use proptest::strategy::{Strategy, ValueTree};
use serde_json::json;
use std::thread;

/// The most steps of a history that shows what is wrong.
const SHORT: usize = 6;
/// The same in each run, so that whether one is found is no matter of chance.
const SEED: u64 = 1;
/// How often one is shortened at most.
const SHRINKS: u32 = 300;

type Mistake = (&'static str, Rules);

fn mistakes() -> Vec<Mistake> {
    vec![
        (
            "a receipt is shown before access is checked",
            Rules { order: [Permission, Arguments, Receipt, Access, Condition], ..RULES },
        ),
        (
            "the permission is checked after the receipt",
            Rules { order: [Arguments, Access, Receipt, Permission, Condition], ..RULES },
        ),
        (
            "access is checked before the arguments",
            Rules { order: [Permission, Access, Arguments, Receipt, Condition], ..RULES },
        ),
        (
            "the version is tested before the receipt is looked up",
            Rules { order: [Permission, Arguments, Access, Condition, Receipt], ..RULES },
        ),
        ("a retry acts again", Rules { order: [Permission, Arguments, Access, Condition, Condition], ..RULES }),
        ("an expired key is new", Rules { expired: None, ..RULES }),
        (
            "a key has expired in its last moment",
            Rules { is_expired: |of, now, open| of.is_tombstone || of.valid_until <= now && !open, ..RULES },
        ),
        (
            "a key expires while its operation is in progress",
            Rules { is_expired: |of, now, _| of.is_tombstone || of.valid_until < now, ..RULES },
        ),
        (
            "a swept key replays once the clock is back",
            Rules { is_expired: |of, now, open| of.valid_until < now && !open, ..RULES },
        ),
        ("a swept key is new", Rules { sweeps: |world, name| drop(world.receipts.remove(name)), ..RULES }),
        ("a creation is forgotten with what it made", Rules { deletes: forget, ..RULES }),
        ("subjects share their keys", Rules { name: |name, _| (name.0, "all", name.2, name.3), ..RULES }),
        ("workspaces share their keys", Rules { name: |name, _| ("all", name.1, name.2, name.3), ..RULES }),
        ("tools share their keys", Rules { name: |name, _| (name.0, name.1, "all", name.3), ..RULES }),
        ("a call is known by its content", Rules { name: by_content, ..RULES }),
        ("arguments are not compared", Rules { is_same: |_, _| true, ..RULES }),
        ("the expected version is not compared", Rules { is_same: is_same_but_for_versions, ..RULES }),
        ("a replay shows what is there now", Rules { replayed: as_it_is_now, ..RULES }),
        ("a refused call uses its key", Rules { refusals_use_keys: true, ..RULES }),
        ("a refused call undoes the others of its batch", Rules { batches_are_all_or_nothing: true, ..RULES }),
        ("a crash forgets what was acknowledged", Rules { crashes: |world| world.receipts.clear(), ..RULES }),
        ("what is in doubt has not happened", Rules { doubt: (true, false), ..RULES }),
        ("what is in doubt has happened", Rules { doubt: (false, true), ..RULES }),
    ]
}

type Name = super::reference::Name;

fn forget(world: &mut World, name: &Name) {
    world.receipts.remove(name);
}

fn by_content(name: Name, call: &Call<String>) -> Name {
    match call {
        Call::CreateNote { body, .. } => (name.0, name.1, name.2, body),
        _ => name,
    }
}

fn is_same_but_for_versions(one: &Call<String>, other: &Call<String>) -> bool {
    match (one, other) {
        (Call::SetInterval { version, .. }, Call::SetInterval { key, automation, minutes, .. }) => {
            *one == Call::SetInterval { key, automation: automation.clone(), version: *version, minutes: *minutes }
        }
        _ => one == other,
    }
}

fn as_it_is_now(world: &World, name: &Name) -> serde_json::Value {
    let mut result = world.receipts[name].result.clone();
    if let Some(automation) = world.automations.get(name) {
        result["version"] = json!(automation.version);
    }
    result
}

#[test]
fn every_rule_that_is_wrong_is_found_by_a_short_history() {
    let threads: Vec<_> = (0..2).map(|half| thread::spawn(move || find_every_second(half))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn find_every_second(half: u8) {
    let mut left: Vec<Mistake> = mistakes().into_iter().skip(half.into()).step_by(2).collect();
    let world = life::world();
    for case in 0..HISTORIES {
        let history = || histories().new_tree(&mut runner(SEED + u64::from(case), half, 1)).unwrap();
        let events = life::play(&world, &history().current(), false);
        left.retain(|(what, rules)| {
            let Err(why) = judge(rules, &events) else { return true };
            let judge = |history: &History| judge(rules, &life::play(&world, history, false)).err();
            let (history, why) = shortest(history(), judge).unwrap_or((history().current(), why));
            let steps = history.steps.len();
            println!("{what}: history {case}, {steps} steps: {why}\n{history:?}\n");
            assert!(steps <= SHORT, "{what}: {steps} steps");
            false
        });
        if left.is_empty() {
            return;
        }
    }
    let left: Vec<_> = left.into_iter().map(|(what, _)| what).collect();
    panic!("not found: {left:?}");
}

/// A history that is shorter and is wrong as well, with why.
fn shortest(
    mut tree: impl ValueTree<Value = History>,
    wrong: impl Fn(&History) -> Option<String>,
) -> Option<(History, String)> {
    let mut shortest = None;
    let mut goes_on = tree.simplify();
    for _ in 0..SHRINKS {
        if !goes_on {
            break;
        }
        let history = tree.current();
        goes_on = match wrong(&history) {
            Some(why) => {
                shortest = Some((history, why));
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
    shortest
}

/// What is acknowledged is lost with the power.
#[test]
fn a_disk_that_lies_about_sync_is_found_by_a_short_history() {
    let (history, why) = run(runner(SEED, 0, HISTORIES), true).expect_err("a disk that lies");
    println!("{why}\n{history:?}");
    assert!(history.steps.len() <= SHORT, "{history:#?}");
}
