//! Operations as an operator lists and counts them, whoever's they are.

use crate::disk::{Disk, Fault};
use crate::harness::*;
use crate::outbox_harness::*;
use host_example::Sharing::{Shared, Sole, SoleAtomic};
use host_example::types::RefusalCode::{Denied, InvalidArgument};
use host_example::types::State::{self, *};
use host_example::{Files, ListedOperation, LockLevel};
use serde_json::{Value, json};

impl Client {
    fn list(&mut self, state: Option<State>, after: Option<&str>, limit: u32) -> Vec<ListedOperation> {
        self.instance.list_operations(state, after, limit).unwrap().unwrap()
    }

    fn list_ids(&mut self, state: Option<State>, after: Option<&str>, limit: u32) -> Vec<String> {
        self.list(state, after, limit).into_iter().map(|listed| listed.operation.operation_id).collect()
    }

    /// In the order in which they are told.
    fn counted(&mut self) -> Vec<(State, u64)> {
        self.instance.count_operations().unwrap().unwrap()
    }
}

const STATES: [State; 7] = [Accepted, Running, Succeeded, Failed, CancelRequested, Cancelled, OutcomeUnknown];

/// How many are in each of [`STATES`].
fn counts(numbers: [u64; 7]) -> Vec<(State, u64)> {
    STATES.into_iter().zip(numbers).collect()
}

/// An operation in each state, the oldest first. The first has a detail and the fourth too.
fn one_in_each_state(world: &World, client: &mut Client) -> [(String, State); 7] {
    let mut start = |key: &str| {
        world.clock.advance(1);
        client.start(key)
    };
    let ids = ["unknown", "cancelled", "asked", "failed", "succeeded", "running"].map(&mut start);
    client.cancel(&ids[1]);
    let tasks = client.claim(NONE).tasks;
    let task = |id: &String| tasks.iter().find(|task| task.operation_id == *id).unwrap();
    client.settle(task(&ids[0]), &unclear());
    client.cancel(&ids[2]);
    client.settle(task(&ids[3]), &failed());
    client.settle(task(&ids[4]), &finished());
    world.clock.advance(1);
    let [unknown, cancelled, asked, failed, succeeded, running] = ids;
    [
        (unknown, OutcomeUnknown),
        (cancelled, Cancelled),
        (asked, CancelRequested),
        (failed, Failed),
        (succeeded, Succeeded),
        (running, Running),
        (client.start("accepted"), Accepted),
    ]
}

/// What `get_operation` answers, of what is listed.
fn as_told(listed: &ListedOperation) -> Value {
    let operation = &listed.operation;
    let rfc3339 = |time: u64| humantime(time).as_str().map(str::to_owned);
    let mut told = json!({
        "status": "succeeded",
        "replayed": false,
        "retryable": false,
        "operation_id": operation.operation_id,
        "tool": operation.tool,
        "state": name(operation.state),
        "since": rfc3339(operation.since),
        "attempts": operation.attempts,
        "detail": operation.detail,
        "next_action": operation.next_action,
    });
    if let Some(id) = &operation.resource_id {
        told["resource_id"] = json!(id);
    }
    told
}

/// All tests of this file take place in the first minute of their day.
fn humantime(time: u64) -> Value {
    let ms = time - START;
    assert!(ms < 60_000, "{ms}");
    json!(format!("2027-01-15T08:00:{:02}.{:03}Z", ms / 1000, ms % 1000))
}

#[test]
fn operations_of_all_workspaces_are_listed_oldest_first_with_whose_they_are_and_since_when() {
    let world = World::new();
    let mut client = world.client();
    let mut ids = Vec::new();
    for (number, caller) in (1..).zip([ada(), bo(), cy()]) {
        world.clock.set(START + number * SECOND);
        ids.push(client.caller(caller).start("k"));
    }
    // Its effect is in the database.
    assert_fresh(&client.call("create_note", &note("n", "hello")));
    world.clock.set(START + 5 * SECOND);
    let tasks = client.claim(NONE).tasks;
    client.settle(tasks.iter().find(|task| task.operation_id == ids[1]).unwrap(), &finished());

    client.caller(principal("op@nowhere", &["maintain"]));
    let listed = client.list(None, None, 1000);

    let shown: Vec<_> = listed
        .iter()
        .map(|listed| {
            let ListedOperation { workspace, subject, started_at, operation } = listed;
            let whose = (workspace.as_str(), subject.as_str(), started_at - START);
            (operation.operation_id.as_str(), whose, operation.tool.as_str(), operation.state, operation.since - START)
        })
        .collect();
    assert_eq!(
        shown,
        [
            (ids[0].as_str(), ("acme", "ada", 1000), "start_deployment", Running, 5000),
            (ids[1].as_str(), ("acme", "bo", 2000), "start_deployment", Succeeded, 5000),
            (ids[2].as_str(), ("other", "cy", 3000), "start_deployment", Running, 5000),
        ]
    );
    assert_eq!(
        (listed[1].operation.attempts, listed[1].operation.resource_id.as_deref(), listed[1].operation.detail.as_str()),
        (1, Some("d-1"), "")
    );
}

#[test]
fn each_state_is_listed_and_counted_by_itself_as_get_operation_tells_it() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!((client.list(None, None, 1), client.counted()), (vec![], counts([0; 7])));
    let made = one_in_each_state(&world, &mut client);

    for (id, state) in &made {
        assert_eq!(client.list_ids(Some(*state), None, 1000), [id.as_str()], "{state:?}");
    }
    assert_eq!(client.counted(), counts([1; 7]));
    let all = client.list(None, None, 1000);
    let shown: Vec<_> =
        all.iter().map(|listed| (listed.operation.operation_id.clone(), listed.operation.state)).collect();
    assert_eq!(shown, made);
    for listed in all {
        assert_eq!(as_told(&listed), client.operation(&listed.operation.operation_id));
    }
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let world = World::new();
    let mut client = world.client();
    let mut ids: Vec<_> = (0..5)
        .map(|number| {
            world.clock.advance(1);
            client.start(&format!("k{number}"))
        })
        .collect();
    client.cancel(&ids[1]);
    client.cancel(&ids[2]);

    for (state, after, limit, page) in [
        (None, None, 2, &ids[..2]),
        (None, Some(&ids[1]), 2, &ids[2..4]),
        (None, Some(&ids[3]), 2, &ids[4..]),
        (None, Some(&ids[4]), 2, &[]),
        (None, Some(&ids[0]), 1000, &ids[1..]),
        (Some(Cancelled), None, 1, &ids[1..2]),
        (Some(Cancelled), Some(&ids[1]), 1, &ids[2..3]),
        (Some(Cancelled), Some(&ids[2]), 1, &[]),
        (Some(Accepted), Some(&ids[0]), 1000, &ids[3..]),
    ] {
        let after = after.map(String::as_str);
        assert_eq!(client.list_ids(state, after, limit), page, "{state:?} {after:?} {limit}");
    }
    // An id need not be there, and may be spelled in any usual way.
    assert_eq!(client.list_ids(None, Some("00000000-0000-0000-0000-000000000000"), 1000), ids);
    assert_eq!(client.list_ids(None, Some("ffffffff-ffff-ffff-ffff-ffffffffffff"), 1000), [""; 0]);
    assert_eq!(client.list_ids(None, Some(&ids[3].to_uppercase().replace('-', "")), 1000), [ids[4].as_str()]);
    // What is started meanwhile is on a later page.
    world.clock.advance(1);
    ids.push(client.start("late"));
    assert_eq!(client.list_ids(None, Some(&ids[3]), 2), ids[4..]);
}

#[test]
fn a_limit_out_of_range_and_an_id_that_is_no_uuid_are_refused() {
    let world = World::new();
    let mut client = world.client();
    let id = client.start("k");
    for limit in [0, 1001, u32::MAX] {
        let message = format!("limit: {limit}, expected 1 to 1000.");
        assert_refusal(client.instance.list_operations(None, None, limit).unwrap(), InvalidArgument, &message);
    }
    for after in ["", "x", &id[1..], &format!("{id}0"), "' OR 1"] {
        let message = "after: expected the id of an operation, a UUID.";
        assert_refusal(client.instance.list_operations(None, Some(after), 1).unwrap(), InvalidArgument, message);
    }
    for limit in [1, 1000] {
        assert_eq!(client.list_ids(None, None, limit), [id.as_str()]);
    }
}

#[test]
fn whoever_lacks_maintain_is_told_nothing_of_operations() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    let others: Vec<_> = ALL.into_iter().filter(|name| *name != "maintain").collect();
    for (caller, message) in [
        (Some(principal("ada@acme", &others)), "The caller lacks the permission maintain."),
        (None, "The host named no caller."),
    ] {
        client.caller(caller);
        assert_refusal(client.instance.list_operations(None, None, 1).unwrap(), Denied, message);
        assert_refusal(client.instance.list_operations(None, None, 0).unwrap(), Denied, message);
        assert_refusal(client.instance.count_operations().unwrap(), Denied, message);
    }
}

#[test]
fn counts_follow_each_change_of_state_and_nothing_else() {
    let world = World::new();
    let mut client = world.client();
    let id = client.start("k");
    assert_eq!(client.counted(), counts([1, 0, 0, 0, 0, 0, 0]));
    // A replay, a refusal, and what is undone.
    client.call("start_deployment", &deploy("k", "web", "r1"));
    assert_refused(&client.call("start_deployment", &deploy("k", "web", "r2")), "key_conflict");
    assert_eq!(client.counted(), counts([1, 0, 0, 0, 0, 0, 0]));
    let task = client.take(KEYED);
    assert_eq!(client.counted(), counts([0, 1, 0, 0, 0, 0, 0]));
    client.settle(&task, &not_sent());
    assert_eq!(client.counted(), counts([1, 0, 0, 0, 0, 0, 0]));
    world.clock.advance(HOUR);
    let task = client.take(KEYED);
    client.settle(&task, &unclear());
    assert_eq!(client.counted(), counts([0, 1, 0, 0, 0, 0, 0]));
    client.cancel(&id);
    assert_eq!(client.counted(), counts([0, 0, 0, 0, 1, 0, 0]));
    client.settle(&task, &finished());
    client.settle(&task, &finished());
    assert_eq!(client.counted(), counts([0, 0, 1, 0, 0, 0, 0]));

    client.batch(&["a", "b", "c"].map(|key| ("start_deployment", deploy(key, "web", "r1"))));
    assert_eq!(client.counted(), counts([3, 0, 1, 0, 0, 0, 0]));
    assert_eq!(world.client().counted(), counts([3, 0, 1, 0, 0, 0, 0]));
    world.db.sql(&format!("DELETE FROM attempts; DELETE FROM receipts WHERE operation_id = '{id}'"));
    world.db.sql(&format!("DELETE FROM operations WHERE operation_id = '{id}'"));
    assert_eq!((client.counted(), client.verify()), (counts([3, 0, 0, 0, 0, 0, 0]), vec![]));
}

#[test]
fn verifying_counts_anew() {
    let world = World::new();
    let mut client = world.client();
    client.start("k");
    for (sql, wrong, undo) in [
        ("number = 2 WHERE state = 'accepted'", "accepted", "number = 1 WHERE state = 'accepted'"),
        ("number = 1 WHERE state = 'cancelled'", "cancelled", "number = 0 WHERE state = 'cancelled'"),
        ("number = -1 WHERE state = 'failed'", "failed", "number = 0 WHERE state = 'failed'"),
    ] {
        world.db.sql(&format!("UPDATE operation_counts SET {sql}"));
        assert_eq!(client.verify(), [format!("the operations in state {wrong} are miscounted")]);
        world.db.sql(&format!("UPDATE operation_counts SET {undo}"));
        assert_eq!(client.verify(), Vec::<String>::new());
    }
    // A number that is none, and a state that is missing, are no answers.
    for sql in ["UPDATE operation_counts SET number = -1 WHERE state = 'running'", "DELETE FROM operation_counts"] {
        world.db.sql(sql);
        let refusal = client.instance.count_operations().unwrap().unwrap_err();
        assert_eq!(refusal.message, "The database is damaged.", "{refusal:?}");
    }
}

#[test]
fn a_tombstone_is_listed_and_counted_and_has_lost_its_detail_alone() {
    let world = World::new();
    let mut client = world.client();
    one_in_each_state(&world, &mut client);
    let before = client.list(None, None, 1000);
    assert_eq!(before[3].operation.detail, "exit code 1");
    world.clock.advance(31 * DAY);

    assert_eq!(client.instance.sweep(100).unwrap().unwrap(), 3);

    let mut expected = before;
    expected[3].operation.detail.clear();
    assert_eq!(client.list(None, None, 1000), expected);
    assert_eq!(client.counted(), counts([1; 7]));
    assert_eq!(client.verify(), Vec::<String>::new());
}

/// G5: it shows what the copy is believed to be, as `get_operation` does.
#[test]
fn a_restored_copy_lists_and_counts_what_was_not_sent_as_running_until_it_is_accepted() {
    let world = World::new();
    let mut client = world.client();
    one_in_each_state(&world, &mut client);

    client.instance.mark_restored().unwrap().unwrap();

    assert_eq!(client.counted(), counts([0, 2, 1, 1, 1, 1, 1]));
    assert_eq!((client.list(Some(Accepted), None, 10), client.list(Some(Running), None, 10).len()), (vec![], 2));
    for listed in client.list(None, None, 1000) {
        assert_eq!(as_told(&listed), client.operation(&listed.operation.operation_id));
    }

    client.instance.accept_restored().unwrap().unwrap();

    assert_eq!(client.counted(), counts([1, 1, 1, 1, 1, 1, 1]));
    for listed in client.list(None, None, 1000) {
        assert_eq!(as_told(&listed), client.operation(&listed.operation.operation_id));
    }
    assert_eq!(client.verify(), Vec::<String>::new());
}

#[test]
fn nothing_is_written_in_any_mode_and_no_writer_is_waited_for() {
    for sharing in [Sole, Shared, SoleAtomic] {
        let (world, disk) = (World::new(), Disk::new(sharing));
        let mut client = world.client_on(disk.storage());
        let id = client.start("k");
        disk.fault(Fault::None);

        assert_eq!(client.list_ids(None, None, 1000), [id.as_str()], "{sharing:?}");
        assert_eq!(client.list_ids(Some(Accepted), None, 1000), [id.as_str()], "{sharing:?}");
        assert_eq!(client.counted(), counts([1, 0, 0, 0, 0, 0, 0]), "{sharing:?}");

        let (writes, lock) = disk.writes_and_lock();
        assert!(writes == 0 && lock <= LockLevel::Shared as u8, "{sharing:?}: {writes} {lock}");
    }
    let world = World::new();
    let id = world.client().start("k");
    let lock = NativeLock::write(&world.db);
    assert_eq!(world.client().list_ids(None, None, 1000), [id.as_str()]);
    assert_eq!(world.client().counted(), counts([1, 0, 0, 0, 0, 0, 0]));
    drop(lock);
}

#[test]
fn a_component_without_effects_outside_the_database_has_no_operations_to_list() {
    let db = Database::new();
    let mut client = Client::new(test_host(), Files::shared(&db.path()).unwrap());
    assert_fresh(&client.call("mark", &json!({ "idempotency_key": "k", "text": "text" })));
    assert_eq!((client.list(None, None, 1000), client.counted()), (vec![], counts([0; 7])));
}
