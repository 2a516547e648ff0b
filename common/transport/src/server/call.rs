//! A request in the hands of the service.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::{
    Message, Request, RequestKind, codec, frame::Shape, version::ProtocolVersion,
};
use millrace_types::{ErrorKind, Failure};
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::sync::CancellationToken;

use super::Connection;
use crate::{
    Body, PeerIdentity,
    stream::{FrameReader, FrameSender, FrameWriteError, Label, write_frame},
};

/// One request that waits for its answer.
///
/// It may be moved to any thread. Dropping it without an answer answers
/// [`Internal`](ErrorKind::Internal).
pub struct IncomingCall {
    connection: Arc<Connection>,
    kind: RequestKind,
    message: Bytes,
    body_len: usize,
    deadline: Instant,
    cancelled: CancellationToken,
    /// `None` once nobody can ask for the body any more.
    reader: Option<FrameReader>,
    answer: Option<Answer>,
    /// Where the answer is written when nobody can wait for it.
    runtime: Handle,
    /// Dropped with the call: tells the server that nothing of it is left.
    ending: Option<oneshot::Sender<()>>,
}

/// A reply in its form on the wire, of whatever kind of request.
#[derive(Debug)]
pub struct EncodedReply {
    kind: RequestKind,
    message: Bytes,
    body: Body,
}

pub(super) struct CallParts {
    pub(super) connection: Arc<Connection>,
    pub(super) kind: RequestKind,
    pub(super) message: Bytes,
    pub(super) body_len: usize,
    pub(super) deadline: Instant,
    pub(super) cancelled: CancellationToken,
    pub(super) reader: FrameReader,
    pub(super) answer: Answer,
    pub(super) ending: oneshot::Sender<()>,
}

impl EncodedReply {
    /// A reply to an `R`.
    #[must_use]
    pub fn of<R: Request>(reply: &R::Reply) -> Self {
        Self::with_body::<R>(reply, Body::default())
    }

    /// A reply to an `R`, with bulk bytes.
    #[must_use]
    pub fn with_body<R: Request>(reply: &R::Reply, body: impl Into<Body>) -> Self {
        Self { kind: R::KIND, message: codec::encode(reply), body: body.into() }
    }
}

impl IncomingCall {
    /// Must be called on the runtime of the connection's socket.
    pub(super) fn new(parts: CallParts) -> Self {
        Self {
            connection: parts.connection,
            kind: parts.kind,
            message: parts.message,
            body_len: parts.body_len,
            deadline: parts.deadline,
            cancelled: parts.cancelled,
            reader: Some(parts.reader),
            answer: Some(parts.answer),
            runtime: Handle::current(),
            ending: Some(parts.ending),
        }
    }

    /// The connection that it came over.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        self.connection.peer()
    }

    /// Which request it is.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// The encoded message.
    #[must_use]
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    /// Bytes of the whole body, read or not.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// When the caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Fires when nobody waits for the answer any more: the caller took the request back, its
    /// connection was lost, or the deadline has passed. It may also fire after the answer.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The message, checked.
    ///
    /// # Errors
    /// [`Protocol`](ErrorKind::Protocol) when it is no `R`.
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub fn decode<R: Request>(&self) -> Result<R, Failure> {
        assert_eq!(self.kind, R::KIND, "the call is of another kind");
        Ok(codec::decode(&self.message)?)
    }

    /// Reads the next piece of the body, as it came from the network; `None` at its end. Call it
    /// only when there is room for the bytes. May be dropped at any time without losing bytes.
    ///
    /// # Errors
    /// [`Cancelled`](ErrorKind::Cancelled) or [`Unavailable`](ErrorKind::Unavailable) when the
    /// caller is gone, [`DeadlineExceeded`](ErrorKind::DeadlineExceeded) when it does not send.
    pub async fn read_piece(&mut self) -> Result<Option<Bytes>, Failure> {
        let limit = self.deadline.min(Instant::now() + BODY_TIMEOUT);
        let Some(reader) = &mut self.reader else { return Ok(None) };
        tokio::time::timeout_at(limit.into(), reader.piece())
            .await
            .unwrap_or_else(|_| Err(body_too_slow()))
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// As [`Self::read_piece`].
    pub async fn read_body(&mut self) -> Result<Body, Failure> {
        let limit = self.deadline.min(Instant::now() + BODY_TIMEOUT);
        let Some(reader) = &mut self.reader else { return Ok(Body::default()) };
        tokio::time::timeout_at(limit.into(), reader.body())
            .await
            .unwrap_or_else(|_| Err(body_too_slow()))
    }

    /// Bytes of the body that have not been read.
    #[must_use]
    pub fn body_left(&self) -> usize {
        self.reader.as_ref().map_or(0, FrameReader::body_left)
    }

    /// Answers. Returns when QUIC has taken the answer, not when the caller has it. Dropping this
    /// future resets the stream.
    pub async fn reply<R: Request>(self, reply: &R::Reply) {
        self.reply_with_body::<R>(reply, Body::default()).await;
    }

    /// Answers with bulk bytes; see [`Self::reply`].
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub async fn reply_with_body<R: Request>(self, reply: &R::Reply, body: impl Into<Body>) {
        self.reply_encoded(EncodedReply::with_body::<R>(reply, body)).await;
    }

    /// Answers with a reply that has its form on the wire; see [`Self::reply`].
    ///
    /// # Panics
    /// When the call is of another kind.
    pub async fn reply_encoded(mut self, reply: EncodedReply) {
        assert_eq!(self.kind, reply.kind, "the call is of another kind");
        if let Some(answer) = self.answer.take() {
            answer.reply(&reply.message, reply.body).await;
        }
    }

    /// Answers with a failure; see [`Self::reply`].
    pub async fn fail(mut self, failure: impl Into<Failure>) {
        let failure = failure.into();
        if let Some(answer) = self.answer.take() {
            answer.fail(&failure).await;
        }
    }

    /// Answers from a thread that cannot wait: the bytes are sent in the background.
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub fn reply_detached<R: Request>(self, reply: &R::Reply) {
        self.reply_with_body_detached::<R>(reply, Body::default());
    }

    /// Answers with bulk bytes from a thread that cannot wait; see [`Self::reply_detached`].
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub fn reply_with_body_detached<R: Request>(mut self, reply: &R::Reply, body: impl Into<Body>) {
        assert_eq!(self.kind, R::KIND, "the call is of another kind");
        let EncodedReply { message, body, .. } = EncodedReply::with_body::<R>(reply, body);
        self.detach(async move |answer: Answer| answer.reply(&message, body).await);
    }

    /// Answers with a failure from a thread that cannot wait; see [`Self::reply_detached`].
    pub fn fail_detached(mut self, failure: impl Into<Failure>) {
        let failure = failure.into();
        self.detach(async move |answer: Answer| answer.fail(&failure).await);
    }

    /// Writes the answer in a task of its own, which the server's drain waits for.
    fn detach<F>(&mut self, write: impl FnOnce(Answer) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(answer) = self.answer.take() {
            // Before the answer is there, after which a local stream carries the next request.
            drop(self.reader.take());
            let (writing, ending) = (write(answer), self.ending.take());
            drop(self.runtime.spawn(async move {
                writing.await;
                drop(ending);
            }));
        }
    }
}

impl Drop for IncomingCall {
    fn drop(&mut self) {
        if self.answer.is_some() {
            let failure = if self.cancelled.is_cancelled() {
                // The caller may be about to notice it, and must not take it for an answer.
                Failure::new(ErrorKind::DeadlineExceeded, "nothing was done in time")
            } else {
                tracing::error!(kind = self.kind.name(), "request dropped without an answer");
                Failure::new(ErrorKind::Internal, "the request was dropped")
            };
            self.detach(async move |answer: Answer| answer.fail(&failure).await);
        }
    }
}

impl fmt::Debug for IncomingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingCall")
            .field("kind", &self.kind)
            .field("connection", &self.connection.id())
            .finish_non_exhaustive()
    }
}

/// The sending half of a request's stream, until the answer is written.
pub(super) struct Answer {
    sender: FrameSender,
    version: ProtocolVersion,
    request_id: u64,
}

impl Answer {
    pub(super) fn new(sender: FrameSender, version: ProtocolVersion) -> Self {
        Self { sender, version, request_id: 0 }
    }

    fn label(&self, shape: Shape) -> Label {
        Label { version: self.version, shape, request_id: self.request_id }
    }

    pub(super) fn set_request_id(&mut self, request_id: u64) {
        self.request_id = request_id;
    }

    /// Whether a written answer can be lost when the connection is closed.
    pub(super) fn is_delivered_later(&self) -> bool {
        self.sender.is_delivered_later()
    }

    /// Returns when the peer does not want the answer, or is gone; of QUIC also when it has all.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.sender.stopped()
    }

    pub(super) async fn reply(self, message: &[u8], body: Body) {
        self.write(Shape::Reply, message, body).await;
    }

    pub(super) async fn fail(self, failure: &Failure) {
        let kind = failure.kind;
        let message = encode_message(failure);
        self.write(Shape::Failure { kind }, &message, Body::default()).await;
    }

    async fn write(mut self, shape: Shape, message: &[u8], body: Body) {
        let label = self.label(shape);
        let writing = write_frame(&mut self.sender, label, message, body);
        match tokio::time::timeout(ANSWER_TIMEOUT, writing).await {
            Ok(Ok(())) => {}
            Ok(Err(FrameWriteError::TooLong(why))) => {
                tracing::error!(why, "answer is too long to send");
                let failure = Failure::new(ErrorKind::Internal, why);
                let (message, kind) = (encode_message(&failure), failure.kind);
                let label = self.label(Shape::Failure { kind });
                let body = Body::default();
                drop(write_frame(&mut self.sender, label, &message, body).await);
            }
            Ok(Err(error @ (FrameWriteError::Quic(_) | FrameWriteError::Host(_)))) => {
                tracing::debug!(%error, "answer not wanted");
            }
            Err(_) => {
                tracing::debug!("answer not taken in time");
                self.sender.cancel();
            }
        }
    }
}

fn encode_message<M: Message>(message: &M) -> Bytes {
    codec::encode(message)
}

fn body_too_slow() -> Failure {
    Failure::new(ErrorKind::DeadlineExceeded, "the body does not arrive")
}

/// How long a caller may take to send a body of 1 MiB once it is asked for: it holds a buffer.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a caller may take to receive its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
