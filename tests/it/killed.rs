//! Several processes share one file, the native sqlite3 program beside them, and each is killed at random moments: nothing
//! acknowledged is lost, nothing is doubled, and nobody ever reads an effect without its receipt.
//!
//! It prints its seed, and repeats an earlier run with COUNTERFOIL_SEED, as far as the processes' timing lets it.

use crate::concurrency::counted_automation;
use crate::harness::*;
use fastrand::Rng;
use host_example::{Files, Host, Limits};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io};
use test_support::seed;

/// Processes that call again and again, and how often each is killed.
const CALLERS: usize = 4;
const KILLS: usize = 8;

/// How many lines such a process prints before it is killed, and how much later that is; both at most.
const LINES: usize = 12;
const LATER: Duration = Duration::from_millis(20);

/// Programs that make one call each, and native transactions.
const PROGRAMS: usize = 8;
const NATIVE: usize = 20;

/// So that looking takes no time from the others.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A call as it was intended, and what was told of it.
#[derive(Clone, Debug, Default)]
struct Deed {
    tool: String,
    arguments: Value,
    reply: Option<Value>,
}

#[test]
fn processes_that_are_killed_lose_nothing_and_double_nothing_beside_native_sqlite() {
    let mut random = Rng::with_seed(seed());
    host_program();
    let db = Database::new();
    let automation = counted_automation(&db);
    let id = automation["automation_id"].as_str().unwrap();
    db.sql("CREATE TABLE natives (number INTEGER PRIMARY KEY, filler BLOB NOT NULL)");
    let (begun, is_over, reads, killed) =
        (Instant::now(), AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));

    let deeds: Vec<Deed> = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                reads.fetch_add(usize::from(read(&db)), Relaxed);
                thread::sleep(BETWEEN_LOOKS);
            }
        });
        let mut others: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (db, killed, mut random) = (&db, &killed, random.fork());
                scope.spawn(move || call_and_kill(db, id, caller, killed, &mut random))
            })
            .collect();
        let (programs, natives) = (random.fork(), random.fork());
        others.push(scope.spawn(|| programs_of_one_call(&db, &killed, programs)));
        others.push(scope.spawn(|| native_transactions(&db, &killed, natives)));
        // A test that fails here ends the reader first.
        let done: Vec<_> = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Relaxed);
        reader.join().unwrap();
        done.into_iter().flat_map(Result::unwrap).collect()
    });

    println!(
        "{killed:?} kills in {:?}: {} acknowledged, {reads:?} looks by native SQLite",
        begun.elapsed(),
        deeds.len()
    );
    assert!(killed.load(Relaxed) >= CALLERS * KILLS && reads.load(Relaxed) > 0);
    let of = |tool: &str| deeds.iter().filter(|deed| deed.tool == tool && is_done(deed)).count();
    let (notes, edits) = (of("create_note"), of("set_interval"));
    assert_eq!(counts(&db), [notes.to_string(), "1".to_owned(), (notes + edits + 1).to_string()]);
    assert_eq!(db.sql("SELECT count(DISTINCT body) FROM notes"), notes.to_string());
    assert_eq!(db.sql("SELECT version, n FROM automations, counter"), format!("{}|{edits}", edits + 1));
    assert_eq!(db.sql("SELECT count(*), max(number) FROM natives"), format!("{NATIVE}|{}", NATIVE - 1));
    assert_eq!(db.sql("PRAGMA integrity_check"), "ok");
    let mut client = db.shared();
    for deed in deeds.iter().filter(|deed| is_done(deed)) {
        let expected = with(deed.reply.clone().unwrap(), "replayed", true);
        assert_eq!(client.call(&deed.tool, &deed.arguments), expected, "{deed:?}");
    }
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// Anything else is an edit that came too late.
fn is_done(deed: &Deed) -> bool {
    let reply = deed.reply.as_ref().unwrap();
    let is_late = reply["code"] == "version_conflict";
    assert!(is_late || reply["status"] == "succeeded", "{deed:?}");
    !is_late
}

/// Whether the file could be read, by native SQLite. What it sees is whole.
fn read(db: &Database) -> bool {
    let sql =
        "BEGIN; SELECT (SELECT count(*) FROM notes JOIN receipts USING (operation_id)) - (SELECT count(*) FROM notes),
                 (SELECT count(*) FROM receipts) - (SELECT count(*) FROM notes) - version, n + 1 - version
               FROM automations, counter; COMMIT";
    match db.try_sql(sql) {
        Ok(differences) => {
            assert_eq!(differences, "0|0|0");
            true
        }
        Err(error) => {
            assert!(error.contains("locked"), "{error}");
            false
        }
    }
}

/// Kills one process after the other, each of which first calls what the one before had not been told of.
fn call_and_kill(db: &Database, id: &str, caller: usize, killed: &AtomicUsize, random: &mut Rng) -> Vec<Deed> {
    let mut deeds: Vec<Deed> = Vec::new();
    for life in 0..=KILLS {
        let pending = deeds.pop_if(|deed| deed.reply.is_none());
        let pending = pending.map_or(Value::Null, |deed| json!([deed.tool, deed.arguments]));
        let order = json!({ "automation": id, "name": format!("{caller}-{life}"), "pending": pending, "is_last": life == KILLS });
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "killed::child", "--nocapture"]).env("TEST_CALLER", order.to_string());
        child
            .env("TEST_DATABASE", db.path())
            .env("TEST_COMPONENT", component())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told = |line: String| {
            if let Some(intended) = line.strip_prefix("intends ") {
                let (tool, arguments) = serde_json::from_str(intended).unwrap();
                deeds.push(Deed { tool, arguments, reply: None });
            } else if let Some(reply) = line.strip_prefix("told ") {
                deeds.last_mut().unwrap().reply = Some(serde_json::from_str(reply).unwrap());
            }
        };
        if life < KILLS {
            // The test framework's own lines are among them.
            lines.by_ref().take(4 + random.usize(..LINES)).for_each(&mut told);
            thread::sleep(LATER.mul_f64(random.f64()));
            child.kill().unwrap();
            killed.fetch_add(1, Relaxed);
        }
        lines.for_each(&mut told);
        child.wait().unwrap();
    }
    deeds
}

/// What is killed above. By itself it does nothing.
#[test]
fn child() {
    let Ok(order) = env::var("TEST_CALLER") else { return };
    let order: Value = serde_json::from_str(&order).unwrap();
    let [database, component] =
        ["TEST_DATABASE", "TEST_COMPONENT"].map(|name| PathBuf::from(env::var_os(name).unwrap()));
    let host = Host::load(&component, Limits::default()).unwrap();
    let open = || Client::new(&host, Files::shared(&database).unwrap());
    let (mut client, mut looking) = (open(), open());
    // A line that is not whole is not read.
    let say = |line: String| io::stdout().lock().write_all(format!("\n{line}\n").as_bytes()).unwrap();
    let mut call = |tool: &str, arguments: Value| {
        say(format!("intends {}", json!([tool, arguments])));
        let reply = until_answered(|| client.call(tool, &arguments));
        say(format!("told {reply}"));
        reply
    };
    if let (Some(tool), arguments) = (order["pending"][0].as_str(), order["pending"][1].clone()) {
        call(tool, arguments);
    }
    let name = order["name"].as_str().unwrap();
    for number in 0.. {
        if order["is_last"] == true && number == 3 {
            break;
        }
        call("create_note", note(&format!("{name}-{number}"), &format!("{name}: {number}")));
        let automation = json!({ "automation_id": order["automation"] });
        let version = until_answered(|| looking.call("get_automation", &automation))["version"].as_u64().unwrap();
        call("set_interval", interval(&format!("{name}-{number}"), &automation, version as u32, 5 + number));
    }
}

fn until_answered(mut call: impl FnMut() -> Value) -> Value {
    loop {
        let reply = call();
        if reply["retryable"] != true {
            return reply;
        }
    }
}

/// A program for each call, killed until it is left alone. It may have said everything before.
fn programs_of_one_call(db: &Database, killed: &AtomicUsize, mut random: Rng) -> Vec<Deed> {
    let mut usual = Duration::ZERO;
    let deed = |number: usize| {
        let arguments = note(&format!("program-{number}"), &format!("program: {number}"));
        let reply = until_answered(|| {
            let begun = Instant::now();
            let program = db.start("create_note", &arguments);
            let output = match random.bool() && number > 0 {
                true => kill_within(program, usual, killed, &mut random),
                false => program.wait_with_output().unwrap(),
            };
            usual = begun.elapsed().max(usual);
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| json!({ "retryable": true }))
        });
        Deed { tool: "create_note".to_owned(), arguments, reply: Some(reply) }
    };
    (0..PROGRAMS).map(deed).collect()
}

/// Transactions of native SQLite, which can be repeated, and are until one was not killed. A killed one leaves its journal.
fn native_transactions(db: &Database, killed: &AtomicUsize, mut random: Rng) -> Vec<Deed> {
    for number in 0..NATIVE {
        loop {
            let row = format!("INSERT OR IGNORE INTO natives VALUES ({number}, zeroblob(200000))");
            let native = db.start_sql(&format!("PRAGMA busy_timeout = 1000; {row}"));
            let output = match random.bool() {
                true => kill_within(native, Duration::from_millis(60), killed, &mut random),
                false => native.wait_with_output().unwrap(),
            };
            if output.status.success() {
                break;
            }
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.is_empty() || error.contains("locked"), "{error}");
        }
    }
    Vec::new()
}

fn kill_within(mut process: Child, time: Duration, killed: &AtomicUsize, random: &mut Rng) -> std::process::Output {
    thread::sleep(time.mul_f64(random.f64()));
    killed.fetch_add(usize::from(process.try_wait().unwrap().is_none()), Relaxed);
    process.kill().unwrap();
    process.wait_with_output().unwrap()
}
