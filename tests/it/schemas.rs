//! What each component tells agents of its tools: descriptions, and schemas that its replies fit.

use crate::harness::*;
use crate::library::{left, mark, open};
use crate::outbox_harness::deploy;
use host_example::{Description, Principal};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A tool's name, its required and its optional arguments, and the fields of its own in an answer that succeeded.
type Shape = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

const SHAPES: [Shape; 9] = [
    ("create_note", &["idempotency_key", "body"], &[], &["note_id"]),
    ("get_note", &["note_id"], &[], &["note_id", "body", "created_at"]),
    ("create_automation", &["idempotency_key", "interval_minutes"], &[], &AUTOMATION),
    ("set_interval", &["idempotency_key", "automation_id", "expected_version", "interval_minutes"], &[], &AUTOMATION),
    ("get_automation", &["automation_id"], &[], &AUTOMATION),
    ("start_deployment", &["idempotency_key", "service", "revision"], &[], &["state", "next_action"]),
    ("cancel_operation", &["operation_id"], &[], &OPERATION),
    ("get_operation", &["operation_id"], &[], &OPERATION),
    ("find_operation", &["tool", "idempotency_key"], &[], &OPERATION),
];
const TEST_SHAPES: [Shape; 6] = [
    ("mark", &["idempotency_key", "text"], &["weight", "dry_run"], &["dry_run", "text"]),
    ("mark_v2", &["idempotency_key", "text"], &[], &["dry_run", "text"]),
    ("grow", &["idempotency_key", "bytes"], &[], &["dry_run", "text"]),
    ("fail", &["idempotency_key", "how"], &[], &["dry_run", "text"]),
    ("get_operation", &["operation_id"], &[], &OPERATION),
    ("find_operation", &["tool", "idempotency_key"], &[], &OPERATION),
];
const AUTOMATION: [&str; 3] = ["automation_id", "interval_minutes", "version"];
/// But for `resource_id`, which may be left out.
const OPERATION: [&str; 7] = ["operation_id", "tool", "state", "since", "attempts", "detail", "next_action"];

/// F3: one call of each tool that succeeds.
fn calls(client: &mut Client) -> Vec<(&'static str, Value)> {
    let noted = client.call("create_note", &note("n", "hello"));
    let created = client.call("create_automation", &automation("c", 10));
    let started = client.call("start_deployment", &deploy("d", "web", "r1"));
    vec![
        ("create_note", note("n2", "hello")),
        ("get_note", json!({ "note_id": noted["note_id"] })),
        ("create_automation", automation("c2", 10)),
        ("set_interval", interval("e", &created, 1, 30)),
        ("get_automation", json!({ "automation_id": created["automation_id"] })),
        ("start_deployment", deploy("d2", "web", "r1")),
        ("cancel_operation", json!({ "operation_id": started["operation_id"] })),
        ("get_operation", json!({ "operation_id": noted["operation_id"] })),
        ("find_operation", json!({ "tool": "create_note", "idempotency_key": "n" })),
    ]
}

fn test_calls(client: &mut Client) -> Vec<(&'static str, Value)> {
    let marked = client.call("mark", &mark("k", "a"));
    vec![
        ("mark", mark("k2", "a")),
        ("mark_v2", mark("k3", "a")),
        ("grow", json!({ "idempotency_key": "k", "bytes": 3 })),
        ("get_operation", json!({ "operation_id": marked["operation_id"] })),
        ("find_operation", json!({ "tool": "mark_v2", "idempotency_key": "k" })),
    ]
}

fn describe(client: &mut Client, tool: &str) -> (Description, Value, Value) {
    let found = client.instance.describe().unwrap().into_iter().find(|found| found.name == tool).unwrap();
    let [input, output] =
        [&found.input_schema, &found.output_schema].map(|schema| serde_json::from_str(schema).unwrap());
    (found, input, output)
}

/// Of those that change something, what takes no key has none: asking twice is asking once.
fn has_receipt(described: &Description) -> bool {
    !described.read_only && described.name != "cancel_operation"
}

/// Whether the value is what the JSON Schema says, as far as keywords are used here; another keyword is a panic.
fn fits(value: &Value, schema: &Value) -> bool {
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        kind => panic!("unknown type {kind}"),
    };
    let list = |of: &Value| of.as_array().unwrap().clone();
    let object = || value.as_object().unwrap();
    schema.as_object().unwrap().iter().all(|(keyword, says)| match keyword.as_str() {
        "$schema" | "title" | "description" | "default" | "then" | "else" => true,
        "type" if says.is_array() => list(says).iter().any(is),
        "type" => is(says),
        "const" => value == says,
        "enum" => list(says).contains(value),
        "oneOf" => list(says).iter().filter(|schema| fits(value, schema)).count() == 1,
        "minimum" => value.as_u64() >= says.as_u64(),
        "format" => match says.as_str().unwrap() {
            "date-time" => value.as_str().is_some_and(|text| text.len() == 24 && text.ends_with('Z')),
            format => panic!("unknown format {format}"),
        },
        "required" => list(says).iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
        "properties" => object().iter().all(|(name, value)| says.get(name).is_none_or(|schema| fits(value, schema))),
        "additionalProperties" => {
            *says == false && object().keys().all(|name| schema["properties"].get(name).is_some())
        }
        "if" => fits(value, &schema[if fits(value, says) { "then" } else { "else" }]),
        keyword => panic!("unknown keyword {keyword}"),
    })
}

#[track_caller]
fn assert_fits(reply: &Value, schema: &Value) {
    assert!(fits(reply, schema), "{reply}\ndoes not fit\n{schema}");
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    names.into_iter().collect()
}

fn strings(list: &Value) -> BTreeSet<&str> {
    set(list.as_array().unwrap().iter().map(|name| name.as_str().unwrap()))
}

/// F3: success, replay, and a refusal of each kind that a tool can be made to give without harm.
#[test]
fn every_reply_fits_its_tools_output_schema() {
    let (db, test_db) = (Database::new(), Database::new());
    let (mut client, mut test_client) = (db.shared(), open(&test_db));
    for (client, calls) in
        [(&mut client, calls as fn(&mut Client) -> Vec<(&'static str, Value)>), (&mut test_client, test_calls)]
    {
        for (tool, call) in calls(client) {
            let (described, _, schema) = describe(client, tool);

            let first = client.call(tool, &call);
            let again = client.call(tool, &call);
            let unknown = client.call(tool, &json!({ "unknown": 1 }));
            let denied = client.caller(None::<Principal>).call(tool, &call);
            client.caller(ada());

            assert_fresh(&first);
            assert_eq!(again["replayed"], has_receipt(&described), "{again}");
            assert_refused(&unknown, "invalid_argument");
            assert_refused(&denied, "denied");
            for reply in [&first, &again, &unknown, &denied] {
                assert_fits(reply, &schema);
            }
            // The control: the checker minds a field less, a field more, and a field of another type.
            for (name, change) in first.as_object().unwrap() {
                let mut wrong = first.clone();
                wrong[name] = json!([change]);
                assert!(!fits(&wrong, &schema), "{tool} {name}");
                wrong.as_object_mut().unwrap().remove(name);
                assert_eq!(fits(&wrong, &schema), name == "resource_id", "{tool} {name}");
                wrong["surplus"] = change.clone();
                assert!(!fits(&wrong, &schema), "{tool} {name}");
            }
        }
    }
    assert_eq!(left(&test_db), "4|4");
    assert_eq!(db.sql("SELECT count(*) FROM receipts"), "7");
}

/// F3: `busy` alone has `retry_after_ms`, and a result without a resource has a null.
#[test]
fn schemas_list_exactly_what_is_required_and_what_is_allowed() {
    let (db, test_db) = (Database::new(), Database::new());
    for (mut client, shapes) in [(db.shared(), &SHAPES[..]), (open(&test_db), &TEST_SHAPES)] {
        let names: Vec<_> = client.instance.describe().unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(names, shapes.iter().map(|shape| shape.0).collect::<Vec<_>>());
        for (tool, required, optional, answered) in shapes {
            let (described, input, output) = describe(&mut client, tool);

            assert_eq!((&input["type"], &input["additionalProperties"]), (&json!("object"), &json!(false)), "{tool}");
            assert_eq!(strings(&input["required"]), set(required.iter().copied()), "{tool}");
            let allowed = set(required.iter().chain(*optional).copied());
            assert_eq!(set(input["properties"].as_object().unwrap().keys().map(String::as_str)), allowed, "{tool}");

            let receipt: &[&str] =
                if has_receipt(&described) { &["operation_id", "committed_at", "valid_until"] } else { &[] };
            let then = set(answered.iter().chain(receipt).copied());
            assert_eq!((&output["type"], &output["additionalProperties"]), (&json!("object"), &json!(false)), "{tool}");
            assert_eq!(output["if"], json!({ "properties": { "status": { "const": "succeeded" } } }), "{tool}");
            assert_eq!(strings(&output["required"]), set(["status", "replayed", "retryable"]), "{tool}");
            assert_eq!(strings(&output["then"]["required"]), then, "{tool}");
            assert_eq!(strings(&output["else"]["required"]), set(["code", "message", "next_action"]), "{tool}");
        }
    }
}

/// The schema is not only what is said: each required argument left out is refused, each optional one is not missed.
#[test]
fn a_call_without_a_required_argument_is_refused_and_names_it() {
    let db = Database::new();
    let mut client = db.shared();
    let calls = calls(&mut client);
    let before = db.sql("SELECT * FROM receipts; SELECT * FROM automations");

    for (tool, call) in &calls {
        let (_, required, ..) = SHAPES.iter().find(|shape| shape.0 == *tool).unwrap();
        for name in *required {
            let mut short = call.clone();
            short.as_object_mut().unwrap().remove(*name).unwrap();
            let reply = client.call(tool, &short);
            assert_refused(&reply, "invalid_argument");
            assert!(reply["message"].as_str().unwrap().contains(&format!("`{name}`")), "{reply}");
        }
    }

    assert_eq!(db.sql("SELECT * FROM receipts; SELECT * FROM automations"), before);
    assert_eq!(db.count("notes"), "1");
}

/// What a host may show of a tool, and a permission without which it is denied.
#[test]
fn each_tool_is_described_as_what_it_does() {
    let tools = Database::new().shared().instance.describe().unwrap();

    let described: Vec<_> = tools
        .iter()
        .map(|tool| {
            assert!(tool.idempotent, "{}", tool.name);
            (tool.name.as_str(), tool.permission.as_deref(), tool.read_only, tool.destructive, tool.open_world)
        })
        .collect();

    assert_eq!(
        described,
        [
            ("create_note", Some("write-notes"), false, false, false),
            ("get_note", Some("read"), true, false, false),
            ("create_automation", Some("write-automations"), false, false, false),
            ("set_interval", Some("write-automations"), false, true, false),
            ("get_automation", Some("read"), true, false, false),
            ("start_deployment", Some("deploy"), false, false, true),
            ("cancel_operation", Some("deploy"), false, true, true),
            ("get_operation", Some("read"), true, false, false),
            ("find_operation", None, true, false, false),
        ]
    );
}

/// F5; incident 17.
#[test]
fn each_keyed_tool_says_when_to_generate_and_to_reuse_a_key_how_long_it_is_valid_and_how_to_inspect() {
    let tools = Database::new().shared().instance.describe().unwrap();
    let keyed: Vec<_> = tools.iter().filter(|tool| tool.input_schema.contains("\"idempotency_key\"")).collect();

    let names: Vec<_> = keyed.iter().filter(|tool| !tool.read_only).map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["create_note", "create_automation", "set_interval", "start_deployment"]);
    let unkeyed = tools.iter().find(|tool| tool.name == "cancel_operation").unwrap();
    assert!(unkeyed.description.contains("Takes no key: asking twice is asking once."), "{}", unkeyed.description);
    for tool in keyed.iter().filter(|tool| !tool.read_only) {
        for what in [
            "Generate one idempotency_key (a UUID will do) for each intended action and store it before the first attempt.",
            "Reuse that key, with the same arguments, for every retry of the action",
            "never make a new key because an answer is missing",
            "A key is valid for 30 days from the commit: until then it replays the first answer, later it is refused.",
            &format!("repeat the call, or ask find_operation with tool \"{}\" and the key.", tool.name),
        ] {
            assert!(tool.description.contains(what), "{} lacks: {what}\n{}", tool.name, tool.description);
        }
    }
}
