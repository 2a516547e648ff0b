//! Azure's Blob Storage: `az://`.
//!
//! The version of a blob is its entity tag. A condition goes with a put, and with the list of
//! blocks that ends an upload. Requests are made here, signed with object_store's authorizer. See
//! `docs/decisions/0021-gs-and-az.md`.
//!
//! Azure knows no uploads: blocks are staged for a blob, by whomever, and wait a week for a list
//! that names them. So an upload is an empty blob beside the destination ([`crate::temporary`]),
//! which has the metadata that the object is to have. While it is there the upload is not over.

use std::sync::Arc;

use http::Method;
use object_store::client::{HttpConnector as _, HttpRequest};

use self::{address::Address, answer::Azure as Speaks, keys::Keys};
use crate::{
    Counters, Error, LinkSpec, RequestClass, Settings,
    limits::Requests,
    metered::{Connector, Wire, has_parameter},
    transport,
    web::{Ask, Web, client_options},
};

mod address;
mod answer;
mod check;
mod delete;
mod keys;
mod list;
mod metadata;
mod read;
mod upload;
mod write;

/// One container of one account.
#[derive(Debug)]
pub(crate) struct Azure {
    web: Arc<Web>,
    address: Address,
    keys: Arc<Keys>,
}

impl Azure {
    pub(crate) fn open(
        spec: &LinkSpec,
        container: &str,
        settings: &Settings,
        counters: Arc<Counters>,
        requests: Arc<Requests>,
    ) -> Result<Self, Error> {
        // Whose it is comes with the credentials, and whether TLS is used with the endpoint.
        let plain_http = address::is_plain_http(spec);
        let options = client_options(settings, plain_http);
        let wire = |authority: &str| {
            Connector::new(Wire::new(
                authority.to_owned(),
                Arc::clone(&counters),
                Arc::clone(&requests),
                classify,
                settings.read_timeout,
            ))
        };
        let keys = Arc::new(Keys::open(spec, container, settings, &options, wire(""))?);
        let address = Address::new(spec, container, keys.account())?;
        let client = wire(address.authority()).connect(&options);
        let client = client.map_err(|error| Error::Invalid {
            message: format!("no HTTP client: {}", transport::innermost(&error)),
        })?;
        let speaks = Speaks::new(Arc::clone(&keys), address.clone());
        let web = Arc::new(Web::new(client, speaks, address.base().to_owned(), settings));
        Ok(Self { web, address, keys })
    }

    /// A request about a blob.
    fn ask(&self, method: Method, key: &str, query: &[(&str, &str)]) -> Ask {
        Ask::new(method, self.address.url(Some(key), query), key)
    }
}

/// The requests of Blob Storage.
fn classify(request: &HttpRequest) -> RequestClass {
    let query = request.uri().query().unwrap_or_default();
    let comp = |value: &str| query.split('&').any(|pair| pair == format!("comp={value}"));
    match *request.method() {
        Method::GET if has_parameter(query, "restype") => RequestClass::List,
        Method::GET | Method::PUT if comp("blocklist") => RequestClass::Upload,
        Method::PUT if comp("block") => RequestClass::Part,
        Method::GET => RequestClass::Get,
        Method::HEAD => RequestClass::Head,
        Method::PUT => RequestClass::Put,
        Method::POST | Method::DELETE => RequestClass::Upload,
        _ => RequestClass::Other,
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_and_query() {
        for (method, query, class) in [
            (Method::GET, "", RequestClass::Get),
            (Method::GET, "restype=container&comp=list", RequestClass::List),
            (Method::GET, "comp=blocklist&blocklisttype=uncommitted", RequestClass::Upload),
            (Method::HEAD, "", RequestClass::Head),
            (Method::PUT, "", RequestClass::Put),
            (Method::PUT, "comp=block&blockid=eA%3D%3D", RequestClass::Part),
            (Method::PUT, "comp=blocklist", RequestClass::Upload),
            (Method::DELETE, "", RequestClass::Upload),
        ] {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = format!("http://h/c/k?{query}").parse().unwrap();
            *request.method_mut() = method.clone();
            assert_eq!(classify(&request), class, "{method} {query}");
        }
    }
}
