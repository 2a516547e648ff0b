//! `GET /metrics` over plain HTTP, for a Prometheus server on a trusted network.
//!
//! Off unless an address is set. It carries no secrets and accepts no commands; it is bounded in
//! connections, header bytes and time, so that a broken scraper costs the daemon nothing.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::Metrics;

/// The table `[metrics]` of every daemon's settings.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// Where `/metrics` is served, such as `127.0.0.1:9440`. Default: nowhere. The endpoint has no
    /// authentication: bind it to a trusted network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
}

/// Serves `metrics` on `settings.address` in a task of the current runtime; nothing without one.
///
/// Gives back the address that is listened on (its port is the chosen one where 0 was asked for).
/// The endpoint ends with the runtime: it has nothing to drain.
///
/// # Errors
/// [`BindError`] when the address cannot be listened on.
pub async fn serve(
    settings: &MetricsSettings,
    metrics: Arc<Metrics>,
) -> Result<Option<SocketAddr>, BindError> {
    let Some(address) = settings.address else {
        return Ok(None);
    };
    let fail = |error| BindError { address, error };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    tracing::info!(address = %bound, "metrics are served");
    tokio::spawn(accept(listener, metrics));
    Ok(Some(bound))
}

/// The metrics address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}: {error} (set another metrics.address, or none)")]
pub struct BindError {
    address: SocketAddr,
    error: std::io::Error,
}

async fn accept(listener: TcpListener, metrics: Arc<Metrics>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            unreachable!("the semaphore is never closed");
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = Arc::clone(&metrics);
                tokio::spawn(async move {
                    converse(stream, metrics).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to come free.
                tracing::warn!(%error, "cannot accept a metrics connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(move |request| {
        let response = answer(&request, &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "metrics connection ends"),
    }
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, OPENMETRICS, metrics.encode()),
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Scrapers at once: two Prometheus servers, a person, and room.
const CONNECTIONS_MAX: usize = 8;
/// A scraper sends its request at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the usual scrape interval of one minute, so that connections are kept between two.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(180);
/// The smallest that hyper takes; a scrape request has some hundred bytes.
const HEADER_BYTES_MAX: usize = 8192;
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        reply
    }

    #[tokio::test]
    async fn a_scrape_gets_the_text_and_anything_else_an_error() {
        let settings = MetricsSettings { address: Some(([127, 0, 0, 1], 0).into()) };
        let bound = serve(&settings, Arc::new(Metrics::new())).await.unwrap().unwrap();
        let end = "Host: x\r\nConnection: close\r\n\r\n";
        let good = ask(bound, &format!("GET /metrics HTTP/1.1\r\n{end}")).await;
        assert!(good.starts_with("HTTP/1.1 200"), "{good}");
        assert!(good.ends_with("# EOF\n"), "{good}");
        let bad = ask(bound, &format!("GET / HTTP/1.1\r\n{end}")).await;
        assert!(bad.starts_with("HTTP/1.1 404"), "{bad}");
        let bad = ask(bound, &format!("POST /metrics HTTP/1.1\r\n{end}")).await;
        assert!(bad.starts_with("HTTP/1.1 405"), "{bad}");
        let bad = ask(bound, "garbage\r\n\r\n").await;
        assert!(bad.starts_with("HTTP/1.1 400"), "{bad}");
    }

    #[tokio::test]
    async fn a_taken_address_is_an_error_that_says_what_to_set() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = MetricsSettings { address: Some(taken.local_addr().unwrap()) };
        let error = serve(&settings, Arc::new(Metrics::new())).await.unwrap_err();
        assert!(error.to_string().contains("metrics.address"), "{error}");
        let none = serve(&MetricsSettings::default(), Arc::new(Metrics::new())).await;
        assert!(none.unwrap().is_none());
    }
}
