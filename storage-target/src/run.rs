//! Putting the daemon together, from settings to a drained end.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::{self, join_all};
use millrace_protocol::{session::Role, storage::Read};
use millrace_runtime::{Drained, Shutdown};
use millrace_service::{
    daemon::{Ended, until_stopped},
    metrics::{self, Metrics},
    systemd,
};
use millrace_transport::{
    CallOptions, ClientEndpoints, Identity, Peer, PeerTarget, Server, TransportSettings,
};
use millrace_types::{Crc32c, Failure, HostId};

use self::opening::Opener;
use crate::{
    addresses::{Addresses, Announced},
    background::Background,
    cluster::Cluster,
    daemon::{Daemon, Exporter, Remote, Stores},
    disk::BufferPool,
    links::Links,
    member::{self, Member},
    metrics::Counters,
    misses::Misses,
    server::TargetService,
    settings::Settings,
    volume::{self, OpenError, Statistics},
};

mod opening;

/// How long requests may take to finish when the daemon stops.
const DRAIN: Duration = Duration::from_secs(20);

/// How long all of stopping may take, with the last checkpoint.
const STOP: Duration = Duration::from_secs(45);

/// How often the gauges are brought up to date.
const GAUGES: Duration = Duration::from_secs(1);

/// Why the daemon cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings name no target.
    #[error("no target is configured: set data = \"DIRECTORY\", or [[target]] tables")]
    NoTarget,
    /// The identity is for another kind of daemon.
    #[error("the identity {} has the role {role}, not target: make one with `millrace cluster \
             invite --role target`", path.display())]
    Role {
        /// The bundle.
        path: PathBuf,
        /// What it says.
        role: &'static str,
    },
    /// The identity cannot be used.
    #[error(transparent)]
    Identity(#[from] millrace_transport::identity::IdentityError),
    /// There is nothing where a target should be, and no directory can be made there.
    #[error("the target {} cannot be used: {source}; make it, or mount or attach its disk",
            path.display())]
    Directory {
        /// The directory, device or image file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A target cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A disk holds another target than the settings say.
    #[error("{}: holds target {found}, but the settings expect {expected}", path.display())]
    OtherTarget {
        /// The directory, device or image file.
        path: PathBuf,
        /// What is there.
        found: millrace_types::TargetId,
        /// What was expected.
        expected: millrace_types::TargetId,
    },
    /// Two disks hold the same target.
    #[error("{}: holds target {target}, as another disk of the settings does: one of the two is a \
             copy; take that out of the settings", path.display())]
    Twice {
        /// The directory, device or image file of one of them.
        path: PathBuf,
        /// What is there.
        target: millrace_types::TargetId,
    },
    /// The network cannot be used.
    #[error(transparent)]
    Server(#[from] millrace_transport::server::ServerError),
    /// The network cannot be used for calls.
    #[error(transparent)]
    Client(#[from] millrace_transport::client::ClientError),
    /// The metrics' address is taken.
    #[error(transparent)]
    Metrics(#[from] metrics::BindError),
    /// The system refuses a thread, a signal handler or the like.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl StartError {
    /// Whether a disk is there that is not what the settings say. A person has to look: no other
    /// target is served then, whereas others do not wait for a disk that is gone.
    fn is_of_settings(&self) -> bool {
        matches!(self, Self::OtherTarget { .. } | Self::Twice { .. })
    }
}

/// Runs the daemon until a signal ends it. Blocks the calling thread.
///
/// # Errors
/// [`StartError`] when it cannot start.
pub fn run(settings: Settings) -> Result<Ended, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Requests to buckets, and the copies and checksums that come with them, on a thread of their
    // own: they never stand in the way of requests from the network.
    let buckets = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("buckets")
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let starting = Box::pin(Running::start(settings, buckets.handle().clone()));
        // After a loss of power what the journals say is compared with the disks first.
        let running = systemd::during_start(starting).await?;
        let shutdown = running.shutdown.clone();
        let stop = || shutdown.begin("signal");
        Box::pin(until_stopped(running.until_drained(), stop, STOP)).await
    });
    buckets.shutdown_background();
    // A disk that hangs while it is opened is not waited for.
    runtime.shutdown_background();
    ended
}

/// A started daemon.
#[derive(Debug)]
pub struct Running {
    daemon: Arc<Daemon>,
    server: Server,
    shutdown: Shutdown,
}

impl Running {
    /// Opens the targets, begins to serve, and announces itself to the cluster in the background.
    /// Requests to buckets run on `buckets`.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        settings: Settings,
        buckets: tokio::runtime::Handle,
    ) -> Result<Self, StartError> {
        let identity = Identity::load(&settings.cluster.identity)?;
        let peer = identity.peer().clone();
        if peer.role != Role::Target {
            let path = settings.cluster.identity.clone();
            return Err(StartError::Role { path, role: peer.role.name() });
        }
        let mut metrics = Metrics::new();
        let counters = Counters::register(&mut metrics);
        let pool = BufferPool::new(usize::try_from(settings.buffer_memory.0).unwrap_or(usize::MAX));
        let links = Links::new(settings.buckets.object_source());
        let misses = Misses::default();
        let opener = Arc::new(Opener {
            settings: settings.clone(),
            cluster: peer.cluster,
            boot: volume::boot_id()?,
            links: links.clone(),
            counters: counters.clone(),
            buckets: buckets.clone(),
            misses: misses.clone(),
        });
        let (stores, missing) = opener.open_all(&pool).await?;
        let stores = Stores::new(stores, settings.targets().len());
        let shutdown = Shutdown::new();
        let network = settings.network.clone();
        let endpoints = ClientEndpoints::start(identity.clone(), network.clone(), &shutdown)?;
        let remote = Arc::new(RemoteTargets::new(endpoints.clone()));
        let exporter = Exporter::new(remote, buckets);
        let cluster = Cluster::new();
        let background = Background::new(settings.buckets.requests_max);
        let daemon = Daemon::new(stores, cluster, links, exporter, counters, background);
        let daemon = Arc::new(daemon);
        let server = serve(&identity, &settings, network, &daemon, &shutdown)?;
        let member = join(&settings, &endpoints, &server, &daemon).await;
        let reports = daemon.changed.clone().report(member.metadata.clone());
        let misses = misses.report(member.metadata.clone());
        let later = opener.open_missing(missing, Arc::clone(&daemon), member.metadata.clone());
        // The first of the two never ends.
        let rooms = future::join(make_room(&daemon, &member.metadata), later);
        let stopping = shutdown.clone();
        drop(tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stopping.stopped() => {}
                () = reports => {}
                () = misses => {}
                () = member.run() => {}
                _ = rooms => {}
            }
        }));
        let (gauged, stopping) = (Arc::clone(&daemon), shutdown.clone());
        drop(tokio::spawn(async move {
            tokio::select! {
                () = keep_gauges(gauged, pool) => {}
                () = stopping.stopped() => {}
            }
        }));
        metrics::serve(&settings.metrics, Arc::new(metrics)).await?;
        let (open, all) = (daemon.stores.open_count(), daemon.stores.count());
        systemd::ready(&format!("serving {open} of {all} targets on {}", server.local_addr()));
        Ok(Self { daemon, server, shutdown })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Tells the daemon to drain.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Waits for the shutdown to begin, finishes what runs, syncs and closes the targets.
    ///
    /// # Errors
    /// None today; what could not be finished is logged, and the next start recovers.
    pub async fn until_drained(self) -> Result<(), StartError> {
        self.shutdown.draining().await;
        if let Drained::GaveUp(tasks) = self.shutdown.finish(DRAIN).await {
            tracing::warn!(?tasks, "requests were cut off");
        }
        self.daemon.stores.close().await;
        Ok(())
    }
}

fn serve(
    identity: &Identity,
    settings: &Settings,
    network: TransportSettings,
    daemon: &Arc<Daemon>,
    shutdown: &Shutdown,
) -> Result<Server, StartError> {
    let service = Arc::new(TargetService::new(Arc::clone(daemon)));
    let server = Server::start(identity, settings.listen, network, service, shutdown)?;
    tracing::info!(address = %server.local_addr(), "serves");
    Ok(server)
}

async fn join(
    settings: &Settings,
    endpoints: &ClientEndpoints,
    server: &Server,
    daemon: &Arc<Daemon>,
) -> Member {
    let servers = settings.cluster.servers.clone();
    let found = member::resolve(&servers).await;
    let addresses = found.clone().unwrap_or_default();
    let target = PeerTarget { role: Role::Metadata, host: None, addresses };
    Member {
        daemon: Arc::clone(daemon),
        metadata: Peer::new(endpoints, target),
        servers,
        found,
        addresses: Addresses::new(server.local_addr(), settings.advertise.clone()),
        announced: Announced::default(),
        name: settings.name.clone().unwrap_or_else(host_name),
    }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().take(64).collect()
}

/// Makes room on every target whenever it is due, until it is dropped.
fn make_room(daemon: &Daemon, metadata: &Peer) -> impl Future<Output = ()> + use<> {
    let rooms = daemon.stores.values().map(|store| {
        let (metadata, cluster) = (metadata.clone(), daemon.cluster.clone());
        store.releaser().clone().run(metadata, cluster)
    });
    let rooms = join_all(rooms.collect::<Vec<_>>());
    async move { drop(rooms.await) }
}

async fn keep_gauges(daemon: Arc<Daemon>, pool: BufferPool) {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    loop {
        let counters = &daemon.counters;
        let all: Vec<_> = daemon.stores.values().map(|store| store.volume().statistics()).collect();
        let sum = |figure: fn(&Statistics) -> u64| gauge(all.iter().map(figure).sum());
        counters.capacity_bytes.set(sum(|one| one.capacity.0));
        counters.used_bytes.set(sum(|one| one.used.0));
        counters.bad_blocks.set(sum(|one| one.bad_blocks));
        let unopened = daemon.stores.count() - daemon.stores.open_count();
        counters.unopened.set(gauge(unopened as u64));
        let failed = daemon.stores.values().filter(|store| store.volume().has_failed()).count();
        counters.failed.set(gauge(failed as u64));
        let reopened = daemon.stores.values().map(|store| store.volume().reopened()).sum();
        counters.reopened.set(gauge(reopened));
        counters.loss_count.set(sum(|one| one.loss_count));
        counters.set_space(all.iter().map(|one| &one.space));
        let details: Vec<_> =
            daemon.stores.values().map(|store| store.volume().describe(None, 0)).collect();
        counters.upkeep.set(&details);
        counters.hydrated_bytes.set(gauge(daemon.hydrated_bytes()));
        let fetches = daemon.stores.values().map(|store| store.hydrator().fetches()).sum();
        counters.bucket_fetches.set(gauge(fetches));
        counters.buffer_bytes.set(gauge(pool.used_bytes() as u64));
        let released = daemon.stores.values().map(|store| store.releaser().released_bytes()).sum();
        counters.released_bytes.set(gauge(released));
        let reclaimed = daemon.reclaimed_bytes.load(std::sync::atomic::Ordering::Relaxed);
        counters.reclaimed_bytes.set(gauge(reclaimed));
        tokio::time::sleep(GAUGES).await;
    }
}

/// The daemons of other hosts, for exports and copies.
#[derive(Debug)]
struct RemoteTargets {
    endpoints: ClientEndpoints,
    peers: Mutex<HashMap<HostId, Peer>>,
}

/// How long a read from another target may take; it may have to fetch from the bucket.
const REMOTE_READ: Duration = Duration::from_secs(60);

impl RemoteTargets {
    fn new(endpoints: ClientEndpoints) -> Self {
        Self { endpoints, peers: Mutex::default() }
    }

    fn peer(&self, host: HostId, addresses: &[String]) -> Peer {
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let target = PeerTarget { role: Role::Target, host: Some(host), addresses };
        let peer =
            peers.entry(host).or_insert_with(|| Peer::new(&self.endpoints, target.clone())).clone();
        peer.set_addresses(target.addresses);
        peer
    }
}

#[async_trait::async_trait]
impl Remote for RemoteTargets {
    async fn read(
        &self,
        host: HostId,
        addresses: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        let peer = self.peer(host, addresses);
        let options = CallOptions::bulk(REMOTE_READ);
        let (reply, body) = peer.exchange_until(request, Bytes::new(), options).await?;
        Ok((reply.checksum, body.into_pieces()))
    }

    async fn try_read(
        &self,
        host: HostId,
        addresses: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        let peer = self.peer(host, addresses);
        let options = CallOptions::bulk(REMOTE_READ);
        let (reply, body) = peer.exchange(request, Bytes::new(), options).await?;
        Ok((reply.checksum, body.into_pieces()))
    }
}
