//! A component that means harm (`tests/hostile`): it ends, its host stays up and small, and nobody else notices.
//!
//! It is let loose in a process of its own, whose memory, descriptors and log are looked at.

use crate::harness::*;
use host_example::commands::{LogFormat, log};
use host_example::{Files, Host, Instance, Limits};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use test_support::xtask;

/// Which limit ends it.
#[derive(Clone, Copy)]
enum By {
    Computing,
    Storage,
    /// Another, or a trap of its own.
    Another,
}

/// A host whose limits are soon reached where they are to be, and late elsewhere.
fn hostile_host(by: By) -> &'static Host {
    static HOSTS: [OnceLock<Host>; 3] = [const { OnceLock::new() }; 3];
    let (computing, storage) = match by {
        By::Computing => (Duration::from_millis(300), Duration::MAX),
        By::Storage => (Duration::MAX, Duration::from_millis(500)),
        By::Another => (Duration::from_secs(30), Duration::MAX),
    };
    let (lock_wait, file_size) = (Duration::from_millis(100), 8 << 20);
    let limits = Limits { computing, storage, lock_wait, file_size, ..Limits::default() };
    HOSTS[by as usize].get_or_init(|| Host::load(&xtask(&["component", "hostile"]), limits).unwrap())
}

/// What takes its time in storage.
const SLOW: [&str; 3] = ["set_size_again", "sync", "remove"];

/// What a tool comes to.
enum End {
    /// A trap, with these words in it.
    Trap(&'static str),
    /// An answer with these.
    Answer(&'static str),
}
use End::{Answer, Trap};

const INTERRUPTED: End = Trap("interrupt");
const TOO_MUCH_DATA: End = Trap("too much data");
const AT_ONCE: End = Trap("bytes at once");
const FAILED: End = Trap("storage failed 32 times");
const NO_HANDLE: End = Trap("no free keys");

const HARM: [(&str, End); 42] = [
    ("compute", INTERRUPTED),
    ("sleep", INTERRUPTED),
    ("sleep_again", INTERRUPTED),
    ("sleep_until", INTERRUPTED),
    ("poll_again", INTERRUPTED),
    ("poll_many", Trap("handle limit")),
    ("recurse", Trap("call stack exhausted")),
    ("exit", Trap("exit")),
    ("grow", Trap("unreachable")),
    ("allocate", Trap("unreachable")),
    ("long_reply", TOO_MUCH_DATA),
    ("many_replies", TOO_MUCH_DATA),
    ("random", Trap("exceeds limit")),
    ("random_again", INTERRUPTED),
    ("open", NO_HANDLE),
    ("streams", NO_HANDLE),
    ("timers", NO_HANDLE),
    ("read_much", AT_ONCE),
    ("read_far", FAILED),
    ("read_beyond", INTERRUPTED),
    ("write_much", AT_ONCE),
    ("write_more", TOO_MUCH_DATA),
    ("write_far", FAILED),
    ("write_farthest", FAILED),
    ("fill", Answer("8388608 Ok(())")),
    ("write_again", INTERRUPTED),
    ("set_size", Answer("io")),
    ("set_size_again", INTERRUPTED),
    ("sync", INTERRUPTED),
    ("size", INTERRUPTED),
    ("exists", INTERRUPTED),
    ("remove", INTERRUPTED),
    ("remove_none", INTERRUPTED),
    ("sharing", INTERRUPTED),
    ("lock", INTERRUPTED),
    ("wait", INTERRUPTED),
    ("callers", INTERRUPTED),
    ("print", INTERRUPTED),
    ("print_out", INTERRUPTED),
    ("zeroes", Trap("more zeroes")),
    ("none_such", Trap("unreachable")),
    ("answer", Answer("good")),
];

/// How much more memory the process takes at most: an instance's, what the host may take from it, and a little.
const GROWTH_KB: u64 = (64 + 2 * 16 + 16) << 10;

/// When the host counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

#[test]
fn a_hostile_component_ends_and_its_host_stays_up_and_others_are_served() {
    _ = [By::Computing, By::Storage, By::Another].map(hostile_host);
    host();
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str| File::create(folder.path().join(name)).unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", r#"ulimit -n 256 && exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
    child.args(["--exact", "hostile::let_loose", "--nocapture"]).env("TEST_HOSTILE", "1").env("NO_COLOR", "1");

    let status = child.env_remove("RUST_LOG").stdout(said("out")).stderr(said("err")).status().unwrap();

    let [out, err] = ["out", "err"].map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
    print!("{out}");
    assert!(status.success(), "{status}: {err}");
    assert_eq!(out.matches(" kB").count(), HARM.len(), "{out}");
    assert!(err.contains("the component wrote to stderr") && err.contains("no tool none_such"), "{err}");
    assert!(!err.contains('\x1b') && err.len() < 128 << 10, "{} bytes in the log: {err}", err.len());
}

/// What the test above starts. By itself it does nothing.
#[test]
fn let_loose() {
    if std::env::var_os("TEST_HOSTILE").is_none() {
        return;
    }
    log(&["host_example"], LogFormat::Text);
    let (neighbour, is_over, answered) = (Database::new(), AtomicBool::new(false), AtomicUsize::new(0));
    let (mut meanwhile, mut failed) = (0, Vec::new());
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            // Of the same host, and of this project's component.
            let other = Database::new();
            let mut same = instance(&other, By::Another);
            let mut good = neighbour.sole();
            while !is_over.load(Relaxed) {
                let number = answered.load(Relaxed);
                assert_fresh(&good.call("create_note", &note(&format!("key-{number}"), "hello")));
                assert_eq!(answer(&mut same, "answer").unwrap(), "good");
                answered.fetch_add(1, Relaxed);
            }
        });
        for (tool, end) in HARM {
            let before = answered.load(Relaxed);
            // Peaks are counted from here (proc(5), clear_refs).
            fs::write("/proc/self/clear_refs", "5").unwrap();
            let kb = status_kb("VmRSS:");
            let begun = Instant::now();
            let (sender, receiver) = channel();
            thread::spawn(move || {
                do_harm(tool, &end);
                sender.send(()).unwrap();
            });
            match receiver.recv_timeout(STUCK) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => failed.push(tool),
                Err(RecvTimeoutError::Timeout) => {
                    println!("{tool}: the host is stuck");
                    std::process::exit(1);
                }
            }
            let more = status_kb("VmHWM:").saturating_sub(kb);
            println!("{tool}: {:?}, {more} kB", begun.elapsed());
            assert!(more < GROWTH_KB, "{tool}: {more} kB");
            meanwhile += answered.load(Relaxed) - before;
            // One of two more calls began when it was over.
            let after = answered.load(Relaxed);
            while answered.load(Relaxed) < after + 2 {
                thread::yield_now();
            }
        }
    });
    assert!(failed.is_empty(), "{failed:?}");
    println!("{meanwhile} calls were answered meanwhile");
    assert!(meanwhile > HARM.len());
    assert_eq!(neighbour.sole().verify(), Vec::<String>::new());
    assert_eq!(neighbour.count("notes"), answered.load(Relaxed).to_string());
}

/// Says so also if the test has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn do_harm(tool: &str, end: &End) {
    let db = Database::new();
    let beside = db.path().with_file_name("beside.db");
    fs::write(&beside, "untouched").unwrap();
    let by = match end {
        _ if SLOW.contains(&tool) => By::Storage,
        Trap("interrupt") => By::Computing,
        _ => By::Another,
    };
    let mut hostile = instance(&db, by);

    let ended = answer(&mut hostile, tool);

    match (ended, end) {
        (Ok(text), Answer(words)) => assert_eq!(text, *words, "{tool}"),
        (Err(trap), Trap(words)) => {
            assert!(format!("{trap:?}").contains(words), "{tool}: {trap:?}");
            assert!(hostile.is_spent() && answer(&mut hostile, "answer").is_err(), "{tool}");
            assert_eq!(descriptors(beside.parent().unwrap()), 0, "{tool}");
        }
        (ended, _) => panic!("{tool}: {ended:?}"),
    }
    assert_eq!(fs::read_to_string(&beside).unwrap(), "untouched", "{tool}");
    let names = fs::read_dir(db.path().parent().unwrap()).unwrap();
    let names: BTreeSet<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let allowed = ["beside.db", "test.db", "test.db-journal", "test.db-lock", "test.db-wal"].map(str::to_owned);
    assert!(names.is_subset(&BTreeSet::from(allowed)), "{tool}: {names:?}");
    // Another instance on the same file is as good as the first.
    assert_eq!(answer(&mut instance(&db, by), "answer").unwrap(), "good", "{tool}");
}

/// An instance of the hostile component, whose first call of a batch is Ada's and no other.
fn instance(db: &Database, by: By) -> Instance {
    let files = Files::shared(&db.path()).unwrap();
    hostile_host(by).instance(|call| (call == 0).then(ada), files).unwrap()
}

fn answer(instance: &mut Instance, tool: &str) -> wasmtime::Result<String> {
    let reply = instance.call_one(tool, "{}")?;
    let body: Value = serde_json::from_str(&reply.body).unwrap();
    Ok(body["text"].as_str().unwrap().to_owned())
}

fn status_kb(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// How many files in the folder are open.
fn descriptors(folder: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.starts_with(folder)).count()
}

/// What no Rust program can say: each is a component of its own, whose export `run` does harm. `DROP` stands for the host's
/// function that drops a timer.
const WRITTEN_BY_HAND: [(&str, &str, &str); 4] = [
    (
        "tables without end",
        "undefined element",
        r#"(component
             (core module $m
               (table $t 0 funcref)
               (func (export "run")
                 (loop $again
                   (br_if $again (i32.ne (i32.const -1) (table.grow $t (ref.null func) (i32.const 65536)))))
                 (drop (table.get $t (i32.const -1)))
                 (call_indirect $t (i32.const -1))))
             (core instance $i (instantiate $m))
             (func (export "run") (canon lift (core func $i "run"))))"#,
    ),
    (
        "many memories",
        "memory",
        r#"(component
             (core module $m (memory 512))
             (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
             (core module $run (func (export "run")))
             (core instance $i (instantiate $run))
             (func (export "run") (canon lift (core func $i "run"))))"#,
    ),
    (
        "a handle that was dropped",
        "unknown handle index",
        r#"(component
             (import "wasi:io/poll@0.2.0" (instance $poll (export "pollable" (type (sub resource)))))
             (alias export $poll "pollable" (type $pollable))
             (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
               (alias outer 1 $pollable (type $p)) (export "pollable" (type (eq $p)))
               (export "subscribe-duration" (func (param "when" u64) (result (own 1))))))
             (core func $subscribe (canon lower (func $clock "subscribe-duration")))
             (core func $drop (canon resource.drop $pollable))
             (core module $m
               (import "" "subscribe" (func $subscribe (param i64) (result i32)))
               (import "" "drop" (func $drop (param i32)))
               (func (export "run") (local $handle i32)
                 (local.set $handle (call $subscribe (i64.const 1)))
                 (call $drop (local.get $handle))
                 (call $drop (local.get $handle))))
             (core instance $host (export "subscribe" (func $subscribe)) (export "drop" (func $drop)))
             (core instance $i (instantiate $m (with "" (instance $host))))
             (func (export "run") (canon lift (core func $i "run"))))"#,
    ),
    (
        "waiting for another thread",
        "threads",
        r#"(component
             (core module $m
               (memory 1 1 shared)
               (func (export "run")
                 (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))))
             (core instance $i (instantiate $m))
             (func (export "run") (canon lift (core func $i "run"))))"#,
    ),
];

#[test]
fn harm_that_is_written_by_hand_ends_in_an_error() {
    for (what, why, text) in WRITTEN_BY_HAND {
        let db = Database::new();
        let file = db.path().with_extension("wasm");
        fs::write(&file, wat::parse_str(text).unwrap()).unwrap();

        let run = || -> wasmtime::Result<()> {
            let host = Host::load(&file, Limits::default())?;
            let mut store = host.store(|_| None, Files::shared(&db.path()).unwrap());
            let instance = host.component().instantiate(&mut store)?;
            instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())
        };

        let error = format!("{:?}", run().unwrap_err());
        assert!(error.contains(why), "{what}: {error}");
    }
}

/// B10 and B2: as on a full disk.
#[test]
fn a_database_that_may_not_grow_refuses_new_notes_and_replays_old_ones() {
    for sole in [false, true] {
        let db = Database::new();
        let limited = Host::load(component(), Limits { file_size: 1 << 18, ..Limits::default() }).unwrap();
        let open = |host: &Host| match sole {
            true => Client::new(host, Files::sole(&db.path(), Duration::ZERO).unwrap()),
            false => Client::new(host, Files::shared(&db.path()).unwrap()),
        };
        let mut client = open(&limited);
        let body = "x".repeat(10_000);
        let make = |client: &mut Client, number: usize| {
            client.call("create_note", &json!({ "idempotency_key": format!("key-{number}"), "body": body }))
        };
        let first = make(&mut client, 0);
        let refused =
            (1..100).map(|number| (number, make(&mut client, number))).find(|(_, reply)| reply["code"] != Value::Null);

        let (number, refused) = refused.expect("it may not grow");
        assert_refused(&refused, "unavailable");
        assert_replay_of(&first, &make(&mut client, 0));
        drop(client);
        let mut client = open(host());
        assert_fresh(&make(&mut client, number));
        assert_eq!(client.verify(), Vec::<String>::new());
        drop(client);
        assert_eq!(db.count("notes"), (number + 1).to_string());
    }
}
