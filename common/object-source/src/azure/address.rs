//! Where a container is: an account's own host, or a path on another.

use std::net::IpAddr;

use url::{Host, Url};

use crate::{
    Error, LinkSpec,
    web::{path_of, url_with},
};

/// The address of one container.
#[derive(Debug, Clone)]
pub(super) struct Address {
    /// Scheme, host and perhaps the account.
    base: String,
    container: String,
}

/// Whether the endpoint is one without TLS.
pub(super) fn is_plain_http(spec: &LinkSpec) -> bool {
    endpoint(spec).is_some_and(|endpoint| endpoint.starts_with("http://"))
}

/// The link's own endpoint, else the environment's.
fn endpoint(spec: &LinkSpec) -> Option<String> {
    let variable = || {
        let names = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
        let told = names.into_iter().find_map(|name| std::env::var(name).ok());
        told.filter(|text| !text.is_empty())
    };
    spec.endpoint().map(str::to_owned).or_else(variable)
}

impl Address {
    /// Without an endpoint it is the account's host in the cloud. An endpoint that is named by an
    /// IP address or `localhost` has the account in the path, as Azurite and appliances want it.
    pub(super) fn new(
        spec: &LinkSpec,
        container: &str,
        account: Option<&str>,
    ) -> Result<Self, Error> {
        Self::with(endpoint(spec).as_deref(), container, account)
    }

    fn with(endpoint: Option<&str>, container: &str, account: Option<&str>) -> Result<Self, Error> {
        let container = container.to_owned();
        let needed = || {
            account.ok_or_else(|| Error::Denied {
                message: "an az:// link needs an account: set AZURE_STORAGE_ACCOUNT_NAME for this \
                          daemon, or azure_storage_account_name in a section of its credentials \
                          file"
                    .to_owned(),
            })
        };
        let Some(endpoint) = endpoint else {
            let base = format!("https://{}.blob.core.windows.net", needed()?);
            return Ok(Self { base, container });
        };
        let endpoint = endpoint.trim_end_matches('/');
        let bad = || {
            Error::invalid(format!(
                "the endpoint {endpoint:?} is no http:// or https:// address: check \
                 AZURE_STORAGE_ENDPOINT"
            ))
        };
        let url = Url::parse(endpoint).map_err(|_| bad())?;
        let is_web = matches!(url.scheme(), "http" | "https");
        if !is_web || url.query().is_some() || !url.username().is_empty() {
            return Err(bad());
        }
        let by_path = match url.host().ok_or_else(bad)? {
            Host::Domain(name) => name == "localhost" || name.parse::<IpAddr>().is_ok(),
            Host::Ipv4(_) | Host::Ipv6(_) => true,
        };
        let base = if by_path && url.path() == "/" {
            format!("{endpoint}/{}", needed()?)
        } else {
            endpoint.to_owned()
        };
        Ok(Self { base, container })
    }

    /// Scheme, host and perhaps the account.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn container(&self) -> &str {
        &self.container
    }

    /// Host and port.
    pub(super) fn authority(&self) -> &str {
        let (_, rest) = self.base.split_once("://").unwrap_or_default();
        rest.split('/').next().unwrap_or_default()
    }

    /// The URL of a key, or of the container, with a query.
    pub(super) fn url(&self, key: Option<&str>, query: &[(&str, &str)]) -> String {
        let mut url = format!("{}/{}", self.base, self.container);
        if let Some(key) = key {
            url.push('/');
            url.push_str(&path_of(key));
        }
        url_with(url, query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_in_the_host_of_the_cloud_and_in_the_path_of_an_address() {
        for (endpoint, url) in [
            (None, "https://acc.blob.core.windows.net/data/a%20b/c"),
            (Some("http://127.0.0.1:10000"), "http://127.0.0.1:10000/acc/data/a%20b/c"),
            (Some("http://[::1]:1/"), "http://[::1]:1/acc/data/a%20b/c"),
            (Some("https://localhost"), "https://localhost/acc/data/a%20b/c"),
            (Some("https://blobs.example.com"), "https://blobs.example.com/data/a%20b/c"),
            (Some("http://127.0.0.1:1/other"), "http://127.0.0.1:1/other/data/a%20b/c"),
        ] {
            let address = Address::with(endpoint, "data", Some("acc")).unwrap();
            assert_eq!(address.url(Some("a b/c"), &[]), url);
        }
        let address = Address::with(Some("http://127.0.0.1:10000"), "data", Some("acc")).unwrap();
        assert_eq!(address.authority(), "127.0.0.1:10000");
    }

    #[test]
    fn without_an_account_the_cloud_cannot_be_found() {
        for endpoint in [None, Some("http://127.0.0.1:1")] {
            let error = Address::with(endpoint, "data", None).unwrap_err();
            assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
        }
        assert!(Address::with(Some("https://blobs.example.com"), "data", None).is_ok());
        for bad in ["nonsense", "ftp://x", "http://u@h"] {
            assert!(Address::with(Some(bad), "data", Some("acc")).is_err(), "{bad}");
        }
    }
}
