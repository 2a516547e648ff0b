//! Where a bucket is: endpoint, region, and the URLs of requests.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Error, LinkSpec};

/// The address of one bucket, by path.
#[derive(Debug, Clone)]
pub(super) struct Address {
    endpoint: String,
    region: String,
    bucket: String,
}

/// What signature version 4 leaves as it is in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a path.
const PATH: &AsciiSet = &QUERY.remove(b'/');

impl Address {
    /// The link's own endpoint and region, else the environment's, else the cloud's.
    pub(super) fn new(
        spec: &LinkSpec,
        bucket: &str,
        environment: &AmazonS3Builder,
    ) -> Result<Self, Error> {
        let variable = |key| environment.get_config_value(&key).filter(|text| !text.is_empty());
        let region = spec
            .region()
            .map(str::to_owned)
            .or_else(|| variable(AmazonS3ConfigKey::Region))
            .or_else(|| variable(AmazonS3ConfigKey::DefaultRegion))
            .unwrap_or_else(|| "us-east-1".to_owned());
        let from_environment = || {
            variable(AmazonS3ConfigKey::S3Endpoint)
                .or_else(|| variable(AmazonS3ConfigKey::Endpoint))
        };
        let endpoint = match spec.endpoint().map(str::to_owned).or_else(from_environment) {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.{}", cloud_domain(&region)),
        };
        let address = Self { endpoint, region, bucket: bucket.to_owned() };
        let host = address.authority();
        if host.is_empty() || host.contains(['/', '@', '?', '#']) {
            return Err(Error::invalid(format!(
                "the endpoint {:?} is no http:// or https:// address: check AWS_ENDPOINT_URL",
                address.endpoint
            )));
        }
        Ok(address)
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn region(&self) -> &str {
        &self.region
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
        let mut url = format!("{}/{}", self.endpoint, self.bucket);
        if let Some(key) = key {
            url.push('/');
            url.extend(utf8_percent_encode(key, PATH));
        }
        for (at, (name, value)) in query.iter().enumerate() {
            url.push(if at == 0 { '?' } else { '&' });
            url.extend(utf8_percent_encode(name, QUERY));
            url.push('=');
            url.extend(utf8_percent_encode(value, QUERY));
        }
        url
    }
}

fn cloud_domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(endpoint: Option<&str>, region: Option<&str>) -> Address {
        let spec = LinkSpec::new("s3://data", endpoint, region, None).unwrap();
        Address::new(&spec, "data", &AmazonS3Builder::new()).unwrap()
    }

    #[test]
    fn without_an_endpoint_the_region_names_it() {
        let cloud = address(None, Some("eu-west-3"));
        assert_eq!(cloud.url(None, &[]), "https://s3.eu-west-3.amazonaws.com/data");
        assert!(!cloud.is_plain_http());
        let china = address(None, Some("cn-north-1"));
        assert_eq!(china.authority(), "s3.cn-north-1.amazonaws.com.cn");
    }

    #[test]
    fn keys_and_queries_are_encoded_as_they_are_signed() {
        let local = address(Some("http://127.0.0.1:8333"), None);
        assert_eq!(
            local.url(Some("a b/ü+c"), &[("uploadId", "x/y="), ("list-type", "2")]),
            "http://127.0.0.1:8333/data/a%20b/%C3%BC%2Bc?uploadId=x%2Fy%3D&list-type=2"
        );
    }
}
