//! The FUSE client: mounts a Millrace file system on a host.
//!
//! Owns the mount: the order of reads and writes on this host, read-ahead, write-behind, and what
//! the kernel may keep. It holds nothing durable: names and sizes belong to the metadata server,
//! bytes to the storage targets. It never blocks a thread that answers requests on a lock that is
//! held over a request.
//!
//! Permissions: the kernel checks mode, owner and groups before every operation
//! (`default_permissions`), with attributes that were fetched for it; the server checks every
//! change of names again, in the caller's name. So data costs no question about users, and a client
//! with a forged user is stopped where it matters: at the server.
//!
//! Modules, in reading order: [`settings`], [`mount`] (the life of a mount), `mountpoint`, `fuse`
//! (the kernel's requests), `fs` (what they mean), `prefetch` and `cache` (bytes that are held for
//! a moment), `cluster` (the servers), `control` (the local socket), `metrics`.

mod cache;
mod caller;
mod cluster;
mod control;
mod fs;
mod fuse;
mod metrics;
pub mod mount;
mod mountpoint;
mod prefetch;
pub mod settings;

pub use metrics::exported_names;
