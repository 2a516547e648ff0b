//! Requests to buckets that are not S3's: authorized, sent, repeated, and their answers collected.
//!
//! What differs from kind to kind is a [`Dialect`]: what is done to a request before it leaves, and
//! what a refusal means. Requests go out through object_store's HTTP client, so that TLS, proxies
//! and counters are those of S3. Here is, too, how the HTTP clients of all kinds are set up.

use std::{fmt, future::poll_fn, time::Instant};

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use futures::{TryStreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header, response::Parts};
use object_store::{
    BackoffConfig, ClientOptions, PutPayload, RetryConfig,
    client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Error, Settings, metered::has_parameter, pace::Pace, transport};

pub(crate) mod body;

/// What is particular to a kind of bucket.
#[async_trait]
pub(crate) trait Dialect: fmt::Debug + Send + Sync + 'static {
    /// Adds credentials and what else every request carries.
    async fn authorize(&self, request: &mut HttpRequest) -> Result<(), Error>;

    /// Translates an answer that refuses.
    fn refusal(&self, head: &Parts, body: &[u8], ask: &Ask) -> Error;
}

/// Authorizes, sends, repeats.
#[derive(Debug)]
pub(crate) struct Web {
    client: HttpClient,
    dialect: Box<dyn Dialect>,
    endpoint: String,
    backoff: ExponentialBuilder,
    settings: Settings,
}

/// One request. A clone of it shares the body.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    method: Method,
    url: String,
    /// What it is about, for errors.
    key: String,
    headers: HeaderMap,
    body: PutPayload,
}

/// Why an attempt failed.
#[derive(Debug)]
struct Failed {
    error: Error,
    /// The server has surely not begun it.
    is_not_begun: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_not_begun: false }
    }
}

/// The whole answers here are XML of at most some thousand entries, each with a key of up to 3 KiB
/// encoded.
const ANSWER_LEN_MAX: usize = 32 * 1024 * 1024;

/// What needs no encoding in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a path.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// The path of a key, encoded.
pub(crate) fn path_of(key: &str) -> String {
    utf8_percent_encode(key, PATH).to_string()
}

/// A URL with a query.
pub(crate) fn url_with(mut url: String, query: &[(&str, &str)]) -> String {
    for (at, (name, value)) in query.iter().enumerate() {
        url.push(if at == 0 { '?' } else { '&' });
        url.extend(utf8_percent_encode(name, QUERY));
        url.push('=');
        url.extend(utf8_percent_encode(value, QUERY));
    }
    url
}

/// The settings of HTTP clients, for requests and for credentials.
pub(crate) fn client_options(settings: &Settings, plain_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(plain_http)
        .with_timeout_disabled()
        .with_connect_timeout(settings.connect_timeout)
        .with_read_timeout(settings.read_timeout)
        .with_pool_max_idle_per_host(settings.requests_in_flight_max)
}

/// A client for bodies that are not in memory, which none of object_store's sends: set up as those
/// are with [`client_options`], proxies of the environment included. Only its patience with a
/// silent server is not theirs, because a server says nothing while it is sent to, for minutes
/// perhaps: each request has a limit of its own.
pub(crate) fn streaming_client(
    settings: &Settings,
    plain_http: bool,
) -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .https_only(!plain_http)
        .connect_timeout(settings.connect_timeout)
        .pool_max_idle_per_host(settings.requests_in_flight_max)
        .http1_only()
        // What was sent cannot be sent elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| Error::unavailable(format!("no HTTP client: {error}")))
}

/// How often requests of object_store's own are repeated, those for credentials too.
pub(crate) fn retry_config(settings: &Settings) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: settings.retries_max,
        retry_timeout: settings.retry_timeout,
    }
}

impl Ask {
    pub(crate) fn new(method: Method, url: String, key: &str) -> Self {
        let (headers, body) = (HeaderMap::new(), PutPayload::default());
        Self { method, url, key: key.to_owned(), headers, body }
    }

    /// The same with a header; one that it has is replaced.
    ///
    /// # Errors
    /// [`Error::Invalid`] when name or value cannot travel in a header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Result<Self, Error> {
        let unsound = || Error::invalid(format!("the header {name:?} cannot be sent"));
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unsound())?;
        self.headers.insert(known, HeaderValue::from_str(value).map_err(|_| unsound())?);
        Ok(self)
    }

    pub(crate) fn with_body(self, body: impl Into<PutPayload>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// What it is about.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// Whether its query has a parameter, whatever its value.
    pub(crate) fn has_parameter(&self, name: &str) -> bool {
        let query = self.url.split_once('?').map_or("", |(_, query)| query);
        has_parameter(query, name)
    }

    /// Whether its answer has headers only.
    pub(crate) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }
}

impl Web {
    pub(crate) fn new(
        client: HttpClient,
        dialect: impl Dialect,
        endpoint: String,
        settings: &Settings,
    ) -> Self {
        let backoff = transport::backoff(settings);
        let (dialect, settings) = (Box::new(dialect), settings.clone());
        Self { client, dialect, endpoint, backoff, settings }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sends until an answer comes, at most as often as the settings say.
    pub(crate) async fn send(&self, ask: &Ask) -> Result<(HeaderMap, Bytes), Error> {
        let again = self.while_time_is(Error::is_transient);
        (|| self.send_once(ask)).retry(self.backoff).when(again).await
    }

    /// Sends; repeats only what the server refused to begin. For what has a condition: a repetition
    /// would be refused by what the first attempt made.
    pub(crate) async fn send_unless_begun(&self, ask: &Ask) -> Result<(HeaderMap, Bytes), Error> {
        let refused = self.while_time_is(|error| matches!(error, Error::Busy { .. }));
        (|| self.send_once(ask)).retry(self.backoff).when(refused).await
    }

    /// Sends what each repetition would do once more; repeats only what was surely not begun.
    pub(crate) async fn send_new(&self, ask: &Ask) -> Result<(HeaderMap, Bytes), Error> {
        let time = self.while_time_is(Error::is_transient);
        let again = |failed: &Failed| failed.is_not_begun && time(&failed.error);
        let sent = (|| self.attempt(ask)).retry(self.backoff).when(again).await;
        sent.map_err(|failed| failed.error)
    }

    /// As [`Self::send`]; an answer that `check` finds transiently wrong is asked for again.
    pub(crate) async fn send_checked(
        &self,
        ask: &Ask,
        check: impl Fn(&HeaderMap, &Bytes) -> Result<(), Error>,
    ) -> Result<Bytes, Error> {
        let once = || async {
            let (headers, bytes) = self.send_once(ask).await?;
            check(&headers, &bytes)?;
            Ok(bytes)
        };
        once.retry(self.backoff).when(self.while_time_is(Error::is_transient)).await
    }

    /// Sends without repeating.
    pub(crate) async fn send_once(&self, ask: &Ask) -> Result<(HeaderMap, Bytes), Error> {
        self.attempt(ask).await.map_err(|failed| failed.error)
    }

    async fn attempt(&self, ask: &Ask) -> Result<(HeaderMap, Bytes), Failed> {
        let (head, stream) = self.exchange(ask).await?;
        // A long completion may take minutes, over which a server may say nothing.
        let bytes = self.collect(stream, ask.method == Method::GET).await?;
        let is_document = ask.method != Method::GET && ask.method != Method::HEAD;
        if is_document && transport::is_error(&bytes) {
            return Err(self.dialect.refusal(&head, &bytes, ask).into());
        }
        Ok((head.headers, bytes))
    }

    /// Sends until an answer begins; its body is handed on.
    async fn open(&self, ask: &Ask) -> Result<Opened, Error> {
        let time = self.while_time_is(Error::is_transient);
        let again = |failed: &Failed| time(&failed.error);
        let opened = (|| self.exchange(ask)).retry(self.backoff).when(again).await;
        opened.map_err(|failed| failed.error)
    }

    async fn exchange(&self, ask: &Ask) -> Result<Opened, Failed> {
        let answer = self.client.execute(self.request(ask).await?).await;
        let answer = answer.map_err(|error| Failed {
            error: self.unreachable(&error),
            // Where nobody was reached, nobody has begun anything either.
            is_not_begun: error.kind() == HttpErrorKind::Connect,
        })?;
        let (head, body) = answer.into_parts();
        let stream = body.bytes_stream();
        if head.status.is_success() {
            return Ok((head, stream));
        }
        let bytes = self.collect(stream, true).await?;
        let is_not_begun = transport::is_refused(head.status, &bytes);
        Err(Failed { error: self.dialect.refusal(&head, &bytes, ask), is_not_begun })
    }

    async fn request(&self, ask: &Ask) -> Result<HttpRequest, Error> {
        let len = ask.body.content_length();
        // An empty stream would be sent in chunks, of which there are none, and not every server
        // reads that behind a DELETE.
        let body = match len {
            0 => HttpRequestBody::empty(),
            _ => HttpRequestBody::from(ask.body.clone()),
        };
        let mut request = http::Request::builder()
            .method(ask.method.clone())
            .uri(&ask.url)
            .body(body)
            .map_err(|error| Error::invalid(format!("no address for a request: {error}")))?;
        request.headers_mut().extend(ask.headers.clone());
        if matches!(ask.method, Method::PUT | Method::POST) {
            request.headers_mut().insert(header::CONTENT_LENGTH, len.into());
        }
        self.dialect.authorize(&mut request).await?;
        Ok(request)
    }

    async fn collect(&self, mut stream: HttpBody, has_pace: bool) -> Result<Bytes, Error> {
        let mut bytes = BytesMut::new();
        let mut pace = Pace::new(self.settings.read_timeout);
        loop {
            let next = tokio::select! {
                biased;
                next = stream.try_next() => next,
                () = poll_fn(|cx| pace.poll_too_slow(cx)), if has_pace => {
                    return Err(Error::unavailable("the bucket sends its answer too slowly"));
                }
            };
            let Some(piece) = next.map_err(|error| self.unreachable(&error))? else { break };
            pace.arrived(piece.len() as u64);
            if bytes.len() + piece.len() > ANSWER_LEN_MAX {
                return Err(Error::unavailable("the bucket's answer is longer than any can be"));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    fn unreachable(&self, error: &HttpError) -> Error {
        transport::unreachable(error, &self.endpoint)
    }

    /// Which errors lead to another attempt, of attempts that begin now.
    fn while_time_is(&self, when: impl Fn(&Error) -> bool) -> impl Fn(&Error) -> bool {
        let (begun, limit) = (Instant::now(), self.settings.retry_timeout);
        move |error| begun.elapsed() < limit && when(error)
    }
}

type HttpBody = BoxStream<'static, Result<Bytes, HttpError>>;

/// The head of an answer, and its body on the way.
type Opened = (Parts, HttpBody);
