//! What the arguments of a call say, by rules that are written out here: the engine's own types are not asked. Two calls under one
//! key are the same if these are equal.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// The fields in the order of the rules.
pub type Meaning = Vec<Means>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    Text(String),
    Number(u64),
    Id(u128),
}

#[derive(Clone, Copy)]
pub enum Rule {
    Key,
    /// The most characters.
    Text(usize),
    Integer(u64, u64),
    Id,
}

pub const KEY: (&str, Rule) = ("idempotency_key", Rule::Key);
const MINUTES: (&str, Rule) = ("interval_minutes", Rule::Integer(5, 1440));
const VERSION: (&str, Rule) = ("expected_version", Rule::Integer(1, 4_294_967_294));

pub type Rules = &'static [(&'static str, Rule)];

/// All fields of all tools are required.
pub const TOOLS: [(&str, Rules); 9] = [
    ("create_note", &[KEY, ("body", Rule::Text(10_000))]),
    ("create_automation", &[KEY, MINUTES]),
    ("set_interval", &[KEY, ("automation_id", Rule::Id), VERSION, MINUTES]),
    ("start_deployment", &[KEY, ("service", Rule::Text(200)), ("revision", Rule::Text(200))]),
    ("get_note", &[("note_id", Rule::Id)]),
    ("get_automation", &[("automation_id", Rule::Id)]),
    ("cancel_operation", &[("operation_id", Rule::Id)]),
    ("get_operation", &[("operation_id", Rule::Id)]),
    ("find_operation", &[("tool", Rule::Text(128)), KEY]),
];

/// Those of the tools that take a key.
pub const KEYED: usize = 4;

/// None for a tool that is not there.
#[must_use]
pub fn rules(tool: &str) -> Option<Rules> {
    TOOLS.iter().find(|(name, _)| *name == tool).map(|(_, rules)| *rules)
}

/// None if they are to be refused.
#[must_use]
pub fn meaning(rules: Rules, json: &str) -> Option<Meaning> {
    if json.len() > 65_536 || !json.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return None;
    }
    let Pairs(pairs) = serde_json::from_str(json).ok()?;
    if pairs.len() != rules.len() {
        return None;
    }
    rules.iter().map(|(name, rule)| means(*rule, &pairs.iter().find(|(found, _)| found == name)?.1)).collect()
}

fn means(rule: Rule, value: &Value) -> Option<Means> {
    match rule {
        Rule::Key => {
            let text = value.as_str()?;
            let allowed = |letter: char| matches!(letter, 'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-');
            ((1..=128).contains(&text.chars().count()) && text.chars().all(allowed))
                .then(|| Means::Text(text.to_owned()))
        }
        Rule::Text(most) => {
            let text = value.as_str()?;
            ((1..=most).contains(&text.chars().count()) && !text.contains('\0')).then(|| Means::Text(text.to_owned()))
        }
        Rule::Integer(least, most) => {
            // Every number that may be is one with a fraction, exactly.
            let number = value.as_f64()?;
            let integer = (least..=most).contains(&(number as u64)) && number as u64 as f64 == number;
            integer.then_some(Means::Number(number as u64))
        }
        Rule::Id => id(value.as_str()?).map(Means::Id),
    }
}

/// 32 hexadecimal digits; or with hyphens, and then also in braces or as a URN, whose beginning has no case.
fn id(text: &str) -> Option<u128> {
    let is_urn = text.get(..9).is_some_and(|start| start.to_lowercase() == "urn:uuid:");
    let inner = if is_urn { text.get(9..) } else { text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) };
    let hyphens = [8, 13, 18, 23];
    let text = inner.unwrap_or(text);
    let is_hyphenated = text.len() == 36 && hyphens.iter().all(|place| text.as_bytes()[*place] == b'-');
    if !is_hyphenated && inner.is_some() {
        return None;
    }
    let digits = if is_hyphenated { text.replacen('-', "", 4) } else { text.to_owned() };
    let is_right = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_right.then(|| u128::from_str_radix(&digits, 16).ok())?
}

/// An object as it is written: `Value` would pass over a field that is there twice.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Each)
    }
}
