//! FUSE for servers on Linux: the protocol, the channels to the kernel, and sessions.
//!
//! There is no C library below and no runtime above. The layers can be used apart:
//!
//! | layer | is | does |
//! |-------|----|------|
//! | [`protocol`] | requests, answers and notifications as bytes | no I/O |
//! | [`channel`] | how they come from the kernel and go back | one system call for each |
//! | [`FileSystem`], [`Reply`] | an operation for each request | nothing by itself |
//! | [`Session`] | mounting, INIT, threads, unmounting | all of it |
//!
//! A method of [`FileSystem`] gets a [`Reply`], which it answers before it returns or which it
//! gives to any other thread; a reply that is dropped answers EIO. [`Reply::cancellation`] says
//! when the caller does not wait any more, which is how a waiting program can be killed.
//!
//! With [`Channel::Uring`] requests come over io_uring where the kernel offers that (Linux 6.14 and
//! its parameter `enable_uring`): see [`channel::uring`] for what that gains and costs.
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//!
//! use millrace_fuse_server::{
//!     Call, Errno, FileSystem, MountOptions, Reply, Session, SessionOptions,
//!     protocol::attr::{Attr, AttrReply, GetAttr},
//! };
//!
//! /// A directory with nothing in it, and nothing to be put there.
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
//!         let attr = Attr { ino: call.node, mode: 0o040_755, nlink: 2, ..Attr::default() };
//!         reply.send(&AttrReply::new(attr, Duration::from_secs(1)));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = SessionOptions::default();
//! Session::mount(Empty, Path::new("/mnt"), &MountOptions::new("empty"), &options)?.run()?;
//! # Ok(())
//! # }
//! ```
//!
//! Protocol versions 7.31 (Linux 5.4) to 7.45 (Linux 6.18) are spoken. What only virtiofs sends
//! (SETUPMAPPING, REMOVEMAPPING) and character devices in user space (CUSE) are left out.

mod abandoned;
mod backing;
pub mod channel;
mod connection;
mod dispatch;
mod filesystem;
mod live;
mod notifier;
pub mod protocol;
mod reply;
mod session;
mod wire;

pub use rustix::io::Errno;

pub use backing::BackingFile;
pub use channel::{
    End,
    buffer::{OwnedPayload, Payload},
};
pub use connection::Counts;
pub use filesystem::{Call, FileSystem};
pub use live::Cancellation;
pub use notifier::Notifier;
pub use reply::{Data, Done, Reply, XAttr};
pub use session::{
    Channel, Ended, HandOverError, Legacy, MountOptions, Mountpoint, PreparedMountpoint, Running,
    Session, SessionError, SessionOptions, Terms, Wishes,
};
pub use wire::Wire;
