//! The client's end: streams of one connection, kept for the next request.

use std::{
    collections::VecDeque,
    fmt, io,
    os::unix::net::UnixStream as StdStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::same_host::{FoundSocket, NAME_LEN_MAX};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::{net::UnixStream, runtime::Handle};
use tokio_util::sync::CancellationToken;

use super::HostStream;

/// The way past the network to the server of one connection.
pub(crate) struct SameHost {
    address: SocketAddrUnix,
    owner: u32,
    ticket: Bytes,
    streams_max: usize,
    /// Where the sockets are watched.
    runtime: Handle,
    ended: CancellationToken,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    /// And since when, the last used last.
    idle: VecDeque<(Arc<HostStream>, Instant)>,
    /// Those that are idle and those that are taken.
    open: usize,
    /// Nobody that may be trusted listens there.
    refused: bool,
    /// No new stream before this: the server has not taken the last one.
    not_before: Option<Instant>,
}

impl SameHost {
    /// A way to what `found` says, with at most `streams_max` streams, for a connection that has
    /// ended once `ended` fires. `None`: the name is none.
    pub(crate) fn new(
        found: &FoundSocket,
        streams_max: usize,
        runtime: Handle,
        ended: CancellationToken,
    ) -> Option<Arc<Self>> {
        if found.name.len() > NAME_LEN_MAX {
            return None;
        }
        Some(Arc::new(Self {
            address: SocketAddrUnix::new_abstract_name(&found.name).ok()?,
            owner: found.owner,
            ticket: Bytes::copy_from_slice(&found.ticket),
            streams_max: streams_max.min(found.streams_max as usize),
            runtime,
            ended,
            streams: Mutex::default(),
        }))
    }

    /// A stream for one request. `None`: all are taken, or none can be had. Waits for nothing.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Taken> {
        {
            let mut streams = self.lock();
            if let Some((stream, _)) = streams.idle.pop_back() {
                return Some(self.taken(stream, None));
            }
            let rests = streams.not_before.is_some_and(|until| Instant::now() < until);
            if streams.refused || rests || streams.open >= self.streams_max {
                return None;
            }
            streams.open += 1;
        }
        match self.connect() {
            Ok(stream) => {
                let stream = HostStream::dialled(stream, self.ended.clone());
                Some(self.taken(stream, Some(self.ticket.clone())))
            }
            Err(error) => {
                tracing::debug!(%error, "no local stream");
                let mut streams = self.lock();
                streams.open -= 1;
                match error.kind() {
                    // The backlog is full: this request alone goes over QUIC.
                    io::ErrorKind::WouldBlock => {}
                    io::ErrorKind::ConnectionRefused => streams.refused = true,
                    // As when the process has no descriptor left.
                    _ if error.raw_os_error().is_some() => {
                        streams.not_before = Some(Instant::now() + REST);
                    }
                    _ => streams.refused = true,
                }
                None
            }
        }
    }

    fn taken(self: &Arc<Self>, stream: Arc<HostStream>, ticket: Option<Bytes>) -> Taken {
        Taken { way: Arc::clone(self), stream, given_back: false, ticket }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &self.address)?;
        let _context = self.runtime.enter();
        let stream = UnixStream::from_std(StdStream::from(socket))?;
        match stream.peer_cred()?.uid() {
            uid if uid == self.owner => Ok(stream),
            uid => Err(io::Error::other(format!("user {uid} listens there"))),
        }
    }

    /// A panic elsewhere cannot leave a list and a number half written.
    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SameHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SameHost").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// A stream in the hands of one request; ended when this is dropped before its answer is there.
pub(crate) struct Taken {
    way: Arc<SameHost>,
    stream: Arc<HostStream>,
    given_back: bool,
    /// What a new stream begins with.
    ticket: Option<Bytes>,
}

impl Taken {
    /// The stream.
    pub(crate) fn stream(&self) -> &Arc<HostStream> {
        &self.stream
    }

    /// What has to be sent before the first request.
    pub(crate) fn ticket(&mut self) -> Option<Bytes> {
        self.ticket.take()
    }

    /// The answer is there and read to its end: the next request may have the stream.
    pub(crate) fn give_back(mut self) {
        if !self.stream.is_sound() {
            return;
        }
        self.given_back = true;
        let mut streams = self.way.lock();
        let now = Instant::now();
        streams.idle.push_back((Arc::clone(&self.stream), now));
        // Those that are not needed lie in front. Others may want their places at the server.
        if streams.idle.front().is_some_and(|(_, since)| now - *since > IDLE_MAX)
            && let Some((unneeded, _)) = streams.idle.pop_front()
        {
            streams.open -= 1;
            unneeded.end();
        }
    }

    /// There is no answer, because the server has hung up. Whether nobody can have begun to do what
    /// was asked: then it may go over QUIC.
    pub(crate) fn give_up(self) -> bool {
        if !self.stream.is_greeted() {
            tracing::debug!("the server does not take a local stream");
            self.way.lock().not_before = Some(Instant::now() + REST);
        }
        self.stream.is_unbegun()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.given_back {
            self.stream.end();
            self.way.lock().open -= 1;
        }
    }
}

/// A stream that was not needed for so long goes with the next request that ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A server that has all the streams it may have takes no other for a while.
const REST: Duration = Duration::from_secs(1);
