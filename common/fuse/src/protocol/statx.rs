//! STATX: attributes that stat(2) does not have (7.39).

use crate::{protocol::attr::GetAttrFlags, wire::wire_struct};

wire_struct! {
    /// A time (`fuse_sx_time`).
    StatXTime[16] {
        /// Seconds since 1970.
        0 => seconds: i64,
        /// Nanoseconds.
        8 => nanoseconds: u32,
    }
}

wire_struct! {
    /// Asks for attributes (`fuse_statx_in`).
    StatX[24] {
        /// As for GETATTR.
        0 => flags: GetAttrFlags,
        /// The open file that is asked through, if the flags say so.
        8 => handle: u64,
        /// Flags of statx(2): how old the answer may be.
        16 => statx_flags: u32,
        /// Mask of statx(2): what is wanted.
        20 => mask: u32,
    }
}

wire_struct! {
    /// What statx(2) shows (`fuse_statx`).
    StatXAttr[256] {
        /// Which fields are valid, with the bits of statx(2).
        0 => mask: u32,
        /// What is a good size for reads and writes.
        4 => blksize: u32,
        /// Attributes of statx(2): compressed, immutable, append-only and so on.
        8 => attributes: u64,
        /// Number of names.
        16 => nlink: u32,
        /// Owner.
        20 => uid: u32,
        /// Group.
        24 => gid: u32,
        /// Type and permissions.
        28 => mode: u16,
        /// The inode's number.
        32 => ino: u64,
        /// In bytes.
        40 => size: u64,
        /// In units of 512 bytes.
        48 => blocks: u64,
        /// Which of `attributes` this file system has at all.
        56 => attributes_mask: u64,
        /// Last access.
        64 => atime: StatXTime,
        /// When it was made.
        80 => btime: StatXTime,
        /// Last change of content or attributes.
        96 => ctime: StatXTime,
        /// Last change of the content.
        112 => mtime: StatXTime,
        /// Of a device, its major number.
        128 => rdev_major: u32,
        /// Of a device, its minor number.
        132 => rdev_minor: u32,
        /// Major number of the file system's device.
        136 => dev_major: u32,
        /// Minor number of the file system's device.
        140 => dev_minor: u32,
    }
}

wire_struct! {
    /// Answers STATX (`fuse_statx_out`).
    StatXReply[288] {
        /// For how many seconds the kernel may believe the attributes.
        0 => valid: u64,
        /// And nanoseconds.
        8 => valid_nsec: u32,
        /// None is defined.
        12 => flags: u32,
        /// The attributes.
        32 => attr: StatXAttr,
    }
}
