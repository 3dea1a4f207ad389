//! What an agent is answered: one flat JSON object, its schema, and what a tool's description says about keys.

use crate::Timestamp;
use crate::engine::Outcome;
use crate::refusal::Refusal;
use crate::settings;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    Succeeded,
    Refused,
}

/// The fields beside the tool's own. Those of the receipt stand in the answers of tools that change something.
#[derive(Serialize, JsonSchema)]
struct Success<'a> {
    status: Status,
    /// True if this call changed nothing and repeats an earlier answer, which may be older than the resource is now.
    replayed: bool,
    /// Whether the same call, same key, can bring more.
    retryable: bool,
    /// The one execution that this key led to. The same on every replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<&'a str>,
    #[serde(flatten)]
    #[schemars(skip)]
    result: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_at: Option<Timestamp>,
    /// At least until then the key replays this receipt; later it is refused, never taken as new.
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_until: Option<Timestamp>,
}

#[derive(Serialize)]
struct Refused<'a> {
    status: Status,
    replayed: bool,
    #[serde(flatten)]
    refusal: &'a Refusal,
}

/// The answer as a JSON object.
///
/// # Panics
///
/// Never: what is written are strings, numbers and a map of JSON values.
#[must_use]
#[expect(clippy::expect_used, reason = "nothing in an answer can fail to be written")]
pub fn json(outcome: &Outcome) -> String {
    let json = match outcome {
        Ok(reply) => {
            let receipt = reply.receipt.as_ref();
            serde_json::to_string(&Success {
                status: Status::Succeeded,
                replayed: receipt.is_some_and(|receipt| receipt.replayed),
                retryable: false,
                operation_id: receipt.map(|receipt| receipt.operation_id.as_str()),
                result: &reply.result,
                committed_at: receipt.map(|receipt| receipt.committed_at),
                valid_until: receipt.map(|receipt| receipt.valid_until),
            })
        }
        Err(refusal) => serde_json::to_string(&Refused { status: Status::Refused, replayed: false, refusal }),
    };
    json.expect("an answer is written as JSON")
}

/// The JSON Schema of the answers of a tool whose own fields are those of `R`.
pub(crate) fn schema<R: JsonSchema>(has_receipt: bool) -> String {
    let mut generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true).into();
    let success = part::<Success<'_>>(&mut generator);
    let own = part::<R>(&mut generator);
    let refusal = part::<Refusal>(&mut generator);

    let mut properties = Map::new();
    let receipt_only = ["operation_id", "committed_at", "valid_until"];
    for (name, schema) in success.properties {
        if has_receipt || !receipt_only.contains(&name.as_str()) {
            properties.insert(name, without_null(schema));
        }
    }
    properties.extend(own.properties);
    for (name, schema) in refusal.properties {
        properties.entry(name).or_insert(without_null(schema));
    }
    for schema in properties.values_mut().filter_map(Value::as_object_mut) {
        // Such as `uint32`, which is none of JSON Schema's: validators of clients complain of it at each call.
        if schema.get("type").is_some_and(|kind| kind == "integer") {
            schema.remove("format");
        }
    }
    let mut succeeded = own.required;
    if has_receipt {
        succeeded.extend(receipt_only.map(Value::from));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": ["status", "replayed", "retryable"],
        "additionalProperties": false,
        "if": { "properties": { "status": { "const": "succeeded" } } },
        "then": { "required": succeeded },
        "else": { "required": ["code", "message", "next_action"] },
    })
    .to_string()
}

struct Part {
    properties: Map<String, Value>,
    required: Vec<Value>,
}

fn part<T: JsonSchema>(generator: &mut SchemaGenerator) -> Part {
    let mut schema = T::json_schema(generator).to_value();
    let mut take = |name| schema.get_mut(name).map(Value::take);
    Part {
        properties: match take("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        },
        required: match take("required") {
            Some(Value::Array(required)) => required,
            _ => Vec::new(),
        },
    }
}

/// An optional field is left out where it is none, never null.
fn without_null(mut schema: Value) -> Value {
    if let Some(types) = schema.get_mut("type")
        && let Some(kind) = types.as_array().and_then(|types| types.iter().find(|kind| *kind != "null"))
    {
        *types = kind.clone();
    }
    schema
}

/// The four things that a caller must know about keys (contract rule F5), less how to look one up.
pub(crate) fn about_keys() -> String {
    // A setting that cannot be read refuses every call.
    let retention = settings::get().map_or(settings::RETENTION_MS, |settings| settings.retention_ms);
    let retention = in_days(retention);
    format!(
        "Generate one idempotency_key (a UUID will do) for each intended action and store it before the first attempt. \
         Reuse that key, with the same arguments, for every retry of the action, above all when an answer was lost; \
         never make a new key because an answer is missing. A key is valid for {retention} from the commit: until then \
         it replays the first answer, later it is refused."
    )
}

/// `30 days`, and hours and less where there are any. humantime's months are no whole days.
fn in_days(milliseconds: u64) -> String {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let (days, rest) = (milliseconds / DAY, Duration::from_millis(milliseconds % DAY));
    let days = if days == 1 { "1 day".to_owned() } else { format!("{days} days") };
    if rest.is_zero() { days } else { format!("{days} {}", humantime::format_duration(rest)) }
}

/// How to inspect an uncertain outcome, in a component that has the tool for it.
pub(crate) fn about_lookup(tool: &str) -> String {
    format!(" If an outcome is uncertain, repeat the call, or ask find_operation with tool {tool:?} and the key.")
}
