//! The owner of a component that means harm. What such a component does beside is seen in `tests/it/hostile.rs` of the workspace.

use super::*;

#[tokio::test]
async fn a_hostile_component_costs_its_own_calls_and_the_next_one_is_answered() {
    static HOST: OnceLock<Host> = OnceLock::new();
    let host = HOST.get_or_init(|| load("hostile"));
    let world = World::of(host, 100);
    for tool in ["exit", "callers", "sync", "sleep_again", "open", "read_much", "long_reply"] {
        let harm = world.call(tool, &json!({})).await.unwrap();
        assert_eq!(code(&harm), "Failed", "{tool}");
        assert_eq!(code(&world.call("answer", &json!({})).await.unwrap()), "fresh", "{tool}");
    }
}
