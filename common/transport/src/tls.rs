//! TLS 1.3 with both sides authenticated, and the secrets that a node derives from its key.
//!
//! A dialler demands the name `<role>.<cluster>.millrace`, so the ordinary check of a web
//! certificate settles authority, cluster and role of the server at once. A server demands a
//! certificate of the cluster's authority and reads the peer's role from it. Nothing turns this
//! off.
//!
//! Sessions are not resumed: a handshake between machines of one site costs about a millisecond,
//! and every connection then shows its certificate anew.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::{hkdf, hmac};
use millrace_protocol::version::ProtocolVersion;
use quinn::{
    EndpointConfig,
    crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig},
};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, client::Resumption, crypto::CryptoProvider,
    server::WebPkiClientVerifier, version::TLS13,
};

use crate::{Identity, ciphers::Library};

/// How this node proves itself when it dials.
pub(crate) fn client(identity: &Identity) -> Result<QuicClientConfig, TlsError> {
    Ok(client_config(identity, Library::for_host().provider())?.try_into()?)
}

/// How this node proves itself when it is dialled.
pub(crate) fn server(identity: &Identity) -> Result<QuicServerConfig, TlsError> {
    Ok(server_config(identity, Library::for_host().provider())?.try_into()?)
}

/// The former with this cryptography.
pub(crate) fn client_config(
    identity: &Identity,
    provider: CryptoProvider,
) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(identity)?)
        .with_client_auth_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = alpn();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The latter.
pub(crate) fn server_config(
    identity: &Identity,
    provider: CryptoProvider,
) -> Result<ServerConfig, TlsError> {
    let (roots, provider) = (Arc::new(roots(identity)?), Arc::new(provider));
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = alpn();
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Secrets that must be the same after a restart: with them, a restarted server recognises packets
/// of its old connections and resets those at once, where clients would otherwise wait for their
/// idle timeout (measured: 30 s).
pub(crate) struct ServerKeys {
    reset: hmac::Key,
    connection_ids: u64,
}

impl ServerKeys {
    pub(crate) fn derive(identity: &Identity) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"millrace quic server keys 1");
        let secret = salt.extract(identity.secret());
        let reset: [u8; 32] = expand(&secret, b"stateless reset");
        let connection_ids: [u8; 8] = expand(&secret, b"connection ids");
        Self {
            reset: hmac::Key::new(hmac::HMAC_SHA256, &reset),
            connection_ids: u64::from_le_bytes(connection_ids),
        }
    }

    pub(crate) fn endpoint_config(&self) -> EndpointConfig {
        let key = self.connection_ids;
        let mut config = EndpointConfig::new(Arc::new(self.reset.clone()));
        config
            .cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)))
            .min_reset_interval(RESET_INTERVAL_MIN);
        config
    }
}

/// A thousand clients that come back after a restart are all answered within a tenth of a second;
/// quinn's 20 ms would take 20 s. A reset is smaller than the packet that provokes it.
const RESET_INTERVAL_MIN: Duration = Duration::from_micros(100);

fn expand<const N: usize>(secret: &hkdf::Prk, purpose: &[u8]) -> [u8; N] {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut key = [0; N];
    secret
        .expand(&[purpose], Length(N))
        .and_then(|derived| derived.fill(&mut key))
        .expect("a key of a few bytes is within HKDF's limits");
    key
}

fn roots(identity: &Identity) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority())?;
    Ok(roots)
}

/// The newest version first; see [`ProtocolVersion`].
fn alpn() -> Vec<Vec<u8>> {
    ProtocolVersion::ALL.iter().map(|version| version.alpn().to_vec()).collect()
}

/// An identity cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Certificate or key is refused.
    #[error("the identity cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority's certificate is refused.
    #[error("the authority's certificate cannot be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The cryptographic library lacks a suite that QUIC needs.
    #[error("the cryptographic library cannot serve QUIC: {0}")]
    Suite(#[from] NoInitialCipherSuite),
}
