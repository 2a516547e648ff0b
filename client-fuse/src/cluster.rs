//! The servers as the file system sees them: one metadata server and many targets.
//!
//! Owns the session, the cluster map, the connections and the patience with servers that do not
//! answer. Knows nothing of open files: what concerns them (old content, a session that ended) is
//! passed up as a failure.
//!
//! Modules, in reading order: [`session`] (ticket and clock), [`operations`] (numbers of
//! mutations), [`retry`], [`metadata`] (requests about names), `publish`, [`locks`], [`routing`]
//! (cluster map), [`storage`] (requests about bytes).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_protocol::{
    cluster::FetchMap,
    session::{CloseSession, Hello, Role},
};
use millrace_service::address::ServerAddress;
use millrace_transport::{CallOptions, ClientEndpoints, Connected, Peer, PeerTarget};
use millrace_types::{Failure, HostId, LogIndex, MapEpoch, SessionId, Timestamp};
use tokio::sync::{Semaphore, watch};

pub(crate) use metadata::Indexed;

use crate::{
    cluster::{operations::Numbers, retry::Patience, routing::Routing, session::Session},
    metrics::ClientMetrics,
};

mod locks;
mod metadata;
mod operations;
mod publish;
pub(crate) mod retry;
mod routing;
mod session;
mod storage;

/// The servers of one cluster, in one session. Shared behind an [`Arc`].
#[derive(Debug)]
pub(crate) struct Cluster {
    servers: Vec<ServerAddress>,
    metadata: Peer,
    endpoints: ClientEndpoints,
    targets: Mutex<HashMap<HostId, Peer>>,
    routing: Routing,
    session: Arc<Session>,
    operations: Numbers,
    writes: Numbers,
    /// Of exchanges about locks.
    locks: Numbers,
    /// Held alone while the session declares its locks, and by every exchange about them.
    declaring: tokio::sync::RwLock<()>,
    patience: Patience,
    metrics: ClientMetrics,
    /// What the metadata server has shown of itself.
    view: Arc<View>,
    refreshing: tokio::sync::Mutex<()>,
    replacing: tokio::sync::Mutex<()>,
    reads_out: Semaphore,
    ahead_out: Semaphore,
    writes_out: Semaphore,
    /// Counts sessions that ended without being closed.
    losses: watch::Sender<u64>,
}

/// What the metadata server has shown of itself.
#[derive(Debug, Default)]
struct View {
    /// The newest log index of any reply.
    seen: AtomicU64,
    /// The server's present life: another number means that it was restarted.
    incarnation: watch::Sender<u64>,
}

impl Cluster {
    /// Connects to the first metadata server that answers, opens a session and fetches the map.
    ///
    /// # Errors
    /// [`millrace_types::ErrorKind::Unavailable`] when no server answers for [`CONNECT_PATIENCE`],
    /// and what the server answers.
    pub(crate) async fn connect(
        servers: Vec<ServerAddress>,
        endpoints: ClientEndpoints,
        patience: Patience,
        metrics: ClientMetrics,
    ) -> Result<Self, Failure> {
        let view = Arc::new(View::default());
        let addresses = metadata::resolve(&servers).await?;
        let target = PeerTarget { role: Role::Metadata, host: None, addresses };
        let greeted = Arc::clone(&view);
        let metadata = Peer::with_hook(&endpoints, target, move |connected| {
            greet(connected, Arc::clone(&greeted))
        });
        let start = CallOptions::control(CONNECT_PATIENCE);
        let session = Session::open(&metadata, start).await?;
        let map = metadata.call_until(&FetchMap { held: MapEpoch(0) }, start).await?;
        Ok(Self {
            servers,
            metadata,
            endpoints,
            targets: Mutex::new(HashMap::new()),
            routing: Routing::new(map),
            session: Arc::new(session),
            operations: Numbers::default(),
            writes: Numbers::default(),
            locks: Numbers::default(),
            declaring: tokio::sync::RwLock::default(),
            patience,
            metrics,
            view,
            refreshing: tokio::sync::Mutex::new(()),
            replacing: tokio::sync::Mutex::new(()),
            reads_out: Semaphore::new(READS_OUT_MAX),
            ahead_out: Semaphore::new(AHEAD_OUT_MAX),
            writes_out: Semaphore::new(WRITES_OUT_MAX),
            losses: watch::Sender::new(0),
        })
    }

    /// The session.
    pub(crate) fn session(&self) -> SessionId {
        self.session.id()
    }

    /// The metadata server's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.session.now()
    }

    /// Whether what the server granted to the session stands for certain.
    pub(crate) fn is_ticket_valid(&self) -> bool {
        self.is_ticket_valid_for(Duration::ZERO)
    }

    /// Whether it stands for so long.
    pub(crate) fn is_ticket_valid_for(&self, time: Duration) -> bool {
        self.session.is_valid_for(time)
    }

    /// Tells how many sessions have ended without being closed.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// The metadata server's present life, which changes when it is restarted.
    pub(crate) fn incarnation(&self) -> watch::Receiver<u64> {
        self.view.incarnation.subscribe()
    }

    /// Renews the ticket for as long as it is polled, and fetches the map when it is old. Does so
    /// as well when the connection is lost: a server that was restarted waits for what this session
    /// has to declare. May be dropped at any time.
    pub(crate) async fn keep_session(&self) {
        let mut losses = self.metadata.losses();
        loop {
            // Also at first: the answer to the opening waited for the server's disk, so that its
            // clock is known better after this.
            while let Err(failure) = self.renew_ticket().await {
                tracing::debug!(%failure, "cannot renew the session's ticket");
                self.find_servers().await;
                tokio::time::sleep(RENEWAL_PAUSE).await;
            }
            tokio::select! {
                () = tokio::time::sleep(self.session.until_renewal()) => {}
                Ok(()) = losses.changed() => {}
            }
        }
    }

    /// Ends the session in order. Failures are only logged: it ends by itself a lease later.
    pub(crate) async fn close_session(&self) {
        let request = CloseSession { session: self.session() };
        let options = CallOptions::control(CLOSE_DEADLINE);
        if let Err(failure) = self.metadata.call(&request, options).await {
            tracing::debug!(%failure, "cannot close the session");
        }
    }
}

/// The first message on every connection to the metadata server.
async fn greet(connected: Connected, view: Arc<View>) -> Result<(), Failure> {
    let seen_index = LogIndex(view.seen.load(Ordering::Acquire));
    let hello = Hello { seen_index };
    let reply = connected.call(&hello, CallOptions::control(ATTACH_DEADLINE)).await?;
    if reply.last_index < seen_index {
        tracing::error!(
            seen = %seen_index,
            server = %reply.last_index,
            "the metadata server has lost changes that it had acknowledged"
        );
    }
    view.incarnation.send_if_modified(|known| {
        let restarted = *known != reply.incarnation;
        *known = reply.incarnation;
        restarted
    });
    Ok(())
}

/// How long a mount waits for the first answer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// A message without work behind it.
const ATTACH_DEADLINE: Duration = Duration::from_secs(5);

/// The last message; nobody waits for it longer.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// Between attempts to renew a ticket.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);

/// Reads in flight, of 1 MiB at most: bounds the memory that answers take before anybody has asked
/// for a budget.
const READS_OUT_MAX: usize = 64;

/// The same for reads that nobody waits for yet: apart, so that they never stand before others.
const AHEAD_OUT_MAX: usize = 48;

/// Writes in flight; their bytes are in the budget already.
const WRITES_OUT_MAX: usize = 64;
