//! What a caller gets wrong is refused in a message that names it, and changes nothing.

use crate::harness::*;
use host_example::Invocation;
use serde_json::{Value, json};

/// Expects that each of the arguments is refused in a message that has all of the words, and changes nothing. All name
/// the key `k`: at the end it is used for the first time, so none of the refusals reserved it.
#[track_caller]
fn refuses(tool: &str, words: &[&str], wrong: impl IntoIterator<Item = String>) {
    let db = Database::new();
    let mut client = db.shared();
    let there = client.call("create_automation", &automation("there", 5));
    for arguments in wrong {
        let reply = client.call_text(tool, &arguments);
        assert_refused(&reply, "invalid_argument");
        assert_eq!(reply["retryable"], false);
        let message = reply["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{arguments:.200}: no {word:?} in: {message}");
        }
        assert!(message.chars().count() < 600, "{} characters: {message}", message.chars().count());
        assert_eq!(counts(&db), ["0", "1", "1"], "{arguments:.200}");
    }
    match tool {
        "create_note" => assert_fresh(&client.call(tool, &note("k", "hello"))),
        "create_automation" => assert_fresh(&client.call(tool, &automation("k", 5))),
        "set_interval" => assert_fresh(&client.call(tool, &interval("k", &there, 1, 6))),
        _ => return,
    }
    assert_eq!(db.count("receipts"), "2");
}

/// The template with each of the values, which stand apart by spaces, in the place of `?`.
fn fill(template: &str, values: &str) -> Vec<String> {
    values.split(' ').map(|value| template.replace('?', value)).collect()
}

const NOTE: &str = r#"{"idempotency_key":"k","body":?}"#;
const AUTOMATION: &str = r#"{"idempotency_key":"k","interval_minutes":?}"#;
const NO_JSON: &str = "The arguments cannot be read as JSON: ";
const MINUTES: &[&str] = &["interval_minutes: ", "expected an integer from 5 to 1440"];
const KEY: &[&str] = &["idempotency_key: ", "expected a key of 1 to 128 of A-Z a-z 0-9 _ -"];
const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[test]
fn a_body_is_text_of_1_to_10000_characters_without_nul() {
    let body: &[&str] = &["body: ", "expected text of 1 to 10000 characters without NUL"];
    let length: &[&str] = &["body: ", "a string of 10001 characters, expected text of 1 to 10000 characters"];
    let long = ["a", "é", "🦀"].map(|character| NOTE.replace('?', &json!(character.repeat(10_001)).to_string()));
    refuses("create_note", body, fill(NOTE, r#"5 5.5 -1 null true [] ["a"] {} {"a":"b"} "" "a\u0000b" "\u0000""#));
    refuses("create_note", length, long);
}

#[test]
fn a_field_that_is_missing_or_unknown_or_there_twice_is_named() {
    let and = r#"{"idempotency_key":"k","body":"a",?}"#;
    let unknown = |name| ["unknown field", name, "expected `idempotency_key` or `body`"];
    refuses("create_note", &["missing field `body`"], fill("?", r#"{"idempotency_key":"k"}"#));
    refuses("create_note", &["missing field `idempotency_key`"], fill("?", r#"{"body":"a"} {}"#));
    refuses("create_note", &unknown("`title`"), fill(and, r#""title":"b" "title":null"#));
    refuses("create_note", &unknown("`workspace`"), fill(and, r#""workspace":"other""#));
    refuses("create_note", &unknown("`Body`"), fill(and, r#""Body":"b""#));
    refuses("create_note", &["duplicate field `body`"], fill(and, r#""body":"b" "body":"a" "b\u006fdy":"b""#));
    refuses("create_note", &["duplicate field `idempotency_key`"], fill(and, r#""idempotency_key":"k""#));
}

#[test]
fn a_key_is_1_to_128_of_the_characters_named() {
    let template = r#"{"idempotency_key":?,"body":"hello"}"#;
    let wrong = r#""" "é" "Ａ" "a/b" "a.b" "a:b" "a\u0020b" "\u0020a" "a\n" "a\nb" "a\u0000" 5 null true ["k"] {}"#;
    refuses("create_note", KEY, fill(template, wrong));
    refuses("create_note", KEY, [note(&"k".repeat(129), "hello").to_string()]);

    let db = Database::new();
    let mut client = db.shared();
    for key in ["k", &"k".repeat(128), "Az09_-"] {
        assert_fresh(&client.call("create_note", &note(key, "hello")));
    }
    assert_eq!(counts(&db), ["3", "0", "3"]);
}

#[test]
fn an_interval_is_an_integer_from_5_to_1440() {
    let small = "4 1441 0 -1 -5 -0.0 5.5 4.999 30.0000001 1440.5 4294967296 4294967301 1e-400";
    let large = "18446744073709551616 18446744073709551621 -9223372036854775809 1e300 -1e300";
    let others = r#""30" "" null true false [30] [] {} {"minutes":30}"#;
    for wrong in [small, large, others] {
        refuses("create_automation", MINUTES, fill(AUTOMATION, wrong));
    }
}

#[test]
fn a_number_too_large_for_any_type_is_refused_with_what_is_allowed() {
    refuses("create_automation", MINUTES, fill(AUTOMATION, "1e400 -1e400"));
    refuses("create_automation", MINUTES, fill(AUTOMATION, &"9".repeat(60_000)));
}

#[test]
fn an_edit_takes_an_id_and_a_version_from_1() {
    let id = r#"{"idempotency_key":"k","automation_id":?,"expected_version":1,"interval_minutes":6}"#;
    let bad_ids = r#""" "1" 5 null true [] {} "01890a5d-ac96-774b-bcce-b302099a805" "a/../b""#;
    refuses("set_interval", &["automation_id: ", "expected an id, such as 0"], fill(id, bad_ids));

    let version = r#"{"idempotency_key":"k","automation_id":"ID","expected_version":?,"interval_minutes":6}"#;
    let bad_versions = r#"0 -1 1.5 4294967295 4294967296 18446744073709551616 "1" null true [1] {}"#;
    let words = ["expected_version: ", "expected an integer from 1 to 4294967294"];
    refuses("set_interval", &words, fill(&version.replace("ID", ID), bad_versions));
}

#[test]
fn a_reading_tool_refuses_what_is_no_id_and_what_it_does_not_know() {
    let with_key = format!(r#"{{"note_id":"{ID}","idempotency_key":"k"}}"#);
    refuses("get_note", &["note_id: ", "expected an id, such as 0"], fill(r#"{"note_id":?}"#, r#""x" "" 7 null"#));
    refuses("get_note", &["missing field `note_id`"], fill("?", "{}"));
    refuses("get_note", &["unknown field `idempotency_key`", "expected `note_id`"], [with_key]);

    let tool = r#"{"tool":?,"idempotency_key":"k"}"#;
    let key = r#"{"tool":"create_note","idempotency_key":?}"#;
    refuses("find_operation", &["tool: ", "expected text of 1 to 128 characters"], fill(tool, r#""" 5 null"#));
    refuses("find_operation", &["tool: no tool of this name takes a key"], fill(tool, r#""get_note" "other""#));
    refuses("find_operation", KEY, fill(key, r#""" "a/b" 5"#));
}

#[test]
fn text_that_is_no_json_is_refused_and_the_field_named() {
    refuses(
        "create_note",
        &[NO_JSON, "body: ", "hex escape"],
        fill(NOTE, r#""\ud800" "\ud800x" "\ud800\ud800" "\udc00""#),
    );
    refuses("create_note", &[NO_JSON, "body: ", "invalid escape"], fill(NOTE, r#""\x41" "\u00g0" "\'""#));
    refuses("create_note", &[NO_JSON, "body: ", "control character"], fill(NOTE, "\"a\0\" \"a\nb\""));
    refuses("create_note", &[NO_JSON, "body: ", "EOF"], fill("?", r#"{"idempotency_key":"k","body":"a"#));
    refuses("create_note", &[NO_JSON, "body: ", "expected value"], fill(NOTE, "'a' NaN"));
    refuses("create_note", &[NO_JSON, "body: ", "expected ident"], fill(NOTE, "nul tru"));
}

#[test]
fn arguments_are_one_json_object_and_nothing_after_it() {
    let good = r#"{"idempotency_key":"k","body":"a"}"#;
    let no_object = ["", " ", "\n", "\0", r#"["k","a"]"#, r#""k""#, "5", "null", "\u{feff}{}", "\u{a0}{}", "}"];
    refuses("create_note", &["The arguments are not a JSON object."], no_object.map(str::to_owned));
    refuses("create_note", &["The arguments are not a JSON object."], [format!("[{good}]")]);
    refuses(
        "create_note",
        &[NO_JSON, "trailing characters", "column 35"],
        fill(&format!("{good}?"), "x , } ] {} \0 null"),
    );
    refuses("create_note", &[NO_JSON, "trailing comma"], [good.replace('}', ",}")]);
    refuses("create_note", &[NO_JSON, "key must be a string"], fill("?", r#"{idempotency_key:"k"}"#));
    refuses("create_note", &[NO_JSON, "EOF", "line 1 column 1"], fill("?", "{"));
}

#[test]
fn deep_and_long_arguments_are_refused_in_a_short_message() {
    let size: &[&str] = &["at most 65536 are allowed."];
    let unknown = r#"{"idempotency_key":"k","?":"a"}"#;
    let (brackets, braces) = ("[".repeat(60_000), r#"{"a":"#.repeat(10_000));
    refuses("create_note", size, fill(NOTE, &"[".repeat(100_000)));
    refuses("create_note", size, ["[".repeat(100_000), r#"{"a":"#.repeat(100_000)]);
    refuses("create_note", size, fill(NOTE, &json!("a".repeat(10_000_000)).to_string()));
    refuses("create_note", &["body: "], fill(NOTE, &format!("{brackets} {braces} {}", "9".repeat(60_000))));
    refuses("create_note", &["The arguments are not a JSON object."], [brackets.clone()]);
    refuses("create_note", &["unknown field `a`"], [braces]);
    refuses("create_note", &["unknown field"], [unknown.replace('?', &"é".repeat(30_000))]);
    refuses("create_note", &["unknown field"], [unknown.replace('?', &r"\\".repeat(30_000))]);
    refuses("create_automation", MINUTES, fill(AUTOMATION, &brackets));
}

#[test]
fn an_unknown_field_of_a_long_name_is_refused_with_what_is_allowed() {
    let long = format!(r#"{{"idempotency_key":"k","body":"a","{}":"b"}}"#, "x".repeat(1000));
    refuses("create_note", &["unknown field `xxx", "expected `idempotency_key` or `body`"], [long]);
}

#[test]
fn arguments_may_have_65536_bytes_and_not_one_more() {
    let db = Database::new();
    let mut client = db.shared();
    let json = note("k", "hello").to_string();
    let padded = |length: usize| format!("{json}{}", " ".repeat(length - json.len()));

    let long = client.call_text("create_note", &padded(65_537));
    let fits = client.call_text("create_note", &padded(65_536));

    assert_refused(&long, "invalid_argument");
    assert_eq!(long["message"], "The arguments have 65537 bytes; at most 65536 are allowed.");
    assert_fresh(&fits);
    assert_eq!(counts(&db), ["1", "0", "1"]);
}

#[test]
fn a_body_may_have_10000_characters_however_many_bytes_they_are() {
    let db = Database::new();
    let mut client = db.shared();
    for (key, body) in [("one", "a"), ("two", "é"), ("four", "🦀")].map(|(key, one)| (key, one.repeat(10_000))) {
        let created = client.call("create_note", &note(key, &body));
        let read = client.call("get_note", &json!({ "note_id": created["note_id"] }));

        assert_fresh(&created);
        assert_eq!(read["body"], body);
    }
    assert_eq!(counts(&db), ["3", "0", "3"]);
}

#[test]
fn a_number_is_compared_by_its_value_and_not_by_how_it_was_written() {
    let db = Database::new();
    let mut client = db.shared();
    let mut call = |minutes: &str| {
        let arguments = format!(r#"{{"idempotency_key":"k","interval_minutes":{minutes}}}"#);
        client.call_text("create_automation", &arguments)
    };

    let first = call("30.0");
    let others = ["30", "3e1", "300e-1", "30.000"].map(&mut call);
    let unequal = call("31.0");

    assert_eq!(first["interval_minutes"], json!(30));
    for other in &others {
        assert_replay_of(&first, other);
    }
    assert_refused(&unequal, "key_conflict");
    assert_eq!(counts(&db), ["0", "1", "1"]);
}

#[test]
fn an_unknown_tool_is_refused_and_its_name_not_repeated() {
    let db = Database::new();
    let mut client = db.shared();
    let long = "x".repeat(1_000_000);
    for tool in ["", "delete_note", "CREATE_NOTE", "create-note", "create_note ", "create_note\0", &long] {
        let reply = client.call(tool, &note("k", "hello"));

        assert_refused(&reply, "invalid_argument");
        assert_eq!(reply["message"], "There is no tool of this name.");
    }
    assert!(!db.path().exists(), "the database was not even opened");
    assert_fresh(&client.call("create_note", &note("k", "hello")));
}

#[test]
fn a_caller_without_name_or_permission_is_denied_before_the_arguments_are_looked_at() {
    let db = Database::new();
    let mut client = db.shared();
    let reader = principal("ada@acme", &["read"]);
    let writer = principal("ada@acme", &["write-notes"]);
    let huge = "[".repeat(1_000_000);
    for arguments in [&note("k", "hello").to_string(), r#"{"body":""}"#, "", "{", huge.as_str()] {
        for (caller, tool, message) in [
            (None, "create_note", "The host named no caller."),
            (None, "no_such_tool", "The host named no caller."),
            (Some(&reader), "create_note", "The caller lacks the permission write-notes."),
            (Some(&reader), "create_automation", "The caller lacks the permission write-automations."),
            (Some(&reader), "set_interval", "The caller lacks the permission write-automations."),
            (Some(&writer), "get_note", "The caller lacks the permission read."),
            (Some(&writer), "get_operation", "The caller lacks the permission read."),
        ] {
            let reply = client.caller(caller.cloned()).call_text(tool, arguments);

            assert_refused(&reply, "denied");
            assert_eq!(reply["message"], message);
        }
    }
    assert!(!db.path().exists(), "the database was not even opened");
    assert_fresh(&client.caller(ada()).call("create_note", &note("k", "hello")));
}

#[test]
fn one_bad_call_in_a_batch_does_not_harm_the_others() {
    let bad = [
        ("create_note", r#"{"idempotency_key":"k","body":5}"#.to_owned()),
        ("create_note", r#"{"idempotency_key":"k","body":"\ud800"}"#.to_owned()),
        ("create_note", "[".repeat(100_000)),
        ("create_automation", r#"{"idempotency_key":"k","interval_minutes":4}"#.to_owned()),
        ("no_such_tool", String::new()),
    ];
    for (tool, arguments) in bad {
        let db = Database::new();
        let mut client = db.shared();
        let call = |tool: &str, arguments: &str| Invocation { tool: tool.into(), arguments: arguments.into() };
        let before = call("create_note", &note("before", "hello").to_string());
        let after = call("create_note", &note("after", "hello").to_string());

        let replies = client.instance.call(&[before, call(tool, &arguments), after]).unwrap();
        let replies: Vec<Value> = replies.iter().map(|reply| serde_json::from_str(&reply.body).unwrap()).collect();

        assert_fresh(&replies[0]);
        assert_refused(&replies[1], "invalid_argument");
        assert_fresh(&replies[2]);
        assert_eq!(counts(&db), ["2", "0", "2"]);
        assert_fresh(&client.call("create_note", &note("k", "hello")));
    }
}
