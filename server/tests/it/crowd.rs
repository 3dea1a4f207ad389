//! A crowd: many clients at once, of whom some are impatient, some confused, and some go away, while the server is killed and
//! started again. What they were told, and what the file holds, is compared at the end.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use test_support::number;

const CLIENTS: usize = 64;
const SUBJECTS: usize = 8;

/// How many kills; a last life follows.
const KILLS: u32 = 2;

/// How often in a row the clients of a subject take the same key.
const TOGETHER: usize = 12;

/// What they have in common.
struct Crowd {
    tokens: Vec<String>,
    /// Where the server is now.
    server: Mutex<Client>,
    end: Instant,
    shared: Vec<AtomicUsize>,
    contested: Vec<AtomicUsize>,
    broken: AtomicUsize,
    busy: AtomicUsize,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    subject: usize,
    key: String,
    body: String,
}

/// A call, and the answer; none if there was none in time, or it was not waited for.
struct Attempt {
    asked: Asked,
    reply: Option<Value>,
}

impl Crowd {
    /// None if there is no answer, or one that says to call again.
    fn call(&self, asked: &Asked) -> Option<Value> {
        let client = *self.server.lock().unwrap();
        let caller = Caller { client, token: self.tokens[asked.subject].clone(), revision: STATELESS };
        let sent = caller.send_call("create_note", &note(&asked.key, &asked.body));
        let Ok(answer) = sent.and_then(|stream| Answer::read(&stream)) else {
            self.broken.fetch_add(1, Relaxed);
            // It may be starting again.
            thread::sleep(Duration::from_millis(20));
            return None;
        };
        assert_eq!(answer.status, 200, "{}", answer.body);
        let told = Told::of(&answer.json());
        if told.reply["retryable"] == true {
            self.busy.fetch_add(1, Relaxed);
            return None;
        }
        Some(told.reply)
    }

    /// Until there is an answer, or time is up: always the same key.
    fn persist(&self, asked: &Asked) -> Option<Value> {
        while Instant::now() < self.end {
            if let Some(reply) = self.call(asked) {
                return Some(reply);
            }
        }
        None
    }

    /// Sends it and goes away.
    fn drop_after_sending(&self, asked: &Asked) {
        let client = *self.server.lock().unwrap();
        let caller = Caller { client, token: self.tokens[asked.subject].clone(), revision: STATELESS };
        drop(caller.send_call("create_note", &note(&asked.key, &asked.body)));
    }

    fn client(&self, number: usize) -> Vec<Attempt> {
        let mut random = fastrand::Rng::with_seed(number as u64);
        let subject = number % SUBJECTS;
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut fresh = 0;
        while Instant::now() < self.end {
            let round = |counters: &[AtomicUsize]| counters[subject].fetch_add(1, Relaxed) / TOGETHER;
            let earlier = (!attempts.is_empty()).then(|| attempts[random.usize(..attempts.len())].asked.clone());
            let (key, body) = match (random.u32(..100), earlier) {
                (0..20, Some(earlier)) => (earlier.key, earlier.body),
                (20..28, Some(earlier)) => (earlier.key, format!("other: {}", earlier.body)),
                (28..45, _) => {
                    let round = round(&self.shared);
                    (format!("shared-{round}"), format!("all agree on {round}"))
                }
                (45..52, _) => {
                    let round = round(&self.contested);
                    (format!("contested-{round}"), format!("{number} wants {round}"))
                }
                _ => {
                    fresh += 1;
                    (format!("{number}-{fresh}"), format!("{number} writes {fresh}"))
                }
            };
            let asked = Asked { subject, key, body };
            let reply = if random.u32(..10) == 0 {
                self.drop_after_sending(&asked);
                None
            } else {
                self.persist(&asked)
            };
            attempts.push(Attempt { asked, reply });
        }
        attempts
    }
}

/// The resident memory of a process, in kilobytes.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_crowd_over_kills_gets_one_effect_and_one_answer_for_each_key() {
    let seconds = number("COUNTERFOIL_TORTURE_SECONDS").unwrap_or(8);
    let world = World::new();
    let tokens =
        (0..SUBJECTS).map(|subject| world.token(&subject.to_string(), &format!("s{subject}@acme"), "write-notes"));
    let tokens: Vec<_> = tokens.collect();
    let start = || {
        let mut command = world.http_with(component(), &[]);
        Server::start(&world, command.env_remove("RUST_LOG"))
    };
    let mut server = start();
    let begun = Instant::now();
    let life = Duration::from_secs(seconds) / (KILLS + 1);
    let crowd = Crowd {
        tokens,
        server: Mutex::new(server.client),
        end: begun + Duration::from_secs(seconds),
        shared: (0..SUBJECTS).map(|_| AtomicUsize::new(0)).collect(),
        contested: (0..SUBJECTS).map(|_| AtomicUsize::new(0)).collect(),
        broken: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
    };
    let (mut early, mut late) = (0, 0);
    let attempts: Vec<Attempt> = thread::scope(|scope| {
        let crowd = &crowd;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || crowd.client(number))).collect();
        for kill in 1..=KILLS {
            wait_until(begun + life * kill);
            server.process.kill();
            server = start();
            *crowd.server.lock().unwrap() = server.client;
        }
        wait_until(Instant::now() + Duration::from_secs(1));
        early = memory(server.process.id());
        let attempts = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        late = memory(server.process.id());
        attempts
    });
    let answered = attempts.iter().filter(|attempt| attempt.reply.is_some()).count();
    let spent = begun.elapsed().as_secs_f64();
    let mut told = answers(&attempts);
    let unanswered: BTreeSet<_> =
        attempts.iter().filter(|attempt| attempt.reply.is_none()).map(|it| &it.asked).collect();
    for &asked in &unanswered {
        let reply = until(|| crowd.call(asked));
        told.entry(asked.clone()).or_default().push(reply);
    }
    server.stop();

    let (applied, conflicts) = check(&world, &told);

    println!(
        "{CLIENTS} clients, {KILLS} kills, {seconds} s: {answered} answered at first ({:.0}/s), {} unanswered and asked again; \
         {} broken connections, {} asked to repeat; {applied} keys with one effect, {conflicts} conflicts; memory {early} kB \
         after a second of the last life, {late} kB at its end",
        answered as f64 / spent,
        unanswered.len(),
        crowd.broken.load(Relaxed),
        crowd.busy.load(Relaxed),
    );
    assert!(answered > CLIENTS && conflicts > 0 && !unanswered.is_empty(), "not enough happened");
    assert!(late <= early * 12 / 10 + (16 << 10), "memory grows: {early} kB, {late} kB");
    assert!(!world.file("test.db-wal").exists());
    world.assert_whole();
}

fn wait_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// All that was answered to the same key and arguments.
fn answers(attempts: &[Attempt]) -> BTreeMap<Asked, Vec<Value>> {
    let mut told: BTreeMap<Asked, Vec<Value>> = BTreeMap::new();
    for Attempt { asked, reply } in attempts {
        told.entry(asked.clone()).or_default().extend(reply.clone());
    }
    told
}

/// What everybody was told is so, and was told alike. Returns the number of keys and of refused conflicts.
fn check(world: &World, told: &BTreeMap<Asked, Vec<Value>>) -> (usize, usize) {
    let sql = "SELECT subject, idempotency_key, receipts.operation_id, notes.note_id, notes.body,
                      json_extract(arguments, '$.body'), json_extract(result, '$.note_id')
               FROM receipts JOIN notes USING (operation_id)";
    let rows = world.rows(sql, [], |row| {
        let text = |column| row.get::<_, String>(column);
        Ok(((text(0)?, text(1)?), (text(2)?, text(3)?, text(4)?, text(5)?, text(6)?)))
    });
    let keys: BTreeMap<_, _> = rows.iter().cloned().collect();
    assert_eq!(keys.len(), rows.len(), "a key has two effects");
    for table in ["receipts", "notes"] {
        assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")), rows.len() as i64, "{table}");
    }
    let asked: BTreeSet<_> = told.keys().map(|asked| (format!("s{}", asked.subject), asked.key.clone())).collect();
    assert!(asked.iter().eq(keys.keys()), "each key that was asked for has an effect, and no other");

    let (mut fresh, mut conflicts) = (BTreeMap::new(), 0);
    for (asked, replies) in told {
        let key = (format!("s{}", asked.subject), asked.key.clone());
        let (operation, note, body, argument, result) = &keys[&key];
        assert_eq!((argument, result), (body, note));
        for reply in replies {
            if reply["status"] == "refused" {
                assert_eq!(reply["code"], "key_conflict", "{reply}");
                assert_ne!(&asked.body, body, "refused, and applied");
                conflicts += 1;
                continue;
            }
            assert_eq!(&asked.body, body, "acknowledged, and not in the file: {reply}");
            assert_eq!((&reply["operation_id"], &reply["note_id"]), (&json!(operation), &json!(note)));
            assert_eq!(without_mark(reply), without_mark(replies.first().unwrap()));
            if reply["replayed"] == false {
                *fresh.entry(key.clone()).or_insert(0) += 1;
            }
        }
    }
    assert!(fresh.values().all(|&count| count == 1), "a key was answered as new twice");
    (keys.len(), conflicts)
}

fn without_mark(reply: &Value) -> Value {
    let mut reply = reply.clone();
    reply["replayed"].take();
    reply
}
