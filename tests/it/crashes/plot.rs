//! What is tried: every tool, batches, migrations, upkeep, the outbox, moves between modes, and what a killed process left.

use super::scene::Scene;
use super::stage::Stage;
use super::step::Step::{Accept, Batch, Checkpoint, Claim, Close, Mark, Resolve, Settle, Sweep};
use super::step::{Names, Step};
use crate::disk::{self, Disk};
use crate::harness::{automation, note};
use crate::outbox_harness::{DAY, KEYED, LEASE, NONE, START, deploy};
use counterfoil::tools::REGISTRY;
use host_example::ProviderContract;
use host_example::Sharing::{self, Shared, Sole, SoleAtomic};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::fs;

/// What was on the disk before.
enum Before {
    Nothing,
    /// An instance took these steps so many milliseconds ago and was dropped, and all of it is stored.
    Used(Sharing, u64, Vec<Step>),
    /// Of these steps the last was broken off by a kill, in each call that ends a part of its commit. The page cache holds
    /// what was written.
    Killed(Sharing, Vec<Step>),
    /// It has so many of today's migrations.
    Schema(usize),
}

struct Plot(&'static str, Before, ProviderContract, Vec<Step>);

fn call(tool: &'static str, arguments: Value) -> Step {
    Step::Call(tool, arguments)
}

fn create(key: &str) -> Step {
    call("create_note", note(key, key))
}

fn set_interval(key: &str, version: u32, minutes: u32) -> (&'static str, Value) {
    let arguments = json!({
        "idempotency_key": key, "automation_id": "$automation", "expected_version": version, "interval_minutes": minutes,
    });
    ("set_interval", arguments)
}

fn start(key: &str) -> Step {
    call("start_deployment", deploy(key, "web", "r1"))
}

fn cancel() -> Step {
    call("cancel_operation", json!({ "operation_id": "$operation" }))
}

/// One of each.
fn used() -> Vec<Step> {
    vec![create("n0"), call("create_automation", automation("a0", 10)), start("d0")]
}

fn batch() -> Step {
    let (tool, other_version) = set_interval("e1", 7, 20);
    Batch(vec![
        ("create_note", note("b1", "first")),
        ("create_automation", automation("b2", 60)),
        ("create_note", note("b1", "first")),
        ("create_note", note("b1", "another")),
        (tool, other_version),
        ("create_note", note("n0", "n0")),
        ("start_deployment", deploy("b3", "web", "r2")),
    ])
}

/// A commit after which SQLite moves the WAL into the database by itself.
pub const CHECKPOINTED: &str = "checkpoint after a commit";

/// Larger than SQLite's cache, so that it is written in part before its commit.
fn spilling_batch() -> Step {
    long_notes("s", 64)
}

/// Each takes twenty pages.
fn long_notes(key: &str, number: usize) -> Step {
    let body = "\u{1f95b}".repeat(10_000);
    Batch((0..number).map(|number| ("create_note", note(&format!("{key}{number}"), &body))).collect())
}

fn plots(mode: Sharing) -> Vec<Plot> {
    let warm = || Before::Used(mode, 0, used());
    let warm_and = |mut more: Vec<Step>| Before::Used(mode, 0, used().into_iter().chain(more.drain(..)).collect());
    let edit = |key, version, minutes| {
        let (tool, arguments) = set_interval(key, version, minutes);
        call(tool, arguments)
    };
    let reads = vec![
        call("get_note", json!({ "note_id": "$note" })),
        call("get_automation", json!({ "automation_id": "$automation" })),
        call("get_operation", json!({ "operation_id": "$operation" })),
        call("find_operation", json!({ "tool": "create_note", "idempotency_key": "n0" })),
        call("find_operation", json!({ "tool": "create_note", "idempotency_key": "absent" })),
    ];
    let old = |steps| Before::Used(mode, 40 * DAY, steps);
    let mut plots = vec![
        Plot("create_note, fresh", Before::Nothing, NONE, vec![create("n1"), create("n2")]),
        Plot("create_note, warm", warm(), NONE, vec![create("n1"), create("n0"), create("n2")]),
        Plot("create_automation, fresh", Before::Nothing, NONE, vec![call("create_automation", automation("a1", 30))]),
        Plot("create_automation, warm", warm(), NONE, vec![call("create_automation", automation("a1", 30))]),
        Plot(
            "set_interval, fresh",
            Before::Nothing,
            NONE,
            vec![call("create_automation", automation("a1", 30)), edit("e1", 1, 40)],
        ),
        Plot("set_interval, warm", warm(), NONE, vec![edit("e1", 1, 40), edit("e2", 1, 50), edit("e3", 2, 60)]),
        Plot("start_deployment, fresh", Before::Nothing, NONE, vec![start("d1")]),
        Plot("start_deployment, warm", warm(), NONE, vec![start("d1"), start("d2")]),
        Plot("cancel_operation, fresh", Before::Nothing, NONE, vec![start("d1"), cancel()]),
        Plot("cancel_operation before dispatch", warm(), NONE, vec![cancel(), cancel()]),
        Plot("cancel_operation after dispatch", warm_and(vec![Claim]), KEYED, vec![cancel(), cancel()]),
        Plot("reads, fresh", Before::Nothing, NONE, reads[4..].to_vec()),
        Plot("reads, warm", warm(), NONE, reads.clone()),
        Plot("reads, closed", warm_and(vec![Close]), NONE, reads),
        Plot("batch, fresh", Before::Nothing, NONE, vec![Batch(vec![("create_note", note("b1", "first")); 2])]),
        Plot("batch, warm", warm(), NONE, vec![batch(), create("n1")]),
        Plot("batch that spills", warm(), NONE, vec![spilling_batch()]),
        Plot("migration from the first schema", Before::Schema(1), NONE, vec![create("n1"), start("d1")]),
        Plot(
            "migration from the schema before",
            Before::Schema(2),
            NONE,
            vec![create("old"), create("n1"), start("d1")],
        ),
        Plot(
            "sweep",
            old(vec![create("x1"), create("x2"), call("create_automation", automation("x3", 10))]),
            NONE,
            vec![Sweep, create("x1"), create("n1"), Sweep],
        ),
        Plot("sweep of nothing", warm(), NONE, vec![Sweep]),
        Plot("claim and settle", Before::Used(mode, 0, vec![start("d0")]), KEYED, vec![Claim, Settle]),
        Plot("claim and settle, fresh", Before::Nothing, KEYED, vec![start("d1"), Claim, Settle]),
        Plot("claim and settle without a contract", Before::Nothing, NONE, vec![start("d1"), Claim, Settle]),
        Plot(
            "a lost worker, and a person's word",
            Before::Used(mode, LEASE, vec![start("d0"), Claim]),
            NONE,
            vec![Claim, Resolve],
        ),
        Plot("checkpoint", warm(), NONE, vec![create("n1"), Checkpoint, create("n2")]),
        Plot("close", warm(), NONE, vec![create("n1"), Close, create("n2"), Close]),
        Plot("restored copy", warm(), NONE, vec![Mark, create("n1"), Accept, create("n1")]),
        Plot("killed in a commit", Before::Killed(mode, used()), NONE, vec![start("d0"), create("n1")]),
    ];
    if mode == Sole {
        // The WAL has nearly 2,000 pages. Once it has them, it is moved into the database, and the next commit begins it anew.
        let steps = ["n1", "n2", "n3", "n4"].map(create).to_vec();
        let filled = vec![spilling_batch(), long_notes("t", 32)];
        plots.push(Plot(CHECKPOINTED, warm_and(filled), NONE, steps));
    }
    let from: &[Sharing] = match mode {
        Sole => &[Shared, SoleAtomic],
        Shared => &[Sole, SoleAtomic],
        SoleAtomic => &[Shared],
    };
    for &left in from {
        let steps = || vec![create("n0"), create("n1")];
        plots.push(Plot("moved", Before::Used(left, 0, used()), NONE, steps()));
        let closed = used().into_iter().chain([Close]).collect();
        plots.push(Plot("moved, closed", Before::Used(left, 0, closed), NONE, steps()));
        // A host without a journal cannot take over one that is needed.
        if mode != SoleAtomic {
            let steps = vec![start("d0"), create("n1")];
            plots.push(Plot("moved, killed in a commit", Before::Killed(left, used()), NONE, steps));
        }
    }
    plots
}

/// Those that are tried in this mode; only those of this name, if one is given.
pub fn scenes(stage: &Stage, mode: Sharing, only: Option<&str>) -> Vec<Scene> {
    let plots = plots(mode).into_iter().filter(|plot| only.is_none_or(|only| plot.0 == only));
    plots.flat_map(|plot| plot.scenes(stage, mode)).collect()
}

impl Plot {
    fn scenes(self, stage: &Stage, mode: Sharing) -> Vec<Scene> {
        let Plot(name, before, contract, steps) = self;
        let every = match (name, mode) {
            ("batch that spills", Sole) => 37,
            ("batch that spills", _) => 499,
            (CHECKPOINTED, _) => 997,
            _ => 1,
        };
        let scene = |name: String, disk: Disk, names: Names| Scene {
            name: format!("{name}, {mode:?}"),
            disk,
            names,
            steps: steps.clone(),
            contract,
            is_begun: matches!(before, Before::Killed(..)),
            every,
        };
        match &before {
            Before::Nothing => vec![scene(name.to_owned(), Disk::new(mode), Names::new())],
            Before::Schema(version) => {
                vec![scene(name.to_owned(), Disk::of(mode, old_database(stage, *version)), Names::new())]
            }
            Before::Used(left, ago, steps) => {
                stage.clock.set(START - ago);
                let disk = Disk::new(*left);
                let names = take(stage, &disk, contract, steps, Names::new());
                let name = if *left == mode { name.to_owned() } else { format!("{name} from {left:?}") };
                vec![scene(name, disk.power_cut(1).copy(mode), names)]
            }
            Before::Killed(left, steps) => {
                stage.clock.set(START);
                let disk = Disk::new(*left);
                let (last, earlier) = steps.split_last().expect("a step");
                let mut client = stage.client(&disk);
                let mut names = Names::new();
                for step in earlier {
                    step.take(stage, &mut client, &contract, &mut names).expect("an answer");
                }
                disk.record(1);
                let known = names.clone();
                last.take(stage, &mut client, &contract, &mut names).expect("an answer");
                let ends = |call| matches!(call, disk::Call::Sync | disk::Call::SetSize);
                let moments = disk.moments().into_iter().filter(|moment| ends(moment.call));
                let name = if *left == mode { name.to_owned() } else { format!("{name} from {left:?}") };
                let killed = |moment: disk::Moment| {
                    scene(
                        format!("{name} ({:?}, call {})", moment.call, moment.at),
                        moment.killed().copy(mode),
                        known.clone(),
                    )
                };
                moments.map(killed).collect()
            }
        }
    }
}

fn take(stage: &Stage, disk: &Disk, contract: ProviderContract, steps: &[Step], mut names: Names) -> Names {
    let mut client = stage.client(disk);
    for step in steps {
        step.take(stage, &mut client, &contract, &mut names).expect("an answer");
    }
    names
}

/// A database as an earlier version of the component left it, made by SQLite itself: with a note, if it has notes.
fn old_database(stage: &Stage, version: usize) -> Vec<u8> {
    let path = stage.native();
    if path.exists() {
        fs::remove_file(&path).unwrap();
    }
    let connection = Connection::open(&path).unwrap();
    for migration in &REGISTRY.schema.migrations[..version] {
        connection.execute_batch(migration).unwrap();
    }
    connection.pragma_update(None, "application_id", REGISTRY.schema.application_id).unwrap();
    connection.pragma_update(None, "user_version", version as i64).unwrap();
    if version > 1 {
        let sql = "
            INSERT INTO receipts VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', 'acme', 'ada', 'create_note', 'old', 'create_note',
              '{\"idempotency_key\":\"old\",\"body\":\"old\"}', '{\"note_id\":\"01890a5d-ac96-774b-bcce-b302099a8058\"}',
              '01890a5d-ac96-774b-bcce-b302099a8058', ?1, ?1 + 1000);
            INSERT INTO notes VALUES ('01890a5d-ac96-774b-bcce-b302099a8058', 'acme', 'old', ?1, '01890a5d-ac96-774b-bcce-b302099a8057')";
        connection.execute_batch(&sql.replace("?1", &START.to_string())).unwrap();
    }
    connection.close().unwrap();
    fs::read(path).unwrap()
}
