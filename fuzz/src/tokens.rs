//! Any file of tokens, and any token that is shown: nobody is let in but whose hash is listed.

use crate::server::{http, with_tokens};
use crate::spelling;
use arbitrary::{Result, Unstructured};
use counterfoil_server::tokens::Tokens;
use host_example::Principal;
use sha2::{Digest, Sha256};
use toml::{Table, Value};

/// Any bytes.
pub fn run(data: &[u8]) {
    // What is too short says less, and is no fault.
    let _ = file_and_token(&mut Unstructured::new(data));
}

const KNOWN: [&str; 3] = [
    "counterfoil_1111111111111111111111111111111111111111111111111111111111111111",
    "counterfoil_2222222222222222222222222222222222222222222222222222222222222222",
    "short",
];
/// Times that have passed, and that have not.
const PAST: [&str; 2] = ["2020-01-31T00:00:00Z", "1970-01-01T00:00:00.5Z"];
const FUTURE: [&str; 2] = ["9999-12-31T23:59:59Z", "2999-02-28T00:00:00Z"];

fn file_and_token(u: &mut Unstructured<'_>) -> Result<()> {
    // First, since a file can take all that there is.
    let shown = shown(u)?;
    // In a header, spaces around it are none of it.
    let header = header(u, shown.trim())?;
    let text = file(u)?;
    let expected = expected(&text, &shown);

    let (found, output) = with_tokens(&text, |file| {
        let found = Tokens::load(file.clone()).and_then(|tokens| tokens.principal(&shown));
        (found, header.as_ref().map(|(request, _)| http(request.as_bytes()).0))
    });

    check(&expected, &found, &text);
    let expected = self::expected(&text, shown.trim());
    if let (Some(output), Some((_, names_it))) = (output, header) {
        let status = String::from_utf8_lossy(&output).get(9..12).and_then(|status| status.parse().ok());
        let may = matches!(&expected, Expected::Let(who) if who.permissions.iter().any(|name| name == "read-metrics"));
        let right: &[u16] = match expected {
            Expected::Let(_) if names_it && may => &[200],
            Expected::Let(_) if names_it => &[403],
            Expected::Let(_) | Expected::Nobody => &[401],
            // Without a token the file is not read.
            Expected::Broken => &[503, 401],
            Expected::AtMost(None) => &[401, 503],
            Expected::AtMost(Some(_)) => &[200, 401, 403, 503],
        };
        // What is no header has a status of its own.
        let is_right =
            status.is_some_and(|status| right.contains(&status) || !names_it && [400, 431].contains(&status));
        assert!(is_right, "{status:?}, not {right:?}: {shown:?}: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}

/// What must become of the token.
#[derive(Debug)]
pub enum Expected {
    Let(Principal),
    Nobody,
    /// The file is none.
    Broken,
    /// Nobody else than this one: whether all times are times, and have passed, is not known here.
    AtMost(Option<Principal>),
}

/// # Panics
///
/// If something else became of it.
pub fn check(expected: &Expected, found: &std::result::Result<Option<Principal>, String>, text: &[u8]) {
    let is_right = match (expected, found) {
        (Expected::Let(who) | Expected::AtMost(Some(who)), Ok(Some(found))) => {
            (&who.workspace, &who.subject, &who.permissions) == (&found.workspace, &found.subject, &found.permissions)
        }
        (Expected::Nobody | Expected::AtMost(_), Ok(None)) | (Expected::Broken | Expected::AtMost(_), Err(_)) => true,
        _ => false,
    };
    assert!(is_right, "{found:?}, not {expected:?}: {}", String::from_utf8_lossy(text));
}

/// Told by the file's own words, without the types that the server reads it with.
#[must_use]
pub fn expected(text: &[u8], shown: &str) -> Expected {
    let tables = || -> Option<Vec<Table>> {
        let mut file: Table = str::from_utf8(text).ok().filter(|text| text.len() <= 256 << 10)?.parse().ok()?;
        let tokens = file.remove("token").unwrap_or(Value::Array(Vec::new()));
        let is_table = |entry: Value| if let Value::Table(table) = entry { Some(table) } else { None };
        let Value::Array(tokens) = tokens else { return None };
        if file.is_empty() { tokens.into_iter().map(is_table).collect() } else { None }
    };
    let Some(tables) = tables() else { return Expected::Broken };
    let hash = format!("{:x}", Sha256::digest(shown));
    let (mut names, mut hashes, mut found, mut is_known) = (Vec::new(), Vec::new(), None, true);
    for mut table in tables {
        let mut take = |name: &str| if let Some(Value::String(text)) = table.remove(name) { Some(text) } else { None };
        let (name, listed, subject, workspace) = (take("name"), take("sha256"), take("subject"), take("workspace"));
        let (Some(name), Some(listed), Some(subject), Some(workspace)) = (name, listed, subject, workspace) else {
            return Expected::Broken;
        };
        let has_expired = match table.remove("expires") {
            None => false,
            Some(Value::String(time)) if PAST.contains(&time.as_str()) => true,
            Some(Value::String(time)) if FUTURE.contains(&time.as_str()) => false,
            Some(Value::String(_)) => {
                is_known = false;
                false
            }
            Some(_) => return Expected::Broken,
        };
        let Some(Value::Array(permissions)) = table.remove("permissions") else { return Expected::Broken };
        let permissions: Option<Vec<_>> = permissions.iter().map(|name| Some(name.as_str()?.to_owned())).collect();
        let Some(permissions) = permissions.filter(|_| table.is_empty()) else { return Expected::Broken };
        let listed = listed.to_ascii_lowercase();
        let is_hash = listed.len() == 64 && listed.chars().all(|digit| digit.is_ascii_hexdigit());
        if !is_hash || subject.is_empty() || workspace.is_empty() || names.contains(&name) || hashes.contains(&listed) {
            return Expected::Broken;
        }
        if listed == hash && !has_expired {
            found = Some(Principal { workspace, subject, permissions });
        }
        names.push(name);
        hashes.push(listed);
    }
    match found {
        Some(who) if is_known => Expected::Let(who),
        None if is_known => Expected::Nobody,
        found => Expected::AtMost(found),
    }
}

fn file(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if u.ratio(1, 8)? {
        let length = u.int_in_range(0..=u.len())?;
        return Ok(u.bytes(length)?.to_vec());
    }
    let mut text = String::new();
    for number in 0..u.int_in_range(0..=3)? {
        let mut entry = Table::new();
        let name = if u.ratio(1, 8)? { spelling::text(u)? } else { format!("n{number}") };
        entry.insert("name".to_owned(), name.into());
        entry.insert("sha256".to_owned(), listed(u)?.into());
        for field in ["subject", "workspace"] {
            let text = if u.ratio(1, 8)? { spelling::text(u)? } else { "acme".to_owned() };
            entry.insert(field.to_owned(), text.into());
        }
        let permissions: &[&str] = if u.arbitrary()? { &["read", "read-metrics"] } else { &[] };
        entry.insert("permissions".to_owned(), permissions.to_vec().into());
        if u.ratio(1, 3)? {
            let time = *u.choose(&[PAST[0], PAST[1], FUTURE[0], FUTURE[1], "soon", "2027-13-01T00:00:00Z", ""])?;
            entry.insert("expires".to_owned(), time.into());
        }
        if u.ratio(1, 16)? {
            let (field, other) = (spelling::text(u)?, spelling::text(u)?);
            entry.insert(field, other.into());
        }
        text += &format!("[[token]]\n{entry}\n");
    }
    if u.ratio(1, 16)? {
        text += &format!("# {}\n", "-".repeat(256 << 10));
    }
    let mut text = text.into_bytes();
    if u.ratio(1, 8)? {
        let (place, odd) = (u.int_in_range(0..=text.len())?, spelling::text(u)?);
        let end = u.int_in_range(place..=text.len())?.min(place + 4);
        text.splice(place..end, odd.bytes());
    }
    Ok(text)
}

/// What stands where a hash belongs.
fn listed(u: &mut Unstructured<'_>) -> Result<String> {
    let known = *u.choose(&KNOWN)?;
    let hash = format!("{:x}", Sha256::digest(known));
    Ok(match u.int_in_range(0..=11)? {
        0 => hash.to_uppercase(),
        1 => hash[..63].to_owned(),
        2 => hash + "0",
        3 => known.to_owned(),
        4 => spelling::text(u)?,
        5 => hash.replacen(|digit: char| digit.is_ascii_digit(), "a", 1),
        6 => hash.replacen(|digit: char| digit.is_ascii_digit(), "+", 1),
        _ => hash,
    })
}

fn shown(u: &mut Unstructured<'_>) -> Result<String> {
    let known = *u.choose(&KNOWN)?;
    Ok(match u.int_in_range(0..=9)? {
        0 => known[..known.len() - 1].to_owned(),
        1 => known.to_owned() + "1",
        2 => known.to_uppercase(),
        3 => format!(" {known}"),
        4 => format!("{:x}", Sha256::digest(known)),
        5 => spelling::text(u)?,
        _ => known.to_owned(),
    })
}

/// A request that shows the token, and whether it does so as it must.
fn header(u: &mut Unstructured<'_>, shown: &str) -> Result<Option<(String, bool)>> {
    if u.arbitrary()? {
        return Ok(None);
    }
    let fits = !shown.is_empty() && shown.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    let (header, names_it) = match u.int_in_range(0..=9)? {
        0 => (format!("Authorization: bearer {shown}"), true),
        1 => (format!("Authorization: BEARER   {shown} "), true),
        2 => (format!("authorization:Bearer {shown}\r\nAuthorization: Bearer {shown}"), false),
        3 => (format!("Authorization: {shown}"), false),
        4 => (format!("Authorization: Basic {shown}"), false),
        5 => (format!("Authorization: Bearer\t{shown}"), false),
        6 => (format!("Authorization: Bearer {shown} {shown}"), false),
        7 => (format!("X-Authorization: Bearer {shown}"), false),
        _ => (format!("Authorization: Bearer {shown}"), true),
    };
    Ok(Some((format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"), names_it && fits)))
}
