//! The units that space and presence are counted in.

use millrace_types::BLOCK_SIZE;

/// Bytes of a page: the unit of space and of checksums.
pub const PAGE_SIZE: u32 = 4096;

/// Pages of a block, the unit of presence.
pub const BLOCK_PAGES: u8 = 16;

/// Blocks of the largest chunk (64 MiB).
pub const BLOCKS_MAX: u16 = 1024;

const _: () = assert!(BLOCK_SIZE == PAGE_SIZE as u64 * BLOCK_PAGES as u64);
