//! A database that was put back from an older copy: rule G5. Until an operator accepts it, neither what it does not know
//! nor what it says was not sent is believed.

use crate::disk::Disk;
use crate::harness::*;
use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Observation::Absent;
use host_example::Step::{Lookup, Submit};
use host_example::types::RefusalCode::{Denied, NotFound, Unavailable, Unconfirmed};
use host_example::types::State::*;
use host_example::{Files, Host, Limits, ProviderContract, Restoration, Sharing};
use serde_json::{Value, json};
use std::time::Duration;

impl Client {
    fn mark_restored(&mut self) -> Restoration {
        self.instance.mark_restored().unwrap().unwrap()
    }

    fn restored(&mut self) -> Option<Restoration> {
        self.instance.restored().unwrap().unwrap()
    }

    fn accept(&mut self) -> Option<Restoration> {
        self.instance.accept_restored().unwrap().unwrap()
    }
}

fn at(since: u64, unfinished: u32) -> Restoration {
    Restoration { since, unfinished }
}

fn by_key(tool: &str, key: &str) -> Value {
    json!({ "tool": tool, "idempotency_key": key })
}

/// From the first call on, for every tool that takes a key; and the refusal reserves nothing.
#[test]
fn an_unknown_key_is_refused_as_unconfirmed_until_the_copy_is_accepted() {
    let world = World::new();
    let mut client = world.client();
    let created = client.call("create_automation", &automation("c", 10));
    client.mark_restored();
    let before = (rows(&world.db), world.outbox());
    let calls = [
        ("create_note", note("new", "hello")),
        ("create_automation", automation("new", 10)),
        ("set_interval", interval("new", &created, 1, 30)),
        ("start_deployment", deploy("new", "web", "r1")),
    ];
    for client in [&mut client, &mut world.client()] {
        for (tool, call) in &calls {
            let found = client.call("find_operation", &by_key(tool, "new"));
            for reply in [client.call(tool, call), client.batch(&[(tool, call.clone())]).remove(0), found] {
                assert_refused(&reply, "unconfirmed");
                assert_eq!(reply["retryable"], false);
                assert!(
                    reply["next_action"].as_str().unwrap().starts_with("Ask an operator whether the action happened.")
                );
            }
        }
    }
    assert_eq!((rows(&world.db), world.outbox()), before);

    client.accept();
    for (tool, call) in &calls {
        assert_refused(&client.call("find_operation", &by_key(tool, "new")), "not_found");
        let first = client.call(tool, call);
        assert_replay_of(&first, &client.call(tool, call));
    }
}

/// What the copy knows it knows: B2, B3 and B6 hold as ever.
#[test]
fn known_keys_replay_and_questions_are_answered_while_it_is_marked() {
    let world = World::new();
    let mut client = world.client();
    let noted = client.call("create_note", &note("n", "hello"));
    let created = client.call("create_automation", &automation("c", 10));
    let started = client.call("start_deployment", &deploy("d", "web", "r1"));
    let id = started["operation_id"].as_str().unwrap();
    client.mark_restored();

    for (tool, call, first) in [
        ("create_note", note("n", "hello"), &noted),
        ("create_automation", automation("c", 10), &created),
        ("start_deployment", deploy("d", "web", "r1"), &started),
    ] {
        assert_replay_of(first, &client.call(tool, &call));
    }
    assert_refused(&client.call("create_note", &note("n", "other")), "key_conflict");
    assert_refused(&client.call("create_note", &note("new", "")), "invalid_argument");
    assert_refused(&client.caller(principal("ada@acme", &["read"])).call("create_note", &note("new", "a")), "denied");
    client.caller(ada());
    assert_eq!(client.call("get_note", &json!({ "note_id": noted["note_id"] }))["body"], "hello");
    let automation_id = json!({ "automation_id": created["automation_id"] });
    assert_eq!(client.call("get_automation", &automation_id)["interval_minutes"], 10);
    assert_eq!(client.operation(id)["state"], "running");
    assert_eq!(client.call("find_operation", &by_key("create_note", "n"))["resource_id"], noted["note_id"]);
    // A batch answers each for itself.
    let replies = client.batch(&[("create_note", note("n", "hello")), ("create_note", note("new", "a"))]);
    assert_replay_of(&noted, &replies[0]);
    assert_refused(&replies[1], "unconfirmed");
    // Cancelling takes no key; that it was not sent is not believed.
    assert_eq!(client.cancel(id)["state"], "cancel_requested");
    world.clock.advance(31 * DAY);
    assert_refused(&client.call("create_note", &note("n", "hello")), "key_expired");
    assert_eq!(client.verify(), Vec::<String>::new());
}

#[test]
fn the_mark_stays_until_it_is_accepted_and_counts_what_is_unfinished() {
    let world = World::new();
    let mut client = world.client();
    let ids = ["a", "b", "c", "d", "e"].map(|key| client.start(key));
    for (task, seen) in client.claim(NONE).tasks.iter().zip([Some(finished()), Some(unclear()), Some(not_sent()), None])
    {
        seen.map(|seen| client.settle(task, &seen));
    }
    client.cancel(&ids[4]);
    assert_eq!(client.restored(), None);
    assert_eq!(client.accept(), None);
    let states = "SELECT group_concat(state, ' ') FROM (SELECT state FROM operations ORDER BY operation_id)";
    assert_eq!(world.db.sql(states), "succeeded outcome-unknown accepted running cancel-requested");

    assert_eq!(client.mark_restored(), at(START, 4));

    assert_eq!(world.db.sql(states), "succeeded outcome-unknown running running cancel-requested");
    world.clock.advance(DAY);
    for mut client in [world.client(), world.client()] {
        assert_eq!(client.restored(), Some(at(START, 4)));
    }
    // A copy that was made while it was marked: what was sent since then may be lost as well.
    assert_eq!(client.mark_restored(), at(START + DAY, 4));
    let sent = "SELECT count(*) FROM operations WHERE state = 'running' AND last_sent >= ";
    assert_eq!(world.db.sql(&format!("{sent}{}", START + DAY)), "2");
    assert_eq!(world.client().restored(), Some(at(START + DAY, 4)));
    client.resolve(&ids[1], false, None).unwrap();
    assert_eq!(client.restored(), Some(at(START + DAY, 3)));

    assert_eq!(client.accept(), Some(at(START + DAY, 3)));
    assert_eq!((client.accept(), client.restored(), world.client().restored()), (None, None, None));
    assert_eq!(world.db.count("restored"), "0");
    // It can be marked again, another time.
    assert_eq!(client.mark_restored(), at(START + DAY, 3));
}

/// Before anything else is done with the copy: also of an empty one.
#[test]
fn marking_may_be_the_first_call_of_all() {
    let world = World::new();
    assert_eq!(world.client().mark_restored(), at(START, 0));
    assert_refused(&world.client().call("create_note", &note("n", "hello")), "unconfirmed");
    assert_eq!(world.client().accept(), Some(at(START, 0)));
    assert_fresh(&world.client().call("create_note", &note("n", "hello")));
}

/// Plays on after the database was marked.
fn marked(contract: ProviderContract, before: &[Move], after: &[Move]) -> Story {
    let mut story = Story::new(contract);
    story.play(before);
    story.client.mark_restored();
    story.play(after);
    story
}

/// Nobody knows since when its key may have been used, so that key proves nothing.
#[test]
fn what_the_copy_says_was_not_sent_counts_as_sent_and_is_looked_up_first() {
    let not_sent_yet = [&[][..], &[Get(Submit), See(not_sent(), Accepted)]];
    for before in not_sent_yet {
        for (contract, after) in [
            (NONE, &[Is(Running), Idle, Is(OutcomeUnknown), Later(DAY), Idle][..]),
            (KEYED, &[Is(Running), Idle, Is(OutcomeUnknown), Later(DAY), Idle]),
            (ASKED, &[Is(Running), Get(Lookup), See(finished(), Succeeded)]),
            (BOTH, &[Is(Running), Get(Lookup), See(accepted(), Running), Due, Get(Lookup), See(finished(), Succeeded)]),
            (BOTH, &[Get(Lookup), See(unclear(), Running), Due, Get(Lookup), Later(LEASE), Get(Lookup)]),
            (BOTH, &[Cancel(CancelRequested), Get(Lookup), See(finished(), Succeeded)]),
        ] {
            let mut story = marked(contract, before, after);
            assert_eq!(story.now()["attempts"], 1, "{contract:?} {after:?}");
        }
    }
    // An absence is final as if it had been sent by a worker that had the longest lease when the mark was made.
    let mut story = marked(BOTH, &[Later(HOUR)], &[Get(Lookup), See(Absent, Running), Due]);
    assert_eq!(story.world.clock.now(), START + HOUR + 600 * SECOND + 12 * SECOND);
    // Even so it may have been cancelled meanwhile, so it is not sent before the copy is accepted.
    story.play(&[Get(Lookup), See(Absent, Accepted), Idle, Later(HOUR), Idle]);
    story.client.accept().unwrap();
    story.play(&[Get(Submit), See(finished(), Succeeded)]);
}

/// What was sent before the copy was made may have been sent since: the key's window counts from the first.
#[test]
fn what_the_copy_says_was_sent_is_sent_again_under_its_key_or_looked_up() {
    let sent = [Get(Submit), See(unclear(), Running)];
    let in_hand = [Get(Submit)];
    for before in [&sent[..], &in_hand] {
        for (contract, after) in [
            // It may have been cancelled since, so it is not even sent again.
            (KEYED, &[Idle, Is(Running), Later(10 * SECOND), Idle, Is(Running)][..]),
            (KEYED, &[Later(HOUR), Idle, Is(OutcomeUnknown)]),
            (BOTH, &[Later(HOUR), Get(Lookup), See(finished(), Succeeded)]),
        ] {
            marked(contract, before, after);
        }
    }
    marked(NONE, &in_hand, &[Idle, Is(OutcomeUnknown)]);
    marked(ASKED, &in_hand, &[Get(Lookup)]);
    // What a worker of before has still to tell is heard.
    marked(KEYED, &in_hand, &[Late(0, finished(), Succeeded)]);
    marked(KEYED, &in_hand, &[Late(0, not_sent(), Running), Idle]);
    marked(NONE, &[Get(Submit), See(finished(), Succeeded)], &[Is(Succeeded), Later(DAY), Idle]);
}

/// What is not there may have been in what was lost, whoever asks and for whatever.
#[test]
fn nothing_is_said_to_be_absent_from_a_restored_copy() {
    let world = World::new();
    let mut client = world.client();
    client.mark_restored();
    let lost = "01890a5d-ac96-774b-bcce-b302099a8057";

    for tool in ["get_operation", "cancel_operation"] {
        assert_refused(&client.call(tool, &json!({ "operation_id": lost })), "unconfirmed");
    }
    assert_eq!(client.resolve(lost, true, None).unwrap_err().code, Unconfirmed);

    client.accept().unwrap();
    assert_refused(&client.call("cancel_operation", &json!({ "operation_id": lost })), "not_found");
    assert_eq!(client.resolve(lost, true, None).unwrap_err().code, NotFound);
}

/// The operator's word: nothing was lost. What something else made doubtful stays so.
#[test]
fn accepting_makes_unsent_again_what_the_mark_alone_made_doubtful() {
    for (contract, before, between, after) in [
        (NONE, &[][..], &[][..], &[Is(Accepted), Get(Submit), See(finished(), Succeeded)][..]),
        (BOTH, &[], &[Get(Lookup), See(unclear(), Running)], &[Is(Accepted), Get(Submit)]),
        // `cancelled` would be said of what may have been done in the time that was lost.
        (NONE, &[], &[Cancel(CancelRequested)], &[Is(CancelRequested), Idle, Is(OutcomeUnknown)]),
        (BOTH, &[], &[Cancel(CancelRequested)], &[Get(Lookup), See(finished(), Succeeded)]),
        (BOTH, &[], &[Get(Lookup), See(accepted(), Running)], &[Is(Running), Due, Get(Lookup)]),
        (BOTH, &[], &[Get(Lookup), See(finished(), Succeeded)], &[Is(Succeeded), Idle]),
        // A worker asks at this moment.
        (BOTH, &[], &[Get(Lookup)], &[Is(Running), Idle, See(unclear(), Running), Due, Get(Lookup)]),
        // A person was asked.
        (NONE, &[], &[Idle, Is(OutcomeUnknown)], &[Is(OutcomeUnknown), Later(DAY), Idle]),
        // It had been sent before.
        (NONE, &[Get(Submit)], &[], &[Is(Running), Idle, Is(OutcomeUnknown)]),
        (ASKED, &[Get(Submit), See(unclear(), Running)], &[], &[Is(Running), Get(Lookup)]),
    ] {
        let mut story = marked(contract, before, between);
        story.client.accept().unwrap();
        story.play(after);
    }
}

/// G5, with a copy and all that was lost with what came after it.
#[test]
fn nothing_of_the_lost_interval_is_done_again_before_an_operator_accepts() {
    let world = World::new();
    let mut client = world.client();
    let kept = client.call("create_note", &note("kept", "hello"));
    let id = client.start("before");
    drop(client);
    let copy = std::fs::read(world.db.path()).unwrap();
    // The lost interval: a note, and the deployment is carried out.
    let mut client = world.client();
    assert_fresh(&client.call("create_note", &note("lost", "hello")));
    let sent = client.take(BOTH);
    client.settle(&sent, &unclear());
    let lost = client.start("lost");
    drop(client);

    std::fs::write(world.db.path(), copy).unwrap();
    world.clock.advance(SECOND);
    let mut client = world.client();
    assert_eq!(client.mark_restored(), at(START + SECOND, 1));

    assert_replay_of(&kept, &client.call("create_note", &note("kept", "hello")));
    assert_refused(&client.call("create_note", &note("lost", "hello")), "unconfirmed");
    assert_refused(&client.call("find_operation", &by_key("start_deployment", "lost")), "unconfirmed");
    assert_refused(&client.call("get_operation", &json!({ "operation_id": lost })), "unconfirmed");
    let again = client.take(BOTH);
    assert_eq!((&again.operation_id, again.step, &again.provider_key), (&id, Lookup, &sent.provider_key));
    assert_eq!(client.settle(&again, &finished()).state, Succeeded);
    assert_eq!(counts(&world.db), ["1", "0", "2"]);
}

fn with_a_hundred_thousand_unfinished_operations() -> Database {
    let db = Database::new();
    // Which all modes take.
    db.shared().verify();
    db.sql(&format!(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         INSERT INTO receipts
           SELECT printf('0198c000-0000-7000-8000-%012d', i), 'acme', 'ada', 'start_deployment', 'k' || i, 'start_deployment',
             '{{}}', '{{}}', NULL, {START}, {START} + {DAY} FROM n;
         INSERT INTO operations (operation_id, request, state, since, deadline, clock, due, planned_at)
           SELECT operation_id, printf('%.200c', 'x'), 'accepted', {START}, {START} + {DAY}, {START}, {START}, {START}
           FROM receipts"
    ));
    db
}

fn host_with_cache(megabytes: &str) -> Host {
    Host::load(component(), Limits::operator()).unwrap().with_variable("COUNTERFOIL_CACHE", megabytes)
}

/// However many operations there are: an instance has 64 MB.
#[test]
fn a_copy_with_a_hundred_thousand_unfinished_operations_is_marked_and_accepted() {
    let db = with_a_hundred_thousand_unfinished_operations();
    let host = host_with_cache("32");
    let marked = "SELECT count(*) FROM operations WHERE state = 'running' AND attempts = 1 AND first_sent = 0";
    let accepted = "SELECT count(*) FROM operations WHERE state = 'accepted' AND attempts = 0 AND first_sent IS NULL";
    for sharing in [Sharing::Sole, Sharing::Shared] {
        let client = || {
            let files = match sharing {
                Sharing::Sole => Files::sole(&db.path(), Duration::from_secs(2)),
                _ => Files::shared(&db.path()),
            };
            Client::new(&host, files.unwrap())
        };
        assert_eq!(client().mark_restored().unfinished, 100_000);
        assert_eq!(client().verify(), Vec::<String>::new());
        client().instance.checkpoint().unwrap().unwrap();
        assert_eq!(db.sql(marked), "100000");
        assert_eq!(client().accept().unwrap().unfinished, 100_000);
        assert_eq!(client().verify(), Vec::<String>::new());
        client().instance.checkpoint().unwrap().unwrap();
        assert_eq!(db.sql(accepted), "100000");
    }
}

/// Where the journal is in the instance's memory as well, what is too much for it is refused and not begun.
#[test]
fn under_sole_atomic_so_large_a_copy_is_marked_with_a_small_cache_and_left_alone_with_a_large_one() {
    let db = with_a_hundred_thousand_unfinished_operations();
    let copy = std::fs::read(db.path()).unwrap();
    let disk = Disk::of(Sharing::SoleAtomic, copy.clone());
    let (small, large) = (host_with_cache("8"), host_with_cache("32"));

    let mut client = Client::new(&large, disk.storage());
    let refusal = client.instance.mark_restored().unwrap().unwrap_err();
    assert_eq!((refusal.code, refusal.retryable), (Unavailable, true));
    assert_eq!(refusal.message, "The call needs more memory than the host allows.");
    assert!(refusal.next_action.contains("lower COUNTERFOIL_CACHE"));
    assert_eq!(client.restored(), None);
    drop(client);
    assert!(disk.database() == copy, "the database was changed");

    let mut client = Client::new(&small, disk.storage());
    assert_eq!(client.mark_restored().unfinished, 100_000);
    assert_eq!(client.verify(), Vec::<String>::new());
    assert_eq!(client.accept().unwrap().unfinished, 100_000);
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// Neither to see the mark nor to take it away.
#[test]
fn the_mark_is_for_those_who_may_maintain() {
    let world = World::new();
    let mut client = world.client();
    client.mark_restored();
    let others: Vec<_> = ALL.into_iter().filter(|name| *name != "maintain").collect();
    for (caller, message) in [
        (Some(principal("ada@acme", &others)), "The caller lacks the permission maintain."),
        (None, "The host named no caller."),
    ] {
        client.caller(caller);
        assert_refusal(client.instance.mark_restored().unwrap(), Denied, message);
        assert_refusal(client.instance.restored().unwrap(), Denied, message);
        assert_refusal(client.instance.accept_restored().unwrap(), Denied, message);
    }
    assert_eq!(client.caller(principal("op@nowhere", &["maintain"])).restored(), Some(at(START, 0)));
}
