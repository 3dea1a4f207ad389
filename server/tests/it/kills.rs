//! A server is killed thirty times, each at a random moment, while clients call it. Nothing acknowledged is lost, and nothing is
//! doubled, as long as clients keep their keys; what becomes of those that do not is seen too.
//!
//! It prints its seed, and repeats an earlier run with COUNTERFOIL_SEED, as far as the timing of processes and threads lets it.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use fastrand::Rng;
use judge::{Deed, Found, judge, judge_sees_what_is_wrong};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use test_support::seed;

mod judge;

const CLIENTS: usize = 12;
const KILLS: usize = 30;

/// How many answers there are before a kill at most, and how much later it comes.
const ANSWERS: usize = 80;
const LATER: Duration = Duration::from_millis(5);

/// How long a server lives at most that is killed before it serves.
const NOT_YET: Duration = Duration::from_millis(100);

/// What a client does about a call without an answer.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    /// Calls again with the same key.
    Keeps,
    /// Calls again with another.
    TakesAnother,
    /// Takes it for done.
    Believes,
}

/// Where the server is, how many lives it has had, and how many answers it has given in all.
struct Now {
    client: Client,
    life: usize,
    answers: usize,
    is_over: bool,
}

struct Crowd {
    tokens: Vec<String>,
    habit: Habit,
    now: Mutex<Now>,
    changed: Condvar,
}

/// What a client has seen beside its deeds.
#[derive(Default)]
struct Seen {
    deeds: Vec<Deed>,
    /// Calls without an answer, and those of them that had been done.
    broken: usize,
    replayed: usize,
    /// Retries of what was answered long before.
    repeated: usize,
}

impl Crowd {
    /// Until there is an answer.
    fn call(&self, number: usize, deed: &mut Deed, seen: &mut Seen) {
        let mut in_doubt = false;
        loop {
            let (client, life) = {
                let now = self.now.lock().unwrap();
                (now.client, now.life)
            };
            let caller = Caller { client, token: self.tokens[number].clone(), revision: STATELESS };
            let sent = caller.send_call(deed.tool, &deed.arguments);
            if let Ok(answer) = sent.and_then(|stream| Answer::read(&stream)) {
                assert_eq!(answer.status, 200, "{}", answer.body);
                let reply = Told::of(&answer.json()).reply;
                if reply["retryable"] == true {
                    continue;
                }
                seen.replayed += usize::from(in_doubt && reply["replayed"] == true);
                // To be told that it is done is not to be told what it came to.
                deed.reply = Some(reply);
                self.now.lock().unwrap().answers += 1;
                self.changed.notify_all();
                return;
            }
            seen.broken += 1;
            in_doubt = true;
            let now = self.now.lock().unwrap();
            let late = self.changed.wait_timeout_while(now, DEADLINE, |now| now.life == life).unwrap().1;
            assert!(!late.timed_out(), "a living server breaks connections");
            match self.habit {
                Habit::Keeps => {}
                Habit::TakesAnother => {
                    let key = format!("{}-again", deed.arguments["idempotency_key"].as_str().unwrap());
                    deed.arguments["idempotency_key"] = key.into();
                }
                Habit::Believes => {
                    deed.reply = Some(json!({ "status": "succeeded", "operation_id": "believed" }));
                    return;
                }
            }
        }
    }

    fn client(&self, number: usize, mut random: Rng) -> Seen {
        let mut seen = Seen::default();
        // Its own automations, as it knows them.
        let mut automations: Vec<(Value, u64)> = Vec::new();
        for deed in 0.. {
            if self.now.lock().unwrap().is_over {
                break;
            }
            let what = format!("client {number}, deed {deed}");
            let key = format!("key-{deed}");
            let of = |tool, arguments: Value| {
                let (subject, what) = (format!("s{number}"), what.clone());
                Deed { subject, what, tool, arguments, reply: None }
            };
            let minutes = random.u32(5..1000);
            let mut deed = match random.u32(..100) {
                0..15 if !seen.deeds.is_empty() => {
                    let first = random.choice(&seen.deeds).unwrap().clone();
                    let mut again = Deed { reply: None, ..first.clone() };
                    self.call(number, &mut again, &mut seen);
                    if self.habit == Habit::Keeps {
                        assert_same(&first, &again);
                    }
                    seen.repeated += 1;
                    continue;
                }
                // The others cannot know what they have.
                15..25 if self.habit == Habit::Keeps && automations.len() < 3 => {
                    of("create_automation", json!({ "idempotency_key": key, "interval_minutes": minutes }))
                }
                25..50 if !automations.is_empty() => {
                    let (id, version) = random.choice(&automations).unwrap();
                    let arguments = json!({ "idempotency_key": key, "automation_id": id, "expected_version": version,
                                            "interval_minutes": minutes });
                    of("set_interval", arguments)
                }
                50..65 => of("start_deployment", json!({ "idempotency_key": key, "service": what, "revision": "r1" })),
                _ => of("create_note", note(&key, &what)),
            };
            self.call(number, &mut deed, &mut seen);
            let reply = deed.reply.as_ref().unwrap();
            assert_eq!(reply["status"], "succeeded", "{deed:?}");
            if let Some(version) = reply["version"].as_u64() {
                automations.retain(|(id, _)| *id != reply["automation_id"]);
                automations.push((reply["automation_id"].clone(), version));
            }
            seen.deeds.push(deed);
        }
        seen
    }
}

/// The same answer as the first, apart from the mark.
#[track_caller]
fn assert_same(first: &Deed, again: &Deed) {
    let mut expected = first.reply.clone().unwrap();
    expected["replayed"] = true.into();
    assert_eq!(again.reply.as_ref(), Some(&expected), "{again:?}");
}

fn start(world: &World) -> Server {
    let mut command = world.http_with(component(), &[]);
    Server::start(world, command.env_remove("RUST_LOG"))
}

/// Lets a crowd call while the server is killed so often, or until `is_enough` of the dead server's files, and returns what it
/// did and saw, and the last server.
fn run(world: &World, habit: Habit, seed: u64, mut is_enough: impl FnMut(usize) -> bool) -> (Crowd, Vec<Seen>, Server) {
    let tokens = (0..CLIENTS).map(|number| {
        world.token(&number.to_string(), &format!("s{number}@acme"), "write-notes,write-automations,deploy")
    });
    let tokens = tokens.collect();
    let mut server = start(world);
    let now = Now { client: server.client, life: 0, answers: 0, is_over: false };
    let crowd = Crowd { tokens, habit, now: Mutex::new(now), changed: Condvar::new() };
    let mut random = Rng::with_seed(seed);
    let seen = thread::scope(|scope| {
        let crowd = &crowd;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let random = random.fork();
                scope.spawn(move || crowd.client(number, random))
            })
            .collect();
        let mut kills = 0;
        while kills < KILLS {
            let answers = crowd.now.lock().unwrap().answers + random.usize(..ANSWERS);
            let few = |now: &mut Now| now.answers < answers && clients.iter().any(|client| !client.is_finished());
            drop(crowd.changed.wait_timeout_while(crowd.now.lock().unwrap(), DEADLINE, few).unwrap());
            thread::sleep(LATER.mul_f64(random.f64()));
            server.process.kill();
            kills += 1;
            if random.u32(..6) == 0 && kills < KILLS {
                let mut early = world.http_with(component(), &[]);
                let mut early = Process::start(early.stdout(Stdio::null()).stderr(Stdio::null()));
                thread::sleep(NOT_YET.mul_f64(random.f64()));
                early.kill();
                kills += 1;
            }
            let enough = is_enough(kills);
            server = start(world);
            let mut now = crowd.now.lock().unwrap();
            (now.client, now.life) = (server.client, now.life + 1);
            now.is_over = enough;
            drop(now);
            crowd.changed.notify_all();
            if enough {
                break;
            }
        }
        crowd.now.lock().unwrap().is_over = true;
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    (crowd, seen, server)
}

#[test]
fn over_thirty_kills_nothing_acknowledged_is_lost_and_nothing_is_doubled() {
    let world = World::new();
    let begun = Instant::now();

    let (crowd, seen, mut server) = run(&world, Habit::Keeps, seed(), |_| false);

    let spent = begun.elapsed();
    for (number, seen) in seen.iter().enumerate() {
        for first in &seen.deeds {
            let mut again = Deed { reply: None, ..first.clone() };
            crowd.call(number, &mut again, &mut Seen::default());
            assert_same(first, &again);
        }
    }
    server.stop();
    world.assert_whole();
    let sum = |of: fn(&Seen) -> usize| seen.iter().map(of).sum::<usize>();
    let (broken, replayed) = (sum(|seen| seen.broken), sum(|seen| seen.replayed));
    let deeds: Vec<_> = seen.iter().flat_map(|seen| seen.deeds.clone()).collect();
    println!(
        "{KILLS} kills in {spent:?}: {} acknowledged, {broken} without an answer, of which {replayed} had been done; {} \
         repeated; all replayed and looked up after {:?}",
        deeds.len(),
        sum(|seen| seen.repeated),
        begun.elapsed(),
    );
    assert!(broken > KILLS && replayed > 0, "not enough happened");
    let found = Found::read(&world.path());
    assert_eq!(judge(&deeds, &found), Vec::<String>::new());
    judge_sees_what_is_wrong(&deeds, &found);
}

/// The files of a server that is dead, read beside them: reading would change them.
fn copied(world: &World) -> Found {
    let folder = tempfile::tempdir().unwrap();
    for name in ["test.db", "test.db-wal"] {
        if world.file(name).exists() {
            fs::copy(world.file(name), folder.path().join(name)).unwrap();
        }
    }
    Found::read(&folder.path().join("test.db"))
}

/// The control: it is the keys that do it.
#[test]
fn clients_that_take_another_key_double_their_effects() {
    let world = World::new();
    let mut doubled = 0;

    let (_, _, mut server) = run(&world, Habit::TakesAnother, seed(), |kills| {
        let bodies = copied(&world).notes.into_iter().map(|(_, body)| body);
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        bodies.for_each(|body| *times.entry(body).or_default() += 1);
        doubled = times.values().filter(|times| **times > 1).count();
        println!("after {kills} kills {doubled} are doubled");
        doubled > 0
    });

    server.stop();
    world.assert_whole();
    assert!(doubled > 0);
}

/// The other control: what is not answered may be lost.
#[test]
fn clients_that_take_no_answer_for_success_lose_what_they_were_not_told() {
    let world = World::new();

    let (_, seen, mut server) = run(&world, Habit::Believes, seed(), |kills| kills >= 3);

    server.stop();
    world.assert_whole();
    let deeds: Vec<_> = seen.into_iter().flat_map(|seen| seen.deeds).collect();
    let wrong = judge(&deeds, &Found::read(&world.path()));
    println!("{} of {} are not as they were believed to be", wrong.len(), deeds.len());
    assert!(wrong.iter().any(|wrong| wrong.starts_with("lost: no receipt")), "{wrong:?}");
}
