//! Everything goes wrong at once, at random: the way to the provider and back, the provider itself, and the workers. Whatever
//! happens, no operation has two effects, none is stuck, and what is said of each is true.
//!
//! It prints its seed, and repeats the faults of an earlier run with COUNTERFOIL_SEED, as far as the processes' timing lets
//! it.

use crate::harness::*;
use crate::world::*;
use fastrand::Rng;
use host_example::{Files, Host, Instance, Limits};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use test_support::seed;

/// This many at a time, and so often: 200.
const OPERATIONS: usize = 40;
const WAVES: usize = 5;

/// How long workers are killed, at random moments, and operations cancelled.
const CHAOS: Duration = Duration::from_secs(14);

/// How often new operations come.
const WAVE: Duration = Duration::from_secs(3);

/// How often it is looked whether all is settled.
const LOOK: Duration = Duration::from_millis(200);

/// How much longer the provider misbehaves, at most.
const AFTERMATH: Duration = Duration::from_secs(8);

const SHORT: [&str; 4] = ["--attempt-timeout", "300ms", "--lease", "1s"];

/// Until when an effect must have been sent. What is still in doubt then is a person's.
const DEADLINE: &str = "20s";

/// A provider may do all of this and keep each of the contracts below: it holds no request for longer than an absence takes
/// to be final, and knows keys for longer than it says, by that and more.
const FAULTS: &str = "drop-before=0.05,error-before=0.05,throttle=0.05:1s,unavailable=0.05:1s,late=0.08:500ms,\
                      error-after=0.05,drop-after=0.05,half-answer=0.05,reject=0.05,under-way=0.1:600ms,forget-keys=12s,\
                      fail=0.08,refuse-lookup=0.05,refuse-cancel=0.1,succeed-while-cancelling=0.1";

/// How long a request is under way at most, and time to be taken.
const STRAGGLERS: Duration = Duration::from_millis(1_600);

const CONTRACTS: [Case; 6] = [
    Case { contract: "none", runs: "0s", gives_up: Why::Doubt },
    Case { contract: "deduplicates-for=8s,clock-within=10ms", runs: "300ms", gives_up: Why::WindowClosed },
    Case { contract: "looks-up", runs: "300ms", gives_up: Why::Absent },
    Case { contract: "looks-up,absent-is-final-after=3s,clock-within=10ms", runs: "300ms", gives_up: Why::Deadline },
    Case {
        contract: "deduplicates-for=8s,looks-up,absent-is-final-after=3s,cancels,clock-within=10ms",
        runs: "600ms",
        gives_up: Why::Deadline,
    },
    // Nobody vouches for the clock, so no figure counts.
    Case {
        contract: "deduplicates-for=8s,looks-up,absent-is-final-after=3s,cancels",
        runs: "600ms",
        gives_up: Why::Absent,
    },
];

struct Case {
    contract: &'static str,
    /// How long a deployment runs.
    runs: &'static str,
    gives_up: Why,
}

/// Why a person may be asked, beside the deadline.
#[derive(PartialEq)]
enum Why {
    /// One attempt that may have been taken is enough.
    Doubt,
    /// The key may be forgotten, or the provider has refused it.
    WindowClosed,
    /// The provider said that it was absent, which proves nothing.
    Absent,
    /// Nothing else.
    Deadline,
}

#[test]
fn whatever_goes_wrong_no_effect_is_doubled_none_is_stuck_and_each_outcome_is_true() {
    let seed = seed();
    component();
    thread::scope(|scope| {
        for (number, case) in (0..).zip(&CONTRACTS) {
            scope.spawn(move || case.run(seed.wrapping_add(number)));
        }
    });
}

impl Case {
    fn run(&self, seed: u64) {
        let mut random = Rng::with_seed(seed);
        let seed = seed.to_string();
        let faults = ["--faults", FAULTS, "--finish-after", self.runs, "--seed", &seed];
        let provider = Provider::start(&[&["--contract", self.contract], &faults[..]].concat());
        let world = World::new();
        let host = Host::load(component(), Limits::default()).unwrap().with_variable("COUNTERFOIL_DEADLINE", DEADLINE);

        let ids = self.go_through_chaos(&world, &provider, &host, &mut random);
        let _workers = [0, 1].map(|_| world.worker(&provider.url(), self.contract, &SHORT));
        let begun = Instant::now();
        while !unsettled(&world).is_empty() && begun.elapsed() < AFTERMATH {
            sleep(LOOK);
        }
        let left = unsettled(&world).len();
        provider.set_faults("none");
        until(|| {
            sleep(LOOK);
            // Pauses have grown to a minute. Nothing rests on them, so the rest is done without.
            world.edit(
                "UPDATE operations SET due = planned_at
                 WHERE attempt_id IS NULL AND state IN ('accepted', 'running', 'cancel-requested')",
            );
            unsettled(&world).is_empty().then_some(())
        });
        println!("{}: {left} left, settled after {:?}", self.contract, begun.elapsed());

        // Whatever is still under way is given the time to do harm.
        sleep(STRAGGLERS);
        provider.effects();
        self.judge(&world, &provider, &host, &ids);
        world.assert_whole();
    }

    /// Returns the operations' ids.
    fn go_through_chaos(&self, world: &World, provider: &Provider, host: &Host, random: &mut Rng) -> Vec<String> {
        let mut workers = [0, 1].map(|_| world.worker(&provider.url(), self.contract, &SHORT));
        let mut ids = deploy_many(host, &world.path(), "k", OPERATIONS);
        let mut caller = instance(host, Files::shared(&world.path()).unwrap());
        let begun = Instant::now();
        while begun.elapsed() < CHAOS || ids.len() < WAVES * OPERATIONS {
            if begun.elapsed() >= WAVE * (ids.len() / OPERATIONS) as u32 {
                ids.extend(deploy_many(host, &world.path(), &format!("k{}-", ids.len()), OPERATIONS));
            }
            sleep(Duration::from_millis(random.u64(0..250)));
            if random.u32(0..5) == 0 {
                let worker = &mut workers[random.usize(0..2)];
                worker.process.kill();
                *worker = world.worker(&provider.url(), self.contract, &SHORT);
            }
            // One that has perhaps been sent, or one that has perhaps ended.
            let open = unsettled(world);
            let among = if random.bool() && !open.is_empty() { &open } else { &ids };
            let id = random.choice(among).unwrap();
            let reply = caller.call_one("cancel_operation", &json!({ "operation_id": id }).to_string()).unwrap();
            // It may have been busy.
            let answered: Value = serde_json::from_str(&reply.body).unwrap();
            assert!(!reply.refused || answered["code"] == "busy", "{answered}");
        }
        for worker in &mut workers {
            worker.process.kill();
        }
        ids
    }

    fn judge(&self, world: &World, provider: &Provider, host: &Host, ids: &[String]) {
        let operations = operations(world);
        let mut taken: HashMap<String, Vec<Taken>> = HashMap::new();
        let sql = "SELECT client_reference, number, key, state FROM deployments";
        for (reference, row) in query(&provider.store(), sql, [], |row| {
            Ok((
                row.get(0)?,
                Taken { id: format!("dep-{}", row.get::<_, u32>(1)?), key: row.get(2)?, state: row.get(3)? },
            ))
        }) {
            taken.entry(reference).or_default().push(row);
        }
        let mut caller = instance(host, Files::shared(&world.path()).unwrap());
        let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
        assert_eq!(operations.len(), ids.len());
        for operation in &operations {
            let rows = taken.get(&operation.id).map_or(&[][..], Vec::as_slice);
            self.judge_one(operation, rows, &get(&mut caller, &operation.id));
            *ends.entry(&operation.state).or_default() += 1;
        }
        println!("{}: {ends:?}", self.contract);
        assert!(ends.get("succeeded").is_some_and(|count| *count > 20), "{}: {ends:?}", self.contract);
        assert!(taken.keys().all(|reference| ids.contains(reference)));
    }

    fn judge_one(&self, operation: &Operation, rows: &[Taken], answer: &Value) {
        let case = format!("under {}: {operation:?} {rows:?} {answer}", self.contract);
        assert!(rows.len() <= 1, "more than one effect {case}");
        let there = rows.first();
        assert!(there.is_none_or(|row| row.key == operation.key), "another key {case}");
        let state = there.map(|row| row.state.as_str());
        assert_eq!(answer["state"].as_str().unwrap().replace('_', "-"), operation.state, "{case}");
        match operation.state.as_str() {
            "succeeded" => {
                assert_eq!(state, Some("succeeded"), "{case}");
                assert_eq!(answer["resource_id"], there.unwrap().id, "{case}");
            }
            "failed" => assert!([None, Some("failed")].contains(&state), "{case}"),
            "cancelled" => assert!([None, Some("cancelled")].contains(&state), "{case}"),
            "outcome-unknown" => {
                assert!(self.may_give_up(operation), "a person is asked in vain {case}");
                let what = match (answer["resource_id"].as_str(), there) {
                    (Some(id), Some(row)) if id == row.id => format!("how {id} ended"),
                    (None, _) => format!("client reference {} and idempotency key {}", operation.id, operation.key),
                    _ => panic!("it names what is not there {case}"),
                };
                assert!(answer["next_action"].as_str().unwrap().contains(&what), "{case}");
            }
            _ => panic!("stuck {case}"),
        }
        if [Why::Doubt, Why::Absent].contains(&self.gives_up) {
            assert!(operation.doubtful <= 1, "a plain second sending {case}");
        }
    }

    fn may_give_up(&self, operation: &Operation) -> bool {
        // The window as long as it is, less the lease, twice the clock's error, and some more.
        const WINDOW: i64 = 8_000 - 1_000 - 20 - 80;
        operation.since >= operation.deadline
            || match self.gives_up {
                Why::Doubt => operation.doubtful == 1 || operation.late > 0,
                Why::WindowClosed => operation.since >= operation.first_sent + WINDOW || operation.rejected,
                Why::Absent => operation.absent > 0,
                Why::Deadline => false,
            }
    }
}

/// What stands in the rows of an operation and its attempts.
#[derive(Debug)]
struct Operation {
    id: String,
    state: String,
    key: String,
    since: i64,
    deadline: i64,
    first_sent: i64,
    rejected: bool,
    /// Sendings that may have been taken, by what was seen of each.
    doubtful: u32,
    /// Attempts that were settled when their lease was over: another worker may have taken them for lost.
    late: u32,
    /// Answers that it is absent.
    absent: u32,
}

#[derive(Debug)]
struct Taken {
    id: String,
    key: String,
    state: String,
}

fn operations(world: &World) -> Vec<Operation> {
    let sql =
        "SELECT o.operation_id, state, coalesce(provider_key, ''), since, deadline, coalesce(first_sent, 0), rejected,
                 count(*) FILTER (WHERE step = 'submit'
                   AND coalesce(observation, '') NOT IN ('not-sent', 'throttled', 'rejected')),
                 count(*) FILTER (WHERE step = 'submit' AND settled_at >= lease_until),
                 count(*) FILTER (WHERE observation = 'absent')
               FROM operations o LEFT JOIN attempts a USING (operation_id) GROUP BY o.operation_id";
    world.rows(sql, [], |row| {
        Ok(Operation {
            id: row.get(0)?,
            state: row.get(1)?,
            key: row.get(2)?,
            since: row.get(3)?,
            deadline: row.get(4)?,
            first_sent: row.get(5)?,
            rejected: row.get(6)?,
            doubtful: row.get(7)?,
            late: row.get(8)?,
            absent: row.get(9)?,
        })
    })
}

fn get(caller: &mut Instance, id: &str) -> Value {
    let reply = caller.call_one("get_operation", &json!({ "operation_id": id }).to_string()).unwrap();
    serde_json::from_str(&reply.body).unwrap()
}

fn unsettled(world: &World) -> Vec<String> {
    let settled = SETTLED.map(|state| format!("'{state}'")).join(", ");
    let sql = format!("SELECT operation_id FROM operations WHERE state NOT IN ({settled})");
    world.rows(&sql, [], |row| row.get(0))
}
