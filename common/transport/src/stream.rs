//! Frames on a QUIC stream: read piece by piece as they arrive, written without copying the body.

use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use millrace_protocol::{
    frame::{HEADER_LEN, Header, Shape},
    version::ProtocolVersion,
};
use millrace_types::{ErrorKind, Failure};
use quinn::{RecvStream, SendStream, WriteError, crypto::rustls::HandshakeData};

use crate::{Body, failure};

/// The receiving half of a stream, at some point of its one frame.
pub(crate) struct FrameReader {
    stream: RecvStream,
    version: ProtocolVersion,
    /// Bytes that were read together with what came before them.
    ahead: Bytes,
    /// Bytes of the body that are not read yet.
    body_left: usize,
}

impl FrameReader {
    pub(crate) fn new(stream: RecvStream, version: ProtocolVersion) -> Self {
        Self { stream, version, ahead: Bytes::new(), body_left: 0 }
    }

    /// Reads header and message and checks both.
    pub(crate) async fn message(&mut self) -> Result<(Header, Bytes), Failure> {
        let header = self.exactly(HEADER_LEN).await?;
        let header: &[u8; HEADER_LEN] = header.first_chunk().expect("as many bytes were asked for");
        let header = Header::decode(header)?;
        header.check_version(self.version)?;
        let message = self.exactly(header.message_len as usize).await?;
        header.check_message(&message)?;
        self.body_left = header.body_len as usize;
        Ok((header, message))
    }

    /// The next piece of the body as it arrived, or `None` at its end. QUIC's flow control keeps at
    /// the sender what is not asked for. May be dropped at any time.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.body_left == 0 {
            return Ok(None);
        }
        if self.ahead.is_empty() {
            self.ahead = self.chunk(self.body_left).await?;
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

    /// Takes the rest back: the sender stops sending.
    pub(crate) fn stop(&mut self) {
        // It has ended already otherwise.
        drop(self.stream.stop(failure::CloseCode::Cancelled.code()));
    }

    async fn exactly(&mut self, len: usize) -> Result<Bytes, Failure> {
        if self.ahead.len() < len && self.ahead.is_empty() {
            self.ahead = match len {
                0 => Bytes::new(),
                _ => self.chunk(usize::MAX).await?,
            };
        }
        if self.ahead.len() >= len {
            return Ok(self.ahead.split_to(len));
        }
        // Grown as bytes arrive: a peer's word about the length costs us nothing.
        let mut joined = BytesMut::from(self.ahead.as_ref());
        self.ahead.clear();
        while joined.len() < len {
            let mut chunk = self.chunk(usize::MAX).await?;
            let wanted = chunk.len().min(len - joined.len());
            joined.extend_from_slice(&chunk[..wanted]);
            chunk.advance(wanted);
            self.ahead = chunk;
        }
        Ok(joined.freeze())
    }

    async fn chunk(&mut self, len_max: usize) -> Result<Bytes, Failure> {
        match self.stream.read_chunk(len_max, true).await {
            Ok(Some(chunk)) => Ok(chunk.bytes),
            Ok(None) => Err(Failure::new(ErrorKind::Protocol, "the stream ends within a frame")),
            Err(error) => Err(failure::of_read(&error)),
        }
    }
}

impl Drop for FrameReader {
    /// A stream whose end was not read is taken back, which costs the peer a packet for each
    /// request. The end comes with the last bytes, so that looking once most often finds it.
    fn drop(&mut self) {
        if self.body_left == 0 {
            drop(self.stream.read_chunk(1, true).now_or_never());
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

/// Writes one whole frame and ends the stream.
///
/// # Errors
/// [`FrameWriteError::TooLong`] before anything is sent.
pub(crate) async fn write_frame(
    stream: &mut SendStream,
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
    if body.is_empty() {
        stream.write_chunk(front.freeze()).await?;
    } else {
        let mut pieces = Vec::with_capacity(1 + body.pieces().len());
        pieces.push(front.freeze());
        pieces.extend(body.into_pieces());
        stream.write_all_chunks(&mut pieces).await?;
    }
    // Fails only when the peer has stopped the stream, which the write would have noticed.
    drop(stream.finish());
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
    Stream(#[from] WriteError),
}
