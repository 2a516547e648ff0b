//! Google Cloud Storage: `gs://`, over its XML API.
//!
//! The version of an object is its **generation**, a number that no other version of it has, ever.
//! Reads, puts and the end of an upload are conditional on it. Requests are made here; tokens come
//! from object_store's credential providers. See `docs/decisions/0021-gs-and-az.md`.
//!
//! An upload by parts has no condition on GCS. So its parts make up a temporary object beside the
//! destination ([`crate::temporary`]), and a copy within the server, under the condition, publishes
//! it. Copy and deletion are a matter of metadata: no byte moves.

use std::sync::Arc;

use http::Method;
use object_store::client::HttpConnector as _;

use self::{address::Address, answer::Google as Speaks, keys::Keys};
use crate::{
    Counters, Error, LinkSpec, Settings,
    limits::Requests,
    metered::{Connector, Wire, classify},
    transport,
    web::{Ask, Web, client_options},
};

mod address;
mod answer;
mod check;
mod delete;
mod keys;
mod list;
mod publish;
mod read;
mod upload;
mod write;

/// One bucket behind one endpoint.
#[derive(Debug)]
pub(crate) struct Google {
    web: Arc<Web>,
    address: Address,
    keys: Arc<Keys>,
}

impl Google {
    pub(crate) fn open(
        spec: &LinkSpec,
        bucket: &str,
        settings: &Settings,
        counters: Arc<Counters>,
        requests: Arc<Requests>,
    ) -> Result<Self, Error> {
        let address = Address::new(spec, bucket)?;
        let options = client_options(settings, address.is_plain_http());
        let (authority, patience) = (address.authority().to_owned(), settings.read_timeout);
        let wire = Wire::new(authority, counters, requests, classify, patience);
        let connector = Connector::new(wire);
        let client = connector.connect(&options).map_err(|error| Error::Invalid {
            message: format!("no HTTP client: {}", transport::innermost(&error)),
        })?;
        let keys = Arc::new(Keys::open(spec, bucket, settings, &options, connector)?);
        let speaks = Speaks::new(Arc::clone(&keys), address.clone());
        let web = Arc::new(Web::new(client, speaks, address.endpoint().to_owned(), settings));
        Ok(Self { web, address, keys })
    }

    /// A request about an object.
    fn ask(&self, method: Method, key: &str, query: &[(&str, &str)]) -> Ask {
        Ask::new(method, self.address.url(Some(key), query), key)
    }
}
