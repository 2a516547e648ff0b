//! What is in a file: READ, WRITE, FALLOCATE, LSEEK, COPY_FILE_RANGE, BMAP.

use crate::wire::{flag_set, wire_struct};

wire_struct! {
    /// Reads a file or directory (`fuse_read_in`).
    Read[40] {
        /// The open file.
        0 => handle: u64,
        /// Where to begin: of a directory, the offset of the last entry that the reader has.
        8 => offset: u64,
        /// Bytes to read at most. Less is the end of the file, unless it is direct I/O.
        16 => size: u32,
        /// See [`ReadFlags`].
        20 => read_flags: ReadFlags,
        /// Who locks, if the flags say so.
        24 => lock_owner: u64,
        /// Flags of open(2) that the file has now.
        32 => flags: u32,
    }
}

flag_set! {
    /// How a file is read.
    ReadFlags: u32 {
        /// `lock_owner` is valid.
        LOCK_OWNER = 1,
    }
}

wire_struct! {
    /// Writes a file (`fuse_write_in`); the data follows.
    Write[40] {
        /// The open file; with [`WriteFlags::CACHE`], any open file of that inode.
        0 => handle: u64,
        /// Where to begin.
        8 => offset: u64,
        /// Bytes to write: as many as follow.
        16 => size: u32,
        /// See [`WriteFlags`].
        20 => write_flags: WriteFlags,
        /// Who locks, if the flags say so.
        24 => lock_owner: u64,
        /// Flags of open(2) that the file has now.
        32 => flags: u32,
    }
}

flag_set! {
    /// How a file is written.
    WriteFlags: u32 {
        /// From the page cache, some time after the caller wrote.
        CACHE = 0,
        /// `lock_owner` is valid.
        LOCK_OWNER = 1,
        /// Take set-user-id and set-group-id away.
        KILL_SUIDGID = 2,
    }
}

wire_struct! {
    /// Answers WRITE and COPY_FILE_RANGE (`fuse_write_out`).
    WriteReply[8] {
        /// Bytes that were written.
        0 => size: u32,
    }
}

wire_struct! {
    /// Allocates or frees a range (`fuse_fallocate_in`).
    FAllocate[32] {
        /// The open file.
        0 => handle: u64,
        /// Where to begin.
        8 => offset: u64,
        /// Bytes.
        16 => length: u64,
        /// Mode of fallocate(2): 0, or bits such as 1 keep size, 2 punch hole, 16 zero range.
        24 => mode: u32,
    }
}

wire_struct! {
    /// Finds data or a hole (`fuse_lseek_in`).
    LSeek[24] {
        /// The open file.
        0 => handle: u64,
        /// Where to begin.
        8 => offset: u64,
        /// 3 is SEEK_DATA, 4 is SEEK_HOLE; the kernel does the others itself.
        16 => whence: u32,
    }
}

wire_struct! {
    /// Answers LSEEK (`fuse_lseek_out`).
    LSeekReply[8] {
        /// Where it is.
        0 => offset: u64,
    }
}

wire_struct! {
    /// Copies a range (`fuse_copy_file_range_in`). The header has the inode that is read.
    CopyFileRange[56] {
        /// The open file that is read.
        0 => handle_in: u64,
        /// Where to begin reading.
        8 => offset_in: u64,
        /// The inode that is written.
        16 => node_out: u64,
        /// The open file that is written.
        24 => handle_out: u64,
        /// Where to begin writing.
        32 => offset_out: u64,
        /// Bytes to copy at most.
        40 => length: u64,
        /// None is defined.
        48 => flags: u64,
    }
}

wire_struct! {
    /// Answers COPY_FILE_RANGE_64 (`fuse_copy_file_range_out`, 7.45).
    CopyFileRangeReply[8] {
        /// Bytes that were copied.
        0 => size: u64,
    }
}

wire_struct! {
    /// Maps a block of a file to its device's (`fuse_bmap_in`; fuseblk only).
    BMap[16] {
        /// Number of the block in the file.
        0 => block: u64,
        /// Bytes of a block.
        8 => block_size: u32,
    }
}

wire_struct! {
    /// Answers BMAP (`fuse_bmap_out`).
    BMapReply[8] {
        /// Number of the block on the device; 0 is none.
        0 => block: u64,
    }
}
