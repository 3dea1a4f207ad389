//! Messages of the Model Context Protocol: right, nearly right, and none.

use crate::arguments;
use crate::meaning::TOOLS;
use crate::spelling;
use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

/// The revision in which each request says all that is needed.
pub const STATELESS: &str = "2026-07-28";
/// Those that begin with `initialize`.
pub const INITIALIZED: [&str; 2] = ["2025-11-25", "2025-06-18"];

pub struct Message {
    pub text: String,
    pub method: String,
    /// Of the tool.
    pub name: String,
    /// Whether it is a call of a tool that is there, and must be answered.
    pub is_call: bool,
    /// Whether it is a request, as it should be.
    pub is_sound: bool,
}

/// The id is a text, since a number could be spelled as one with a fraction, which is no id.
pub(crate) fn message(u: &mut Unstructured<'_>, id: &str, revision: &str) -> Result<Message> {
    if u.ratio(1, 8)? {
        let text = if u.arbitrary()? { spelling::text(u)? } else { spelling::value(u, 3)?.to_string() };
        return Ok(Message {
            text: text.replace('\n', " "),
            method: String::new(),
            name: String::new(),
            is_call: false,
            is_sound: false,
        });
    }
    const METHODS: [&str; 10] = [
        "tools/list",
        "ping",
        "initialize",
        "server/discover",
        "notifications/initialized",
        "notifications/cancelled",
        "resources/list",
        "tools/Call",
        "completion/complete",
        "logging/setLevel",
    ];
    let mut is_call = u.ratio(2, 3)?;
    let mut is_sound = true;
    let method = if is_call { "tools/call" } else { u.choose(&METHODS)? };
    let (tool, rules) = *u.choose(&TOOLS)?;
    let mut name = tool.to_owned();
    let mut params = match method {
        "tools/call" => {
            let mut fields = arguments::of(u, rules, &[])?;
            arguments::change(u, rules, &mut fields)?;
            json!({ "name": tool, "arguments": Value::Object(fields.into_iter().collect()) })
        }
        "initialize" => initialize(INITIALIZED[0]),
        "notifications/cancelled" => json!({ "requestId": u.choose(&["0", "1", "2", "7"])?, "reason": "why" }),
        _ => json!({}),
    };
    if revision == STATELESS {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "fuzz", "version": "1" });
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    if u.ratio(1, 16)? {
        params["_meta"]["progressToken"] = json!(id);
    }
    let mut message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    if method.starts_with("notifications/") {
        message.as_object_mut().map(|message| message.remove("id"));
    }
    if u.ratio(1, 4)? {
        (is_call, is_sound) = (false, false);
        let field = *u.choose(&["jsonrpc", "id", "method", "params", "result"])?;
        let part = *u.choose(&["name", "arguments", "_meta", "task"])?;
        match u.int_in_range(0..=3)? {
            0 => message[field] = spelling::value(u, 2)?,
            1 => drop(message.as_object_mut().map(|message| message.remove(field))),
            2 => {
                message["params"][part] = spelling::value(u, 2)?;
                name = message["params"]["name"].as_str().unwrap_or_default().to_owned();
            }
            _ => message = json!([message]),
        }
    }
    let text = match message.as_object() {
        Some(fields) => spelling::object(u, &fields.clone().into_iter().collect())?.replace(['\n', '\r'], " "),
        None => message.to_string(),
    };
    Ok(Message { text, method: method.to_owned(), name, is_call, is_sound })
}

pub(crate) fn initialize(revision: &str) -> Value {
    json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": { "name": "fuzz", "version": "1" } })
}

/// # Panics
///
/// If this is no answer to the request with the id, or one that calls a tool is told nothing.
pub fn check(answer: &Value, id: &str, is_call: bool) {
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(id)), "{answer}");
    assert!(answer["result"].is_object() != answer["error"].is_object(), "{answer}");
    if is_call {
        let told = &answer["result"]["structuredContent"];
        let is_refused = told["status"] == "refused";
        assert!(is_refused || told["status"] == "succeeded", "{answer}");
        assert_eq!(answer["result"]["isError"], is_refused, "{answer}");
        let malformed = "The tool's answer is not as its schema says";
        assert!(!told["message"].as_str().unwrap_or_default().starts_with(malformed), "{answer}");
    }
}
