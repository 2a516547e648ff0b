//! Connections, each with one request.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use percent_encoding::percent_decode_str;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Shared, answer::Answer};

/// A request. None of those that are known here has a body.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    query: BTreeMap<String, String>,
    /// By name in lower case.
    headers: BTreeMap<String, String>,
}

/// The longest head of a request.
const HEAD_LEN_MAX: usize = 64 * 1024;

/// Serves the metadata service.
pub(super) fn metadata(mut stream: TcpStream, shared: &Shared) {
    // An error is a client that has gone.
    drop(exchange(&mut stream, |request| shared.metadata(request)));
    finish(&stream);
}

/// Serves STS.
pub(super) fn sts(stream: TcpStream, tls: &Arc<ServerConfig>, shared: &Shared) {
    let Ok(connection) = ServerConnection::new(Arc::clone(tls)) else { return };
    let mut stream = StreamOwned::new(connection, stream);
    drop(exchange(&mut stream, |request| shared.sts(request)));
    stream.conn.send_close_notify();
    drop(stream.flush());
    finish(&stream.sock);
}

/// What was sent arrives only where nothing is left unread when the socket is closed.
fn finish(stream: &TcpStream) {
    if stream.shutdown(Shutdown::Write).is_ok() {
        drop(io::copy(&mut &*stream, &mut io::sink()));
    }
}

/// Takes a request and answers it; without an answer waits until the client has gone.
fn exchange(
    stream: &mut (impl Read + Write),
    answer: impl FnOnce(&Request) -> Option<Answer>,
) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let len = stream.read(&mut piece)?;
        if len == 0 || head.len() > HEAD_LEN_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..len]);
    }
    let text = String::from_utf8_lossy(&head);
    let request = Request::parse(&text).ok_or(io::ErrorKind::InvalidData)?;
    let Some(Answer { status, body }) = answer(&request) else {
        return io::copy(stream, &mut io::sink()).map(drop);
    };
    let len = body.len();
    write!(stream, "HTTP/1.1 {status} Said\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

impl Request {
    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = query.map(|(name, value)| {
            (name.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned())
        });
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        let (path, query, headers) = (path.to_owned(), query.collect(), headers.collect());
        Some(Self { method, path, query, headers })
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}
