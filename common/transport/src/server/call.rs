//! One request: its frame, its handler, its reply.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use millrace_protocol::{
    Request, RequestKind, codec,
    frame::{Header, Shape},
};
use millrace_types::{ErrorKind, Failure};
use quinn::{RecvStream, SendStream};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

use super::{ConnectionContext, ServerSettings, Service};
use crate::{
    framing::{self, Outgoing, ReceiveError},
    link::CANCELLED,
};

/// The counted limits of a server.
pub(super) struct Limits {
    pub(super) settings: ServerSettings,
    pub(super) handshakes: Arc<Semaphore>,
    pub(super) requests: Arc<Semaphore>,
}

impl Limits {
    pub(super) fn new(settings: ServerSettings) -> Self {
        let handshakes = Arc::new(Semaphore::new(settings.handshakes_max));
        let requests = Arc::new(Semaphore::new(settings.requests_max));
        Self { settings, handshakes, requests }
    }
}

/// For callers that do not say how long they wait: longer than any request takes, so that a handler
/// cannot stay for ever.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(600);

/// Why a request was not handed to the service.
pub(super) struct Refused {
    pub(super) kind: Option<RequestKind>,
    pub(super) failure: ErrorKind,
    pub(super) reason: String,
}

/// Reads a request, has it handled and waits for the end of either.
pub(super) async fn serve(
    service: &dyn Service,
    context: &Arc<ConnectionContext>,
    (send, mut receive): (SendStream, RecvStream),
    frame_timeout: Duration,
) -> Result<(), Refused> {
    let read = timeout(frame_timeout, framing::receive_head(&mut receive)).await;
    let (header, message) = match read {
        Ok(Ok(read)) => read,
        Ok(Err(ReceiveError::Stream(_))) => return Ok(()),
        Ok(Err(error)) => return Err(refused(None, ErrorKind::Protocol, error.to_string())),
        Err(_) => {
            let reason = "its frame did not arrive in time".to_owned();
            return Err(refused(None, ErrorKind::DeadlineExceeded, reason));
        }
    };
    let Shape::Request { kind, deadline_ms } = header.shape else {
        let reason = "a reply where a request is due".to_owned();
        return Err(refused(None, ErrorKind::Protocol, reason));
    };
    let patience = if deadline_ms == 0 {
        DEADLINE_DEFAULT
    } else {
        Duration::from_millis(u64::from(deadline_ms))
    };
    let deadline = Instant::now() + patience;
    let stopped = send.stopped();
    let call = IncomingCall {
        context: Arc::clone(context),
        kind,
        header,
        message,
        deadline,
        receive,
        send: Some(send),
    };
    if !service.admits(kind, context.peer.role) {
        let reason = format!("the role {} may not send it", context.peer.role.name());
        call.fail(Failure::new(ErrorKind::Forbidden, reason.clone())).await;
        return Err(refused(Some(kind), ErrorKind::Forbidden, reason));
    }
    tokio::select! {
        // A caller that takes its request back, or a connection that ends, drops the handler.
        _ = stopped => {}
        _ = timeout_at(deadline, service.handle(call)) => {}
    }
    Ok(())
}

fn refused(kind: Option<RequestKind>, failure: ErrorKind, reason: String) -> Refused {
    Refused { kind, failure, reason }
}

/// A request that waits for its answer. One that is dropped unanswered resets its stream, which the
/// caller sees as [`ErrorKind::Unavailable`].
#[derive(Debug)]
pub struct IncomingCall {
    context: Arc<ConnectionContext>,
    kind: RequestKind,
    header: Header,
    message: Bytes,
    deadline: Instant,
    receive: RecvStream,
    send: Option<SendStream>,
}

impl IncomingCall {
    /// The connection that it came on.
    #[must_use]
    pub fn context(&self) -> &Arc<ConnectionContext> {
        &self.context
    }

    /// What it asks for.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// When the caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Bytes of the body, which has not been read yet.
    #[must_use]
    pub fn body_len(&self) -> u32 {
        self.header.body_len
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when it is no `R`.
    pub fn decode<R: Request>(&self) -> Result<R, Failure> {
        if self.kind != R::KIND {
            return Err(ErrorKind::Protocol.into());
        }
        codec::decode(&self.message)
            .map_err(|error| Failure::new(ErrorKind::Protocol, error.to_string()))
    }

    /// Reads the body, as it lies in the arrived packets. Until this is called the stream's window
    /// holds it back at the caller, so take a buffer first. Cancel safe only together with the call.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the stream ends within it.
    pub async fn read_body(&mut self) -> Result<Vec<Bytes>, Failure> {
        framing::receive_body(&mut self.receive, self.header.body_len)
            .await
            .map_err(|error| Failure::new(ErrorKind::Unavailable, error.to_string()))
    }

    /// Answers, with bulk bytes.
    pub async fn reply_with<R: Request>(self, reply: &R::Reply, body: &[Bytes]) {
        self.send(Shape::Reply, codec::encode(reply), body).await;
    }

    /// Answers.
    pub async fn reply<R: Request>(self, reply: &R::Reply) {
        self.reply_with::<R>(reply, &[]).await;
    }

    /// Answers with a failure.
    pub async fn fail(self, failure: Failure) {
        self.send(Shape::Failure { kind: failure.kind }, codec::encode(&failure), &[]).await;
    }

    /// Answers with a reply or a failure.
    pub async fn respond<R: Request>(self, result: Result<R::Reply, Failure>) {
        match result {
            Ok(reply) => self.reply::<R>(&reply).await,
            Err(failure) => self.fail(failure).await,
        }
    }

    async fn send(mut self, shape: Shape, message: Bytes, body: &[Bytes]) {
        let request_id = self.header.request_id;
        let frame = Outgoing { shape, message, body, request_id };
        let Some(mut send) = self.send.take() else { return };
        // The caller has gone if this fails; there is nobody left to tell.
        if let Err(framing::SendError::Frame(failure)) = frame.send(&mut send).await {
            tracing::error!(request = self.kind.name(), %failure, "reply is over a limit");
            drop(send.reset(CANCELLED));
        }
    }
}

impl Drop for IncomingCall {
    fn drop(&mut self) {
        // Fails only when everything had been read.
        drop(self.receive.stop(CANCELLED));
        if let Some(mut send) = self.send.take() {
            drop(send.reset(CANCELLED));
        }
    }
}
