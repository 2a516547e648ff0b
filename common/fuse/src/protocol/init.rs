//! INIT: kernel and server agree on a version and on what both can do.
//!
//! The kernel says what it offers; the answer says what of it is taken. Nothing that was not taken
//! is ever sent, so that an old server and a new kernel understand each other.

use crate::wire::{Wire, flag_set, wire_struct};

/// The major version of the protocol that this crate speaks.
pub const MAJOR: u32 = 7;
/// The oldest minor version that this crate speaks: Linux 5.4.
pub const OLDEST_MINOR: u32 = 31;
/// The newest minor version that this crate speaks: Linux 6.18.
pub const NEWEST_MINOR: u32 = 45;

wire_struct! {
    /// What the kernel offers (`fuse_init_in`). Kernels before 7.36 send the first 16 bytes.
    Init[64] {
        /// Major version.
        0 => major: u32,
        /// Minor version.
        4 => minor: u32,
        /// Bytes that the kernel would read ahead.
        8 => max_readahead: u32,
        /// Bits 0 to 31 of the flags.
        12 => flags: u32,
        /// Bits 32 to 63, with `INIT_EXT`.
        16 => flags2: u32,
    }
}

impl Init {
    /// Its length before version 7.36.
    pub const SHORT_LEN: usize = 16;

    /// Reads the body of an INIT of any length that a kernel has sent or will send.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        if body.len() < Self::SHORT_LEN {
            return None;
        }
        let mut whole = [0; Self::LEN];
        let len = body.len().min(Self::LEN);
        whole[..len].copy_from_slice(&body[..len]);
        Self::get(&whole)
    }

    /// Everything that is offered.
    #[must_use]
    pub fn offered(&self) -> InitFlags {
        let low = InitFlags(u64::from(self.flags));
        if low.contains(InitFlags::INIT_EXT) {
            low.with(InitFlags(u64::from(self.flags2) << 32))
        } else {
            low
        }
    }
}

wire_struct! {
    /// What the server takes (`fuse_init_out`).
    InitReply[64] {
        /// Major version.
        0 => major: u32,
        /// Minor version.
        4 => minor: u32,
        /// Bytes to read ahead at most.
        8 => max_readahead: u32,
        /// Bits 0 to 31 of the flags.
        12 => flags: u32,
        /// Requests that nobody waits for (read-ahead, write-back) in flight at once.
        16 => max_background: u16,
        /// Number of those from which the kernel counts the file system as busy.
        18 => congestion_threshold: u16,
        /// Bytes of one WRITE at most.
        20 => max_write: u32,
        /// Granularity of times, in nanoseconds.
        24 => time_gran: u32,
        /// Pages of one request at most, with `MAX_PAGES`.
        28 => max_pages: u16,
        /// Logarithm of the alignment of mappings (virtiofs only).
        30 => map_alignment: u16,
        /// Bits 32 to 63 of the flags, with `INIT_EXT`.
        32 => flags2: u32,
        /// With `PASSTHROUGH`: 1, or 2 where a backing file may lie on a stacked file system.
        36 => max_stack_depth: u32,
        /// With `REQUEST_TIMEOUT`: seconds after which an unanswered request ends the connection.
        40 => request_timeout: u16,
    }
}

impl InitReply {
    /// The same with these flags, divided over the two fields.
    #[must_use]
    pub fn with_flags(mut self, flags: InitFlags) -> Self {
        let [low, high] = [flags.0 & u64::from(u32::MAX), flags.0 >> 32];
        self.flags = u32::try_from(low).expect("masked");
        self.flags2 = u32::try_from(high).expect("shifted");
        self
    }
}

flag_set! {
    /// What kernel and server can do. Each says what it costs not to take it, or to take it.
    InitFlags: u64 {
        /// Reads of one open file may be in flight together, in any order.
        ASYNC_READ = 0,
        /// POSIX locks are the server's (GETLK, SETLK, SETLKW); otherwise the kernel's own.
        POSIX_LOCKS = 1,
        /// Never sent.
        FILE_OPS = 2,
        /// O_TRUNC comes with OPEN, and not as a SETATTR after it. A program that runs is truncated
        /// by opening it with O_RDONLY and O_TRUNC, which then fails with ETXTBSY.
        ATOMIC_O_TRUNC = 3,
        /// LOOKUP of `.` and `..`: nodes can be found by number, for NFS.
        EXPORT_SUPPORT = 4,
        /// Writes of more than 4 KiB.
        BIG_WRITES = 5,
        /// The umask is the server's to apply.
        DONT_MASK = 6,
        /// The device can be spliced to.
        SPLICE_WRITE = 7,
        /// Spliced pages may move instead of being copied.
        SPLICE_MOVE = 8,
        /// The device can be spliced from.
        SPLICE_READ = 9,
        /// flock(2) locks are the server's; otherwise the kernel's own.
        FLOCK_LOCKS = 10,
        /// ioctl on directories.
        HAS_IOCTL_DIR = 11,
        /// Cached pages are dropped when a newer time or another size is seen.
        AUTO_INVAL_DATA = 12,
        /// READDIRPLUS is understood.
        DO_READDIRPLUS = 13,
        /// And is used where it seems to pay.
        READDIRPLUS_AUTO = 14,
        /// Direct I/O of several requests may be in flight together.
        ASYNC_DIO = 15,
        /// Writes stay in the page cache. The kernel then keeps size and times by itself: a change
        /// by somebody else is not seen any more.
        WRITEBACK_CACHE = 16,
        /// OPEN may be answered ENOSYS, once for the whole mount: opens stay in the kernel.
        NO_OPEN_SUPPORT = 17,
        /// LOOKUP and READDIR of one directory may be in flight together.
        PARALLEL_DIROPS = 18,
        /// The server takes set-user-id and set-group-id away on write, truncate and chown.
        HANDLE_KILLPRIV = 19,
        /// ACLs are checked by the kernel; implies `default_permissions`.
        POSIX_ACL = 20,
        /// A read of the device gives ECONNABORTED after an abort, ENODEV only after unmounting.
        ABORT_ERROR = 21,
        /// `max_pages` counts: requests of more than 128 KiB.
        MAX_PAGES = 22,
        /// Symbolic links are cached.
        CACHE_SYMLINKS = 23,
        /// OPENDIR may be answered ENOSYS, once for the whole mount.
        NO_OPENDIR_SUPPORT = 24,
        /// Cached pages are dropped only when the server says so.
        EXPLICIT_INVAL_DATA = 25,
        /// `map_alignment` counts (virtiofs only).
        MAP_ALIGNMENT = 26,
        /// Directories may be mounts of their own (see `AttrFlags::SUBMOUNT`).
        SUBMOUNTS = 27,
        /// As `HANDLE_KILLPRIV`, but the kernel says when: it spares a GETXATTR for every write.
        HANDLE_KILLPRIV_V2 = 28,
        /// SETXATTR has 16 bytes in front of the name.
        SETXATTR_EXT = 29,
        /// There are more than 32 flags.
        INIT_EXT = 30,
        /// Not used.
        INIT_RESERVED = 31,
        /// Requests that make an inode carry its security context.
        SECURITY_CTX = 32,
        /// Mapping directly is decided for each inode (virtiofs only).
        HAS_INODE_DAX = 33,
        /// Requests that make an inode carry the group that it may have.
        CREATE_SUPP_GROUP = 34,
        /// Names can be expired instead of dropped (see `InvalEntryFlags`).
        HAS_EXPIRE_ONLY = 35,
        /// Files that are open for direct I/O can be mapped.
        DIRECT_IO_ALLOW_MMAP = 36,
        /// Open files can be read and written without asking the server.
        PASSTHROUGH = 37,
        /// The file system cannot be exported by number.
        NO_EXPORT_SUPPORT = 38,
        /// NOTIFY_RESEND is understood.
        HAS_RESEND = 39,
        /// The mount may be idmapped.
        ALLOW_IDMAP = 40,
        /// Requests may come over io_uring.
        OVER_IO_URING = 41,
        /// `request_timeout` counts.
        REQUEST_TIMEOUT = 42,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_divided_over_two_fields() {
        let flags = InitFlags::ASYNC_READ | InitFlags::INIT_EXT | InitFlags::OVER_IO_URING;
        let reply = InitReply::default().with_flags(flags);
        assert_eq!((reply.flags, reply.flags2), (1 | 1 << 30, 1 << 9));
        let init = Init { flags: reply.flags, flags2: reply.flags2, ..Init::default() };
        assert_eq!(init.offered(), flags);
        let old = Init { flags: 1, flags2: u32::MAX, ..Init::default() };
        assert_eq!(old.offered(), InitFlags::ASYNC_READ);
    }

    #[test]
    fn an_old_kernel_sends_less_and_a_new_one_may_send_more() {
        let init = Init { major: 7, minor: 31, max_readahead: 1, flags: 2, flags2: 0 };
        assert_eq!(Init::decode(&init.encode()[..16]), Some(init));
        assert_eq!(Init::decode(&init.encode()[..15]), None);
        let longer = [&init.encode()[..], &[1; 8]].concat();
        assert_eq!(Init::decode(&longer), Some(init));
    }
}
