//! What callers ask of a volume.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use millrace_types::{ChunkKey, Crc32c, GroupEpoch, SessionId, WriteEpoch, WriteNumber};

use super::{DropMark, sessions::AppliedWrites};
use crate::disk::AlignedBuffer;

/// Whether a change may still be applied when its turn has come: the session's ticket may have run
/// out while it waited for memory, blocks or the disk, or the target have been opened again.
#[derive(Clone, Default)]
pub struct Authority(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Authority {
    /// Asks `stands` at the moment of applying; it must not block.
    #[must_use]
    pub fn new(stands: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(stands)))
    }

    /// The same, for as long as the memory is in use that has admitted the change.
    pub(crate) fn admitted_by(self, applied: AppliedWrites) -> Self {
        Self::new(move || !applied.has_ended() && self.stands())
    }

    pub(crate) fn stands(&self) -> bool {
        self.0.as_ref().is_none_or(|stands| stands())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

/// A client's write to part of a chunk.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// The chunk.
    pub key: ChunkKey,
    /// First byte within the chunk.
    pub offset: u32,
    /// The bytes, 1 to 1 MiB in all; they lie within the chunk.
    pub body: Vec<Bytes>,
    /// Of the body, as its maker computed it.
    pub checksum: Crc32c,
    /// The caller's view of the group.
    pub group_epoch: GroupEpoch,
    /// The caller's view of the file.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// How many bytes from the chunk's start the bucket backs.
    pub backed: u32,
    /// Whose write it is, and its number; remembered in the journal.
    pub session: SessionId,
    /// See `session`.
    pub number: WriteNumber,
    /// Asked at the moment of applying.
    pub authority: Authority,
}

/// Part of a chunk to become zeros.
#[derive(Clone, Debug)]
pub struct ZeroRequest {
    /// The chunk.
    pub key: ChunkKey,
    /// The bytes within the chunk; not empty.
    pub range: Range<u32>,
    /// The caller's view of the group.
    pub group_epoch: GroupEpoch,
    /// The caller's view of the file.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// How many bytes from the chunk's start the bucket backs.
    pub backed: u32,
    /// Whose request it is, and its number.
    pub session: SessionId,
    /// See `session`.
    pub number: WriteNumber,
    /// Asked at the moment of applying.
    pub authority: Authority,
}

/// Bytes that came from the bucket, on their way to the disk.
#[derive(Clone, Debug)]
pub struct Fill {
    /// The chunk.
    pub key: ChunkKey,
    /// The first block.
    pub first_block: u16,
    /// The bytes of the blocks, padded with zeros to whole pages. Readers may hold it too.
    pub buffer: Arc<AlignedBuffer>,
    /// Valid bytes: every block but the last is full.
    pub len: u32,
    /// The checksum of each page.
    pub checksums: Arc<[Crc32c]>,
    /// The write epoch of the capability for which the bytes were fetched.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// How many bytes from the chunk's start the bucket backs.
    pub backed: u32,
    /// Taken before the bucket was asked: what the chunk has dropped since is not stored.
    pub mark: DropMark,
    /// Whether it may wait some milliseconds for others, to go to the disk with them.
    pub gathers: bool,
}
