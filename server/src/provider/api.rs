//! The provider's HTTP interface.
//!
//! A request with JSON that is wrong is answered 400, with more than 64 KiB 413, and one that the store failed 500, all
//! with `{"detail":"..."}`. Only a look-up or a cancellation that finds nothing is answered `{"state":"absent"}`, so
//! that a wrong address cannot be taken for that.

use super::faults::{Fate, Fault, Faults};
use super::store::{Cancelling, Order, Taken, Terms};
use super::transport::misbehave;
use super::{Provider, milliseconds, now};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Query, State};
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a request's body.
const MAX_BODY: usize = 65_536;

/// Of a key and of a client reference, in bytes.
const MAX_NAME: usize = 255;

/// Serves these: `POST /deployments`, `GET /deployments?client_reference=REF`, `POST /deployments/cancel`,
/// `GET /effects`, and `GET` and `PUT /faults`.
pub fn router(provider: Arc<Provider>) -> Router {
    Router::new()
        .route("/deployments", post(take).get(look_up))
        .route("/deployments/cancel", post(cancel))
        .route_layer(from_fn_with_state(Arc::clone(&provider), misbehave))
        // What shows and commands the faults meets none.
        .route("/effects", get(effects))
        .route("/faults", get(show_faults).put(replace_faults))
        .fallback(async || Refused(StatusCode::NOT_FOUND, "There is nothing at this address.".to_owned()))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(provider)
}

/// The body of `POST /deployments`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submission {
    client_reference: String,
    request: Map<String, Value>,
}

/// The query of a look-up, and the body of a cancellation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    client_reference: String,
}

async fn take(
    State(provider): State<Arc<Provider>>,
    Extension(fate): Extension<Fate>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    let Submission { client_reference, request } = read(body)?;
    let client_reference = name("client_reference", client_reference)?;
    let order = Order { key: key(&headers)?, client_reference, request: Value::Object(request) };
    if fate.meets(Fault::Reject) {
        return Err(Refused(StatusCode::FORBIDDEN, "Rejected, as told.".to_owned()));
    }
    if let Some(duration) = fate.duration(Fault::UnderWay) {
        tokio::time::sleep(duration).await;
    }
    let terms = Terms {
        keys_known_for: provider.keys_known_for(),
        runs_for: milliseconds(provider.settings.finish_after),
        fails: fate.meets(Fault::Fail),
    };
    match provider.with_store(move |store| store.take(&order, &terms, now())).await? {
        Taken::New(deployment) => Ok((StatusCode::CREATED, Json(deployment)).into_response()),
        Taken::Known(deployment) => Ok(Json(deployment).into_response()),
        Taken::Conflict => {
            let detail = "This key was used with another body.".to_owned();
            Err(Refused(StatusCode::UNPROCESSABLE_ENTITY, detail))
        }
    }
}

async fn look_up(
    State(provider): State<Arc<Provider>>,
    Extension(fate): Extension<Fate>,
    query: Result<Query<Reference>, QueryRejection>,
) -> Result<Response, Refused> {
    if !provider.settings.contract.looks_up {
        return Ok(not_allowed("POST"));
    }
    let Query(Reference { client_reference }) = query.map_err(|error| bad_request(error.body_text()))?;
    let client_reference = name("client_reference", client_reference)?;
    if fate.meets(Fault::RefuseLookup) {
        return Err(Refused(StatusCode::FORBIDDEN, "Not shown, as told.".to_owned()));
    }
    let found = provider.with_store(move |store| store.find(&client_reference, now())).await?;
    Ok(found.map_or_else(absent, |deployment| Json(deployment).into_response()))
}

async fn cancel(
    State(provider): State<Arc<Provider>>,
    Extension(fate): Extension<Fate>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refused> {
    if !provider.settings.contract.cancels {
        return Ok(not_allowed(""));
    }
    let Reference { client_reference } = read(body)?;
    let client_reference = name("client_reference", client_reference)?;
    if fate.meets(Fault::RefuseCancel) {
        return Err(Refused(StatusCode::CONFLICT, "It can no longer be cancelled, as told.".to_owned()));
    }
    let cancelling = match (fate.meets(Fault::SucceedWhileCancelling), fate.coin) {
        (false, _) => Cancelling::Stop,
        (true, false) => Cancelling::OutrunLater,
        (true, true) => Cancelling::OutrunNow,
    };
    let found = provider.with_store(move |store| store.cancel(&client_reference, cancelling, now())).await?;
    Ok(found.map_or_else(absent, |deployment| Json(deployment).into_response()))
}

async fn effects(State(provider): State<Arc<Provider>>) -> Result<Json<Value>, Refused> {
    let by_reference: BTreeMap<String, u32> = provider.with_store(|store| store.effects(now())).await?;
    let total: u64 = by_reference.values().copied().map(u64::from).sum();
    let more_than_one: Vec<_> =
        by_reference.iter().filter(|(_, count)| **count > 1).map(|(client_reference, _)| client_reference).collect();
    Ok(Json(json!({ "total": total, "by_reference": by_reference, "more_than_one": more_than_one })))
}

async fn show_faults(State(provider): State<Arc<Provider>>) -> String {
    provider.faults().to_string()
}

async fn replace_faults(
    State(provider): State<Arc<Provider>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<String, Refused> {
    let text = String::from_utf8(bytes(body)?.to_vec()).map_err(|error| bad_request(error.to_string()))?;
    let faults: Faults = text.trim().parse().map_err(|error| bad_request(format!("{error}")))?;
    tracing::info!(%faults, "from now on");
    let shown = faults.to_string();
    *provider.faults() = faults;
    Ok(shown)
}

/// A status and what is wrong.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "detail": self.1 }))).into_response()
    }
}

/// What the store says.
impl From<String> for Refused {
    fn from(error: String) -> Self {
        tracing::error!(error, "the store failed");
        Refused(StatusCode::INTERNAL_SERVER_ERROR, error)
    }
}

fn bad_request(detail: impl Into<String>) -> Refused {
    Refused(StatusCode::BAD_REQUEST, detail.into())
}

fn absent() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "state": "absent" }))).into_response()
}

/// RFC 9110, 15.5.6: the answer names the methods that are allowed, of which there may be none.
fn not_allowed(allowed: &'static str) -> Response {
    let detail = json!({ "detail": "The contract has no such thing." });
    (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, allowed)], Json(detail)).into_response()
}

fn bytes(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refused> {
    body.map_err(|error| Refused(error.status(), error.body_text()))
}

fn read<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refused> {
    serde_json::from_slice(&bytes(body)?).map_err(|error| bad_request(error.to_string()))
}

fn key(headers: &HeaderMap) -> Result<String, Refused> {
    let mut keys = headers.get_all("Idempotency-Key").iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(bad_request("One Idempotency-Key is needed."));
    };
    let key = key.to_str().map_err(|_| bad_request("The Idempotency-Key is not ASCII."))?;
    name("Idempotency-Key", key.to_owned())
}

fn name(what: &str, text: String) -> Result<String, Refused> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(bad_request(format!("{what} has 1 to {MAX_NAME} bytes.")));
    }
    Ok(text)
}
