//! How answers go back to the kernel, and on which thread work that has to wait runs.

use std::time::Duration;

use fuser::{
    Errno, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
};
use millrace_protocol::{metadata::Attributes, session::Caller};
use millrace_types::{Failure, InodeId};

use crate::{
    caller::caller,
    fs::open::{Caching, Opened},
    fuse::{
        Adapter,
        convert::{errno, file_attr},
    },
};

impl Adapter {
    /// The kernel's number of the root is fixed; the directory that is mounted has its own.
    pub(super) fn inode(&self, ino: INodeNo) -> InodeId {
        if ino == INodeNo::ROOT { self.root } else { InodeId(ino.0) }
    }

    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.requests.spawn_on(work, &self.names);
    }

    pub(super) fn run_on_bytes(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.requests.spawn_on(work, &self.bytes);
    }

    pub(super) fn answer_entry(
        &self,
        reply: ReplyEntry,
        work: impl Future<Output = Result<Attributes, Failure>> + Send + 'static,
    ) {
        let root = self.root;
        self.run(async move {
            match work.await {
                Ok(found) => reply.entry(&UNCACHED, &attr(&found, root), GENERATION),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    pub(super) fn answer_attr(
        &self,
        reply: ReplyAttr,
        work: impl Future<Output = Result<Attributes, Failure>> + Send + 'static,
    ) {
        let root = self.root;
        self.run(async move {
            match work.await {
                Ok(found) => reply.attr(&UNCACHED, &attr(&found, root)),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    pub(super) fn answer_empty(
        &self,
        reply: ReplyEmpty,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.run(async move {
            match work.await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    pub(super) fn answer_xattr(
        &self,
        reply: ReplyXattr,
        size: u32,
        work: impl Future<Output = Result<Vec<u8>, Failure>> + Send + 'static,
    ) {
        self.run(async move {
            match work.await {
                Ok(value) => send_sized(reply, size, &value),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }
}

pub(super) fn caller_of(request: &Request) -> Caller {
    caller(request.uid(), request.gid(), request.pid())
}

pub(super) fn number(inode: InodeId, root: InodeId) -> INodeNo {
    if inode == root { INodeNo::ROOT } else { INodeNo(inode.0) }
}

pub(super) fn attr(attributes: &Attributes, root: InodeId) -> fuser::FileAttr {
    file_attr(attributes, number(attributes.inode, root))
}

pub(super) fn open_flags(opened: &Opened, flags: i32) -> FopenFlags {
    let caching = match opened.caching {
        Caching::Fresh => FopenFlags::empty(),
        Caching::Keep => FopenFlags::FOPEN_KEEP_CACHE,
        Caching::Bypass => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
    };
    // A reader has nothing to flush at close: one request less.
    let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
    if reads { caching | FopenFlags::FOPEN_NOFLUSH } else { caching }
}

/// The kernel asks for the size first (`size` 0), then for the bytes.
pub(super) fn send_sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    if size == 0 {
        reply.size(len);
    } else if len > size {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

/// Names and attributes are asked for again at each use, so that every mount sees what the others
/// did.
pub(super) const UNCACHED: Duration = Duration::ZERO;

/// Inode ids are never used twice, so that one generation serves.
pub(super) const GENERATION: Generation = Generation(0);

/// Symbolic links have no permissions of their own.
pub(super) const SYMLINK_MODE: u16 = 0o777;

/// The longest name, in bytes.
pub(super) const NAME_LEN_MAX: u32 = 255;

const _: () = assert!(NAME_LEN_MAX as usize == millrace_types::name::NAME_LEN_MAX);
