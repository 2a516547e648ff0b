//! Locks: GETLK, SETLK, SETLKW.

use crate::wire::{flag_set, wire_struct};

wire_struct! {
    /// A range with a lock (`fuse_file_lock`).
    FileLock[24] {
        /// First byte.
        0 => start: u64,
        /// Last byte, itself locked; `i64::MAX` is the end, wherever that is.
        8 => end: u64,
        /// As fcntl(2) has it: 0 for reading, 1 for writing, 2 unlocked.
        16 => kind: u32,
        /// Who holds it.
        20 => pid: u32,
    }
}

impl FileLock {
    /// `kind` of a lock for reading (F_RDLCK).
    pub const READ: u32 = 0;
    /// `kind` of a lock for writing (F_WRLCK).
    pub const WRITE: u32 = 1;
    /// `kind` of no lock (F_UNLCK).
    pub const UNLOCKED: u32 = 2;
}

wire_struct! {
    /// Asks for, takes or gives back a lock (`fuse_lk_in`).
    Lock[48] {
        /// The open file.
        0 => handle: u64,
        /// Whose it is: an opaque number, not a process.
        8 => owner: u64,
        /// The range.
        16 => lock: FileLock,
        /// See [`LockFlags`].
        40 => flags: LockFlags,
    }
}

flag_set! {
    /// Which kind of lock.
    LockFlags: u32 {
        /// Of flock(2): the whole file, and owned by the open file.
        FLOCK = 0,
    }
}

wire_struct! {
    /// Answers GETLK (`fuse_lk_out`).
    LockReply[24] {
        /// A lock that is in the way, or one of kind [`FileLock::UNLOCKED`].
        0 => lock: FileLock,
    }
}
