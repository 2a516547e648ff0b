//! Frames on a stream: header, message, body.

use bytes::Bytes;
use millrace_protocol::frame::{FrameError, HEADER_LEN, Header, Shape};
use millrace_types::{ErrorKind, Failure};
use quinn::{ReadError, ReadExactError, RecvStream, SendStream, WriteError};

/// A frame to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) shape: Shape,
    pub(crate) message: Bytes,
    pub(crate) body: &'a [Bytes],
    pub(crate) request_id: u64,
}

impl Outgoing<'_> {
    /// The header and the message in one piece, checked against the limits.
    pub(crate) fn head(&self) -> Result<Bytes, Failure> {
        let body_len = self.body.iter().map(Bytes::len).sum();
        let header = Header::new(self.shape, self.request_id, &self.message, body_len)
            .map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
        Ok([&header.encode()[..], &self.message].concat().into())
    }

    /// Sends the frame and ends the stream's sending side.
    pub(crate) async fn send(&self, stream: &mut SendStream) -> Result<(), SendError> {
        let head = self.head().map_err(SendError::Frame)?;
        stream.write_chunk(head).await.map_err(SendError::Stream)?;
        if !self.body.is_empty() {
            let mut body = self.body.to_vec();
            stream.write_all_chunks(&mut body).await.map_err(SendError::Stream)?;
        }
        // Fails only when the stream was reset meanwhile; then nobody waits any more.
        drop(stream.finish());
        Ok(())
    }
}

/// Why a frame was not sent.
pub(crate) enum SendError {
    /// It is over a limit.
    Frame(Failure),
    /// The stream ended.
    Stream(WriteError),
}

/// Reads a header and the message after it, and checks both.
pub(crate) async fn receive_head(stream: &mut RecvStream) -> Result<(Header, Bytes), ReceiveError> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await?;
    let header = Header::decode(&header)?;
    let mut message = vec![0; header.message_len as usize];
    stream.read_exact(&mut message).await?;
    header.check_message(&message)?;
    Ok((header, message.into()))
}

/// Reads the bulk bytes as they lie in the arrived packets, without copying them.
pub(crate) async fn receive_body(
    stream: &mut RecvStream,
    len: u32,
) -> Result<Vec<Bytes>, ReceiveError> {
    let mut missing = len as usize;
    let mut body = Vec::new();
    while missing > 0 {
        let chunk = stream.read_chunk(missing, true).await?.ok_or(ReceiveError::Short)?;
        missing -= chunk.bytes.len();
        body.push(chunk.bytes);
    }
    Ok(body)
}

/// Why no frame was received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The header is not one, or the message is damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream ended within the frame.
    #[error("the stream ended within a frame")]
    Short,
    /// The stream or its connection broke.
    #[error(transparent)]
    Stream(#[from] ReadError),
}

impl From<ReadExactError> for ReceiveError {
    fn from(error: ReadExactError) -> Self {
        match error {
            ReadExactError::FinishedEarly(_) => Self::Short,
            ReadExactError::ReadError(error) => Self::Stream(error),
        }
    }
}

impl ReceiveError {
    /// Whether the peer broke the protocol, and not merely the network.
    pub(crate) fn is_malformed(&self) -> bool {
        !matches!(self, Self::Stream(_))
    }
}
