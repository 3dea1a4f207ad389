//! Connections, served by hand rather than by `axum::serve`, which cannot close one without an answer.

use axum::Router;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// How long a client may leave an answer unread.
const UNREAD: Duration = Duration::from_secs(30);

/// Serves until `stop` is ready. More than `most` connections wait to be accepted. A request that was read is carried out, though
/// its client goes away. An answer with [`HangUp`] among its extensions is not written: its connection is closed.
///
/// Once it is to stop, requests that are being answered may take so long as `last_answers`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    last_answers: Duration,
    stop: impl Future<Output = ()>,
) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(most));
    let mut stop = pin!(stop);
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            listener.accept().await.map(|(stream, _)| (stream, place))
        };
        let accepted = tokio::select! {
            accepted = accept => accepted,
            () = stop.as_mut() => break,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, for one, which takes a moment to mend.
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(UNREAD));
        let connection = connections.watch(connection(Box::pin(stream), router.clone()));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(last_answers, connections.shutdown()).await.is_err() {
        tracing::warn!("stopping in the middle of requests");
    }
}

/// One connection, to its end.
pub fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    router: Router,
) -> impl GracefulConnection<Error = hyper::Error> {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        // A task of its own goes on when the client has gone. It begins here, and not in the future, which hyper may
        // drop before it has ever asked for it: a client can have gone when its request is read.
        let answering = tokio::spawn(router.call(request));
        async move {
            match answering.await {
                // A service's error makes hyper close the connection.
                Ok(Ok(answer)) if answer.extensions().get::<HangUp>().is_some() => Err(HangUp),
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(never)) => match never {},
                Err(error) => {
                    tracing::error!(%error, "a request came to no end");
                    Err(HangUp)
                }
            }
        }
    });
    // The timer bounds the wait for a request's head, by hyper's 30 seconds. Whoever says that no more comes still reads.
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).half_close(true);
    http.serve_connection(TokioIo::new(stream), service)
}

/// Marks an answer that is not to be written: [`connection`] makes hyper close the connection instead.
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

impl IntoResponse for HangUp {
    fn into_response(self) -> Response {
        let mut answer = Response::default();
        answer.extensions_mut().insert(self);
        answer
    }
}

impl Display for HangUp {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("the connection was closed without an answer")
    }
}

impl Error for HangUp {}
