//! What lies on a target's disk, as bytes. No input or output happens here.
//!
//! A target is a directory:
//!
//! ```text
//! superblock                      who this target is                            (superblock)
//! data                            pages of 4 KiB; which are in use, the index says
//! journal/<sequence>.checkpoint   the whole index as of that sequence number    (checkpoint)
//! journal/<sequence>.log          changes from that sequence number on          (segment, record)
//! ```
//!
//! Of format 2, which targets do not have yet, are: the superblock
//! ([`linear`](superblock::linear)), the ring of [`batch`]es and the [`change`]s in it, the index
//! ([`root`], [`node`], [`key`]) and its [`table`]s: [`section`], [`mark`], [`free_map`],
//! [`finding`], [`fact`].
//!
//! Everything is little-endian and carries a crc32c. The offline checker shares these modules with
//! the server, so nothing here knows tasks, sockets or settings.

pub mod batch;
pub mod change;
pub mod checkpoint;
pub mod chunk;
pub mod extent;
pub mod fact;
mod fields;
pub mod finding;
pub mod free_map;
pub mod key;
pub mod mark;
pub mod node;
pub mod record;
pub mod root;
pub mod section;
pub mod segment;
pub mod superblock;
pub mod table;

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
