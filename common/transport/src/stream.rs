//! Frames on a stream, QUIC's or a local one: read piece by piece as they arrive, written without
//! copying the body.

use std::{io, sync::Arc};

use bytes::{Buf as _, Bytes, BytesMut};
use futures::{FutureExt as _, future::Either};
use millrace_protocol::{
    frame::{HEADER_LEN, Header, Shape},
    version::ProtocolVersion,
};
use millrace_types::{ErrorKind, Failure};
use quinn::{RecvStream, SendStream, WriteError, crypto::rustls::HandshakeData};

use crate::{
    Body, failure,
    same_host::{HostReader, HostStream},
};

/// The receiving half of a stream, at some point of its one frame.
pub(crate) struct FrameReader {
    source: Source,
    version: ProtocolVersion,
    /// Bytes that were read together with what came before them.
    ahead: Bytes,
    /// Bytes of the body that are not read yet.
    body_left: usize,
}

/// Where the bytes come from.
enum Source {
    Quic(RecvStream),
    Host(HostReader),
}

impl FrameReader {
    pub(crate) fn new(stream: RecvStream, version: ProtocolVersion) -> Self {
        Self { source: Source::Quic(stream), version, ahead: Bytes::new(), body_left: 0 }
    }

    /// The next frame of a local stream, of which `ahead` has been read already.
    pub(crate) fn of_host(
        stream: &Arc<HostStream>,
        ahead: Bytes,
        version: ProtocolVersion,
    ) -> Self {
        let source = Source::Host(HostReader::new(Arc::clone(stream)));
        Self { source, version, ahead, body_left: 0 }
    }

    /// Reads header and message and checks both. After a failure, no other frame can follow on a
    /// local stream.
    pub(crate) async fn message(&mut self) -> Result<(Header, Bytes), Failure> {
        let read = self.header_and_message().await;
        if read.is_err() {
            self.spoil();
        }
        read
    }

    async fn header_and_message(&mut self) -> Result<(Header, Bytes), Failure> {
        let header = self.exactly(HEADER_LEN).await?;
        let header: &[u8; HEADER_LEN] = header.first_chunk().expect("as many bytes were asked for");
        let header = Header::decode(header)?;
        header.check_version(self.version)?;
        let message = self.exactly(header.message_len as usize).await?;
        header.check_message(&message)?;
        self.body_left = header.body_len as usize;
        Ok((header, message))
    }

    /// The next piece of the body as it arrived, or `None` at its end. What is not asked for stays
    /// at the sender, but for a window of QUIC or the buffer of a local socket. May be dropped at
    /// any time.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.body_left == 0 {
            return Ok(None);
        }
        if self.ahead.is_empty() {
            self.ahead = match &mut self.source {
                Source::Quic(stream) => chunk(stream, self.body_left).await?,
                Source::Host(reader) => reader.piece(self.body_left).await?,
            };
        }
        let piece = self.ahead.split_to(self.ahead.len().min(self.body_left));
        self.body_left -= piece.len();
        Ok(Some(piece))
    }

    /// The rest of the body.
    pub(crate) async fn body(&mut self) -> Result<Body, Failure> {
        let mut body = Body::default();
        while let Some(piece) = self.piece().await? {
            body.push(piece);
        }
        Ok(body)
    }

    pub(crate) fn body_left(&self) -> usize {
        self.body_left
    }

    /// Nobody knows where the frame ends: nothing can follow it on a local stream.
    pub(crate) fn spoil(&self) {
        if let Source::Host(reader) = &self.source {
            reader.spoil();
        }
    }

    /// Takes the rest back: the sender stops sending.
    pub(crate) fn stop(&mut self) {
        match &mut self.source {
            // It has ended already otherwise.
            Source::Quic(stream) => drop(stream.stop(failure::CloseCode::Cancelled.code())),
            Source::Host(reader) => reader.end(),
        }
    }

    async fn exactly(&mut self, len: usize) -> Result<Bytes, Failure> {
        if self.ahead.len() < len && self.ahead.is_empty() {
            self.ahead = match len {
                0 => Bytes::new(),
                _ => self.front(len).await?,
            };
        }
        if self.ahead.len() >= len {
            return Ok(self.ahead.split_to(len));
        }
        // Grown as bytes arrive: a peer's word about the length costs us nothing.
        let mut joined = BytesMut::from(self.ahead.as_ref());
        self.ahead.clear();
        while joined.len() < len {
            let mut chunk = self.front(len - joined.len()).await?;
            let wanted = chunk.len().min(len - joined.len());
            joined.extend_from_slice(&chunk[..wanted]);
            chunk.advance(wanted);
            self.ahead = chunk;
        }
        Ok(joined.freeze())
    }

    /// What has arrived of header and message; `len` bytes are waited for.
    async fn front(&mut self, len: usize) -> Result<Bytes, Failure> {
        match &mut self.source {
            Source::Quic(stream) => chunk(stream, usize::MAX).await,
            Source::Host(reader) => reader.front(len).await,
        }
    }
}

async fn chunk(stream: &mut RecvStream, len_max: usize) -> Result<Bytes, Failure> {
    match stream.read_chunk(len_max, true).await {
        Ok(Some(chunk)) => Ok(chunk.bytes),
        Ok(None) => Err(Failure::new(ErrorKind::Protocol, "the stream ends within a frame")),
        Err(error) => Err(failure::of_read(&error)),
    }
}

impl Drop for FrameReader {
    /// A stream whose end was not read is taken back, which costs the peer a packet for each
    /// request. The end comes with the last bytes, so that looking once most often finds it.
    fn drop(&mut self) {
        match &mut self.source {
            Source::Quic(stream) if self.body_left == 0 => {
                drop(stream.read_chunk(1, true).now_or_never());
            }
            Source::Quic(_) => {}
            Source::Host(reader) => reader.leave(self.body_left, self.ahead.len()),
        }
    }
}

/// The sending half of a stream, until its one frame is written.
pub(crate) enum FrameSender {
    /// A stream of QUIC.
    Quic(SendStream),
    /// A local one, and what has to be sent before the frame.
    Host(Arc<HostStream>, Option<Bytes>),
}

impl FrameSender {
    /// Takes back what is not sent yet.
    pub(crate) fn cancel(&mut self) {
        match self {
            // Fails only when everything was sent and confirmed.
            Self::Quic(stream) => drop(stream.reset(failure::CloseCode::Cancelled.code())),
            Self::Host(stream, _) => stream.end(),
        }
    }

    /// Whether what was written can be lost before the peer has it: when the connection is closed.
    pub(crate) fn is_delivered_later(&self) -> bool {
        matches!(self, Self::Quic(_))
    }

    /// Returns when the peer does not want the frame, or is gone; of QUIC also when it has all.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        match self {
            Self::Quic(stream) => {
                let stopped = stream.stopped();
                Either::Left(async move { drop(stopped.await) })
            }
            Self::Host(stream, _) => Either::Right(stream.given_up()),
        }
    }
}

/// What a frame says besides its contents.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub(crate) version: ProtocolVersion,
    pub(crate) shape: Shape,
    pub(crate) request_id: u64,
}

/// The version that the ends of a connection have negotiated.
///
/// Fails with `Protocol` when there is none that we speak.
pub(crate) fn negotiated(quic: &quinn::Connection) -> Result<ProtocolVersion, Failure> {
    let handshake = quic.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    handshake
        .and_then(|data| data.protocol)
        .and_then(|name| ProtocolVersion::from_alpn(&name))
        .ok_or_else(|| Failure::new(ErrorKind::Protocol, "no common protocol version"))
}

/// Writes one whole frame. It is the only one of a QUIC stream, which ends with it.
///
/// # Errors
/// [`FrameWriteError::TooLong`] before anything is sent.
pub(crate) async fn write_frame(
    sender: &mut FrameSender,
    label: Label,
    message: &[u8],
    body: Body,
) -> Result<(), FrameWriteError> {
    let Label { version, shape, request_id } = label;
    let header = Header::new(version, shape, request_id, message, body.len())
        .map_err(|error| FrameWriteError::TooLong(error.to_string()))?;
    let mut front = BytesMut::with_capacity(HEADER_LEN + message.len());
    front.extend_from_slice(&header.encode());
    front.extend_from_slice(message);
    let mut pieces = Vec::with_capacity(2 + body.pieces().len());
    pieces.push(front.freeze());
    pieces.extend(body.into_pieces());
    match sender {
        FrameSender::Quic(stream) => {
            stream.write_all_chunks(&mut pieces).await?;
            // Fails only when the peer has stopped the stream, which the write would have noticed.
            drop(stream.finish());
        }
        FrameSender::Host(stream, before) => {
            pieces.splice(0..0, before.take());
            stream.send(&pieces).await?;
        }
    }
    Ok(())
}

/// A frame was not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameWriteError {
    /// Message or body is longer than a frame carries: our own defect.
    #[error("{0}")]
    TooLong(String),
    /// The stream.
    #[error(transparent)]
    Quic(#[from] WriteError),
    /// The local stream.
    #[error("local stream: {0}")]
    Host(#[from] io::Error),
}
