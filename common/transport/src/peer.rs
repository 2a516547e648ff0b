//! A peer that is called: connections come and go, the peer stays.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use millrace_protocol::{Request, session::Role};
use millrace_types::{ErrorKind, Failure, HostId};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout, timeout_at},
};

pub use crate::link::Link;
use crate::{
    endpoint::Endpoint,
    link::{CONNECT_TIMEOUT, broken},
};

/// Which connection a request takes: bulk bytes never stand in the way of small requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Small requests.
    Control,
    /// Requests with bulk bytes.
    Bulk,
}

/// How one call is made.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// How long to wait for the answer, connecting included.
    pub deadline: Duration,
    /// Which connection it takes.
    pub lane: Lane,
}

impl CallOptions {
    /// A small request.
    #[must_use]
    pub fn control(deadline: Duration) -> Self {
        Self { deadline, lane: Lane::Control }
    }

    /// A request with bulk bytes.
    #[must_use]
    pub fn bulk(deadline: Duration) -> Self {
        Self { deadline, lane: Lane::Bulk }
    }
}

/// Runs on every new connection before it is used, for example to show a session's ticket.
pub type OnConnect =
    Arc<dyn Fn(Link) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync>;

/// How a peer is reached.
#[derive(Clone)]
pub struct PeerOptions {
    /// The role that its certificate must have.
    pub role: Role,
    /// The node that its certificate must name; `None` accepts any of that role.
    pub host: Option<HostId>,
    /// Where it listens; tried in turn.
    pub addresses: Vec<SocketAddr>,
    /// Connections that share the bulk, 1 to 8: clouds cap one flow at 5 Gb/s.
    pub bulk_connections: usize,
    /// Runs on every new connection.
    pub on_connect: Option<OnConnect>,
}

impl PeerOptions {
    /// One bulk connection and nothing to do on connecting.
    #[must_use]
    pub fn new(role: Role, host: Option<HostId>, addresses: Vec<SocketAddr>) -> Self {
        Self { role, host, addresses, bulk_connections: 1, on_connect: None }
    }
}

impl fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at {:?}", self.role.name(), self.host, self.addresses)
    }
}

/// A daemon that answers calls. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Peer(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    role: Role,
    host: Option<HostId>,
    addresses: RwLock<Vec<SocketAddr>>,
    on_connect: Option<OnConnect>,
    control: Slot,
    bulk: Vec<Slot>,
    bulk_turn: AtomicUsize,
    connections_made: AtomicU64,
}

/// Where one connection is kept.
#[derive(Default)]
struct Slot {
    /// Read on every call; replaced when a connection is made.
    link: RwLock<Option<Link>>,
    /// Held while connecting, so that one does it for all.
    dialing: Mutex<()>,
    /// Counts finished attempts: who waited during one shares its result.
    attempts: AtomicU64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.role.name(), self.host)
    }
}

impl Peer {
    /// A peer that nobody has called yet; the first call connects.
    ///
    /// # Panics
    /// When `bulk_connections` is not 1 to 8.
    #[must_use]
    pub fn new(endpoint: Endpoint, options: PeerOptions) -> Self {
        assert!((1..=8).contains(&options.bulk_connections), "1 to 8 connections share the bulk");
        Self(Arc::new(Inner {
            endpoint,
            role: options.role,
            host: options.host,
            addresses: RwLock::new(options.addresses),
            on_connect: options.on_connect,
            control: Slot::default(),
            bulk: (0..options.bulk_connections).map(|_| Slot::default()).collect(),
            bulk_turn: AtomicUsize::new(0),
            connections_made: AtomicU64::new(0),
        }))
    }

    /// Where the peer listens from now on; connections that stand are kept.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        *self.0.addresses.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// How many connections have been made: a change means that an older one was lost.
    #[must_use]
    pub fn connections_made(&self) -> u64 {
        self.0.connections_made.load(Ordering::Relaxed)
    }

    /// Closes every connection; the next call makes new ones.
    pub fn disconnect(&self) {
        for slot in self.0.bulk.iter().chain([&self.0.control]) {
            if let Some(link) = slot.current() {
                link.close("disconnected");
            }
        }
    }

    /// Every connection that stands, for example to show a new ticket on each.
    #[must_use]
    pub fn links(&self) -> Vec<Link> {
        self.0.bulk.iter().chain([&self.0.control]).filter_map(Slot::current).collect()
    }

    /// Asks for something small. Dropping the future takes the request back.
    ///
    /// # Errors
    /// The server's failure; [`ErrorKind::Unavailable`] when it cannot be reached or the connection
    /// breaks; [`ErrorKind::DeadlineExceeded`].
    pub async fn call<R: Request>(
        &self,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply, Failure> {
        self.exchange(request, &[], options).await.map(|(reply, _)| reply)
    }

    /// Sends a request with bulk bytes and returns the reply with its. The bytes are as they arrived:
    /// the reply's checksum has yet to be checked. Dropping the future takes the request back.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn exchange<R: Request>(
        &self,
        request: &R,
        body: &[Bytes],
        options: CallOptions,
    ) -> Result<(R::Reply, Vec<Bytes>), Failure> {
        let work = async {
            let link = self.link(options.lane).await?;
            link.exchange(request, body, options.deadline).await
        };
        let in_time = timeout(options.deadline, work).await;
        in_time.unwrap_or_else(|_| Err(ErrorKind::DeadlineExceeded.into()))
    }

    /// Like [`Self::call`] for requests that may be sent again: transient failures are retried with
    /// growing, jittered pauses of 20 ms to 250 ms until the deadline.
    ///
    /// # Errors
    /// As [`Self::call`]; the last transient failure when the deadline passes.
    pub async fn call_until<R: Request>(
        &self,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply, Failure> {
        let deadline = Instant::now() + options.deadline;
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(20))
            .with_max_delay(Duration::from_millis(250))
            .without_max_times()
            .with_jitter()
            .build();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let result = self.call(request, CallOptions { deadline: left, ..options }).await;
            let failure = match result {
                Err(failure) if failure.kind.is_transient() => failure,
                settled => return settled,
            };
            let hint = Duration::from_millis(u64::from(failure.retry_after_ms));
            let pause = pauses.next().unwrap_or_default().max(hint);
            if timeout_at(deadline, tokio::time::sleep(pause)).await.is_err() {
                return Err(failure);
            }
        }
    }

    /// The connection of a lane, made now if none stands.
    async fn link(&self, lane: Lane) -> Result<Link, Failure> {
        let slot = match lane {
            Lane::Control => &self.0.control,
            Lane::Bulk => {
                let turn = self.0.bulk_turn.fetch_add(1, Ordering::Relaxed);
                &self.0.bulk[turn % self.0.bulk.len()]
            }
        };
        let attempts_before = slot.attempts.load(Ordering::Acquire);
        if let Some(link) = slot.current() {
            return Ok(link);
        }
        let _dialing = slot.dialing.lock().await;
        if let Some(link) = slot.current() {
            return Ok(link);
        }
        if slot.attempts.load(Ordering::Acquire) > attempts_before {
            return Err(Failure::new(ErrorKind::Unavailable, format!("{self:?} does not answer")));
        }
        let made = self.dial().await;
        slot.attempts.fetch_add(1, Ordering::AcqRel);
        let link = made?;
        *slot.link.write().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
        drop(self.0.endpoint.reactor().handle().spawn(link.clone().watch()));
        Ok(link)
    }

    /// Tries every address in turn.
    async fn dial(&self) -> Result<Link, Failure> {
        let addresses = self.0.addresses.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut failure =
            Failure::new(ErrorKind::Unavailable, format!("no address of {self:?} is known"));
        for address in addresses {
            match timeout(CONNECT_TIMEOUT, self.dial_one(address)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(refused)) => failure = refused,
                Err(_) => {
                    let reason = format!("{} at {address} does not answer", self.0.role.name());
                    failure = Failure::new(ErrorKind::Unavailable, reason);
                }
            }
        }
        Err(failure)
    }

    async fn dial_one(&self, address: SocketAddr) -> Result<Link, Failure> {
        let inner = &self.0;
        let dialed = inner.endpoint.connect(inner.role, address).await;
        let (connection, peer) = dialed.map_err(|error| {
            let reason = format!("{} at {address}: {error}", inner.role.name());
            Failure::new(ErrorKind::Unavailable, reason)
        })?;
        if inner.host.is_some_and(|host| host != peer.host)
            || peer.cluster != inner.endpoint.cluster()
        {
            let reason = format!("another node ({}) answers at {address}", peer.host);
            return Err(Failure::new(ErrorKind::Unavailable, reason));
        }
        let number = inner.connections_made.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Link::new(connection.clone(), peer, number);
        if let Some(on_connect) = &inner.on_connect {
            on_connect(link.clone()).await?;
        }
        connection.close_reason().map_or(Ok(link), |error| Err(broken(&error)))
    }
}

impl Slot {
    fn current(&self) -> Option<Link> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().filter(|link| link.is_open()).cloned()
    }
}
