//! What an agent is given, over both transports and in both revisions of the protocol.

use crate::harness::*;
use crate::scripted::*;
use crate::served::*;
use crate::world::*;
use serde_json::{Value, json};

const NONE: &str = "none";

/// Both transports in both revisions, each with a database of its own.
fn everywhere(test: impl Fn(&mut dyn Agent)) {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let mut pipe = world.pipe(revision, &[]);
        test(&mut pipe);
        pipe.close();
        assert_eq!(pipe.process.wait().code(), Some(0), "{}", world.log());
        world.assert_whole();

        let world = World::new();
        let token = world.token("ada", "ada@acme", "read,write-notes,deploy");
        let mut server = world.serve(&[]);
        let mut caller = server.caller_of(revision, &token);
        if revision == INITIALIZED {
            let answer = caller.ask("initialize", initialize());
            assert_eq!(answer["result"]["protocolVersion"], INITIALIZED, "{answer}");
        }
        test(&mut caller);
        server.stop();
        world.assert_whole();
    }
}

#[test]
fn the_tools_are_listed_in_their_order_with_schemas_and_hints() {
    everywhere(|agent| {
        let answer = agent.ask("tools/list", json!({}));

        let tools = answer["result"]["tools"].as_array().unwrap();
        let hints = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
        let hinted = tools
            .iter()
            .map(|tool| (tool["name"].as_str().unwrap(), hints.map(|hint| tool["annotations"][hint] == true)));
        let expected = [
            ("create_note", [false, false, true, false]),
            ("get_note", [true, false, true, false]),
            ("create_automation", [false, false, true, false]),
            ("set_interval", [false, true, true, false]),
            ("get_automation", [true, false, true, false]),
            ("start_deployment", [false, false, true, true]),
            ("cancel_operation", [false, true, true, true]),
            ("get_operation", [true, false, true, false]),
            ("find_operation", [true, false, true, false]),
        ];
        assert_eq!(hinted.collect::<Vec<_>>(), expected);
        let note = &tools[0];
        assert_eq!(
            note["inputSchema"]["properties"]["body"],
            json!({ "type": "string", "minLength": 1, "maxLength": 10_000 })
        );
        assert_eq!(note["inputSchema"]["required"], json!(["idempotency_key", "body"]));
        for tool in tools {
            assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
            assert!(tool["title"].is_string() && tool["description"].is_string(), "{tool}");
        }
    });
}

#[test]
fn a_call_is_made_once_replayed_and_refused_with_other_arguments() {
    everywhere(|agent| {
        let fresh = agent.call("create_note", &note("k", "hello"));
        let replay = agent.call("create_note", &note("k", "hello"));
        let conflict = agent.call("create_note", &note("k", "other"));
        let read = agent.call("get_note", &json!({ "note_id": fresh.reply["note_id"] }));
        let denied = agent.call("create_automation", &json!({ "idempotency_key": "k", "interval_minutes": 5 }));
        let wrong = agent.call("create_note", &json!({ "idempotency_key": "l" }));

        assert_eq!((fresh.outcome(), fresh.text.as_str()), (FRESH, "Succeeded."));
        assert_eq!(replay.outcome(), REPLAYED);
        assert_eq!(replay.text, "Succeeded before: this is the answer that was recorded then.");
        let mut unmarked = replay.reply.clone();
        unmarked["replayed"] = json!(false);
        assert_eq!(unmarked, fresh.reply);
        assert_eq!((conflict.outcome(), &conflict.reply["retryable"]), ((true, false, "key_conflict"), &json!(false)));
        assert!(conflict.text.starts_with("Refused: This key was used with other arguments. "), "{}", conflict.text);
        assert_eq!((read.is_error, &read.reply["body"]), (false, &json!("hello")));
        assert_eq!(denied.outcome(), (true, false, "denied"));
        assert_eq!(wrong.outcome(), (true, false, "invalid_argument"));
    });
}

#[test]
fn a_tool_that_there_is_not_and_a_method_that_there_is_not_are_errors_of_the_protocol() {
    everywhere(|agent| {
        let answer = agent.ask("tools/call", json!({ "name": "no_such_tool", "arguments": {} }));

        assert_eq!((&answer["error"]["code"], answer.get("result")), (&json!(-32602), None), "{answer}");
        assert_eq!(answer["error"]["message"], "there is no such tool: list the tools");
    });
}

#[test]
fn a_line_that_is_no_request_is_an_error_of_the_protocol_and_the_next_is_answered() {
    for revision in [INITIALIZED, STATELESS] {
        let world = World::new();
        let mut pipe = world.pipe(revision, &[]);
        if revision == STATELESS {
            pipe.call("create_note", &note("first", "hello"));
        }
        pipe.write("{no JSON");
        pipe.write(r#"{"jsonrpc":"2.0","id":9,"method":"\ud800"}"#);
        pipe.write(&format!("\"{}\"", "long".repeat(200_000)));
        pipe.write("[1,2]");
        let id = pipe.send_call("create_note", &note("k", "hello"));

        assert_eq!(Told::of(&pipe.answer(id)).outcome(), FRESH);
        let codes: Vec<_> = pipe.others.iter().map(|error| (&error["error"]["code"], error.get("id"))).collect();
        // Of a line that is JSON the protocol's own code comes later.
        assert_eq!(
            codes,
            [(&json!(-32700), None), (&json!(-32700), None), (&json!(-32600), None), (&json!(-32600), None)]
        );
    }
}

#[test]
fn a_body_that_is_no_request_is_refused() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&[]);
    let caller = server.caller(&token);

    for (body, says) in
        [("{no JSON", "fail to deserialize request body"), ("[1,2]", "fail to deserialize request body")]
    {
        let answer = Answer::read(&caller.post(&[("Mcp-Method", "tools/call")], body).unwrap()).unwrap();
        assert_eq!(answer.status, 415, "{}", answer.body);
        assert!(answer.body.starts_with(says), "{}", answer.body);
    }
    // What a header says, and the body does not.
    let body = message(STATELESS, 1, "tools/call", json!({ "name": "create_note", "arguments": note("k", "hello") }))
        .to_string();
    let answer = caller.post(&[("Mcp-Method", "tools/call"), ("Mcp-Name", "get_note")], &body).unwrap();
    let answer = Answer::read(&answer).unwrap();
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32020)), "{}", answer.body);
    assert_eq!(Told::of(&caller.note("k").json()).outcome(), FRESH);
}

/// Serves, with a worker for the provider at `url`.
fn with_provider(world: &World, url: &str) -> (Server, Caller) {
    let token = world.token("ada", "ada@acme", "read,deploy,read-metrics");
    let figures = ["--poll", "20ms", "--attempt-timeout", "1s", "--lease", "2s"];
    let server = world.serve(&[&["--provider", url, "--contract", NONE], figures.as_slice()].concat());
    let caller = server.caller(&token);
    (server, caller)
}

#[track_caller]
fn deploy(caller: &mut Caller) -> Value {
    let told = caller.call("start_deployment", &deployment("k", "r1"));
    assert_eq!((told.outcome(), &told.reply["state"]), (FRESH, &json!("accepted")));
    told.reply["operation_id"].clone()
}

#[track_caller]
fn until_settled(caller: &mut Caller, operation: &Value) -> Told {
    until(|| {
        let told = caller.call("get_operation", &json!({ "operation_id": operation }));
        let state = told.reply["state"].as_str().unwrap_or_else(|| panic!("{told:?}"));
        (state != "accepted" && state != "running").then_some(told)
    })
}

/// A moment after it changed, the state is among the figures, and the one before is not.
fn until_counted(caller: &Caller, state: &str) {
    let counted = |state: &str| caller.metric(&format!("counterfoil_operations{{state=\"{state}\"}}"));
    until(|| (counted(state) == 1 && counted("accepted") == 0).then_some(()));
}

#[test]
fn a_deployment_is_sent_by_the_server_s_own_worker() {
    let (world, provider) = (World::new(), full(&[]));
    let (mut server, mut caller) = with_provider(&world, &provider.url());

    let operation = deploy(&mut caller);
    let settled = until_settled(&mut caller, &operation);
    let replay = caller.call("start_deployment", &deployment("k", "r1"));

    assert_eq!((settled.outcome(), &settled.reply["state"]), (FRESH, &json!("succeeded")));
    assert_eq!((replay.outcome(), &replay.reply["operation_id"]), (REPLAYED, &operation));
    assert_eq!(taken(&provider, operation.as_str().unwrap()).len(), 1);
    until_counted(&caller, "succeeded");
    server.stop();
    world.assert_whole();
}

#[test]
fn that_an_operation_has_failed_or_is_unknown_is_no_error_of_the_call() {
    let refused = Scripted::answers(&[&answer("422 Unprocessable Content", "", "")]);
    let lost = full(&["--faults", "drop-after"]);
    for (url, state) in [(refused.url(), "failed"), (lost.url(), "outcome_unknown")] {
        let world = World::new();
        let (_server, mut caller) = with_provider(&world, &url);

        let operation = deploy(&mut caller);
        let told = until_settled(&mut caller, &operation);

        assert_eq!(
            (told.outcome(), &told.reply["status"], &told.reply["state"]),
            (FRESH, &json!("succeeded"), &json!(state))
        );
        assert!(told.text.starts_with("Succeeded. "), "{}", told.text);
        assert!(told.reply["next_action"].as_str().is_some_and(|action| told.text.ends_with(action)), "{told:?}");
        until_counted(&caller, state);
    }
}
