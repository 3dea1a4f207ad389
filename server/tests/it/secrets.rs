//! What callers write, what they are answered, their keys and credentials stand neither in the log nor in what is counted,
//! however much is logged; the ids that join its lines do.

use crate::harness::*;
use crate::scripted::{self, Scripted};
use crate::served::*;
use crate::world::*;
use serde_json::{Value, json};
use std::fs;
use std::iter::once;
use std::process::Command;

/// In every text of a caller's or a provider's.
const MARK: &str = "Qx7marked";

fn marked(text: &str) -> String {
    format!("{MARK}-{text}")
}

/// Ids that calls were answered, which later ones name.
struct Made {
    note: Value,
    automation: Value,
    operation: Value,
}

/// The arguments of a call that succeeds; of one under the same key that conflicts, if the tool takes keys; and of one that
/// is refused.
fn arguments(tool: &str, made: &Made) -> (Value, Option<Value>, Value) {
    let key = marked(tool);
    let wrong = |arguments: Value| {
        let mut wrong = arguments;
        wrong[marked("field")] = json!(marked("value"));
        wrong
    };
    let (first, other) = match tool {
        "create_note" => (note(&key, &marked("body")), Some(note(&key, &marked("other")))),
        "create_automation" => {
            let automation = |minutes: u32| json!({ "idempotency_key": key, "interval_minutes": minutes });
            (automation(5), Some(automation(6)))
        }
        "set_interval" => {
            let set = |minutes: u32| {
                let id = &made.automation;
                json!({ "idempotency_key": key, "automation_id": id, "expected_version": 1, "interval_minutes": minutes })
            };
            (set(7), Some(set(8)))
        }
        "start_deployment" => {
            let deployment = |revision: &str| json!({ "idempotency_key": key, "service": marked("web"), "revision": marked(revision) });
            (deployment("r1"), Some(deployment("r2")))
        }
        "get_note" => (json!({ "note_id": made.note }), None),
        "get_automation" => (json!({ "automation_id": made.automation }), None),
        "get_operation" | "cancel_operation" => (json!({ "operation_id": made.operation }), None),
        "find_operation" => (json!({ "tool": "create_note", "idempotency_key": marked("create_note") }), None),
        _ => panic!("this test knows no arguments of {tool}"),
    };
    (first.clone(), other, wrong(first))
}

/// Calls every tool that is listed; returns the note's id, and the operation ids of what acted.
fn drive(agent: &mut dyn Agent) -> (String, Vec<String>) {
    let list = agent.ask("tools/list", json!({}));
    let tools: Vec<_> = list["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(!tools.is_empty());
    let mut made = Made { note: Value::Null, automation: Value::Null, operation: Value::Null };
    let mut operations = Vec::new();
    // Those that make what others name come first.
    let makers = ["create_note", "create_automation", "start_deployment"];
    let (first, later): (Vec<_>, Vec<_>) = tools.into_iter().partition(|tool| makers.contains(&tool.as_str()));
    for tool in first.iter().chain(&later) {
        let (call, conflicting, wrong) = arguments(tool, &made);
        let told = agent.call(tool, &call);
        assert_eq!(told.outcome(), FRESH, "{tool}: {told:?}");
        match tool.as_str() {
            "create_note" => made.note = told.reply["note_id"].clone(),
            "create_automation" => made.automation = told.reply["automation_id"].clone(),
            "start_deployment" => {
                made.operation = told.reply["operation_id"].clone();
                until(|| {
                    let told = agent.call("get_operation", &json!({ "operation_id": made.operation }));
                    assert!(!told.is_error, "{told:?}");
                    (told.reply["state"] == "succeeded").then_some(())
                });
            }
            _ => {}
        }
        if let Some(conflicting) = conflicting {
            operations.push(told.reply["operation_id"].as_str().unwrap().to_owned());
            assert_eq!(agent.call(tool, &call).outcome(), REPLAYED, "{tool}");
            assert_eq!(agent.call(tool, &conflicting).outcome(), (true, false, "key_conflict"), "{tool}");
        }
        assert_eq!(agent.call(tool, &wrong).outcome(), (true, false, "invalid_argument"), "{tool}");
    }
    // What the provider says of others: a refusal, and what is no answer at all.
    for number in [1, 2] {
        let deployment =
            json!({ "idempotency_key": marked(&number.to_string()), "service": marked("web"), "revision": "r1" });
        let operation = agent.call("start_deployment", &deployment).reply["operation_id"].clone();
        until(|| {
            let told = agent.call("get_operation", &json!({ "operation_id": operation }));
            ["failed", "outcome_unknown"].contains(&told.reply["state"].as_str().unwrap()).then_some(())
        });
    }
    let unknown = agent.ask("tools/call", json!({ "name": marked("tool"), "arguments": { marked("field"): 1 } }));
    assert!(unknown["error"].is_object(), "{unknown}");
    (made.note.as_str().unwrap().to_owned(), operations)
}

/// Says something marked each time.
fn talkative() -> Scripted {
    let deployment = json!({ "id": marked("id"), "state": "succeeded", "detail": marked("detail") }).to_string();
    Scripted::answers(&[
        &scripted::answer("201 Created", &format!("X-{MARK}: {MARK}\r\n"), &deployment),
        &scripted::answer("422 Unprocessable Content", "", &marked("refused")),
        &scripted::answer("200 OK", "", &json!({ "id": 1, "state": marked("state") }).to_string()),
    ])
}

const PROVIDER_TOKEN: &str = "Qx7marked-provider-token";

/// The server's options, with the marked provider and as much log as there is.
fn loud<'a>(command: &'a mut Command, format: &str, provider: &Scripted) -> &'a mut Command {
    command.env("RUST_LOG", "trace").env("COUNTERFOIL_PROVIDER_TOKEN", PROVIDER_TOKEN).args(["--log-format", format]);
    command.args([
        "--provider",
        &provider.url(),
        "--contract",
        "none",
        "--poll",
        "20ms",
        "--attempt-timeout",
        "1s",
        "--lease",
        "2s",
    ])
}

#[track_caller]
fn assert_hidden(text: &str, secrets: &[&str]) {
    assert!(!text.is_empty());
    for secret in once(&MARK).chain(secrets) {
        let found = text.lines().find(|line| line.to_lowercase().contains(&secret.to_lowercase()));
        assert_eq!(found, None, "{secret}");
    }
}

/// The lines of a log in JSON with this message, of those that name `value` as `field`.
fn lines<'a>(log: &'a [Value], message: &str, field: &str, value: &Value) -> Vec<&'a Value> {
    log.iter().filter(|line| line["message"] == message && &line[field] == value).collect()
}

/// From an operation that acted to its call, to the attempt at it, and back.
#[track_caller]
fn assert_joined(log: &[Value], operation: &str) {
    let answered = lines(log, "answered", "operation", &json!(operation));
    // Later ones ask what has become of it.
    let Some(fresh) = answered.into_iter().find(|line| line["outcome"] == "fresh") else { panic!("{operation}") };
    assert!(fresh["ms"].is_u64(), "{fresh}");
    let call = &fresh["call"];
    let arrived = lines(log, "call", "call", call);
    let attempts = lines(log, "attempt", "call", call);
    let ([arrived], [attempt]) = (arrived.as_slice(), attempts.as_slice()) else {
        panic!("{call}: {arrived:?} {attempts:?}")
    };
    assert_eq!((&arrived["subject"], &arrived["workspace"]), (&json!("ada"), &json!("acme")));
    let answers = lines(log, "answer", "attempt", &attempt["attempt"]);
    let [answer] = answers.as_slice() else { panic!("{attempt}: {answers:?}") };
    assert_eq!((&answer["operation"], &answer["status"]), (&json!(operation), &json!("succeeded")));
}

#[track_caller]
fn check(world: &World, format: &str, secrets: &[&str], operations: &[String]) {
    let log = world.log();
    assert_hidden(&log, secrets);
    if format == "json" {
        let log: Vec<Value> =
            log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
        operations.iter().for_each(|operation| assert_joined(&log, operation));
        let deployment = lines(&log, "answered", "outcome", &json!("fresh"))
            .into_iter()
            .filter(|line| line["operation"].is_string());
        assert!(deployment.count() >= operations.len());
        let settled: Vec<_> = log.iter().filter(|line| line["message"] == "settled").collect();
        assert!(
            settled.len() == 3
                && settled.iter().all(|line| line["operation"].is_string() && line["attempt"].is_string()),
            "{settled:?}"
        );
    } else {
        assert!(operations.iter().all(|operation| log.contains(&format!("operation=\"{operation}\""))), "{log}");
    }
}

#[test]
fn nothing_that_is_said_over_http_stands_in_the_log_or_among_the_figures() {
    for format in ["json", "text"] {
        for revision in [INITIALIZED, STATELESS] {
            let (world, provider) = (World::new(), talkative());
            let token =
                world.token(&marked("name"), "ada@acme", "read,write-notes,write-automations,deploy,read-metrics");
            let mut command = world.http_with(component(), &[]);
            let mut server = Server::start(&world, loud(&mut command, format, &provider));
            let mut caller = server.caller_of(revision, &token);

            let (note, operations) = drive(&mut caller);
            for body in [marked("no JSON"), json!([marked("no request")]).to_string()] {
                let answer = Answer::read(&caller.post(&[("Mcp-Method", MARK), (MARK, MARK)], &body).unwrap()).unwrap();
                assert_eq!(answer.status, 415);
            }
            let wrong = server.caller_of(revision, &marked("token"));
            assert_eq!(wrong.note(&marked("key")).status, 401);
            let listed = fs::read(world.tokens()).unwrap();
            fs::write(world.tokens(), format!("{MARK} = {MARK}")).unwrap();
            assert_eq!(caller.note(&marked("key")).status, 503);
            fs::write(world.tokens(), listed).unwrap();
            let figures = caller.get("/metrics");

            let secrets = [token.as_str(), &token[token.len() - 16..], &note];
            assert_eq!(figures.status, 200);
            assert_hidden(&figures.body, &secrets);
            server.stop();
            assert_eq!(
                provider.requests()[0].header("authorization"),
                Some(format!("Bearer {PROVIDER_TOKEN}").as_str())
            );
            check(&world, format, &secrets, &operations);
        }
    }
}

#[test]
fn nothing_that_is_said_over_stdio_stands_in_the_log() {
    for format in ["json", "text"] {
        for revision in [INITIALIZED, STATELESS] {
            let (world, provider) = (World::new(), talkative());
            let permissions = "read,write-notes,write-automations,deploy";
            let mut command = world.nobody(component(), &["--as", "ada@acme", "--allow", permissions]);
            command.arg("serve");
            let mut pipe = Pipe::start(&world, loud(&mut command, format, &provider), revision);

            let (note, operations) = drive(&mut pipe);
            pipe.write(&marked("no JSON"));
            pipe.write(&json!([marked("no request")]).to_string());
            pipe.write(
                &json!({ "jsonrpc": "2.0", "method": marked("notification"), "params": { marked("a"): 1 } })
                    .to_string(),
            );
            pipe.close();
            pipe.rest();

            assert_eq!(pipe.process.wait().code(), Some(0));
            check(&world, format, &[&note], &operations);
        }
    }
}
