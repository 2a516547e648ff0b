//! The life of one request at the server.
//!
//! ```text
//!           frame good, admitted             answered or dropped, and handler returned
//!  Reading ──────────────────────▶ At work ─────────────────────────────────────────▶ Done
//!     │ refused: answered with a failure        │ caller gives up, or deadline:
//!     └──────────────────────────────────▶ Done └─ the call's token is cancelled, work goes on
//! ```

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::{
    RequestKind, codec,
    frame::{Header, Shape},
};
use millrace_types::{ErrorKind, Failure};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Connection, IncomingCall,
    acceptor::Acceptor,
    call::{Answer, CallParts},
};
use crate::{
    Body,
    same_host::{HostStream, next_frame},
    stream::{FrameReader, FrameSender},
};

/// Reads a request, has it answered and returns when nothing of it is left.
pub(super) async fn serve(
    acceptor: Arc<Acceptor>,
    connection: Arc<Connection>,
    sender: FrameSender,
    mut reader: FrameReader,
) {
    let mut answer = Answer::new(sender, connection.version());
    if acceptor.shutdown.is_draining() {
        let failure = Failure::new(ErrorKind::Unavailable, "the server shuts down");
        return answer.fail(&failure).await;
    }
    match read(&acceptor, &connection, &mut reader).await {
        Ok(Some(request)) if request.kind == RequestKind::FindSocket => {
            answer.set_request_id(request.header.request_id);
            match acceptor.show_socket(&connection) {
                Some(found) => answer.reply(&codec::encode(&found), Body::default()).await,
                None => answer.fail(&ErrorKind::NotSupported.into()).await,
            }
        }
        Ok(Some(request)) => {
            answer.set_request_id(request.header.request_id);
            work(&acceptor, connection, request, reader, answer).await;
        }
        Ok(None) => {}
        Err(failure) => {
            acceptor.refusals.warn(connection.remote(), &failure.message);
            answer.fail(&failure).await;
        }
    }
}

/// Serves the requests of a local stream, one after the other, until either end hangs up or the
/// connection has ended.
pub(super) async fn serve_stream(
    acceptor: Arc<Acceptor>,
    connection: Arc<Connection>,
    stream: Arc<HostStream>,
) {
    let version = connection.version();
    while let Some(first) = next_frame(&stream).await {
        let sender = FrameSender::Host(Arc::clone(&stream), None);
        let reader = FrameReader::of_host(&stream, first, version);
        let serving = serve(Arc::clone(&acceptor), Arc::clone(&connection), sender, reader);
        acceptor.requests.track_future(serving).await;
        if !skipped(&stream).await {
            break;
        }
    }
    stream.end();
}

/// Reads what the last request has left of its body. Returns whether another one may follow.
async fn skipped(stream: &HostStream) -> bool {
    tokio::time::timeout(BODY_TIMEOUT, stream.skip_left()).await.unwrap_or(false)
}

struct Request {
    header: Header,
    kind: RequestKind,
    deadline: Instant,
    message: Bytes,
}

/// Reads and admits a request. `None`: the peer took it back or is gone.
async fn read(
    acceptor: &Acceptor,
    connection: &Connection,
    reader: &mut FrameReader,
) -> Result<Option<Request>, Failure> {
    let begun = Instant::now();
    let read = tokio::time::timeout(acceptor.message_timeout, reader.message());
    let (header, message) = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(failure)) if failure.kind == ErrorKind::Protocol => {
            let message = format!("malformed frame: {}", failure.message);
            return Err(Failure::new(ErrorKind::Protocol, message));
        }
        Ok(Err(failure)) if failure.kind == ErrorKind::NotSupported => return Err(failure),
        Ok(Err(failure)) => {
            tracing::debug!(%failure, id = %connection.id(), "request not read");
            return Ok(None);
        }
        Err(_) => {
            reader.spoil();
            let message = "the message of a request takes too long";
            return Err(Failure::new(ErrorKind::DeadlineExceeded, message));
        }
    };
    let Shape::Request { kind, deadline_ms } = header.shape else {
        let message = "malformed frame: an answer where a request belongs";
        return Err(Failure::new(ErrorKind::Protocol, message));
    };
    let role = connection.peer().role;
    if kind != RequestKind::FindSocket && !acceptor.service.admits(role, kind) {
        let message = format!("role {} may not send {}", role.name(), kind.name());
        return Err(Failure::new(ErrorKind::Forbidden, message));
    }
    let waits = match deadline_ms {
        0 => DEADLINE_DEFAULT,
        ms => Duration::from_millis(ms.into()).min(DEADLINE_MAX),
    };
    Ok(Some(Request { header, kind, deadline: begun + waits, message }))
}

/// Hands a request to the service and watches over it.
async fn work(
    acceptor: &Acceptor,
    connection: Arc<Connection>,
    request: Request,
    reader: FrameReader,
    answer: Answer,
) {
    let cancelled = CancellationToken::new();
    let (ending, mut ended) = oneshot::channel();
    let delivered_later = answer.is_delivered_later();
    let mut given_up = pin!(given_up(&answer, request.deadline));
    let mut handled = acceptor.service.handle(IncomingCall::new(CallParts {
        connection,
        kind: request.kind,
        message: request.message,
        body_len: request.header.body_len as usize,
        deadline: request.deadline,
        cancelled: cancelled.clone(),
        reader,
        answer,
        ending,
    }));
    let (mut at_work, mut open) = (true, true);
    while at_work || open {
        tokio::select! {
            () = &mut handled, if at_work => at_work = false,
            _ = &mut ended, if open => open = false,
            () = &mut given_up, if !cancelled.is_cancelled() => cancelled.cancel(),
        }
    }
    if delivered_later && acceptor.shutdown.is_draining() && !cancelled.is_cancelled() {
        // Closing the connection would drop what the peer has not confirmed.
        drop(tokio::time::timeout(DELIVERY_TIMEOUT, given_up).await);
    }
}

/// Returns when nobody waits for the answer any more: also once the peer has all of it.
fn given_up(answer: &Answer, deadline: Instant) -> impl Future<Output = ()> + Send + 'static {
    let stopped = answer.stopped();
    async move {
        drop(tokio::time::timeout_at(deadline.into(), stopped).await);
    }
}

/// For callers that do not say how long they wait.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);

/// The longest wait is for hydration of large files.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// How long a caller may take to send a body that nobody has asked for.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the last answers of a server that shuts down may be under way.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
