//! A client that breaks the rules, straight on quinn.

use std::{net::SocketAddr, sync::Arc};

use millrace_protocol::session::Role;
use millrace_types::HostId;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::world::{CLUSTER, bundle};

pub(crate) struct RawClient {
    endpoint: quinn::Endpoint,
}

impl RawClient {
    /// Trusts the cluster, shows nothing.
    pub(crate) fn without_certificate() -> Self {
        Self::build(&bundle(Role::Client, HostId([4; 16])), false)
    }

    pub(crate) fn with_certificate(bundle: &str) -> Self {
        Self::build(bundle, true)
    }

    fn build(bundle: &str, show: bool) -> Self {
        let mut chain: Vec<_> =
            CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap).collect();
        let mut roots = RootCertStore::empty();
        roots.add(chain.pop().unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match show {
            true => {
                let key = PrivateKeyDer::from_pem_slice(bundle.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
            false => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"millrace/1".to_vec()];
        let config = QuicClientConfig::try_from(config).unwrap();
        let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
        Self { endpoint }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr().unwrap()
    }

    pub(crate) async fn connect(
        &self,
        server: SocketAddr,
    ) -> Result<quinn::Connection, quinn::ConnectionError> {
        let name = format!("target.{CLUSTER}.millrace");
        self.endpoint.connect(server, &name).unwrap().await
    }
}
