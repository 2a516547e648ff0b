//! The thin adapter between the kernel's FUSE requests and [`crate::fs`].
//!
//! Each method takes the request apart, lets the file system do the work, and sends the reply from
//! the thread that has the answer: the thread that read the request where the answer is at hand, a
//! runtime's otherwise. How many requests run at a time is bounded by the kernel's `max_background`
//! for reads and writes of the page cache, and by the number of waiting programs for the rest.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path, sync::Arc};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle as Number, Filesystem,
    FopenFlags, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use millrace_protocol::metadata::{NewNode, OpenMode, XattrMode};
use millrace_types::InodeId;
use tokio_util::task::TaskTracker;

use crate::{
    fs::{
        FileSystem, attributes::Changes, read::Begun, statfs::STATFS_BLOCK_SIZE,
        xattr::check_offered,
    },
    fuse::{
        answer::{
            GENERATION, NAME_LEN_MAX, SYMLINK_MODE, UNCACHED, attr, caller_of, number, open_flags,
        },
        convert::{errno, file_name, file_type, new_node, permissions, rename_mode, set_time},
    },
};

mod answer;
mod convert;
mod init;

/// Serves one mount.
#[derive(Debug)]
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    root: InodeId,
    names: tokio::runtime::Handle,
    bytes: tokio::runtime::Handle,
    requests: TaskTracker,
}

impl Adapter {
    /// Serves `fs` with the directory `root` as the root of the mount. Work that has to wait runs
    /// on the runtime of the connection that it needs, `names` or `bytes`, and is counted by
    /// `requests`.
    pub(crate) fn new(
        fs: Arc<FileSystem>,
        root: InodeId,
        (names, bytes): (tokio::runtime::Handle, tokio::runtime::Handle),
        requests: TaskTracker,
    ) -> Self {
        Self { fs, root, names, bytes, requests }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        init::negotiate(config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let name = file_name(name);
        self.answer_entry(reply, async move { fs.lookup(caller, parent, name?).await });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, _nlookup: u64) {
        self.fs.forget(self.inode(ino));
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<Number>, reply: ReplyAttr) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let handle = fh.and_then(|number| self.fs.handle(number.0).ok());
        self.answer_attr(reply, async move {
            match handle {
                Some(handle) => fs.attributes_of(caller, &handle).await,
                None => fs.attributes(caller, inode).await,
            }
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        fh: Option<Number>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let changes = Changes {
            mode: mode.map(|mode| permissions(mode, 0)),
            uid,
            gid,
            size,
            accessed: atime.map(set_time),
            modified: mtime.map(set_time),
        };
        let handle = fh.and_then(|number| self.fs.handle(number.0).ok());
        let writing = handle.is_some_and(|handle| handle.mode == OpenMode::Write);
        self.answer_attr(reply, async move {
            fs.change_attributes(caller, inode, changes, writing).await
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        self.run(async move {
            match fs.read_link(caller, inode).await {
                Ok(target) => reply.data(&target),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let (name, node) = (file_name(name), new_node(mode, rdev));
        let mode = permissions(mode, umask);
        self.answer_entry(
            reply,
            async move { fs.make_node(caller, parent, name?, node?, mode).await },
        );
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let (name, mode) = (file_name(name), permissions(mode, umask));
        self.answer_entry(reply, async move {
            fs.make_node(caller, parent, name?, NewNode::Directory, mode).await
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let name = file_name(name);
        self.answer_empty(reply, async move { fs.remove(caller, parent, name?, false).await });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let name = file_name(name);
        self.answer_empty(reply, async move { fs.remove(caller, parent, name?, true).await });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let name = file_name(link_name);
        let node = NewNode::Symlink(target.as_os_str().as_bytes().to_vec());
        self.answer_entry(reply, async move {
            fs.make_node(caller, parent, name?, node, SYMLINK_MODE).await
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (fs, caller) = (Arc::clone(&self.fs), caller_of(req));
        let (parent, newparent) = (self.inode(parent), self.inode(newparent));
        let (name, newname, mode) = (file_name(name), file_name(newname), rename_mode(flags));
        self.answer_empty(reply, async move {
            fs.rename(caller, (parent, name?), (newparent, newname?), mode?).await
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let (parent, name) = (self.inode(newparent), file_name(newname));
        self.answer_entry(reply, async move { fs.link(caller, inode, parent, name?).await });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        self.run(async move {
            match fs.open(caller, inode, flags.0).await {
                Ok(opened) => reply.opened(Number(opened.handle), open_flags(&opened, flags.0)),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(req), self.inode(parent));
        let (name, mode, root) = (file_name(name), permissions(mode, umask), self.root);
        self.run(async move {
            let created = async { fs.create(caller, parent, name?, mode, flags).await };
            match created.await {
                Ok((found, opened)) => reply.created(
                    &UNCACHED,
                    &attr(&found, root),
                    GENERATION,
                    Number(opened.handle),
                    open_flags(&opened, flags),
                ),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Number,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let begun = self.fs.handle(fh.0).and_then(|handle| {
            let begun = self.fs.begin_read(&handle, offset, size)?;
            Ok((handle, begun))
        });
        match begun {
            Ok((_, Begun::Done(bytes))) => reply.data(&bytes),
            Ok((handle, Begun::Waiting(waiting))) => {
                let fs = Arc::clone(&self.fs);
                self.run_on_bytes(async move {
                    match fs.finish_read(&handle, waiting).await {
                        Ok(bytes) => reply.data(&bytes),
                        Err(failure) => reply.error(errno(&failure)),
                    }
                });
            }
            Err(failure) => reply.error(errno(&failure)),
        }
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: Number,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = u32::try_from(data.len()).expect("the kernel sends at most max_write");
        let handle = match self.fs.handle(fh.0) {
            Ok(handle) => handle,
            Err(failure) => return reply.error(errno(&failure)),
        };
        handle.writers.record(req.pid());
        let drop_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if !drop_privileges {
            match self.fs.try_write(&handle, offset, data) {
                Ok(true) => return reply.written(len),
                Ok(false) => {}
                Err(failure) => return reply.error(errno(&failure)),
            }
        }
        let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
        self.run_on_bytes(async move {
            let written = async {
                if drop_privileges {
                    fs.drop_privilege_bits(&handle).await?;
                }
                fs.write(&handle, offset, &data).await
            };
            match written.await {
                Ok(()) => reply.written(len),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn flush(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: Number,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(fh.0));
        match handle {
            Ok(handle) if handle.writers.is_bystander(req.pid()) => {
                fs.flush_aside(handle);
                reply.ok();
            }
            handle => self.answer_empty(reply, async move { fs.flush(&*handle?).await }),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Number,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let fs = Arc::clone(&self.fs);
        self.answer_empty(reply, async move {
            fs.release(fh.0).await;
            Ok(())
        });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: Number, _datasync: bool, reply: ReplyEmpty) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(fh.0));
        self.answer_empty(reply, async move { fs.fsync(&*handle?).await });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.open_directory(caller_of(req), self.inode(ino)) {
            Ok(number) => reply.opened(Number(number), FopenFlags::empty()),
            Err(failure) => reply.error(errno(&failure)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Number,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (fs, root) = (Arc::clone(&self.fs), self.root);
        self.run(async move {
            let listed = fs
                .read_directory(fh.0, offset, |entry| {
                    let (ino, name) = (number(entry.inode, root), OsStr::from_bytes(entry.name));
                    reply.add(ino, entry.offset, file_type(entry.kind), name)
                })
                .await;
            match listed {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Number,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.release_directory(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: Number,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let fs = Arc::clone(&self.fs);
        self.answer_empty(reply, async move { fs.cluster.sync_metadata().await });
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let (fs, inode) = (Arc::clone(&self.fs), self.inode(ino));
        self.run(async move {
            match fs.file_system_use(inode).await {
                Ok(use_) => reply.statfs(
                    use_.blocks,
                    use_.blocks_free,
                    use_.blocks_free,
                    use_.inodes,
                    use_.inodes_free,
                    STATFS_BLOCK_SIZE,
                    NAME_LEN_MAX,
                    STATFS_BLOCK_SIZE,
                ),
                Err(failure) => reply.error(errno(&failure)),
            }
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.answer_empty(
            reply,
            async move { fs.set_xattr(caller, inode, name, value, mode).await },
        );
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if let Err(failure) = check_offered(name.as_bytes()) {
            return reply.error(errno(&failure));
        }
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let name = name.as_bytes().to_vec();
        self.answer_xattr(reply, size, async move { fs.xattr(caller, inode, name).await });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        self.answer_xattr(reply, size, async move { fs.xattr_names(caller, inode).await });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(req), self.inode(ino));
        let name = name.as_bytes().to_vec();
        self.answer_empty(reply, async move { fs.remove_xattr(caller, inode, name).await });
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Only asked without `default_permissions`, which every mount has.
        reply.ok();
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: Number,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(fh.0));
        self.answer_empty(reply, async move { fs.allocate(&*handle?, offset, length, mode).await });
    }

    // The next three are answered so that the kernel does them itself and does not ask again.

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: Number,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: Number,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: Number,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: Number,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
