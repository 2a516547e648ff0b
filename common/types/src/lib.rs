//! The vocabulary of Millrace: identifiers, units, layout arithmetic, checksums and error kinds.
//!
//! Owns the meaning of every value that crosses a boundary between the parts. It does no input or
//! output, reads no clock and depends on no other crate of the workspace, so that every part, test
//! and offline tool can use it.
//!
//! Modules, in reading order: [`ids`], [`units`], [`time`], [`name`], [`layout`], [`block`],
//! [`lock`], [`checksum`], [`error`].

#![expect(
    missing_debug_implementations,
    reason = "rkyv derives an archived twin of every record; those are never printed"
)]

pub mod block;
pub mod checksum;
pub mod error;
pub mod ids;
pub mod layout;
pub mod lock;
pub mod name;
pub mod time;
pub mod units;

pub use block::{BLOCK_SIZE, BlockState};
pub use checksum::{Checksummed, Crc32c};
pub use error::{ErrorKind, Failure};
pub use ids::{
    ChangeCount, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, GroupEpoch,
    GroupId, HostId, InodeId, JobId, KeyId, LinkId, LogIndex, MapEpoch, PoolId, SessionId,
    TargetId, WriteEpoch, WriteNumber,
};
pub use layout::{ChunkSize, Layout, Redundancy};
pub use lock::{HeldRanges, LockKind, LockRange};
pub use name::FileName;
pub use time::Timestamp;
pub use units::{ByteLen, GIB, KIB, MIB, TIB};
