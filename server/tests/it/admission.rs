//! Who is let in over HTTP, and with what.

use crate::harness::*;
use crate::served::*;
use crate::world::*;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// A note's arguments as they are sent when every character is escaped.
fn escaped(key: &str, body: &str) -> String {
    let body: String = body.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let params = json!({ "name": "create_note", "arguments": note(key, "BODY") });
    message(STATELESS, 1, "tools/call", params).to_string().replace("BODY", &body)
}

const CALL: [(&str, &str); 2] = [("Mcp-Method", "tools/call"), ("Mcp-Name", "create_note")];

#[test]
fn without_a_valid_token_nobody_is_let_in_and_told_where_to_ask() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let mut server = world.serve(&[]);
    let address =
        server.client.request("GET", "/.well-known/oauth-protected-resource", &[], "").unwrap().json()["resource"]
            .clone();
    let address = address.as_str().and_then(|url| url.strip_suffix("/mcp")).unwrap().to_owned();
    let headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    let body = message(INITIALIZED, 1, "tools/call", json!({ "name": "create_note", "arguments": note("k", "hello") }))
        .to_string();
    let post =
        |extra: &[(&str, &str)]| server.client.request("POST", "/mcp", &[&headers, extra].concat(), &body).unwrap();
    let challenge = format!(
        "Bearer realm=\"counterfoil\", resource_metadata=\"{address}/.well-known/oauth-protected-resource/mcp\""
    );
    let bearer = format!("Bearer {token}");

    let none = post(&[]);
    let wrong = post(&[("Authorization", &format!("Bearer {}", token.to_uppercase()))]);
    let basic = post(&[("Authorization", &format!("Basic {token}"))]);
    let twice = post(&[("Authorization", &bearer), ("Authorization", &bearer)]);
    let lower = post(&[("Authorization", &format!("bearer {token}"))]);

    for answer in [&none, &basic, &twice] {
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some(challenge.as_str())), "{answer:?}");
        assert_eq!(
            answer.json(),
            json!({ "error": "A valid token is needed: `Authorization: Bearer TOKEN`. Nothing was done." })
        );
    }
    assert_eq!(
        (wrong.status, wrong.header("www-authenticate")),
        (401, Some(format!("{challenge}, error=\"invalid_token\"").as_str()))
    );
    assert_eq!(Told::of(&lower.json()).outcome(), FRESH);
    for path in ["/mcp", ""] {
        let answer =
            server.client.request("GET", &format!("/.well-known/oauth-protected-resource{path}"), &[], "").unwrap();
        assert_eq!(
            (answer.status, answer.json()),
            (
                200,
                json!({ "resource": format!("{address}/mcp"), "resource_name": "counterfoil", "bearer_methods_supported": ["header"] })
            )
        );
    }
    assert_eq!(server.client.request("GET", "/metrics", &[], "").unwrap().status, 401);
    server.stop();
    assert_eq!(world.number("SELECT count(*) FROM notes"), 1);
}

#[test]
fn what_the_file_of_tokens_says_now_is_what_holds() {
    let world = World::new();
    let first = world.token("first", "ada@acme", "read,write-notes");
    let server = world.serve(&[]);
    let mut ada = server.caller(&first);
    assert_eq!(ada.call("create_note", &note("k", "hello")).outcome(), FRESH);
    let before = fs::read_to_string(world.tokens()).unwrap();

    // Rotated: another token of the same caller's.
    let second = world.token("second", "ada@acme", "read,write-notes");
    assert_eq!(server.caller(&second).call("create_note", &note("k", "hello")).outcome(), REPLAYED);
    let after = fs::read_to_string(world.tokens()).unwrap();
    fs::write(world.tokens(), after.strip_prefix(&before).unwrap()).unwrap();
    assert_eq!(ada.note("k").status, 401);
    assert_eq!(ada.note("l").status, 401);

    let mut ada = server.caller(&second);
    assert_eq!(ada.call("create_note", &note("k", "hello")).outcome(), REPLAYED);
    let text = fs::read_to_string(world.tokens()).unwrap();
    fs::write(world.tokens(), text.replace(", \"write-notes\"", "")).unwrap();
    assert_eq!(ada.call("create_note", &note("k", "hello")).outcome(), (true, false, "denied"));
    fs::write(world.tokens(), &text).unwrap();
    assert_eq!(ada.call("create_note", &note("k", "hello")).outcome(), REPLAYED);

    // Another subject has other keys.
    let bo = world.token("bo", "bo@acme", "write-notes");
    assert_eq!(server.caller(&bo).call("create_note", &note("k", "hello")).outcome(), FRESH);
}

#[test]
fn a_file_of_tokens_that_is_broken_lets_nobody_in_until_it_is_mended() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&[]);
    let ada = server.caller(&token);
    assert_eq!(ada.note("k").status, 200);
    let whole = fs::read(world.tokens()).unwrap();

    for broken in
        [&whole[..whole.len() - 2], b"[[token]]\nname = \"x\"\n", &[&whole[..], b"\n", &whole[..]].concat(), b"\xff"]
    {
        fs::write(world.tokens(), broken).unwrap();
        let answer = ada.note("k");
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")), "{answer:?}");
        assert_eq!(answer.json(), json!({ "error": "Tokens cannot be looked up. Nothing was done. Ask an operator." }));
    }
    fs::remove_file(world.tokens()).unwrap();
    assert_eq!(ada.note("k").status, 503);
    fs::write(world.tokens(), b"").unwrap();
    assert_eq!(ada.note("k").status, 401);

    fs::write(world.tokens(), whole).unwrap();
    assert_eq!(Told::of(&ada.note("k").json()).outcome(), REPLAYED);
}

#[test]
fn a_token_is_valid_for_its_time() {
    let world = World::new();
    let [short, long] =
        ["2s", "1h"].map(|time| world.token_with(time, "ada@acme", "write-notes", &["--valid-for", time]));
    let server = world.serve(&[]);

    until(|| (server.caller(&short).note("k").status == 401).then_some(()));

    assert_eq!(server.caller(&long).note("k").status, 200);
}

#[test]
fn a_page_of_another_site_is_kept_out_and_so_is_a_name_that_leads_here() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let arguments = ["--allow-origin", "https://agents.example:443", "--public-url", "https://tools.example/mcp"];
    let server = world.serve(&arguments);
    let ada = server.caller(&token);
    let from = |origin: &str| {
        let sent = ada.post(&[&CALL[..], &[("Origin", origin)]].concat(), &escaped("k", "hello")).unwrap();
        Answer::read(&sent).unwrap().status
    };
    let host = |host: &str| {
        let body = escaped("k", "hello");
        let [method, name] = CALL.map(|(name, value)| format!("{name}: {value}\r\n"));
        let head =
            format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
        let accept = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
        let text = format!(
            "{head}{accept}{method}{name}MCP-Protocol-Version: {STATELESS}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Answer::read(&server.client.write(&text).unwrap()).unwrap()
    };

    assert_eq!(["https://elsewhere.example", "null", "http://127.0.0.1"].map(from), [403; 3]);
    assert_eq!(["https://agents.example", "https://agents.example:443"].map(from), [200; 2]);
    assert_eq!(from("http://agents.example"), 403);
    assert_eq!(["elsewhere.example", "127.0.0.1.elsewhere.example", "example"].map(|name| host(name).status), [403; 3]);
    assert_eq!(["tools.example", "localhost", "127.0.0.1:1"].map(|name| host(name).status), [200; 3]);
    let unasked = server.client.request("POST", "/mcp", &[], "").unwrap();
    let metadata = "resource_metadata=\"https://tools.example/.well-known/oauth-protected-resource/mcp\"";
    assert!(unasked.header("www-authenticate").unwrap().contains(metadata), "{unasked:?}");
}

#[test]
fn a_page_is_kept_out_where_no_origin_is_allowed() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&[]);
    let caller = server.caller(&token);

    let sent = caller.post(&[&CALL[..], &[("Origin", "http://localhost")]].concat(), &escaped("k", "hello")).unwrap();

    assert_eq!(Answer::read(&sent).unwrap().status, 403);
}

#[test]
fn the_largest_arguments_are_read_however_they_are_written_and_more_is_not() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&[]);
    let caller = server.caller(&token);
    let post = |body: &str| Answer::read(&caller.post(&CALL, body).unwrap()).unwrap();

    // 10,000 characters of 12 bytes each.
    let longest = post(&escaped("k", &"\u{1f600}".repeat(10_000)));
    // Arguments of 65,536 bytes, all of which are escaped, are for the component to refuse.
    let body = "x".repeat(65_536 - note("l", "").to_string().len());
    assert_eq!(note("l", &body).to_string().len(), 65_536);
    let refused = post(&escaped("l", &body));
    let padded = |length: usize| {
        let body = escaped("m", "hello");
        format!("{}{body}", " ".repeat(length - body.len()))
    };
    let most = post(&padded(512 << 10));
    let more = post(&padded((512 << 10) + 1));

    assert_eq!(Told::of(&longest.json()).outcome(), FRESH);
    assert_eq!((refused.status, Told::of(&refused.json()).outcome()), (200, (true, false, "invalid_argument")));
    assert_eq!(Told::of(&most.json()).outcome(), FRESH);
    assert_eq!(more.status, 413, "{}", more.body);
}

#[test]
fn a_request_whose_body_does_not_come_is_ended() {
    let world = World::new();
    let token = world.token("ada", "ada@acme", "write-notes");
    let server = world.serve(&["--connections", "1"]);
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let accept = "Accept: application/json, text/event-stream\r\nContent-Length: 10\r\n";
    let begun = Instant::now();

    let stream = server.client.write(&format!("{head}Authorization: Bearer {token}\r\n{accept}\r\n{{")).unwrap();
    let answer = Answer::read(&stream).unwrap();

    assert_eq!(answer.status, 408);
    assert!((14..30).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    // Its place is free.
    drop(stream);
    assert_eq!(server.caller(&token).note("k").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn what_is_counted_is_shown_to_whoever_may_read_it() {
    let world = World::new();
    let [ada, meter] = [("ada", "read,write-notes"), ("meter", "read-metrics")]
        .map(|(name, permissions)| world.token(name, &format!("{name}@acme"), permissions));
    let server = world.serve(&[]);
    let mut caller = server.caller(&ada);

    for (key, body) in [("k", "hello"), ("l", "hello"), ("k", "hello"), ("k", "other")] {
        let told = caller.call("create_note", &note(key, body));
        caller.call("get_note", &json!({ "note_id": told.reply["note_id"] }));
    }
    server.caller(&meter).call("create_note", &note("k", "hello"));

    let refused = caller.get("/metrics");
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json(), json!({ "error": "The token does not have the permission read-metrics." }));
    let meter = server.caller(&meter);
    let answers = |tool, outcome, code| {
        meter.metric(&format!("counterfoil_answers_total{{tool=\"{tool}\",outcome=\"{outcome}\",code=\"{code}\"}}"))
    };
    assert_eq!(answers("create_note", "fresh", ""), 2);
    assert_eq!(answers("create_note", "replayed", ""), 1);
    assert_eq!(answers("create_note", "refused", "key_conflict"), 1);
    assert_eq!(answers("create_note", "refused", "denied"), 1);
    assert_eq!(answers("get_note", "read", ""), 3);
    assert_eq!(answers("get_note", "refused", "invalid_argument"), 1);
    assert_eq!(meter.metric("counterfoil_queued"), 0);
    assert_eq!(meter.metric("counterfoil_batch_calls_count"), 9);
    let text = meter.get("/metrics");
    assert!(text.body.ends_with("# EOF\n"), "{}", text.body);
    assert_eq!(text.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
}
