//! What each call must come to, told without the engine: who may what, what is recorded under which key, what there is.

use crate::meaning::{Meaning, Means, meaning, rules};
use counterfoil::Principal;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Model {
    /// By workspace, subject, tool and key.
    kept: BTreeMap<[String; 4], Kept>,
    notes: BTreeMap<u128, (String, String)>,
    automations: BTreeMap<u128, Automation>,
    /// Every operation, with its workspace and tool.
    operations: BTreeMap<u128, (String, String)>,
    /// Whether the database is marked as restored from an older copy.
    pub is_restored: bool,
}

/// What a key has led to.
struct Kept {
    arguments: Meaning,
    reply: Value,
}

struct Automation {
    workspace: String,
    minutes: u64,
    version: u64,
}

/// What a call must come to.
#[derive(Debug, PartialEq)]
pub enum Expected {
    Refused(&'static str),
    Fresh,
    /// This answer, marked as a replay.
    Replay(Value),
    /// A success of a tool without a key, with at least these fields.
    Told(Vec<(&'static str, Value)>),
}

/// The permission of each tool; none depends on what is asked.
fn permission(tool: &str) -> Option<&'static str> {
    match tool {
        "create_note" => Some("write-notes"),
        "create_automation" | "set_interval" => Some("write-automations"),
        "start_deployment" | "cancel_operation" => Some("deploy"),
        "find_operation" => None,
        _ => Some("read"),
    }
}

fn key(caller: &Principal, tool: &str, key: &str) -> [String; 4] {
    [&caller.workspace, &caller.subject, tool, key].map(ToString::to_string)
}

impl Model {
    #[must_use]
    pub fn expect(&self, caller: Option<&Principal>, tool: &str, arguments: &str) -> Expected {
        let Some(caller) = caller else { return Expected::Refused("denied") };
        let Some(rules) = rules(tool) else { return Expected::Refused("invalid_argument") };
        let may = |permission: &str| caller.permissions.iter().any(|granted| granted == permission);
        if permission(tool).is_some_and(|permission| !may(permission)) {
            return Expected::Refused("denied");
        }
        let Some(means) = meaning(rules, arguments) else { return Expected::Refused("invalid_argument") };
        let absent = if self.is_restored { "unconfirmed" } else { "not_found" };
        let is_ours = |workspace: &String| *workspace == caller.workspace;
        match (tool, means.as_slice()) {
            ("get_note", [Means::Id(id)]) => match self.notes.get(id).filter(|(workspace, _)| is_ours(workspace)) {
                Some((_, body)) => Expected::Told(vec![("body", body.as_str().into())]),
                None => Expected::Refused("not_found"),
            },
            ("get_automation", [Means::Id(id)]) => {
                match self.automations.get(id).filter(|found| is_ours(&found.workspace)) {
                    Some(found) => Expected::Told(vec![
                        ("version", found.version.into()),
                        ("interval_minutes", found.minutes.into()),
                    ]),
                    None => Expected::Refused("not_found"),
                }
            }
            ("get_operation" | "cancel_operation", [Means::Id(id)]) => {
                let ours = |(workspace, by): &&(String, String)| {
                    is_ours(workspace) && (tool == "get_operation" || by == "start_deployment")
                };
                match self.operations.get(id).filter(ours) {
                    Some((_, tool)) => Expected::Told(vec![("tool", tool.as_str().into())]),
                    None => Expected::Refused(absent),
                }
            }
            ("find_operation", [Means::Text(asked), Means::Text(named)]) => match permission(asked) {
                Some(permission) if takes_key(asked) => match self.kept.get(&key(caller, asked, named)) {
                    _ if !may(permission) => Expected::Refused("denied"),
                    Some(kept) => Expected::Told(vec![("operation_id", kept.reply["operation_id"].clone())]),
                    None => Expected::Refused(absent),
                },
                _ => Expected::Refused("invalid_argument"),
            },
            (_, [Means::Text(named), ..]) => self.expect_change(caller, tool, named, &means),
            _ => unreachable!("{tool} has other rules"),
        }
    }

    fn expect_change(&self, caller: &Principal, tool: &str, named: &str, means: &Meaning) -> Expected {
        let edited = match means.as_slice() {
            [_, Means::Id(id), Means::Number(expected), _] => {
                match self.automations.get(id).filter(|found| found.workspace == caller.workspace) {
                    Some(found) => Some(found.version == *expected),
                    None => return Expected::Refused("not_found"),
                }
            }
            _ => None,
        };
        match self.kept.get(&key(caller, tool, named)) {
            Some(kept) if kept.arguments == *means => {
                let mut reply = kept.reply.clone();
                reply["replayed"] = true.into();
                Expected::Replay(reply)
            }
            Some(_) => Expected::Refused("key_conflict"),
            None if self.is_restored => Expected::Refused("unconfirmed"),
            None if edited == Some(false) => Expected::Refused("version_conflict"),
            None => Expected::Fresh,
        }
    }

    /// What a call has done that was to be fresh.
    pub fn keep(&mut self, caller: &Principal, tool: &str, arguments: &str, reply: &Value) {
        let means = rules(tool).and_then(|rules| meaning(rules, arguments)).unwrap_or_default();
        let [Means::Text(named), rest @ ..] = means.as_slice() else { return };
        let workspace = caller.workspace.clone();
        match rest {
            [Means::Text(body)] => drop(self.notes.insert(id(reply, "note_id"), (workspace.clone(), body.clone()))),
            [Means::Number(minutes)] => {
                let made = Automation { workspace: workspace.clone(), minutes: *minutes, version: 1 };
                self.automations.insert(id(reply, "automation_id"), made);
            }
            [Means::Id(edited), Means::Number(version), Means::Number(minutes)] => {
                let made = Automation { workspace: workspace.clone(), minutes: *minutes, version: version + 1 };
                self.automations.insert(*edited, made);
            }
            _ => {}
        }
        self.operations.insert(id(reply, "operation_id"), (workspace, tool.to_owned()));
        self.kept.insert(key(caller, tool, named), Kept { arguments: means, reply: reply.clone() });
    }
}

pub(crate) fn takes_key(tool: &str) -> bool {
    rules(tool).is_some_and(|rules| rules[0].0 == crate::meaning::KEY.0)
}

fn id(reply: &Value, field: &str) -> u128 {
    let text = reply[field].as_str().unwrap_or_default().replace('-', "");
    u128::from_str_radix(&text, 16).unwrap_or_default()
}
