//! Which file the kernel means.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use millrace_fuse_server::{
    BackingFile, Errno,
    protocol::{
        attr::{Attr, AttrFlags},
        header::ROOT_NODE,
    },
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};

/// A file or directory that the kernel has references of. It keeps its number below for as long as
/// the descriptor is there.
#[derive(Debug)]
pub(crate) struct Node {
    /// Opened as a path: for everything but reading and writing.
    pub(crate) path: OwnedFd,
    pub(crate) identity: Identity,
    /// What stands behind it while somebody has it open: the same for all.
    pub(crate) backing: Mutex<Weak<BackingFile>>,
}

/// Device and inode, below.
pub(crate) type Identity = (u32, u32, u64);

/// All nodes, and all open files.
#[derive(Debug)]
pub(crate) struct Nodes(Mutex<Tables>);

#[derive(Debug)]
struct Tables {
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<Identity, u64>,
    last: u64,
    open: HashMap<u64, Arc<OpenFile>>,
    last_handle: u64,
}

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Kept until the last of those who have it open.
    pub(crate) _backing: Option<Arc<BackingFile>>,
}

impl Nodes {
    pub(crate) fn new(root: &Path) -> Result<Self, Errno> {
        let path = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, NO_MODE)?;
        let root = Node::new(path)?;
        let tables = Tables {
            numbers: HashMap::from([(root.identity, ROOT_NODE)]),
            nodes: HashMap::from([(ROOT_NODE, (Arc::new(root), 1))]),
            last: ROOT_NODE,
            open: HashMap::new(),
            last_handle: 0,
        };
        Ok(Self(Mutex::new(tables)))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node(&self, node: u64) -> Result<Arc<Node>, Errno> {
        self.tables().nodes.get(&node).map(|(node, _)| Arc::clone(node)).ok_or(Errno::STALE)
    }

    /// Finds a name and takes a reference to what it finds: its number and attributes.
    pub(crate) fn find(&self, directory: &Node, name: &OsStr) -> Result<(u64, Attr), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.refer(openat(&directory.path, name, flags, NO_MODE)?)
    }

    /// Takes a reference to a file.
    pub(crate) fn refer(&self, path: OwnedFd) -> Result<(u64, Attr), Errno> {
        let found = Node::new(path)?;
        let attr = found.attr()?;
        let mut tables = self.tables();
        if let Some(number) = tables.numbers.get(&found.identity).copied()
            && let Some((_, lookups)) = tables.nodes.get_mut(&number)
        {
            *lookups += 1;
            return Ok((number, attr));
        }
        tables.last += 1;
        let number = tables.last;
        tables.numbers.insert(found.identity, number);
        tables.nodes.insert(number, (Arc::new(found), 1));
        Ok((number, attr))
    }

    pub(crate) fn forget(&self, node: u64, count: u64) {
        let mut tables = self.tables();
        let Some((found, lookups)) = tables.nodes.get_mut(&node) else { return };
        *lookups = lookups.saturating_sub(count);
        if *lookups == 0 && node != ROOT_NODE {
            let identity = found.identity;
            tables.nodes.remove(&node);
            tables.numbers.remove(&identity);
        }
    }

    /// Keeps an open file and names it.
    pub(crate) fn keep(&self, open: OpenFile) -> u64 {
        let mut tables = self.tables();
        tables.last_handle += 1;
        let handle = tables.last_handle;
        tables.open.insert(handle, Arc::new(open));
        handle
    }

    pub(crate) fn open(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.tables().open.get(&handle).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn release(&self, handle: u64) {
        let released = self.tables().open.remove(&handle);
        // Without the lock: it closes a file.
        drop(released);
    }
}

impl Node {
    fn new(path: OwnedFd) -> Result<Self, Errno> {
        let found = statx(&path, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let identity = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        Ok(Self { path, identity, backing: Mutex::default() })
    }

    pub(crate) fn attr(&self) -> Result<Attr, Errno> {
        Self::attr_of(&self.path)
    }

    pub(crate) fn attr_of(path: &OwnedFd) -> Result<Attr, Errno> {
        let found = statx(path, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(attr(&found))
    }

    /// A name of it, for calls that need one.
    pub(crate) fn name(&self) -> String {
        Self::name_of(&self.path)
    }

    pub(crate) fn name_of(path: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", path.as_raw_fd())
    }

    pub(crate) fn open(&self, flags: OFlags) -> Result<File, Errno> {
        let flags = flags.difference(OFlags::NOFOLLOW) | OFlags::CLOEXEC;
        Ok(openat(CWD, self.name().as_str(), flags, NO_MODE)?.into())
    }
}

fn attr(found: &Statx) -> Attr {
    Attr {
        ino: found.stx_ino,
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: found.stx_atime.tv_sec,
        mtime: found.stx_mtime.tv_sec,
        ctime: found.stx_ctime.tv_sec,
        atime_nsec: found.stx_atime.tv_nsec,
        mtime_nsec: found.stx_mtime.tv_nsec,
        ctime_nsec: found.stx_ctime.tv_nsec,
        mode: found.stx_mode.into(),
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: device_number(found.stx_rdev_major, found.stx_rdev_minor),
        blksize: found.stx_blksize,
        flags: AttrFlags::EMPTY,
    }
}

/// As the kernel encodes a device in 32 bits.
pub(crate) fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xFF | major << 8 | (minor & !0xFF) << 12
}

/// Major and minor of such a number.
pub(crate) fn device_parts(number: u32) -> (u32, u32) {
    ((number & 0xF_FF00) >> 8, number & 0xFF | number >> 12 & 0xF_FF00)
}

const NO_MODE: Mode = Mode::empty();
