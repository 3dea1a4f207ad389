//! The tools over HTTP, to whoever has a token.
//!
//! | Path | Answer |
//! |---|---|
//! | `POST /mcp` | the Model Context Protocol's streamable HTTP, without state: each request stands for itself |
//! | `GET /.well-known/oauth-protected-resource`, also with `/mcp` | what a client needs to know to ask for access (RFC 9728) |
//! | `GET /metrics` | what is counted, for a token with the permission `read-metrics` |
//!
//! The tokens are looked up at each request, before anything of it is read but its head.

use crate::mcp::Tools;
use crate::metrics::Metrics;
use crate::owner::Instance;
use crate::tokens::Tokens;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use host_example::Principal;
use reqwest::Url;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower_http::cors::{AllowHeaders, CorsLayer};
use tracing::debug;

/// The most bytes of a request: arguments of 65,536 bytes, each written as `\u0000`, and what is around them.
pub const MAX_REQUEST: usize = 512 << 10;

/// A request is large from here on, and only a few of those are in hand at a time.
const LARGE: usize = 64 << 10;
pub const MOST_LARGE: usize = 4;

/// How long it may take to read a request, after its head. To answer one takes 4.5 s at most, once it has a place.
pub const READING: Duration = Duration::from_secs(15);

/// The permission to read what is counted.
pub const READ_METRICS: &str = "read-metrics";

pub struct Gate {
    pub metrics: Arc<Metrics>,
    pub tokens: Tokens,
    /// Where clients reach `/mcp`.
    pub url: Url,
    /// Web pages of these origins may call.
    pub origins: Vec<String>,
    /// Places for large requests.
    pub large: Semaphore,
}

pub fn router<I: Instance>(gate: Gate, tools: Tools<I>) -> Router {
    // A name that leads here, and is none of these, is another site's, which has bound it to this address.
    let mut hosts = StreamableHttpServerConfig::default().allowed_hosts;
    hosts.extend(gate.url.host_str().map(str::to_owned));
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(hosts)
        .with_allowed_origins(gate.origins.clone())
        .enforce_origin_validation()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_REQUEST);
    let mcp = StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);

    let gate = Arc::new(gate);
    let closed = Router::new()
        .route_service("/mcp", mcp)
        .route("/metrics", get(metrics).with_state(Arc::clone(&gate)))
        .layer(from_fn_with_state(Arc::clone(&gate), authenticate));
    let origins = gate.origins.iter().filter_map(|origin| origin.parse().ok()).collect::<Vec<HeaderValue>>();
    // Before the token is asked for: a browser asks first whether it may send one.
    let pages = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([WWW_AUTHENTICATE]);
    let resource = get(resource).with_state(gate);
    closed
        .route("/.well-known/oauth-protected-resource", resource.clone())
        .route("/.well-known/oauth-protected-resource/mcp", resource)
        .layer(pages)
}

/// Says who is calling to what comes after, or answers why nobody is.
async fn authenticate(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let token = bearer(request.headers());
    let found = token.map_or(Ok(None), |token| gate.tokens.principal(token));
    match found {
        Ok(Some(principal)) => {
            // Nothing that comes after has a use for it.
            request.headers_mut().remove(AUTHORIZATION);
            request.extensions_mut().insert(principal);
            let (head, body) = request.into_parts();
            let body = match timeout(READING, to_bytes(body, MAX_REQUEST)).await {
                Ok(Ok(body)) => body,
                Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
                Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
            };
            // What it takes to understand a large request is many times its length.
            let place = if body.len() > LARGE { gate.large.acquire().await.ok() } else { None };
            let answer = next.run(Request::from_parts(head, body.into())).await;
            drop(place);
            answer
        }
        Ok(None) => {
            gate.metrics.unauthorized.inc();
            debug!(has_token = token.is_some(), "refused: no valid token");
            let error = if token.is_some() { ", error=\"invalid_token\"" } else { "" };
            let metadata = metadata(&gate.url);
            let challenge = format!("Bearer realm=\"counterfoil\", resource_metadata=\"{metadata}\"{error}");
            let body =
                Json(json!({ "error": "A valid token is needed: `Authorization: Bearer TOKEN`. Nothing was done." }));
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, challenge)], body).into_response()
        }
        Err(_) => {
            let body = Json(json!({ "error": "Tokens cannot be looked up. Nothing was done. Ask an operator." }));
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], body).into_response()
        }
    }
}

/// <https://www.rfc-editor.org/rfc/rfc6750#section-2.1>; the scheme's case does not matter.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// <https://www.rfc-editor.org/rfc/rfc9728#section-3.1>: the well-known path stands before the resource's own.
fn metadata(resource: &Url) -> Url {
    let mut url = resource.clone();
    url.set_path(&format!("/.well-known/oauth-protected-resource{}", resource.path()));
    url
}

async fn resource(State(gate): State<Arc<Gate>>) -> Json<serde_json::Value> {
    Json(json!({
        "resource": gate.url.as_str(),
        "resource_name": "counterfoil",
        "bearer_methods_supported": ["header"],
    }))
}

async fn metrics(State(gate): State<Arc<Gate>>, request: Request) -> Response {
    let principal = request.extensions().get::<Principal>();
    if !principal.is_some_and(|principal| principal.permissions.iter().any(|name| name == READ_METRICS)) {
        let body = Json(json!({ "error": format!("The token does not have the permission {READ_METRICS}.") }));
        return (StatusCode::FORBIDDEN, body).into_response();
    }
    match gate.metrics.text() {
        Ok(text) => {
            ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
