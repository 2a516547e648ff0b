//! Peers that break the rules, straight on QUIC: no program of the product makes such handshakes.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::runtime::Runtime;

/// A refused peer hears so at once; whoever is still connected after this time was let in.
const REFUSAL: Duration = Duration::from_secs(20);

/// One peer with a socket of its own.
#[derive(Debug)]
pub struct Stranger {
    // Drives the endpoint, which therefore goes first.
    endpoint: quinn::Endpoint,
    runtime: Runtime,
    cluster: String,
}

impl Stranger {
    /// Trusts the cluster that issued the identity bundle `ours`, and shows the certificate of
    /// `shown`, or none. `cluster` is the cluster's id.
    ///
    /// # Errors
    /// When a bundle is no identity, or there is no socket.
    pub fn new(cluster: &str, ours: &str, shown: Option<&str>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let mut endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
        drop(entered);
        let mut roots = RootCertStore::empty();
        roots.add(certificates(ours)?.pop().context("a bundle ends with the authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let mut config = match shown {
            Some(bundle) => {
                let mut chain = certificates(bundle)?;
                chain.pop();
                let key = PrivateKeyDer::from_pem_slice(bundle.as_bytes())?;
                config.with_client_auth_cert(chain, key)?
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"millrace/1".to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?));
        endpoint.set_default_client_config(config);
        Ok(Self { endpoint, runtime, cluster: cluster.to_owned() })
    }

    /// The port that it speaks from, by which a log names it.
    ///
    /// # Errors
    /// When the socket is gone.
    pub fn port(&self) -> Result<u16> {
        Ok(self.endpoint.local_addr()?.port())
    }

    /// Connects to the server of `role` at `address` and waits to be thrown out; returns the reason
    /// as this side sees it.
    ///
    /// # Errors
    /// When it is let in.
    pub fn knock(&self, role: &str, address: &str) -> Result<String> {
        let (address, name) = (address.parse()?, self.name_of(role));
        self.runtime.block_on(async {
            let connecting = self.endpoint.connect(address, &name)?;
            let refused = async {
                match connecting.await {
                    // In TLS 1.3 a client learns only after its own last message how it was taken.
                    Ok(connection) => connection.closed().await,
                    Err(error) => error,
                }
            };
            match tokio::time::timeout(REFUSAL, refused).await {
                Ok(reason) => Ok(reason.to_string()),
                Err(_) => bail!("a stranger was let in at {address}"),
            }
        })
    }

    /// The first datagrams of `count` handshakes with the server of `role`, each in a form that the
    /// server takes for a new peer. Nothing reaches a server.
    ///
    /// # Errors
    /// When they do not come.
    pub fn first_flights(&self, role: &str, count: usize) -> Result<Vec<Vec<u8>>> {
        let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        sink.set_nonblocking(true)?;
        let (address, name): (SocketAddr, _) = (sink.local_addr()?, self.name_of(role));
        let mut flights = BTreeMap::new();
        let mut buffer = [0; 2048];
        let deadline = Instant::now() + REFUSAL;
        self.runtime.block_on(async {
            let mut connecting = Vec::new();
            while flights.len() < count {
                if connecting.len() < count {
                    connecting.push(self.endpoint.connect(address, &name)?);
                }
                // Lets the endpoint send.
                tokio::task::yield_now().await;
                while let Ok(len) = sink.recv(&mut buffer) {
                    let datagram = &buffer[..len];
                    if let Some(id) = destination_of(datagram) {
                        flights.entry(id.to_vec()).or_insert_with(|| datagram.to_vec());
                    }
                }
                if Instant::now() > deadline {
                    bail!("only {} of {count} handshakes have begun", flights.len());
                }
            }
            Ok(flights.into_values().collect())
        })
    }

    fn name_of(&self, role: &str) -> String {
        format!("{role}.{}.millrace", self.cluster)
    }
}

fn certificates(bundle: &str) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(bundle.as_bytes()).collect::<Result<_, _>>()?)
}

/// The destination connection id of a datagram that begins with a packet with a long header
/// (RFC 9000, 17.2).
fn destination_of(datagram: &[u8]) -> Option<&[u8]> {
    let len = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + len).filter(|_| datagram[0] & 0x80 != 0)
}
