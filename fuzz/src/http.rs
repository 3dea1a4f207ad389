//! The bytes of a connection: whatever they are it is answered by HTTP or closed, and nobody calls without a token.

use crate::rpc::{self, INITIALIZED, Message, STATELESS};
use crate::server::{self, TOKENS};
use crate::spelling;
use arbitrary::{Result, Unstructured};
use serde_json::Value;

/// Any bytes.
pub fn run(data: &[u8]) {
    // What is too short says less, and is no fault.
    let _ = bytes(&mut Unstructured::new(data));
}

fn bytes(u: &mut Unstructured<'_>) -> Result<()> {
    let how = u.int_in_range(0..=7)?;
    if how == 0 {
        exchange(u.bytes(u.len())?);
        return Ok(());
    }
    let one = request(u)?;
    if how == 1 {
        let mut all = one.bytes;
        // One after the other, and something in between.
        for _ in 0..u.int_in_range(1..=3)? {
            all.extend(request(u)?.bytes);
        }
        let (place, odd) = (u.int_in_range(0..=all.len())?, spelling::text(u)?);
        all.splice(place..place, odd.bytes());
        exchange(&all);
        return Ok(());
    }
    let (output, calls) = exchange(&one.bytes);
    if one.is_proper {
        let (status, body) = answer(&output);
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
        rpc::check(&answer, ID, true);
        assert_eq!(calls, 1);
    }
    if one.is_nobody {
        // A head that is none, or too long, is refused before it is looked at.
        let (status, _) = answer(&output);
        assert!([400, 401, 431].contains(&status) && calls == 0, "{status}: {}", String::from_utf8_lossy(&one.bytes));
    }
    Ok(())
}

const ID: &str = "7";

/// What holds for all input: what is answered, and how many calls there were.
fn exchange(input: &[u8]) -> (Vec<u8>, u64) {
    let (output, calls) = server::http(input);
    // What comes after the first answer may be a part of its body.
    assert!(output.is_empty() || (100..500).contains(&answer(&output).0), "{}", String::from_utf8_lossy(&output));
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    if !TOKENS.iter().any(|token| has(input, token)) {
        assert_eq!(calls, 0);
        for secret in ["counterfoil_answers", "structuredContent", "create_note"] {
            assert!(has(input, secret) || !has(&output, secret), "{}", String::from_utf8_lossy(&output));
        }
    }
    (output, calls)
}

/// The status and the body of the first answer.
fn answer(output: &[u8]) -> (u16, &str) {
    let text = str::from_utf8(output).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(output)));
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {text}")), body)
}

struct Request {
    bytes: Vec<u8>,
    /// Whether it is a call that must be made and answered.
    is_proper: bool,
    /// Whether it must be told that it has no token.
    is_nobody: bool,
}

fn request(u: &mut Unstructured<'_>) -> Result<Request> {
    let revision = *u.choose(&[STATELESS, INITIALIZED[0], INITIALIZED[1]])?;
    let Message { text: body, method: asked, name, is_call, .. } = rpc::message(u, ID, revision)?;
    let mut is_proper = is_call;
    // Each is the first, mostly or nearly always.
    let often = if u.arbitrary()? { 7 } else { 1 };
    let mut one_of = |u: &mut Unstructured<'_>, all: &[&str], as_good: usize| -> Result<String> {
        let choice = u.int_in_range(0..=(often + 1) * all.len())?.saturating_sub(often * all.len());
        is_proper &= choice < as_good;
        if choice == all.len() { spelling::text(u) } else { Ok(all[choice].to_owned()) }
    };
    let method = one_of(u, &["POST", "GET", "DELETE", "OPTIONS", "HEAD", "PUT", "CONNECT"], 1)?;
    let resource = "/.well-known/oauth-protected-resource";
    let path = one_of(u, &["/mcp", "/metrics", resource, "/mcp/", "/mcp?a=b", "//mcp", "/%6dcp", "*"], 1)?;
    let version = one_of(u, &["HTTP/1.1", "HTTP/1.0", "HTTP/2.0"], 1)?;
    let host = one_of(u, &["localhost", "127.0.0.1:8080", "elsewhere.example"], 2)?;
    let [all, none] = TOKENS;
    let wrong = &all[..all.len() - 1];
    let token = one_of(u, &[all, none, wrong, ""], 2)?;
    let scheme = one_of(u, &["Bearer", "bearer", "Basic", "Bearer Bearer"], 2)?;
    let kind = one_of(u, &["application/json", "text/plain", "application/json; charset=utf-8"], 1)?;
    let accepts = one_of(u, &["application/json, text/event-stream", "*/*", "application/json"], 1)?;
    let revision = one_of(u, &[revision, STATELESS, INITIALIZED[0], "1"], 1)?;
    let framing = one_of(u, &["right", "chunked", "short", "long", "both", "none"], 2)?;
    let mut head = format!(
        "{method} {path} {version}\r\nHost: {host}\r\nAuthorization: {scheme} {token}\r\nContent-Type: {kind}\r\n\
         Accept: {accepts}\r\nMCP-Protocol-Version: {revision}\r\nMcp-Method: {asked}\r\nMcp-Name: {name}\r\n"
    );
    let is_known = TOKENS.contains(&token.trim()) && scheme.eq_ignore_ascii_case("bearer");
    let is_closed = ["/mcp", "/metrics", "/mcp?a=b"].contains(&path.as_str()) && version == "HTTP/1.1";
    let is_read = ["GET", "POST", "PUT", "DELETE"].contains(&method.as_str()) && !framing.is_empty();
    let is_text = [&host, &token, &scheme, &kind, &accepts, &revision, &asked, &name]
        .iter()
        .all(|text| text.chars().all(|letter| matches!(letter, ' '..='~')));
    let mut is_nobody = !is_known && is_closed && is_read && is_text;
    if u.ratio(1, 4)? {
        is_proper = false;
        let (name, text) = (one_of_headers(u)?, spelling::text(u)?);
        is_nobody &= !["", "Authorization", "Host"].contains(&name.as_str())
            && name.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '-')
            && text.chars().all(|letter| matches!(letter, ' '..='~'));
        head += &format!("{name}: {text}\r\n");
    }
    let length = body.len();
    let (headers, body) = match framing.as_str() {
        "chunked" => ("Transfer-Encoding: chunked\r\n".to_owned(), format!("{length:x}\r\n{body}\r\n0\r\n\r\n")),
        "short" => (format!("Content-Length: {}\r\n", length / 2), body),
        "long" => (format!("Content-Length: {}\r\n", length + 1), body),
        "both" => (format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), body),
        "none" => (String::new(), body),
        _ => (format!("Content-Length: {length}\r\n"), body),
    };
    Ok(Request { bytes: format!("{head}{headers}\r\n{body}").into_bytes(), is_proper, is_nobody })
}

fn one_of_headers(u: &mut Unstructured<'_>) -> Result<String> {
    const NAMES: [&str; 10] = [
        "Origin",
        "Authorization",
        "Expect",
        "Connection",
        "Upgrade",
        concat!("Mcp-Ses", "sion-Id"),
        "Last-Event-ID",
        "Host",
        "Access-Control-Request-Headers",
        "Content-Encoding",
    ];
    if u.ratio(1, 8)? { spelling::text(u) } else { Ok((*u.choose(&NAMES)?).to_owned()) }
}
