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

/// How a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Dialect {
    /// S3's XML, which Google's API has too.
    S3,
    /// Azure's.
    Azure,
}

/// A request as rules and storms see it: every attempt to do the same thing is the same request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) dialect: Dialect,
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
        let dialect = match request.headers().contains_key("x-ms-version") {
            true => Dialect::Azure,
            false => Dialect::S3,
        };
        let asked = match dialect {
            Dialect::Azure => classify_azure(method, query),
            Dialect::S3 => classify(method, query),
        };
        // Keys here need no encoding, so that the path is the key; ids of uploads differ each time.
        let kept = query.split('&').filter(|pair| !pair.starts_with("uploadId="));
        let kept: Vec<_> = kept.filter(|pair| !pair.is_empty()).collect();
        let target = match kept.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?{}", kept.join("&")),
        };
        Self { asked, dialect, target, range: range.map(str::to_owned) }
    }

    /// The prefix that is listed, or the key within the bucket.
    pub(super) fn key(&self) -> &str {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        if self.asked == Asked::List {
            return value_of(query, "prefix").unwrap_or_default();
        }
        // Of the container's account, if it is one, and of the bucket.
        let before = if self.dialect == Dialect::Azure { 2 } else { 1 };
        path.trim_start_matches('/').splitn(before + 1, '/').nth(before).unwrap_or_default()
    }

    /// The token of the page that a listing is to go on with.
    pub(super) fn token(&self) -> Option<&str> {
        self.parameter(match self.dialect {
            Dialect::S3 => "continuation-token",
            Dialect::Azure => "marker",
        })
    }

    /// The value of a parameter of the query, as it was sent.
    fn parameter(&self, name: &str) -> Option<&str> {
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

fn classify_azure(method: &Method, query: &str) -> Asked {
    match (method, value_of(query, "comp")) {
        (&Method::GET, Some("list")) => Asked::List,
        (&Method::GET, None) => Asked::Get,
        (&Method::HEAD, _) => Asked::Head,
        (&Method::PUT, Some("block")) => Asked::Part,
        (&Method::PUT, Some("blocklist")) => Asked::Complete,
        (&Method::PUT, None) => Asked::Put,
        _ => Asked::Other,
    }
}
