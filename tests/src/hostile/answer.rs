//! Replies that the proxy makes by itself, and bodies that it damages.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Response, StatusCode,
    body::{Frame, Incoming},
    header::{self, HeaderValue},
    http::response::Parts,
};
use rustix::net::sockopt::set_socket_linger;
use tokio::sync::watch;

use super::{fault::Fault, request::Dialect};

/// What answers are made of.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A client's connection, as far as it can be reset.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) cleared: watch::Receiver<u64>,
}

impl Client {
    /// Has the connection end with a reset, and gives the error that ends it.
    pub(super) fn reset(&self) -> io::Error {
        // Whoever closes a socket without lingering resets its connection.
        match set_socket_linger(&self.socket, Some(Duration::ZERO)) {
            Ok(()) => io::ErrorKind::ConnectionReset.into(),
            Err(error) => error.into(),
        }
    }
}

/// What the server is made to say instead of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    Internal,
    SlowDown,
    Denied,
    Vanished,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::SlowDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::Vanished => StatusCode::NOT_FOUND,
        }
    }

    fn code(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Self::Internal, _) => "InternalError",
            (Self::SlowDown, Dialect::S3) => "SlowDown",
            (Self::SlowDown, Dialect::Azure) => "ServerBusy",
            (Self::Denied, Dialect::S3) => "AccessDenied",
            (Self::Denied, Dialect::Azure) => "AuthorizationFailure",
            (Self::Vanished, Dialect::S3) => "NoSuchKey",
            (Self::Vanished, Dialect::Azure) => "BlobNotFound",
        }
    }
}

/// A refusal with the error document of its dialect.
pub(super) fn refusal(dialect: Dialect, refused: Refusal) -> Response<Body> {
    let code = refused.code(dialect);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
         <Message>by the hostile proxy</Message></Error>"
    );
    let mut response = Response::new(whole(text.into()));
    *response.status_mut() = refused.status();
    let xml = HeaderValue::from_static("application/xml");
    response.headers_mut().insert(header::CONTENT_TYPE, xml);
    response
}

/// Some bytes, as they are.
pub(super) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The server's answer, handed on.
pub(super) fn passed(response: Response<Incoming>) -> Response<Body> {
    response.map(|body| body.map_err(io::Error::other).boxed_unsync())
}

/// An answer of the server with something wrong with its body, or with what is said of it.
pub(super) fn damaged(
    (mut head, bytes): (Parts, Bytes),
    fault: &Fault,
    client: &Client,
) -> Response<Body> {
    let len = bytes.len() as u64;
    let mut plan = Plan { bytes, pieces: None, end: End::Whole, client: client.clone() };
    match fault {
        Fault::ResetAfter(at) => (plan.bytes, plan.end) = (first(&plan.bytes, *at), End::Reset),
        Fault::CutAfter(at) => (plan.bytes, plan.end) = (first(&plan.bytes, *at), End::Close),
        Fault::Trickle(piece, pause) => plan.pieces = Some((*piece, *pause)),
        Fault::FlippedBit(at) if len > 0 => plan.bytes = flipped(&plan.bytes, *at),
        Fault::FlippedBitOfWhole(at) if len > 0 && head.status == StatusCode::OK => {
            plan.bytes = flipped(&plan.bytes, *at);
        }
        Fault::LengthTooLong(by) => {
            plan.end = End::Close;
            set_length(&mut head.headers, len + by);
        }
        Fault::LengthTooShort(by) => {
            let told = len.saturating_sub(*by);
            plan.bytes = first(&plan.bytes, told);
            set_length(&mut head.headers, told);
        }
        Fault::OtherSize => other_size(&mut head.headers),
        Fault::OtherTag => {
            let tag = HeaderValue::from_static("\"0123456789abcdef0123456789abcdef\"");
            head.headers.insert(header::ETAG, tag);
            // What Google tells versions by.
            if let Some(generation) = head.headers.get_mut("x-goog-generation") {
                *generation = HeaderValue::from_static("123456789");
            }
        }
        _ => {}
    }
    Response::from_parts(head, plan.body())
}

fn first(bytes: &Bytes, len: u64) -> Bytes {
    bytes.slice(..usize::try_from(len).map_or(bytes.len(), |len| len.min(bytes.len())))
}

fn flipped(bytes: &Bytes, at: u64) -> Bytes {
    let mut changed = BytesMut::from(bytes.as_ref());
    let at = usize::try_from(at % bytes.len() as u64).expect("within the body");
    changed[at] ^= 0x10;
    changed.freeze()
}

fn set_length(headers: &mut HeaderMap, len: u64) {
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
}

fn other_size(headers: &mut HeaderMap) {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let other = range.and_then(|range| {
        let (bytes, size) = range.split_once('/')?;
        HeaderValue::from_str(&format!("{bytes}/{}", size.parse::<u64>().ok()? + 7)).ok()
    });
    if let Some(other) = other {
        headers.insert(header::CONTENT_RANGE, other);
    }
}

/// How a body comes.
struct Plan {
    bytes: Bytes,
    pieces: Option<(usize, Duration)>,
    end: End,
    client: Client,
}

#[derive(Clone, Copy)]
enum End {
    Whole,
    Reset,
    Close,
}

impl Plan {
    fn body(self) -> Body {
        let frames = stream::unfold(Some(self), |plan| async move {
            let mut plan = plan?;
            if plan.bytes.is_empty() {
                let error = plan.ended().await?;
                return Some((Err(error), None));
            }
            let piece = plan.next().await;
            Some((Ok(Frame::data(piece)), Some(plan)))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    async fn next(&mut self) -> Bytes {
        let mut len = self.bytes.len();
        if let Some((piece, pause)) = self.pieces {
            tokio::select! {
                () = tokio::time::sleep(pause) => len = len.min(piece),
                // Fair weather: the rest at once.
                _ = self.client.cleared.changed() => self.pieces = None,
            }
        }
        self.bytes.split_to(len)
    }

    /// The error that ends the connection, if one does.
    async fn ended(&self) -> Option<io::Error> {
        // What was sent so far leaves first: the server writes it out when there is nothing more.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        match self.end {
            End::Whole => None,
            End::Reset => Some(self.client.reset()),
            End::Close => Some(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
