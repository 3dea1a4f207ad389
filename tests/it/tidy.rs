//! What no compiler checks, read from the repository's own files.
//!
//! Words that must not be found are written here in two pieces, so that this file does not find itself.

use counterfoil::engine::listing::MAX_PAGE;
use counterfoil::engine::outbox::{LEASE_MS, MAX_CLAIM, MAX_DETAIL, MAX_RESOURCE_ID};
use counterfoil::engine::retention::MAX_SWEEP;
use counterfoil::engine::{MAX_BATCH, receipts::MAX_RESULT};
use counterfoil::{arguments, settings, tools};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VFS: &str = "src/storage/vfs.rs";

/// The text files that git tracks or would, each with its path from the root. Without git, those in the folder.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let git =
        Command::new("git").args(["-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).output();
    let mut paths = Vec::new();
    match git {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            let list = String::from_utf8(output.stdout).unwrap();
            paths.extend(list.split_terminator('\0').map(str::to_owned));
        }
        _ => walk(Path::new(ROOT), &mut paths),
    }
    paths.retain(|path| endings.iter().any(|ending| path.ends_with(ending)));
    let read = |path: String| fs::read_to_string(Path::new(ROOT).join(&path)).ok().map(|text| (path, text));
    let files: Vec<_> = paths.into_iter().filter_map(read).collect();
    assert!(!files.is_empty(), "no {endings:?} in {ROOT}");
    files
}

fn walk(folder: &Path, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let is_built = path.ends_with("target") || entry.file_name().to_string_lossy().starts_with('.');
        if path.is_dir() && !is_built {
            walk(&path, paths);
        } else if path.is_file() {
            paths.push(path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned());
        }
    }
}

const PROSE: &[&str] = &[".rs", ".md", ".wit", ".toml", ".sql", ".py", ".mjs", ".sh"];

/// Every line that is found, as `path:number: line`.
fn lines(endings: &[&str], is_found: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files(endings) {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_found(&path, line)) {
            found.push(format!("{path}:{number}: {}", line.trim()));
        }
    }
    found
}

#[track_caller]
fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    line.to_lowercase().split(|character| !is_part(character)).any(|found| found == word)
}

#[test]
fn no_rust_file_has_more_than_400_lines() {
    let long: Vec<_> = files(&[".rs"])
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, count)| *count > 400)
        .map(|(path, count)| format!("{path} has {count} lines"))
        .collect();
    assert_none(&long);
}

const UNCHECKED: &str = concat!("un", "safe");

#[test]
fn code_that_the_compiler_cannot_check_is_in_one_file() {
    assert_none(&lines(&[".rs"], |path, line| path != VFS && !is_comment(line) && has_word(line, UNCHECKED)));
}

#[test]
fn every_block_that_the_compiler_cannot_check_says_why_it_is_sound() {
    let text = fs::read_to_string(Path::new(ROOT).join(VFS)).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let mut checked = 0;
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        // SQLite's callbacks are covered by the argument at the head of the file.
        if is_comment(line) || !has_word(line, UNCHECKED) || line.contains(&format!("{UNCHECKED} extern \"C\" fn")) {
            continue;
        }
        checked += 1;
        let nearby = &lines[number.saturating_sub(3)..=number];
        let docs = lines[..number].iter().rev().take_while(|line| line.starts_with("///"));
        let is_function = line.contains(&format!("{UNCHECKED} fn"));
        let says_why = nearby.iter().any(|line| line.contains("// SAFETY: "))
            || is_function && docs.into_iter().any(|line| line.contains("# Safety"));
        if !says_why {
            found.push(format!("{VFS}:{}: {line}", number + 1));
        }
    }
    assert!(checked > 10, "only {checked} found");
    assert_none(&found);
}

#[test]
fn nothing_is_left_undone() {
    let words = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!"), concat!("#[ig", "nore")];
    assert_none(&lines(&[".rs"], |_, line| words.iter().any(|word| line.contains(word))));
}

/// Where the product may panic, and why it never does.
const CANNOT_PANIC: [(&str, &str, &str); 4] = [
    (
        "src/engine/receipts.rs",
        r#"serde_json::to_string(arguments).expect("a tool's arguments are written as JSON")"#,
        "fails for maps with keys that are no strings alone, which is a bug of the tool's author and documented so",
    ),
    (
        "src/reply.rs",
        r#"json.expect("an answer is written as JSON")"#,
        "strings, numbers and a map of JSON values are written without error",
    ),
    (
        "src/exports.rs",
        r#"reply.receipt.expect("a tool that acts answers a receipt")"#,
        "called for tools alone, and the engine adds a receipt to each of their replies",
    ),
    (
        "src/exports.rs",
        r#"outcome.expect("one call has one outcome")"#,
        "the engine answers as many outcomes as it was given calls",
    ),
];

#[test]
fn the_product_panics_nowhere_but_where_it_says_why_it_cannot() {
    let is_product = |path: &str| path.starts_with("src/") || path.starts_with("host-example/src/");
    let may = |path: &str, line: &str| CANNOT_PANIC.iter().any(|(file, code, _)| path == *file && line.contains(code));
    let panics = |line: &str| line.contains(".unwrap()") || line.contains(".expect(");

    let found = lines(&[".rs"], |path, line| is_product(path) && !is_comment(line) && panics(line) && !may(path, line));
    let allowed = lines(&[".rs"], |path, line| is_product(path) && may(path, line));

    assert_none(&found);
    assert_eq!(allowed.len(), CANNOT_PANIC.len(), "{allowed:#?}");
    assert!(CANNOT_PANIC.iter().all(|(_, _, reason)| !reason.is_empty()));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let folders = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    assert_none(&lines(PROSE, |_, line| folders.iter().any(|folder| line.contains(folder))));
}

#[test]
fn no_file_tells_of_how_it_was_made() {
    let words = [
        concat!("is", "sue"),
        concat!("is", "sues"),
        concat!("ses", "sion"),
        concat!("ses", "sions"),
        concat!("devel", "oper"),
        concat!("devel", "opers"),
    ];
    // A name that others gave is no word of ours.
    let is_imported = |line: &str| line.trim_start().starts_with("use rmcp::");
    assert_none(&lines(PROSE, |_, line| !is_imported(line) && words.iter().any(|word| has_word(line, word))));
}

/// Each number that stands before the unit, as it is written: `1 to 10,000 characters` has 10,000.
fn numbers_before(unit: &str, text: &str) -> Vec<String> {
    let trim = |word: &str| word.trim_matches(|character: char| !character.is_alphanumeric()).to_owned();
    let words: Vec<_> = text.replace("///", " ").split_whitespace().map(trim).collect();
    let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    words.windows(2).filter(|pair| pair[1] == unit && is_number(&pair[0])).map(|pair| pair[0].clone()).collect()
}

#[test]
fn the_documents_name_the_limits_that_the_code_has() {
    let wit: String = files(&[".wit"]).into_iter().map(|(_, text)| text.replace("///", " ")).collect();
    let wit = wit.split_whitespace().collect::<Vec<_>>().join(" ");
    let described = tools::REGISTRY.describe();
    let descriptions: String = described.iter().map(|tool| tool.description.as_str()).collect();
    let sql: String = files(&[".sql"]).into_iter().map(|(_, text)| text.replace("--", " ")).collect();
    let schema = |name: &str, field: &str| -> Value {
        let tool = described.iter().find(|tool| tool.name == name).expect("a tool");
        serde_json::from_str::<Value>(&tool.input_schema).unwrap()["properties"][field].take()
    };
    let minutes = json!({ "type": "integer", "minimum": 5, "maximum": 1440 });

    assert_eq!(schema("create_note", "body"), json!({ "type": "string", "minLength": 1, "maxLength": 10_000 }));
    assert_eq!(schema("create_automation", "interval_minutes"), minutes);
    assert_eq!(schema("set_interval", "interval_minutes"), minutes);
    assert_eq!(schema("create_note", "idempotency_key")["pattern"], "^[A-Za-z0-9_-]{1,128}$");
    let named = json!({ "type": "string", "minLength": 1, "maxLength": 200 });
    assert_eq!([schema("start_deployment", "service"), schema("start_deployment", "revision")], [named.clone(), named]);
    assert_eq!((arguments::MAX_ARGUMENTS, MAX_RESULT, MAX_BATCH), (65_536, 65_536, 64));
    assert_eq!((MAX_CLAIM, LEASE_MS, MAX_DETAIL, MAX_RESOURCE_ID), (64, 100..=600_000, 500, 200));
    assert_eq!((MAX_SWEEP, MAX_PAGE), (10_000, 1000));
    assert_eq!((settings::RETENTION_MS, settings::MIN_RETENTION_MS), (30 * 86_400_000, 86_400_000));
    assert_eq!((settings::DEADLINE_MS, settings::MIN_DEADLINE_MS), (86_400_000, 1000));
    assert!(sql.contains("interval_minutes BETWEEN 5 AND 1440"));

    // In any order.
    for (text, unit, mut expected) in [
        (&wit, "characters", vec!["10,000", "200", "500"]),
        (&wit, "minutes", vec!["1,440", "1,440"]),
        (&wit, "bytes", vec!["65,536"]),
        (&wit, "calls", vec!["64"]),
        (&wit, "tasks", vec!["64"]),
        (&wit, "milliseconds", vec!["600,000"]),
        (&wit, "expired", vec!["10,000"]),
        (&descriptions, "characters", vec!["10,000", "200"]),
        (&descriptions, "minutes", vec!["1,440", "1,440"]),
        (&descriptions, "days", vec!["30"; 4]),
        (&sql, "characters", vec!["10,000"]),
    ] {
        let mut found = numbers_before(unit, text);
        found.sort();
        expected.sort_unstable();
        assert_eq!(found, expected, "{unit}");
    }
    for words in [
        "5 to 1,440 minutes",
        "1 to 10,000 characters",
        "(1 to 200 characters each)",
        "Text is kept up to 500 characters. A resource's id has 1 to 200.",
        "`limit` (1 to 64) tasks that are due, leased for `lease` (100 to 600,000) milliseconds",
        "`limit` (1 to 10,000) expired receipts",
        "`limit` (1 to 1,000) operations",
    ] {
        assert!(wit.contains(words), "{words}");
    }
}
