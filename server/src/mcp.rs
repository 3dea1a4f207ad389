//! The tools as an agent is given them: the Model Context Protocol, over any transport. Which tools there are the component
//! says; none is known here by name.

mod answer;

use crate::metrics::{self, Metrics};
use crate::owner::{Call, Instance, Owner, OwnerError};
use answer::Answer;
use host_example::{Description, Invocation, Principal, Reply};
use jsonschema::Validator;
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, JsonObject, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use std::borrow::Cow;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{debug, error};
use uuid::Uuid;

/// How often whoever waits is told that nothing is lost, if it has asked for that.
const PROGRESS: Duration = Duration::from_millis(500);

const INSTRUCTIONS: &str = "Choose a new idempotency_key for each intended action and store it, with the arguments, before \
    the first call. If an answer is lost, or says that a retry can help, repeat the same call with the same key and \
    arguments: it acts at most once. Never take a new key because an answer is missing.";

pub struct Tools<I = host_example::Instance>(Arc<Shared<I>>);

impl<I> Clone for Tools<I> {
    fn clone(&self) -> Self {
        Tools(Arc::clone(&self.0))
    }
}

struct Shared<I> {
    owner: Arc<Owner<I>>,
    metrics: Arc<Metrics>,
    tools: Vec<Served>,
    /// Who is calling, where the transport does not say it with each request.
    principal: Option<Principal>,
}

struct Served {
    tool: Tool,
    /// Of its replies.
    schema: Validator,
    reads: bool,
}

impl<I: Instance> Tools<I> {
    /// # Errors
    ///
    /// If a schema of the component's is none.
    pub fn new(
        owner: Arc<Owner<I>>,
        metrics: Arc<Metrics>,
        descriptions: Vec<Description>,
        principal: Option<Principal>,
    ) -> Result<Tools<I>, Box<dyn Error + Send + Sync>> {
        let tools = descriptions.into_iter().map(served).collect::<Result<_, _>>()?;
        Ok(Tools(Arc::new(Shared { owner, metrics, tools, principal })))
    }

    fn served(&self, name: &str) -> Option<&Served> {
        self.0.tools.iter().find(|served| served.tool.name == name)
    }

    /// Not cut short by a client that cancels or goes away: what was accepted is done, and its receipt kept.
    async fn answered(&self, call: Call, context: &RequestContext<RoleServer>) -> Result<Reply, OwnerError> {
        let begun = Instant::now();
        let mut answer = pin!(self.0.owner.call(call));
        let Some(token) = context.meta.get_progress_token() else { return answer.await };
        let tell = || async {
            sleep(PROGRESS).await;
            let progress = ProgressNotificationParam::new(token.clone(), begun.elapsed().as_secs_f64());
            // Whoever has gone is not told.
            drop(context.peer.notify_progress(progress.with_message("waiting for the database")).await);
        };
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                // It can take as long as the client does not read, and has no end once the input has ended.
                () = tell() => {}
            }
        }
    }
}

fn served(description: Description) -> Result<Served, Box<dyn Error + Send + Sync>> {
    let name = description.name;
    let schema = |text: &str| {
        let schema = serde_json::from_str::<JsonObject>(text);
        schema.map_err(|error| format!("a schema of the tool {name}: {error}"))
    };
    let (input, output) = (schema(&description.input_schema)?, schema(&description.output_schema)?);
    let checked = jsonschema::validator_for(&Value::Object(output.clone()));
    let schema = checked.map_err(|error| format!("the output schema of the tool {name}: {error}"))?;
    let annotations = ToolAnnotations::with_title(description.title.clone())
        .read_only(description.read_only)
        .destructive(description.destructive)
        .idempotent(description.idempotent)
        .open_world(description.open_world);
    let tool = Tool::new(name, description.description, Arc::new(input)).with_raw_output_schema(Arc::new(output));
    let tool = tool.with_title(description.title).with_annotations(annotations);
    Ok(Served { tool, schema, reads: description.read_only })
}

impl<I: Instance> rmcp::ServerHandler for Tools<I> {
    fn get_info(&self) -> ServerConfig {
        let program = Implementation::new("counterfoil", env!("CARGO_PKG_VERSION"));
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities).with_server_info(program).with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        // The first one also knows structured content, which is all that we need.
        const VERSIONS: [ProtocolVersion; 3] =
            [ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];
        Cow::Borrowed(&VERSIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.tools.iter().map(|served| served.tool.clone()).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.served(name).map(|served| served.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(served) = self.served(&request.name) else {
            return Err(ErrorData::invalid_params("there is no such tool: list the tools", None));
        };
        let http = context.extensions.get::<axum::http::request::Parts>();
        let caller = self.0.principal.as_ref().or_else(|| http?.extensions.get()).cloned();
        let Some(caller) = caller else {
            return Err(ErrorData::internal_error("the transport does not say who is calling", None));
        };
        let (id, begun) = (Uuid::new_v4(), Instant::now());
        debug!(call = %id, tool = %served.tool.name, subject = caller.subject, workspace = caller.workspace, "call");
        let arguments = Value::Object(request.arguments.unwrap_or_default()).to_string();
        let invocation = Invocation { tool: served.tool.name.to_string(), arguments };
        let answer = self.answered(Call { id, caller, invocation }, &context).await;
        if let Err(OwnerError::Failed(why)) = &answer {
            error!(call = %id, tool = %served.tool.name, why, "no answer");
        }
        let answer = Answer::new(answer, &served.schema, served.reads);
        if answer.is_malformed {
            error!(call = %id, tool = %served.tool.name, "the reply is not as its schema says");
        }
        let outcome = match answer.outcome {
            "fresh" if served.reads => "read",
            outcome => outcome,
        };
        // A 128-bit number is a text in a JSON log.
        let (code, ms) = (answer.code.clone(), begun.elapsed().as_millis() as u64);
        debug!(call = %id, operation = answer.operation, outcome, code, ms, "answered");
        let labels = metrics::Answer { tool: served.tool.name.to_string(), outcome, code };
        self.0.metrics.answers.get_or_create(&labels).inc();
        Ok(answer.into_result().into())
    }
}
