//! The servers as the file system sees them: one metadata server and many targets.
//!
//! Owns the session, the cluster map, the connections and the patience with servers that do not
//! answer. Knows nothing of open files: what concerns them (old content, a session that ended) is
//! passed up as a failure.
//!
//! Modules, in reading order: [`session`] (ticket and clock), [`operations`] (numbers of
//! mutations), [`retry`], [`view`] (lives of the metadata server), [`metadata`] (requests about
//! names), `publish`, [`locks`], [`routing`] (cluster map), [`lanes`] (what is out at a time),
//! [`storage`] (requests about bytes).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_protocol::{
    cluster::FetchMap,
    session::{CloseSession, Role},
};
use millrace_service::address::ServerAddress;
use millrace_transport::{CallOptions, ClientEndpoints, Peer, PeerTarget};
use millrace_types::{Failure, HostId, LogIndex, MapEpoch, SessionId, Timestamp};
use tokio::sync::watch;

pub(crate) use metadata::{Indexed, Unmade, Unsettled};
pub(crate) use view::Logged;

use crate::{
    cluster::{
        lanes::Lanes, operations::Numbers, retry::Patience, routing::Routing, session::Session,
        view::View,
    },
    metrics::ClientMetrics,
};

pub(crate) mod lanes;
mod locks;
mod metadata;
mod operations;
mod publish;
pub(crate) mod retry;
mod routing;
mod session;
mod storage;
mod view;

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
    /// Has seen the life in which the session was opened.
    restarts: watch::Receiver<u64>,
    refreshing: tokio::sync::Mutex<()>,
    replacing: tokio::sync::Mutex<()>,
    lanes: Lanes,
    /// Counts sessions that ended without being closed.
    losses: watch::Sender<u64>,
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
            view::greet(connected, Arc::clone(&greeted))
        });
        let start = CallOptions::control(CONNECT_PATIENCE);
        let session = Session::open(&metadata, start).await?;
        let restarts = view.incarnation();
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
            restarts,
            refreshing: tokio::sync::Mutex::new(()),
            replacing: tokio::sync::Mutex::new(()),
            lanes: Lanes::default(),
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
        self.view.incarnation()
    }

    /// Tells of each life of the metadata server behind the one in which the session was opened
    /// first, also of one that has begun before this was called.
    pub(crate) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.clone()
    }

    /// For each life of the metadata server that did not know what one before had acknowledged: up
    /// to where its log was still the same. To be asked behind an answer: it is recorded before a
    /// new life answers anything.
    pub(crate) fn log_ends(&self) -> Vec<LogIndex> {
        self.view.ends()
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

/// How long a mount waits for the first answer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);

/// A message without work behind it.
const ATTACH_DEADLINE: Duration = Duration::from_secs(5);

/// The last message; nobody waits for it longer.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// Between attempts to renew a ticket.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);
