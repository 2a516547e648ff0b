//! What a request asks a bucket for.

use hyper::{Method, body::Incoming, header};

/// The kinds of requests that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asked {
    /// The bytes of an object, or some of them.
    Get,
    /// What an object is.
    Head,
    /// Keys below a prefix.
    List,
    /// An object stored whole.
    Put,
    /// A part stored.
    Part,
    /// An upload begun.
    Create,
    /// An upload completed.
    Complete,
    /// An upload given up.
    Abort,
    /// Anything else.
    Other,
}

/// A request as rules and storms see it: every attempt to do the same thing is the same request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) asked: Asked,
    /// The path and query as they were sent, without what differs from attempt to attempt.
    pub(super) target: String,
    /// The bytes that are asked for.
    range: Option<String>,
}

impl Request {
    pub(super) fn new(request: &hyper::Request<Incoming>) -> Self {
        let (method, uri) = (request.method(), request.uri());
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let range = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok());
        let asked = classify(method, query);
        // Keys here need no encoding, so that the path is the key; ids of uploads differ each time.
        let kept = query.split('&').filter(|pair| !pair.starts_with("uploadId="));
        let kept: Vec<_> = kept.filter(|pair| !pair.is_empty()).collect();
        let target = match kept.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?{}", kept.join("&")),
        };
        Self { asked, target, range: range.map(str::to_owned) }
    }

    /// The prefix that is listed, or the key within the bucket.
    pub(super) fn key(&self) -> &str {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        if self.asked == Asked::List {
            return value_of(query, "prefix").unwrap_or_default();
        }
        path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key)
    }

    /// The value of a parameter of the query, as it was sent.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        value_of(self.target.split_once('?')?.1, name)
    }
}

fn value_of<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn classify(method: &Method, query: &str) -> Asked {
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    match *method {
        Method::GET if has("list-type") => Asked::List,
        Method::GET if query.is_empty() => Asked::Get,
        Method::HEAD => Asked::Head,
        Method::PUT if has("uploadId") => Asked::Part,
        Method::PUT => Asked::Put,
        Method::POST if has("uploads") => Asked::Create,
        Method::POST if has("uploadId") => Asked::Complete,
        Method::DELETE if has("uploadId") => Asked::Abort,
        _ => Asked::Other,
    }
}
