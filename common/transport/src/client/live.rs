//! One connection to a peer, and a request's way over it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use millrace_protocol::same_host::FindSocket;
use millrace_protocol::{
    Request, RequestKind, codec,
    frame::{BODY_LEN_MAX, Shape},
    version::ProtocolVersion,
};
use millrace_types::{ErrorKind, Failure};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{CallOptions, Lane};
use crate::{
    Body, PeerIdentity, TransportSettings,
    failure::{self, CloseCode},
    same_host::{SameHost, Taken, is_same_host},
    stream::{FrameReader, FrameSender, FrameWriteError, Label, write_frame},
    windows::Share,
};

/// An encoded request: encoded once however often it is sent.
pub(super) struct Outgoing {
    kind: RequestKind,
    message: Bytes,
    body: Body,
    deadline: Duration,
}

impl Outgoing {
    /// Fails when message or body is longer than a frame carries.
    pub(super) fn new<R: Request>(
        request: &R,
        body: Body,
        deadline: Duration,
    ) -> Result<Self, Failure> {
        let message = codec::encode(request);
        if message.len() > codec::MESSAGE_LEN_MAX || body.len() > BODY_LEN_MAX {
            let (message, body) = (message.len(), body.len());
            return Err(Failure::new(
                ErrorKind::InvalidArgument,
                format!("request of {message} and body of {body} bytes is too long to send"),
            ));
        }
        Ok(Self { kind: R::KIND, message, body, deadline })
    }

    pub(super) fn deadline_passed(&self) -> Failure {
        let (name, waited) = (self.kind.name(), self.deadline);
        Failure::new(ErrorKind::DeadlineExceeded, format!("no answer to {name} within {waited:?}"))
    }
}

/// What a handshake gives.
pub(super) struct Secured {
    pub(super) quic: quinn::Connection,
    pub(super) version: ProtocolVersion,
    pub(super) peer: PeerIdentity,
}

/// A connection after its handshake.
pub(super) struct Live {
    quic: quinn::Connection,
    version: ProtocolVersion,
    peer: PeerIdentity,
    lane: Lane,
    number: u64,
    /// Requests out; [`ENDED`] once we have closed it while there were none.
    in_flight: AtomicUsize,
    next_request: AtomicU64,
    last_use: Mutex<Instant>,
    /// Somebody has met its end.
    closed: AtomicBool,
    /// Fires then.
    ended: CancellationToken,
    /// The way past the network, where there is one.
    same_host: OnceLock<Arc<SameHost>>,
    _share: Share,
}

impl Live {
    pub(super) fn new(secured: Secured, lane: Lane, number: u64, share: Share) -> Self {
        Self {
            quic: secured.quic,
            version: secured.version,
            peer: secured.peer,
            lane,
            number,
            in_flight: AtomicUsize::new(0),
            next_request: AtomicU64::new(1),
            last_use: Mutex::new(Instant::now()),
            closed: AtomicBool::new(false),
            ended: CancellationToken::new(),
            same_host: OnceLock::new(),
            _share: share,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn remote(&self) -> SocketAddr {
        let remote = self.quic.remote_address();
        SocketAddr::new(remote.ip().to_canonical(), remote.port())
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        if !self.is_known_closed() && self.quic.close_reason().is_some() {
            self.closed.store(true, Ordering::Release);
            self.ended.cancel();
        }
        self.is_known_closed()
    }

    /// Whether [`Self::is_closed`] has ever said so; takes no lock.
    pub(super) fn is_known_closed(&self) -> bool {
        self.ended_in_order() || self.closed.load(Ordering::Acquire)
    }

    /// Whether we closed it while no request was out.
    pub(super) fn ended_in_order(&self) -> bool {
        self.in_flight() >= ENDED
    }

    /// How long ago the last request ended, those of hooks not counted.
    pub(super) fn unused_for(&self) -> Duration {
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// How many datagrams have arrived.
    pub(super) fn received(&self) -> u64 {
        self.quic.stats().udp_rx.datagrams
    }

    /// Sends one byte that the peer must confirm and otherwise ignores.
    pub(super) fn poke(&self) {
        // Not sent when the connection has just ended, or bytes wait to be sent anyway.
        drop(self.quic.send_datagram(Bytes::from_static(&[0])));
    }

    /// Closes a connection that nobody needs, unless a request has just begun.
    pub(super) fn end(&self) {
        let free = self.in_flight.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire);
        if free.is_ok() {
            self.quic.close(CloseCode::Done.code(), b"");
        }
    }

    /// Closes a connection whose introduction failed.
    pub(super) fn reject(&self) {
        self.quic.close(CloseCode::Done.code(), b"not introduced");
    }

    /// Counts a request as out until the guard is dropped. `None`: the connection has ended.
    pub(super) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        self.count(true)
    }

    /// The same for what a hook sends: who only shows a newer ticket does not use the connection.
    fn begin_introduction(self: &Arc<Self>) -> Option<InFlight> {
        self.count(false)
    }

    fn count(self: &Arc<Self>, is_use: bool) -> Option<InFlight> {
        let more = |count: usize| (count < ENDED).then_some(count + 1);
        self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(InFlight { live: Arc::clone(self), is_use })
    }

    /// Looks for a way past the network: before the first request, if the peer is on this host. The
    /// sockets are watched by `runtime`.
    pub(super) async fn find_same_host(&self, settings: &TransportSettings, runtime: &Handle) {
        let (streams_max, limit) = (settings.same_host_streams, settings.connect_timeout());
        if streams_max == 0 || !is_same_host(&self.quic) {
            return;
        }
        let looking = async {
            let outgoing = Outgoing::new(&FindSocket {}, Body::default(), limit)?;
            let mut streams = self.open().await?;
            let (message, _) = self.over(&mut streams, &outgoing, limit).await??;
            streams.done = true;
            Ok::<_, Failure>(codec::decode(&message)?)
        };
        match tokio::time::timeout(limit, looking).await {
            Ok(Ok(found)) => {
                let (streams_max, ended) = (usize::from(streams_max), self.ended.clone());
                if let Some(way) = SameHost::new(&found, streams_max, runtime.clone(), ended) {
                    drop(self.same_host.set(way));
                }
            }
            Ok(Err(failure)) => tracing::debug!(%failure, "no way past the network"),
            Err(_) => tracing::debug!("no answer about a way past the network"),
        }
    }

    /// Sends a request and waits for the answer: message and body.
    pub(super) async fn exchange(
        &self,
        outgoing: &Outgoing,
        deadline: Duration,
    ) -> Result<(Bytes, Body), Failure> {
        if let Some(taken) = self.same_host.get().and_then(SameHost::take)
            && let Some(answer) = self.past_network(taken, outgoing, deadline).await
        {
            return answer;
        }
        let mut streams = self.open().await?;
        let answer = self.over(&mut streams, outgoing, deadline).await?;
        streams.done = answer.is_ok();
        answer
    }

    /// The same over a local stream. `None`: nobody can have begun it, so that it may go over QUIC.
    ///
    /// Boxed, because the future of each request has both ways in it.
    fn past_network<'a>(
        &'a self,
        mut taken: Taken,
        outgoing: &'a Outgoing,
        deadline: Duration,
    ) -> BoxFuture<'a, Option<Result<(Bytes, Body), Failure>>> {
        Box::pin(async move {
            let ticket = taken.ticket();
            let mut streams = Streams {
                receive: FrameReader::of_host(taken.stream(), Bytes::new(), self.version),
                send: FrameSender::Host(Arc::clone(taken.stream()), ticket),
                done: false,
            };
            let answered = tokio::select! {
                biased;
                answered = self.over(&mut streams, outgoing, deadline) => answered,
                () = self.ended.cancelled() => Err(self.named(ErrorKind::Unavailable.into())),
            };
            streams.done = answered.is_ok();
            drop(streams);
            match answered {
                Ok(answer) => {
                    // A server that could not read the request hangs up behind such an answer.
                    let unread = [ErrorKind::Protocol, ErrorKind::NotSupported];
                    if !answer.as_ref().is_err_and(|failure| unread.contains(&failure.kind)) {
                        taken.give_back();
                    }
                    Some(answer)
                }
                Err(_) if taken.give_up() && !self.ended.is_cancelled() => None,
                Err(failure) => Some(Err(self.why_ended().await.unwrap_or(failure))),
            }
        })
    }

    /// A stream of QUIC for one request.
    async fn open(&self) -> Result<Streams, Failure> {
        let (send, receive) = self.quic.open_bi().await.map_err(|error| self.lost(&error))?;
        let receive = FrameReader::new(receive, self.version);
        Ok(Streams { send: FrameSender::Quic(send), receive, done: false })
    }

    /// Why a local stream has ended: where the connection has, which says so a moment later, that.
    async fn why_ended(&self) -> Option<Failure> {
        self.poke();
        let closed = tokio::time::timeout(END_PAUSE, self.quic.closed()).await.ok()?;
        Some(self.lost(&closed))
    }

    /// The answer of the server, which may be a failure; fails when there is none.
    async fn over(
        &self,
        streams: &mut Streams,
        outgoing: &Outgoing,
        deadline: Duration,
    ) -> Result<Result<(Bytes, Body), Failure>, Failure> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let shape = Shape::Request { kind: outgoing.kind, deadline_ms: whole_ms(deadline) };
        let label = Label { version: self.version, shape, request_id: id };
        let body = outgoing.body.clone();
        let sent = write_frame(&mut streams.send, label, &outgoing.message, body).await;
        match sent {
            Ok(()) => {}
            Err(FrameWriteError::TooLong(why)) => {
                return Err(Failure::new(ErrorKind::InvalidArgument, why));
            }
            Err(FrameWriteError::Quic(error)) => match failure::of_write(&error) {
                Some(failure) => return Err(self.named(failure)),
                // The server has answered without waiting for the body.
                None => tracing::trace!(id, "body not wanted"),
            },
            // It has hung up, perhaps behind an answer.
            Err(FrameWriteError::Host(error)) if is_hang_up(&error) => {
                tracing::trace!(id, %error, "body not wanted");
            }
            Err(error @ FrameWriteError::Host(_)) => {
                return Err(self.named(Failure::new(ErrorKind::Unavailable, error.to_string())));
            }
        }
        let named = |failure| self.named(unsent(failure));
        let (header, message) = streams.receive.message().await.map_err(named)?;
        // 0: of a request that the server could not read, or does not let in.
        if ![id, 0].contains(&header.request_id) {
            return Err(named(Failure::new(
                ErrorKind::Protocol,
                "the answer is another request's",
            )));
        }
        match header.shape {
            Shape::Reply => {
                let body = streams.receive.body().await.map_err(named)?;
                Ok(Ok((message, body)))
            }
            Shape::Failure { .. } => Ok(Err(codec::decode::<Failure>(&message)?)),
            Shape::Request { .. } => {
                Err(named(Failure::new(ErrorKind::Protocol, "the answer is a request")))
            }
        }
    }

    fn lost(&self, error: &quinn::ConnectionError) -> Failure {
        self.named(failure::of_connection(error))
    }

    /// Says which peer a failure of the transport is about.
    fn named(&self, failure: Failure) -> Failure {
        let peer = format!("{} at {}", self.peer.role.name(), self.remote());
        Failure {
            message: Failure::new(failure.kind, format!("{peer}: {}", failure.message)).message,
            ..failure
        }
    }
}

/// In milliseconds, as the server hears it: not less, or it would give up before its caller.
fn whole_ms(deadline: Duration) -> u32 {
    u32::try_from(deadline.as_micros().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// What it means that the server took its answer back: nobody read it in time.
fn unsent(failure: Failure) -> Failure {
    match failure.kind {
        ErrorKind::Cancelled => {
            Failure::new(ErrorKind::DeadlineExceeded, "the answer was not read in time")
        }
        _ => failure,
    }
}

/// A request that is out.
pub(super) struct InFlight {
    live: Arc<Live>,
    /// Whether its end is the connection's last use.
    is_use: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.is_use {
            let mut last_use = self.live.last_use.lock().unwrap_or_else(PoisonError::into_inner);
            *last_use = Instant::now();
        }
        self.live.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request's stream, taken back unless its answer has arrived.
struct Streams {
    send: FrameSender,
    receive: FrameReader,
    done: bool,
}

impl Drop for Streams {
    fn drop(&mut self) {
        if !self.done {
            self.send.cancel();
            self.receive.stop();
        }
    }
}

/// A server that ends a connection ends its local streams in the same moment. One that was killed
/// says nothing of the connection before it is back.
const END_PAUSE: Duration = Duration::from_secs(2);

/// A count that requests never reach.
const ENDED: usize = usize::MAX / 2;

/// A new connection in the hands of its hook.
pub struct Connected(pub(super) Arc<Live>);

impl Connected {
    /// The number that this connection counts under; see [`Peer::connection_number`](super::Peer).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// What the connection is for.
    #[must_use]
    pub fn lane(&self) -> Lane {
        self.0.lane
    }

    /// What the peer's certificate says.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.0.peer
    }

    /// Sends a request over this very connection. The lane of `options` does not matter. It does
    /// not count as use: a connection over which nothing else goes is closed in its time.
    ///
    /// # Errors
    /// As [`Peer::call`](super::Peer::call).
    pub async fn call<R: Request>(
        &self,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply, Failure> {
        let outgoing = Outgoing::new(request, Body::default(), options.deadline)?;
        let _counted = self.0.begin_introduction();
        let exchange = self.0.exchange(&outgoing, options.deadline);
        let (message, _) = tokio::time::timeout(options.deadline, exchange)
            .await
            .unwrap_or_else(|_| Err(outgoing.deadline_passed()))?;
        Ok(codec::decode(&message)?)
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected")
            .field("number", &self.0.number)
            .field("lane", &self.0.lane)
            .finish_non_exhaustive()
    }
}
