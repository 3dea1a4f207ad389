//! What the standalone component asks of its host, what it offers, and what it says of itself.

use crate::harness::standalone;
use crate::plain::load;
use serde_json::Value;
use std::fs;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, types};

/// Whether it is more than a place for types, which asks nothing of a host and offers nothing to a model.
fn has_more_than_types(item: &ComponentItem, component: &Component) -> bool {
    let is_type = |(_, item): (_, types::ComponentExtern<'_>)| matches!(item.ty, ComponentItem::Type(_));
    match item {
        ComponentItem::Type(_) => false,
        ComponentItem::ComponentInstance(instance) => !instance.exports(component.engine()).all(is_type),
        _ => true,
    }
}

#[test]
fn it_imports_wasi_alone() {
    let component = load(standalone());

    let kind = component.component_type();
    let imports = kind.imports(component.engine());
    let imports = imports.filter(|(_, import)| has_more_than_types(&import.ty, &component));
    let imports: Vec<_> = imports.map(|(name, _)| name).collect();

    assert!(imports.iter().all(|name| name.starts_with("wasi:")), "{imports:?}");
    for package in ["wasi:cli/", "wasi:clocks/", "wasi:filesystem/", "wasi:io/", "wasi:random/"] {
        assert!(imports.iter().any(|name| name.starts_with(package)), "{package} {imports:?}");
    }
    let network = imports.iter().find(|name| name.starts_with("wasi:sockets/") || name.starts_with("wasi:http/"));
    assert_eq!(network, None);
}

/// Where each export is shown to a model, it is shown the tools.
#[test]
fn it_exports_the_seven_functions_and_no_more() {
    let component = load(standalone());

    let kind = component.component_type();
    let exports = kind.exports(component.engine());
    let mut exports: Vec<_> = exports.filter(|(_, export)| has_more_than_types(&export.ty, &component)).collect();
    exports.sort_by_key(|(name, _)| *name);

    assert!(exports.iter().all(|(_, export)| matches!(export.ty, ComponentItem::ComponentFunc(_))));
    let names: Vec<_> = exports.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, DOCUMENTED.map(|(name, _)| name));
}

/// Each function with the first sentence of what a host may show of it.
const DOCUMENTED: [(&str, &str); 7] = [
    ("create-automation", "Creates an automation that runs every 5 to 1,440 minutes, at version 1."),
    ("create-note", "Creates a note of 1 to 10,000 characters."),
    (
        "find-operation",
        "What became of the caller's own earlier call of `tool` (its name in\nsnake_case), whose answer was lost, by the \
         key it carried.",
    ),
    ("get-automation", "Reads an automation of the caller's workspace."),
    ("get-note", "Reads a note of the caller's workspace."),
    ("get-operation", "What became of an operation of the caller's workspace."),
    ("set-interval", "Changes how often an automation runs: every 5 to 1,440 minutes."),
];

/// By the section that tools for WIT write and read.
#[test]
fn it_brings_the_documentation_of_its_functions() {
    let bytes = fs::read(standalone()).unwrap();

    let sections = custom_sections(&bytes);

    let documented: Vec<_> = sections.iter().filter(|(name, _)| *name == "package-docs").collect();
    let [(_, [1, json @ ..])] = *documented else { panic!("{} sections, or another version", documented.len()) };
    let documentation: Value = serde_json::from_slice(json).unwrap();
    // Of a component, readers know one world by this name.
    let functions = documentation["worlds"]["root"]["func_exports"].as_object().unwrap();
    assert_eq!(functions.len(), 7);
    for (name, sentence) in DOCUMENTED {
        let words = functions[name]["docs"].as_str().unwrap();
        assert!(words.starts_with(sentence), "{name}: {words}");
    }
}

/// The name and content of each custom section of the outermost component
/// (<https://webassembly.github.io/spec/core/binary/modules.html#sections>).
fn custom_sections(bytes: &[u8]) -> Vec<(&str, &[u8])> {
    let (header, mut rest) = bytes.split_at(8);
    assert_eq!(header, b"\0asm\x0d\0\x01\0", "a component");
    let mut found = Vec::new();
    while let [id, after @ ..] = rest {
        let (content, after) = sized(after);
        if *id == 0 {
            let (name, content) = sized(content);
            found.push((str::from_utf8(name).unwrap(), content));
        }
        rest = after;
    }
    found
}

/// As many bytes as the number before them says, and what comes after.
fn sized(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let size = bytes[..=end].iter().rev().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f));
    bytes[end + 1..].split_at(size)
}
