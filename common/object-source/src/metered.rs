//! The HTTP client under everything: counts each request where it leaves the process, and hears
//! from each answer whether the bucket wants fewer of them.
//!
//! Here, too, every change and every answer gets its bounds, whoever collects it. A change has time
//! that grows with its bytes, until its answer begins: the HTTP client's own patience with a silent
//! server runs while a body goes out, and would end every upload over a slow line. What refuses,
//! and what answers a change, is then taken whole, within a length and a time. What a read brings
//! is handed on as it comes; who reads it looks at its length and its pace.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use http::{Method, StatusCode};
use millrace_types::KIB;
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpService, ReqwestConnector,
    },
};
use tokio::time::{Instant, timeout};

use crate::{
    Counters, RequestClass,
    collect::{TOO_LONG, collect},
    limits::Requests,
    transport::{TooSlow, asks_to_wait},
};

/// How many times its patience a bucket may take for the answer to a change, from its beginning on.
const CHANGE_PATIENCE: u32 = 10;

/// What it may take for that to a completion or a copy at least, however small the patience: over a
/// long one S3 sends a blank now and then, for minutes.
const PUBLICATION_MIN: Duration = Duration::from_secs(600);

/// The slowest at which a bucket may take the bytes of a change, in bytes a second: dozens of
/// uploads may share a line.
const RATE_MIN: u64 = 128 * KIB;

/// Which requests are the bucket's, and where they are counted.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    authority: String,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
    classify: fn(&HttpRequest) -> RequestClass,
    patience: Duration,
}

impl Wire {
    /// Counts what goes to a host and port as `classify` says, and all else as "other"; tells
    /// `requests` what its answers say of their number. An answer that refuses comes within
    /// `patience`.
    pub(crate) fn new(
        authority: String,
        counters: Arc<Counters>,
        requests: Arc<Requests>,
        classify: fn(&HttpRequest) -> RequestClass,
        patience: Duration,
    ) -> Self {
        Self { authority, counters, requests, classify, patience }
    }

    /// Counts a request that leaves, with so many bytes.
    pub(crate) fn leaves(&self, class: RequestClass, len: u64) {
        self.counters.count(class);
        if matches!(class, RequestClass::Put | RequestClass::Part) {
            self.counters.send(len);
        }
    }

    /// Counts how a request ended, and hears what its answer says of their number, if one came.
    pub(crate) fn ended(&self, class: RequestClass, status: Option<StatusCode>) {
        if let Some(status) = status
            && class != RequestClass::Other
        {
            self.heard(status);
        }
        if status.is_none_or(|status| status.as_u16() >= 400) {
            self.counters.fail();
        }
    }

    /// How long it may take until the answer to a change begins. Over a publication a bucket may
    /// say nothing for minutes.
    fn limit_of_sending(&self, change: &HttpRequest) -> Duration {
        if is_publication(change) {
            return self.limit(change);
        }
        let len = change.body().content_length() as u64;
        self.patience + Duration::from_secs(len.div_ceil(RATE_MIN))
    }

    /// How long the answer to a change may take that goes well, from its beginning on.
    fn limit(&self, change: &HttpRequest) -> Duration {
        let limit = self.patience.saturating_mul(CHANGE_PATIENCE);
        match *change.method() == Method::POST || is_copy(change) {
            true => limit.max(PUBLICATION_MIN),
            false => limit,
        }
    }

    fn class(&self, request: &HttpRequest) -> RequestClass {
        let uri = request.uri();
        if uri.authority().is_none_or(|authority| authority.as_str() != self.authority) {
            return RequestClass::Other;
        }
        (self.classify)(request)
    }

    fn heard(&self, status: StatusCode) {
        let bucket = &self.authority;
        if !asks_to_wait(status) {
            if self.requests.answered() {
                tracing::info!(bucket, "the bucket takes as many requests as before");
            }
        } else if let Some(limit) = self.requests.slow_down(Instant::now()) {
            tracing::warn!(bucket, limit, "the bucket asks to slow down: fewer requests at a time");
        }
    }
}

/// Makes clients that count: one for all who ask for the same. Each reads the certificates that the
/// system trusts, for which it takes 10 ms.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    wire: Wire,
    /// By what their options print, which is all that these hold and cannot be compared otherwise.
    made: Arc<Mutex<HashMap<String, HttpClient>>>,
}

impl Connector {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire, made: Arc::default() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{options:?}");
        if let Some(client) = made.get(&name) {
            return Ok(client.clone());
        }
        let reads = ReqwestConnector::default().connect(options)?;
        let patient = options.clone().with_read_timeout_disabled();
        let (changes, wire) = (OnceLock::new(), self.wire.clone());
        let client = HttpClient::new(Metered { reads, patient, changes, wire });
        made.insert(name, client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct Metered {
    reads: HttpClient,
    /// The options of `changes`, which many daemons never need.
    patient: ClientOptions,
    changes: OnceLock<HttpClient>,
    wire: Wire,
}

impl Metered {
    /// Sends a change, until its answer begins.
    async fn change(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let limit = self.wire.limit_of_sending(&request);
        let len = request.body().content_length() as u64;
        let answer = timeout(limit, self.changes()?.execute(request)).await;
        answer.unwrap_or_else(|_| Err(late(len, limit)))
    }

    fn changes(&self) -> Result<&HttpClient, HttpError> {
        if let Some(changes) = self.changes.get() {
            return Ok(changes);
        }
        let made = ReqwestConnector::default().connect(&self.patient);
        let made = made.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        // Of two that are made at the same time one is dropped.
        Ok(self.changes.get_or_init(|| made))
    }
}

#[async_trait]
impl HttpService for Metered {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let class = self.wire.class(&request);
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let limit = self.wire.limit(&request);
        self.wire.leaves(class, request.body().content_length() as u64);
        let answer = match is_read {
            true => self.reads.execute(request).await,
            false => self.change(request).await,
        };
        self.wire.ended(class, answer.as_ref().ok().map(|answer| answer.status()));
        let answer = answer?;
        match (answer.status().is_success(), is_read) {
            (true, true) => Ok(answer),
            (true, false) => bounded(answer, limit).await,
            (false, _) => bounded(answer, self.wire.patience).await,
        }
    }
}

/// No answer has begun to a change of so many bytes.
fn late(len: u64, limit: Duration) -> HttpError {
    match len {
        0 => HttpError::new(HttpErrorKind::Timeout, io::Error::from(io::ErrorKind::TimedOut)),
        _ => HttpError::new(HttpErrorKind::Timeout, TooSlow { len, seconds: limit.as_secs() }),
    }
}

/// The same answer once all of it is there.
async fn bounded(answer: HttpResponse, limit: Duration) -> Result<HttpResponse, HttpError> {
    let (head, body) = answer.into_parts();
    let collected = timeout(limit, collect(head.status, body.bytes_stream())).await;
    let late = || {
        let words = "the bucket sends its answer too slowly";
        HttpError::new(HttpErrorKind::Interrupted, io::Error::other(words))
    };
    let long = || HttpError::new(HttpErrorKind::Decode, io::Error::other(TOO_LONG));
    let body = collected.map_err(|_| late())??.ok_or_else(long)?;
    Ok(HttpResponse::from_parts(head, body.into()))
}

/// The requests of S3, and of the XML API of GCS, which took over its queries.
pub(crate) fn classify(request: &HttpRequest) -> RequestClass {
    let query = request.uri().query().unwrap_or_default();
    let has = |name: &str| has_parameter(query, name);
    match *request.method() {
        Method::GET if has("list-type") => RequestClass::List,
        Method::GET if has("uploadId") || has("uploads") => RequestClass::Upload,
        Method::GET => RequestClass::Get,
        Method::HEAD => RequestClass::Head,
        Method::PUT if has("uploadId") => RequestClass::Part,
        // A copy publishes what was uploaded by parts.
        Method::PUT if is_copy(request) => RequestClass::Upload,
        Method::PUT => RequestClass::Put,
        Method::POST | Method::DELETE => RequestClass::Upload,
        _ => RequestClass::Other,
    }
}

/// Whether a request makes an object of what was uploaded by parts.
fn is_publication(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let completes = *request.method() == Method::POST && has_parameter(query, "uploadId");
    completes || is_copy(request)
}

fn is_copy(request: &HttpRequest) -> bool {
    request.headers().contains_key("x-goog-copy-source")
}

/// Whether a query has a parameter, whatever its value.
pub(crate) fn has_parameter(query: &str, name: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_and_query() {
        for (method, query, class) in [
            (Method::GET, "", RequestClass::Get),
            (Method::GET, "delimiter=%2F&list-type=2", RequestClass::List),
            (Method::GET, "uploadId=x", RequestClass::Upload),
            (Method::GET, "encoding-type=url&prefix=a&uploads=", RequestClass::Upload),
            (Method::HEAD, "", RequestClass::Head),
            (Method::PUT, "", RequestClass::Put),
            (Method::PUT, "partNumber=1&uploadId=x", RequestClass::Part),
            (Method::POST, "uploads=", RequestClass::Upload),
            (Method::DELETE, "uploadId=x", RequestClass::Upload),
        ] {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = format!("http://h/b/k?{query}").parse().unwrap();
            *request.method_mut() = method.clone();
            assert_eq!(classify(&request), class, "{method} {query}");
        }
    }

    fn wire(patience: u64) -> Wire {
        let (counters, requests) = (Arc::default(), Arc::new(Requests::new(1)));
        Wire::new("h".to_owned(), counters, requests, classify, Duration::from_secs(patience))
    }

    #[test]
    fn who_asks_for_the_same_client_gets_one_and_who_asks_for_another_has_its_own() {
        let connector = Connector::new(wire(5));
        let options = || ClientOptions::new().with_connect_timeout(Duration::from_secs(7));
        for of in [options(), options(), options().with_allow_http(true), options()] {
            connector.clone().connect(&of).unwrap();
        }
        assert_eq!(connector.made.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_publication_has_its_minutes_however_little_patience_there_is() {
        let limit = |patience, method: Method, header: Option<&'static str>| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method;
            if let Some(header) = header {
                request.headers_mut().insert(header, http::HeaderValue::from_static("/b/k"));
            }
            wire(patience).limit(&request).as_secs()
        };
        assert_eq!(limit(5, Method::POST, None), 600);
        assert_eq!(limit(100, Method::POST, None), 1000);
        assert_eq!(limit(5, Method::PUT, Some("x-goog-copy-source")), 600);
        assert_eq!(limit(5, Method::PUT, None), 50);
        assert_eq!(limit(5, Method::DELETE, None), 50);
    }

    #[test]
    fn time_until_an_answer_begins_grows_with_the_bytes_that_are_sent() {
        let limit = |method: Method, query: &str, len: usize| {
            let mut request = HttpRequest::new(HttpRequestBody::from(vec![0_u8; len]));
            *request.method_mut() = method;
            *request.uri_mut() = format!("http://h/b/k?{query}").parse().unwrap();
            wire(60).limit_of_sending(&request).as_secs()
        };
        assert_eq!(limit(Method::PUT, "", 0), 60);
        assert_eq!(limit(Method::PUT, "", 1), 61);
        assert_eq!(limit(Method::PUT, "partNumber=1&uploadId=x", 8 << 20), 60 + 64);
        assert_eq!(limit(Method::POST, "uploadId=x", 100), 600);
        // Nothing takes long that begins an upload, or gives a token.
        assert_eq!(limit(Method::POST, "uploads=", 0), 60);
        assert_eq!(limit(Method::POST, "", 300), 61);
        assert_eq!(limit(Method::DELETE, "uploadId=x", 0), 60);
    }
}
