//! The dialling side: requests to one peer over connections that come and go by themselves.
//!
//! A [`Peer`] stands for one server. It connects when the first request needs it, control and bulk
//! apart, spreads bulk over more sockets the more of it there is, keeps connections alive while
//! requests are out, and replaces those that were lost. What to do with a request that failed
//! meanwhile is the caller's decision; [`Peer::call_until`] makes the usual one for requests that
//! may be repeated.
//!
//! # Connection numbers
//! A server that binds state to connections (a target to a session) must know which connections
//! belong together, and that a lost one will not come back with late requests. All connections of
//! one [`Peer::connection_number`] live side by side; it is raised when one of them is lost, before
//! whoever has met that tries again. The others then take no more requests, and the next connection
//! shows the higher number, upon which the server ends those of lower numbers.
//!
//! # Liveness
//! While requests are out and nothing arrives, one byte is sent every 250 ms. A
//! restarted server answers it with a reset at once, however far QUIC's own retransmissions have
//! backed off; a live one confirms it, which keeps the idle timeout from striking during long
//! requests. Without requests it is one byte a second, so that the next request finds a connection
//! with warm windows; after `linger_ms` without a request the connection is closed in order. What a
//! hook sends is no such request, however often it runs again. The price is one packet of 40 bytes
//! a second for each peer used within the last minute.
//!
//! # Cancellation
//! Every future here may be dropped at any time. Dropping a request resets its stream, which
//! cancels the server's work. A future that is neither polled nor dropped holds back its
//! connection's flow control.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use millrace_protocol::{Request, codec, session::Role};
use millrace_types::{ErrorKind, Failure, HostId};
use tokio::sync::watch;

use crate::Body;

mod endpoints;
mod keep_alive;
mod live;
mod retry;
mod slot;
mod spread;

pub use endpoints::{ClientEndpoints, ClientError};
pub use live::Connected;
use live::{Live, Outgoing, Secured};
use slot::Slot;

/// A server that this node sends requests to. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct Peer(Arc<PeerState>);

/// Whom to dial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerTarget {
    /// What its certificate must allow.
    pub role: Role,
    /// Which node it must be; any node of that role when absent.
    pub host: Option<HostId>,
    /// Where it may be reached; tried in turn.
    pub addresses: Vec<SocketAddr>,
}

/// Which of a peer's connections a request takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Small requests that must not wait behind bulk bytes.
    Control,
    /// Reads and writes.
    Bulk,
}

/// How a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// How long to wait for the answer, connecting included. The server learns it.
    pub deadline: Duration,
    /// Over which connection.
    pub lane: Lane,
}

impl CallOptions {
    /// A small request.
    #[must_use]
    pub fn control(deadline: Duration) -> Self {
        Self { deadline, lane: Lane::Control }
    }

    /// A request that carries or asks for bulk bytes.
    #[must_use]
    pub fn bulk(deadline: Duration) -> Self {
        Self { deadline, lane: Lane::Bulk }
    }
}

/// Runs once on each new connection, before any request uses it. A failure closes the connection
/// and is what the waiting requests get.
type Hook = Box<dyn Fn(Connected) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

struct PeerState {
    endpoints: ClientEndpoints,
    target: Mutex<PeerTarget>,
    hook: Option<Hook>,
    control: Slot,
    bulk: Vec<Slot>,
    number: AtomicU64,
    /// Rises with `number`, as soon as a loss is noticed.
    losses: watch::Sender<u64>,
}

impl Peer {
    /// A peer that needs no introduction.
    #[must_use]
    pub fn new(endpoints: &ClientEndpoints, target: PeerTarget) -> Self {
        Self::build(endpoints, target, None)
    }

    /// A peer to which each new connection is introduced by `hook`, before any request uses it.
    ///
    /// The hook may send requests through the [`Connected`] that it is given and has the handshake
    /// timeout for all of them. It must not keep a clone of this peer, or neither is ever freed.
    #[must_use]
    pub fn with_hook<H, F>(endpoints: &ClientEndpoints, target: PeerTarget, hook: H) -> Self
    where
        H: Fn(Connected) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let hook = move |connected| -> BoxFuture<'static, Result<(), Failure>> {
            Box::pin(hook(connected))
        };
        Self::build(endpoints, target, Some(Box::new(hook)))
    }

    fn build(endpoints: &ClientEndpoints, target: PeerTarget, hook: Option<Hook>) -> Self {
        let bulk = endpoints.bulk_order().map(|index| Slot::new(Lane::Bulk, index));
        Self(Arc::new(PeerState {
            target: Mutex::new(target),
            hook,
            control: Slot::new(Lane::Control, 0),
            bulk: bulk.collect(),
            number: AtomicU64::new(1),
            losses: watch::Sender::new(0),
            endpoints: endpoints.clone(),
        }))
    }

    /// Sends a request without bulk bytes and waits for the answer.
    ///
    /// # Errors
    /// What the server answered; or [`Unavailable`](millrace_types::ErrorKind::Unavailable) when it
    /// cannot be reached or the connection was lost (the request may have been executed),
    /// `DeadlineExceeded`, `Forbidden` when a certificate is refused (`Unavailable` for its time
    /// alone: a host's clock may be wrong), `Protocol`.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply, Failure> {
        let (reply, _) = self.exchange(request, Body::default(), options).await?;
        Ok(reply)
    }

    /// Sends a request with bulk bytes and waits for the answer with its bulk bytes.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn exchange<R: Request>(
        &self,
        request: &R,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<(R::Reply, Body), Failure> {
        let outgoing = Outgoing::new(request, body.into(), options.deadline)?;
        let (message, body) = self.attempt(&outgoing, options).await?;
        Ok((codec::decode(&message)?, body))
    }

    /// [`Self::call`] for a request that may be executed twice without harm: sends it again while
    /// the peer is unavailable or busy, until the deadline.
    ///
    /// # Errors
    /// As [`Self::call`]; the last failure once the deadline is near.
    pub async fn call_until<R: Request>(
        &self,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply, Failure> {
        let (reply, _) = self.exchange_until(request, Body::default(), options).await?;
        Ok(reply)
    }

    /// [`Self::exchange`] for a request that may be executed twice without harm: sends it again
    /// while the peer is unavailable or busy, until the deadline.
    ///
    /// # Errors
    /// As [`Self::exchange`]; the last failure once the deadline is near.
    pub async fn exchange_until<R: Request>(
        &self,
        request: &R,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<(R::Reply, Body), Failure> {
        let outgoing = Outgoing::new(request, body.into(), options.deadline)?;
        let attempt = |deadline| {
            let options = CallOptions { deadline, ..options };
            self.attempt(&outgoing, options)
        };
        let random = self.0.endpoints.random();
        let (message, body) = retry::until(options.deadline, random, attempt).await?;
        Ok((codec::decode(&message)?, body))
    }

    /// Raised when a connection was lost and will be replaced; begins at 1. See the module's page.
    #[must_use]
    pub fn connection_number(&self) -> u64 {
        self.0.number()
    }

    /// Rises when connections were lost, as soon as that is noticed: for who has something to tell
    /// the server when it is back, although no request is out. It is not dialled again before a
    /// request comes.
    #[must_use]
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.0.losses.subscribe()
    }

    /// Runs the hook once more: over the first connection for which it does not fail, or over all
    /// of them if `every`, those that are being made included. Where there is none, nothing is
    /// done: connections that come later are introduced anyway.
    ///
    /// # Errors
    /// What the hook says; [`DeadlineExceeded`](millrace_types::ErrorKind::DeadlineExceeded) after
    /// `limit`.
    pub async fn introduce_again(&self, every: bool, limit: Duration) -> Result<(), Failure> {
        let introduced = async {
            match every {
                true => self.0.introduce_all().await,
                false => self.0.introduce_one().await,
            }
        };
        tokio::time::timeout(limit, introduced).await.unwrap_or_else(|_| {
            let words = format!("not introduced again within {limit:?}");
            Err(Failure::new(ErrorKind::DeadlineExceeded, words))
        })
    }

    /// Whom this peer dials.
    #[must_use]
    pub fn target(&self) -> PeerTarget {
        self.0.target().clone()
    }

    /// Where the peer is reached from now on; connections that stand are kept.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        self.0.target().addresses = addresses;
    }

    /// One attempt with everything that it needs.
    async fn attempt(
        &self,
        outgoing: &Outgoing,
        options: CallOptions,
    ) -> Result<(Bytes, Body), Failure> {
        let attempt = async {
            loop {
                let live = self.0.live(options.lane).await?;
                // None: it was closed for want of use just now. An older number: another one was
                // lost while it was being made, and the next look lets go of it.
                if let Some(_counted) = live.begin().filter(|_| live.number() == self.0.number()) {
                    let outcome = live.exchange(outgoing, options.deadline).await;
                    // Before anybody tries again: not over another connection of its number.
                    if outcome.is_err() && live.is_closed() {
                        self.0.forget(&live);
                    }
                    return outcome;
                }
            }
        };
        tokio::time::timeout(options.deadline, attempt)
            .await
            .unwrap_or_else(|_| Err(outgoing.deadline_passed()))
    }
}

impl PeerState {
    /// The connection that the next request takes.
    async fn live(self: &Arc<Self>, lane: Lane) -> Result<Arc<Live>, Failure> {
        if lane == Lane::Control {
            return self.control.live(self).await;
        }
        let choice = spread::choose(self.bulk.iter().map(|slot| slot.standing(self)));
        if let Some(further) = choice.make.and_then(|index| self.bulk.get(index)) {
            further.make(self);
        }
        self.bulk.get(choice.take).unwrap_or(&self.control).live(self).await
    }

    /// Introduces one connection again, if one stands.
    async fn introduce_one(&self) -> Result<(), Failure> {
        let Some(hook) = &self.hook else { return Ok(()) };
        let mut outcome = Ok(());
        for live in self.slots().filter_map(|slot| slot.standing_one(self)) {
            outcome = hook(Connected(live)).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Introduces every connection again; tells the first failure.
    async fn introduce_all(&self) -> Result<(), Failure> {
        let Some(hook) = &self.hook else { return Ok(()) };
        // What is being made may have been introduced a moment ago: with what was true then.
        join_all(self.slots().map(Slot::made)).await;
        let standing: Vec<_> = self.slots().filter_map(|slot| slot.standing_one(self)).collect();
        let told = join_all(standing.into_iter().map(|live| hook(Connected(live)))).await;
        told.into_iter().collect()
    }

    /// A connection has ended.
    fn forget(&self, live: &Arc<Live>) {
        self.slots().for_each(|slot| slot.forget(live, self));
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.bulk.iter().chain([&self.control])
    }

    /// What connections count under now.
    fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Notes that a connection was lost: the next one shows a higher number. Connections of an
    /// older number are expected to end.
    fn lost(&self, live: &Live) {
        let (seen, next) = (live.number(), live.number() + 1);
        if !live.ended_in_order() {
            let raised =
                self.number.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire);
            if raised.is_ok() {
                self.losses.send_modify(|losses| *losses += 1);
                tracing::debug!(number = next, peer = %live.remote(), "connection lost");
            }
        }
    }

    /// A panic elsewhere cannot leave the target half written.
    fn target(&self) -> MutexGuard<'_, PeerTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&*self.0.target()).finish()
    }
}
