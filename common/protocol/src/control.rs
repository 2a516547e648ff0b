//! What a mount's daemon answers on its local socket, besides the requests of [`crate::admin`] that
//! it sends on for its caller.
//!
//! The daemon takes the caller's identity from the socket (`SO_PEERCRED`) and replaces whatever the
//! message says; paths in those requests are relative to the mount.

use rkyv::{Archive, Deserialize, Serialize};

/// Asks what is mounted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DescribeMount {}

/// What is mounted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MountDescription {
    /// The cluster's id in hexadecimal.
    pub cluster: String,
    /// The directory of the file system that the mount shows.
    pub subtree: Vec<u8>,
    /// Where it is mounted.
    pub mountpoint: Vec<u8>,
    /// Whether it is read-only.
    pub read_only: bool,
    /// The daemon's process id.
    pub process: u32,
    /// The daemon's version.
    pub version: String,
}
