//! QUIC between the parts of Millrace: who may connect, and how a request gets its answer.
//!
//! Owns connections, certificates and frames on streams. It never looks into a message beyond its
//! kind and keeps no state of the cluster. This is the only crate that names quinn.
//!
//! - Every connection is TLS 1.3 with certificates on both sides; nothing turns that off.
//! - One request is one bidirectional stream: frame, message, body; the reply likewise. Dropping a
//!   call resets its stream, which cancels the work at the server.
//! - Every endpoint runs on a single-threaded runtime of its own ([`reactor`]): a work-stealing
//!   runtime halves the throughput (measured: 0.95 against 2.1 GB/s on two cores).
//!
//! Modules, in reading order: [`identity`], [`authority`], [`settings`], [`reactor`], [`endpoint`],
//! [`peer`] (calls), [`server`] (answers), [`local`] (the same frames over a Unix socket).

pub mod authority;
pub mod endpoint;
mod framing;
pub mod identity;
mod link;
pub mod local;
pub mod peer;
pub mod reactor;
pub mod server;
pub mod settings;
mod socket;
mod tls;

pub use authority::Authority;
pub use endpoint::Endpoint;
pub use identity::{Identity, PeerIdentity};
pub use millrace_protocol::session::Role;
pub use peer::{CallOptions, Lane, Peer, PeerOptions};
pub use reactor::Reactor;
pub use server::{ConnectionContext, ConnectionId, IncomingCall, Server, ServerSettings, Service};
pub use settings::TransportSettings;
pub use tls::TlsError;
