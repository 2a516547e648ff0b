//! The file system: each operation is done below, and the kernel's own checks are above.

use std::{
    ffi::OsStr,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::Path,
    sync::{Arc, PoisonError},
    time::Duration,
};

use millrace_fuse_server::{
    BackingFile, Call, Data, Done, Errno, FileSystem, Payload, Reply, Terms, XAttr,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr, SetAttr, SetAttrFields},
        data::{
            CopyFileRange, CopyFileRangeReply, FAllocate, LSeek, LSeekReply, Read, Write,
            WriteFlags, WriteReply,
        },
        directory::{DirectoryEntry, DirectoryPage},
        init::InitFlags,
        node::{Link, MkDir, MkNod, Rename},
        open::{
            Create, CreateReply, FSync, FSyncFlags, Flush, Open, OpenInFlags, OpenReply, Release,
        },
        statfs::StatFsReply,
        xattr::{GetXAttr, SetXAttr},
    },
};
use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, makedev,
};

use super::{
    nodes::{Node, Nodes, OpenFile, device_parts},
    syncs::Syncs,
};

/// A directory, and everything below it.
#[derive(Debug)]
pub(crate) struct Passthrough {
    nodes: Nodes,
    /// Whether the kernel reads and writes by itself.
    passes: std::sync::atomic::AtomicBool,
    syncs: Syncs,
}

impl Passthrough {
    /// Serves `source`; each sync takes as long as `sync` at least.
    pub(crate) fn new(source: &Path, sync: Duration) -> Result<Self, Errno> {
        Ok(Self { nodes: Nodes::new(source)?, passes: false.into(), syncs: Syncs::new(sync) })
    }

    fn entry(&self, directory: &Node, name: &OsStr) -> Result<EntryReply, Errno> {
        let (node, attr) = self.nodes.find(directory, name)?;
        Ok(EntryReply::new(node, attr, VALID))
    }

    /// Gives what was made to whoever asked for it. Changing the owner takes bits of the mode away,
    /// which come back.
    fn own(call: &Call<'_>, directory: &Node, made: &OwnedFd, mode: u32) -> Result<(), Errno> {
        let inherits = directory.attr()?.mode & S_ISGID != 0;
        let group = if inherits { None } else { Some(Gid::from_raw(call.gid)) };
        fs::chownat(made, "", Some(Uid::from_raw(call.uid)), group, AtFlags::EMPTY_PATH)?;
        if mode & S_IFMT != S_IFLNK && mode & (S_ISUID | S_ISGID) != 0 {
            let now = Node::attr_of(made)?.mode & S_ISGID | mode & !S_IFMT;
            fs::chmodat(CWD, Node::name_of(made), Mode::from_raw_mode(now), AtFlags::empty())?;
        }
        Ok(())
    }

    /// Makes a name with `make`, and gives it to whoever asked.
    fn make(
        &self,
        call: &Call<'_>,
        name: &OsStr,
        mode: u32,
        make: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<EntryReply, Errno> {
        let directory = self.nodes.node(call.node)?;
        make(&directory.path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(&directory.path, name, flags, Mode::empty())?;
        Self::own(call, &directory, &made, mode)?;
        self.entry(&directory, name)
    }

    /// Answers an open with the file itself where that works.
    fn opened(
        &self,
        node: &Node,
        file: std::fs::File,
        back: impl FnOnce(&std::fs::File) -> Result<BackingFile, Errno>,
    ) -> OpenReply {
        let backing = if self.passes.load(std::sync::atomic::Ordering::Relaxed) {
            Self::backing(node, &file, back)
        } else {
            None
        };
        let handle = self.nodes.keep(OpenFile { file, _backing: backing.clone() });
        match backing {
            Some(backing) => backing.opened(handle),
            None => OpenReply { handle, ..OpenReply::default() },
        }
    }

    /// The backing file of an inode: the same for all that have it open.
    fn backing(
        node: &Node,
        file: &std::fs::File,
        back: impl FnOnce(&std::fs::File) -> Result<BackingFile, Errno>,
    ) -> Option<Arc<BackingFile>> {
        let mut known = node.backing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = known.upgrade() {
            return Some(backing);
        }
        match back(file) {
            Ok(backing) => {
                let backing = Arc::new(backing);
                *known = Arc::downgrade(&backing);
                Some(backing)
            }
            Err(error) => {
                tracing::warn!(%error, "reads and writes are not passed through");
                None
            }
        }
    }

    fn open_file(&self, node: &Node, open: &Open) -> Result<std::fs::File, Errno> {
        let file = node.open(flags_below(open.flags))?;
        if open.open_flags.contains(OpenInFlags::KILL_SUIDGID) {
            kill_privileges(node)?;
        }
        Ok(file)
    }

    fn create_file(
        &self,
        call: &Call<'_>,
        create: &Create,
        name: &OsStr,
        reply: &Reply<CreateReply>,
    ) -> Result<CreateReply, Errno> {
        let directory = self.nodes.node(call.node)?;
        let flags = flags_below(create.flags) | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(create.mode);
        let new = flags | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = match fs::openat(&directory.path, name, new, mode) {
            Ok(file) => {
                Self::own(call, &directory, &file, create.mode)?;
                file
            }
            Err(Errno::EXIST) if create.flags & OFlags::EXCL.bits() == 0 => {
                fs::openat(&directory.path, name, flags, mode)?
            }
            Err(error) => return Err(error),
        };
        let entry = self.entry(&directory, name)?;
        let node = self.nodes.node(entry.node)?;
        let open = self.opened(&node, file.into(), |file| reply.backing_file(file));
        Ok(CreateReply { entry, open })
    }

    fn make_nameless(
        &self,
        call: &Call<'_>,
        create: &Create,
        reply: &Reply<CreateReply>,
    ) -> Result<CreateReply, Errno> {
        let directory = self.nodes.node(call.node)?;
        let flags = flags_below(create.flags) | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(create.mode);
        let file = fs::openat(CWD, directory.name(), flags, mode)?;
        Self::own(call, &directory, &file, create.mode)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = fs::openat(CWD, Node::name_of(&file), flags, Mode::empty())?;
        let (node, attr) = self.nodes.refer(path)?;
        let found = self.nodes.node(node)?;
        let open = self.opened(&found, file.into(), |file| reply.backing_file(file));
        Ok(CreateReply { entry: EntryReply::new(node, attr, VALID), open })
    }

    fn set_attributes(&self, node: u64, set: &SetAttr) -> Result<Attr, Errno> {
        let node = self.nodes.node(node)?;
        let has = |field| set.valid.contains(field);
        if has(SetAttrFields::MODE) {
            let mode = Mode::from_raw_mode(set.mode);
            fs::chmodat(CWD, node.name(), mode, AtFlags::empty())?;
        }
        if has(SetAttrFields::UID) || has(SetAttrFields::GID) {
            let uid = has(SetAttrFields::UID).then(|| Uid::from_raw(set.uid));
            let gid = has(SetAttrFields::GID).then(|| Gid::from_raw(set.gid));
            fs::chownat(&node.path, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if has(SetAttrFields::SIZE) {
            let kept = has(SetAttrFields::HANDLE).then(|| self.nodes.open(set.handle));
            match kept.transpose()? {
                Some(open) => fs::ftruncate(&open.file, set.size)?,
                None => fs::ftruncate(node.open(OFlags::WRONLY)?, set.size)?,
            }
        }
        if has(SetAttrFields::KILL_SUIDGID) {
            kill_privileges(&node)?;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let time = |set_now, set_to, tv_sec, nsec: u32| match (has(set_now), has(set_to)) {
            (true, _) => now,
            (false, true) => Timespec { tv_sec, tv_nsec: nsec.into() },
            _ => omitted,
        };
        let (atime, mtime) = (SetAttrFields::ATIME, SetAttrFields::MTIME);
        let times = Timestamps {
            last_access: time(SetAttrFields::ATIME_NOW, atime, set.atime, set.atime_nsec),
            last_modification: time(SetAttrFields::MTIME_NOW, mtime, set.mtime, set.mtime_nsec),
        };
        if has(atime) || has(mtime) {
            fs::utimensat(&node.path, "", &times, AtFlags::EMPTY_PATH)?;
        }
        node.attr()
    }

    fn list(&self, read: &Read) -> Result<DirectoryPage, Errno> {
        let open = self.nodes.open(read.handle)?;
        fs::seek(&open.file, SeekFrom::Start(read.offset))?;
        let mut page = DirectoryPage::new(read.size);
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&open.file, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let found = DirectoryEntry {
                ino: entry.ino(),
                offset: entry.next_entry_cookie(),
                name_len: 0,
                file_type: entry.file_type().as_raw_mode() >> 12,
            };
            if !page.push(found, OsStr::from_bytes(entry.file_name().to_bytes())) {
                break;
            }
        }
        Ok(page)
    }

    fn write_file(&self, call: &Call<'_>, write: &Write, data: &[u8]) -> Result<u32, Errno> {
        let open = self.nodes.open(write.handle)?;
        open.file.write_all_at(data, write.offset).map_err(errno)?;
        if write.write_flags.contains(WriteFlags::KILL_SUIDGID) {
            kill_privileges(&*self.nodes.node(call.node)?)?;
        }
        Ok(write.size)
    }

    fn read_file(&self, read: &Read, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let open = self.nodes.open(read.handle)?;
        buffer.resize(usize::try_from(read.size).map_err(|_| Errno::INVAL)?, 0);
        let mut filled = 0;
        while filled < buffer.len() {
            let offset = read.offset + filled as u64;
            match open.file.read_at(&mut buffer[filled..], offset).map_err(errno)? {
                0 => break,
                len => filled += len,
            }
        }
        buffer.truncate(filled);
        Ok(())
    }

    fn get_xattr(&self, node: u64, name: &OsStr, size: u32) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.node(node)?;
        let mut value = vec![0; if size == 0 { XATTR_MAX } else { size as usize }];
        let len = fs::getxattr(node.name(), name, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    }

    fn list_xattrs(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.node(node)?;
        let mut names = vec![0; XATTR_MAX];
        let len = fs::listxattr(node.name(), &mut names[..])?;
        names.truncate(len);
        Ok(names)
    }
}

/// Flags of open(2) for the file below: what the kernel has done already is left out, and so is
/// what it does itself.
fn flags_below(flags: u32) -> OFlags {
    let done = OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY | OFlags::APPEND | OFlags::DIRECT;
    OFlags::from_bits_retain(flags).difference(done | OFlags::NOFOLLOW)
}

/// Takes set-user-id away, and set-group-id where it is not a mark for locking.
fn kill_privileges(node: &Node) -> Result<(), Errno> {
    let mode = node.attr()?.mode;
    let marks = if mode & S_IXGRP != 0 { S_ISUID | S_ISGID } else { S_ISUID };
    if mode & marks != 0 {
        let mode = Mode::from_raw_mode(mode & !marks & !S_IFMT);
        fs::chmodat(CWD, node.name(), mode, AtFlags::empty())?;
    }
    Ok(())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl FileSystem for Passthrough {
    fn init(&self, terms: &Terms) {
        let passes = terms.flags.contains(InitFlags::PASSTHROUGH);
        self.passes.store(passes, std::sync::atomic::Ordering::Relaxed);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    fn lookup(&self, call: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        let directory = self.nodes.node(call.node);
        reply.result(directory.and_then(|directory| self.entry(&directory, name)));
    }

    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        let attr = self.nodes.node(call.node).and_then(|node| node.attr());
        reply.result(attr.map(|attr| AttrReply::new(attr, VALID)));
    }

    fn setattr(&self, call: Call<'_>, setattr: SetAttr, reply: Reply<AttrReply>) {
        let attr = self.set_attributes(call.node, &setattr);
        reply.result(attr.map(|attr| AttrReply::new(attr, VALID)));
    }

    fn readlink(&self, call: Call<'_>, reply: Reply<Data>) {
        let node = self.nodes.node(call.node);
        match node.and_then(|node| fs::readlinkat(&node.path, "", Vec::new())) {
            Ok(target) => reply.send(target.as_bytes()),
            Err(error) => reply.fail(error),
        }
    }

    fn symlink(&self, call: Call<'_>, name: &OsStr, target: &OsStr, reply: Reply<EntryReply>) {
        reply.result(
            self.make(&call, name, S_IFLNK, |directory| fs::symlinkat(target, directory, name)),
        );
    }

    fn mknod(&self, call: Call<'_>, mknod: MkNod, name: &OsStr, reply: Reply<EntryReply>) {
        let (major, minor) = device_parts(mknod.rdev);
        let mode = Mode::from_raw_mode(mknod.mode & !S_IFMT);
        let kind = FileType::from_raw_mode(mknod.mode);
        reply.result(self.make(&call, name, mknod.mode, |directory| {
            fs::mknodat(directory, name, kind, mode, makedev(major, minor))
        }));
    }

    fn mkdir(&self, call: Call<'_>, mkdir: MkDir, name: &OsStr, reply: Reply<EntryReply>) {
        let mode = Mode::from_raw_mode(mkdir.mode);
        reply.result(self.make(&call, name, mkdir.mode & !S_IFMT, |directory| {
            fs::mkdirat(directory, name, mode)
        }));
    }

    fn unlink(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        let directory = self.nodes.node(call.node);
        reply.result(directory.and_then(|found| fs::unlinkat(&found.path, name, AtFlags::empty())));
    }

    fn rmdir(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        let directory = self.nodes.node(call.node);
        reply.result(
            directory.and_then(|found| fs::unlinkat(&found.path, name, AtFlags::REMOVEDIR)),
        );
    }

    fn rename(
        &self,
        call: Call<'_>,
        rename: Rename,
        name: &OsStr,
        new_name: &OsStr,
        reply: Reply<Done>,
    ) {
        let flags = RenameFlags::from_bits_retain(rename.flags.0);
        let both = self.nodes.node(call.node).and_then(|from| {
            let to = self.nodes.node(rename.new_directory)?;
            fs::renameat_with(&from.path, name, &to.path, new_name, flags)
        });
        reply.result(both);
    }

    fn link(&self, call: Call<'_>, link: Link, name: &OsStr, reply: Reply<EntryReply>) {
        reply.result(self.nodes.node(link.node).and_then(|node| {
            let directory = self.nodes.node(call.node)?;
            fs::linkat(&node.path, "", &directory.path, name, AtFlags::EMPTY_PATH)?;
            self.entry(&directory, name)
        }));
    }

    fn open(&self, call: Call<'_>, open: Open, reply: Reply<OpenReply>) {
        let opened = self.nodes.node(call.node).and_then(|node| {
            let file = self.open_file(&node, &open)?;
            Ok(self.opened(&node, file, |file| reply.backing_file(file)))
        });
        reply.result(opened);
    }

    fn create(&self, call: Call<'_>, create: Create, name: &OsStr, reply: Reply<CreateReply>) {
        let created = self.create_file(&call, &create, name, &reply);
        reply.result(created);
    }

    fn tmpfile(&self, call: Call<'_>, create: Create, reply: Reply<CreateReply>) {
        let made = self.make_nameless(&call, &create, &reply);
        reply.result(made);
    }

    fn read(&self, _: Call<'_>, read: Read, reply: Reply<Data>) {
        let mut buffer = Vec::new();
        match self.read_file(&read, &mut buffer) {
            Ok(()) => reply.send(&buffer),
            Err(error) => reply.fail(error),
        }
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        let written = self.write_file(&call, &write, &data);
        reply.result(written.map(|size| WriteReply { size }));
    }

    fn statfs(&self, call: Call<'_>, reply: Reply<StatFsReply>) {
        let found = self.nodes.node(call.node).and_then(|node| fs::fstatvfs(&node.path));
        reply.result(found.map(|found| StatFsReply {
            blocks: found.f_blocks,
            free: found.f_bfree,
            available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: u32::try_from(found.f_bsize).unwrap_or(4096),
            name_max: u32::try_from(found.f_namemax).unwrap_or(255),
            fragment_size: u32::try_from(found.f_frsize).unwrap_or(4096),
        }));
    }

    fn release(&self, _: Call<'_>, release: Release, reply: Reply<Done>) {
        self.nodes.release(release.handle);
        reply.done();
    }

    fn flush(&self, _: Call<'_>, _: Flush, reply: Reply<Done>) {
        reply.done();
    }

    fn fsync(&self, _: Call<'_>, fsync: FSync, reply: Reply<Done>) {
        let open = self.nodes.open(fsync.handle);
        reply.result(open.and_then(|open| {
            self.syncs.run(|| match fsync.flags.contains(FSyncFlags::DATA_ONLY) {
                true => fs::fdatasync(&open.file),
                false => fs::fsync(&open.file),
            })
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
        let flags = XattrFlags::from_bits_retain(set.flags);
        let node = self.nodes.node(call.node);
        reply.result(node.and_then(|node| fs::setxattr(node.name(), name, value, flags)));
    }

    fn getxattr(&self, call: Call<'_>, get: GetXAttr, name: &OsStr, reply: Reply<XAttr>) {
        match self.get_xattr(call.node, name, get.size) {
            Ok(value) => reply.send(get.size, &value),
            Err(error) => reply.fail(error),
        }
    }

    fn listxattr(&self, call: Call<'_>, get: GetXAttr, reply: Reply<XAttr>) {
        match self.list_xattrs(call.node) {
            Ok(names) => reply.send(get.size, &names),
            Err(error) => reply.fail(error),
        }
    }

    fn removexattr(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        let node = self.nodes.node(call.node);
        reply.result(node.and_then(|node| fs::removexattr(node.name(), name)));
    }

    fn opendir(&self, call: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.result(self.nodes.node(call.node).and_then(|node| {
            let file = node.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            let handle = self.nodes.keep(OpenFile { file, _backing: None });
            Ok(OpenReply { handle, ..OpenReply::default() })
        }));
    }

    fn readdir(&self, _: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        match self.list(&read) {
            Ok(page) => reply.send(&page),
            Err(error) => reply.fail(error),
        }
    }

    fn releasedir(&self, _: Call<'_>, release: Release, reply: Reply<Done>) {
        self.nodes.release(release.handle);
        reply.done();
    }

    fn fsyncdir(&self, _: Call<'_>, fsync: FSync, reply: Reply<Done>) {
        let open = self.nodes.open(fsync.handle);
        reply.result(open.and_then(|open| self.syncs.run(|| fs::fsync(&open.file))));
    }

    fn fallocate(&self, _: Call<'_>, range: FAllocate, reply: Reply<Done>) {
        let mode = FallocateFlags::from_bits_retain(range.mode);
        reply.result(
            self.nodes
                .open(range.handle)
                .and_then(|open| fs::fallocate(&open.file, mode, range.offset, range.length)),
        );
    }

    fn lseek(&self, _: Call<'_>, lseek: LSeek, reply: Reply<LSeekReply>) {
        let found = self.nodes.open(lseek.handle).and_then(|open| match lseek.whence {
            SEEK_DATA => fs::seek(&open.file, SeekFrom::Data(lseek.offset)),
            SEEK_HOLE => fs::seek(&open.file, SeekFrom::Hole(lseek.offset)),
            _ => Err(Errno::INVAL),
        });
        reply.result(found.map(|offset| LSeekReply { offset }));
    }

    fn copy_file_range(&self, _: Call<'_>, copy: CopyFileRange, reply: Reply<CopyFileRangeReply>) {
        let copied = self.nodes.open(copy.handle_in).and_then(|from| {
            let to = self.nodes.open(copy.handle_out)?;
            let (mut offset_in, mut offset_out) = (copy.offset_in, copy.offset_out);
            let len = usize::try_from(copy.length).unwrap_or(usize::MAX);
            let (offset_in, offset_out) = (Some(&mut offset_in), Some(&mut offset_out));
            fs::copy_file_range(&from.file, offset_in, &to.file, offset_out, len)
        });
        match copied {
            Ok(size) => reply.send(size as u64),
            Err(error) => reply.fail(error),
        }
    }
}

/// Others may change the directory below: what is seen is believed for this long.
const VALID: Duration = Duration::from_secs(1);
/// The kernel's own limit for extended attributes.
const XATTR_MAX: usize = 64 * 1024;
const S_IFMT: u32 = 0o170_000;
const S_IFLNK: u32 = 0o120_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
