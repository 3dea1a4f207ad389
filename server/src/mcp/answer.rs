//! What a caller is told: the component's reply as structured content, in its own words for a model, and as text for hosts that
//! show nothing else.

use crate::owner::OwnerError;
use host_example::Reply;
use jsonschema::Validator;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub struct Answer {
    /// `fresh`, `replayed` or `refused`.
    pub outcome: &'static str,
    /// A refusal's; empty otherwise.
    pub code: String,
    pub operation: Option<String>,
    /// Whether the component's reply is not what its schema says.
    pub is_malformed: bool,
    body: Value,
}

/// What all replies have in common.
#[derive(Default, Deserialize)]
struct Common {
    #[serde(default)]
    replayed: bool,
    #[serde(default, deserialize_with = "text")]
    code: String,
    operation_id: Option<String>,
    #[serde(default, deserialize_with = "text")]
    message: String,
    #[serde(default, deserialize_with = "text")]
    next_action: String,
}

/// What the program refuses, in the form of what the component refuses.
#[derive(Serialize)]
struct Refusal {
    status: &'static str,
    replayed: bool,
    code: &'static str,
    message: &'static str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u32>,
    next_action: &'static str,
}

/// A tool's own fields stand beside these, and may have one of the names.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_str().unwrap_or_default().to_owned())
}

const REPEAT: &str = "Repeat the call with the same key and arguments: it acts at most once.";

impl Answer {
    /// What `reads` takes no key, and changes nothing in any case.
    pub fn new(answer: Result<Reply, OwnerError>, schema: &Validator, reads: bool) -> Answer {
        match answer {
            Ok(reply) => match serde_json::from_str::<Value>(&reply.body) {
                Ok(body) if schema.is_valid(&body) => Answer::of(body, reply.refused),
                _ => Answer { is_malformed: true, ..Answer::refused(&malformed()) },
            },
            Err(error) => Answer::refused(&refusal(&error, reads)),
        }
    }

    fn of(body: Value, is_refused: bool) -> Answer {
        let Common { replayed, code, operation_id, .. } = Common::deserialize(&body).unwrap_or_default();
        let outcome = match replayed {
            _ if is_refused => "refused",
            true => "replayed",
            false => "fresh",
        };
        Answer {
            outcome,
            code: if is_refused { code } else { String::new() },
            operation: operation_id,
            is_malformed: false,
            body,
        }
    }

    fn refused(refusal: &Refusal) -> Answer {
        // A struct of strings and numbers is written without error.
        Answer::of(serde_json::to_value(refusal).unwrap_or_default(), true)
    }

    /// Text first says in a sentence what has happened, then all of it, since many hosts show a model the text alone.
    pub fn into_result(self) -> CallToolResult {
        let Answer { outcome, body, .. } = self;
        let text = [summary(outcome, &body), body.to_string()].map(ContentBlock::text).to_vec();
        let is_refused = outcome == "refused";
        let mut result =
            if is_refused { CallToolResult::structured_error(body) } else { CallToolResult::structured(body) };
        result.content = text;
        result
    }
}

fn summary(outcome: &str, body: &Value) -> String {
    let Common { message, next_action, .. } = Common::deserialize(body).unwrap_or_default();
    let stop = if message.ends_with('.') { "" } else { "." };
    let text = match outcome {
        "refused" => format!("Refused: {message}{stop} {next_action}"),
        "replayed" => format!("Succeeded before: this is the answer that was recorded then. {next_action}"),
        _ => format!("Succeeded. {next_action}"),
    };
    text.trim_end().to_owned()
}

fn refusal(error: &OwnerError, reads: bool) -> Refusal {
    let refused = |code, message, retryable, retry_after_ms, next_action| Refusal {
        status: "refused",
        replayed: false,
        code,
        message,
        retryable,
        retry_after_ms,
        next_action,
    };
    let (doubt, repeat) = if reads { ("unavailable", "Repeat the call.") } else { ("unconfirmed", REPEAT) };
    match error {
        OwnerError::Busy => {
            // Those who are refused together do not come back together.
            let after = fastrand::u32(100..400);
            let message = "Too many calls are waiting: nothing was done.";
            refused(
                "busy",
                message,
                true,
                Some(after),
                if reads { repeat } else { "Repeat the call with the same key after that pause." },
            )
        }
        OwnerError::Slow => {
            let message = if reads {
                "The database takes long."
            } else {
                "The database takes long: this call commits or does not."
            };
            refused(doubt, message, true, Some(1_000), repeat)
        }
        OwnerError::Failed(_) => {
            let message = if reads {
                "The call ended without an answer."
            } else {
                "The call ended without an answer: it may have committed or not."
            };
            refused(doubt, message, true, None, repeat)
        }
        OwnerError::Ended => {
            let next = "Repeat the call with the same key once the server is there again.";
            refused("unavailable", "The server is stopping: nothing was done.", true, Some(1_000), next)
        }
        OwnerError::Refused(_) | OwnerError::Open(_) => {
            let next = "Ask an operator, then repeat the call with the same key.";
            refused("unavailable", "The database cannot be used: nothing was done.", error.is_retryable(), None, next)
        }
    }
}

/// A fault of the component's, after which the call may stand committed.
fn malformed() -> Refusal {
    Refusal {
        status: "refused",
        replayed: false,
        code: "unconfirmed",
        message: "The tool's answer is not as its schema says: the call may have committed.",
        retryable: false,
        retry_after_ms: None,
        next_action: "Tell an operator. Do not act again under a new key.",
    }
}
