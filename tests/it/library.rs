//! Counterfoil as a library, in a component of somebody else's (`tests/tools`): revisions, defaults, results and faults
//! of its tools. And what each component shows: its imports, exports, schemas and typed functions.

use crate::harness::*;
use host_example::{Description, Files, Host, Limits, State, types};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use wasmtime::Store;
use wasmtime::component::types::ComponentItem;

/// A new instance of the tests' own component, which shares the file with others.
pub fn open(db: &Database) -> Client {
    Client::new(test_host(), Files::shared(&db.path()).unwrap())
}

pub fn mark(key: &str, text: &str) -> Value {
    json!({ "idempotency_key": key, "text": text })
}

fn fail(key: &str, how: &str) -> Value {
    json!({ "idempotency_key": key, "how": how })
}

/// How many marks and receipts are left.
pub fn left(db: &Database) -> String {
    db.sql("SELECT (SELECT count(*) FROM marks), (SELECT count(*) FROM receipts)")
}

/// A4.
#[test]
fn revisions_of_a_tool_share_their_keys() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k1", "a"));
    let second = client.call("mark_v2", &mark("k2", "b"));
    assert_fresh(&first);
    assert_fresh(&second);

    for (tool, key, text, owner) in [("mark_v2", "k1", "a", "mark"), ("mark", "k2", "b", "mark_v2")] {
        for client in [&mut client, &mut open(&db)] {
            let reply = client.call(tool, &mark(key, text));
            assert_refused(&reply, "key_conflict");
            assert_eq!(reply["message"], format!("This key belongs to a call of {owner}."));
            assert_eq!(reply["next_action"], format!("Repeat the call as {owner}, or use a new key for a new action."));
        }
    }

    assert_replay_of(&first, &client.call("mark", &mark("k1", "a")));
    assert_replay_of(&second, &client.call("mark_v2", &mark("k2", "b")));
    assert_eq!(left(&db), "2|2");
    assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nB");
}

/// A4, B5: whichever revision is named, the answer says which was called.
#[test]
fn an_operation_is_found_by_the_name_of_any_revision() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k1", "a"));
    let second = client.call("mark_v2", &mark("k2", "b"));

    for name in ["mark", "mark_v2"] {
        for (key, called, reply) in [("k1", "mark", &first), ("k2", "mark_v2", &second)] {
            let found = client.call("find_operation", &json!({ "tool": name, "idempotency_key": key }));
            assert_eq!((&found["tool"], &found["state"]), (&json!(called), &json!("succeeded")), "{found}");
            assert_eq!(found["operation_id"], reply["operation_id"]);
            assert_eq!(found["resource_id"], Value::Null);
        }
    }

    assert_eq!(left(&db), "2|2");
}

/// B11; incident 11.
#[test]
fn a_default_left_out_and_the_same_default_spelled_are_the_same_request() {
    let db = Database::new();
    let mut client = open(&db);
    let spelled = |key: &str, more: &str| format!(r#"{{"idempotency_key":"{key}","text":"a"{more}}}"#);
    let forms = ["", r#","weight":1"#, r#","dry_run":false"#, r#","dry_run":false,"weight":1.0"#];

    // Whichever form came first.
    for (number, form) in forms.iter().enumerate() {
        let key = format!("k{number}");
        let first = client.call_text("mark", &spelled(&key, form));
        for other in forms {
            assert_replay_of(&first, &client.call_text("mark", &spelled(&key, other)));
        }
        assert_refused(&client.call_text("mark", &spelled(&key, r#","weight":2"#)), "key_conflict");
    }

    assert_eq!(left(&db), "4|4");
    assert_eq!(db.sql("SELECT DISTINCT text, weight FROM marks"), "a|1");
}

/// B11: a receipt from before the tool had its optional arguments.
#[test]
fn a_receipt_older_than_an_optional_argument_is_the_same_request_with_its_default() {
    let db = Database::new();
    let mut client = open(&db);
    let first = client.call("mark", &mark("k", "a"));
    db.sql(r#"UPDATE receipts SET arguments = '{"idempotency_key":"k","text":"a"}'"#);

    for (more, code) in
        [(json!({}), None), (json!({ "weight": 1 }), None), (json!({ "weight": 2 }), Some("key_conflict"))]
    {
        let mut call = mark("k", "a");
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = client.call("mark", &call);
        match code {
            None => assert_replay_of(&first, &reply),
            Some(code) => assert_refused(&reply, code),
        }
    }

    assert_eq!(left(&db), "1|1");
}

/// B11; incident 12.
#[test]
fn a_dry_run_and_a_live_call_under_one_key_conflict() {
    let db = Database::new();
    let mut client = open(&db);
    let call = |key: &str, dry: bool| json!({ "idempotency_key": key, "text": "a", "dry_run": dry });
    let dry = client.call("mark", &call("dry", true));
    let live = client.call("mark", &call("live", false));
    assert_eq!((&dry["dry_run"], &live["dry_run"]), (&json!(true), &json!(false)));

    assert_refused(&client.call("mark", &call("dry", false)), "key_conflict");
    assert_refused(&client.call("mark", &mark("dry", "a")), "key_conflict");
    assert_refused(&client.call("mark", &call("live", true)), "key_conflict");

    assert_replay_of(&dry, &client.call("mark", &call("dry", true)));
    assert_replay_of(&live, &client.call("mark", &call("live", false)));
    assert_eq!(left(&db), "1|2");
}

/// C1; incident 19. 27 bytes of the result stand around the text: `{"dry_run":false,"text":""}`.
#[test]
fn a_result_too_large_to_keep_is_refused_with_its_effect_and_the_key_stays_unused() {
    let db = Database::new();
    let mut client = open(&db);
    let grow = |bytes: u32| json!({ "idempotency_key": "k", "bytes": bytes });

    for bytes in [65_536 - 27 + 1, 1_000_000] {
        let reply = client.call("grow", &grow(bytes));
        assert_refused(&reply, "invalid_argument");
        assert_eq!(reply["retryable"], false);
        assert_eq!(left(&db), "0|0");
    }

    let first = client.call("grow", &grow(65_536 - 27));
    assert_replay_of(&first, &client.call("grow", &grow(65_536 - 27)));
    assert_eq!(left(&db), "1|1");
    assert_eq!(db.sql("SELECT length(result) FROM receipts"), "65536");
    assert_eq!(client.verify(), [""; 0]);
}

/// C1; incident 18: whatever ends an instance inside a call, and its key works at once on the next one.
#[test]
fn an_instance_that_is_ended_leaves_neither_effect_nor_lock_nor_used_key() {
    for (how, why) in [("trap", "unreachable"), ("spin", "interrupt"), ("hoard", "unreachable")] {
        let db = Database::new();
        let before = open(&db).call("mark", &mark("before", "a"));
        let mut client = open(&db);
        assert!(!client.instance.is_spent());

        let error = client.instance.call_one("fail", &fail("k", how).to_string()).map(|reply| reply.body).unwrap_err();

        assert!(format!("{error:?}").contains(why), "{how}: {error:?}");
        assert!(client.instance.is_spent(), "{how}");
        assert!(client.instance.call_one("mark", &mark("k", "b").to_string()).is_err(), "{how}");
        assert_eq!(left(&db), "1|1", "{how}");
        // The spent instance is still there, and what it locked stops no reading.
        let mut next = open(&db);
        let missing = json!({ "tool": "fail", "idempotency_key": "k" });
        assert_refused(&next.call("find_operation", &missing), "not_found");
        assert_replay_of(&before, &next.call("mark", &mark("before", "a")));
        drop(client);
        let error = next.instance.call_one("fail", &fail("k", how).to_string()).map(|reply| reply.body).unwrap_err();
        assert!(format!("{error:?}").contains(why), "{how}: {error:?}");
        drop(next);
        let mut last = open(&db);
        assert_fresh(&last.call("mark", &mark("k", "b")));
        assert_eq!(left(&db), "2|2", "{how}");
        assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nb");
        assert_eq!(last.verify(), [""; 0]);
    }
}

/// C1.
#[test]
fn an_effect_without_its_receipt_cannot_commit() {
    let db = Database::new();
    let mut client = open(&db);

    let reply = client.call("fail", &fail("k", "orphan"));

    assert_eq!(reply["status"], "refused", "{reply}");
    assert_eq!(reply["code"], "unavailable", "{reply}");
    assert_eq!(reply["retryable"], false);
    assert_eq!(left(&db), "0|0");
    assert!(!client.instance.is_spent());
    assert_fresh(&client.call("mark", &mark("k", "a")));
    assert_eq!(left(&db), "1|1");
    assert_eq!(client.verify(), [""; 0]);
}

/// C1: a refusal after the effect undoes its own call; a commit that fails and a trap undo the whole batch.
#[test]
fn a_call_refused_after_its_effect_is_undone_alone_and_a_lost_batch_altogether() {
    let db = Database::new();
    let mut client = open(&db);
    let grow = |key: &str| json!({ "idempotency_key": key, "bytes": 1_000_000 });

    let replies = client.batch(&[("mark", mark("k1", "a")), ("grow", grow("k1")), ("mark", mark("k2", "b"))]);
    assert_fresh(&replies[0]);
    assert_refused(&replies[1], "invalid_argument");
    assert_fresh(&replies[2]);
    assert_eq!(left(&db), "2|2");
    assert_eq!(db.sql("SELECT text FROM marks ORDER BY rowid"), "a\nb");

    let replies = client.batch(&[("mark", mark("k3", "c")), ("fail", fail("k3", "orphan")), ("mark", mark("k1", "a"))]);
    for reply in &replies {
        assert_refused(reply, "unavailable");
    }
    assert_eq!(left(&db), "2|2");

    assert!(client.try_batch(&[("mark", mark("k3", "c")), ("fail", fail("k3", "trap"))]).is_err());
    assert!(client.instance.is_spent());
    assert_eq!(left(&db), "2|2");
    client = open(&db);
    assert_fresh(&client.call("mark", &mark("k3", "c")));
    assert_eq!(client.call("mark", &mark("k1", "a"))["replayed"], true);
    assert_eq!(left(&db), "3|3");
}

/// A tool's name, its required and its optional arguments, and the fields of its own in an answer that succeeded.
type Shape = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

const SHAPES: [Shape; 7] = [
    ("create_note", &["idempotency_key", "body"], &[], &["note_id"]),
    ("get_note", &["note_id"], &[], &["note_id", "body", "created_at"]),
    ("create_automation", &["idempotency_key", "interval_minutes"], &[], &AUTOMATION),
    ("set_interval", &["idempotency_key", "automation_id", "expected_version", "interval_minutes"], &[], &AUTOMATION),
    ("get_automation", &["automation_id"], &[], &AUTOMATION),
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
/// But for `resource_id`, which may be null.
const OPERATION: [&str; 7] = ["operation_id", "tool", "state", "since", "attempts", "detail", "next_action"];

/// F3: one call of each tool that succeeds.
fn calls(client: &mut Client) -> Vec<(&'static str, Value)> {
    let noted = client.call("create_note", &note("n", "hello"));
    let created = client.call("create_automation", &automation("c", 10));
    vec![
        ("create_note", note("n2", "hello")),
        ("get_note", json!({ "note_id": noted["note_id"] })),
        ("create_automation", automation("c2", 10)),
        ("set_interval", interval("e", &created, 1, 30)),
        ("get_automation", json!({ "automation_id": created["automation_id"] })),
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
            "uint32" => value.as_u64().is_some_and(|number| u32::try_from(number).is_ok()),
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
            let denied = client.caller(None::<host_example::Principal>).call(tool, &call);
            client.caller(ada());

            assert_fresh(&first);
            assert_eq!(again["replayed"], !described.read_only, "{again}");
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
    assert_eq!(db.sql("SELECT count(*) FROM receipts"), "5");
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
                if described.read_only { &[] } else { &["operation_id", "committed_at", "valid_until"] };
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
            assert!(tool.idempotent && !tool.open_world, "{}", tool.name);
            (tool.name.as_str(), tool.permission.as_deref(), tool.read_only, tool.destructive)
        })
        .collect();

    assert_eq!(
        described,
        [
            ("create_note", Some("write-notes"), false, false),
            ("get_note", Some("read"), true, false),
            ("create_automation", Some("write-automations"), false, false),
            ("set_interval", Some("write-automations"), false, true),
            ("get_automation", Some("read"), true, false),
            ("get_operation", Some("read"), true, false),
            ("find_operation", None, true, false),
        ]
    );
}

/// F5; incident 17.
#[test]
fn each_keyed_tool_says_when_to_generate_and_to_reuse_a_key_how_long_it_is_valid_and_how_to_inspect() {
    let tools = Database::new().shared().instance.describe().unwrap();
    let keyed: Vec<_> = tools.iter().filter(|tool| tool.input_schema.contains("\"idempotency_key\"")).collect();

    let names: Vec<_> = keyed.iter().filter(|tool| !tool.read_only).map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["create_note", "create_automation", "set_interval"]);
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

mod typed {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "tools",
        with: {
            "counterfoil:tools/caller": host_example::bindings::counterfoil::tools::caller,
            "counterfoil:tools/storage": host_example::bindings::counterfoil::tools::storage,
            "counterfoil:tools/types": host_example::bindings::counterfoil::tools::types,
        },
    });
}

/// An instance of the world `tools`, called by the principal.
fn typed(host: &Host, db: &Database, caller: host_example::Principal) -> (Store<State>, typed::Tools) {
    let mut store = host.store(move |_| Some(caller.clone()), Files::shared(&db.path()).unwrap());
    let tools = typed::ToolsPre::new(host.component().clone()).unwrap().instantiate(&mut store).unwrap();
    (store, tools)
}

fn typed_host() -> Host {
    Host::load(tools_component(), Limits::default()).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, types::Refusal>, code: types::RefusalCode) -> types::Refusal {
    let refusal = outcome.unwrap_err();
    assert_eq!((refusal.code, refusal.retryable, refusal.retry_after), (code, false, None), "{refusal:?}");
    assert!(!refusal.message.is_empty() && !refusal.next_action.is_empty(), "{refusal:?}");
    refusal
}

/// B1 to B3, B5 to B7 and B9, through the typed functions.
#[test]
fn typed_functions_give_the_same_promises() {
    let db = Database::new();
    let host = typed_host();
    let (mut store, tools) = typed(&host, &db, ada());

    let noted = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    assert!(!noted.receipt.replayed);
    assert_eq!(noted.receipt.valid_until - noted.receipt.committed_at, 2_592_000_000);
    let created = tools.call_create_automation(&mut store, "c", 10).unwrap().unwrap();
    let id = created.automation.automation_id.as_str();
    assert_eq!(
        (created.automation.interval_minutes, created.automation.version, created.receipt.replayed),
        (10, 1, false)
    );
    let edited = tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap().unwrap();
    assert_eq!(
        (edited.automation.interval_minutes, edited.automation.version, edited.receipt.replayed),
        (30, 2, false)
    );

    let mut replay = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    assert!(std::mem::replace(&mut replay.receipt.replayed, false));
    assert_eq!(replay, noted);
    let mut replay = tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap().unwrap();
    assert!(std::mem::replace(&mut replay.receipt.replayed, false));
    assert_eq!(replay, edited);

    use types::RefusalCode::*;
    let conflict = refused(tools.call_create_note(&mut store, "n", "other").unwrap(), KeyConflict);
    assert_eq!(conflict.message, "This key was used with other arguments.");
    refused(tools.call_set_interval(&mut store, "e", id, 1, 31).unwrap(), KeyConflict);
    refused(tools.call_create_automation(&mut store, "c", 11).unwrap(), KeyConflict);
    refused(tools.call_set_interval(&mut store, "new", id, 1, 30).unwrap(), VersionConflict);
    refused(tools.call_set_interval(&mut store, "new", id, 2, 4).unwrap(), InvalidArgument);
    refused(tools.call_create_note(&mut store, "a b", "x").unwrap(), InvalidArgument);
    refused(tools.call_get_note(&mut store, id).unwrap(), NotFound);
    refused(tools.call_find_operation(&mut store, "create_note", "new").unwrap(), NotFound);

    let read = tools.call_get_note(&mut store, &noted.note_id).unwrap().unwrap();
    assert_eq!((read.body.as_str(), read.created_at), ("hello", noted.receipt.committed_at));
    let read = tools.call_get_automation(&mut store, id).unwrap().unwrap();
    assert_eq!(read, edited.automation);
    let found = tools.call_find_operation(&mut store, "set_interval", "e").unwrap().unwrap();
    assert_eq!(found, tools.call_get_operation(&mut store, &edited.receipt.operation_id).unwrap().unwrap());
    assert_eq!(
        (found.tool.as_str(), found.state, found.since, found.attempts, found.resource_id.as_deref()),
        ("set_interval", types::State::Succeeded, edited.receipt.committed_at, 0, Some(id))
    );

    let (mut store, tools) = typed(&host, &db, cy());
    refused(tools.call_set_interval(&mut store, "e", id, 1, 30).unwrap(), NotFound);
    let (mut store, tools) = typed(&host, &db, principal("ada@acme", &["read"]));
    refused(tools.call_create_note(&mut store, "n", "hello").unwrap(), Denied);
    refused(tools.call_find_operation(&mut store, "create_note", "n").unwrap(), Denied);
    db.sql("UPDATE receipts SET valid_until = 1");
    let (mut store, tools) = typed(&host, &db, ada());
    refused(tools.call_create_note(&mut store, "n", "hello").unwrap(), KeyExpired);

    assert_eq!(
        (db.count("notes"), db.count("automations"), db.count("receipts")),
        ("1".into(), "1".into(), "3".into())
    );
    assert_eq!(db.sql("SELECT interval_minutes, version FROM automations"), "30|2");
}

/// B2: whichever way the first call came.
#[test]
fn typed_functions_and_the_toolbox_share_their_receipts() {
    let db = Database::new();
    let (mut store, tools) = typed(host(), &db, ada());
    let mut client = db.shared();

    let by_type = tools.call_create_note(&mut store, "k1", "hé\"llo\u{7}").unwrap().unwrap();
    let by_json = client.call("create_note", &note("k2", "hé\"llo\u{7}"));
    let replayed_json = client.call("create_note", &note("k1", "hé\"llo\u{7}"));
    let replayed_type = tools.call_create_note(&mut store, "k2", "hé\"llo\u{7}").unwrap().unwrap();

    assert!(!by_type.receipt.replayed && replayed_type.receipt.replayed);
    assert_fresh(&by_json);
    assert_eq!((&replayed_json["status"], &replayed_json["replayed"]), (&json!("succeeded"), &json!(true)));
    assert_eq!(
        (&replayed_json["operation_id"], &replayed_json["note_id"]),
        (&json!(by_type.receipt.operation_id), &json!(by_type.note_id))
    );
    assert_eq!(
        (&by_json["operation_id"], &by_json["note_id"]),
        (&json!(replayed_type.receipt.operation_id), &json!(replayed_type.note_id))
    );
    assert_refused(&client.call("create_note", &note("k1", "other")), "key_conflict");
    assert_eq!((db.count("notes"), db.count("receipts")), ("2".into(), "2".into()));
}

/// `Limits` are those of one call, and a host may keep an instance of any world for many calls.
#[test]
fn limits_begin_anew_with_each_typed_call() {
    let db = Database::new();
    let each = Duration::from_millis(500);
    let host = Host::load(tools_component(), Limits { computing: each, lock_wait: each, ..Limits::default() }).unwrap();
    let (mut store, tools) = typed(&host, &db, ada());
    let noted = tools.call_create_note(&mut store, "n", "hello").unwrap().unwrap();
    let lock = WriteLock::hold(&db);

    let waited = ["k1", "k2"].map(|key| {
        let start = Instant::now();
        let refusal = tools.call_create_note(&mut store, key, "hello").unwrap().unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), (types::RefusalCode::Busy, true));
        start.elapsed()
    });
    drop(lock);
    let idle = Instant::now();
    while idle.elapsed() < 2 * each {
        std::thread::yield_now();
    }
    let replay = tools.call_create_note(&mut store, "n", "hello").map(|outcome| outcome.unwrap().receipt);

    assert!(waited.iter().all(|&time| time >= each), "{waited:?}");
    assert_eq!((db.count("notes"), db.count("receipts")), ("1".into(), "1".into()));
    let replay = replay.expect("an idle instance is not interrupted");
    assert_eq!((replay.replayed, replay.operation_id), (true, noted.receipt.operation_id));
}

/// The component's exports that are functions, and its interfaces that have functions.
fn exports(file: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let host = Host::load(file, Limits::default()).unwrap();
    let component = host.component().component();
    let (mut functions, mut interfaces) = (BTreeSet::new(), BTreeSet::new());
    for (name, export) in component.component_type().exports(component.engine()) {
        match export.ty {
            ComponentItem::ComponentFunc(_) => _ = functions.insert(name.to_owned()),
            ComponentItem::ComponentInstance(instance) => {
                let mut items = instance.exports(component.engine());
                if items.any(|(_, item)| !matches!(item.ty, ComponentItem::Type(_))) {
                    interfaces.insert(name.to_owned());
                }
            }
            ComponentItem::Type(_) => {}
            other => panic!("{name} is {other:?}"),
        }
    }
    (functions, interfaces)
}

/// Where each export is shown to a model, it is shown no upkeep.
#[test]
fn each_component_exports_its_world_and_no_more() {
    let functions = [
        "create-automation",
        "create-note",
        "find-operation",
        "get-automation",
        "get-note",
        "get-operation",
        "set-interval",
    ];
    let serving = ["counterfoil:tools/toolbox@0.1.0", "counterfoil:tools/upkeep@0.1.0"];
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();

    assert_eq!(exports(tools_component()), (owned(&functions), owned(&[])));
    assert_eq!(exports(component()), (owned(&functions), owned(&serving)));
    assert_eq!(exports(test_component()), (owned(&[]), owned(&serving)));
}

/// No file system, no sockets, no HTTP: nothing but the host's `caller` and `storage`, and what Rust's standard library
/// brings.
#[test]
fn no_component_can_reach_files_or_a_network() {
    for file in [component(), tools_component(), test_component()] {
        let host = Host::load(file, Limits::default()).unwrap();
        let component = host.component().component();
        let kind = component.component_type();
        let imports: Vec<_> = kind.imports(component.engine()).map(|(name, _)| name).collect();

        let (own, wasi): (Vec<_>, Vec<_>) = imports.iter().partition(|name| name.starts_with("counterfoil:"));
        let allowed = ["caller", "storage", "types"].map(|name| format!("counterfoil:tools/{name}@0.1.0"));
        assert!(own.iter().all(|name| allowed.iter().any(|allowed| allowed == *name)), "{own:?}");
        assert!(own.contains(&allowed[0].as_str()) && own.contains(&allowed[1].as_str()), "{own:?}");
        for name in wasi {
            let packages = ["wasi:cli/", "wasi:io/", "wasi:clocks/", "wasi:random/"];
            assert!(packages.iter().any(|package| name.starts_with(package)), "{}: {name}", file.display());
        }
    }
}
