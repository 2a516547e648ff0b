//! IOCTL and POLL.

use crate::wire::{flag_set, wire_struct};

wire_struct! {
    /// An ioctl (`fuse_ioctl_in`); what it takes follows.
    IoCtl[32] {
        /// The open file.
        0 => handle: u64,
        /// See [`IoCtlFlags`].
        8 => flags: IoCtlFlags,
        /// The command's number.
        12 => command: u32,
        /// The argument: a number, or an address in the caller's memory.
        16 => argument: u64,
        /// Bytes that follow.
        24 => in_size: u32,
        /// Bytes that may be answered.
        28 => out_size: u32,
    }
}

flag_set! {
    /// How an ioctl comes.
    IoCtlFlags: u32 {
        /// From a program of 32 bits.
        COMPAT = 0,
        /// Any memory may be asked for (CUSE only).
        UNRESTRICTED = 1,
        /// Ask again, with other memory (in the answer; CUSE only).
        RETRY = 2,
        /// Its numbers have 32 bits.
        BITS_32 = 3,
        /// On a directory.
        DIRECTORY = 4,
        /// From an x32 program.
        COMPAT_X32 = 5,
    }
}

wire_struct! {
    /// Answers IOCTL (`fuse_ioctl_out`); what it gives follows.
    IoCtlReply[16] {
        /// What ioctl(2) returns.
        0 => result: i32,
        /// See [`IoCtlFlags::RETRY`].
        4 => flags: IoCtlFlags,
        /// Only with [`IoCtlFlags::RETRY`]: ranges to read.
        8 => in_ranges: u32,
        /// Only with [`IoCtlFlags::RETRY`]: ranges to write.
        12 => out_ranges: u32,
    }
}

wire_struct! {
    /// Asks for events (`fuse_poll_in`).
    Poll[24] {
        /// The open file.
        0 => handle: u64,
        /// Names the poll in its notification.
        8 => kernel_handle: u64,
        /// See [`PollFlags`].
        16 => flags: PollFlags,
        /// Events of poll(2) that are waited for.
        20 => events: u32,
    }
}

flag_set! {
    /// How events are asked for.
    PollFlags: u32 {
        /// Notify when there are some.
        SCHEDULE_NOTIFY = 0,
    }
}

wire_struct! {
    /// Answers POLL (`fuse_poll_out`).
    PollReply[8] {
        /// Events of poll(2) that there are.
        0 => events: u32,
    }
}
