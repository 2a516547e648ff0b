//! One connection to a peer, and the requests that are out on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use millrace_protocol::{
    Request, codec,
    frame::{Header, Shape},
};
use millrace_types::{ErrorKind, Failure};
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};

use crate::{
    framing::{self, Outgoing, ReceiveError, SendError},
    identity::PeerIdentity,
};

/// One attempt to connect. Longer than three repetitions of the first packet, so that a loaded
/// server still answers within one; see the pauses in [`crate::tls`].
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1400);

/// Requests are out and nothing has arrived for this long, although keep-alives are answered every
/// second: the server is gone. Twice the keep-alive, for a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A connection without requests for this long is closed: a thousand clients that read nothing cost
/// a target nothing.
const IDLE_CLOSE: Duration = Duration::from_secs(60);

/// How often silence and idleness are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The code with which a caller takes a request back.
pub(crate) const CANCELLED: VarInt = VarInt::from_u32(1);

/// The code with which a connection is closed in order.
pub(crate) const CLOSED: VarInt = VarInt::from_u32(0);

/// One live connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    peer: PeerIdentity,
    number: u64,
    requests_out: AtomicUsize,
    requests_sent: AtomicU64,
}

impl Link {
    pub(crate) fn new(connection: Connection, peer: PeerIdentity, number: u64) -> Self {
        Self(Arc::new(Inner {
            connection,
            peer,
            number,
            requests_out: AtomicUsize::new(0),
            requests_sent: AtomicU64::new(0),
        }))
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.0.peer
    }

    /// Counts the connections to this peer: another number means that an older one was lost.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.connection.close_reason().is_none()
    }

    /// Closes the connection; requests that are out fail as unavailable.
    pub(crate) fn close(&self, reason: &'static str) {
        self.0.connection.close(CLOSED, reason.as_bytes());
    }

    /// Sends a request and waits for its reply. Dropping the future takes the request back.
    ///
    /// # Errors
    /// The server's failure, or [`ErrorKind::Unavailable`] when the connection breaks.
    pub async fn exchange<R: Request>(
        &self,
        request: &R,
        body: &[Bytes],
        deadline: Duration,
    ) -> Result<(R::Reply, Vec<Bytes>), Failure> {
        let _out = Out::begin(&self.0);
        let (send, receive) = self.0.connection.open_bi().await.map_err(|error| broken(&error))?;
        let mut stream = Stream { send, receive, done: false };
        let request_id = self.0.requests_sent.fetch_add(1, Ordering::Relaxed);
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let shape = Shape::Request { kind: R::KIND, deadline_ms };
        let frame = Outgoing { shape, message: codec::encode(request), body, request_id };
        match frame.send(&mut stream.send).await {
            // A server that answers before it has read everything stops the stream: its reply says
            // why.
            Ok(()) | Err(SendError::Stream(WriteError::Stopped(_))) => {}
            Err(SendError::Frame(failure)) => return Err(failure),
            Err(SendError::Stream(WriteError::ConnectionLost(error))) => {
                return Err(broken(&error));
            }
            Err(SendError::Stream(error)) => {
                return Err(Failure::new(ErrorKind::Unavailable, error.to_string()));
            }
        }
        let (header, message) =
            framing::receive_head(&mut stream.receive).await.map_err(|error| unread(&error))?;
        let body = framing::receive_body(&mut stream.receive, header.body_len)
            .await
            .map_err(|error| unread(&error))?;
        stream.done = true;
        reply::<R>(header, &message).map(|reply| (reply, body))
    }

    /// Watches for silence and idleness until the connection ends.
    pub(crate) async fn watch(self) {
        let mut received = 0;
        let mut sent = 0;
        let mut silent = Duration::ZERO;
        let mut idle = Duration::ZERO;
        while self.is_open() {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let now_received = self.0.connection.stats().udp_rx.datagrams;
            let now_sent = self.0.requests_sent.load(Ordering::Relaxed);
            let waiting = self.0.requests_out.load(Ordering::Relaxed) > 0;
            let heard = now_received != received;
            silent = if waiting && !heard { silent + WATCH_INTERVAL } else { Duration::ZERO };
            let quiet = !waiting && now_sent == sent;
            idle = if quiet { idle + WATCH_INTERVAL } else { Duration::ZERO };
            (received, sent) = (now_received, now_sent);
            if silent >= SILENCE_MAX {
                tracing::debug!(peer = %self.0.peer.host, "the peer is silent: connecting again");
                self.close("silent");
            } else if idle >= IDLE_CLOSE {
                self.close("idle");
            }
        }
    }
}

/// Counts a request while it is out.
struct Out<'a>(&'a AtomicUsize);

impl<'a> Out<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.requests_out.fetch_add(1, Ordering::Relaxed);
        Self(&inner.requests_out)
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that is reset when it is dropped before its reply has arrived.
struct Stream {
    send: SendStream,
    receive: RecvStream,
    done: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.done {
            // Either fails only when that side has ended already.
            drop(self.send.reset(CANCELLED));
            drop(self.receive.stop(CANCELLED));
        }
    }
}

fn reply<R: Request>(header: Header, message: &[u8]) -> Result<R::Reply, Failure> {
    let protocol = |reason: String| Failure::new(ErrorKind::Protocol, reason);
    match header.shape {
        Shape::Reply => codec::decode(message).map_err(|error| protocol(error.to_string())),
        Shape::Failure { .. } => {
            Err(codec::decode::<Failure>(message)
                .unwrap_or_else(|error| protocol(error.to_string())))
        }
        Shape::Request { .. } => Err(protocol("a request where a reply is due".to_owned())),
    }
}

fn unread(error: &ReceiveError) -> Failure {
    match error {
        ReceiveError::Stream(ReadError::ConnectionLost(error)) => broken(error),
        error if error.is_malformed() => Failure::new(ErrorKind::Protocol, error.to_string()),
        error => Failure::new(ErrorKind::Unavailable, error.to_string()),
    }
}

/// What a lost connection means for the caller.
pub(crate) fn broken(error: &ConnectionError) -> Failure {
    Failure::new(ErrorKind::Unavailable, error.to_string())
}
