//! What must come of each step, said once more and in the simplest way: sets, and the contract's order of checks. It knows no
//! id, but names everything by the call that made it.

use super::steps::{CALLERS, Call, PERMISSIONS, Saw};
use Call::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Workspace, subject, tool and key of a receipt, and the name of what the call made.
pub type Name = (&'static str, &'static str, &'static str, &'static str);

#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    /// What was asked for.
    pub call: Call<String>,
    /// What was answered, but for what nobody can foresee.
    pub result: Value,
    pub committed_at: u64,
    pub valid_until: u64,
    pub is_tombstone: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub workspace: &'static str,
    pub body: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Automation {
    pub workspace: &'static str,
    pub minutes: u32,
    pub version: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Accepted,
    /// Sent, and never heard of again.
    Open,
    Ended(&'static str),
}

/// All that is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    pub permissions: BTreeSet<(usize, &'static str)>,
    pub receipts: BTreeMap<Name, Receipt>,
    pub notes: BTreeMap<Name, Note>,
    pub automations: BTreeMap<Name, Automation>,
    pub operations: BTreeMap<Name, Operation>,
    /// The ids that were told of what a call made: of the operation and of the note or automation.
    pub ids: BTreeMap<Name, (String, Option<String>)>,
    /// What was acknowledged, in full.
    pub told: BTreeMap<Name, Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Refused(&'static str),
    /// It acted, and its receipt has this name.
    Fresh(Name),
    Replay(Name),
    /// What is read holds this.
    Read(Value),
    /// What became of this operation is read.
    Status(Name),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    Permission,
    Arguments,
    Access,
    Receipt,
    Condition,
}

/// The rules of the contract, each in a place of its own so that controls can put in a wrong one.
#[derive(Clone, Copy)]
pub struct Rules {
    pub order: [Check; 5],
    pub name: fn(Name, &Call<String>) -> Name,
    pub is_same: fn(&Call<String>, &Call<String>) -> bool,
    /// Given the time, and whether its operation is in progress.
    pub is_expired: fn(&Receipt, u64, bool) -> bool,
    /// What an expired key is answered; none if it is taken as new.
    pub expired: Option<&'static str>,
    pub replayed: fn(&World, &Name) -> Value,
    pub sweeps: fn(&mut World, &Name),
    pub deletes: fn(&mut World, &Name),
    pub refusals_use_keys: bool,
    pub batches_are_all_or_nothing: bool,
    pub crashes: fn(&mut World),
    /// Whether a commit in doubt may not have happened, and whether it may.
    pub doubt: (bool, bool),
}

pub const RULES: Rules = Rules {
    order: [Check::Permission, Check::Arguments, Check::Access, Check::Receipt, Check::Condition],
    name: |name, _| name,
    is_same: |one, other| one == other,
    is_expired: |receipt, now, in_progress| receipt.is_tombstone || receipt.valid_until < now && !in_progress,
    expired: Some("key_expired"),
    replayed: |world, name| world.receipts[name].result.clone(),
    sweeps: |world, name| world.receipts.get_mut(name).unwrap().is_tombstone = true,
    deletes: |_, _| {},
    refusals_use_keys: false,
    batches_are_all_or_nothing: false,
    crashes: |_| {},
    doubt: (true, true),
};

pub const RETENTION: u64 = 86_400_000;

impl World {
    pub fn new() -> World {
        let everything = (0..CALLERS.len()).flat_map(|who| PERMISSIONS.map(|permission| (who, permission)));
        World { permissions: everything.collect(), ..World::default() }
    }

    /// What a call is answered, whose effect is in the world afterwards.
    pub fn call(&mut self, rules: &Rules, now: u64, who: usize, call: &Call<String>) -> Verdict {
        let (subject, workspace) = CALLERS[who];
        let name = call.key().map(|(tool, key)| (rules.name)((workspace, subject, tool, key), call));
        for check in rules.order {
            let verdict = match check {
                Check::Permission => (!self.permissions.contains(&(who, call.permission()))).then_some("denied"),
                Check::Arguments => (!call.is_valid()).then_some("invalid_argument"),
                Check::Access => (!self.has(workspace, call, name)).then_some("not_found"),
                Check::Receipt => match self.replay(rules, now, call, name) {
                    Some(Verdict::Refused(code)) => Some(code),
                    Some(replay) => return replay,
                    None => None,
                },
                Check::Condition => self.has_moved_on(call).then_some("version_conflict"),
            };
            if let Some(code) = verdict {
                if let (true, Some(name)) = (rules.refusals_use_keys, name) {
                    self.receipts.entry(name).or_insert_with(|| Receipt::new(call, now, json!({})));
                }
                return Verdict::Refused(code);
            }
        }
        self.act(now, workspace, call, name)
    }

    /// Whether what the call names is there and its caller's.
    fn has(&self, workspace: &str, call: &Call<String>, name: Option<Name>) -> bool {
        match call {
            GetNote(id) => self.note(id).is_some_and(|name| self.notes[&name].workspace == workspace),
            GetAutomation(id) | SetInterval { automation: id, .. } => {
                self.automation(id).is_some_and(|name| self.automations[&name].workspace == workspace)
            }
            GetOperation(id) => self.operation(id).is_some_and(|name| name.0 == workspace),
            CancelOperation(id) => {
                self.operation(id).is_some_and(|name| name.0 == workspace && self.operations.contains_key(&name))
            }
            FindOperation { .. } => name.is_some_and(|name| self.receipts.contains_key(&name)),
            _ => true,
        }
    }

    fn replay(&self, rules: &Rules, now: u64, call: &Call<String>, name: Option<Name>) -> Option<Verdict> {
        let name = name.filter(|_| !matches!(call, FindOperation { .. }))?;
        let receipt = self.receipts.get(&name)?;
        if (rules.is_expired)(receipt, now, self.is_in_progress(&name)) {
            return rules.expired.map(Verdict::Refused);
        }
        let same = (rules.is_same)(&receipt.call, call);
        Some(if same { Verdict::Replay(name) } else { Verdict::Refused("key_conflict") })
    }

    fn has_moved_on(&self, call: &Call<String>) -> bool {
        let SetInterval { automation, version, .. } = call else { return false };
        self.automation(automation).is_some_and(|name| Some(self.automations[&name].version) != *version)
    }

    fn act(&mut self, now: u64, workspace: &'static str, call: &Call<String>, name: Option<Name>) -> Verdict {
        let result = match call {
            CreateNote { body, .. } => {
                self.notes.insert(name.unwrap(), Note { workspace, body });
                json!({})
            }
            CreateAutomation { minutes, .. } => {
                self.automations.insert(name.unwrap(), Automation { workspace, minutes: *minutes, version: 1 });
                json!({ "interval_minutes": minutes, "version": 1 })
            }
            SetInterval { automation: id, minutes, .. } => {
                let Some(name) = self.automation(id) else { return Verdict::Refused("not_found") };
                let automation = self.automations.get_mut(&name).unwrap();
                (automation.minutes, automation.version) = (*minutes, automation.version + 1);
                json!({ "automation_id": id, "interval_minutes": minutes, "version": automation.version })
            }
            StartDeployment { .. } => {
                self.operations.insert(name.unwrap(), Operation::Accepted);
                json!({ "state": "accepted" })
            }
            GetNote(id) => return Verdict::Read(json!({ "body": self.notes[&self.note(id).unwrap()].body })),
            GetAutomation(id) => {
                let Automation { minutes, version, .. } = self.automations[&self.automation(id).unwrap()];
                return Verdict::Read(json!({ "interval_minutes": minutes, "version": version }));
            }
            GetOperation(id) => return Verdict::Status(self.operation(id).unwrap()),
            FindOperation { .. } => return Verdict::Status(name.unwrap()),
            CancelOperation(id) => {
                let name = self.operation(id).unwrap();
                let operation = self.operations.get_mut(&name).unwrap();
                if *operation == Operation::Accepted {
                    *operation = Operation::Ended("cancelled");
                }
                return Verdict::Status(name);
            }
        };
        self.receipts.insert(name.unwrap(), Receipt::new(call, now, result));
        Verdict::Fresh(name.unwrap())
    }

    /// What is told of an operation; of a list, one of it.
    pub fn status(&self, name: &Name) -> Value {
        let state = match self.operations.get(name) {
            None => json!("succeeded"),
            Some(Operation::Accepted) => json!("accepted"),
            Some(Operation::Open) => json!(["running", "cancel_requested", "outcome_unknown"]),
            Some(Operation::Ended(state)) => json!(state),
        };
        let mut status = json!({ "tool": name.2, "state": state });
        if let Some(Receipt { call: SetInterval { automation, .. }, .. }) = self.receipts.get(name) {
            status["resource_id"] = json!(automation);
        }
        status
    }

    pub fn is_in_progress(&self, name: &Name) -> bool {
        matches!(self.operations.get(name), Some(Operation::Accepted | Operation::Open))
    }

    /// How many were swept.
    pub fn sweep(&mut self, rules: &Rules, now: u64) -> u32 {
        let is_over = |name: &&Name| {
            let receipt = &self.receipts[*name];
            receipt.valid_until < now && !receipt.is_tombstone && !self.is_in_progress(name)
        };
        let over: Vec<_> = self.receipts.keys().filter(is_over).copied().collect();
        over.iter().for_each(|name| (rules.sweeps)(self, name));
        over.len() as u32
    }

    /// Whether what was handed out is what nobody had before. Of some, whose answer was lost, the id is not known.
    pub fn work(&mut self, handed_out: &[String], saw: Saw) -> bool {
        let known: BTreeSet<_> = handed_out.iter().filter_map(|id| self.operation(id)).collect();
        let new: BTreeSet<_> =
            self.operations.iter().filter(|(_, state)| **state == Operation::Accepted).map(|(name, _)| *name).collect();
        let (told, untold): (BTreeSet<_>, BTreeSet<_>) =
            new.iter().copied().partition(|name| self.ids.contains_key(name));
        for name in new {
            self.operations.insert(
                name,
                match saw {
                    Saw::Finished => Operation::Ended("succeeded"),
                    Saw::Failed => Operation::Ended("failed"),
                    Saw::Nothing => Operation::Open,
                },
            );
        }
        told == known && told.len() + untold.len() == handed_out.len()
    }

    pub fn relocate(&mut self, rules: &Rules, id: &str, to: Option<&'static str>) {
        let name = self.note(id).or(self.automation(id));
        match (name, to) {
            (Some(name), Some(to)) => {
                self.notes.get_mut(&name).into_iter().for_each(|note| note.workspace = to);
                self.automations.get_mut(&name).into_iter().for_each(|automation| automation.workspace = to);
            }
            (Some(name), None) => {
                self.notes.remove(&name);
                self.automations.remove(&name);
                (rules.deletes)(self, &name);
            }
            (None, _) => {}
        }
    }

    /// What the note of this id is named, if it is there.
    fn note(&self, id: &str) -> Option<Name> {
        self.notes.keys().copied().find(|name| self.resource(name) == Some(id))
    }

    fn automation(&self, id: &str) -> Option<Name> {
        self.automations.keys().copied().find(|name| self.resource(name) == Some(id))
    }

    pub fn operation(&self, id: &str) -> Option<Name> {
        self.ids.iter().find(|(_, (operation, _))| operation == id).map(|(name, _)| *name)
    }

    pub fn resource(&self, name: &Name) -> Option<&str> {
        self.ids.get(name)?.1.as_deref()
    }
}

impl Receipt {
    fn new(call: &Call<String>, now: u64, result: Value) -> Receipt {
        let (call, valid_until) = (call.clone(), now + RETENTION);
        Receipt { call, result, committed_at: now, valid_until, is_tombstone: false }
    }
}
