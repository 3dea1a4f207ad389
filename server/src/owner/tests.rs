//! The owner over real files whose syncs a test holds back, or lets fail. A commit is one sync of the WAL; the first call on a
//! new database makes more of them, so that each test begins with one call.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod gate;
mod hostile;

use super::*;
use gate::{Gate, Gated};
use host_example::{Files, Host, Limits};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tempfile::TempDir;
use test_support::xtask;

/// Limits that are soon reached.
fn load(component: &str) -> Host {
    let (computing, storage) = (Duration::from_secs(2), Duration::from_secs(1));
    Host::load(&xtask(&["component", component]), Limits { computing, storage, ..Limits::default() }).unwrap()
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| load("test"))
}

/// An owner of the tests' own tools, in a folder of its own.
struct World {
    _folder: TempDir,
    owner: Arc<Owner>,
    thread: Option<JoinHandle<bool>>,
    gate: Arc<Gate>,
    instances: Arc<AtomicUsize>,
}

impl World {
    async fn new(queue: usize) -> World {
        let world = World::of(host(), queue);
        assert_eq!(code(&world.mark("first").await), "fresh");
        world.gate.syncs.store(0, SeqCst);
        world
    }

    fn of(host: &'static Host, queue: usize) -> World {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::sole(&folder.path().join("test.db"), Duration::ZERO).unwrap();
        let (gate, instances) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let (held, made) = (Arc::clone(&gate), Arc::clone(&instances));
        let (mut owner, thread) = Owner::start(queue, Arc::new(Metrics::default()), move |callers| {
            made.fetch_add(1, SeqCst);
            let storage = Gated(files.again(), Arc::clone(&held));
            host.instance(move |call| callers.get(call), storage).map_err(|error| OwnerError::Failed(error.to_string()))
        })
        .unwrap();
        // A slow machine is no reason to give up.
        (owner.turn, owner.answer) = (Duration::from_secs(60), Duration::from_secs(120));
        World { _folder: folder, owner: Arc::new(owner), thread: Some(thread), gate, instances }
    }

    fn call(&self, tool: &str, arguments: &Value) -> tokio::task::JoinHandle<Result<Reply, OwnerError>> {
        self.call_as("ada", tool, arguments)
    }

    fn call_as(
        &self,
        subject: &str,
        tool: &str,
        arguments: &Value,
    ) -> tokio::task::JoinHandle<Result<Reply, OwnerError>> {
        let caller = Principal {
            workspace: "acme".to_owned(),
            subject: subject.to_owned(),
            permissions: vec!["mark".to_owned(), "read".to_owned()],
        };
        let invocation = Invocation { tool: tool.to_owned(), arguments: arguments.to_string() };
        let owner = Arc::clone(&self.owner);
        tokio::spawn(async move { owner.call(Call { id: Uuid::new_v4(), caller, invocation }).await })
    }

    fn marking(&self, key: &str) -> tokio::task::JoinHandle<Result<Reply, OwnerError>> {
        self.call("mark", &json!({ "idempotency_key": key, "text": key }))
    }

    async fn mark(&self, key: &str) -> Result<Reply, OwnerError> {
        self.marking(key).await.unwrap()
    }

    /// One call in the middle of its commit, and others that wait behind it: it is certain that they share the next one.
    async fn waiting<T>(
        &self,
        others: impl FnOnce(&World) -> T,
    ) -> (tokio::task::JoinHandle<Result<Reply, OwnerError>>, T) {
        self.gate.close();
        let first = self.marking("in-hand");
        tokio::task::yield_now().await;
        self.gate.wait_for_commit();
        let others = others(self);
        // Each task runs until it waits.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        (first, others)
    }

    fn syncs(&self) -> usize {
        self.gate.syncs.load(SeqCst)
    }

    /// How often an instance was made.
    fn instances(&self) -> usize {
        self.instances.load(SeqCst)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.gate.open();
        self.owner.end();
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// `fresh`, `replayed`, the code of the refusal, or the error's name.
fn code(answer: &Result<Reply, OwnerError>) -> String {
    match answer {
        Ok(reply) => {
            let body: Value = serde_json::from_str(&reply.body).unwrap();
            match body["code"].as_str() {
                Some(code) => code.to_owned(),
                None if body["replayed"] == true => "replayed".to_owned(),
                None => "fresh".to_owned(),
            }
        }
        Err(error) => format!("{error:?}").split('(').next().unwrap().to_owned(),
    }
}

async fn codes(calls: Vec<tokio::task::JoinHandle<Result<Reply, OwnerError>>>) -> Vec<String> {
    let mut codes = Vec::new();
    for call in calls {
        codes.push(code(&call.await.unwrap()));
    }
    codes
}

#[tokio::test]
async fn calls_that_wait_at_the_same_time_share_one_commit() {
    let world = World::new(100).await;
    let keys: Vec<_> = (0..64).map(|number| format!("key-{number}")).collect();
    let (first, others) = world.waiting(|world| keys.iter().map(|key| world.marking(key)).collect()).await;
    world.gate.open();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(codes(others).await, vec!["fresh"; 64]);
    assert_eq!(world.syncs(), 2);
}

#[tokio::test]
async fn a_retry_waits_for_the_commit_that_it_came_into_and_not_for_the_next() {
    let world = World::new(100).await;
    assert_eq!(code(&world.mark("earlier").await), "fresh");
    let (first, (new, retry)) = world.waiting(|world| (world.marking("new"), world.marking("earlier"))).await;
    world.gate.let_one_pass();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(code(&retry.await.unwrap()), "replayed");
    assert!(!new.is_finished());
    world.gate.open();
    assert_eq!(code(&new.await.unwrap()), "fresh");
}

#[tokio::test]
async fn equal_calls_in_one_batch_are_one_effect_and_unequal_ones_conflict() {
    let world = World::new(100).await;
    let other = json!({ "idempotency_key": "key", "text": "other" });
    let (_, others) =
        world.waiting(|world| vec![world.marking("key"), world.marking("key"), world.call("mark", &other)]).await;
    world.gate.open();
    assert_eq!(codes(others).await, ["fresh", "replayed", "key_conflict"]);
}

#[tokio::test]
async fn a_call_whose_turn_does_not_come_is_refused_and_nothing_of_it_is_done() {
    let world = World::new(100).await;
    let (first, late) = world.waiting(|world| world.marking("late")).await;
    // The runtime's clock stands still, and goes on to whatever is due next when nothing else is to be done.
    tokio::time::pause();
    assert_eq!(code(&late.await.unwrap()), "Busy");
    assert_eq!(code(&first.await.unwrap()), "Slow");
    tokio::time::resume();
    world.gate.open();
    let find = world.call("find_operation", &json!({ "tool": "mark", "idempotency_key": "late" })).await.unwrap();
    assert_eq!(code(&find), "not_found");
    assert_eq!(code(&world.mark("in-hand").await), "replayed", "what had begun was done");
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_the_refused_call_can_be_repeated() {
    let world = World::new(1).await;
    let (first, others) = world.waiting(|world| vec![world.marking("one"), world.marking("two")]).await;
    world.gate.open();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(codes(others).await, ["fresh", "Busy"]);
    assert_eq!(code(&world.mark("two").await), "fresh");
}

#[tokio::test]
async fn whoever_goes_away_takes_nothing_with_it() {
    let world = World::new(100).await;
    let (first, gone) = world.waiting(|world| world.marking("gone")).await;
    gone.abort();
    first.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    world.gate.open();
    assert_eq!(code(&world.mark("gone").await), "replayed");
    assert_eq!(code(&world.mark("in-hand").await), "replayed");
}

#[tokio::test]
async fn a_batch_that_traps_is_made_again_call_by_call() {
    let world = World::new(100).await;
    let trap = json!({ "idempotency_key": "trap", "how": "trap" });
    let (_, others) =
        world.waiting(|world| vec![world.marking("one"), world.call("fail", &trap), world.marking("two")]).await;
    world.gate.open();
    assert_eq!(codes(others).await, ["fresh", "Failed", "fresh"]);
    assert_eq!(code(&world.mark("one").await), "replayed");
    assert!(world.instances() > 1, "{}", world.instances());
}

#[tokio::test]
async fn a_batch_that_loses_its_transaction_is_made_again_call_by_call() {
    let world = World::new(100).await;
    let roll_back = json!({ "idempotency_key": "back", "how": "roll_back" });
    let (_, others) =
        world.waiting(|world| vec![world.marking("one"), world.call("fail", &roll_back), world.marking("two")]).await;
    world.gate.open();
    let codes = codes(others).await;
    assert_eq!([&codes[0], &codes[2]], ["fresh", "fresh"]);
    assert_ne!(codes[1], "fresh");
    assert_eq!(code(&world.mark("two").await), "replayed");
}

/// All use one key. One has given up, and a batch of the others traps.
#[tokio::test]
async fn everybody_acts_in_their_own_name_whatever_becomes_of_a_batch() {
    let world = World::new(100).await;
    let marking = |who| world.call_as(who, "mark", &json!({ "idempotency_key": "key", "text": who }));
    let (first, bob) = world.waiting(|_| marking("bob")).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    let trap = world.call_as("ida", "fail", &json!({ "idempotency_key": "key", "how": "trap" }));
    let others = vec![marking("ada"), trap, marking("eve")];
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(code(&bob.await.unwrap()), "Busy");
    tokio::time::resume();
    world.gate.open();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(codes(others).await, ["fresh", "Failed", "fresh"]);
    let again = codes(["ada", "bob", "eve", "ida"].map(marking).into()).await;
    assert_eq!(again, ["replayed", "fresh", "replayed", "fresh"]);
}

/// B5: it may have committed, and whoever looks finds out. The first sync is that of the call in hand.
#[tokio::test]
async fn a_batch_whose_commit_fails_is_settled_call_by_call_on_a_new_instance() {
    let world = World::new(100).await;
    let (first, others) = world.waiting(|world| vec![world.marking("one"), world.marking("two")]).await;
    world.gate.fail(2..3);
    world.gate.open();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(codes(others).await, ["replayed", "replayed"], "the new instance found them written");
    assert_eq!(world.instances(), 2);
}

/// Only an answer that is sure promises that nothing was done.
#[tokio::test]
async fn a_refusal_after_a_commit_in_doubt_is_no_word_that_nothing_was_done() {
    let world = World::new(100).await;
    let (first, others) = world.waiting(|world| vec![world.marking("one"), world.marking("two")]).await;
    world.gate.fail(2..usize::MAX);
    world.gate.open();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    for code in codes(others).await {
        assert!(["unconfirmed", "Failed"].contains(&code.as_str()), "{code}");
    }
    world.gate.fail(0..0);
    assert_eq!(codes(vec![world.marking("one"), world.marking("two")]).await, ["replayed", "replayed"]);
}

#[tokio::test]
async fn a_call_that_computes_for_ever_is_cut_off_and_the_next_one_is_answered() {
    let world = World::new(100).await;
    let spin = world.call("fail", &json!({ "idempotency_key": "spin", "how": "spin" }));
    assert_eq!(code(&spin.await.unwrap()), "Failed");
    assert_eq!(code(&world.mark("after").await), "fresh");
    assert_eq!(world.instances(), 2, "it was not made again");
}

#[tokio::test]
async fn an_operators_work_takes_its_turn_between_batches() {
    let world = World::new(100).await;
    let (_, (before, swept, after)) = world
        .waiting(|world| {
            let owner = Arc::clone(&world.owner);
            let before = world.marking("before");
            let swept = tokio::spawn(async move { owner.run("maintain", |instance| instance.sweep(1)).await });
            (before, swept, world.marking("after"))
        })
        .await;
    world.gate.open();
    assert_eq!(swept.await.unwrap().unwrap(), 0);
    assert_eq!(codes(vec![before, after]).await, ["fresh", "fresh"]);
    assert_eq!(world.syncs(), 3, "the work parts what would have been one batch");
}

#[tokio::test]
async fn what_was_accepted_before_the_end_is_done_and_what_comes_later_is_refused() {
    let mut world = World::new(100).await;
    let (first, accepted) = world.waiting(|world| vec![world.marking("one"), world.marking("two")]).await;
    world.owner.end();
    world.gate.open();
    world.thread.take().map(JoinHandle::join).unwrap().unwrap();
    assert_eq!(code(&first.await.unwrap()), "fresh");
    assert_eq!(codes(accepted).await, ["fresh", "fresh"]);
    assert_eq!(code(&world.mark("three").await), "Ended");
}
