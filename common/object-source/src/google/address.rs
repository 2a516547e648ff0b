//! Where a bucket of GCS is.

use crate::{
    Error, LinkSpec,
    web::{path_of, url_with},
};

/// The address of one bucket, by path.
#[derive(Debug, Clone)]
pub(super) struct Address {
    endpoint: String,
    bucket: String,
}

const CLOUD: &str = "https://storage.googleapis.com";

impl Address {
    /// The link's own endpoint, else the environment's `GOOGLE_BASE_URL`, else the cloud's.
    pub(super) fn new(spec: &LinkSpec, bucket: &str) -> Result<Self, Error> {
        let environment = std::env::var("GOOGLE_BASE_URL").ok().filter(|text| !text.is_empty());
        Self::with(spec.endpoint().map(str::to_owned).or(environment), bucket)
    }

    fn with(endpoint: Option<String>, bucket: &str) -> Result<Self, Error> {
        let endpoint = endpoint.as_deref().unwrap_or(CLOUD).trim_end_matches('/').to_owned();
        let address = Self { endpoint, bucket: bucket.to_owned() };
        let host = address.authority();
        if host.is_empty() || host.contains(['/', '@', '?', '#']) {
            return Err(Error::invalid(format!(
                "the endpoint {:?} is no http:// or https:// address: check GOOGLE_BASE_URL",
                address.endpoint
            )));
        }
        Ok(address)
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Host and port.
    pub(super) fn authority(&self) -> &str {
        let (_, authority) = self.endpoint.split_once("://").unwrap_or_default();
        authority
    }

    pub(super) fn is_plain_http(&self) -> bool {
        self.endpoint.starts_with("http://")
    }

    /// The URL of a key, or of the bucket, with a query.
    pub(super) fn url(&self, key: Option<&str>, query: &[(&str, &str)]) -> String {
        url_with(format!("{}{}", self.endpoint, self.path(key)), query)
    }

    /// The path of a key: what a copy names its source by, too.
    pub(super) fn path(&self, key: Option<&str>) -> String {
        let bucket = path_of(&self.bucket);
        key.map_or_else(|| format!("/{bucket}"), |key| format!("/{bucket}/{}", path_of(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_endpoint_it_is_the_cloud() {
        let cloud = Address::with(None, "data").unwrap();
        assert_eq!(cloud.url(None, &[]), "https://storage.googleapis.com/data");
        assert!(!cloud.is_plain_http());
    }

    #[test]
    fn keys_and_queries_are_encoded() {
        let local = Address::with(Some("http://127.0.0.1:1/".to_owned()), "data").unwrap();
        assert_eq!(
            local.url(Some("a b/ü+c"), &[("uploadId", "x/y="), ("list-type", "2")]),
            "http://127.0.0.1:1/data/a%20b/%C3%BC%2Bc?uploadId=x%2Fy%3D&list-type=2"
        );
        for bad in ["http://", "nonsense", "http://h/x"] {
            assert!(Address::with(Some(bad.to_owned()), "data").is_err(), "{bad}");
        }
    }
}
