//! A file system in memory: what POSIX asks of one, over [`Tree`].

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_fuse_server::{
    Call, Data, Done, Errno, FileSystem, Payload, Reply, XAttr,
    protocol::{
        attr::{AttrReply, EntryReply, GetAttr, SetAttr},
        data::{
            CopyFileRange, CopyFileRangeReply, FAllocate, LSeek, LSeekReply, Read, Write,
            WriteFlags, WriteReply,
        },
        directory::{DirectoryEntry, DirectoryPage, file_type},
        node::{Link, MkDir, MkNod, Rename},
        open::{
            Create, CreateReply, FSync, Flush, Open, OpenFlags, OpenInFlags, OpenReply, Release,
        },
        statfs::StatFsReply,
        xattr::{GetXAttr, SetXAttr},
    },
};

use super::{
    content::Content,
    tree::{Body, Maker, NAME_MAX, S_IFLNK, S_IFMT, S_IFREG, Tree},
};

/// Everything is behind one lock, which no operation holds for long.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) tree: Mutex<Tree>,
}

impl Memory {
    /// An empty file system, whose root belongs to that user.
    pub(crate) fn new(uid: u32, gid: u32) -> Self {
        Self { tree: Mutex::new(Tree::new(uid, gid)) }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of an inode, with a reference.
    fn entry(tree: &mut Tree, node: u64) -> Result<EntryReply, Errno> {
        Ok(EntryReply::new(node, tree.refer(node)?, VALID))
    }

    fn open_file(tree: &mut Tree, node: u64, open: &Open) -> Result<OpenReply, Errno> {
        if open.flags & O_TRUNC != 0 {
            tree.content(node)?.truncate(0);
            let found = tree.node_mut(node)?;
            found.touch();
            if open.open_flags.contains(OpenInFlags::KILL_SUIDGID) {
                found.kill_privileges();
            }
        }
        Ok(OpenReply { flags: OpenFlags::KEEP_CACHE.with(OpenFlags::NOFLUSH), ..DEFAULT_OPEN })
    }

    /// Fills a page from the place `read.offset` on, with `push` for each entry.
    fn list(
        tree: &Tree,
        directory: u64,
        from: u64,
        mut push: impl FnMut(u64, DirectoryEntry, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let found = tree.directory(directory)?;
        let dots = [(1, OsStr::new("."), directory), (2, OsStr::new(".."), found.parent)];
        let dots = dots.into_iter().filter(|(place, ..)| *place > from);
        for (place, name, node) in dots.chain(found.after(from)) {
            let mode = tree.node(node).map_or(0, |node| node.attr.mode);
            let entry = DirectoryEntry {
                ino: node,
                offset: place,
                name_len: 0,
                file_type: file_type(mode),
            };
            if !push(node, entry, name) {
                break;
            }
        }
        Ok(())
    }

    fn copy(&self, from: u64, copy: &CopyFileRange) -> Result<u64, Errno> {
        let mut tree = self.tree();
        let length = copy.length.min(COPIED_MAX);
        let data = tree.content(from)?.read(copy.offset_in, length).concat();
        tree.content(copy.node_out)?.write(copy.offset_out, &data);
        tree.node_mut(copy.node_out)?.touch();
        Ok(data.len() as u64)
    }

    fn allocate(&self, node: u64, fallocate: &FAllocate) -> Result<(), Errno> {
        let mut tree = self.tree();
        let end = fallocate.offset.checked_add(fallocate.length).ok_or(Errno::FBIG)?;
        let content = tree.content(node)?;
        match fallocate.mode {
            0 => content.grow(end),
            // There is nothing to reserve.
            FALLOC_KEEP_SIZE => {}
            mode if mode == FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE => {
                content.clear(fallocate.offset..end);
            }
            FALLOC_ZERO_RANGE => {
                content.clear(fallocate.offset..end);
                content.grow(end);
            }
            mode if mode == FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE => {
                content.clear(fallocate.offset..end);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        tree.node_mut(node)?.touch();
        Ok(())
    }

    /// What WRITE does.
    pub(crate) fn write_bytes(
        &self,
        node: u64,
        write: &Write,
        data: &[u8],
    ) -> Result<WriteReply, Errno> {
        let mut tree = self.tree();
        tree.content(node)?.write(write.offset, data);
        let written = tree.node_mut(node)?;
        written.touch();
        if write.write_flags.contains(WriteFlags::KILL_SUIDGID) {
            written.kill_privileges();
        }
        Ok(WriteReply { size: write.size })
    }

    fn set_xattr(&self, node: u64, flags: u32, name: &OsStr, value: &[u8]) -> Result<(), Errno> {
        if is_foreign(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut tree = self.tree();
        let node = tree.node_mut(node)?;
        match (flags, node.xattrs.contains_key(name)) {
            (XATTR_CREATE, true) => return Err(Errno::EXIST),
            (XATTR_REPLACE, false) => return Err(Errno::NODATA),
            _ => {}
        }
        node.xattrs.insert(name.to_owned(), value.to_vec());
        node.touch_attributes();
        Ok(())
    }
}

fn maker(call: &Call<'_>) -> Maker {
    Maker { directory: call.node, uid: call.uid, gid: call.gid }
}

/// Attributes that the kernel gives a meaning, which they would not have here.
fn is_foreign(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b"system.") || name.starts_with(b"security.")
}

impl FileSystem for Memory {
    fn forget(&self, node: u64, lookups: u64) {
        self.tree().forget(node, lookups);
    }

    fn lookup(&self, call: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        let mut tree = self.tree();
        match tree.find(call.node, name) {
            Ok(node) => reply.result(Self::entry(&mut tree, node)),
            // So that the kernel does not ask again.
            Err(Errno::NOENT) => reply.send(&EntryReply::absent(VALID)),
            Err(error) => reply.fail(error),
        }
    }

    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        let attr = self.tree().node(call.node).map(|node| AttrReply::new(node.attr(), VALID));
        reply.result(attr);
    }

    fn setattr(&self, call: Call<'_>, setattr: SetAttr, reply: Reply<AttrReply>) {
        let attr = self.tree().set_attributes(call.node, &setattr);
        reply.result(attr.map(|attr| AttrReply::new(attr, VALID)));
    }

    fn readlink(&self, call: Call<'_>, reply: Reply<Data>) {
        match self.tree().node(call.node).map(|node| &node.body) {
            Ok(Body::SymLink(target)) => reply.send(target.as_bytes()),
            Ok(_) => reply.fail(Errno::INVAL),
            Err(error) => reply.fail(error),
        }
    }

    fn symlink(&self, call: Call<'_>, name: &OsStr, target: &OsStr, reply: Reply<EntryReply>) {
        let mut tree = self.tree();
        let body = Body::SymLink(target.to_owned());
        let made = tree.make(maker(&call), name, S_IFLNK | 0o777, 0, body);
        reply.result(made.and_then(|node| Self::entry(&mut tree, node)));
    }

    fn mknod(&self, call: Call<'_>, mknod: MkNod, name: &OsStr, reply: Reply<EntryReply>) {
        let mut tree = self.tree();
        let is_file = mknod.mode & S_IFMT == S_IFREG;
        let body = if is_file { Body::File(Content::default()) } else { Body::Special };
        let made = tree.make(maker(&call), name, mknod.mode, mknod.rdev, body);
        reply.result(made.and_then(|node| Self::entry(&mut tree, node)));
    }

    fn mkdir(&self, call: Call<'_>, mkdir: MkDir, name: &OsStr, reply: Reply<EntryReply>) {
        let mut tree = self.tree();
        let made = tree.make_directory(maker(&call), name, mkdir.mode);
        reply.result(made.and_then(|node| Self::entry(&mut tree, node)));
    }

    fn unlink(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        reply.result(self.tree().remove(call.node, name, false));
    }

    fn rmdir(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        reply.result(self.tree().remove(call.node, name, true));
    }

    fn rename(
        &self,
        call: Call<'_>,
        rename: Rename,
        name: &OsStr,
        new_name: &OsStr,
        reply: Reply<Done>,
    ) {
        let (from, to) = ((call.node, name), (rename.new_directory, new_name));
        reply.result(self.tree().rename(from, to, rename.flags));
    }

    fn link(&self, call: Call<'_>, link: Link, name: &OsStr, reply: Reply<EntryReply>) {
        let mut tree = self.tree();
        let linked = tree.link(link.node, call.node, name);
        reply.result(linked.and_then(|()| Self::entry(&mut tree, link.node)));
    }

    fn open(&self, call: Call<'_>, open: Open, reply: Reply<OpenReply>) {
        reply.result(Self::open_file(&mut self.tree(), call.node, &open));
    }

    fn create(&self, call: Call<'_>, create: Create, name: &OsStr, reply: Reply<CreateReply>) {
        let mut tree = self.tree();
        let body = Body::File(Content::default());
        let made = tree.make(maker(&call), name, create.mode, 0, body);
        let entry = made.and_then(|node| Self::entry(&mut tree, node));
        reply.result(entry.map(|entry| CreateReply { entry, open: DEFAULT_OPEN }));
    }

    fn tmpfile(&self, call: Call<'_>, create: Create, reply: Reply<CreateReply>) {
        let mut tree = self.tree();
        let body = Body::File(Content::default());
        let made = tree.make_nameless(maker(&call), create.mode, 0, body);
        let entry = made.and_then(|node| Self::entry(&mut tree, node));
        reply.result(entry.map(|entry| CreateReply { entry, open: DEFAULT_OPEN }));
    }

    fn read(&self, call: Call<'_>, read: Read, reply: Reply<Data>) {
        match self.tree().content(call.node) {
            Ok(content) => reply.send_parts(&content.read(read.offset, u64::from(read.size))),
            Err(error) => reply.fail(error),
        }
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        reply.result(self.write_bytes(call.node, &write, &data));
    }

    fn statfs(&self, _: Call<'_>, reply: Reply<StatFsReply>) {
        reply.send(&StatFsReply {
            blocks: 1 << 24,
            free: 1 << 24,
            available: 1 << 24,
            files: 1 << 20,
            files_free: (1 << 20) - self.tree().len() as u64,
            block_size: 4096,
            name_max: u32::try_from(NAME_MAX).expect("255"),
            fragment_size: 4096,
        });
    }

    fn release(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn flush(&self, _: Call<'_>, _: Flush, reply: Reply<Done>) {
        reply.done();
    }

    fn fsync(&self, _: Call<'_>, _: FSync, reply: Reply<Done>) {
        reply.done();
    }

    fn setxattr(
        &self,
        call: Call<'_>,
        set: SetXAttr,
        name: &OsStr,
        value: &[u8],
        reply: Reply<Done>,
    ) {
        reply.result(self.set_xattr(call.node, set.flags, name, value));
    }

    fn getxattr(&self, call: Call<'_>, get: GetXAttr, name: &OsStr, reply: Reply<XAttr>) {
        if is_foreign(name) {
            return reply.fail(Errno::OPNOTSUPP);
        }
        match self.tree().node(call.node).map(|node| node.xattrs.get(name)) {
            Ok(Some(value)) => reply.send(get.size, value),
            Ok(None) => reply.fail(Errno::NODATA),
            Err(error) => reply.fail(error),
        }
    }

    fn listxattr(&self, call: Call<'_>, get: GetXAttr, reply: Reply<XAttr>) {
        match self.tree().node(call.node) {
            Ok(node) => {
                let names = node.xattrs.keys().flat_map(|name| [name.as_bytes(), b"\0"].concat());
                reply.send(get.size, &names.collect::<Vec<u8>>());
            }
            Err(error) => reply.fail(error),
        }
    }

    fn removexattr(&self, call: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        let mut tree = self.tree();
        reply.result(tree.node_mut(call.node).and_then(|node| {
            node.xattrs.remove(name).ok_or(Errno::NODATA)?;
            node.touch_attributes();
            Ok(())
        }));
    }

    fn opendir(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.send(&DEFAULT_OPEN);
    }

    fn readdir(&self, call: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        let mut page = DirectoryPage::new(read.size);
        let tree = self.tree();
        let push = |_, entry, name: &OsStr| page.push(entry, name);
        match Self::list(&tree, call.node, read.offset, push) {
            Ok(()) => reply.send(&page),
            Err(error) => reply.fail(error),
        }
    }

    fn readdirplus(&self, call: Call<'_>, read: Read, reply: Reply<DirectoryPage>) {
        let mut page = DirectoryPage::new(read.size);
        let mut tree = self.tree();
        let mut referred = Vec::new();
        let listed = Self::list(&tree, call.node, read.offset, |node, entry, name| {
            let attr = tree.node(node).map(|node| node.attr()).unwrap_or_default();
            let pushed = page.push_plus(&EntryReply::new(node, attr, VALID), entry, name);
            if pushed && name != "." && name != ".." {
                referred.push(node);
            }
            pushed
        });
        for node in referred {
            tree.refer(node).expect("it was listed under this lock");
        }
        match listed {
            Ok(()) => reply.send(&page),
            Err(error) => reply.fail(error),
        }
    }

    fn releasedir(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn fallocate(&self, call: Call<'_>, fallocate: FAllocate, reply: Reply<Done>) {
        reply.result(self.allocate(call.node, &fallocate));
    }

    fn lseek(&self, call: Call<'_>, lseek: LSeek, reply: Reply<LSeekReply>) {
        let mut tree = self.tree();
        let found = tree.content(call.node).and_then(|content| {
            let offset = match lseek.whence {
                SEEK_DATA => content.next_data(lseek.offset),
                SEEK_HOLE => content.next_hole(lseek.offset),
                _ => return Err(Errno::INVAL),
            };
            offset.ok_or(Errno::NXIO)
        });
        reply.result(found.map(|offset| LSeekReply { offset }));
    }

    fn copy_file_range(
        &self,
        call: Call<'_>,
        copy: CopyFileRange,
        reply: Reply<CopyFileRangeReply>,
    ) {
        match self.copy(call.node, &copy) {
            Ok(size) => reply.send(size),
            Err(error) => reply.fail(error),
        }
    }
}

/// Nobody else changes anything, so that the kernel may believe what it has seen.
const VALID: Duration = Duration::from_secs(3600);
const DEFAULT_OPEN: OpenReply = OpenReply { handle: 0, flags: OpenFlags::EMPTY, backing: 0 };
/// One copy holds the lock for no longer.
const COPIED_MAX: u64 = 16 * 1024 * 1024;
const O_TRUNC: u32 = 0o1000;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
