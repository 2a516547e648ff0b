//! INIT: what is asked of the kernel, and what comes of it. No I/O.

use std::time::Duration;

use super::Channel;
use crate::protocol::{
    init::{Init, InitFlags, InitReply, MAJOR, NEWEST_MINOR, OLDEST_MINOR},
    operation::Layout,
};

/// What a file system would like. What the kernel does not offer is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// See [`InitFlags`]: each changes what the file system is asked. At first
    /// [`Self::HARMLESS`].
    pub flags: InitFlags,
    /// Bytes of one request at most: of a WRITE, and of a READ. More than 1 MiB needs kernel 6.13
    /// and `fs.fuse.max_pages_limit`. At first 1 MiB. Each reading thread has a buffer of that
    /// size.
    pub max_write: u32,
    /// Bytes that the kernel reads ahead at most. It does not go beyond its own wish, 128 KiB: see
    /// [`Mountpoint::raise_read_ahead`](super::Mountpoint::raise_read_ahead).
    pub max_readahead: u32,
    /// Requests in flight that nobody waits for: read-ahead, write-back, asynchronous direct I/O.
    /// At first 256, which is what an unprivileged server gets.
    pub max_background: u16,
    /// Granularity of times. At first 1 ns.
    pub time_granularity: Duration,
    /// How deep file systems may be stacked on backing files, with `PASSTHROUGH`: 1 or 2.
    pub max_stack_depth: u32,
    /// Seconds after which an unanswered request ends the connection, with `REQUEST_TIMEOUT`
    /// (7.43).
    pub request_timeout: u16,
}

impl Wishes {
    /// Flags that no file system has to do anything for.
    pub const HARMLESS: InitFlags = InitFlags::ASYNC_READ
        .with(InitFlags::BIG_WRITES)
        .with(InitFlags::ASYNC_DIO)
        .with(InitFlags::PARALLEL_DIROPS)
        .with(InitFlags::ABORT_ERROR)
        .with(InitFlags::AUTO_INVAL_DATA)
        .with(InitFlags::HAS_EXPIRE_ONLY)
        .with(InitFlags::DIRECT_IO_ALLOW_MMAP)
        .with(InitFlags::HAS_RESEND);

    /// What belongs to the protocol itself, and is always taken.
    const ALWAYS: InitFlags =
        InitFlags::INIT_EXT.with(InitFlags::MAX_PAGES).with(InitFlags::SETXATTR_EXT);

    /// What needs something that this crate does not do, and is never taken.
    const NEVER: InitFlags = InitFlags::FILE_OPS
        .with(InitFlags::SPLICE_READ)
        .with(InitFlags::SPLICE_WRITE)
        .with(InitFlags::SPLICE_MOVE)
        .with(InitFlags::MAP_ALIGNMENT)
        .with(InitFlags::INIT_RESERVED)
        .with(InitFlags::HAS_INODE_DAX)
        // Decided by the session's channel.
        .with(InitFlags::OVER_IO_URING);

    /// The same with more flags.
    #[must_use]
    pub fn with(mut self, flags: InitFlags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            flags: Self::HARMLESS,
            max_write: 1024 * 1024,
            max_readahead: 128 * 1024,
            max_background: 256,
            time_granularity: Duration::from_nanos(1),
            max_stack_depth: 1,
            request_timeout: 0,
        }
    }
}

/// What kernel and server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// The minor version that both speak.
    pub minor: u32,
    /// What both can do.
    pub flags: InitFlags,
    /// What the kernel offered.
    pub offered: InitFlags,
    /// Bytes of one request at most.
    pub max_write: u32,
    /// Pages of one request at most.
    pub max_pages: u16,
    /// Bytes that the kernel reads ahead at most, as far as INIT decides it.
    pub max_readahead: u32,
    /// Requests in flight that nobody waits for.
    pub max_background: u16,
}

impl Terms {
    /// How requests are laid out on these terms.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout { long_setxattr: self.flags.contains(InitFlags::SETXATTR_EXT) }
    }

    /// How requests come: over io_uring, or through the device.
    #[must_use]
    pub fn channel(&self) -> Channel {
        let over_ring = self.flags.contains(InitFlags::OVER_IO_URING);
        if over_ring { Channel::Uring } else { Channel::Device }
    }

    /// Bytes that a buffer needs for any request.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let data = usize::try_from(self.max_write).unwrap_or(usize::MAX / 2);
        // A SETXATTR has up to 64 KiB, and all others are shorter than a WRITE.
        data.max(LONGEST_WITHOUT_DATA) + HEADERS_MAX
    }
}

/// What INIT is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Negotiated {
    /// These are the terms.
    Agreed(InitReply, Terms),
    /// The kernel speaks a newer major version, and sends another INIT after this answer.
    AskAgain(InitReply),
    /// The kernel is older than what is understood here.
    TooOld,
}

/// What the machine allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// `fs.fuse.max_pages_limit`, or what a kernel without it has built in.
    pub(super) max_pages: u16,
    /// Bytes of a page.
    pub(super) page: u32,
    /// Whether requests may come over io_uring.
    pub(super) ring: bool,
}

/// Decides what INIT is answered.
pub(super) fn negotiate(init: &Init, wishes: &Wishes, limits: Limits) -> Negotiated {
    let versions = InitReply { major: MAJOR, minor: NEWEST_MINOR, ..InitReply::default() };
    if init.major > MAJOR {
        return Negotiated::AskAgain(versions);
    }
    if init.major < MAJOR || init.minor < OLDEST_MINOR {
        return Negotiated::TooOld;
    }
    let offered = init.offered();
    let ring = if limits.ring { InitFlags::OVER_IO_URING } else { InitFlags::EMPTY };
    let wished = wishes.flags.with(Wishes::ALWAYS).without(Wishes::NEVER).with(ring);
    let flags = wished.and(offered);
    // The kernel takes one of them only.
    let cached = flags.contains(InitFlags::WRITEBACK_CACHE);
    let flags = if cached { flags.without(InitFlags::PASSTHROUGH) } else { flags };
    let most_pages =
        if flags.contains(InitFlags::MAX_PAGES) { limits.max_pages } else { PAGES_BY_DEFAULT };
    let wished_pages = wishes.max_write.div_ceil(limits.page);
    let max_pages = u16::try_from(wished_pages).unwrap_or(u16::MAX).clamp(1, most_pages.max(1));
    let max_write = (u32::from(max_pages) * limits.page).min(wishes.max_write.max(limits.page));
    let max_readahead = wishes.max_readahead.min(init.max_readahead);
    let terms = Terms {
        minor: init.minor.min(NEWEST_MINOR),
        flags,
        offered,
        max_write,
        max_pages,
        max_readahead,
        max_background: wishes.max_background,
    };
    let passthrough = flags.contains(InitFlags::PASSTHROUGH);
    let timed = flags.contains(InitFlags::REQUEST_TIMEOUT);
    let reply = InitReply {
        max_readahead,
        max_background: wishes.max_background,
        congestion_threshold: wishes.max_background / 4 * 3,
        max_write,
        time_gran: wishes.time_granularity.subsec_nanos().max(1),
        max_pages,
        max_stack_depth: if passthrough { wishes.max_stack_depth.clamp(1, 2) } else { 0 },
        request_timeout: if timed { wishes.request_timeout } else { 0 },
        ..versions
    };
    Negotiated::Agreed(reply.with_flags(flags), terms)
}

/// Pages of a request where `MAX_PAGES` is not agreed on.
const PAGES_BY_DEFAULT: u16 = 32;
/// The longest request that is no WRITE: an extended attribute, or two names of 4 KiB.
const LONGEST_WITHOUT_DATA: usize = 64 * 1024;
/// Headers in front of the data, names and extensions.
const HEADERS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_pages: 256, page: 4096, ring: false };

    fn offer(flags: InitFlags) -> Init {
        let reply = InitReply::default().with_flags(flags.with(InitFlags::INIT_EXT));
        let (flags, flags2) = (reply.flags, reply.flags2);
        Init { major: 7, minor: 45, max_readahead: 131_072, flags, flags2 }
    }

    fn agreed(init: &Init, wishes: &Wishes, limits: Limits) -> (InitReply, Terms) {
        match negotiate(init, wishes, limits) {
            Negotiated::Agreed(reply, terms) => (reply, terms),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_offered_is_not_taken_and_what_is_not_wished_neither() {
        let wishes = Wishes::default().with(InitFlags::POSIX_LOCKS | InitFlags::OVER_IO_URING);
        let all = InitFlags(u64::MAX);
        let (reply, terms) = agreed(&offer(all), &wishes, LIMITS);
        assert!(terms.flags.contains(InitFlags::POSIX_LOCKS | InitFlags::INIT_EXT));
        assert!(!terms.flags.contains(InitFlags::OVER_IO_URING));
        assert!(!terms.flags.contains(InitFlags::WRITEBACK_CACHE));
        assert_eq!(reply.with_flags(terms.flags), reply);
        let (_, terms) = agreed(&offer(all.without(InitFlags::POSIX_LOCKS)), &wishes, LIMITS);
        assert!(!terms.flags.contains(InitFlags::POSIX_LOCKS));
    }

    #[test]
    fn the_ring_is_taken_where_it_is_offered_and_allowed() {
        let wishes = Wishes::default();
        let (allowed, all) = (Limits { ring: true, ..LIMITS }, InitFlags(u64::MAX));
        let (reply, terms) = agreed(&offer(all), &wishes, allowed);
        assert_eq!(terms.channel(), Channel::Uring);
        assert_eq!(reply.flags2 & 1 << 9, 1 << 9);
        let (reply, terms) = agreed(&offer(all), &wishes, LIMITS);
        assert_eq!((terms.channel(), reply.flags2 & 1 << 9), (Channel::Device, 0));
        let offered = offer(all.without(InitFlags::OVER_IO_URING));
        let (reply, terms) = agreed(&offered, &wishes, allowed);
        assert_eq!((terms.channel(), reply.flags2 & 1 << 9), (Channel::Device, 0));
    }

    #[test]
    fn requests_are_as_large_as_wished_and_allowed() {
        let all = offer(InitFlags(u64::MAX));
        let size = |init: &Init, max_write, max_pages| {
            let wishes = Wishes { max_write, ..Wishes::default() };
            let (reply, terms) = agreed(init, &wishes, Limits { max_pages, ..LIMITS });
            assert_eq!((reply.max_write, reply.max_pages), (terms.max_write, terms.max_pages));
            (terms.max_write, terms.max_pages)
        };
        assert_eq!(size(&all, 1 << 20, 256), (1 << 20, 256));
        assert_eq!(size(&all, 4 << 20, 256), (1 << 20, 256));
        assert_eq!(size(&all, 4 << 20, 1024), (4 << 20, 1024));
        assert_eq!(size(&all, 0, 256), (4096, 1));
        assert_eq!(size(&all, u32::MAX, u16::MAX), (65_535 * 4096, 65_535));
        let few = offer(InitFlags::ASYNC_READ);
        assert_eq!(size(&few, 1 << 20, 256), (128 * 1024, 32));
    }

    #[test]
    fn files_are_passed_through_unless_their_writes_stay_in_the_cache() {
        let all = offer(InitFlags(u64::MAX));
        let wishes = Wishes::default().with(InitFlags::PASSTHROUGH);
        let (reply, terms) = agreed(&all, &wishes, LIMITS);
        assert!(terms.flags.contains(InitFlags::PASSTHROUGH));
        assert_eq!(reply.max_stack_depth, 1);
        let (reply, terms) = agreed(&all, &wishes.with(InitFlags::WRITEBACK_CACHE), LIMITS);
        assert!(!terms.flags.contains(InitFlags::PASSTHROUGH));
        assert_eq!(reply.max_stack_depth, 0);
    }

    #[test]
    fn versions_that_are_not_spoken_are_told_so() {
        let wishes = Wishes::default();
        let newer = Init { major: 8, ..offer(InitFlags::EMPTY) };
        let Negotiated::AskAgain(reply) = negotiate(&newer, &wishes, LIMITS) else { panic!() };
        assert_eq!((reply.major, reply.minor), (7, 45));
        let older = Init { minor: 30, ..offer(InitFlags::EMPTY) };
        assert_eq!(negotiate(&older, &wishes, LIMITS), Negotiated::TooOld);
        let future = Init { minor: 99, ..offer(InitFlags::EMPTY) };
        assert_eq!(agreed(&future, &wishes, LIMITS).1.minor, 45);
    }
}
