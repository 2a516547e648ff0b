//! The protocol: requests, answers and notifications as bytes. No I/O.
//!
//! [`operation::Request::decode`] reads a request from bytes that are not trusted, without copying
//! them; the structures of the other modules are answers and the fixed parts of requests. All have
//! `encode`, and each is declared as its byte table.

pub mod attr;
pub mod data;
pub mod directory;
pub mod extension;
pub mod header;
pub mod init;
pub mod ioctl;
pub mod lock;
pub mod node;
pub mod notification;
pub mod open;
pub mod operation;
pub mod ring;
pub mod statfs;
pub mod statx;
pub mod xattr;
