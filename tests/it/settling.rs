//! What a worker tells with `settle`, and a person with `resolve`: repeated, late, contradicted, and out of bounds.

use crate::harness::*;
use crate::outbox_harness::Move::*;
use crate::outbox_harness::*;
use host_example::Observation;
use host_example::Step::{Lookup, Submit};
use host_example::types::RefusalCode::{InvalidArgument, NotFound, VersionConflict};
use host_example::types::State::*;
use serde_json::json;

const NOBODYS: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn every_observation() -> [Observation; 9] {
    use Observation::{Absent, Cancelled, Throttled};
    [not_sent(), Throttled(7), rejected(), accepted(), finished(), failed(), Cancelled, Absent, unclear()]
}

#[test]
fn settling_twice_is_settling_once() {
    for contract in [NONE, KEYED, ASKED] {
        for seen in every_observation() {
            let mut story = Story::new(contract);
            story.play(&[Get(Submit)]);
            let task = story.tasks[0].clone();
            let first = story.client.settle(&task, &seen);
            let before = story.world.outbox();
            assert_eq!(story.client.settle(&task, &seen), first, "{seen:?}");
            story.world.clock.advance(DAY);
            assert_eq!(story.world.client().settle(&task, &seen), first, "{seen:?}");
            assert_eq!(story.world.outbox(), before, "{seen:?}");
        }
    }
}

/// What it told first is not what it must stay with.
#[test]
fn a_worker_that_learns_more_after_it_has_settled_is_heard() {
    for (contract, first, between, then) in [
        (KEYED, unclear(), Running, Succeeded),
        (NONE, unclear(), OutcomeUnknown, Succeeded),
        (NONE, not_sent(), Accepted, Succeeded),
        (NONE, Observation::Throttled(5), Accepted, Succeeded),
        (NONE, rejected(), Failed, Failed),
    ] {
        Story::new(contract).play(&[Get(Submit), See(first, between), See(finished(), then), Later(HOUR), Idle]);
    }
}

/// The lease is over, and nobody else has taken it.
#[test]
fn a_late_worker_is_heard_as_long_as_no_other_was_asked() {
    for (seen, state) in [(finished(), Succeeded), (rejected(), Failed), (not_sent(), Accepted), (failed(), Failed)] {
        Story::new(NONE).play(&[Get(Submit), Later(LEASE + HOUR), See(seen, state)]);
    }
    Story::new(KEYED).play(&[Get(Submit), Later(LEASE), See(unclear(), Running), Due, Get(Submit)]);
}

/// D3, incident 7: what an old attempt did, it did; what it did not, others may have done since.
#[test]
fn of_an_attempt_that_was_given_up_only_what_happened_counts() {
    let given_up = [Get(Submit), Later(LEASE), Get(Submit)];
    for (seen, state) in [
        (finished(), Succeeded),
        (failed(), Failed),
        (Observation::Cancelled, Cancelled),
        (accepted(), Running),
        (not_sent(), Running),
        (Observation::Throttled(60_000), Running),
        (rejected(), Running),
        (Observation::Absent, Running),
        (unclear(), Running),
    ] {
        let mut story = Story::new(KEYED);
        story.play(&given_up).play(&[Late(0, seen.clone(), state)]);
        let now = story.now();
        assert_eq!(now["attempts"], 2, "{seen:?}");
        if state == Running {
            // The other still has it in hand, and is the one who is believed.
            assert_eq!(story.world.db.sql("SELECT attempt_id FROM operations"), story.tasks[1].attempt_id);
            story.play(&[Idle, See(not_sent(), Running)]);
            assert_eq!(story.now()["attempts"], 1, "{seen:?}: the first may have been taken");
            story.play(&[Due, Get(Submit), See(finished(), Succeeded)]);
        } else {
            story.play(&[See(unclear(), state), Late(0, unclear(), state), Later(DAY), Idle]);
        }
        assert_eq!(story.tasks.iter().filter(|task| task.step == Submit).count(), story.tasks.len());
    }
}

/// D5: evidence counts whenever it comes, and the absence of it does not.
#[test]
fn late_evidence_settles_an_unknown_outcome() {
    for (seen, state) in [
        (finished(), Succeeded),
        (failed(), Failed),
        (Observation::Cancelled, Cancelled),
        (accepted(), OutcomeUnknown),
        (not_sent(), OutcomeUnknown),
        (rejected(), OutcomeUnknown),
        (Observation::Absent, OutcomeUnknown),
        (unclear(), OutcomeUnknown),
    ] {
        let mut story = Story::new(NONE);
        story.play(&[
            Get(Submit),
            Later(LEASE),
            Idle,
            Is(OutcomeUnknown),
            Later(DAY),
            Late(0, seen.clone(), state),
            Idle,
        ]);
        let names_it = matches!(seen, Observation::Finished(_) | Observation::Accepted(_));
        assert_eq!(story.now()["resource_id"], if names_it { json!("d-1") } else { json!(null) }, "{seen:?}");
        assert_eq!(story.now()["attempts"], 1);
    }
    // A provider that can be asked goes on being asked, and what it says is final.
    let absent = Observation::Absent;
    for (seen, state) in [(finished(), Succeeded), (failed(), Failed), (absent, Failed), (unclear(), OutcomeUnknown)] {
        let mut story = Story::new(ASKED);
        story.play(&[Get(Submit), Later(DAY), Get(Lookup), See(unclear(), OutcomeUnknown), Due]);
        let waited = story.world.clock.now() - START - DAY;
        assert!((HOUR..=HOUR + 120 * SECOND).contains(&waited), "{waited}");
        story.play(&[Get(Lookup), Is(OutcomeUnknown), See(seen, state)]);
    }
}

#[test]
fn a_final_state_stays_whatever_comes() {
    for (ending, state) in [(finished(), Succeeded), (failed(), Failed), (Observation::Cancelled, Cancelled)] {
        let mut story = Story::new(KEYED);
        story.play(&[Get(Submit), Later(LEASE), Get(Submit), See(ending, state)]);
        let before = story.now();
        for seen in every_observation() {
            story.play(&[Late(0, seen.clone(), state), Late(1, seen, state), Cancel(state)]);
        }
        let other = story.client.resolve(&story.id, state != Succeeded, None);
        assert_refusal(other, VersionConflict, "The operation's outcome is not unknown.");
        assert_eq!(story.now(), before);
        story.play(&[Later(DAY), Idle]);
    }
}

#[test]
fn an_attempt_that_was_never_handed_out_is_not_found() {
    let mut story = Story::new(NONE);
    story.play(&[Get(Submit)]);
    let before = story.world.outbox();
    for id in [NOBODYS, "", "x", story.id.clone().as_str(), "' OR 1 --"] {
        assert_refusal(story.client.try_settle(id, &finished()), NotFound, "There is no such attempt.");
    }
    assert_eq!(story.world.outbox(), before);
}

#[test]
fn a_resources_id_has_1_to_200_characters_and_no_control_character() {
    let message = "resource_id: expected 1 to 200 characters, none of them a control character.";
    let mut story = Story::new(NONE);
    story.play(&[Get(Submit), Later(LEASE), Idle, Is(OutcomeUnknown)]);
    let (id, attempt) = (story.id.clone(), story.tasks[0].attempt_id.clone());
    let before = story.world.outbox();
    for wrong in [String::new(), "é".repeat(201), "a\nb".to_owned(), "\0".to_owned(), "a\u{7f}".to_owned()] {
        for seen in [Observation::Finished(wrong.clone()), Observation::Accepted(wrong.clone())] {
            assert_refusal(story.client.try_settle(&attempt, &seen), InvalidArgument, message);
        }
        assert_refusal(story.client.resolve(&id, true, Some(&wrong)), InvalidArgument, message);
    }
    assert_eq!(story.world.outbox(), before);

    let longest = "é".repeat(200);
    let told = story.client.try_settle(&attempt, &Observation::Finished(longest.clone())).unwrap();
    assert_eq!((told.state, told.resource_id), (Succeeded, Some(longest)));
}

/// The first that was named stays: nobody is sent to look for another.
#[test]
fn a_resources_id_once_known_stays() {
    let mut story = Story::new(KEYED);
    let named = |id: &str| Observation::Finished(id.to_owned());
    story.play(&[Get(Submit), See(accepted(), Running), Due, Get(Submit), See(named("d-2"), Succeeded)]);
    story.play(&[Late(0, named("d-3"), Succeeded)]);
    assert_eq!(story.now()["resource_id"], "d-1");
}

#[test]
fn what_a_worker_says_is_kept_up_to_500_characters() {
    let long = "é".repeat(600);
    for (seen, state, detail) in [
        (Observation::Unclear(long.clone()), OutcomeUnknown, "é".repeat(500)),
        (Observation::NotSent(long.clone()), Accepted, "é".repeat(500)),
        (Observation::Failed(long.clone()), Failed, "é".repeat(500)),
        (Observation::Rejected(long), Failed, format!("The provider refused it: {}", "é".repeat(500))),
    ] {
        let mut story = Story::new(NONE);
        story.play(&[Get(Submit), See(seen, state)]);
        assert_eq!(story.now()["detail"], detail);
    }
}

/// D5.
#[test]
fn a_persons_finding_settles_an_unknown_outcome_for_good() {
    for (happened, named, state, detail) in [
        (true, Some("d-9"), Succeeded, ""),
        (true, None, Succeeded, ""),
        (false, None, Failed, "A person found that it did not happen."),
    ] {
        let mut story = Story::new(ASKED);
        // Also while a worker asks.
        story.play(&[Get(Submit), Later(DAY), Get(Lookup), See(unclear(), OutcomeUnknown), Due, Get(Lookup)]);
        let told = story.client.resolve(&story.id, happened, named).unwrap();
        assert_eq!((told.state, told.resource_id.as_deref(), told.detail.as_str()), (state, named, detail));
        assert_eq!(told.since, story.world.clock.now());

        let before = story.world.outbox();
        story.world.clock.advance(HOUR);
        let again = story.world.client().resolve(&story.id, happened, Some("another")).unwrap();
        assert_eq!(again, told);
        let other = story.client.resolve(&story.id, !happened, None);
        assert_refusal(other, VersionConflict, "The operation's outcome is not unknown.");
        assert_eq!(story.world.outbox(), before);
        story.play(&[See(Observation::Absent, state), Idle, Later(DAY), Idle, Is(state)]);
    }
}

#[test]
fn a_persons_finding_keeps_the_resource_that_the_provider_named() {
    let mut story = Story::new(NONE);
    story.play(&[Get(Submit), See(accepted(), OutcomeUnknown)]);
    let told = story.client.resolve(&story.id, true, None).unwrap();
    assert_eq!((told.state, told.resource_id.as_deref()), (Succeeded, Some("d-1")));
}

/// A person has nothing to say while the machine still knows what to do.
#[test]
fn only_an_unknown_outcome_is_resolved() {
    let message = "The operation's outcome is not unknown.";
    for moves in [
        &[][..],
        &[Get(Submit)],
        &[Get(Submit), See(unclear(), Running)],
        &[Get(Submit), Cancel(CancelRequested)],
        &[Cancel(Cancelled)],
    ] {
        let mut story = Story::new(KEYED);
        story.play(moves);
        let before = story.world.outbox();
        for happened in [true, false] {
            assert_refusal(story.client.resolve(&story.id, happened, None), VersionConflict, message);
        }
        assert_eq!(story.world.outbox(), before);
    }
    let mut story = Story::new(NONE);
    let noted = story.client.call("create_note", &note("n", "hello"));
    for id in [NOBODYS, "", noted["operation_id"].as_str().unwrap()] {
        let absent = story.client.resolve(id, true, None);
        assert_refusal(absent, NotFound, "There is no operation of this id whose effect is outside the database.");
    }
}
