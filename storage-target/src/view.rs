//! One chunk as a capability (or the metadata server) describes it.

use std::{ops::Range, sync::Arc};

use millrace_object_source::WHOLE_LEN_MAX;
use millrace_protocol::capability::{Content, Origin};
use millrace_types::{ChunkIndex, ChunkKey, CopyIndex, ErrorKind, Failure, WriteEpoch};

/// A chunk of a content, with what the bucket has of it.
#[derive(Clone, Debug)]
pub(crate) struct ChunkView {
    pub(crate) key: ChunkKey,
    pub(crate) write_epoch: WriteEpoch,
    /// Bytes of every chunk of the file but the last.
    pub(crate) chunk_size: u32,
    /// First byte of the chunk in the file.
    pub(crate) start: u64,
    /// How many bytes from the chunk's start the bucket backs.
    pub(crate) backed: u32,
    /// Whether absent bytes may be a hole.
    pub(crate) sparse: bool,
    pub(crate) origin: Option<Arc<Origin>>,
}

impl ChunkView {
    /// The chunk `index` of a checked content.
    pub(crate) fn new(content: &Content, index: ChunkIndex) -> Self {
        let size = content.layout.chunk_size().bytes();
        let start = u64::from(index.0) * size;
        let backed = match content.origin {
            Some(_) => content.origin_length.saturating_sub(start).min(size),
            None => 0,
        };
        let within_chunk = |bytes: u64| u32::try_from(bytes).expect("a chunk has 64 MiB at most");
        Self {
            key: ChunkKey {
                inode: content.inode,
                generation: content.generation,
                index,
                copy: CopyIndex(0),
            },
            write_epoch: content.write_epoch,
            chunk_size: within_chunk(size),
            start,
            backed: within_chunk(backed),
            sparse: content.sparse,
            origin: content.origin.clone().map(Arc::new),
        }
    }

    /// The size of the object, if it lies in this chunk and is small enough to be fetched whole, as
    /// it must be to be held against the bucket's checksum of it.
    pub(crate) fn whole_object(&self) -> Option<u64> {
        let size = self.origin.as_ref()?.size;
        let is_here = self.start == 0 && size <= u64::from(self.chunk_size);
        (is_here && u64::from(self.backed) <= size && size <= WHOLE_LEN_MAX).then_some(size)
    }

    /// Checks a range of bytes that a peer named.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it is empty or leaves the chunk.
    pub(crate) fn range(&self, offset: u32, len: u32) -> Result<Range<u32>, Failure> {
        let end = offset.checked_add(len).filter(|&end| end <= self.chunk_size && len > 0);
        let end = end.ok_or_else(|| {
            let words = format!("{len} bytes at {offset} are no part of a chunk");
            Failure::new(ErrorKind::InvalidArgument, words)
        })?;
        Ok(offset..end)
    }
}
