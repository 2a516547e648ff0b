//! Requests of the commands: over QUIC to the metadata server with the operator's identity, or over
//! a Unix socket to a mount's daemon, which sends them on for its caller.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use millrace_protocol::{
    Request,
    control::{DescribeMount, MountDescription},
    session::{Hello, HelloReply, Role},
};
use millrace_runtime::Shutdown;
use millrace_service::cluster::ClusterSettings;
use millrace_transport::{
    CallOptions, ClientEndpoints, Identity, LocalClient, Peer, PeerTarget, TransportSettings,
};
use millrace_types::{Failure, LogIndex};

use crate::mountinfo::Mount;

/// Somebody who answers requests.
#[derive(Debug)]
pub(crate) enum Connection {
    /// The metadata server.
    Cluster(ClusterConnection),
    /// A mount's daemon, by its control socket.
    Mount(PathBuf),
}

/// A connection to a metadata server that has answered once.
#[derive(Debug)]
pub(crate) struct ClusterConnection {
    peer: Peer,
    address: String,
    cluster: String,
    // Their threads drive the connection.
    _endpoints: ClientEndpoints,
}

impl Connection {
    /// Connects to the first metadata server that answers.
    ///
    /// # Errors
    /// When none does, or the identity cannot be used; the message says what was tried.
    pub(crate) async fn to_cluster(settings: &ClusterSettings) -> anyhow::Result<Self> {
        let identity = Identity::load(&settings.identity)
            .context("cannot use the operator's identity; `millrace cluster invite` makes one")?;
        let cluster = identity.peer().cluster.to_string();
        let network = TransportSettings::default();
        let endpoints = ClientEndpoints::start(identity, network, &Shutdown::new())?;
        let mut problems = Vec::new();
        for server in &settings.servers {
            let addresses = match server.resolve().await {
                Ok(addresses) => addresses,
                Err(error) => {
                    problems.push(format!("{server}: {error}"));
                    continue;
                }
            };
            let target = PeerTarget { role: Role::Metadata, host: None, addresses };
            let peer = Peer::new(&endpoints, target);
            match hello(&peer).await {
                Ok(_) => {
                    return Ok(Self::Cluster(ClusterConnection {
                        peer,
                        address: server.to_string(),
                        cluster,
                        _endpoints: endpoints,
                    }));
                }
                Err(failure) => problems.push(format!("{server}: {failure}")),
            }
        }
        if problems.is_empty() {
            bail!("the settings name no server: set cluster.servers");
        }
        bail!("no metadata server answers: {}", problems.join("; "))
    }

    /// The daemon of a mount; whether it answers shows at the first request.
    pub(crate) fn to_mount(mount: &Mount) -> Self {
        Self::Mount(socket_of(mount))
    }

    /// Asks, and waits for the answer at most for [`DEADLINE`].
    ///
    /// # Errors
    /// The server's failure, or that it cannot be reached.
    pub(crate) async fn request<R: Request>(&self, request: &R) -> Result<R::Reply, Failure> {
        match self {
            Self::Cluster(cluster) => {
                cluster.peer.call(request, CallOptions::control(DEADLINE)).await
            }
            Self::Mount(socket) => {
                // A connection for each request: a mount's daemon may be started anew between two.
                let daemon = match LocalClient::connect(socket).await {
                    Ok(daemon) => daemon,
                    Err(failure) => return Err(with_remedy(failure)),
                };
                daemon.call(request, DEADLINE).await
            }
        }
    }

    /// What is mounted.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) async fn describe(&self) -> anyhow::Result<MountDescription> {
        Ok(self.request(&DescribeMount {}).await?)
    }

    /// Who answers, for people.
    pub(crate) fn peer(&self) -> &str {
        match self {
            Self::Cluster(cluster) => &cluster.address,
            Self::Mount(_) => "the mount's daemon",
        }
    }

    /// The cluster's id in hexadecimal; nothing for a mount, which has to be asked.
    pub(crate) fn cluster_id(&self) -> Option<&str> {
        match self {
            Self::Cluster(cluster) => Some(&cluster.cluster),
            Self::Mount(_) => None,
        }
    }
}

/// The control socket of a mount's daemon.
pub(crate) fn socket_of(mount: &Mount) -> PathBuf {
    let name = format!("mount-{}-{}.sock", mount.major, mount.minor);
    PathBuf::from(CONTROL_DIRECTORY).join(name)
}

/// A mount whose daemon has died answers nothing, and only a person can take it away.
fn with_remedy(failure: Failure) -> Failure {
    let message = format!(
        "{}; if the mount's daemon has died, `millrace umount --lazy` and mount again",
        failure.message
    );
    Failure { message, ..failure }
}

async fn hello(peer: &Peer) -> Result<HelloReply, Failure> {
    let request = Hello { seen_index: LogIndex(0) };
    peer.call_until(&request, CallOptions::control(HELLO_DEADLINE)).await
}

/// Where mounts' daemons listen; their setting `mount.control_directory` can say otherwise only for
/// mounts that this tool need not find.
const CONTROL_DIRECTORY: &str = "/run/millrace";
/// The longest request: adding a link asks every host to reach the bucket, each within 30 s.
const DEADLINE: Duration = Duration::from_secs(90);
/// Longer than a restart of the server, and as long as a person waits without a word.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
