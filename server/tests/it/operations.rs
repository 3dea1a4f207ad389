//! What `counterfoil operations` shows, and what it never does.

use crate::harness::*;
use crate::scripted::{Scripted, answer};
use crate::world::*;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::process::Stdio;
use std::time::Duration;

const NONE: &str = "none";
const HEADINGS: [&str; 8] = ["OPERATION", "TOOL", "CALLER", "STATE", "FOR", "AGE", "ATTEMPTS", "NEXT ACTION"];
const CHECK: &str = "Check at the provider, by this id as client reference, and record it with resolve.";
const EVERY_STATE: &str = "accepted,running,succeeded,failed,cancel_requested,cancelled,outcome_unknown";

impl World {
    fn operations(&self, arguments: &[&str]) -> String {
        let ran = self.run(&[&["operations"], arguments].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        ran.stdout
    }

    fn listed(&self, arguments: &[&str]) -> Vec<Value> {
        serde_json::from_str(&self.operations(&[arguments, &["--format", "json"]].concat())).unwrap()
    }

    /// The ids of those in these states.
    fn ids(&self, arguments: &[&str]) -> Vec<String> {
        self.listed(arguments).iter().map(|line| line["operation_id"].as_str().unwrap().to_owned()).collect()
    }

    /// An operation for each state, in the order of [`EVERY_STATE`].
    fn one_in_each_state(&self) -> Vec<String> {
        let ids: Vec<_> = EVERY_STATE.split(',').map(|state| self.deploy(state)).collect();
        for (id, state) in ids.iter().zip(EVERY_STATE.split(',')) {
            let state = state.replace('_', "-");
            self.edit(&format!("UPDATE operations SET state = '{state}' WHERE operation_id = '{id}'"));
        }
        ids
    }
}

fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// F4: not what callers asked for, nor under which keys, nor what a provider said.
#[test]
fn neither_requests_nor_keys_nor_what_a_provider_said_are_shown() {
    let world = World::new();
    // What it runs it never ends, and of what it loses nobody can say whether it was taken.
    let provider = Scripted::start(|_, request| {
        let is = |revision: &str| request.body.contains(revision);
        match () {
            () if is("secret-fails") => {
                answer("200 OK", "", r#"{"id":"secret-id","state":"failed","detail":"secret-detail"}"#)
            }
            () if is("secret-runs") => answer("200 OK", "", r#"{"id":"secret-id","state":"running"}"#),
            () => answer("500 Internal Server Error", "", "secret-error"),
        }
    });
    let start = |revision: &str| {
        let key = format!("secret-key-{revision}");
        let request = json!({ "idempotency_key": key, "service": "secret-service", "revision": revision });
        world.call("start_deployment", &request).reply()["operation_id"].as_str().unwrap().to_owned()
    };
    let ids = ["secret-fails", "secret-runs", "secret-lost"].map(start);
    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    let waiting = start("secret-waits");

    // The database has it, and whoever may read is told of it.
    let [failed, runs, lost] = ids.each_ref().map(|id| world.operation(id));
    assert_eq!(failed["detail"], "secret-detail");
    assert!(runs["next_action"].as_str().unwrap().contains("secret-id"), "{runs}");
    let key = world.text("SELECT provider_key FROM operations WHERE operation_id = ?1", [&ids[2]]);
    assert!(lost["next_action"].as_str().unwrap().contains(&key), "{lost}");
    for format in ["table", "json"] {
        let ran = world.run(&["operations", "--all", "--format", format]);

        assert_eq!(ran.code, 0, "{}", ran.stderr);
        for id in ids.iter().chain([&waiting]) {
            assert!(ran.stdout.contains(id.as_str()), "{}", ran.stdout);
        }
        for hidden in ["secret", key.as_str()] {
            assert!(!ran.stdout.contains(hidden) && !ran.stderr.contains(hidden), "{hidden}: {ran:?}");
        }
    }
    let states: Vec<_> = world.listed(&["--all"]).iter().map(|line| line["state"].clone()).collect();
    assert_eq!(states, ["failed", "outcome_unknown", "outcome_unknown", "accepted"]);
}

#[test]
fn json_tells_whose_each_operation_is_since_when_and_what_to_do() {
    let (world, provider) = (World::new(), Provider::start(&["--contract", NONE, "--faults", "drop-after"]));
    let unknown = world.call("start_deployment", &deployment("k", "r1")).reply();
    let id = unknown["operation_id"].as_str().unwrap();
    assert_eq!(world.work_once(&provider.url(), NONE).code, 0);
    let now = world.operation(id);
    let waiting = world.call("start_deployment", &deployment("k2", "r1")).reply();

    let text = world.operations(&["--format", "json"]);

    let listed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        listed,
        json!([
            {
                "operation_id": id,
                "tool": "start_deployment",
                "workspace": "acme",
                "subject": "ada",
                "started_at": unknown["committed_at"],
                "state": "outcome_unknown",
                "since": now["since"],
                "attempts": 1,
                "next_action": CHECK,
            },
            {
                "operation_id": waiting["operation_id"],
                "tool": "start_deployment",
                "workspace": "acme",
                "subject": "ada",
                "started_at": waiting["committed_at"],
                "state": "accepted",
                "since": waiting["committed_at"],
                "attempts": 0,
                "next_action": "None: a worker sends it.",
            },
        ])
    );
    assert_ne!(unknown["committed_at"], now["since"]);
    assert_eq!(text.lines().count(), 2, "an object a line: {text}");
}

#[test]
fn the_table_tells_for_how_long_each_operation_is_in_its_state_and_how_old_it_is() {
    let world = World::new();
    let id = world.deploy("k");
    world.edit("UPDATE operations SET state = 'outcome-unknown', since = since - 3600000, attempts = 2");
    // A name may be anything that a host allows.
    world.edit("UPDATE receipts SET committed_at = committed_at - 172800000, subject = 'a' || char(10, 27) || 'b'");

    let text = world.operations(&[]);

    let lines: Vec<_> = text.lines().map(cells).collect();
    assert_eq!((lines.len(), &lines[0][..]), (2, &HEADINGS[..]), "{text}");
    let [operation, tool, caller, state, in_state, age, attempts, next] = lines[1][..] else { panic!("{text}") };
    assert_eq!((operation, tool, caller), (id.as_str(), "start_deployment", "a\u{fffd}\u{fffd}b@acme"));
    assert_eq!((state, attempts, next), ("outcome_unknown", "2", CHECK));
    for (shown, seconds) in [(in_state, 3600), (age, 172_800)] {
        let shown = humantime::parse_duration(shown).unwrap();
        assert_eq!(shown.subsec_nanos(), 0, "whole seconds");
        assert!((Duration::from_secs(seconds)..Duration::from_secs(seconds + 60)).contains(&shown), "{shown:?}");
    }
}

#[test]
fn those_that_are_unfinished_are_shown_unless_states_are_named() {
    let world = World::new();
    let ids = world.one_in_each_state();
    let of = |places: &[usize]| places.iter().map(|place| ids[*place].clone()).collect::<Vec<_>>();

    for (arguments, places) in [
        (&[][..], &[0, 1, 4, 6][..]),
        (&["--all"], &[0, 1, 2, 3, 4, 5, 6]),
        (&["--state", EVERY_STATE], &[0, 1, 2, 3, 4, 5, 6]),
        (&["--state", "failed"], &[3]),
        // The oldest first, however they are named.
        (&["--state", "cancel_requested,succeeded"], &[2, 4]),
        (&["--state", "outcome_unknown", "--state", "accepted,accepted"], &[0, 6]),
    ] {
        assert_eq!(world.ids(arguments), of(places), "{arguments:?}");
    }
    for arguments in [&["--state", "fail"][..], &["--state", ""], &["--state", "failed", "--all"]] {
        let ran = world.run(&[&["operations"], arguments].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
    }
    let ran = world.run(&["operations", "--state", "cancel-requested"]);
    assert!(ran.stderr.contains("cancel_requested, cancelled, outcome_unknown"), "{}", ran.stderr);
}

#[test]
fn where_there_is_nothing_to_show_the_table_says_so_and_the_array_is_empty() {
    let world = World::new();
    let ran = world.run(&["operations"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no such database") && !world.path().exists(), "{}", ran.stderr);
    assert_eq!(world.call("create_note", &note("k", "hello")).code, 0);
    world.deploy("k");

    for (arguments, says) in [
        (&["--state", "failed"][..], "No operation is failed.\n"),
        (&["--state", "running,cancelled"], "No operation is running or cancelled.\n"),
    ] {
        assert_eq!(world.operations(arguments), says);
        assert_eq!(world.operations(&[arguments, &["--format", "json"]].concat()), "[]\n");
    }
    world.edit("UPDATE operations SET state = 'succeeded'");
    let unfinished = "No operation is accepted or running or cancel_requested or outcome_unknown.\n";
    assert_eq!(world.operations(&[]), unfinished);
    assert_eq!(world.ids(&["--all"]).len(), 1);
    world.edit("DELETE FROM operations");
    assert_eq!(world.operations(&["--all"]), "There is no operation.\n");
}

/// As `counterfoil operations | head` has it.
#[test]
fn a_list_whose_reader_goes_away_ends_and_one_that_cannot_be_written_is_a_failure() {
    let world = World::new();
    world.deploy("k");
    for format in ["table", "json"] {
        let run = |stdout: Stdio| {
            let output = world.program(&["operations", "--format", format]).stdout(stdout).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()));
        let (code, error) = run(File::options().write(true).open("/dev/full").unwrap().into());
        assert_eq!(code, Some(1));
        assert!(error.starts_with("error: stdout does not take the list: "), "{error}");
    }
}

/// Read 500 at a time: more than two pages, and as many as just fill two.
#[test]
fn more_than_a_page_is_shown_whole_and_in_order() {
    let world = World::new();
    let ids = world.deploy_many(1100);
    let every_third: Vec<_> = ids.iter().step_by(3).map(|id| format!("'{id}'")).collect();
    world.edit(&format!("UPDATE operations SET state = 'failed' WHERE operation_id IN ({})", every_third.join(",")));
    let accepted: Vec<_> = (0..1100).filter(|number| number % 3 != 0).map(|number| ids[number].clone()).collect();

    assert_eq!(world.ids(&["--all"]), ids);
    assert_eq!(world.ids(&["--state", "failed,accepted"]), ids);
    assert_eq!(world.ids(&["--state", "accepted"]), accepted);
    world.edit(
        "UPDATE operations SET state = 'succeeded' WHERE operation_id IN (
                  SELECT operation_id FROM operations ORDER BY operation_id DESC LIMIT 100)",
    );
    for (arguments, shown, headings) in
        [(&["--all"][..], &ids[..], 3), (&["--state", "accepted,failed"], &ids[..1000], 2)]
    {
        assert_eq!(world.ids(arguments), shown);
        let text = world.operations(arguments);
        let (named, lines): (Vec<_>, Vec<_>) = text.lines().map(cells).partition(|cells| cells[..] == HEADINGS);
        assert_eq!(named.len(), headings);
        assert_eq!(lines.iter().map(|cells| cells[0]).collect::<Vec<_>>(), shown);
    }
}
