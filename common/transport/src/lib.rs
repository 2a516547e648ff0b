//! Requests and replies over QUIC with mutual TLS, and over a local socket.
//!
//! The only crate that names quinn. It owns sockets, handshakes, identities, flow control,
//! deadlines and cancellation; it does not know what any request means. Every queue, window and
//! wait in it has a bound, and whatever a peer sends ends in a typed failure, never in a panic.
//!
//! Modules, in reading order: [`identity`], [`authority`], [`settings`], [`body`], [`client`],
//! [`server`], [`local`]; below them, private: `tls`, `ciphers`, `socket`, `endpoint`, `windows`,
//! `stream`, `same_host`, `failure`.

pub mod authority;
pub mod body;
mod ciphers;
pub mod client;
mod endpoint;
mod failure;
pub mod identity;
pub mod local;
mod same_host;
pub mod server;
pub mod settings;
mod socket;
mod stream;
pub mod tls;
mod windows;

pub use authority::{Authority, Grant};
pub use body::Body;
pub use client::{CallOptions, ClientEndpoints, Connected, Lane, Peer, PeerTarget};
pub use identity::{Identity, PeerIdentity};
pub use local::{LocalCall, LocalCaller, LocalClient, LocalServer, LocalService};
pub use server::{Connection, ConnectionId, EncodedReply, IncomingCall, Server, Service};
pub use settings::{Mtu, TransportSettings};
