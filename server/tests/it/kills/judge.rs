//! What clients were told, against what is in the file.

use crate::world::query;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An action that a client intends once, and what it was told. `what` is in the effect, whatever the key.
#[derive(Clone, Debug)]
pub struct Deed {
    pub subject: String,
    pub what: String,
    pub tool: &'static str,
    pub arguments: Value,
    /// None if it was not told.
    pub reply: Option<Value>,
}

/// What is in the file.
#[derive(Clone, Default)]
pub struct Found {
    /// By subject, tool and key: the operation's id and the result.
    pub receipts: BTreeMap<(String, String, String), (String, Value)>,
    /// The operation's id and the body.
    pub notes: Vec<(String, String)>,
    /// The operation's id and the service.
    pub deployments: Vec<(String, String)>,
    /// The automation's id, version and interval.
    pub automations: Vec<(String, u64, u64)>,
}

impl Found {
    pub fn read(database: &Path) -> Found {
        fn rows<const N: usize>(database: &Path, sql: &str) -> Vec<[String; N]> {
            let row = |row: &rusqlite::Row<'_>| {
                let mut texts = [const { String::new() }; N];
                for (number, text) in texts.iter_mut().enumerate() {
                    *text = row.get(number)?;
                }
                Ok(texts)
            };
            query(database, sql, [], row)
        }
        let number = |text: &str| text.parse().unwrap();
        let receipts = rows(database, "SELECT subject, tool, idempotency_key, operation_id, result FROM receipts");
        let automations = rows(
            database,
            "SELECT automation_id, cast(version AS TEXT), cast(interval_minutes AS TEXT) FROM automations",
        );
        let pair = |[operation, what]: [String; 2]| (operation, what);
        let deployments = rows(database, "SELECT operation_id, json_extract(request, '$.service') FROM operations");
        Found {
            receipts: receipts
                .into_iter()
                .map(|[subject, tool, key, operation, result]| {
                    ((subject, tool, key), (operation, serde_json::from_str(&result).unwrap()))
                })
                .collect(),
            notes: rows(database, "SELECT operation_id, body FROM notes").into_iter().map(pair).collect(),
            deployments: deployments.into_iter().map(pair).collect(),
            automations: automations
                .into_iter()
                .map(|[id, version, now]| (id, number(&version), number(&now)))
                .collect(),
        }
    }
}

/// What is not as the clients were told, each with the word `lost` or `doubled`.
pub fn judge(deeds: &[Deed], found: &Found) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    let mut keys = BTreeSet::new();
    for deed in deeds {
        let key = deed.arguments["idempotency_key"].as_str().unwrap();
        let Some(reply) = &deed.reply else { continue };
        keys.insert((deed.subject.clone(), deed.tool.to_owned(), key.to_owned()));
        match found.receipts.get(&(deed.subject.clone(), deed.tool.to_owned(), key.to_owned())) {
            Some((operation, result)) => {
                let of_reply = |(name, value): (&String, &Value)| reply[name] == *value;
                if reply["operation_id"] != *operation || !result.as_object().unwrap().iter().all(of_reply) {
                    wrong.push(format!("lost: another result is kept for {deed:?}"));
                }
            }
            None => wrong.push(format!("lost: no receipt of {deed:?}")),
        }
        let effects = match deed.tool {
            "create_note" => &found.notes,
            "start_deployment" => &found.deployments,
            _ => {
                let number = |name: &str| reply[name].as_u64().unwrap();
                let id = reply["automation_id"].as_str().unwrap();
                versions.entry(id).or_default().push((number("version"), number("interval_minutes")));
                continue;
            }
        };
        match effects.iter().filter(|(_, what)| *what == deed.what).count() {
            0 => wrong.push(format!("lost: no effect of {deed:?}")),
            1 if !effects.iter().any(|(operation, _)| reply["operation_id"] == *operation) => {
                wrong.push(format!("lost: the effect of {deed:?} is another operation's"));
            }
            1 => {}
            count => wrong.push(format!("doubled: {count} effects of {deed:?}")),
        }
    }
    for (id, version, now) in &found.automations {
        let mut told = versions.remove(id.as_str()).unwrap_or_default();
        told.sort_unstable();
        let numbers: Vec<_> = told.iter().map(|(version, _)| *version).collect();
        if numbers != (1..=*version).collect::<Vec<_>>() || told.last() != Some(&(*version, *now)) {
            wrong.push(format!("lost or doubled: {id} has version {version}, interval {now}, and {told:?} was told"));
        }
    }
    wrong.extend(versions.keys().map(|id| format!("lost: automation {id}")));
    let effects = [found.notes.len(), found.deployments.len()];
    let of = |tool: &str| found.receipts.keys().filter(|(_, of, _)| of == tool).count();
    if effects != [of("create_note"), of("start_deployment")] {
        wrong.push(format!("doubled: {effects:?} effects"));
    }
    let unasked = found.receipts.keys().filter(|key| !keys.contains(*key));
    wrong.extend(unasked.map(|key| format!("doubled: nobody was told of {key:?}")));
    wrong
}

/// Each change of what was told or found is noticed.
pub fn judge_sees_what_is_wrong(deeds: &[Deed], found: &Found) {
    let noticed = |word: &str, change: &dyn Fn(&mut Vec<Deed>, &mut Found)| {
        let (mut deeds, mut found) = (deeds.to_vec(), found.clone());
        change(&mut deeds, &mut found);
        let wrong = judge(&deeds, &found);
        assert!(wrong.iter().any(|wrong| wrong.contains(word)), "{word}: {wrong:?}");
    };
    noticed("lost", &|_, found| drop(found.notes.pop()));
    noticed("lost", &|_, found| drop(found.receipts.pop_last()));
    noticed("lost", &|_, found| drop(found.automations.pop()));
    noticed("lost", &|_, found| found.automations[0].1 -= 1);
    noticed("lost", &|_, found| found.automations[0].2 += 1);
    noticed("lost", &|_, found| found.deployments[0].0 = "another".to_owned());
    noticed("lost", &|deeds, _| {
        // An acknowledgement of what nobody answered.
        let mut invented = deeds[0].clone();
        invented.arguments["idempotency_key"] = "never-sent".into();
        deeds.push(invented);
    });
    noticed("doubled", &|_, found| found.notes.push(found.notes[0].clone()));
    noticed("doubled", &|_, found| found.deployments.push(found.deployments[0].clone()));
    noticed("doubled", &|_, found| found.automations[0].1 += 1);
    noticed("doubled", &|deeds, _| drop(deeds.pop()));
}
