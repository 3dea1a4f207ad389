//! An instance that stops for longer than its lease, before any of its calls to the file system and after the look at the
//! lock that came before it, and goes on when others have taken over: whatever it still does is not done to the database.

use crate::disk::{Disk, ROOT};
use crate::harness::*;
use crate::host::{Counted, Plan, World};
use serde_json::Value;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Calls = Vec<(&'static str, Value)>;

/// An instance on a thread of its own, stopped before one of its calls to the file system.
struct Stopped {
    go_on: SyncSender<()>,
    thread: JoinHandle<Client>,
    answers: Receiver<Vec<Value>>,
}

impl Stopped {
    /// None if it was done before that call.
    fn start(world: &World, counted: Counted, at: u64, calls: &Calls) -> Option<Stopped> {
        let ((stopped, is_stopped), (go_on, goes_on)) = (sync_channel(0), sync_channel(0));
        let (answered, answers) = sync_channel(1);
        let mut client = Client::with(world, counted, Plan::Stop(at, stopped, goes_on));
        let calls = calls.clone();
        let thread = thread::spawn(move || {
            let answer = client.batch(&calls).unwrap();
            client.store.data_mut().plan = Plan::None;
            // Nobody waits if it was done before it came to the call.
            drop(answered.send(answer));
            client
        });
        is_stopped.recv().ok()?;
        Some(Stopped { go_on, thread, answers })
    }

    /// Lets it end. Its answers, and the instance.
    fn go_on(self) -> (Vec<Value>, Client) {
        self.go_on.send(()).unwrap();
        (self.answers.recv().unwrap(), self.thread.join().unwrap())
    }
}

fn small() -> Calls {
    vec![("create_note", note("key-a", "by the owner"))]
}

/// More than SQLite keeps in memory (2 MB), so that it writes before the commit: 40 KB in each note, and as much in its
/// receipt.
fn spilling() -> Calls {
    let body = "\u{1f95b}".repeat(10_000);
    (0..32).map(|number| ("create_note", note(&format!("key-a{number}"), &body))).collect()
}

/// How many calls to the file system they take.
fn count(world: &World, counted: Counted, calls: &Calls) -> u64 {
    let world = copy(world);
    let mut client = Client::with(&world, counted, Plan::None);
    client.batch(calls).unwrap().iter().for_each(assert_fresh);
    client.store.data().calls
}

/// What is wrong once all are done: an answer that is not kept, an effect that is there in part, or a damaged file.
fn wrong(world: &World, answered: &[(&str, Value, Value)], retried: &Calls) -> Result<(), String> {
    let mut client = Client::new(world);
    let trap = |trap: wasmtime::Error| format!("{trap:#}");
    for (tool, arguments, first) in answered {
        let mut again = client.try_call(tool, arguments.clone()).map_err(trap)?;
        again["replayed"] = first["replayed"].clone();
        if again != *first {
            return Err(format!("answered {first}, and later {again}"));
        }
    }
    for (tool, arguments) in retried {
        let answer = client.try_call(tool, arguments.clone()).map_err(trap)?;
        if answer["status"] != "succeeded" {
            return Err(format!("the retry was answered {answer}"));
        }
        let note = client.try_call("get_note", serde_json::json!({ "note_id": answer["note_id"] })).map_err(trap)?;
        if note["body"] != arguments["body"] {
            return Err(format!("the retry was answered {answer}, and the note is {note}"));
        }
    }
    match client.verify() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("{wrong:?}")),
    }
}

/// The owner makes its calls and is stopped before one of its own to the file system; two others make theirs; it goes on.
fn overtaken(world: &World, counted: Counted, at: u64, calls: &Calls) -> Result<(), String> {
    overtaken_after(world, counted, at, calls, |_| ())
}

fn overtaken_after(
    world: &World,
    counted: Counted,
    at: u64,
    calls: &Calls,
    meanwhile: impl FnOnce(&World),
) -> Result<(), String> {
    let world = copy(world);
    let owner = Stopped::start(&world, counted, at, calls).ok_or("it did not come so far")?;
    meanwhile(&world);
    let mut answered = Vec::new();
    for key in ["key-b", "key-c"] {
        let arguments = note(key, "by another");
        let answer =
            Client::new(&world).try_call("create_note", arguments.clone()).map_err(|trap| format!("{trap:#}"))?;
        if answer["replayed"] != false {
            return Err(format!("{key} was answered {answer}"));
        }
        answered.push(("create_note", arguments, answer));
    }
    let (answers, mut owner) = owner.go_on();
    // What it does next, too.
    let late = ("create_note", note("key-late", "by the owner, later"));
    let next = owner.try_call(late.0, late.1.clone()).map_err(|trap| format!("{trap:#}"))?;
    // Of a batch, which commits as one, the ends.
    let ends = [(calls.first(), answers.first()), (calls.last(), answers.last())];
    let ends = ends.map(|(call, answer)| (call.cloned().unwrap(), answer.cloned().unwrap()));
    let (calls, answers): (Calls, Vec<_>) = ends.into_iter().chain([(late, next)]).unzip();
    let succeeded = calls.iter().zip(answers).filter(|(_, answer)| answer["status"] == "succeeded");
    answered.extend(succeeded.map(|((tool, arguments), answer)| (*tool, arguments.clone(), answer)));
    wrong(&world, &answered, &calls)
}

/// The failures of all runs, in which the owner is stopped before each of its calls to the file system.
fn stop_everywhere(world: &World, counted: Counted, calls: &Calls) -> Vec<String> {
    let count = count(world, counted, calls);
    let tried = |at| overtaken(world, counted, at, calls).err().map(|error| format!("call {at} of {count}: {error}"));
    // Two halves at once.
    thread::scope(|scope| {
        let halves = [1, 2].map(|first| scope.spawn(move || (first..=count).step_by(2).filter_map(tried).collect()));
        halves.into_iter().flat_map(|half: thread::ScopedJoinHandle<'_, Vec<_>>| half.join().unwrap()).collect()
    })
}

#[test]
fn an_owner_that_stops_anywhere_in_a_small_transaction_harms_nobody() {
    assert_nothing(&stop_everywhere(&old_world(), Counted::All, &small()));
    assert_nothing(&stop_everywhere(&World::new(Disk::new()), Counted::All, &small()));
}

/// While a disk stores, nobody renews the lock. One that takes longer than a lease is noticed, and a longer lease agreed on.
#[test]
fn callers_of_a_disk_that_stores_for_longer_than_a_lease_are_served_all_the_same() {
    let world = World::new(old_world().disk().clone()).with_slow_sync(Duration::from_millis(1200));
    let tries = |caller: u32| {
        let world = world.clone();
        move || {
            (0..10)
                .map(|number| {
                    let key = format!("key-{caller}-{number}");
                    let tries = (1..20).find(|_| Client::new(&world).note(&key, "slow")["status"] == "succeeded");
                    tries.unwrap_or_else(|| panic!("{key} was never served"))
                })
                .sum()
        }
    };
    let all: u32 = thread::scope(|scope| {
        let callers = [1, 2, 3].map(|caller| scope.spawn(tries(caller)));
        callers.into_iter().map(|caller: thread::ScopedJoinHandle<'_, u32>| caller.join().unwrap()).sum()
    });
    eprintln!("{all} tries for 30 notes");
    assert!(all < 60, "{all}");
    assert_eq!(Client::new(&world).verify(), Vec::<String>::new());
}

/// An owner is stopped before each of its changes, a taker before each of its calls, reads included, and the owner goes on
/// first: so its late change falls between two looks of the taker's at the same file.
#[test]
fn a_change_that_comes_late_in_the_middle_of_a_takeover_harms_nobody() {
    let world = old_world();
    let taker = vec![("create_note", note("key-b", "by the taker"))];
    let wrongs: Mutex<Vec<String>> = Mutex::default();
    let tried = |owner_at: u64| {
        for taker_at in 1.. {
            let world = copy(&world);
            let Some(owner) = Stopped::start(&world, Counted::Changes, owner_at, &small()) else { return };
            let Some(stopped) = Stopped::start(&world, Counted::All, taker_at, &taker) else {
                owner.go_on();
                return;
            };
            let (mut by_owner, mut by_taker) = (owner.go_on().0, stopped.go_on().0);
            let answers = [(small(), by_owner.remove(0)), (taker.clone(), by_taker.remove(0))];
            let succeeded = answers.into_iter().filter(|(_, answer)| answer["status"] == "succeeded");
            let answered: Vec<_> = succeeded
                .map(|(mut calls, answer)| {
                    let (tool, arguments) = calls.remove(0);
                    (tool, arguments, answer)
                })
                .collect();
            if let Err(error) = wrong(&world, &answered, &[taker.clone(), small()].concat()) {
                wrongs.lock().unwrap().push(format!("owner at {owner_at}, taker at {taker_at}: {error}"));
            }
        }
    };
    let count = count(&world, Counted::Changes, &small());
    // Two halves at once.
    thread::scope(|scope| {
        for first in [1, 2] {
            // What comes before is opening.
            scope.spawn(move || (count - 26 + first..=count).step_by(2).for_each(tried));
        }
    });
    assert_nothing(&wrongs.into_inner().unwrap());
}

/// What operators are told not to do while anybody uses the database: the token is removed, or the folder with it, or the
/// folder is moved away.
#[test]
fn a_lock_that_is_removed_under_an_owner_harms_nobody() {
    let world = old_world();
    for what in ["token", "folder", "moved"] {
        let mut wrongs = Vec::new();
        for at in 1..=count(&world, Counted::Changes, &small()) {
            let meanwhile = |world: &World| {
                let mut disk = world.disk();
                if what == "moved" {
                    return disk.rename(ROOT, "counterfoil.db-lock", ROOT, "elsewhere").unwrap();
                }
                let folder = disk.stat(ROOT, "counterfoil.db-lock").unwrap();
                for name in disk.names(folder).unwrap() {
                    disk.unlink(folder, &name).unwrap();
                }
                if what == "folder" {
                    disk.unlink(ROOT, "counterfoil.db-lock").unwrap();
                }
            };
            let done = overtaken_after(&world, Counted::Changes, at, &small(), meanwhile);
            wrongs.extend(done.err().map(|error| format!("{what}, call {at}: {error}")));
        }
        assert_nothing(&wrongs);
    }
}

#[test]
fn an_owner_that_stops_before_any_change_of_a_spilling_transaction_harms_nobody() {
    assert_nothing(&stop_everywhere(&old_world(), Counted::Changes, &spilling()));
}

/// The control: where the files of the database stay the same ones, what a late owner writes must be noticed.
#[test]
fn a_fence_without_new_files_is_noticed() {
    for calls in [small(), spilling()] {
        let world = old_world();
        world.disk().keeps_files = true;
        // From the commit backwards.
        let mut every = (1..=count(&world, Counted::Changes, &calls)).rev();
        assert!(every.any(|at| overtaken(&world, Counted::Changes, at, &calls).is_err()));
    }
}

/// The owner stops, a taker stops in its fence, another overtakes it there; then the taker and the owner go on, in either
/// order.
#[test]
fn a_taker_that_is_overtaken_anywhere_in_its_fence_harms_nobody() {
    let world = old_world();
    let taker = vec![("create_note", note("key-b", "by the taker"))];
    let mut wrongs = Vec::new();
    let mut tried = 0;
    for owner_at in 1..=count(&world, Counted::Changes, &small()) {
        for taker_at in 1.. {
            let world = copy(&world);
            let Some(owner) = Stopped::start(&world, Counted::Changes, owner_at, &small()) else { break };
            let Some(stopped) = Stopped::start(&world, Counted::Changes, taker_at, &taker) else {
                owner.go_on();
                break;
            };
            tried += 1;
            let arguments = note("key-c", "by another");
            let answer = Client::new(&world).try_call("create_note", arguments.clone()).unwrap();
            assert_fresh(&answer);
            let mut answered = vec![("create_note", arguments, answer)];
            let (first, second) = if tried % 2 == 0 { (stopped, owner) } else { (owner, stopped) };
            let (first, second) = (first.go_on().0.remove(0), second.go_on().0.remove(0));
            let (by_taker, by_owner) = if tried % 2 == 0 { (first, second) } else { (second, first) };
            for (answer, (tool, arguments)) in [(by_taker, &taker[0]), (by_owner, &small()[0])] {
                if answer["status"] == "succeeded" {
                    answered.push((tool, arguments.clone(), answer));
                }
            }
            let retried = [taker.clone(), small()].concat();
            if let Err(error) = wrong(&world, &answered, &retried) {
                wrongs.push(format!("owner at {owner_at}, taker at {taker_at}: {error}"));
            }
        }
    }
    eprintln!("{tried} pairs");
    assert!(tried > 100, "{tried}");
    assert_nothing(&wrongs);
}
