//! Open files and directories: OPEN, CREATE, TMPFILE, FLUSH, FSYNC, RELEASE.

use crate::{
    protocol::attr::EntryReply,
    wire::{Wire, flag_set, wire_struct},
};

wire_struct! {
    /// Opens a file or directory (`fuse_open_in`).
    Open[8] {
        /// Flags of open(2), without O_CREAT, O_EXCL and O_NOCTTY; without O_TRUNC too, unless
        /// `ATOMIC_O_TRUNC` was agreed on.
        0 => flags: u32,
        /// See [`OpenInFlags`] (7.33).
        4 => open_flags: OpenInFlags,
    }
}

flag_set! {
    /// What opening has to do besides.
    OpenInFlags: u32 {
        /// It truncates: take set-user-id and set-group-id away (with `HANDLE_KILLPRIV_V2`).
        KILL_SUIDGID = 0,
    }
}

wire_struct! {
    /// Makes and opens a file (`fuse_create_in`).
    Create[16] {
        /// Flags of open(2).
        0 => flags: u32,
        /// Type and permissions.
        4 => mode: u32,
        /// The caller's umask, applied already unless `DONT_MASK` was agreed on.
        8 => umask: u32,
        /// As of OPEN.
        12 => open_flags: OpenInFlags,
    }
}

wire_struct! {
    /// Answers OPEN and OPENDIR (`fuse_open_out`).
    OpenReply[16] {
        /// Names the open file in later requests; any number.
        0 => handle: u64,
        /// How the kernel is to treat it.
        8 => flags: OpenFlags,
        /// The backing file, with [`OpenFlags::PASSTHROUGH`] (7.40).
        12 => backing: i32,
    }
}

flag_set! {
    /// How the kernel treats an open file (`FOPEN_`).
    OpenFlags: u32 {
        /// Reads and writes bypass the page cache.
        DIRECT_IO = 0,
        /// The page cache of the last open still counts.
        KEEP_CACHE = 1,
        /// It has no position to seek to.
        NONSEEKABLE = 2,
        /// The kernel may cache what is read of the directory.
        CACHE_DIR = 3,
        /// It has no position at all.
        STREAM = 4,
        /// close(2) need not send FLUSH (7.35; not with the writeback cache).
        NOFLUSH = 5,
        /// Direct writes of several callers may be in flight (7.38).
        PARALLEL_DIRECT_WRITES = 6,
        /// Reads and writes go to the backing file (7.40).
        PASSTHROUGH = 7,
    }
}

/// Answers CREATE and TMPFILE: the entry, and the open file behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateReply {
    /// The new inode, with one reference.
    pub entry: EntryReply,
    /// The open file.
    pub open: OpenReply,
}

impl CreateReply {
    /// Its length in bytes.
    pub const LEN: usize = EntryReply::LEN + OpenReply::LEN;

    /// As the kernel reads it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.entry.put(&mut bytes);
        self.open.put(&mut bytes[EntryReply::LEN..]);
        bytes
    }
}

wire_struct! {
    /// Ends an open file or directory (`fuse_release_in`).
    Release[24] {
        /// The open file.
        0 => handle: u64,
        /// Flags of open(2) that it was opened with.
        8 => flags: u32,
        /// See [`ReleaseFlags`].
        12 => release_flags: ReleaseFlags,
        /// Whose locks end.
        16 => lock_owner: u64,
    }
}

flag_set! {
    /// What ending an open file does besides.
    ReleaseFlags: u32 {
        /// Flush it.
        FLUSH = 0,
        /// Unlock what flock(2) has locked.
        FLOCK_UNLOCK = 1,
    }
}

wire_struct! {
    /// A descriptor is closed (`fuse_flush_in`): more may follow of the same open file, or none.
    Flush[24] {
        /// The open file.
        0 => handle: u64,
        /// Whose POSIX locks end.
        16 => lock_owner: u64,
    }
}

wire_struct! {
    /// Makes an open file or directory durable (`fuse_fsync_in`).
    FSync[16] {
        /// The open file.
        0 => handle: u64,
        /// See [`FSyncFlags`].
        8 => flags: FSyncFlags,
    }
}

flag_set! {
    /// What has to become durable.
    FSyncFlags: u32 {
        /// The data, and of the attributes what is needed to read it.
        DATA_ONLY = 0,
    }
}
