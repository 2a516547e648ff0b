//! What lies on a target's disk, as bytes. No input or output happens here.
//!
//! A target is one linear space of pages of 4 KiB: two copies of the [`superblock`], the ring of
//! [`batch`]es with the [`change`]s in it, and regions, in which lie bytes of chunks and the nodes
//! of the index ([`root`], [`node`], [`key`]) with its [`table`]s: [`section`], [`mark`],
//! [`free_map`], [`finding`], [`fact`]. [`units`] says what is counted in what.
//!
//! Everything is little-endian and carries a crc32c. The offline checker shares these modules with
//! the server, so nothing here knows tasks, sockets or settings.

pub mod batch;
pub mod change;
pub mod extent;
pub mod fact;
mod fields;
pub mod finding;
pub mod free_map;
pub mod key;
pub mod mark;
pub mod node;
pub mod root;
pub mod section;
pub mod superblock;
pub mod table;
pub mod units;

/// Bytes on disk are not what the format says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There are fewer bytes than the format asks for.
    #[error("{0} is cut off")]
    Truncated(&'static str),
    /// The checksum does not match.
    #[error("the checksum of {0} does not match its bytes")]
    Checksum(&'static str),
    /// The bytes belong to something else.
    #[error("{0} does not begin with its magic number: this is no file of a Millrace target")]
    Magic(&'static str),
    /// Written by a program that knows a later format.
    #[error("{what} has format version {found}; this program knows version {known}: upgrade it")]
    Version {
        /// What was being read.
        what: &'static str,
        /// The version on disk.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// A field holds a value that no program writes.
    #[error("{what} holds an impossible {field}")]
    Impossible {
        /// What was being read.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
}
