//! Telling the kernel what has changed behind its back.
//!
//! A notification takes locks that a waiting request may hold: sending one on a thread that has a
//! request to answer, or before answering one that it depends on, can wait for ever. So it is on
//! Linux 6.18: the first three and the epoch were probed, the others follow from its locks.
//!
//! | notification | waits for |
//! |--------------|-----------|
//! | `inval_attributes` | nothing |
//! | `inval_data` | answers to READ, and to WRITE from the page cache, of those pages |
//! | `inval_entry`, `expire_entry`, `delete` | answers to what changes that directory |
//! | `store` | answers to READ of those pages |
//! | `retrieve` | nothing; what it finds comes as a request |
//! | `poll_wakeup`, `increment_epoch`, `resend` | nothing |
//! | `prune` | write-back of those inodes |
//!
//! So: send them from a thread that answers no requests; never make an answer wait for one; where
//! two servers tell each other of changes, acknowledge a change before sending the notification. To
//! have names looked up again without waiting for anything there is
//! [`increment_epoch`](Notifier::increment_epoch).

use std::{ffi::OsStr, ops::Range, os::unix::ffi::OsStrExt as _, sync::Arc};

use rustix::io::Errno;

use crate::{
    connection::Connection,
    protocol::notification::{
        DeletedEntry, InvalEntry, InvalEntryFlags, InvalInode, Notification, PollWakeup, Prune,
        Retrieve, Store,
    },
};

/// Sends notifications; copies send to the same mount. ENOENT says that the kernel does not have
/// what it is told of, which is as good.
#[derive(Clone, Debug)]
pub struct Notifier {
    connection: Arc<Connection>,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// The attributes of `node` are out of date, but not its pages.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have it.
    pub fn inval_attributes(&self, node: u64) -> Result<(), Errno> {
        let body = InvalInode { node, offset: -1, length: 0 };
        self.connection.notify(Notification::InvalInode, &[&body.encode()])
    }

    /// The pages of a range of `node` are out of date, and its attributes. Pages that were written
    /// and not stored yet are written first.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have it; EINVAL when the range ends before it begins, or
    /// lies beyond the largest file.
    pub fn inval_data(&self, node: u64, range: Range<u64>) -> Result<(), Errno> {
        let length = range.end.checked_sub(range.start).ok_or(Errno::INVAL)?;
        if length == 0 {
            return self.inval_attributes(node);
        }
        let offset = i64::try_from(range.start).map_err(|_| Errno::INVAL)?;
        let length = i64::try_from(length).unwrap_or(0);
        let body = InvalInode { node, offset, length };
        self.connection.notify(Notification::InvalInode, &[&body.encode()])
    }

    /// A name is out of date: it is dropped with everything below it that is not in use.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have it.
    pub fn inval_entry(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        self.entry(parent, name, InvalEntryFlags::EMPTY)
    }

    /// A name is to be looked up when it is used again (with `HAS_EXPIRE_ONLY`).
    ///
    /// # Errors
    /// ENOENT when the kernel does not have it.
    pub fn expire_entry(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        self.entry(parent, name, InvalEntryFlags::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &OsStr, flags: InvalEntryFlags) -> Result<(), Errno> {
        let body = InvalEntry { parent, name_len: name_len(name)?, flags };
        let parts = [&body.encode()[..], name.as_bytes(), b"\0"];
        self.connection.notify(Notification::InvalEntry, &parts)
    }

    /// A name of `child` was removed: whoever watches it (inotify) is told.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have it, ENOTEMPTY or EBUSY when it cannot go.
    pub fn delete(&self, parent: u64, child: u64, name: &OsStr) -> Result<(), Errno> {
        let body = DeletedEntry { parent, child, name_len: name_len(name)? };
        let parts = [&body.encode()[..], name.as_bytes(), b"\0"];
        self.connection.notify(Notification::Delete, &parts)
    }

    /// Puts `data` into the page cache, as if it had been read there; the file grows if need be.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have the inode.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let size = u32::try_from(data.len()).map_err(|_| Errno::TOOBIG)?;
        let body = Store { node, offset, size };
        self.connection.notify(Notification::Store, &[&body.encode(), data])
    }

    /// Asks for what the page cache has; it comes to
    /// [`FileSystem::retrieved`](crate::FileSystem::retrieved) with `number`, below 2^61, and may
    /// be less.
    ///
    /// # Errors
    /// ENOENT when the kernel does not have the inode; EINVAL when the number is too large.
    pub fn retrieve(&self, number: u64, node: u64, offset: u64, size: u32) -> Result<(), Errno> {
        let notify_unique = Retrieve::unique(number).ok_or(Errno::INVAL)?;
        let body = Retrieve { notify_unique, node, offset, size };
        self.connection.notify(Notification::Retrieve, &[&body.encode()])
    }

    /// A file that was polled has events.
    ///
    /// # Errors
    /// When there is no mount any more.
    pub fn poll_wakeup(&self, kernel_handle: u64) -> Result<(), Errno> {
        let body = PollWakeup { kernel_handle };
        self.connection.notify(Notification::Poll, &[&body.encode()])
    }

    /// All names are looked up again when they are used (7.44).
    ///
    /// # Errors
    /// EINVAL from a kernel that does not know it.
    pub fn increment_epoch(&self) -> Result<(), Errno> {
        self.connection.notify(Notification::IncEpoch, &[])
    }

    /// Asks for every request again that was read and not answered, with
    /// [`UNIQUE_RESENT`](crate::protocol::header::UNIQUE_RESENT) (with `HAS_RESEND`). For a server
    /// that goes on where another one has stopped. What came over io_uring is not sent again (Linux
    /// 6.18).
    ///
    /// # Errors
    /// EINVAL from a kernel that does not know it.
    pub fn resend(&self) -> Result<(), Errno> {
        self.connection.notify(Notification::Resend, &[])
    }

    /// Drops inodes that nobody uses, so that their references come back (7.45).
    ///
    /// # Errors
    /// EINVAL from a kernel that does not know it.
    pub fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        let count = u32::try_from(nodes.len()).map_err(|_| Errno::TOOBIG)?;
        let list: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
        self.connection.notify(Notification::Prune, &[&Prune { count }.encode(), &list])
    }
}

fn name_len(name: &OsStr) -> Result<u32, Errno> {
    u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)
}
