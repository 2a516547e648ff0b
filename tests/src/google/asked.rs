//! A request, taken apart.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::{HeaderMap, Method, http::request::Parts};
use percent_encoding::percent_decode_str;

/// A request.
pub(super) struct Asked {
    pub(super) method: Method,
    /// Path and query, as they came.
    pub(super) target: String,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

pub(super) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl Asked {
    pub(super) fn new(head: &Parts, body: Bytes) -> Self {
        let path = head.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let pairs = head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self {
            method: head.method.clone(),
            target: head.uri.to_string(),
            bucket: decoded(bucket),
            key: decoded(key),
            query: pairs.map(|(name, value)| (decoded(name), decoded(value))).collect(),
            headers: head.headers.clone(),
            body,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    pub(super) fn metadata(&self) -> BTreeMap<String, String> {
        let pairs = self.headers.iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("x-goog-meta-")?;
            Some((name.to_owned(), value.to_str().ok()?.to_owned()))
        });
        pairs.collect()
    }

    /// Whether it changes nothing.
    pub(super) fn reads(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }
}
