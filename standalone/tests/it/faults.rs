//! Each call to the file system fails, one at a time: a refusal, one effect or none, and the next instance goes on.

use crate::harness::*;
use crate::host::{Counted, Plan, World};
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;

/// Two notes by one instance, of whose calls to the file system one fails; then by another. Returns whether the first came
/// so far.
fn fail_at(world: &World, at: u64, error: ErrorCode) -> Result<bool, String> {
    let world = copy(world);
    let notes = [("key-a", "first"), ("key-b", "second")];
    let mut client = Client::with(&world, Counted::All, Plan::Fail(at, error));
    let answers = notes.map(|(key, body)| client.note(key, body));
    let came_so_far = client.store.data().calls >= at;
    let mut next = Client::new(&world);
    for ((key, body), answer) in notes.into_iter().zip(answers) {
        let again = next.note(key, body);
        let is_known = ["busy", "unavailable", "unconfirmed"].iter().any(|code| answer["code"] == *code);
        let is_kept = answer["status"] == "succeeded" && again["operation_id"] == answer["operation_id"];
        if !is_known && !is_kept {
            return Err(format!("{key} was answered {answer}, and then {again}"));
        }
        // What was refused for good reason, and not as unconfirmed, did nothing.
        let is_denied = answer["code"] == "busy" || answer["code"] == "unavailable";
        if again["status"] != "succeeded" || is_denied && again["replayed"] == true {
            return Err(format!("{key} was answered {answer}, and then {again}"));
        }
    }
    match next.verify() {
        wrong if wrong.is_empty() => Ok(came_so_far),
        wrong => Err(format!("{wrong:?}")),
    }
}

/// How many calls were made to fail.
#[track_caller]
fn fail_everywhere(world: &World, error: ErrorCode) -> u64 {
    for at in 1.. {
        match fail_at(world, at, error) {
            Ok(true) => {}
            Ok(false) => return at,
            Err(wrong) => panic!("{error:?} at call {at}: {wrong}"),
        }
    }
    0
}

const ERRORS: [ErrorCode; 3] = [ErrorCode::Io, ErrorCode::InsufficientSpace, ErrorCode::Access];

#[test]
fn a_call_to_the_file_system_that_fails_is_a_refusal_and_no_half_effect() {
    for error in ERRORS {
        assert!(fail_everywhere(&World::new(crate::disk::Disk::new()), error) > 150);
        assert!(fail_everywhere(&old_world(), error) > 150);
    }
}

/// The owner before died in each of the changes that follow the journal's first.
#[test]
fn a_takeover_of_which_a_call_fails_is_made_again_by_the_next() {
    for killed_at in [20, 26, 32, 38] {
        let world = old_world();
        let mut owner = Client::with(&world, Counted::Changes, Plan::Kill(killed_at));
        assert!(owner.try_call("create_note", note("key-0b", "killed")).is_err(), "{killed_at}");
        for error in ERRORS {
            assert!(fail_everywhere(&world, error) > 200);
        }
    }
}
