//! Requests of the data path: clients to storage targets.
//!
//! Bulk bytes follow the message in the frame's body and are never inside it. One request moves at
//! most [`TRANSFER_LEN_MAX`] bytes within one chunk.

use millrace_types::{ChunkIndex, Crc32c, GroupEpoch, SessionId, TargetId, WriteNumber};
use rkyv::{Archive, Deserialize, Serialize};

use crate::capability::Signed;

/// The most bytes that one read or write moves: FUSE's own maximum for one request.
pub const TRANSFER_LEN_MAX: u32 = 1024 * 1024;

/// Shows the session's ticket, once per connection and after each renewal.
///
/// A new incarnation of a session's connection ends the requests of the old one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Attach {
    /// A signed [`Ticket`](crate::session::Ticket).
    pub ticket: Signed,
    /// Counts the client's connections to this daemon; those of a lower number are cut off.
    pub connection_number: u64,
}

/// The session is known here.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AttachReply {
    /// The session.
    pub session: SessionId,
    /// The present loss counts of the daemon's targets.
    pub loss_counts: Vec<LossCount>,
}

/// How often a target may have lost unsynced writes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossCount {
    /// The target.
    pub target: TargetId,
    /// A client that saw another value resends what it still holds, or reports EIO at fsync.
    pub count: u64,
}

/// Names the part of a chunk that a request is about.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The target that the caller's map names.
    pub target: TargetId,
    /// The epoch of the chunk's group in the caller's map.
    pub group_epoch: GroupEpoch,
    /// A signed [`Capability`](crate::capability::Capability).
    pub capability: Signed,
    /// The chunk.
    pub chunk: ChunkIndex,
    /// First byte within the chunk.
    pub offset: u32,
    /// Bytes, at least 1; for reads and writes at most [`TRANSFER_LEN_MAX`].
    pub len: u32,
}

/// Reads part of a chunk. Absent bytes that the bucket backs are fetched first.
///
/// A target reads from another one with the capability of the system session, for an export, or
/// with that of whichever session: it has seen that this lives, and copies for it ([`CopyRange`]).
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// What to read.
    pub place: Place,
    /// The client expects to read on from here: the target may fetch the rest of the chunk. Of
    /// another target, which reads for an export with the system session's capability, it says that
    /// the export is that of the file's own link, whose bytes are clean when it has ended, and not
    /// a copy to elsewhere.
    pub sequential: bool,
}

/// The bytes follow in the body: always as many as were asked for.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReadReply {
    /// Of the whole body, combined from verified page checksums.
    pub checksum: Crc32c,
    /// How many of the bytes had to come from the bucket for this request.
    pub fetched: u32,
}

/// Writes part of a chunk; the bytes are the body.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where to write.
    pub place: Place,
    /// Of the body, as the client computed it when the bytes arrived from the program.
    pub checksum: Crc32c,
    /// A number seen before is answered without being applied.
    pub number: WriteNumber,
    /// The lowest number whose answer the client still waits for.
    pub lowest_pending: WriteNumber,
    /// Answer only when the bytes are on stable storage (`O_SYNC`).
    pub durable: bool,
}

/// Writes part of a chunk with what a part of another one has, of the same file or another one. The
/// target that writes reads it, from itself or from the target that holds it.
///
/// As a [`Write`] in all else. Only [`ErrorKind::NotSupported`](millrace_types::ErrorKind) is its
/// own: that the other target does not let targets read for clients, or cannot be reached from this
/// one. The client then reads and writes by itself, as where this request is not known.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CopyRange {
    /// Where to write.
    pub place: Place,
    /// What to read: as many bytes, at the target that the caller's map names, with a capability of
    /// the same session. Where it has a hole, zeros are written.
    pub source: Place,
    /// A number seen before is answered without being applied, and without reading anything.
    pub number: WriteNumber,
    /// The lowest number whose answer the client still waits for.
    pub lowest_pending: WriteNumber,
    /// Answer only when the bytes are on stable storage (`O_SYNC`).
    pub durable: bool,
}

/// Turns part of a chunk into zeros without storing them.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Zero {
    /// What to zero; here `len` may reach to the chunk's end.
    pub place: Place,
    /// A number seen before is answered without being applied.
    pub number: WriteNumber,
    /// The lowest number whose answer the client still waits for.
    pub lowest_pending: WriteNumber,
}

/// Finds where in a part of a chunk bytes are, or where none are.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Seek {
    /// Where to look; here `len` may reach to the chunk's end.
    pub place: Place,
    /// Look for a hole: bytes that are zeros because nobody has stored any. Otherwise for data,
    /// which is everything else: also what only the bucket has, and what is lost.
    pub hole: bool,
}

/// What a [`Seek`] has found. Holes that are shorter than a page, 4 KiB, are data.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekReply {
    /// The first such byte, counted from the chunk's start; `None` when the part has none.
    pub offset: Option<u32>,
}

/// The bytes survive a kill of the target; after a [`Sync`] also a loss of power.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteReply {
    /// The chunk's version now.
    pub version: ChunkVersion,
    /// The target's loss count.
    pub loss_count: u64,
}

/// Orders the versions of a chunk.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ChunkVersion {
    /// The group's epoch when it was written.
    pub group_epoch: GroupEpoch,
    /// Counts within the epoch.
    pub counter: u64,
}

/// Makes what was acknowledged durable.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Sync {
    /// The target.
    pub target: TargetId,
}

/// Everything acknowledged before the request is on stable storage, unless the count changed.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncReply {
    /// The target's loss count.
    pub loss_count: u64,
}
