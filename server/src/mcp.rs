//! The tools as an agent is given them: the Model Context Protocol, over any transport. Which tools there are the component
//! says; none is known here by name.

use crate::owner::{Owner, OwnerError};
use host_example::{Description, Invocation, Principal, Reply};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call waits for its turn, so that a local tool answers before its client gives up (5 s and more).
const WAIT: Duration = Duration::from_secs(3);

/// When to try again what found the queue full, or waited too long in it.
const RETRY_AFTER_MS: u32 = 250;

#[derive(Clone)]
pub struct Tools {
    owner: Arc<Owner>,
    tools: Arc<[Tool]>,
    /// Who is calling, where the transport does not say it with each request.
    principal: Option<Principal>,
}

impl Tools {
    /// # Errors
    ///
    /// If a schema of the component's is no JSON object.
    pub fn new(
        owner: Arc<Owner>,
        descriptions: Vec<Description>,
        principal: Option<Principal>,
    ) -> serde_json::Result<Tools> {
        let tools = descriptions.into_iter().map(tool).collect::<serde_json::Result<_>>()?;
        Ok(Tools { owner, tools, principal })
    }
}

fn tool(description: Description) -> serde_json::Result<Tool> {
    let schema = |text: &str| serde_json::from_str::<JsonObject>(text).map(Arc::new);
    let annotations = ToolAnnotations::with_title(description.title.clone())
        .read_only(description.read_only)
        .destructive(description.destructive)
        .idempotent(description.idempotent)
        .open_world(description.open_world);
    let tool = Tool::new(description.name, description.description, schema(&description.input_schema)?);
    let tool = tool.with_raw_output_schema(schema(&description.output_schema)?);
    Ok(tool.with_title(description.title).with_annotations(annotations))
}

impl rmcp::ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let program = Implementation::new("counterfoil", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build()).with_server_info(program)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&[ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28])
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.tools.iter().any(|tool| tool.name == request.name) {
            return Err(ErrorData::invalid_params(format!("there is no tool {}", request.name), None));
        }
        let Some(caller) = self.principal.clone().or_else(|| context.extensions.get().cloned()) else {
            return Err(ErrorData::internal_error("the transport names no caller", None));
        };
        let arguments = Value::Object(request.arguments.unwrap_or_default()).to_string();
        let invocation = Invocation { tool: request.name.into_owned(), arguments };
        // Not cut short by a client that cancels or goes away: what has been accepted is done, and its receipt kept.
        let answer = self.owner.call(caller, invocation, Instant::now() + WAIT).await;
        Ok(result(answer).into())
    }
}

fn result(answer: Result<Reply, OwnerError>) -> CallToolResult {
    match answer {
        Ok(Reply { body, refused }) => {
            let body = serde_json::from_str(&body).unwrap_or(Value::String(body));
            if refused { CallToolResult::structured_error(body) } else { CallToolResult::structured(body) }
        }
        Err(error) => CallToolResult::structured_error(refusal(&error)),
    }
}

/// In the form of the component's own.
fn refusal(error: &OwnerError) -> Value {
    let (code, retryable, after, next) = match error {
        OwnerError::Busy => ("busy", true, Some(RETRY_AFTER_MS), "Repeat the call with the same key after a pause."),
        OwnerError::Failed(_) => {
            ("unconfirmed", true, None, "Repeat the call with the same key and arguments: it acts at most once.")
        }
        OwnerError::Refused(_) | OwnerError::Open(_) | OwnerError::Ended => {
            ("unavailable", error.is_retryable(), None, "Repeat the call with the same key later, or ask an operator.")
        }
    };
    let message = match error {
        OwnerError::Busy => "Too many calls are waiting: nothing was done.",
        OwnerError::Failed(_) => "The call ended without an answer: it may have committed or not.",
        _ => "The database cannot be used.",
    };
    let mut refusal = json!({
        "status": "refused",
        "replayed": false,
        "code": code,
        "message": message,
        "retryable": retryable,
        "next_action": next,
    });
    if let Some(after) = after {
        refusal["retry_after_ms"] = after.into();
    }
    refusal
}
