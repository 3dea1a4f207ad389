//! One attempt at the provider, and what is known after it. The provider's side:
//!
//! | Request | Answer |
//! |---|---|
//! | `POST URL`, `Idempotency-Key: KEY`, `{"client_reference":REF,"request":{...}}` | 2xx and a deployment |
//! | `GET URL?client_reference=REF` | 2xx and a deployment, or 404 and `{"state":"absent"}` |
//! | `POST URL/cancel`, `{"client_reference":REF}` | 2xx and a deployment, 404 and `{"state":"absent"}`, or 409 |
//!
//! A deployment is `{"id":ID,"state":"running"|"succeeded"|"failed"|"cancelled"}`, if need be with a `"detail"`.
//!
//! What never left is told apart from all that may have: only a connection that was never made (refused, no such name, no
//! TLS, or not in half the time of the attempt) is `not-sent`.

use host_example::{Observation, Step, Task};
use reqwest::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url, redirect, retry};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::error::Error;
use std::time::{Duration, SystemTime};

/// The most bytes of an answer that are read.
const MAX_BODY: usize = 64 * 1024;
/// The pause after 429 without `Retry-After`, in milliseconds.
const DEFAULT_PAUSE_MS: u32 = 1000;

pub struct Provider {
    client: Client,
    url: Url,
    cancel_url: Url,
}

/// What the provider says of a request. A refusal has a detail alone.
#[derive(Deserialize)]
struct Deployment {
    id: Option<String>,
    #[serde(default)]
    state: String,
    detail: Option<String>,
}

impl Provider {
    /// `timeout` is for one attempt as a whole, from looking up the name to the end of the answer.
    ///
    /// # Errors
    ///
    /// If the token is no header's value, or there is no TLS.
    pub fn new(url: Url, token: Option<&str>, timeout: Duration) -> Result<Provider, Box<dyn Error + Send + Sync>> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .default_headers(headers)
            .timeout(timeout)
            // So that a provider that does not answer at all has been sent nothing.
            .connect_timeout(timeout / 2)
            // Another place is not the one that was vouched for.
            .redirect(redirect::Policy::none())
            // One layer retries. A connection of its own for each attempt, since on one that was kept nobody can tell whether
            // the request was read before it was closed.
            .retry(retry::never())
            .pool_max_idle_per_host(0)
            // Nor does a proxy stand between, whose errors are not the provider's.
            .no_proxy()
            .http1_only()
            .build()?;
        let mut cancel_url = url.clone();
        cancel_url.set_path(&format!("{}/cancel", url.path().trim_end_matches('/')));
        Ok(Provider { client, url, cancel_url })
    }

    /// Carries out one task.
    pub async fn attempt(&self, task: &Task) -> Observation {
        let reference = task.operation_id.as_str();
        let request = match task.step {
            Step::Submit => {
                // A request that is no JSON was stored by other means than the tool.
                let Ok(request) = serde_json::from_str::<Value>(&task.request) else {
                    return Observation::NotSent("the stored request is no JSON".to_owned());
                };
                self.post(&self.url, &json!({ "client_reference": reference, "request": request }))
                    .header("Idempotency-Key", &task.provider_key)
            }
            Step::Lookup => {
                let mut url = self.url.clone();
                url.query_pairs_mut().append_pair("client_reference", reference);
                // An answer of a while ago is none.
                self.client.request(Method::GET, url).header(CACHE_CONTROL, "no-cache")
            }
            Step::Cancel => self.post(&self.cancel_url, &json!({ "client_reference": reference })),
        };
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() || error.is_builder() => return Observation::NotSent(reason(&error)),
            Err(error) => return Observation::Unclear(reason(&error)),
        };
        let status = response.status();
        let pause = retry_after(response.headers());
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_BODY => body.extend_from_slice(&chunk),
                Ok(None) => break,
                // What a status alone says, it says without a body.
                Ok(Some(_)) | Err(_) if !status.is_success() => break,
                Ok(Some(_)) => return Observation::Unclear(format!("{status} with more than {MAX_BODY} bytes")),
                Err(error) => return Observation::Unclear(reason(&error)),
            }
        }
        understand(task.step, status, pause, &body)
    }

    fn post(&self, url: &Url, body: &Value) -> RequestBuilder {
        self.client.post(url.clone()).header(CONTENT_TYPE, "application/json").body(body.to_string())
    }
}

/// What an answer means.
fn understand(step: Step, status: StatusCode, pause: Option<u32>, body: &[u8]) -> Observation {
    // An object, and not its values in a row, which serde would take as well.
    let object = serde_json::from_slice::<Map<String, Value>>(body).ok();
    let deployment = object.and_then(|object| Deployment::deserialize(Value::Object(object)).ok());
    let said = |status| match deployment.as_ref().and_then(|deployment| deployment.detail.as_deref()) {
        Some(detail) => format!("{status}: {detail}"),
        None => format!("{status}"),
    };
    match status {
        StatusCode::TOO_MANY_REQUESTS => Observation::Throttled(pause.unwrap_or(DEFAULT_PAUSE_MS)),
        StatusCode::SERVICE_UNAVAILABLE if let Some(pause) = pause => Observation::Throttled(pause),
        _ if status.is_success() => deployed(deployment, status),
        // In these words alone: a wrong URL answers 404 as well.
        StatusCode::NOT_FOUND if step != Step::Submit => match deployment {
            Some(Deployment { state, .. }) if state == "absent" => Observation::Absent,
            _ => Observation::Unclear(format!("{status}, without saying that the deployment is absent")),
        },
        // Whatever else is wrong with the request to cancel says nothing about whether it can be cancelled.
        StatusCode::CONFLICT if step == Step::Cancel => Observation::Rejected(said(status)),
        _ if step == Step::Cancel => Observation::Unclear(said(status)),
        // The provider may be at work on an earlier copy of the same request.
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_EARLY => {
            Observation::Unclear(said(status))
        }
        _ if status.is_client_error() => {
            // A wrong URL or token looks the same.
            tracing::warn!(status = status.as_u16(), "the provider refuses this request for good");
            Observation::Rejected(said(status))
        }
        _ => Observation::Unclear(said(status)),
    }
}

fn deployed(deployment: Option<Deployment>, status: StatusCode) -> Observation {
    let Some(Deployment { id, state, detail }) = deployment else {
        return Observation::Unclear(format!("{status}, but the answer is no deployment"));
    };
    // As the component takes it.
    let id = id.filter(|id| (1..=200).contains(&id.chars().count()) && !id.contains(char::is_control));
    match (state.as_str(), id) {
        ("running", Some(id)) => Observation::Accepted(id),
        ("succeeded", Some(id)) => Observation::Finished(id),
        ("failed", _) => Observation::Failed(detail.unwrap_or_else(|| "the provider gave no reason".to_owned())),
        ("cancelled", _) => Observation::Cancelled,
        ("running" | "succeeded", None) => {
            Observation::Unclear(format!("{status}, but without an id that can be used"))
        }
        _ => Observation::Unclear(format!("{status}, but in a state that is not known")),
    }
}

/// `Retry-After` in milliseconds, given in seconds or as a date
/// (<https://www.rfc-editor.org/rfc/rfc9110#name-retry-after>).
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    Some(u32::try_from(pause.as_millis()).unwrap_or(u32::MAX))
}

/// The error and its causes, without the URL.
fn reason(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() { "timed out".to_owned() } else { String::new() };
    let mut cause = error.source();
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}
