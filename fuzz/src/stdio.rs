//! Lines of standard input: what is written in answer are lines of JSON-RPC, one to each call.

use crate::rpc::{self, INITIALIZED, STATELESS};
use crate::server;
use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

/// Any bytes.
pub fn run(data: &[u8]) {
    // What is too short says less, and is no fault.
    let _ = lines(&mut Unstructured::new(data));
}

fn lines(u: &mut Unstructured<'_>) -> Result<()> {
    if u.ratio(1, 8)? {
        let (output, _) = server::lines(u.bytes(u.len())?);
        messages(&output);
        return Ok(());
    }
    let revision = *u.choose(&[INITIALIZED[0], INITIALIZED[1], STATELESS])?;
    let mut input = Vec::new();
    if revision != STATELESS {
        let params = rpc::initialize(revision);
        let begin = json!({ "jsonrpc": "2.0", "id": "first", "method": "initialize", "params": params });
        input.extend(format!("{begin}\n").bytes());
        input.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    }
    let (mut calls, mut is_calm) = (Vec::new(), true);
    for id in ["0", "1", "2", "3", "4"].into_iter().take(u.int_in_range(1..=5)?) {
        let message = rpc::message(u, id, revision)?;
        // What is nearly right may bear another's id, cancel another call, or end it all.
        is_calm &= message.is_sound && ["tools/call", "tools/list", "ping"].contains(&message.method.as_str());
        if message.is_call {
            calls.push(id);
        }
        input.extend(message.text.bytes());
        input.extend_from_slice(u.choose(&["\n", "\r\n", "\n\n \n"])?.as_bytes());
    }
    let (output, made) = server::lines(&input);
    let messages = messages(&output);
    if is_calm {
        for id in &calls {
            let answers: Vec<_> = messages.iter().filter(|message| message["id"] == *id).collect();
            let [answer] = answers[..] else { panic!("{answers:?} to {id}: {}", String::from_utf8_lossy(&input)) };
            rpc::check(answer, id, true);
        }
        assert_eq!(made, calls.len() as u64);
    }
    Ok(())
}

fn messages(output: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(output);
    let message = |line: &str| {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    };
    text.lines().map(message).collect()
}
