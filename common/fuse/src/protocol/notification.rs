//! Notifications: what the server tells the kernel unasked.
//!
//! A notification is an answer whose unique is 0 and whose error is its code. Of those that name a
//! directory entry the name follows, with a NUL behind it.

use crate::wire::{flag_set, wire_struct};

/// Which notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Notification {
    /// A polled file has events: [`PollWakeup`].
    Poll = 1,
    /// Cached attributes and pages are out of date: [`InvalInode`].
    InvalInode = 2,
    /// A cached name is out of date: [`InvalEntry`].
    InvalEntry = 3,
    /// Here are pages for the cache: [`Store`].
    Store = 4,
    /// Pages of the cache are wanted: [`Retrieve`].
    Retrieve = 5,
    /// A name was removed: [`DeletedEntry`].
    Delete = 6,
    /// Requests that were read and not answered are wanted again (7.40). Has no body.
    Resend = 7,
    /// All names are out of date, and are looked up again when they are used (7.44). Has no body.
    IncEpoch = 8,
    /// Inodes that nobody uses are to be dropped: [`Prune`] (7.45).
    Prune = 9,
}

impl Notification {
    /// Its number in a header.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Poll => 1,
            Self::InvalInode => 2,
            Self::InvalEntry => 3,
            Self::Store => 4,
            Self::Retrieve => 5,
            Self::Delete => 6,
            Self::Resend => 7,
            Self::IncEpoch => 8,
            Self::Prune => 9,
        }
    }
}

wire_struct! {
    /// `fuse_notify_poll_wakeup_out`.
    PollWakeup[8] {
        /// As in the POLL that asked for it.
        0 => kernel_handle: u64,
    }
}

wire_struct! {
    /// `fuse_notify_inval_inode_out`.
    InvalInode[24] {
        /// The inode.
        0 => node: u64,
        /// First byte that is out of date; negative: only the attributes are.
        8 => offset: i64,
        /// Number of bytes; 0 or less: all that follow.
        16 => length: i64,
    }
}

wire_struct! {
    /// `fuse_notify_inval_entry_out`; the name follows.
    InvalEntry[16] {
        /// The directory.
        0 => parent: u64,
        /// Bytes of the name, without the NUL.
        8 => name_len: u32,
        /// See [`InvalEntryFlags`] (7.38).
        12 => flags: InvalEntryFlags,
    }
}

flag_set! {
    /// How a name is invalidated.
    InvalEntryFlags: u32 {
        /// It is looked up again when it is used, and is not dropped with what is below it.
        EXPIRE_ONLY = 0,
    }
}

wire_struct! {
    /// `fuse_notify_delete_out`; the name follows.
    DeletedEntry[24] {
        /// The directory.
        0 => parent: u64,
        /// What had the name; nothing happens where it is something else by now.
        8 => child: u64,
        /// Bytes of the name, without the NUL.
        16 => name_len: u32,
    }
}

wire_struct! {
    /// `fuse_notify_store_out`; the data follows.
    Store[24] {
        /// The inode.
        0 => node: u64,
        /// Where the data begins.
        8 => offset: u64,
        /// Bytes of data.
        16 => size: u32,
    }
}

wire_struct! {
    /// `fuse_notify_retrieve_out`.
    Retrieve[32] {
        /// The unique of the NOTIFY_REPLY that answers it.
        0 => notify_unique: u64,
        /// The inode.
        8 => node: u64,
        /// Where to begin.
        16 => offset: u64,
        /// Bytes at most.
        24 => size: u32,
    }
}

impl Retrieve {
    /// The unique of a retrieval with that number: none that the kernel gives to a request. Over
    /// io_uring two requests must not have the same. `None` when the number is too large.
    #[must_use]
    pub fn unique(number: u64) -> Option<u64> {
        (number < RETRIEVAL >> 1).then_some(RETRIEVAL | number << 1)
    }

    /// The number of a retrieval with that unique.
    #[must_use]
    pub fn number(unique: u64) -> u64 {
        (unique & !RETRIEVAL) >> 1
    }
}

wire_struct! {
    /// Body of NOTIFY_REPLY (`fuse_notify_retrieve_in`); the data follows.
    Retrieved[40] {
        /// Where the data begins.
        8 => offset: u64,
        /// Bytes of data.
        16 => size: u32,
    }
}

wire_struct! {
    /// `fuse_notify_prune_out`; the inodes follow, 8 bytes each.
    Prune[16] {
        /// How many.
        0 => count: u32,
    }
}

/// Requests are counted from 2 on, by two, and do not get there. The bit above says that one is
/// sent again; the lowest is that of an INTERRUPT.
const RETRIEVAL: u64 = 1 << 62;
