//! Requests of the commands: over QUIC to the metadata server with the operator's identity, or over
//! a Unix socket to a mount's daemon, which sends them on for its caller.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use millrace_protocol::{
    Request,
    control::{DescribeMount, MountDescription},
    session::{Hello, HelloReply, Role},
};
use millrace_runtime::Shutdown;
use millrace_service::{cluster::ClusterSettings, control_socket};
use millrace_transport::{
    Body, CallOptions, ClientEndpoints, Identity, LocalClient, Peer, PeerTarget, TransportSettings,
};
use millrace_types::{ErrorKind, Failure, LogIndex};

use crate::mountinfo::Mount;

/// Somebody who answers requests.
#[derive(Debug)]
pub(crate) enum Connection {
    /// The metadata server.
    Cluster(ClusterConnection),
    /// A mount's daemon, by its control socket.
    Mount(MountDaemon),
}

/// How a mount's daemon is found; whether it is there shows at each request.
#[derive(Debug)]
pub(crate) struct MountDaemon {
    mountpoint: PathBuf,
    device: (u32, u32),
    user: u32,
}

/// A connection to a metadata server that has answered once.
#[derive(Debug)]
pub(crate) struct ClusterConnection {
    peer: Peer,
    address: String,
    cluster: String,
}

impl Connection {
    /// Connects to the first metadata server that answers. The endpoints drive the connection:
    /// they are kept while it is used, and closed after.
    ///
    /// # Errors
    /// When none does, or the identity cannot be used; the message says what was tried.
    pub(crate) async fn to_cluster(
        settings: &ClusterSettings,
    ) -> anyhow::Result<(Self, ClientEndpoints)> {
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
                    let address = server.to_string();
                    let connection = ClusterConnection { peer, address, cluster };
                    return Ok((Self::Cluster(connection), endpoints));
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
        Self::Mount(MountDaemon::of(mount))
    }

    /// The process of a mount's daemon; `None` where nobody listens any more.
    ///
    /// # Errors
    /// When somebody does, and does not say.
    pub(crate) async fn server_of(mount: &Mount) -> Result<Option<u32>, Failure> {
        let daemon = match MountDaemon::of(mount).connect().await {
            Ok(daemon) => daemon,
            Err(failure) if failure.kind == ErrorKind::Unavailable => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let described = daemon.call(&DescribeMount {}, DESCRIBE_DEADLINE).await?;
        Ok(Some(described.process))
    }

    /// Asks, and waits for the answer at most for [`DEADLINE`].
    ///
    /// # Errors
    /// The server's failure, or that it cannot be reached.
    pub(crate) async fn request<R: Request>(&self, request: &R) -> Result<R::Reply, Failure> {
        self.request_within(request, DEADLINE).await
    }

    /// As [`Self::request`], for an answer that takes less time.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) async fn request_within<R: Request>(
        &self,
        request: &R,
        deadline: Duration,
    ) -> Result<R::Reply, Failure> {
        match self {
            Self::Cluster(cluster) => {
                cluster.peer.call(request, CallOptions::control(deadline)).await
            }
            // A connection for each request: a mount's daemon may be started anew between two.
            Self::Mount(daemon) => daemon.connect().await?.call(request, deadline).await,
        }
    }

    /// As [`Self::request`], for an answer with bulk bytes, and asked again while the server is
    /// away.
    ///
    /// # Errors
    /// As [`Self::request`]; a mount's daemon is asked for none.
    pub(crate) async fn fetch<R: Request>(&self, request: &R) -> Result<(R::Reply, Body), Failure> {
        match self {
            Self::Cluster(cluster) => {
                let options = CallOptions::bulk(DEADLINE);
                cluster.peer.exchange_until(request, Body::default(), options).await
            }
            Self::Mount(_) => {
                Err(Failure::new(ErrorKind::NotSupported, "a mount's daemon cannot answer that"))
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

    /// Where the mount is whose daemon answers; nothing for a cluster.
    pub(crate) fn mountpoint(&self) -> Option<&Path> {
        match self {
            Self::Cluster(_) => None,
            Self::Mount(daemon) => Some(&daemon.mountpoint),
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

impl MountDaemon {
    fn of(mount: &Mount) -> Self {
        Self {
            mountpoint: mount.mountpoint.clone(),
            device: (mount.major, mount.minor),
            user: mount.user,
        }
    }

    /// Connects to the daemon in the first of its places where it listens.
    ///
    /// # Errors
    /// When it listens in none, or the caller may not connect; the message says what to do.
    async fn connect(&self) -> Result<LocalClient, Failure> {
        let mut kind = ErrorKind::Unavailable;
        let mut problems = Vec::new();
        for place in control_socket::places(self.device, self.user) {
            match LocalClient::connect(&place).await {
                Ok(daemon) if daemon.owner() == self.user => return Ok(daemon),
                Ok(_) => problems.push(format!("at {} listens somebody else", place.display())),
                Err(failure) => {
                    if failure.kind == ErrorKind::PermissionDenied {
                        kind = failure.kind;
                    }
                    problems.push(failure.message);
                }
            }
        }
        let message = format!(
            "no daemon can be asked about {}: {}; if the daemon has died, `millrace umount --lazy \
             {0}` and mount again; if only its user may reach it, ask as that user",
            self.mountpoint.display(),
            problems.join("; ")
        );
        Err(Failure::new(kind, message))
    }
}

async fn hello(peer: &Peer) -> Result<HelloReply, Failure> {
    let request = Hello { seen_index: LogIndex(0) };
    peer.call_until(&request, CallOptions::control(HELLO_DEADLINE)).await
}

/// The longest request: adding a link asks every host to reach the bucket, each within 30 s.
const DEADLINE: Duration = Duration::from_secs(90);
/// A daemon says from memory what it serves; a machine may be busy.
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(10);
/// Longer than a restart of the server, and as long as a person waits without a word.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
