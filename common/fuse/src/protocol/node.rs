//! Names that are made and moved: MKNOD, MKDIR, LINK, RENAME.

use crate::wire::{flag_set, wire_struct};

wire_struct! {
    /// Makes a file, FIFO, socket or device (`fuse_mknod_in`); a name follows.
    MkNod[16] {
        /// Type and permissions.
        0 => mode: u32,
        /// Of a device, its number as the kernel encodes it in 32 bits.
        4 => rdev: u32,
        /// The caller's umask, applied already unless `DONT_MASK` was agreed on.
        8 => umask: u32,
    }
}

wire_struct! {
    /// Makes a directory (`fuse_mkdir_in`); a name follows.
    MkDir[8] {
        /// Permissions.
        0 => mode: u32,
        /// The caller's umask, applied already unless `DONT_MASK` was agreed on.
        4 => umask: u32,
    }
}

wire_struct! {
    /// Gives an inode another name (`fuse_link_in`); the name follows.
    Link[8] {
        /// The inode. The header has the directory of the new name.
        0 => node: u64,
    }
}

wire_struct! {
    /// Moves a name (`fuse_rename2_in`; RENAME has only the directory); the old name and the new
    /// one follow.
    Rename[16] {
        /// The directory of the new name. The header has that of the old one.
        0 => new_directory: u64,
        /// See [`RenameFlags`]; empty in RENAME.
        8 => flags: RenameFlags,
    }
}

flag_set! {
    /// Flags of renameat2(2).
    RenameFlags: u32 {
        /// Fails with EEXIST where there is the new name.
        NO_REPLACE = 0,
        /// Both names are there, and change places.
        EXCHANGE = 1,
        /// Leaves a whiteout in the old place.
        WHITEOUT = 2,
    }
}
