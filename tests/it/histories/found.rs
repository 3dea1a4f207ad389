//! Histories that once found a fault, each by its right value.

use super::judge::{Event, judge};
use super::life;
use super::reference::RULES;
use super::steps::{Attempt, Breaks, Call, Deed, History, Mode, Step, Then};
use crate::outbox_harness::World;

fn agrees(world: &World, history: &History) -> Vec<Event> {
    let events = life::play(world, history, false);
    if let Err(why) = judge(&RULES, &events) {
        panic!("{why}\n{history:#?}");
    }
    events
}

fn create_note(key: &'static str) -> Attempt {
    Attempt::New(0, Call::CreateNote { key, body: "one" })
}

/// C3: where the lock fails, SQLite is asked again and answers. What it reads then is not trusted, and what one call is refused
/// for is no answer to the others: a creation was told that there is no such automation.
#[test]
fn after_storage_failed_no_call_is_answered_what_another_one_was_refused_for() {
    let world = life::world();
    for at in 0..100 {
        let edit = Call::SetInterval { key: "k1", automation: 0, version: None, minutes: 10 };
        let create = Call::CreateAutomation { key: "k1", minutes: 10 };
        let deed = Deed::Calls(vec![Attempt::New(0, edit), Attempt::New(0, create)]);
        let fails = Step::Break { deed, breaks: Breaks::Fails, at, then: Then::GoOn, next: Mode::Same };
        let opens = Step::Do(Deed::Calls(vec![create_note("k1")]));
        let events = agrees(&world, &History { first: Mode::Shared, steps: vec![opens, fails] });
        if at == 0 {
            let Event::Calls { answers: Some(answers), .. } = &events[1] else { panic!("{events:?}") };
            answers.iter().for_each(|answer| assert_eq!(answer["code"], "unavailable"));
        }
    }
}

/// C2: a process died while it removed the journal, the next one saw none, and with the power the journal came back.
#[test]
fn what_is_acknowledged_after_a_process_died_in_a_removal_survives_the_power_cut() {
    let world = life::world();
    for next in [Mode::Sole, Mode::Shared] {
        for at in 0..100 {
            let deed = Deed::Calls(vec![create_note("k1")]);
            let dies = Step::Break { deed, breaks: Breaks::Dies, at, then: Then::Kill, next };
            let acts = Step::Do(Deed::Calls(vec![create_note("k1"), create_note("k2")]));
            agrees(&world, &History { first: Mode::Sole, steps: vec![dies, acts] });
        }
    }
}
