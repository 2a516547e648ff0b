//! statfs.

use millrace_protocol::metadata::FileSystemUse;
use millrace_types::Failure;

use crate::fs::FileSystem;

/// What `df` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    /// Blocks of [`STATFS_BLOCK_SIZE`] in all.
    pub(crate) blocks: u64,
    /// Of these, free.
    pub(crate) blocks_free: u64,
    /// Inodes in all; as many as there are bytes for, since no table limits them.
    pub(crate) inodes: u64,
    /// Of these, free.
    pub(crate) inodes_free: u64,
}

/// The unit of `statfs`: the targets' own block is 64 KiB, but programs expect the page size.
pub(crate) const STATFS_BLOCK_SIZE: u32 = 4096;

impl FileSystem {
    /// Capacity and use of the whole file system.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn file_system_use(
        &self,
        inode: millrace_types::InodeId,
    ) -> Result<Use, Failure> {
        self.settle(inode).await?;
        let reply = self.cluster.ask(&FileSystemUse { inode }).await?;
        let blocks = reply.capacity_bytes / u64::from(STATFS_BLOCK_SIZE);
        let used = reply.used_bytes.div_ceil(u64::from(STATFS_BLOCK_SIZE));
        let blocks_free = blocks.saturating_sub(used);
        Ok(Use {
            blocks,
            blocks_free,
            inodes: reply.inodes.saturating_add(blocks_free),
            inodes_free: blocks_free,
        })
    }
}
