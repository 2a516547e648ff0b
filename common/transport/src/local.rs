//! The same frames over a Unix socket: between a command on this machine and a mount's daemon.
//!
//! The kernel says who calls (`SO_PEERCRED`), so no identity file is needed. A connection carries
//! one request at a time and no bodies. Hanging up cancels the request. Nothing is negotiated: both
//! ends come from one installation and speak its newest version; another is refused. Who connects
//! and asks nothing is hung up on after 30 s, and no user but root has more than 16 connections.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use millrace_protocol::{
    frame::{HEADER_LEN, Header, Shape},
    version::ProtocolVersion,
};
use millrace_types::{ErrorKind, Failure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

mod client;
mod places;
mod server;

pub use client::LocalClient;
pub use server::{LocalCall, LocalCaller, LocalServer, LocalService};

/// Writes a frame without a body.
async fn write_frame(
    stream: &mut UnixStream,
    shape: Shape,
    request_id: u64,
    message: &[u8],
) -> Result<(), Failure> {
    let header = Header::new(ProtocolVersion::NEWEST, shape, request_id, message, 0)
        .map_err(|error| Failure::new(ErrorKind::InvalidArgument, error.to_string()))?;
    let mut frame = BytesMut::with_capacity(HEADER_LEN + message.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(message);
    stream.write_all(&frame).await.map_err(|error| gone(&error))
}

/// Reads a frame without a body. `None`: the other side hung up between two frames.
async fn read_frame(stream: &mut UnixStream) -> Result<Option<(Header, Bytes)>, Failure> {
    let mut header = [0; HEADER_LEN];
    let first = stream.read(&mut header).await.map_err(|error| gone(&error))?;
    if first == 0 {
        return Ok(None);
    }
    let rest = async {
        stream.read_exact(&mut header[first..]).await.map_err(|error| gone(&error))?;
        let header = Header::decode(&header)?;
        header.check_version(ProtocolVersion::NEWEST)?;
        if header.body_len != 0 {
            let message = "a frame on a local socket has no body";
            return Err(Failure::new(ErrorKind::Protocol, message));
        }
        let mut message = vec![0; header.message_len as usize];
        stream.read_exact(&mut message).await.map_err(|error| gone(&error))?;
        header.check_message(&message)?;
        Ok(Some((header, Bytes::from(message))))
    };
    tokio::time::timeout(MESSAGE_TIMEOUT, rest)
        .await
        .unwrap_or_else(|_| Err(Failure::new(ErrorKind::Protocol, "the frame does not end")))
}

fn gone(error: &std::io::Error) -> Failure {
    Failure::new(ErrorKind::Unavailable, format!("local socket: {error}"))
}

/// A peer on the same machine sends a frame at once.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
