//! What survives when an instance dies at any of its changes to the file system and the power goes: every answered call,
//! once.

use crate::disk::{Disk, Lie};
use crate::harness::*;
use crate::host::{Counted, Plan, World};
use serde_json::Value;

type Answered = Vec<(&'static str, &'static str, Value)>;

const FIRST: [(&str, &str); 3] = [("key-1", "first"), ("key-2", "second"), ("key-3", "third")];

/// An instance makes the notes, as far as it lives. What was answered, and whether it lived to the end.
fn create(world: &World, notes: &[(&'static str, &'static str)], plan: Plan) -> (Answered, bool) {
    let mut client = Client::with(world, Counted::Changes, plan);
    let mut answered = Vec::new();
    for &(key, body) in notes {
        let Ok(answer) = client.try_call("create_note", note(key, body)) else { return (answered, false) };
        if answer["status"] == "succeeded" {
            answered.push((key, body, answer));
        }
    }
    (answered, true)
}

/// What is wrong with what the power cut left.
fn check(world: &World, seed: u64, answered: &Answered, all: &[(&'static str, &'static str)]) -> Result<(), String> {
    let left = World::new(world.disk().power_cut(seed));
    let mut client = Client::new(&left);
    let mut create = |key, body| {
        let answer = client.try_call("create_note", note(key, body)).map_err(|trap| format!("{trap:#}"))?;
        let read = serde_json::json!({ "note_id": answer["note_id"] });
        let note = client.try_call("get_note", read).map_err(|trap| format!("{trap:#}"))?;
        if note["body"] == body { Ok(answer) } else { Err(format!("{key} was answered {answer}, the note is {note}")) }
    };
    for (key, body, first) in answered {
        let mut again = create(*key, *body)?;
        again["replayed"] = first["replayed"].clone();
        if again != *first {
            return Err(format!("answered {first}, and after the power cut {again}"));
        }
    }
    for (key, body) in all {
        create(*key, *body)?;
    }
    match client.verify() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("{wrong:?}")),
    }
}

const SEEDS: std::ops::Range<u64> = 0..4;

/// One instance, which dies at each of its changes; or at none, which is the last round. Ends once there are so many
/// failures.
fn die_everywhere(world: &World, enough: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for at in 1.. {
        let world = copy(world);
        let (answered, lived) = create(&world, &FIRST, Plan::Kill(at));
        for seed in SEEDS {
            if let Err(error) = check(&world, seed, &answered, &FIRST) {
                wrong.push(format!("dead at change {at}, seed {seed}: {error}"));
            }
        }
        if lived || wrong.len() >= enough {
            assert!(at > 30 || !wrong.is_empty(), "{at}");
            return wrong;
        }
    }
    wrong
}

#[test]
fn an_answered_call_survives_a_power_cut_at_any_change() {
    assert_nothing(&die_everywhere(&World::new(Disk::new()), 10));
    assert_nothing(&die_everywhere(&old_world(), 10));
}

const TAKER: [(&str, &str); 2] = [("key-1", "first"), ("key-b", "by the taker")];

/// An owner is killed at each of its changes; another takes over, repeats its call and makes one of its own, and dies at
/// each of its changes, those of the fence among them; then the power goes.
fn die_taking_over(world: &World, enough: usize) -> (u64, Vec<String>) {
    let (mut tried, mut wrong) = (0, Vec::new());
    for owner_at in 1.. {
        let killed = copy(world);
        let (by_owner, owner_lived) = create(&killed, &FIRST[..1], Plan::Kill(owner_at));
        for taker_at in 1.. {
            let world = copy(&killed);
            let (by_taker, taker_lived) = create(&world, &TAKER, Plan::Kill(taker_at));
            let answered = [by_owner.clone(), by_taker].concat();
            // All that was not synced is gone, and something else each time.
            for seed in [0, 2 + tried] {
                tried += 1;
                if let Err(error) = check(&world, seed, &answered, &TAKER) {
                    wrong.push(format!("owner dead at {owner_at}, taker at {taker_at}, seed {seed}: {error}"));
                }
            }
            if taker_lived || wrong.len() >= enough {
                break;
            }
        }
        if owner_lived || wrong.len() >= enough {
            return (tried, wrong);
        }
    }
    (tried, wrong)
}

/// What a killed owner wrote and did not sync is read by the taker, who must make it durable before it answers from it.
#[test]
fn an_answer_after_a_takeover_survives_a_power_cut_at_any_change_of_owner_and_taker() {
    let (tried, wrong) = die_taking_over(&old_world(), 10);
    eprintln!("{tried} recoveries after a takeover");
    assert!(tried > 1_000, "{tried}");
    assert_nothing(&wrong);
}

/// The controls: a disk on which sync does nothing, or nothing to the entries of folders, such as what the fence renames.
#[test]
fn a_disk_that_lies_about_sync_is_noticed() {
    for lie in [Lie::All, Lie::Folders] {
        let world = old_world();
        world.disk().lie = Some(lie);
        assert!(!die_taking_over(&world, 1).1.is_empty(), "{lie:?}");
    }
    let world = old_world();
    world.disk().lie = Some(Lie::All);
    assert!(!die_everywhere(&world, 1).is_empty());
}
