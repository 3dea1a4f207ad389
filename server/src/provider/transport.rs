//! Faults of the way to the provider and back, which every request to `/deployments` may meet.

use super::Provider;
use super::faults::{Fate, Fault};
use crate::connections::HangUp;
use axum::Json;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::json;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// Draws the request's fate, which what follows finds among the request's extensions.
pub async fn misbehave(State(provider): State<Arc<Provider>>, mut request: Request, next: Next) -> Response {
    let fate = provider.draw();
    tracing::debug!(method = %request.method(), path = request.uri().path(), ?fate, "asked");
    if let Some(answer) = before(&fate) {
        return answer;
    }
    request.extensions_mut().insert(fate.clone());
    after(&fate, next.run(request).await).await
}

fn before(fate: &Fate) -> Option<Response> {
    if fate.meets(Fault::DropBefore) {
        return Some(HangUp.into_response());
    }
    if fate.meets(Fault::ErrorBefore) {
        return Some(failed());
    }
    let pause = |status: StatusCode, pause: Duration| {
        let headers = [(RETRY_AFTER, retry_after(pause, fate.coin, SystemTime::now()))];
        (status, headers, Json(json!({ "detail": "Later, as told." }))).into_response()
    };
    if let Some(duration) = fate.duration(Fault::Throttle) {
        return Some(pause(StatusCode::TOO_MANY_REQUESTS, duration));
    }
    fate.duration(Fault::Unavailable).map(|duration| pause(StatusCode::SERVICE_UNAVAILABLE, duration))
}

async fn after(fate: &Fate, answer: Response) -> Response {
    if let Some(duration) = fate.duration(Fault::Late) {
        tokio::time::sleep(duration).await;
    }
    if fate.meets(Fault::ErrorAfter) {
        failed()
    } else if fate.meets(Fault::DropAfter) {
        HangUp.into_response()
    } else if fate.meets(Fault::HalfAnswer) {
        half(answer, fate.coin).await
    } else {
        answer
    }
}

fn failed() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "detail": "It went wrong, as told." }))).into_response()
}

/// In whole seconds, or as a date (RFC 9110, 10.2.3 and 5.6.7). Both are rounded up: a client that waits for less than
/// `pause` has misread it.
fn retry_after(pause: Duration, as_date: bool, now: SystemTime) -> HeaderValue {
    let seconds = pause.as_millis().div_ceil(1_000);
    if as_date {
        let date = httpdate::fmt_http_date(now + pause + Duration::from_millis(999));
        if let Ok(value) = HeaderValue::from_str(&date) {
            return value;
        }
    }
    HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// The answer with half its body, of a length that was told beforehand or else chunked.
async fn half(answer: Response, is_chunked: bool) -> Response {
    let (mut head, body) = answer.into_parts();
    // Our own answers stand in memory.
    let Ok(whole) = to_bytes(body, usize::MAX).await else { return HangUp.into_response() };
    head.headers.remove(CONTENT_LENGTH);
    if !is_chunked {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
    }
    Response::from_parts(head, Body::new(Half::Unsent(whole.slice(..whole.len() / 2))))
}

enum Half {
    Unsent(Bytes),
    /// hyper writes out what it has when a body makes it wait; it would throw it away when a body fails at once.
    Sent,
    Flushed,
}

impl HttpBody for Half {
    type Data = Bytes;
    type Error = HangUp;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HangUp>>> {
        match mem::replace(&mut *self, Half::Flushed) {
            Half::Unsent(bytes) => {
                *self = Half::Sent;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Half::Sent => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Half::Flushed => Poll::Ready(Some(Err(HangUp))),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_rounded_up_to_whole_seconds_in_both_forms() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap() + Duration::from_millis(600);
        for (pause, seconds, date) in [
            (0, "0", "Sun, 06 Nov 1994 08:49:38 GMT"),
            (1, "1", "Sun, 06 Nov 1994 08:49:38 GMT"),
            (400, "1", "Sun, 06 Nov 1994 08:49:38 GMT"),
            (401, "1", "Sun, 06 Nov 1994 08:49:39 GMT"),
            (1_000, "1", "Sun, 06 Nov 1994 08:49:39 GMT"),
            (86_400_000, "86400", "Mon, 07 Nov 1994 08:49:38 GMT"),
        ] {
            let pause = Duration::from_millis(pause);
            assert_eq!(retry_after(pause, false, now), seconds);
            assert_eq!(retry_after(pause, true, now), date);
        }
    }
}
