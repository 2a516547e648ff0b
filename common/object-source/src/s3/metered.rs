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

use super::signed::asks_to_wait;
use crate::{Counters, RequestClass, limits::Requests};

/// Which requests are the bucket's, and where they are counted.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    authority: String,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
}

impl Wire {
    pub(super) fn new(authority: String, counters: Arc<Counters>, requests: Arc<Requests>) -> Self {
        Self { authority, counters, requests }
    }

    fn class(&self, request: &HttpRequest) -> RequestClass {
        let uri = request.uri();
        if uri.authority().is_none_or(|authority| authority.as_str() != self.authority) {
            return RequestClass::Other;
        }
        classify(request.method(), uri.query().unwrap_or_default())
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
#[derive(Debug)]
pub(super) struct Connector {
    wire: Wire,
}

impl Connector {
    pub(super) fn new(wire: Wire) -> Self {
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
        let counters = &self.wire.counters;
        counters.count(class);
        if matches!(class, RequestClass::Put | RequestClass::Part) {
            counters.send(request.body().content_length() as u64);
        }
        let answer = self.client.execute(request).await;
        if let Ok(answer) = &answer
            && class != RequestClass::Other
        {
            self.wire.heard(answer.status());
        }
        if answer.as_ref().map_or(true, |answer| answer.status().as_u16() >= 400) {
            counters.fail();
        }
        answer
    }
}

fn classify(method: &Method, query: &str) -> RequestClass {
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    match *method {
        Method::GET if has("list-type") => RequestClass::List,
        Method::GET if has("uploadId") || has("uploads") => RequestClass::Upload,
        Method::GET => RequestClass::Get,
        Method::HEAD => RequestClass::Head,
        Method::PUT if has("uploadId") => RequestClass::Part,
        Method::PUT => RequestClass::Put,
        Method::POST | Method::DELETE => RequestClass::Upload,
        _ => RequestClass::Other,
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(classify(&method, query), class, "{method} {query}");
        }
    }
}
