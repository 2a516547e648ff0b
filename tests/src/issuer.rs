//! Who gives temporary keys in AWS, for tests: the instance metadata service, in its second version
//! over plain HTTP, and STS over TLS, which gives them for the token of a web identity.
//!
//! It makes no keys: a test tells which it gives, such as those of a real server
//! ([`Bucket::temporary_keys`](crate::bucket::Bucket::temporary_keys)), and when they are said to
//! expire. What it refuses is what AWS refuses: metadata without a session, sessions without a
//! time, tokens and roles that it does not know. What else goes wrong is said by [`Trouble`].
//!
//! Modules: `serve` (connections and requests), `answer` (what is asked for, and documents).

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Result;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::bucket::TemporaryKeys;

mod answer;
mod serve;

/// The role whose keys it gives.
pub const ROLE: &str = "arn:aws:iam::123456789012:role/worker";

/// A running server. Dropping it closes its ports.
#[derive(Debug)]
pub struct Issuer {
    metadata: SocketAddr,
    sts: SocketAddr,
    certificate: String,
    shared: Arc<Shared>,
}

/// What goes wrong with each request for keys, until a test says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// There are none: the host has no role, the token is nobody's.
    Unknown,
    /// The answer is of another kind, and has the secret key in it.
    Garbage,
    /// The server takes the request and says nothing until the client has gone.
    Silence,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    keys: Option<(TemporaryKeys, Timestamp)>,
    /// The token of the web identity.
    token: String,
    trouble: Option<Trouble>,
    /// Sessions of the metadata service.
    sessions: u64,
    given: u64,
}

impl Issuer {
    /// Starts both services on free ports of loopback. They give nothing yet.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start() -> Result<Self> {
        let key = KeyPair::generate()?;
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        let tls = Arc::new(tls);
        let shared = Arc::new(Shared { state: Mutex::default(), ended: AtomicBool::new(false) });
        let metadata = listen(&shared, serve::metadata)?;
        let sts = listen(&shared, move |stream, shared| serve::sts(stream, &tls, shared))?;
        Ok(Self { metadata, sts, certificate: certificate.pem(), shared })
    }

    /// The metadata service, for `AWS_METADATA_ENDPOINT`.
    #[must_use]
    pub fn metadata_endpoint(&self) -> String {
        format!("http://{}", self.metadata)
    }

    /// STS, for `AWS_ENDPOINT_URL_STS`.
    #[must_use]
    pub fn sts_endpoint(&self) -> String {
        format!("https://{}", self.sts)
    }

    /// The certificate of STS, which its clients have to trust.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What is given from now on, and when it is said to expire.
    pub fn give(&self, keys: &TemporaryKeys, expiration: Timestamp) {
        self.shared.state().keys = Some((keys.clone(), expiration));
    }

    /// The token that STS takes from now on, and no other.
    pub fn take_token(&self, token: &str) {
        token.clone_into(&mut self.shared.state().token);
    }

    /// What goes wrong from now on.
    pub fn fail(&self, trouble: Option<Trouble>) {
        self.shared.state().trouble = trouble;
    }

    /// How often keys were given.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.shared.state().given
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        for address in [self.metadata, self.sts] {
            // Wakes the accepting thread, which then sees that it is over.
            drop(TcpStream::connect(address));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}

/// Serves each connection of a new port in a thread of its own.
fn listen(
    shared: &Arc<Shared>,
    serve: impl Fn(TcpStream, &Shared) + Send + Sync + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (shared, serve) = (Arc::clone(shared), Arc::new(serve));
    thread::spawn(move || {
        for stream in listener.incoming() {
            if shared.ended.load(Ordering::Acquire) {
                return;
            }
            let (shared, serve) = (Arc::clone(&shared), Arc::clone(&serve));
            if let Ok(stream) = stream {
                thread::spawn(move || serve(stream, &shared));
            }
        }
    });
    Ok(address)
}

#[cfg(test)]
mod tests;
