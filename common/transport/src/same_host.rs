//! Requests between two daemons of one host, past the network.
//!
//! A request over loopback is cut into datagrams, encrypted, confirmed, decrypted and put together
//! again by two processes that share a kernel. A connection whose ends are on one host therefore
//! gets *streams* besides: connections to a socket of the kernel, each of which carries one request
//! at a time, as a QUIC stream carries one in its life. They are part of the QUIC connection: it
//! has shown who both ends are, keeps alive, and says when one of them is gone. What is true of a
//! connection is true of its streams: its number, its identity, its session, its end.
//!
//! ```text
//!  client                                      server
//!    │  QUIC: FindSocket                          │
//!    │ ──────────────────────────────────────────▶│ draws a ticket for this connection
//!    │ ◀────────────────────────────── FoundSocket│ socket, user of the server, ticket
//!    │                                            │
//!    │  stream: ticket, request                   │
//!    │ ──────────────────────────────────────────▶│ finds the connection by the ticket
//!    │ ◀───────────────────────── greeting, answer│
//!    │  request, on the same stream               │
//!    │ ──────────────────────────────────────────▶│
//! ```
//!
//! # Who is at the other end
//! The ticket came over an encrypted connection and is as long as a key: who shows it is that
//! connection's client. The socket's name is in the kernel's abstract namespace, which ends with
//! the server, so that another process could take it: the client asks the kernel whose it is, and
//! sends nothing to another user's. What is sent is not encrypted: who can read it is who can read
//! the memory of both processes.
//!
//! # Bounds
//! A connection has at most `same_host_streams` streams, and all of a server together as many as
//! `send_budget_bytes` has megabytes: what a stream holds of bytes that nobody has read is its
//! socket's buffer. Requests beyond these go over QUIC, as all do where the socket cannot be
//! reached (another network namespace, a backlog that is full). The server greets a stream that it
//! has taken before it reads from it: without the greeting nothing was begun, and the request goes
//! over QUIC. Who connects and shows no ticket is hung up on after 5 s, and no more than 64 such
//! are waited for.

use std::net::IpAddr;

mod dial;
mod listen;
mod stream;

pub(crate) use dial::{SameHost, Taken};
pub(crate) use listen::{Attached, HostSocket, next_frame};
pub(crate) use stream::{HostReader, HostStream};

/// Whether the peer of a connection has an address of this host.
pub(crate) fn is_same_host(quic: &quinn::Connection) -> bool {
    let canonical = |ip: IpAddr| ip.to_canonical();
    let remote = canonical(quic.remote_address().ip());
    remote.is_loopback() || quic.local_ip().map(canonical) == Some(remote)
}
