//! Effects outside the database, as an agent sees them: `start_deployment` and `cancel_operation`. What becomes of them is
//! in `outcomes.rs` and `cancelling.rs`.

use crate::harness::*;
use crate::outbox_harness::*;
use host_example::{Principal, Step};
use serde_json::{Value, json};

const NOBODYS: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// How many receipts, operations and attempts there are.
fn kept(world: &World) -> [String; 3] {
    ["receipts", "operations", "attempts"].map(|table| world.db.count(table))
}

/// B1, D1: nothing is sent by the call.
#[test]
fn an_intent_commits_with_its_receipt_and_is_answered_as_accepted() {
    let world = World::new();
    let mut client = world.client();

    let reply = client.call("start_deployment", &deploy("k", "web", "r1"));

    let id = reply["operation_id"].as_str().unwrap();
    let expected = json!({
        "status": "succeeded",
        "replayed": false,
        "retryable": false,
        "operation_id": id,
        "state": "accepted",
        "next_action": "Ask get_operation what has become of it.",
        "committed_at": "2027-01-15T08:00:00.000Z",
        "valid_until": "2027-02-14T08:00:00.000Z",
    });
    assert_eq!(reply, expected);
    assert_eq!(kept(&world), ["1", "1", "0"]);
    assert_eq!(
        world
            .db
            .sql("SELECT operation_id, request, state, deadline, attempts, due, provider_key IS NULL FROM operations"),
        format!(r#"{id}|{{"service":"web","revision":"r1"}}|accepted|1800086400000|0|1800000000000|1"#)
    );
    assert_eq!(world.db.sql("SELECT operation_id, resource_id IS NULL FROM receipts"), format!("{id}|1"));
}

/// B2, B8: the stored answer is history, whatever has become of the operation.
#[test]
fn a_start_replays_its_first_answer_before_during_and_after() {
    let world = World::new();
    let mut client = world.client();
    let call = deploy("k", "web", "r1");
    let first = client.call("start_deployment", &call);

    assert_replay_of(&first, &client.call("start_deployment", &call));
    let task = client.take(KEYED);
    assert_replay_of(&first, &client.call("start_deployment", &call));
    client.settle(&task, &unclear());
    world.clock.advance(HOUR);
    assert_replay_of(&first, &world.client().call("start_deployment", &call));
    client.settle(&task, &finished());
    assert_replay_of(&first, &client.call("start_deployment", &call));

    assert_eq!(client.operation(first["operation_id"].as_str().unwrap())["state"], "succeeded");
    assert_eq!(kept(&world), ["1", "1", "1"]);
}

/// B3, A3: whatever the operation's state, and tells nothing of it.
#[test]
fn a_used_key_with_another_deployment_conflicts_and_starts_nothing() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    let task = client.take(NONE);
    client.settle(&task, &finished());
    let before = world.outbox();

    for other in
        [deploy("k", "web", "r2"), deploy("k", "api", "r1"), deploy("k", "r1", "web"), deploy("k", "web ", "r1")]
    {
        let reply = client.call("start_deployment", &other);
        assert_refused(&reply, "key_conflict");
        assert!(!reply.to_string().contains("web"), "{reply}");
    }

    assert_eq!(world.outbox(), before);
    for who in [bo(), cy()] {
        assert_fresh(&client.caller(who).call("start_deployment", &deploy("k", "web", "r1")));
    }
    assert_eq!(kept(&world), ["3", "3", "1"]);
}

/// B11.
#[test]
fn a_service_and_a_revision_have_1_to_200_characters() {
    let world = World::new();
    let mut client = world.client();
    for (field, value, words) in [
        ("service", json!(""), "expected text of 1 to 200 characters"),
        ("service", json!("é".repeat(201)), "a string of 201 characters, expected text of 1 to 200 characters"),
        ("revision", json!(""), "expected text of 1 to 200 characters"),
        ("revision", json!("a".repeat(201)), "a string of 201 characters"),
        ("revision", json!("a\0b"), "without NUL"),
        ("revision", json!(7), "expected text"),
        ("unknown", json!("a"), "unknown field `unknown`"),
    ] {
        let reply = client.call("start_deployment", &with(deploy("k", "web", "r1"), field, value));
        assert_refused(&reply, "invalid_argument");
        assert!(reply["message"].as_str().unwrap().contains(words), "{reply}");
    }
    for id in [json!("x"), json!(5), json!(null)] {
        assert_refused(&client.call("cancel_operation", &json!({ "operation_id": id })), "invalid_argument");
    }

    let longest = deploy("k", &"é".repeat(200), &"🦀".repeat(200));
    assert_fresh(&client.call("start_deployment", &longest));
    let sent: Value = serde_json::from_str(&client.take(NONE).request).unwrap();
    assert_eq!((&sent["service"], &sent["revision"]), (&longest["service"], &longest["revision"]));
    assert_eq!(kept(&world), ["1", "1", "1"]);
}

/// B6: on every call, replays included.
#[test]
fn starting_and_cancelling_require_deploy_and_following_requires_read() {
    let world = World::new();
    let mut client = world.client();
    let id = client.start("k");
    let before = world.outbox();
    let others: Vec<_> = ALL.into_iter().filter(|name| *name != "deploy").collect();
    let by_id = json!({ "operation_id": id });
    let by_key = json!({ "tool": "start_deployment", "idempotency_key": "k" });
    let deployer = principal("ada@acme", &["deploy"]);

    for caller in [Some(principal("ada@acme", &others)), None] {
        for (tool, call) in [
            ("start_deployment", &deploy("k", "web", "r1")),
            ("start_deployment", &deploy("new", "web", "r1")),
            ("cancel_operation", &by_id),
            ("find_operation", &by_key),
        ] {
            assert_refused(&client.caller(caller.clone()).call(tool, call), "denied");
        }
    }
    client.caller(deployer.clone());
    assert_refused(&client.call("get_operation", &by_id), "denied");
    assert_eq!(client.call("find_operation", &by_key)["state"], "accepted");
    assert_eq!(world.outbox(), before);
    // Cancelling needs no `read` to be told what is established.
    assert_eq!(client.caller(deployer).cancel(&id)["state"], "cancelled");
}

/// B9; G4: absent, another workspace's, and what cannot be cancelled.
#[test]
fn an_operation_of_another_workspace_is_as_absent_as_one_that_never_was() {
    let world = World::new();
    let mut client = world.client();
    let noted = client.call("create_note", &note("n", "hello"));
    let id = client.caller(cy()).start("k");
    client.caller(ada());
    let before = world.outbox();

    let mut ask = |tool: &str, id: &str| {
        let reply = client.instance.call_one(tool, &json!({ "operation_id": id }).to_string()).unwrap().body;
        assert_refused(&serde_json::from_str(&reply).unwrap(), "not_found");
        reply
    };
    assert_eq!(ask("get_operation", &id), ask("get_operation", NOBODYS));
    assert_eq!(ask("cancel_operation", &id), ask("cancel_operation", NOBODYS));
    assert_eq!(ask("cancel_operation", &id), ask("get_operation", NOBODYS));
    // A note's operation has ended where it began.
    assert_eq!(ask("cancel_operation", noted["operation_id"].as_str().unwrap()), ask("cancel_operation", NOBODYS));

    assert_eq!(world.outbox(), before);
    // Of the same workspace, another subject may.
    assert_eq!(client.caller(principal("bo@other", &["deploy"])).cancel(&id)["state"], "cancelled");
}

/// C1: by whichever of the two rows cannot be stored, and by the batch that it is in.
#[test]
fn an_intent_and_its_receipt_are_stored_together_or_not_at_all() {
    for table in ["operations", "receipts"] {
        for raise in ["ABORT", "FAIL", "ROLLBACK"] {
            let world = World::new();
            let mut client = world.client();
            client.start("first");
            world.db.sql(&format!(
                "CREATE TRIGGER broken BEFORE INSERT ON {table} BEGIN SELECT RAISE({raise}, 'out of order'); END"
            ));

            assert_refused(&client.call("start_deployment", &deploy("k", "web", "r1")), "unavailable");
            let lost = client.batch(&[("start_deployment", deploy("k", "web", "r1")), ("get_note", json!({}))]);
            assert_refused(&lost[0], "unavailable");

            assert_eq!(kept(&world), ["1", "1", "0"], "{table} {raise}");
            let found = client.call("find_operation", &json!({ "tool": "start_deployment", "idempotency_key": "k" }));
            assert_refused(&found, "not_found");
            world.db.sql("DROP TRIGGER broken");
            client.start("k");
            assert_eq!(kept(&world), ["2", "2", "0"]);
            assert_eq!(client.verify(), Vec::<String>::new());
        }
    }
}

/// `verify` notices what other programs did.
#[test]
fn an_intent_without_a_receipt_is_found_by_verify() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    world.db.sql("PRAGMA foreign_keys = OFF; DELETE FROM receipts");
    assert_eq!(client.verify(), ["a row of operations has no receipt"]);
}

/// B12: several, equal, unequal, and cancelled in the same commit.
#[test]
fn a_batch_of_deployments_commits_as_one_and_answers_each() {
    let world = World::new();
    let mut client = world.client();
    let old = client.start("old");
    let cancel = |id: &str| ("cancel_operation", json!({ "operation_id": id }));
    let start = |key: &str, revision: &str| ("start_deployment", deploy(key, "web", revision));

    let replies = client.batch(&[
        start("a", "r1"),
        start("b", "r1"),
        start("a", "r1"),
        start("a", "r2"),
        start("c", ""),
        start("c", "r3"),
        cancel(&old),
        cancel(&old),
        cancel(NOBODYS),
    ]);

    for (number, fresh) in [(0, true), (1, true), (5, true), (6, true), (7, true)] {
        assert_eq!(replies[number]["replayed"], !fresh, "{}", replies[number]);
        assert_fresh(&replies[number]);
    }
    assert_replay_of(&replies[0], &replies[2]);
    assert_refused(&replies[3], "key_conflict");
    assert_refused(&replies[4], "invalid_argument");
    assert_eq!((&replies[6]["state"], &replies[6]), (&json!("cancelled"), &replies[7]));
    assert_refused(&replies[8], "not_found");
    assert_eq!(world.db.sql("SELECT state, count(*) FROM operations GROUP BY state"), "accepted|3\ncancelled|1");
    let sent: Vec<_> = client.claim(NONE).tasks.into_iter().map(|task| (task.operation_id, task.step)).collect();
    let expected =
        [0, 1, 5].map(|number: usize| (replies[number]["operation_id"].as_str().unwrap().to_owned(), Step::Submit));
    assert_eq!(sent, expected);
}

/// G4; incident 21: both kinds of operation, by id and by key.
#[test]
fn an_operation_is_followed_by_its_id_and_by_its_key_whatever_its_kind() {
    let world = World::new();
    let mut client = world.client();
    let noted = client.call("create_note", &note("k", "hello"));
    let id = client.start("k");
    let by_key = |tool: &str| json!({ "tool": tool, "idempotency_key": "k" });
    let follow = |client: &mut Client| {
        let found = client.operation(&id);
        assert_eq!(client.call("find_operation", &by_key("start_deployment")), found);
        ["tool", "state", "since", "attempts", "resource_id", "detail"].map(|field| found[field].clone())
    };
    let told = |state: &str, since: &str, attempts: u32, resource: Option<&str>, detail: &str| {
        let since = format!("2027-01-15T08:00:{since}Z");
        [json!("start_deployment"), json!(state), json!(since), json!(attempts), json!(resource), json!(detail)]
    };

    assert_eq!(follow(&mut client), told("accepted", "00.000", 0, None, ""));
    world.clock.advance(SECOND);
    let task = client.take(KEYED);
    assert_eq!(follow(&mut client), told("running", "01.000", 1, None, ""));
    world.clock.advance(SECOND);
    client.settle(&task, &unclear());
    assert_eq!(follow(&mut client), told("running", "01.000", 1, None, "timed out"));
    world.clock.advance(10 * SECOND);
    let task = client.take(KEYED);
    client.settle(&task, &accepted());
    assert_eq!(follow(&mut client), told("running", "01.000", 2, Some("d-1"), ""));
    world.clock.advance(10 * SECOND);
    let task = client.take(KEYED);
    client.settle(&task, &finished());
    assert_eq!(follow(&mut client), told("succeeded", "22.000", 3, Some("d-1"), ""));

    let found = client.call("find_operation", &by_key("create_note"));
    assert_eq!((&found["state"], &found["attempts"]), (&json!("succeeded"), &json!(0)));
    assert_eq!(found["resource_id"], noted["note_id"]);
    assert_refused(&client.call("find_operation", &by_key("cancel_operation")), "invalid_argument");
    assert_refused(&client.caller(None::<Principal>).call("find_operation", &by_key("start_deployment")), "denied");
}

/// What a setting says of new operations; those that are there keep what they were promised.
#[test]
fn the_deadline_is_the_operators_and_begins_with_the_receipt() {
    let mut world = World::with(&[("COUNTERFOIL_DEADLINE", "90s")]);
    let mut client = world.client();
    let short = client.start("short");
    world.restart_with(&[("COUNTERFOIL_DEADLINE", "1s")]);
    let shortest = world.client().start("shortest");
    world.restart_with(&[]);
    let default = world.client().start("default");
    let deadline = |id: &str| world.db.sql(&format!("SELECT deadline FROM operations WHERE operation_id = '{id}'"));
    assert_eq!(
        [&short, &shortest, &default].map(|id| deadline(id)),
        ["1800000090000", "1800000001000", "1800086400000"]
    );

    let mut sent = |at: u64| {
        world.clock.set(START + at);
        let tasks = client.try_claim(64, 100, NONE).unwrap().tasks;
        for task in &tasks {
            assert_eq!(task.deadline.to_string(), deadline(&task.operation_id));
            client.settle(task, &not_sent());
        }
        let ids: Vec<_> = tasks.into_iter().map(|task| task.operation_id).collect();
        [&short, &shortest, &default].map(|id| ids.contains(id))
    };
    assert_eq!(sent(0), [true, true, true]);
    assert_eq!(sent(1000), [true, false, true]);
    assert_eq!(sent(80_000), [true, false, true]);
    assert_eq!(sent(90_000), [false, false, true]);
    assert_eq!(world.db.sql("SELECT state FROM operations ORDER BY deadline"), "failed\nfailed\naccepted");
}
