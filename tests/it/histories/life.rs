//! A history as it happens: the real component, on a disk and a clock that the steps break and set.

use super::image;
use super::judge::{Asked, Event, Swept};
use super::steps::*;
use crate::disk::{self, Disk, Fault};
use crate::harness::*;
use crate::outbox_harness::{NONE, START, World, failed, finished};
use host_example::Sharing::{self, Shared, Sole, SoleAtomic};
use host_example::types::RefusalCode;
use host_example::{Error, Part, Principal, Storage};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Nobody was told of it.
const NOBODYS: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// The most calls in a batch.
const BATCH: usize = 64;

/// What the histories of one thread have in common. Receipts are kept for a day, and nothing is late.
pub fn world() -> World {
    World::with(&[("COUNTERFOIL_RETENTION", "1d"), ("COUNTERFOIL_DEADLINE", "10000y")])
}

/// What happens in the history, to its end: the power goes, each call that was made is made once more, and the database is read.
pub fn play(world: &World, history: &History, disk_lies: bool) -> Vec<Event> {
    world.clock.set(START);
    let disk = Disk::new(sharing(history.first).unwrap_or(Sole));
    let mut life = Life {
        world,
        disk_lies,
        client: world.client_on(disk.storage()),
        disk,
        is_open: false,
        permissions: everything(),
        ids: Vec::new(),
        versions: BTreeMap::new(),
        homes: BTreeMap::new(),
        away: BTreeSet::new(),
        asked: Vec::new(),
        events: Vec::new(),
    };
    life.begin(life.disk.clone());
    let played = history.steps.iter().try_for_each(|step| life.step(step)).and_then(|()| life.end());
    if let Err(wrong) = played {
        life.events.push(Event::Wrong(wrong));
    }
    life.events
}

fn sharing(mode: Mode) -> Option<Sharing> {
    match mode {
        Mode::Same => None,
        Mode::Sole => Some(Sole),
        Mode::Shared => Some(Shared),
        Mode::SoleAtomic => Some(SoleAtomic),
    }
}

fn everything() -> BTreeSet<(usize, &'static str)> {
    (0..CALLERS.len()).flat_map(|who| PERMISSIONS.map(|permission| (who, permission))).collect()
}

struct Life<'a> {
    world: &'a World,
    disk_lies: bool,
    disk: Disk,
    client: Client,
    /// Whether it has the database open.
    is_open: bool,
    permissions: BTreeSet<(usize, &'static str)>,
    /// What anybody was told of, in that order.
    ids: Vec<(Kind, String)>,
    /// The latest versions that were told.
    versions: BTreeMap<String, u32>,
    /// In which workspace a note or automation was made, and which of them are in the other one.
    homes: BTreeMap<String, &'static str>,
    away: BTreeSet<String>,
    asked: Vec<Asked>,
    events: Vec<Event>,
}

/// An error is what no rule allows.
type Played = Result<(), String>;

impl Life<'_> {
    fn step(&mut self, step: &Step) -> Played {
        match step {
            Step::Do(deed) => self.deed(deed)?,
            Step::Break { deed, breaks, at, then, next } => {
                let at = 1 + self.storage_calls(deed) * at / 100;
                let fault = match breaks {
                    Breaks::Dies => Fault::Die(at),
                    Breaks::Forgets if self.disk.storage_mode() == Sole => Fault::ForgetAt(at),
                    Breaks::Fails | Breaks::Forgets => Fault::Fail(at, Error::Io),
                    Breaks::HasNoSpace => Fault::Fail(at, Error::NoSpace),
                };
                self.disk.fault(fault);
                self.deed(deed)?;
                if let Some(call) = self.disk.broke() {
                    self.events.push(Event::Broke(match fault {
                        Fault::Die(_) => "dies",
                        Fault::ForgetAt(_) => "forgets",
                        // Elsewhere the host makes it one that fails.
                        Fault::Fail(_, Error::NoSpace) if matches!(call, disk::Call::Open | disk::Call::Write) => {
                            "has no space"
                        }
                        _ => "fails",
                    }));
                }
                let is_dead = matches!(breaks, Breaks::Dies) || self.client.instance.is_spent();
                match then {
                    Then::GoOn if !is_dead => self.disk.fault(Fault::None),
                    Then::GoOn | Then::Kill => self.next_life(&self.killed(), *next)?,
                    Then::PowerCut(seed) => self.next_life(&self.disk.power_cut(*seed), *next)?,
                }
            }
            Step::Restart { closes, next } => {
                if *closes {
                    self.close()?;
                }
                self.next_life(&self.killed(), *next)?;
            }
            Step::Revoke(who, permission) => self.permit(*who, permission, false),
            Step::Grant(who, permission) => self.permit(*who, permission, true),
            Step::Move(number) => self.resource(*number).map_or(Ok(()), |id| self.change_sides(&id))?,
            Step::Delete(number) => self.resource(*number).map_or(Ok(()), |id| self.relocate(&id, None))?,
            Step::Later(milliseconds) => self.world.clock.advance(*milliseconds),
            Step::Earlier(milliseconds) => self.world.clock.step_back(*milliseconds),
            Step::Work(saw) => self.work(*saw)?,
        }
        Ok(())
    }

    fn end(&mut self) -> Played {
        self.next_life(&self.disk.power_cut(0), Mode::Same)?;
        everything()
            .difference(&self.permissions.clone())
            .for_each(|(who, permission)| self.permit(*who, permission, true));
        self.away.clone().iter().try_for_each(|id| self.change_sides(id))?;
        let everybody = 0..CALLERS.len();
        let finds = everybody.flat_map(|who| {
            KEYED.into_iter().flat_map(move |tool| KEYS.map(|key| (who, Call::FindOperation { tool, key })))
        });
        let mut asked: Vec<Asked> = Vec::new();
        for call in self.asked.iter().filter(|(_, call)| call.key().is_some()) {
            if !asked.contains(call) {
                asked.push(call.clone());
            }
        }
        self.calls(finds.collect());
        asked.chunks(BATCH).for_each(|batch| self.calls(batch.to_vec()));
        self.close()?;
        let image = image::read(&self.disk, &self.world.db.path()).map_err(|error| error.to_string())?;
        self.events.push(Event::Holds(image));
        Ok(())
    }

    /// About how many calls to storage the deed makes, if all of it acts.
    fn storage_calls(&self, deed: &Deed) -> u64 {
        let more = match deed {
            Deed::Calls(attempts) => attempts.len() as u64 - 1,
            Deed::Sweep => 0,
        };
        let (to_open, first, each) = match self.disk.storage_mode() {
            Sole => (60, 2, 0),
            Shared => (27, 56, 2),
            SoleAtomic => (26, 6, 1),
        };
        u64::from(!self.is_open) * to_open + first + each * more
    }

    fn deed(&mut self, deed: &Deed) -> Played {
        match deed {
            Deed::Calls(attempts) => {
                let asked: Vec<_> = attempts.iter().filter_map(|attempt| self.asked(attempt)).collect();
                if !asked.is_empty() {
                    self.calls(asked);
                }
                Ok(())
            }
            Deed::Sweep => {
                let swept = match self.operator().instance.sweep(10_000) {
                    Ok(Ok(number)) => Swept::Receipts(number),
                    Ok(Err(refusal)) if refusal.code == RefusalCode::Unavailable => Swept::Undone,
                    Ok(Err(refusal)) if refusal.code == RefusalCode::Unconfirmed => Swept::InDoubt,
                    Ok(Err(refusal)) => return Err(format!("a sweep is {refusal:?}")),
                    Err(_) => Swept::InDoubt,
                };
                let broke = self.disk.broke().is_some();
                self.events.push(Event::Sweep { now: self.world.clock.now(), swept, broke });
                Ok(())
            }
        }
    }

    fn calls(&mut self, asked: Vec<Asked>) {
        let callers = asked.iter().map(|(who, _)| Some(self.principal(*who))).collect();
        let calls: Vec<_> = asked.iter().map(|(_, call)| (call.tool(), call.arguments())).collect();
        let answers = self.client.callers(callers).try_batch(&calls).ok();
        for ((who, call), answer) in asked.iter().zip(answers.iter().flatten()) {
            self.learn(*who, call, answer);
        }
        self.asked.extend(asked.iter().cloned());
        let broke = self.disk.broke().is_some();
        self.is_open = true;
        self.events.push(Event::Calls { now: self.world.clock.now(), asked, answers, broke });
    }

    /// None if nothing was asked yet that could be asked again.
    fn asked(&self, attempt: &Attempt) -> Option<Asked> {
        let earlier = |number: usize| self.asked.iter().rev().cycle().nth(number).cloned();
        match attempt {
            Attempt::New(who, call) => {
                let version = |id: &str| self.versions.get(id).copied().unwrap_or(1);
                Some((*who, call.clone().resolve(|kind, number| self.id(kind, number), version)))
            }
            Attempt::Again(number) => earlier(*number),
            Attempt::AgainOtherwise(number) => earlier(*number).map(|(who, call)| (who, call.with_other_arguments())),
        }
    }

    /// Counting from the newest; one is nobody's.
    fn id(&self, kind: Kind, number: usize) -> String {
        let mut known = self.ids.iter().rev().filter(|(known, _)| *known == kind).cycle();
        let known = if number == LAST { None } else { known.nth(number) };
        known.map_or(NOBODYS, |(_, id)| id).to_owned()
    }

    fn resource(&self, number: usize) -> Option<String> {
        let is_resource = |(kind, _): &&(Kind, String)| matches!(kind, Kind::Note | Kind::Automation);
        Some(self.ids.iter().rev().filter(is_resource).cycle().nth(number)?.1.clone())
    }

    fn learn(&mut self, who: usize, call: &Call<String>, answer: &Value) {
        let tool = answer["tool"].as_str().unwrap_or(call.tool());
        let made = match tool {
            "create_note" => Some(Kind::Note),
            "create_automation" => Some(Kind::Automation),
            _ => None,
        };
        let text = |field: &str| answer[field].as_str().map(str::to_owned);
        if let Some((kind, id)) = made.zip(text("note_id").or(text("automation_id")).or(text("resource_id"))) {
            self.homes.entry(id.clone()).or_insert(CALLERS[who].1);
            self.add(kind, id);
        }
        if let Some(id) = text("operation_id") {
            if tool == "start_deployment" {
                self.add(Kind::Deployment, id.clone());
            }
            self.add(Kind::Operation, id);
        }
        if let Some((id, version)) = text("automation_id").zip(answer["version"].as_u64()) {
            let latest = self.versions.entry(id).or_default();
            *latest = version.max(u64::from(*latest)) as u32;
        }
    }

    fn add(&mut self, kind: Kind, id: String) {
        let known = (kind, id);
        if !self.ids.contains(&known) {
            self.ids.push(known);
        }
    }

    fn principal(&self, who: usize) -> Principal {
        let (subject, workspace) = CALLERS[who];
        let has = |permission: &&str| self.permissions.contains(&(who, *permission));
        let permissions: Vec<_> = PERMISSIONS.into_iter().filter(has).collect();
        principal(&format!("{subject}@{workspace}"), &permissions)
    }

    fn operator(&mut self) -> &mut Client {
        self.client.caller(principal("op@nowhere", &["maintain", "dispatch"]))
    }

    fn permit(&mut self, who: usize, permission: &'static str, granted: bool) {
        if granted {
            self.permissions.insert((who, permission));
        } else {
            self.permissions.remove(&(who, permission));
        }
        self.events.push(Event::Permission { who, permission, granted });
    }

    fn work(&mut self, saw: Saw) -> Played {
        let claimed = self.operator().try_claim(64, 600_000, NONE).map_err(|refusal| format!("claim: {refusal:?}"))?;
        let operations = claimed.tasks.iter().map(|task| task.operation_id.clone()).collect();
        self.events.push(Event::Work { operations, saw });
        let observation = match saw {
            Saw::Finished => finished(),
            Saw::Failed => failed(),
            Saw::Nothing => return Ok(()),
        };
        claimed.tasks.iter().try_for_each(|task| {
            let settled = self.client.try_settle(&task.attempt_id, &observation);
            settled.map(drop).map_err(|refusal| format!("settle: {refusal:?}"))
        })
    }

    /// What is left of the disk if the process ends.
    fn killed(&self) -> Disk {
        match self.disk.storage_mode() {
            // What was not synced was never stored.
            SoleAtomic => self.disk.power_cut(0),
            mode => self.disk.copy(mode),
        }
    }

    fn next_life(&mut self, disk: &Disk, next: Mode) -> Played {
        self.events.push(Event::Died);
        let last = disk.storage_mode();
        let next = sharing(next).unwrap_or(last);
        if next == SoleAtomic && last != SoleAtomic {
            // The database alone is brought there, which holds everything once it was closed.
            self.begin(disk.copy(Shared));
            self.close()?;
            for part in [Part::Journal, Part::Wal] {
                let _: Result<(), Error> = self.disk.storage().remove(part);
            }
            self.begin(self.disk.copy(SoleAtomic));
        } else {
            self.begin(disk.copy(next));
        }
        Ok(())
    }

    fn begin(&mut self, disk: Disk) {
        if self.disk_lies {
            disk.lie(u32::MAX);
        }
        self.client = self.world.client_on(disk.storage());
        self.disk = disk;
        self.is_open = false;
    }

    /// In working order, so that the file alone holds everything.
    fn close(&mut self) -> Played {
        let operator = self.operator();
        match operator.instance.verify() {
            Ok(Ok(wrong)) if wrong.is_empty() => {}
            wrong => return Err(format!("verify: {wrong:?}")),
        }
        match operator.instance.close() {
            Ok(Ok(())) => Ok(()),
            wrong => Err(format!("close: {wrong:?}")),
        }
    }

    fn change_sides(&mut self, id: &str) -> Played {
        let home = self.homes[id];
        let other = if home == CALLERS[0].1 { CALLERS[2].1 } else { CALLERS[0].1 };
        let is_back = self.away.remove(id) || !self.away.insert(id.to_owned());
        self.relocate(id, Some(if is_back { home } else { other }))
    }

    fn relocate(&mut self, id: &str, to: Option<&'static str>) -> Played {
        self.close()?;
        let relocated = image::relocate(&self.disk, &self.world.db.path(), id, to);
        relocated.map_err(|error| error.to_string())?;
        self.events.push(Event::Relocated { id: id.to_owned(), to });
        self.next_life(&self.killed(), Mode::Same)
    }
}
