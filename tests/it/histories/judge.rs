//! Whether what happened is what the reference allows. After a crash both are possible, that a commit happened and that it did
//! not: the judge keeps every world that agrees with all that was answered, and there must always be one.

use super::reference::{Name, Operation, Rules, Verdict, World};
use super::steps::{CALLERS, Call, Saw};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

/// By the n-th of the callers.
pub type Asked = (usize, Call<String>);

/// What became of a sweep.
#[derive(Clone, Copy, Debug)]
pub enum Swept {
    Receipts(u32),
    Undone,
    InDoubt,
}

/// What happened, with all that anybody was told.
#[derive(Clone, Debug)]
pub enum Event {
    /// One commit, and its answers, none if the instance trapped. Where storage `broke`, it may have failed.
    Calls {
        now: u64,
        asked: Vec<Asked>,
        answers: Option<Vec<Value>>,
        broke: bool,
    },
    Sweep {
        now: u64,
        swept: Swept,
        broke: bool,
    },
    /// In the deed before, storage broke.
    Broke(&'static str),
    /// What was handed to the worker.
    Work {
        operations: Vec<String>,
        saw: Saw,
    },
    Permission {
        who: usize,
        permission: &'static str,
        granted: bool,
    },
    /// To this workspace; deleted, if none.
    Relocated {
        id: String,
        to: Option<&'static str>,
    },
    /// The instance is no more.
    Died,
    /// What the database holds.
    Holds(Image),
    /// What no rule allows.
    Wrong(String),
}

/// Every row, by its id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    /// Workspace and body.
    pub notes: BTreeMap<String, (String, String)>,
    /// Workspace, minutes and version.
    pub automations: BTreeMap<String, (String, u32, u32)>,
    /// Workspace, subject, tool, key, and whether it is a tombstone.
    pub receipts: BTreeMap<String, (String, String, String, String, bool)>,
    /// Those in progress.
    pub open: BTreeSet<String>,
}

/// How often each verdict was given.
pub type Seen = BTreeMap<&'static str, u64>;

/// The verdicts, or at which event there was no world left, and why.
pub fn judge(rules: &Rules, events: &[Event]) -> Result<Seen, String> {
    let mut worlds = vec![(World::new(), Seen::new())];
    for (number, event) in events.iter().enumerate() {
        let mut allowed = Vec::new();
        let mut why = String::new();
        for (world, seen) in worlds {
            match follow(rules, world, seen, event) {
                Ok(next) => allowed.extend(next),
                Err(error) => why += &format!("\n  {error}"),
            }
        }
        if allowed.is_empty() {
            return Err(format!("event {number}, {}:{why}", name(event)));
        }
        let mut different: Vec<(World, Seen)> = Vec::new();
        for (world, seen) in allowed {
            if different.iter().all(|(other, _)| *other != world) {
                different.push((world, seen));
            }
        }
        worlds = different;
    }
    Ok(worlds.swap_remove(0).1)
}

/// What of it can be read at a glance; what a call was answered stands in the reason.
fn name(event: &Event) -> String {
    match event {
        Event::Calls { asked, broke, .. } => format!("{} calls, broke: {broke}", asked.len()),
        Event::Holds(image) => format!("the database holds {image:?}"),
        event => format!("{event:?}"),
    }
}

/// The worlds that there may be after the event.
fn follow(rules: &Rules, mut world: World, mut seen: Seen, event: &Event) -> Result<Vec<(World, Seen)>, String> {
    match event {
        Event::Calls { now, asked, answers, broke } => {
            let is_in_doubt = |answers: &[Value]| answers.iter().any(|answer| answer["code"] == "unconfirmed");
            match answers {
                Some(answers) if !is_in_doubt(answers) => {
                    calls(rules, &mut world, &mut seen, *now, asked, answers, *broke)?;
                }
                _ if *broke => {
                    let mut after = world.clone();
                    asked.iter().for_each(|(who, call)| drop(after.call(rules, *now, *who, call)));
                    return Ok(doubt(rules, (world, seen), after));
                }
                _ => return Err("nothing broke, and nobody knows".to_owned()),
            }
        }
        Event::Sweep { now, swept, broke } => match swept {
            Swept::Receipts(number) => {
                let expected = world.sweep(rules, *now);
                expect(*number == expected, || format!("{expected} are expired"))?;
                count(&mut seen, if expected == 0 { "nothing swept" } else { "swept" }, 1);
            }
            _ if !broke => return Err("nothing broke".to_owned()),
            Swept::Undone => count(&mut seen, "unavailable", 1),
            Swept::InDoubt => {
                let mut after = world.clone();
                after.sweep(rules, *now);
                return Ok(doubt(rules, (world, seen), after));
            }
        },
        Event::Work { operations, saw } => {
            expect(world.work(operations, *saw), || "others are to be handed out".to_owned())?;
            count(&mut seen, if operations.is_empty() { "nothing to do" } else { "handed out" }, 1);
        }
        Event::Permission { who, permission, granted: true } => _ = world.permissions.insert((*who, permission)),
        Event::Permission { who, permission, granted: false } => _ = world.permissions.remove(&(*who, *permission)),
        Event::Relocated { id, to } => world.relocate(rules, id, *to),
        Event::Died => (rules.crashes)(&mut world),
        Event::Broke(how) => count(&mut seen, how, 1),
        Event::Holds(image) => {
            let expected = expected_image(&world);
            expect(expected == *image, || format!("there should be {expected:?}"))?;
        }
        Event::Wrong(what) => return Err(what.clone()),
    }
    Ok(vec![(world, seen)])
}

fn doubt(rules: &Rules, (before, seen): (World, Seen), after: World) -> Vec<(World, Seen)> {
    if before == after {
        return vec![(before, seen)];
    }
    let (mut undone, mut done) = (seen.clone(), seen);
    count(&mut undone, "in doubt, not done", 1);
    count(&mut done, "in doubt, done", 1);
    let (may_be_undone, may_be_done) = rules.doubt;
    let both = [(may_be_undone, (before, undone)), (may_be_done, (after, done))];
    both.into_iter().filter(|(may_be, _)| *may_be).map(|(_, world)| world).collect()
}

fn calls(
    rules: &Rules,
    world: &mut World,
    seen: &mut Seen,
    now: u64,
    asked: &[Asked],
    answers: &[Value],
    broke: bool,
) -> Result<(), String> {
    expect(asked.len() == answers.len(), || "not as many answers as calls".to_owned())?;
    let before = world.clone();
    let mut refused = false;
    for ((who, call), answer) in asked.iter().zip(answers) {
        if broke && answer["code"] == "unavailable" {
            // Which promises that nothing was done.
            count(seen, "unavailable", 1);
            continue;
        }
        let verdict = world.call(rules, now, *who, call);
        let name = matches(rules, world, &verdict, answer)
            .map_err(|why| format!("{}@{}: {} is {answer}; {why}", CALLERS[*who].0, CALLERS[*who].1, call.tool()))?;
        count(seen, name, 1);
        refused |= matches!(verdict, Verdict::Refused(_));
    }
    if rules.batches_are_all_or_nothing && refused {
        *world = before;
    }
    Ok(())
}

/// Whether the answer is what the verdict says; what it tells is learnt.
fn matches(rules: &Rules, world: &mut World, verdict: &Verdict, answer: &Value) -> Result<&'static str, String> {
    match verdict {
        Verdict::Refused(code) => {
            expect(answer["status"] == "refused" && answer["code"] == *code, || format!("expected {code}"))?;
            Ok(code)
        }
        Verdict::Fresh(name) => {
            let first = expected_answer(rules, world, name, false);
            expect(fits(&first, answer), || format!("expected {first}"))?;
            expect(!world.told.contains_key(name), || "its key was used before".to_owned())?;
            learn(world, *name, answer)?;
            world.told.insert(*name, answer.clone());
            Ok("fresh")
        }
        Verdict::Replay(name) => {
            let first = expected_answer(rules, world, name, true);
            expect(fits(&first, answer), || format!("expected {first}"))?;
            match world.told.get(name) {
                Some(told) => {
                    let mut told = told.clone();
                    told["replayed"] = true.into();
                    expect(*answer == told, || format!("first it was {told}"))?;
                    Ok("replay")
                }
                None => {
                    learn(world, *name, answer)?;
                    world.told.insert(*name, answer.clone());
                    Ok("replay of an answer that was lost")
                }
            }
        }
        Verdict::Read(expected) => read(expected, answer).map(|()| "read"),
        Verdict::Status(name) => {
            read(&world.status(name), answer)?;
            learn(world, *name, answer).map(|()| "status")
        }
    }
}

fn read(expected: &Value, answer: &Value) -> Result<(), String> {
    let is_read = answer["status"] == "succeeded" && answer["replayed"] == false;
    expect(is_read && fits(expected, answer), || format!("expected {expected}"))
}

/// What a call answers that has a receipt, but for its ids.
fn expected_answer(rules: &Rules, world: &World, name: &Name, replayed: bool) -> Value {
    let receipt = &world.receipts[name];
    let mut expected = (rules.replayed)(world, name);
    expected["status"] = "succeeded".into();
    expected["replayed"] = replayed.into();
    expected["retryable"] = false.into();
    for (field, time) in [("committed_at", receipt.committed_at), ("valid_until", receipt.valid_until)] {
        let time = UNIX_EPOCH + Duration::from_millis(time);
        expected[field] = json!(humantime::format_rfc3339_millis(time).to_string());
    }
    expected
}

/// Whether the answer has all these fields; of a list, one of it.
fn fits(expected: &Value, answer: &Value) -> bool {
    expected.as_object().unwrap().iter().all(|(field, value)| match value {
        Value::Array(any) => any.contains(&answer[field]),
        value => answer[field] == *value,
    })
}

/// An operation has one id for ever, and so has what it made; no two have the same.
fn learn(world: &mut World, name: Name, answer: &Value) -> Result<(), String> {
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    let operation = text("operation_id").ok_or("there is no operation_id")?;
    let makes = matches!(name.2, "create_note" | "create_automation");
    let resource = text("note_id").or(text("automation_id")).or(text("resource_id")).filter(|_| makes);
    expect(makes == resource.is_some(), || "it should name what it made".to_owned())?;
    let ids = (operation, resource);
    if let Some(known) = world.ids.get(&name) {
        return expect(*known == ids, || format!("its ids were {known:?}"));
    }
    let is_new = world
        .ids
        .values()
        .all(|(operation, resource)| *operation != ids.0 && (resource.is_none() || *resource != ids.1));
    expect(is_new, || "another has one of its ids".to_owned())?;
    world.ids.insert(name, ids);
    Ok(())
}

fn expected_image(world: &World) -> Image {
    let resource = |name: &Name| world.resource(name).unwrap_or("nobody was told").to_owned();
    let operation = |name: &Name| world.ids.get(name).map_or("nobody was told", |(id, _)| id.as_str()).to_owned();
    let notes =
        world.notes.iter().map(|(name, note)| (resource(name), (note.workspace.to_owned(), note.body.to_owned())));
    let automations = world.automations.iter().map(|(name, automation)| {
        (resource(name), (automation.workspace.to_owned(), automation.minutes, automation.version))
    });
    let receipts = world.receipts.iter().map(|(name, receipt)| {
        let [workspace, subject, tool, key] = [name.0, name.1, name.2, name.3].map(str::to_owned);
        (operation(name), (workspace, subject, tool, key, receipt.is_tombstone))
    });
    let open = world.operations.iter().filter(|(_, state)| matches!(state, Operation::Accepted | Operation::Open));
    Image {
        notes: notes.collect(),
        automations: automations.collect(),
        receipts: receipts.collect(),
        open: open.map(|(name, _)| operation(name)).collect(),
    }
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

pub fn count(seen: &mut Seen, what: &'static str, number: u64) {
    *seen.entry(what).or_default() += number;
}
