//! The worker's side of effects outside the database: what `claim` hands out. What `settle` and `resolve` record is in
//! `settling.rs`, what follows in `outcomes.rs` and `cancelling.rs`.

use crate::harness::*;
use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Observation::{Absent, Throttled};
use host_example::Step::{Cancel as Stop, Lookup, Submit};
use host_example::types::RefusalCode::{Busy, Denied, InvalidArgument};
use host_example::types::State::*;
use host_example::{Files, Host, Limits, ProviderContract};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

#[test]
fn a_claim_beyond_its_limits_is_refused_with_what_is_allowed_and_hands_out_nothing() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    let before = world.outbox();
    for (limit, lease, message) in [
        (0, 100, "limit: 0, expected 1 to 64."),
        (65, 100, "limit: 65, expected 1 to 64."),
        (u32::MAX, 100, "limit: 4294967295, expected 1 to 64."),
        (1, 99, "lease: 99, expected 100 to 600000 milliseconds."),
        (1, 600_001, "lease: 600001, expected 100 to 600000 milliseconds."),
        (0, 0, "limit: 0, expected 1 to 64."),
    ] {
        assert_refusal(client.try_claim(limit, lease, NONE), InvalidArgument, message);
    }
    assert_eq!(world.outbox(), before);

    for (limit, lease) in [(1, 100), (64, 600_000)] {
        let claimed = client.try_claim(limit, lease, KEYED).unwrap();
        assert_eq!(claimed.tasks[0].lease_until, world.clock.now() + u64::from(lease));
        world.clock.advance(u64::from(lease));
    }
}

/// Whatever else the caller may do.
#[test]
fn whoever_lacks_dispatch_claims_settles_and_resolves_nothing() {
    let world = World::new();
    let mut client = world.client();
    let id = client.start("k");
    let task = client.take(NONE);
    let before = world.outbox();
    let others: Vec<_> = ALL.into_iter().filter(|name| *name != "dispatch").collect();
    for (caller, message) in [
        (Some(principal("ada@acme", &others)), "The caller lacks the permission dispatch."),
        (None, "The host named no caller."),
    ] {
        client.caller(caller);
        world.clock.advance(HOUR);
        assert_refusal(client.try_claim(1, 100, NONE), Denied, message);
        assert_refusal(client.try_claim(0, 0, NONE), Denied, message);
        assert_refusal(client.try_settle(&task.attempt_id, &finished()), Denied, message);
        assert_refusal(client.resolve(&id, true, None), Denied, message);
    }
    assert_eq!(world.outbox(), before);
    // No workspace confines it, and it needs nothing else.
    client.caller(principal("worker@nowhere", &["dispatch"]));
    assert_eq!(client.settle(&task, &finished()).state, Succeeded);
}

/// Incidents 3 and 7: a worker that dies with a task in hand has left word of it.
#[test]
fn a_task_is_stored_with_its_key_and_contract_before_it_is_handed_out() {
    let world = World::new();
    let mut client = world.client();
    let id = client.start("k");

    let task = client.take(CANCELS);

    assert_eq!(
        (&task.operation_id, task.step, task.request.as_str()),
        (&id, Submit, r#"{"service":"web","revision":"r1"}"#)
    );
    assert_eq!((task.lease_until, task.deadline), (START + LEASE, START + DAY));
    let attempt =
        "SELECT attempt_id, operation_id, step, claimed_at, lease_until, settled_at IS NULL, observation IS NULL";
    assert_eq!(
        world.db.sql(&format!("{attempt} FROM attempts")),
        format!("{}|{id}|submit|1800000000000|1800000030000|1|1", task.attempt_id)
    );
    let kept = "SELECT state, attempts, first_sent, last_sent, due, attempt_id, provider_key, contract FROM operations";
    assert_eq!(
        world.db.sql(kept),
        format!(
            "running|1|1800000000000|1800000030000|1800000030000|{}|{}|{}",
            task.attempt_id,
            task.provider_key,
            r#"{"deduplicates_for":3600000,"looks_up":true,"absent_is_final_after":10000,"cancels":true,"clock_within":1000}"#
        )
    );
}

/// D2; incident 3: another worker, another process or a copy of the database derives the same.
#[test]
fn a_providers_key_follows_from_the_operations_id_alone() {
    /// As in `src/engine/outbox.rs`: another would make old operations look new to their provider.
    const KEYS: Uuid = Uuid::from_u128(0x5d0e_6c1f_93a4_4b7e_8a52_7a3c_90e1_64bd);
    let (world, copy) = (World::new(), World::new());
    let mut client = world.client();
    let ids = ["a", "b", "c"].map(|key| client.start(key));
    drop(client);
    std::fs::copy(world.db.path(), copy.db.path()).unwrap();
    copy.clock.advance(HOUR);

    let [here, there] = [(&world, NONE), (&copy, BOTH)].map(|(world, contract)| world.client().claim(contract).tasks);

    for (number, id) in ids.iter().enumerate() {
        let expected = Uuid::new_v5(&KEYS, id.as_bytes());
        assert_eq!(expected.get_version_num(), 5);
        for task in [&here[number], &there[number]] {
            assert_eq!((&task.operation_id, &task.provider_key), (id, &expected.to_string()));
        }
    }
    let keys: BTreeSet<_> = here.iter().map(|task| &task.provider_key).collect();
    assert_eq!(keys.len(), 3);
}

/// Incident 3, through every kind of step.
#[test]
fn every_attempt_of_one_operation_carries_the_same_key() {
    let mut story = Story::new(CANCELS);
    story.play(&[Get(Submit), See(not_sent(), Accepted), Due, Get(Submit), Later(LEASE), Get(Submit)]);
    story.play(&[See(unclear(), Running), Later(HOUR), Get(Lookup), See(Absent, Accepted), Get(Submit)]);
    story.play(&[Cancel(CancelRequested), See(accepted(), CancelRequested), Due, Get(Stop)]);
    assert_eq!(story.tasks.len(), 6);
    let stored = story.world.db.sql("SELECT provider_key FROM operations");
    assert!(story.tasks.iter().all(|task| task.provider_key == stored));
}

/// Incident 13: whichever of an operation's attempts are kept, the one in hand is among them.
#[test]
fn an_attempt_is_kept_while_a_worker_has_it_in_hand_whatever_the_clock_does() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    for number in 0..100 {
        // Ids are made of the time, and a worker that is restarted has not seen how late it was.
        if number % 40 == 39 {
            world.clock.step_back(2 * HOUR);
            client = world.client();
        }
        world.clock.advance(130 * SECOND);
        let task = loop {
            match client.claim(ASKED).tasks.pop() {
                Some(task) => break task,
                None => world.clock.advance(10 * SECOND),
            }
        };
        let state = client.settle(&task, &accepted()).state;
        assert_eq!(state, Running, "{number}");
    }
    assert_eq!(client.verify(), Vec::<String>::new());

    // An attempt in hand that is not there is damage.
    client.start("other");
    client.take(ASKED);
    drop(client);
    world.db.sql("DELETE FROM attempts WHERE settled_at IS NULL");
    let wrong = world.client().verify();
    assert!(wrong.len() == 1 && wrong[0].ends_with("has an attempt in hand that is not there"), "{wrong:?}");
}

/// Of a later contract only what is weaker counts, and what is no longer vouched for proves nothing: neither when a task
/// is handed out nor when it is settled.
#[test]
fn an_operation_goes_by_the_weakest_contract_under_which_it_was_handed_out() {
    let window = |hours: u64| ProviderContract { deduplicates_for: Some(hours * HOUR), ..KEYED };
    let no_figure = ProviderContract { absent_is_final_after: None, ..ASKED };
    let longer = ProviderContract { absent_is_final_after: Some(HOUR), ..ASKED };
    let sent = [Get(Submit), See(unclear(), Running), Later(HOUR / 2)];
    for (first, then, moves) in [
        (window(2), window(1), &[Get(Submit), See(unclear(), Running), Later(HOUR / 2), Idle, Is(OutcomeUnknown)][..]),
        (window(1), window(2), &[Get(Submit), See(unclear(), Running), Later(HOUR / 2), Idle, Is(OutcomeUnknown)]),
        (BOTH, ProviderContract { clock_within: None, ..BOTH }, &[Get(Lookup)]),
        (BOTH, KEYED, &[Later(HOUR), Idle, Is(OutcomeUnknown)]),
        (BOTH, ASKED, &[Get(Lookup)]),
        (ASKED, BOTH, &[Get(Lookup)]),
        (KEYED, NONE, &[Idle, Is(OutcomeUnknown)]),
        (ASKED, no_figure, &[Get(Lookup), See(Absent, OutcomeUnknown)]),
        (no_figure, ASKED, &[Get(Lookup), See(Absent, OutcomeUnknown)]),
        (ASKED, longer, &[Get(Lookup), See(Absent, Running), Later(HOUR), Get(Lookup), See(Absent, Accepted)]),
        (longer, ASKED, &[Get(Lookup), See(Absent, Running), Later(HOUR), Get(Lookup), See(Absent, Accepted)]),
        (CANCELS, BOTH, &[Cancel(CancelRequested), Get(Lookup)]),
        (BOTH, CANCELS, &[Cancel(CancelRequested), Get(Lookup)]),
    ] {
        let mut story = Story::new(first);
        story.play(&sent);
        story.contract = then;
        story.play(moves);
    }
    // Before anything was sent as well.
    let mut story = Story::new(NONE);
    story.play(&[Get(Submit), See(not_sent(), Accepted)]);
    story.contract = BOTH;
    story.play(&[Due, Get(Submit), See(unclear(), OutcomeUnknown)]);
}

/// Incident 7.
#[test]
fn a_live_lease_is_handed_out_to_nobody_else() {
    let world = World::new();
    let (mut one, mut other) = (world.client(), world.client());
    one.start("k");
    let first = one.try_claim(1, 100, KEYED).unwrap();
    assert_eq!((first.tasks.len(), first.next_due), (1, Some(START + 100)));
    for client in [&mut one, &mut other] {
        let none = client.claim(KEYED);
        assert_eq!((none.tasks, none.next_due), (vec![], Some(START + 100)));
    }
    world.clock.advance(99);
    assert_eq!(other.claim(KEYED).tasks, []);
    world.clock.advance(1);
    let second = other.take(KEYED);
    assert_ne!(second.attempt_id, first.tasks[0].attempt_id);
    assert_eq!(one.claim(KEYED).tasks, []);
}

#[test]
fn instances_that_claim_at_once_never_get_the_same_task() {
    let world = World::new();
    let mut client = world.client();
    let starts: Vec<_> =
        (0..60).map(|number| ("start_deployment", deploy(&format!("k{number}"), "web", "r1"))).collect();
    client.batch(&starts);

    let work = |world: &World| {
        let mut client = world.client();
        let mut mine = Vec::new();
        loop {
            let tasks = client.try_claim(3, LEASE as u32, NONE).unwrap().tasks;
            if tasks.is_empty() {
                return mine;
            }
            mine.extend(tasks.into_iter().map(|task| task.operation_id));
        }
    };
    let taken: Vec<Vec<String>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&world))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });

    let all: Vec<_> = taken.iter().flatten().collect();
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (60, 60));
    assert_eq!(world.db.sql("SELECT count(*), sum(attempts) FROM operations"), "60|60");
    assert_eq!(world.db.count("attempts"), "60");
}

#[test]
fn a_claim_says_when_the_next_task_falls_due_and_hands_out_the_longest_due_first() {
    let world = World::new();
    let mut client = world.client();
    let nothing = client.claim(NONE);
    assert_eq!((nothing.tasks, nothing.next_due), (vec![], None));

    let ids = ["a", "b", "c"].map(|key| {
        world.clock.advance(10);
        client.start(key)
    });
    for (number, left) in [(0, Some(START + 20)), (1, Some(START + 30)), (2, Some(START + 30 + 100))] {
        let claimed = client.try_claim(1, 100, KEYED).unwrap();
        assert_eq!((&claimed.tasks[0].operation_id, claimed.next_due), (&ids[number], left));
    }
    // The lease of the first is over when the others' are, and each is due for its own reason.
    let [first, second, third] = ids;
    world.clock.advance(100);
    let tasks = client.try_claim(64, 500, KEYED).unwrap();
    assert_eq!((tasks.tasks.len(), tasks.next_due), (3, Some(START + 30 + 100 + 500)));
    let task = |id: &String| tasks.tasks.iter().find(|task| task.operation_id == *id).unwrap();
    client.settle(task(&first), &finished());
    client.settle(task(&second), &Throttled(60_000));
    assert_eq!(client.claim(KEYED).next_due, Some(START + 630));
    client.settle(task(&third), &finished());
    assert_eq!(client.claim(KEYED).next_due, Some(START + 130 + 60_000));
    world.clock.advance(60_000);
    let task = client.take(KEYED);
    client.settle(&task, &finished());
    assert_eq!(client.claim(KEYED).next_due, None);
}

#[test]
fn a_claim_that_finds_nothing_waits_for_no_writer() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    client.take(NONE);
    let lock = NativeLock::write(&world.db);
    let claimed = client.claim(NONE);
    drop(lock);
    assert_eq!((claimed.tasks, claimed.next_due), (vec![], Some(START + LEASE)));
}

/// C6: nothing is handed out, and the next time it is.
#[test]
fn a_claim_that_cannot_have_the_lock_is_busy_and_hands_out_nothing() {
    let db = Database::new();
    db.shared().start("k");
    let host = Host::load(component(), Limits { lock_wait: Duration::ZERO, ..Limits::default() }).unwrap();
    let mut client = Client::new(&host, Files::shared(&db.path()).unwrap());
    let lock = NativeLock::write(&db);
    let refusal = client.try_claim(1, 600_000, NONE).unwrap_err();
    let stored = db.count("attempts");
    drop(lock);
    assert_eq!((refusal.code, refusal.retryable, refusal.retry_after), (Busy, true, Some(250)));
    assert_eq!(stored, "0");

    let task = client.try_claim(1, 600_000, NONE).unwrap().tasks.remove(0);
    let lock = NativeLock::write(&db);
    let refusal = client.try_settle(&task.attempt_id, &finished()).unwrap_err();
    drop(lock);
    assert_eq!((refusal.code, refusal.retryable, refusal.retry_after), (Busy, true, Some(250)));
    assert_eq!(client.settle(&task, &finished()).state, Succeeded);
}

/// Of an operation that is asked about for months.
#[test]
fn of_questions_that_led_nowhere_only_the_latest_are_kept() {
    let mut story = Story::new(ASKED);
    story.play(&[Get(Submit), See(unclear(), Running)]);
    for _ in 0..40 {
        story.play(&[Due, Get(Lookup), See(unclear(), Running)]);
    }
    let kept = "SELECT step, count(*) FROM attempts GROUP BY step";
    assert_eq!(story.world.db.sql(kept), "lookup|32\nsubmit|1");
    // A worker that repeats itself is heard, and one that comes 40 questions late with evidence as well.
    story.play(&[Late(40, unclear(), Running), Late(0, finished(), Succeeded)]);
}

/// C7: what ends without being sent is bounded as well, or the first claim after a long pause would not end in time.
#[test]
fn operations_that_all_passed_their_deadline_are_failed_in_steps() {
    const COUNT: u64 = 5000;
    let world = World::new();
    let mut client = world.client();
    client.start("first");
    let numbers = format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {COUNT})");
    world.db.sql(&format!(
        "BEGIN;
         {numbers} INSERT INTO receipts SELECT printf('01900000-0000-7000-8000-%012d', i), workspace, subject, tool,
             'k' || i, revision, arguments, result, resource_id, committed_at, valid_until FROM receipts, n;
         {numbers} INSERT INTO operations (operation_id, request, state, since, deadline, clock, due, planned_at)
             SELECT printf('01900000-0000-7000-8000-%012d', i), request, state, since, deadline, clock, due, planned_at
             FROM operations, n;
         COMMIT"
    ));
    world.clock.advance(DAY);
    let new = client.start("new");

    let mut tasks = Vec::new();
    let mut claims = 0;
    while tasks.is_empty() {
        let claimed = client.claim(NONE);
        assert!(!claimed.tasks.is_empty() || claimed.next_due.is_some_and(|due| due <= world.clock.now()));
        tasks.extend(claimed.tasks.into_iter().map(|task| task.operation_id));
        claims += 1;
    }

    assert_eq!(tasks, [new]);
    assert!(claims > 5, "{claims}");
    assert_eq!(world.db.sql("SELECT state, count(*) FROM operations GROUP BY state"), "failed|5001\nrunning|1");
}
