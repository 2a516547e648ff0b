//! One stream: a connected socket that carries one request at a time.

use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::{Buf as _, Bytes};
use millrace_types::{ErrorKind, Failure};
use rustix::{
    buffer::spare_capacity,
    net::{self, SendAncillaryBuffer, SendFlags, Shutdown, sockopt},
};
use tokio::{io::Interest, net::UnixStream};
use tokio_util::sync::CancellationToken;

/// A connected socket, shared by who sends and who receives.
pub(crate) struct HostStream {
    socket: UnixStream,
    /// The connection that it belongs to has ended.
    ended: CancellationToken,
    /// Nothing is read or sent once it has: this is the server's end.
    is_server: bool,
    /// The server has taken the stream.
    greeted: AtomicBool,
    /// Whether both ends agree on where the next frame begins.
    sound: AtomicBool,
    /// A frame is being sent, or was not sent to its end.
    sending: AtomicBool,
    /// Something of the last frame was sent.
    begun: AtomicBool,
    /// Bytes of the last frame that its reader has left in the socket.
    left: AtomicUsize,
}

impl HostStream {
    /// The client's end, of a connection that has ended once `ended` fires.
    pub(crate) fn dialled(socket: UnixStream, ended: CancellationToken) -> Arc<Self> {
        Self::new(socket, ended, false)
    }

    /// The server's end.
    pub(crate) fn taken(socket: UnixStream, ended: CancellationToken) -> Arc<Self> {
        Self::new(socket, ended, true)
    }

    fn new(socket: UnixStream, ended: CancellationToken, is_server: bool) -> Arc<Self> {
        // The plain variant is silently limited by the sysctl, which is as much as can be had.
        if sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
            _ = sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES);
        }
        Arc::new(Self {
            socket,
            ended,
            is_server,
            greeted: AtomicBool::new(is_server),
            sound: AtomicBool::new(true),
            sending: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            left: AtomicUsize::new(0),
        })
    }

    /// Appends what has arrived to `buffer`, at most what it has room for, which must be something.
    /// 0: the other end has hung up. May be dropped at any time.
    pub(crate) async fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        loop {
            if self.is_server && self.ended.is_cancelled() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let mut short = None;
            let outcome = self.socket.try_io(Interest::READABLE, || {
                let count = rustix::io::read(self.socket.as_fd(), spare_capacity(buffer))?;
                if count > 0 && count < room {
                    // There is no more: the next read waits without asking the kernel first.
                    short = Some(count);
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(count)
            });
            match (short, outcome) {
                (Some(count), _) | (None, Ok(count)) => return Ok(count),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                    biased;
                    () = self.ended.cancelled(), if self.is_server => {}
                    readable = self.socket.readable() => readable?,
                },
                (None, Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                (None, Err(error)) => return Err(error),
            }
        }
    }

    /// Sends all of `pieces`. When it is dropped before its end, the stream is of no more use.
    pub(crate) async fn send(&self, pieces: &[Bytes]) -> io::Result<()> {
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        self.begun.store(false, Ordering::Release);
        self.sending.store(true, Ordering::Release);
        while !left.is_empty() {
            if self.is_server && self.ended.is_cancelled() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let outcome = self.socket.try_io(Interest::WRITABLE, || {
                let some = &left[..left.len().min(SLICES_MAX)];
                let mut nothing = SendAncillaryBuffer::default();
                Ok(net::sendmsg(self.socket.as_fd(), some, &mut nothing, SendFlags::NOSIGNAL)?)
            });
            match outcome {
                Ok(count) => {
                    IoSlice::advance_slices(&mut left, count);
                    self.begun.store(true, Ordering::Release);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.writable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sending.store(false, Ordering::Release);
        Ok(())
    }

    /// Tells the client that the stream is taken: what it asks is begun from now on.
    pub(crate) async fn greet(&self) -> io::Result<()> {
        self.send(&[Bytes::from_static(&[GREETING])]).await
    }

    /// Whether the server has taken the stream.
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// Takes the server's greeting off the first bytes that arrive. Whether they begin with it.
    fn take_greeting(&self, first: &mut Bytes) -> bool {
        if self.is_greeted() {
            return true;
        }
        self.greeted.store(true, Ordering::Release);
        first.try_get_u8() == Ok(GREETING)
    }

    /// Whether nobody can have begun to do what the frame asks that was to be sent: nothing of it
    /// was, or the server has not taken the stream.
    pub(crate) fn is_unbegun(&self) -> bool {
        !self.is_greeted() || !self.begun.load(Ordering::Acquire)
    }

    /// Returns when the other end has hung up, or the connection has ended.
    pub(crate) fn given_up(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let stream = Arc::clone(self);
        async move {
            let hung_up = async {
                // Of what this waits for, Unix sockets only have the end: not for bytes, which stay
                // where they are until somebody reads them.
                while let Ok(ready) = stream.socket.ready(Interest::PRIORITY).await {
                    if ready.is_read_closed() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = hung_up => {}
                // Before anybody answers what is given up: the client learns that its connection
                // has ended, and not what a request comes to that was left undone for that.
                () = stream.ended.cancelled() => stream.end(),
            }
        }
    }

    /// No other frame can follow the present one.
    pub(crate) fn spoil(&self) {
        self.sound.store(false, Ordering::Release);
    }

    /// Ends it for both sides. What was sent before can still be read.
    pub(crate) fn end(&self) {
        self.spoil();
        // Fails only where the other side has ended it already.
        _ = net::shutdown(self.socket.as_fd(), Shutdown::Both);
    }

    /// Reads what the reader of the last frame has left. Returns whether another frame may follow.
    pub(crate) async fn skip_left(&self) -> bool {
        let mut left = self.left.swap(0, Ordering::AcqRel);
        while left > 0 && self.is_sound() {
            let mut skipped = Vec::with_capacity(left.min(SKIP_BYTES));
            match self.receive(&mut skipped).await {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                Ok(_) | Err(_) => return false,
            }
        }
        self.is_sound()
    }

    /// Whether both ends agree on where the next frame begins.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::Acquire) && !self.sending.load(Ordering::Acquire)
    }
}

/// Reads the bytes of one frame.
pub(crate) struct HostReader {
    stream: Arc<HostStream>,
    /// A piece of a body that is not complete yet.
    filling: Vec<u8>,
}

impl HostReader {
    pub(crate) fn new(stream: Arc<HostStream>) -> Self {
        Self { stream, filling: Vec::new() }
    }

    /// What has arrived, at most as much as `len` bytes or a small frame take. May be dropped at
    /// any time without losing bytes.
    pub(crate) async fn front(&mut self, len: usize) -> Result<Bytes, Failure> {
        loop {
            let mut front = Vec::with_capacity(len.clamp(FRONT_BYTES, PIECE_BYTES));
            receive(&self.stream, &mut front).await?;
            let mut front = Bytes::from(front);
            if !self.stream.take_greeting(&mut front) {
                let message = "the local stream does not begin as one";
                return Err(Failure::new(ErrorKind::Protocol, message));
            }
            if !front.is_empty() {
                return Ok(front);
            }
        }
    }

    /// The next bytes of a body of which `left` are missing, in as large a piece as there is. May
    /// be dropped at any time without losing bytes.
    pub(crate) async fn piece(&mut self, left: usize) -> Result<Bytes, Failure> {
        let mut filling = std::mem::take(&mut self.filling);
        if filling.capacity() == 0 {
            filling.reserve_exact(left.min(PIECE_BYTES));
        }
        // Kept where the next call finds it, should this one be dropped.
        self.filling = filling;
        while self.filling.len() < self.filling.capacity() {
            receive(&self.stream, &mut self.filling).await?;
        }
        Ok(std::mem::take(&mut self.filling).into())
    }

    /// Says how much of the frame nobody has read: `left` bytes, of which `ahead` were taken from
    /// the socket.
    pub(crate) fn leave(&self, left: usize, ahead: usize) {
        match left.checked_sub(ahead + self.filling.len()) {
            Some(left) => self.stream.left.store(left, Ordering::Release),
            // More than the frame has.
            None => self.stream.end(),
        }
    }

    pub(crate) fn spoil(&self) {
        self.stream.spoil();
    }

    pub(crate) fn end(&self) {
        self.stream.end();
    }
}

async fn receive(stream: &HostStream, buffer: &mut Vec<u8>) -> Result<(), Failure> {
    match stream.receive(buffer).await {
        Ok(0) => Err(hung_up()),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(ErrorKind::Unavailable, format!("local stream: {error}"))),
    }
}

fn hung_up() -> Failure {
    Failure::new(ErrorKind::Unavailable, "the other end of the local stream has hung up")
}

/// Bytes that a sender may be ahead of its receiver; the kernel allows itself as much again for its
/// own use of memory.
pub(super) const BUFFER_BYTES: usize = 512 * 1024;

/// The server's first byte on a stream.
const GREETING: u8 = 0x4d;

/// `IOV_MAX` of Linux.
const SLICES_MAX: usize = 1024;

/// Header and message of most frames, and the whole of small ones.
const FRONT_BYTES: usize = 4 * 1024;

/// No allocation for a stream's bytes is larger.
const PIECE_BYTES: usize = 1024 * 1024;

/// Bytes of a body that nobody wants are read so many at a time.
const SKIP_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Arc<HostStream>, Arc<HostStream>, CancellationToken) {
        let (client, server) = UnixStream::pair().unwrap();
        let ended = CancellationToken::new();
        let dialled = HostStream::dialled(client, CancellationToken::new());
        (dialled, HostStream::taken(server, ended.clone()), ended)
    }

    #[tokio::test]
    async fn a_request_may_go_another_way_only_while_nobody_can_have_begun_it() {
        let frame = [Bytes::from_static(b"frame")];
        let (client, server, _) = pair();
        client.send(&frame).await.unwrap();
        assert!(client.is_unbegun(), "the server has not taken the stream");
        server.greet().await.unwrap();
        server.send(&[Bytes::from_static(b"answer")]).await.unwrap();
        let mut reader = HostReader::new(Arc::clone(&client));
        assert_eq!(reader.front(6).await.unwrap(), "answer");
        assert!(!client.is_unbegun(), "all of it was sent");
        server.end();
        assert!(client.send(&frame).await.is_err());
        assert!(client.is_unbegun(), "nothing of the next one was");
        assert!(!client.skip_left().await, "no frame follows half of one");
    }

    #[tokio::test]
    async fn a_stream_that_begins_otherwise_is_none() {
        let (client, server, _) = pair();
        server.send(&[Bytes::from_static(b"answer")]).await.unwrap();
        let failure = HostReader::new(client).front(6).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Protocol);
    }

    #[tokio::test]
    async fn the_server_reads_nothing_once_the_connection_has_ended() {
        let (client, server, ended) = pair();
        client.send(&[Bytes::from_static(b"late")]).await.unwrap();
        ended.cancel();
        let mut buffer = Vec::with_capacity(8);
        let error = server.receive(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        server.given_up().await;
        assert!(matches!(client.receive(&mut buffer).await, Ok(0) | Err(_)), "it has hung up");
    }

    #[tokio::test]
    async fn a_piece_is_kept_by_who_stops_waiting_for_it() {
        let (client, server, _) = pair();
        let mut reader = HostReader::new(server);
        client.send(&[Bytes::from_static(b"one ")]).await.unwrap();
        {
            let piece = std::pin::pin!(reader.piece(8));
            assert!(futures::poll!(piece).is_pending());
        }
        client.send(&[Bytes::from_static(b"more")]).await.unwrap();
        assert_eq!(reader.piece(8).await.unwrap(), "one more");
    }
}
