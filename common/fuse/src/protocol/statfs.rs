//! STATFS: how large the file system is.

use crate::wire::wire_struct;

wire_struct! {
    /// Answers STATFS (`fuse_statfs_out`).
    StatFsReply[80] {
        /// Size, in units of `fragment_size`.
        0 => blocks: u64,
        /// Free.
        8 => free: u64,
        /// Free for users who are not root.
        16 => available: u64,
        /// Inodes.
        24 => files: u64,
        /// Inodes that are free.
        32 => files_free: u64,
        /// What is a good size for reads and writes.
        40 => block_size: u32,
        /// Longest name, in bytes.
        44 => name_max: u32,
        /// Bytes of a block, as counted above.
        48 => fragment_size: u32,
    }
}
