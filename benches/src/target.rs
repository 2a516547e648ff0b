//! A storage target's engine as the benches open it and ask it.

use std::{io, path::PathBuf, time::Duration};

use bytes::Bytes;
use millrace_storage_target::{
    disk::DiskEngine,
    volume::{Authority, PlaceOptions, WriteRequest, boot_id},
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

/// How a target is opened: as the daemon does it, with the best disk engine and a sync a second.
/// Without a capacity it has the whole of a device or file.
///
/// # Errors
/// When the kernel does not tell its boot id.
pub fn place(
    path: PathBuf,
    capacity: Option<ByteLen>,
    cache_bytes: usize,
) -> io::Result<PlaceOptions> {
    Ok(PlaceOptions {
        path,
        cluster: ClusterId([1; 16]),
        new_target: Some(TargetId([2; 8])),
        capacity,
        disk_engine: DiskEngine::Auto,
        sync_interval: Duration::from_secs(1),
        boot: boot_id()?,
        cache_bytes,
    })
}

/// A chunk of a file.
#[must_use]
pub fn chunk(inode: u64, index: u32) -> ChunkKey {
    ChunkKey {
        inode: InodeId(inode),
        generation: ContentGeneration(0),
        index: ChunkIndex(index),
        copy: CopyIndex(0),
    }
}

/// A client's write, whose checksum the client has computed.
#[must_use]
pub fn write(
    key: ChunkKey,
    offset: u32,
    body: Bytes,
    checksum: Crc32c,
    chunk_size: u32,
) -> WriteRequest {
    WriteRequest {
        key,
        offset,
        checksum,
        body: vec![body],
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}

/// Another number for each, in no order.
#[must_use]
pub fn scramble(number: u64) -> u64 {
    let mixed = (number ^ 0x5851_F42D_4C95_7F2D).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 8
}
