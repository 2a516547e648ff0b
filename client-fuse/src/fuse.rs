//! The thin adapter between the kernel's FUSE requests and [`crate::fs`].
//!
//! Each method takes the request apart, lets the file system do the work, and sends the reply from
//! the thread that has the answer: the thread that read the request where the answer is at hand, a
//! runtime's otherwise. How many requests run at a time is bounded by the kernel's `max_background`
//! for reads and writes of the page cache, and by the number of waiting programs for the rest.
//!
//! What is not here is answered ENOSYS: the kernel then does it itself, or says so to the program,
//! and does not ask again.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, sync::Arc};

use millrace_fuse_server::{
    Call, Data, Done, Errno, Payload, Reply, XAttr,
    protocol::{
        attr::{AttrReply, EntryReply, GetAttr, GetAttrFlags, SetAttr, SetAttrFields},
        data::{
            CopyFileRange, CopyFileRangeReply, FAllocate, LSeek, LSeekReply, Read, Write,
            WriteFlags, WriteReply,
        },
        directory::DirectoryPage,
        lock::{FileLock, Lock, LockReply},
        node::{Link, MkDir, MkNod, Rename},
        open::{Create, CreateReply, FSync, Flush, Open, OpenInFlags, OpenReply, Release},
        statfs::StatFsReply,
        statx::{StatX, StatXReply},
        xattr::{GetXAttr, SetXAttr},
    },
};
use millrace_protocol::metadata::{Attributes, NewNode, OpenMode, XattrMode};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    fs::{
        FileSystem, copy::Spot, handle::Occasion, kernel_names::Shown, locks::Interest,
        names::NewMode, open::Caching, read::Begun, seek::Wanted, statfs::STATFS_BLOCK_SIZE,
    },
    fuse::{
        answer::{
            NAME_LEN_MAX, Owed, SYMLINK_MODE, attr_shown, caller_of, entry_shown, number,
            open_reply, send_body,
        },
        convert::{
            changes, conflicting, errno, file_lock, file_name, file_statx, new_mode, new_node,
            rename_mode,
        },
        places::Places,
    },
};

mod answer;
mod changes;
mod convert;
mod create;
mod flush;
pub(crate) mod init;
mod interrupt;
mod listing;
pub(crate) mod notices;
pub(crate) mod places;

/// Serves one mount.
#[derive(Debug)]
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    root: InodeId,
    names: tokio::runtime::Handle,
    bytes: tokio::runtime::Handle,
    requests: TaskTracker,
    places: Arc<Places>,
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
        Self { fs, root, names, bytes, requests, places: Arc::default() }
    }

    /// Where the kernel has the mount's directories.
    pub(crate) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }
}

impl millrace_fuse_server::FileSystem for Adapter {
    fn lookup(&self, call: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let name = match file_name(name) {
            Ok(name) => name,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        let places = Arc::clone(&self.places);
        match fs.lookup_kept(&caller, parent, &name) {
            Some(Ok(found)) if places.take(&found.attributes, parent, &name) => {
                return reply.send(&entry_shown(&found, self.root));
            }
            Some(Err(failure)) => return reply.fail(errno(&failure)),
            _ => {}
        }
        let work = async move {
            let found = fs.lookup(caller.clone(), parent, name.clone()).await?;
            places.settle(&found, parent, &name).await;
            Ok(match fs.lookup_kept(&caller, parent, &name) {
                Some(Ok(shown)) if shown.attributes.inode == found.inode => shown,
                _ => Shown::once(found),
            })
        };
        self.answer_entry(Owed::interruptible(&call, reply), work);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.places.forget(self.inode(node), lookups);
        self.fs.forget(self.inode(node));
    }

    fn getattr(&self, call: Call<'_>, getattr: GetAttr, reply: Reply<AttrReply>) {
        if let Some(found) = self.attributes_kept(&call, getattr.flags, getattr.handle) {
            return reply.send(&attr_shown(&found, self.root));
        }
        let by_name = !getattr.flags.contains(GetAttrFlags::HANDLE);
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let work = self.attributes(&call, getattr.flags, getattr.handle);
        let work = async move {
            let found = work.await?;
            let shown = by_name.then(|| fs.attributes_kept(&caller, inode)).flatten();
            Ok(shown.unwrap_or_else(|| Shown::once(found)))
        };
        self.answer_attr(Owed::interruptible(&call, reply), work);
    }

    fn statx(&self, call: Call<'_>, statx: StatX, reply: Reply<StatXReply>) {
        let root = self.root;
        let send = move |reply: Reply<StatXReply>, found: Attributes| {
            let attr = file_statx(&found, number(found.inode, root));
            reply.send(&StatXReply { attr, ..StatXReply::default() });
        };
        if let Some(found) = self.attributes_kept(&call, statx.flags, statx.handle) {
            return send(reply, found.attributes);
        }
        let work = self.attributes(&call, statx.flags, statx.handle);
        self.run(Owed::interruptible(&call, reply).answer_with(work, send));
    }

    fn setattr(&self, call: Call<'_>, setattr: SetAttr, reply: Reply<AttrReply>) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let by_handle = setattr.valid.contains(SetAttrFields::HANDLE);
        let handle = by_handle.then(|| self.fs.handle(setattr.handle).ok()).flatten();
        let writing = handle.is_some_and(|handle| handle.mode == OpenMode::Write);
        let drop_privileges = setattr.valid.contains(SetAttrFields::KILL_SUIDGID)
            && setattr.valid.contains(SetAttrFields::SIZE);
        let work = async move {
            if drop_privileges {
                fs.drop_privilege_bits(inode).await?;
            }
            let changed = fs.change_attributes(caller, inode, changes(&setattr), writing).await;
            changed.map(Shown::once)
        };
        let owed = match setattr.valid.contains(SetAttrFields::SIZE) {
            true => Owed::writing(&call, reply, &self.fs.orphans, inode),
            false => Owed::new(&call, reply),
        };
        self.answer_attr(owed, work);
    }

    fn readlink(&self, call: Call<'_>, reply: Reply<Data>) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let work = async move { fs.read_link(caller, inode).await };
        let owed = Owed::interruptible(&call, reply);
        self.run(owed.answer_with(work, |reply, target| reply.send(&target)));
    }

    fn mknod(&self, call: Call<'_>, mknod: MkNod, name: &OsStr, reply: Reply<EntryReply>) {
        let node = new_node(mknod.mode, mknod.rdev);
        self.make_node(&call, name, node, self.new_mode(mknod.mode, mknod.umask), reply);
    }

    fn mkdir(&self, call: Call<'_>, mkdir: MkDir, name: &OsStr, reply: Reply<EntryReply>) {
        let mode = self.new_mode(mkdir.mode, mkdir.umask);
        self.make_node(&call, name, Ok(NewNode::Directory), mode, reply);
    }

    fn symlink(&self, call: Call<'_>, name: &OsStr, target: &OsStr, reply: Reply<EntryReply>) {
        let node = NewNode::Symlink(target.as_bytes().to_vec());
        let mode = NewMode { mode: SYMLINK_MODE, umask: 0 };
        self.make_node(&call, name, Ok(node), mode, reply);
    }

    fn unlink(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        self.remove(&call, name, false, reply);
    }

    fn rmdir(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        self.remove(&call, name, true, reply);
    }

    fn rename(
        &self,
        call: Call<'_>,
        rename: Rename,
        name: &OsStr,
        new_name: &OsStr,
        reply: Reply<Done>,
    ) {
        let (fs, caller) = (Arc::clone(&self.fs), caller_of(&call));
        let (from, to) = (self.inode(call.node), self.inode(rename.new_directory));
        let (name, new_name) = (file_name(name), file_name(new_name));
        let mode = rename_mode(rename.flags);
        let places = Arc::clone(&self.places);
        let work = self.places.change(async move {
            let (from, to, mode) = ((from, name?), (to, new_name?), mode?);
            fs.rename(caller, from.clone(), to.clone(), mode).await?;
            places.handle_rename(from, to, mode);
            Ok(())
        });
        self.answer_done(Owed::new(&call, reply), work);
    }

    fn link(&self, call: Call<'_>, link: Link, name: &OsStr, reply: Reply<EntryReply>) {
        let (fs, caller) = (Arc::clone(&self.fs), caller_of(&call));
        let (inode, parent) = (self.inode(link.node), self.inode(call.node));
        let name = file_name(name);
        let work = async move { fs.link(caller, inode, parent, name?).await.map(Shown::once) };
        let work = self.places.change(work);
        self.answer_entry(Owed::new(&call, reply), work);
    }

    fn open(&self, call: Call<'_>, open: Open, reply: Reply<OpenReply>) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let flags = open.flags.cast_signed();
        let truncates = flags & libc::O_TRUNC != 0;
        let drop_privileges = open.open_flags.contains(OpenInFlags::KILL_SUIDGID);
        let mut kept = None;
        if !drop_privileges {
            kept = fs.open_kept(&caller, inode, flags);
        }
        if let Some(Ok(opened)) = &kept
            && (opened.caching == Caching::Keep || fs.reads.is_empty(inode))
        {
            return reply.send(&open_reply(opened, flags));
        }
        let owed = match truncates {
            true => Owed::writing(&call, reply, &fs.orphans, inode),
            false => Owed::interruptible(&call, reply),
        };
        self.run(async move {
            let work = async {
                if drop_privileges {
                    fs.drop_privilege_bits(inode).await?;
                }
                let opened = match kept {
                    Some(opened) => opened?,
                    None => fs.open(caller, inode, flags).await?,
                };
                // The kernel drops the pages of the file then, and waits for those that are being
                // read, whoever is killed meanwhile.
                if opened.caching != Caching::Keep {
                    fs.reads.earlier(inode).await;
                }
                Ok(opened)
            };
            owed.answer(
                work,
                |reply, opened| reply.send(&open_reply(&opened, flags)),
                async |opened| fs.abandon(opened.handle).await,
            )
            .await;
        });
    }

    fn create(&self, call: Call<'_>, create: Create, name: &OsStr, reply: Reply<CreateReply>) {
        self.create_file(&call, create, name, reply);
    }

    fn tmpfile(&self, call: Call<'_>, create: Create, reply: Reply<CreateReply>) {
        let (fs, caller) = (Arc::clone(&self.fs), caller_of(&call));
        let (directory, mode) = (self.inode(call.node), self.new_mode(create.mode, create.umask));
        let (flags, owed) = (create.flags.cast_signed(), Owed::new(&call, reply));
        let work = async move { fs.create_unnamed(caller, directory, mode, flags).await };
        self.answer_create(owed, work, flags);
    }

    fn read(&self, call: Call<'_>, read: Read, reply: Reply<Data>) {
        let begun = self.fs.handle(read.handle).and_then(|handle| {
            let begun = self.fs.begin_read(&handle, read.offset, read.size)?;
            Ok((handle, begun))
        });
        match begun {
            Ok((_, Begun::Done(bytes))) => send_body(reply, bytes),
            Ok((handle, Begun::Waiting(waiting))) => {
                let (fs, owed) = (Arc::clone(&self.fs), Owed::interruptible(&call, reply));
                let pending = self.fs.reads.begin(handle.file.inode);
                self.run_on_bytes(async move {
                    let work = fs.finish_read(&handle, waiting);
                    owed.answer_with(work, |reply, bytes| {
                        send_body(reply, bytes);
                        drop(pending);
                    })
                    .await;
                });
            }
            Err(failure) => reply.fail(errno(&failure)),
        }
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        let written = WriteReply { size: write.size };
        let handle = match self.fs.handle(write.handle) {
            Ok(handle) => handle,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        handle.writers.record(call.pid);
        let to = convert::place(&write);
        let syncs = convert::syncs(&write);
        let drop_privileges = write.write_flags.contains(WriteFlags::KILL_SUIDGID);
        if !drop_privileges && !syncs {
            match self.fs.try_write(&handle, to, &data) {
                Ok(true) => return reply.send(&written),
                Ok(false) => {}
                Err(failure) => return reply.fail(errno(&failure)),
            }
        }
        let (fs, data) = (Arc::clone(&self.fs), data.into_owned());
        let owed = Owed::writing(&call, reply, &self.fs.orphans, handle.file.inode);
        self.run_on_bytes(async move {
            let work = async {
                if drop_privileges {
                    fs.drop_privilege_bits_of(&handle.file).await?;
                }
                fs.write(&handle, to, &data, syncs).await
            };
            owed.answer_with(work, |reply, ()| reply.send(&written)).await;
        });
    }

    fn flush(&self, call: Call<'_>, flush: Flush, reply: Reply<Done>) {
        self.answer_flush(&call, flush, reply);
    }

    fn release(&self, call: Call<'_>, release: Release, reply: Reply<Done>) {
        let fs = Arc::clone(&self.fs);
        if fs.release_kept(release.handle) || fs.release_settled(release.handle) {
            return reply.done();
        }
        fs.leave_locks_through(release.handle);
        if !fs.orphans.is_empty(self.inode(call.node)) {
            // It may take long, and the kernel has room for so many that are not answered.
            reply.done();
            return self.run(async move { fs.release(release.handle).await });
        }
        let work = async move {
            fs.release(release.handle).await;
            Ok(())
        };
        self.answer_done(Owed::new(&call, reply), work);
    }

    fn fsync(&self, call: Call<'_>, fsync: FSync, reply: Reply<Done>) {
        let handle = match self.fs.handle(fsync.handle) {
            Ok(handle) => handle,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        let (fs, of) = (Arc::clone(&self.fs), Arc::clone(&handle));
        let work = async move { fs.fsync(&of).await };
        self.run(Owed::interruptible(&call, reply).answer_telling(handle, Occasion::Sync, work));
    }

    fn opendir(&self, call: Call<'_>, open: Open, reply: Reply<OpenReply>) {
        let (inode, flags) = (self.inode(call.node), open.flags.cast_signed());
        match self.fs.open_directory(caller_of(&call), inode, flags) {
            Ok(handle) => reply.send(&OpenReply { handle, ..OpenReply::default() }),
            Err(failure) => reply.fail(errno(&failure)),
        }
    }

    fn readdir(&self, call: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        self.list(&call, read, reply, false);
    }

    fn readdirplus(&self, call: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        self.list(&call, read, reply, true);
    }

    fn releasedir(&self, _call: Call<'_>, release: Release, reply: Reply<Done>) {
        self.fs.release_directory(release.handle);
        reply.done();
    }

    fn fsyncdir(&self, call: Call<'_>, _fsync: FSync, reply: Reply<Done>) {
        let (fs, inode) = (Arc::clone(&self.fs), self.inode(call.node));
        let telling = Arc::clone(&fs);
        let work = async move { fs.sync_directory(inode).await };
        let send = move |reply: Reply<Done>, ()| match telling.tell_lost(inode) {
            Ok(()) => reply.done(),
            Err(failure) => reply.fail(errno(&failure)),
        };
        self.run(Owed::interruptible(&call, reply).answer_with(work, send));
    }

    fn statfs(&self, call: Call<'_>, reply: Reply<StatFsReply>) {
        let (fs, inode) = (Arc::clone(&self.fs), self.inode(call.node));
        let work = async move { fs.file_system_use(inode).await };
        self.run(Owed::interruptible(&call, reply).answer_with(work, |reply, found| {
            reply.send(&StatFsReply {
                blocks: found.blocks,
                free: found.blocks_free,
                available: found.blocks_free,
                files: found.inodes,
                files_free: found.inodes_free,
                block_size: STATFS_BLOCK_SIZE,
                name_max: NAME_LEN_MAX,
                fragment_size: STATFS_BLOCK_SIZE,
            });
        }));
    }

    fn setxattr(
        &self,
        call: Call<'_>,
        set: SetXAttr,
        name: &OsStr,
        value: &[u8],
        reply: Reply<Done>,
    ) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let mode = match set.flags.cast_signed() {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let work = async move { fs.set_xattr(caller, inode, name, value, mode).await };
        self.answer_done(Owed::new(&call, reply), work);
    }

    fn getxattr(&self, call: Call<'_>, get: GetXAttr, name: &OsStr, reply: Reply<XAttr>) {
        if let Err(failure) = self.fs.offered.check(name.as_bytes()) {
            return reply.fail(errno(&failure));
        }
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        if fs.lacks_xattr(&caller, inode, name.as_bytes()) {
            return reply.fail(errno(&ErrorKind::NoData.into()));
        }
        let name = name.as_bytes().to_vec();
        let work = async move { fs.xattr(caller, inode, name).await };
        self.answer_xattr(Owed::interruptible(&call, reply), get.size, work);
    }

    fn listxattr(&self, call: Call<'_>, get: GetXAttr, reply: Reply<XAttr>) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        if fs.is_bare(&caller, inode) {
            return reply.send(get.size, &[]);
        }
        let work = async move { fs.xattr_names(caller, inode).await };
        self.answer_xattr(Owed::interruptible(&call, reply), get.size, work);
    }

    fn removexattr(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(&call), self.inode(call.node));
        let name = name.as_bytes().to_vec();
        let work = async move { fs.remove_xattr(caller, inode, name).await };
        self.answer_done(Owed::new(&call, reply), work);
    }

    fn getlk(&self, call: Call<'_>, lock: Lock, reply: Reply<LockReply>) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(lock.handle));
        let asked = file_lock(&lock, self.inode(call.node));
        let work = async move { fs.test_lock(&*handle?, asked?).await };
        self.run(Owed::interruptible(&call, reply).answer_with(work, move |reply, conflict| {
            let none = FileLock { kind: FileLock::UNLOCKED, ..lock.lock };
            reply.send(&LockReply { lock: conflict.map_or(none, conflicting) });
        }));
    }

    fn setlk(&self, call: Call<'_>, lock: Lock, reply: Reply<Done>) {
        self.set_lock(&call, lock, false, Owed::interruptible(&call, reply));
    }

    fn setlkw(&self, call: Call<'_>, lock: Lock, reply: Reply<Done>) {
        self.set_lock(&call, lock, true, Owed::signalled(&call, reply));
    }

    fn fallocate(&self, call: Call<'_>, allocate: FAllocate, reply: Reply<Done>) {
        let (fs, handle) = match self.fs.handle(allocate.handle) {
            Ok(handle) => (Arc::clone(&self.fs), handle),
            Err(failure) => return reply.fail(errno(&failure)),
        };
        handle.writers.record(call.pid);
        let let_go = CancellationToken::new();
        let owed = Owed::writing(&call, reply, &self.fs.orphans, handle.file.inode);
        let owed = owed.telling(let_go.clone());
        let FAllocate { offset, length, mode, .. } = allocate;
        let privileged = call.uid == 0;
        let work = async move {
            if !privileged {
                fs.drop_privilege_bits_of(&handle.file).await?;
            }
            fs.allocate(&handle, offset, length, mode.cast_signed(), &let_go).await
        };
        self.answer_done(owed, work);
    }

    fn lseek(&self, call: Call<'_>, seek: LSeek, reply: Reply<LSeekReply>) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(seek.handle));
        let Some(wanted) = Wanted::from_whence(seek.whence) else {
            return reply.fail(Errno::INVAL);
        };
        let let_go = CancellationToken::new();
        let owed = Owed::interruptible(&call, reply).telling(let_go.clone());
        let work = async move { fs.seek(&*handle?, seek.offset, wanted, &let_go).await };
        self.run_on_bytes(owed.answer_with(work, |reply, found| match found {
            Some(offset) => reply.send(&LSeekReply { offset }),
            None => reply.fail(Errno::NXIO),
        }));
    }

    fn copy_file_range(
        &self,
        call: Call<'_>,
        copy: CopyFileRange,
        reply: Reply<CopyFileRangeReply>,
    ) {
        let fs = Arc::clone(&self.fs);
        let handles = [copy.handle_in, copy.handle_out].map(|number| self.fs.handle(number));
        let ([Ok(source), Ok(target)], 0) = (handles, copy.flags) else {
            return reply.fail(Errno::INVAL);
        };
        target.writers.record(call.pid);
        let privileged = call.uid == 0;
        let let_go = CancellationToken::new();
        let owed = Owed::writing(&call, reply, &self.fs.orphans, target.file.inode);
        let owed = owed.telling(let_go.clone());
        self.run_on_bytes(async move {
            let work = async {
                if !privileged {
                    fs.drop_privilege_bits_of(&target.file).await?;
                }
                let source = Spot { handle: &source, offset: copy.offset_in };
                let target = Spot { handle: &target, offset: copy.offset_out };
                fs.copy(source, target, copy.length, &let_go).await
            };
            Box::pin(owed.answer_with(work, Reply::<CopyFileRangeReply>::send)).await;
        });
    }
}

/// What several requests have in common.
impl Adapter {
    /// The attributes of what `call` is about, where they are at hand.
    fn attributes_kept(&self, call: &Call<'_>, flags: GetAttrFlags, handle: u64) -> Option<Shown> {
        if !flags.contains(GetAttrFlags::HANDLE) {
            return self.fs.attributes_kept(&caller_of(call), self.inode(call.node));
        }
        let handle = self.fs.handle(handle).ok()?;
        self.fs.attributes_kept_of(&caller_of(call), &handle).map(Shown::once)
    }

    /// The attributes of what `call` is about, by its open file if the flag says so.
    fn attributes(
        &self,
        call: &Call<'_>,
        flags: GetAttrFlags,
        handle: u64,
    ) -> impl Future<Output = Result<Attributes, Failure>> + Send + use<> {
        let (fs, caller, inode) = (Arc::clone(&self.fs), caller_of(call), self.inode(call.node));
        let by_handle = flags.contains(GetAttrFlags::HANDLE);
        let handle = by_handle.then(|| self.fs.handle(handle).ok()).flatten();
        async move {
            match handle {
                Some(handle) => fs.attributes_of(caller, &handle).await,
                None => fs.attributes(caller, inode).await,
            }
        }
    }

    fn new_mode(&self, mode: u32, umask: u32) -> NewMode {
        new_mode(mode, umask, self.fs.offered.acl)
    }

    fn set_lock(&self, call: &Call<'_>, lock: Lock, wait: bool, owed: Owed<Done>) {
        let (fs, handle) = (Arc::clone(&self.fs), self.fs.handle(lock.handle));
        let asked = file_lock(&lock, self.inode(call.node));
        let interest = Interest::default();
        let wanted = interest.clone();
        let work = async move { fs.set_lock((lock.handle, handle?), asked?, wait, &wanted).await };
        self.run(owed.answer_lock(interest, work, Reply::<Done>::done));
    }
}
