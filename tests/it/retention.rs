//! How long the promise lasts: rules G1 and G2 of the contract, on a clock that the test sets. Incidents are numbered as in
//! CONTRACT.md.

use crate::harness::*;
use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Observation;
use host_example::Step::Submit;
use host_example::types::RefusalCode::{Denied, InvalidArgument, NotFound, Unavailable};
use host_example::types::State::*;
use serde_json::{Value, json};
use uuid::Uuid;

impl Client {
    fn sweep(&mut self, limit: u32) -> u32 {
        self.instance.sweep(limit).unwrap().unwrap()
    }
}

/// A call of each keyed tool, of which the last edits what the second made.
fn acts(client: &mut Client) -> Vec<(&'static str, Value, Value)> {
    let created = client.call("create_automation", &automation("c", 10));
    let calls = [
        ("create_note", note("n", "hello")),
        ("create_automation", automation("c", 10)),
        ("set_interval", interval("e", &created, 1, 30)),
    ];
    calls.map(|(tool, call)| (tool, call.clone(), with(client.call(tool, &call), "replayed", false))).to_vec()
}

/// G1: 30 days unless the operator says otherwise, to the millisecond; incident 13.
#[test]
fn a_key_replays_until_its_end_and_is_refused_later_and_replays_again_if_the_clock_goes_back() {
    for (variables, kept) in [
        (&[][..], 30 * DAY),
        (&[("COUNTERFOIL_RETENTION", "1d")], DAY),
        (&[("COUNTERFOIL_RETENTION", "86400000ms")], DAY),
        (&[("COUNTERFOIL_RETENTION", "2d 12h 1ms")], 2 * DAY + 12 * HOUR + 1),
    ] {
        let world = World::with(variables);
        let mut client = world.client();
        let acted = acts(&mut client);
        assert_eq!(world.db.sql("SELECT DISTINCT valid_until - committed_at FROM receipts"), kept.to_string());
        let before = rows(&world.db);

        for (at, replays) in [(kept, true), (kept + 1, false), (400 * DAY, false), (kept, true), (0, true)] {
            world.clock.set(START + at);
            for client in [&mut client, &mut world.client()] {
                for (tool, call, first) in &acted {
                    let reply = client.call(tool, call);
                    match replays {
                        true => assert_replay_of(first, &reply),
                        false => assert_refused(&reply, "key_expired"),
                    }
                    let other = client.call(tool, &other_arguments(call));
                    assert_refused(&other, if replays { "key_conflict" } else { "key_expired" });
                }
            }
        }
        assert_eq!(rows(&world.db), before);
    }
}

fn other_arguments(call: &Value) -> Value {
    match call.get("body") {
        Some(_) => with(call.clone(), "body", "other"),
        None => with(call.clone(), "interval_minutes", 99),
    }
}

/// What was promised when a receipt was written holds, whatever the setting is later.
#[test]
fn another_setting_changes_no_receipt_that_is_there() {
    let mut world = World::with(&[("COUNTERFOIL_RETENTION", "10d")]);
    let first = world.client().call("create_note", &note("n", "hello"));
    world.restart_with(&[("COUNTERFOIL_RETENTION", "1d")]);
    world.clock.advance(10 * DAY);
    assert_replay_of(&first, &world.client().call("create_note", &note("n", "hello")));
    assert_eq!(world.client().sweep(10), 0);
    world.restart_with(&[("COUNTERFOIL_RETENTION", "10000y")]);
    world.clock.advance(1);
    assert_refused(&world.client().call("create_note", &note("n", "hello")), "key_expired");
    // No later than the last moment that can be written.
    let late = world.client().call("create_note", &note("late", "hello"));
    assert_eq!(late["valid_until"], "9999-12-31T23:59:59.999Z");
}

/// Better no answer than a promise that is not what the operator meant.
#[test]
fn a_setting_that_is_not_what_it_may_be_refuses_every_call_and_is_named() {
    let mut world = World::new();
    let first = world.client().call("create_note", &note("n", "hello"));
    let id = first["operation_id"].as_str().unwrap();
    let retention = ["", " ", "0", "30", "x", "30 d d", "-1d", "23h 59m 59s 999ms", "86399999999us", "9999999999999y"];
    let deadline = ["", "0", "x", "999ms", "-1s", "999999us"];
    let cache = ["", "0", "33", "-1", "1.5", "16 MB", "x", "99999999999"];
    let retention =
        retention.map(|value| ("RETENTION", value, "a duration of at least 1day, such as 30days")).into_iter();
    let deadline = deadline.map(|value| ("DEADLINE", value, "a duration of at least 1s, such as 1day"));
    let cache = cache.map(|value| ("CACHE", value, "a number of megabytes from 1 to 32, such as 16"));
    for (name, value, needed) in retention.chain(deadline).chain(cache) {
        let name = format!("COUNTERFOIL_{name}");
        world.restart_with(&[(&name, value)]);
        let message = format!("{name} must be {needed}.");
        let mut client = world.client();
        for (tool, call) in [
            ("create_note", note("n", "hello")),
            ("create_note", note("new", "hello")),
            ("start_deployment", deploy("new", "web", "r1")),
            ("cancel_operation", json!({ "operation_id": id })),
            ("get_operation", json!({ "operation_id": id })),
            ("find_operation", json!({ "tool": "create_note", "idempotency_key": "n" })),
        ] {
            let reply = client.call(tool, &call);
            assert_refused(&reply, "unavailable");
            assert_eq!((&reply["message"], &reply["retryable"]), (&json!(message), &json!(false)), "{value:?}");
        }
        assert_refusal(client.try_claim(1, 100, NONE), Unavailable, &message);
        assert_refusal(client.try_settle(id, &finished()), Unavailable, &message);
        assert_refusal(client.resolve(id, true, None), Unavailable, &message);
        assert_refusal(client.instance.sweep(1).unwrap(), Unavailable, &message);
        assert_refusal(client.instance.verify().unwrap(), Unavailable, &message);
        assert_refusal(client.instance.mark_restored().unwrap(), Unavailable, &message);
        assert_refusal(client.instance.restored().unwrap(), Unavailable, &message);
        assert_refusal(client.instance.accept_restored().unwrap(), Unavailable, &message);
        assert_refusal(client.instance.list_operations(None, None, 1).unwrap(), Unavailable, &message);
        assert_refusal(client.instance.count_operations().unwrap(), Unavailable, &message);
    }
    world.restart_with(&[]);
    assert_replay_of(&first, &world.client().call("create_note", &note("n", "hello")));
    assert_eq!(counts(&world.db), ["1", "0", "1"]);
}

/// F5.
#[test]
fn each_keyed_tool_names_the_retention_that_is_in_force() {
    for (value, words) in
        [("2d", "2 days"), ("24h", "1 day"), ("36h 5m", "1 day 12h 5m"), ("30d", "30 days"), ("365d", "365 days")]
    {
        let world = World::with(&[("COUNTERFOIL_RETENTION", value)]);
        let tools = world.client().instance.describe().unwrap();
        let keyed: Vec<_> = tools.iter().filter(|tool| tool.description.contains("A key is valid for")).collect();
        assert_eq!(keyed.len(), 4);
        for tool in keyed {
            let words = format!("A key is valid for {words} from the commit: until then it replays the first answer");
            assert!(tool.description.contains(&words), "{}", tool.description);
        }
    }
}

/// G1; incident 13: what is left refuses the key for ever, and holds neither request nor result.
#[test]
fn sweeping_leaves_tombstones_that_refuse_their_keys_whatever_the_clock_says() {
    let world = World::new();
    let mut client = world.client();
    let acted = acts(&mut client);
    let done = client.start("done");
    let task = client.take(KEYED);
    client.settle(&task, &failed());
    world.clock.advance(DAY);
    let young = client.call("create_note", &note("young", "hello"));
    world.clock.set(START + 30 * DAY);
    assert_eq!(client.sweep(100), 0, "each is valid until then");
    world.clock.advance(1);

    assert_eq!(client.sweep(100), 4);
    assert_eq!(client.sweep(100), 0);

    let left = "SELECT count(*) FROM receipts WHERE arguments = '' AND result = ''";
    assert_eq!((world.db.sql(left), world.db.count("receipts")), ("4".into(), "5".into()));
    assert_eq!(world.db.sql("SELECT request, detail, state FROM operations"), "||failed");
    assert_eq!(world.db.count("attempts"), "0");
    let before = (rows(&world.db), world.outbox());
    for at in [31 * DAY, 400 * DAY, 30 * DAY, 0] {
        world.clock.set(START + at);
        for client in [&mut client, &mut world.client()] {
            for (tool, call, _) in &acted {
                assert_refused(&client.call(tool, call), "key_expired");
                assert_refused(&client.call(tool, &other_arguments(call)), "key_expired");
            }
            assert_refused(&client.call("start_deployment", &deploy("done", "web", "r1")), "key_expired");
            assert_eq!(client.claim(KEYED).tasks, []);
        }
    }
    assert_eq!((rows(&world.db), world.outbox()), before);
    assert_eq!(counts(&world.db), ["2", "1", "5"]);
    assert_replay_of(&young, &client.call("create_note", &note("young", "hello")));
    // What became of it can still be asked.
    let by_key = json!({ "tool": "start_deployment", "idempotency_key": "done" });
    for found in [client.operation(&done), client.call("find_operation", &by_key)] {
        assert_eq!((&found["state"], &found["detail"]), (&json!("failed"), &json!("")));
    }
    let by_key = json!({ "tool": "create_note", "idempotency_key": "n" });
    assert_eq!(client.call("find_operation", &by_key)["resource_id"], acted[0].2["note_id"]);
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// G1: for as long as the operation is unfinished, and no shorter than the retention.
#[test]
fn a_receipt_of_an_unfinished_operation_replays_beyond_its_end_and_expires_once_it_is_settled() {
    let lost = [Get(Submit), Later(LEASE), Idle, Is(OutcomeUnknown)];
    for (moves, state) in [
        (&[][..], Accepted),
        (&[Get(Submit)], Running),
        (&[Get(Submit), Cancel(CancelRequested)], CancelRequested),
        (&lost, OutcomeUnknown),
    ] {
        let mut story = Story::new(NONE);
        story.play(moves).play(&[Later(90 * DAY), Is(state)]);
        let call = deploy("k", "web", "r1");
        for _ in 0..2 {
            let reply = story.client.call("start_deployment", &call);
            let told = (&reply["replayed"], &reply["state"], &reply["valid_until"]);
            assert_eq!(told, (&json!(true), &json!("accepted"), &json!("2027-02-14T08:00:00.000Z")));
            assert_refused(&story.client.call("start_deployment", &deploy("k", "web", "r2")), "key_conflict");
            assert_eq!(story.client.sweep(100), 0);
        }

        match state {
            Accepted => story.play(&[Idle, Is(Failed)]),
            _ => story.play(&[See(finished(), Succeeded)]),
        };
        assert_refused(&story.client.call("start_deployment", &call), "key_expired");
        assert_eq!(story.client.sweep(100), 1);
        assert_refused(&story.client.call("start_deployment", &call), "key_expired");
        assert_eq!(story.world.db.count("operations"), "1");
    }
}

/// What a swept operation's worker says comes 30 days too late.
#[test]
fn an_attempt_of_a_swept_operation_is_gone_and_changes_nothing() {
    let mut story = Story::new(KEYED);
    story.play(&[Get(Submit), See(finished(), Succeeded), Later(31 * DAY)]);
    assert_eq!(story.client.sweep(1), 1);
    let before = story.world.outbox();
    let late = story.client.try_settle(&story.tasks[0].attempt_id, &Observation::Cancelled);
    assert_refusal(late, NotFound, "There is no such attempt.");
    story.play(&[Idle, Is(Succeeded)]);
    assert_eq!(story.world.outbox(), before);
    assert_eq!(story.now()["resource_id"], "d-1");
}

#[test]
fn sweeping_goes_in_steps_of_at_most_its_limit_and_begins_with_the_oldest() {
    let world = World::new();
    let mut client = world.client();
    for number in 0..5 {
        client.call("create_note", &note(&format!("k{number}"), "hello"));
        world.clock.advance(1);
    }
    world.clock.advance(30 * DAY);
    let left = || {
        world.db.sql(
            "SELECT group_concat(idempotency_key, '') FROM (SELECT idempotency_key FROM receipts
                                WHERE arguments <> '' ORDER BY 1)",
        )
    };
    for (limit, swept, keys) in [(2, 2, "k2k3k4"), (1, 1, "k3k4"), (10_000, 2, ""), (10_000, 0, "")] {
        assert_eq!((client.sweep(limit), left().as_str()), (swept, keys));
    }
    for limit in [0, 10_001, u32::MAX] {
        let message = format!("limit: {limit}, expected 1 to 10000.");
        assert_refusal(client.instance.sweep(limit).unwrap(), InvalidArgument, &message);
    }
    let others: Vec<_> = ALL.into_iter().filter(|name| *name != "maintain").collect();
    client.caller(principal("ada@acme", &others));
    assert_refusal(client.instance.sweep(1).unwrap(), Denied, "The caller lacks the permission maintain.");
    client.caller(None);
    assert_refusal(client.instance.sweep(1).unwrap(), Denied, "The host named no caller.");
}

/// What a key costs for ever, in bytes of the file, with keys that are UUIDs and names of a few letters.
#[test]
fn a_tombstone_takes_at_most_300_bytes_and_one_of_a_deployment_at_most_550() {
    const COUNT: u64 = 2048;
    let size = |world: &World| -> u64 {
        let copy = Database::new();
        world.db.sql(&format!("VACUUM INTO '{}'", copy.path().display()));
        copy.sql("DELETE FROM notes; VACUUM");
        copy.sql("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").parse().unwrap()
    };
    for (tool, bound) in [("create_note", 300), ("start_deployment", 550)] {
        let world = World::new();
        let mut client = world.client();
        let call = |number: u64| {
            let key = Uuid::new_v5(&Uuid::nil(), &number.to_be_bytes()).to_string();
            let large = "x".repeat(200);
            (tool, if tool == "create_note" { note(&key, &large) } else { deploy(&key, &large, &large) })
        };
        client.call(call(COUNT).0, &call(COUNT).1);
        let empty = size(&world);
        for batch in 0..COUNT / 64 {
            client.batch(&(0..64).map(|number| call(batch * 64 + number)).collect::<Vec<_>>());
        }
        let before = size(&world);
        world.clock.advance(31 * DAY);
        while client.claim(NONE).next_due.is_some() {}
        while client.sweep(1000) > 0 {}

        let each = (size(&world) - empty) / COUNT;
        println!("{tool}: a tombstone takes {each} bytes, its receipt took {}", (before - empty) / COUNT);
        assert!(each <= bound, "{tool}: {each} bytes");
        assert!(each < (before - empty) / COUNT);
        assert_eq!(world.db.sql("SELECT count(*) FROM receipts WHERE arguments = ''"), (COUNT + 1).to_string());
    }
}
