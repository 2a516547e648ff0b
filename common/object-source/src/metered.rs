//! The HTTP client under everything: counts each request where it leaves the process, and hears
//! from each answer whether the bucket wants fewer of them.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, StatusCode};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};
use tokio::time::Instant;

use crate::{Counters, RequestClass, limits::Requests, transport::asks_to_wait};

/// Which requests are the bucket's, and where they are counted.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    authority: String,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
    classify: fn(&HttpRequest) -> RequestClass,
}

impl Wire {
    /// Counts what goes to a host and port as `classify` says, and all else as "other"; tells
    /// `requests` what its answers say of their number.
    pub(crate) fn new(
        authority: String,
        counters: Arc<Counters>,
        requests: Arc<Requests>,
        classify: fn(&HttpRequest) -> RequestClass,
    ) -> Self {
        Self { authority, counters, requests, classify }
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

/// Makes clients that count.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    wire: Wire,
}

impl Connector {
    pub(crate) fn new(wire: Wire) -> Self {
        Self { wire }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Metered { client, wire: self.wire.clone() }))
    }
}

#[derive(Debug)]
struct Metered {
    client: HttpClient,
    wire: Wire,
}

#[async_trait]
impl HttpService for Metered {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let class = self.wire.class(&request);
        self.wire.leaves(class, request.body().content_length() as u64);
        let answer = self.client.execute(request).await;
        self.wire.ended(class, answer.as_ref().ok().map(|answer| answer.status()));
        answer
    }
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
        Method::PUT if request.headers().contains_key("x-goog-copy-source") => RequestClass::Upload,
        Method::PUT => RequestClass::Put,
        Method::POST | Method::DELETE => RequestClass::Upload,
        _ => RequestClass::Other,
    }
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
}
