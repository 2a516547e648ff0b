//! Inodes and names.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    time::{SystemTime, UNIX_EPOCH},
};

use millrace_fuse_server::{
    Errno,
    protocol::{
        attr::{Attr, SetAttr, SetAttrFields},
        header::ROOT_NODE,
        node::RenameFlags,
    },
};

use super::content::Content;

/// A file system's inodes. Inode 1 is the root.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: HashMap<u64, Node>,
    pub(crate) next: u64,
}

/// An inode.
#[derive(Debug)]
pub(crate) struct Node {
    /// Size and blocks are those of the content.
    pub(crate) attr: Attr,
    pub(crate) body: Body,
    pub(crate) xattrs: BTreeMap<OsString, Vec<u8>>,
    /// References that the kernel holds.
    pub(crate) lookups: u64,
}

/// What an inode is.
#[derive(Debug)]
pub(crate) enum Body {
    File(Content),
    Directory(Directory),
    SymLink(OsString),
    /// FIFO, socket or device.
    Special,
}

/// A directory's entries. Each has a place that it keeps, so that a reader who stops and goes on
/// sees each of the others once.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) parent: u64,
    pub(crate) names: BTreeMap<OsString, (u64, u64)>,
    pub(crate) places: BTreeMap<u64, OsString>,
    pub(crate) next_place: u64,
}

impl Directory {
    fn new(parent: u64) -> Self {
        Self { parent, names: BTreeMap::new(), places: BTreeMap::new(), next_place: FIRST_PLACE }
    }

    fn find(&self, name: &OsStr) -> Option<u64> {
        self.names.get(name).map(|(node, _)| *node)
    }

    /// Entries behind a place: place, name, inode.
    pub(crate) fn after(&self, place: u64) -> impl Iterator<Item = (u64, &OsStr, u64)> {
        let places = self.places.range(place.max(FIRST_PLACE - 1) + 1..);
        places.map(|(place, name)| (*place, name.as_os_str(), self.names[name].0))
    }

    fn put(&mut self, name: &OsStr, node: u64) {
        if let Some((old, _)) = self.names.get_mut(name) {
            *old = node;
            return;
        }
        self.names.insert(name.to_owned(), (node, self.next_place));
        self.places.insert(self.next_place, name.to_owned());
        self.next_place += 1;
    }

    fn take(&mut self, name: &OsStr) {
        if let Some((_, place)) = self.names.remove(name) {
            self.places.remove(&place);
        }
    }
}

/// Who makes an inode, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    pub(crate) directory: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Tree {
    pub(crate) fn new(uid: u32, gid: u32) -> Self {
        let mut tree = Self { nodes: HashMap::new(), next: ROOT_NODE };
        let body = Body::Directory(Directory::new(ROOT_NODE));
        let root = tree.add(S_IFDIR | 0o755, uid, gid, 0, body);
        tree.nodes.get_mut(&root).expect("just made").attr.nlink = 2;
        tree
    }

    pub(crate) fn node(&self, node: u64) -> Result<&Node, Errno> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub(crate) fn node_mut(&mut self, node: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn directory(&self, node: u64) -> Result<&Directory, Errno> {
        match &self.node(node)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The entries of a directory that is being changed: its times change too.
    fn change(&mut self, node: u64) -> Result<&mut Directory, Errno> {
        let node = self.node_mut(node)?;
        node.touch();
        match &mut node.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(crate) fn content(&mut self, node: u64) -> Result<&mut Content, Errno> {
        match &mut self.node_mut(node)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// The inode of a name.
    pub(crate) fn find(&self, directory: u64, name: &OsStr) -> Result<u64, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.directory(directory)?.find(name).ok_or(Errno::NOENT)
    }

    /// Takes a reference for the kernel, and gives the attributes.
    pub(crate) fn refer(&mut self, node: u64) -> Result<Attr, Errno> {
        let node = self.node_mut(node)?;
        node.lookups += 1;
        Ok(node.attr())
    }

    /// Gives references back.
    pub(crate) fn forget(&mut self, node: u64, lookups: u64) {
        if let Some(found) = self.nodes.get_mut(&node) {
            found.lookups = found.lookups.saturating_sub(lookups);
        }
        self.drop_if_unused(node);
    }

    fn drop_if_unused(&mut self, node: u64) {
        let unused = |node: &Node| node.attr.nlink == 0 && node.lookups == 0;
        if self.nodes.get(&node).is_some_and(unused) {
            self.nodes.remove(&node);
        }
    }

    fn add(&mut self, mode: u32, uid: u32, gid: u32, rdev: u32, body: Body) -> u64 {
        let ino = self.next;
        self.next += 1;
        let attr = Attr { ino, mode, uid, gid, rdev, blksize: 4096, ..Attr::default() };
        let mut node = Node { attr, body, xattrs: BTreeMap::new(), lookups: 0 };
        node.touch();
        (node.attr.atime, node.attr.atime_nsec) = (node.attr.mtime, node.attr.mtime_nsec);
        self.nodes.insert(ino, node);
        ino
    }

    /// Makes an inode without a name.
    pub(crate) fn make_nameless(
        &mut self,
        maker: Maker,
        mode: u32,
        rdev: u32,
        body: Body,
    ) -> Result<u64, Errno> {
        let parent = self.node(maker.directory)?.attr;
        if parent.nlink == 0 {
            return Err(Errno::NOENT);
        }
        let inherits = parent.mode & S_ISGID != 0;
        let gid = if inherits { parent.gid } else { maker.gid };
        let passed_on = inherits && matches!(body, Body::Directory(_));
        let mode = if passed_on { mode | S_ISGID } else { mode };
        Ok(self.add(mode, maker.uid, gid, rdev, body))
    }

    /// Makes an inode and gives it a name.
    pub(crate) fn make(
        &mut self,
        maker: Maker,
        name: &OsStr,
        mode: u32,
        rdev: u32,
        body: Body,
    ) -> Result<u64, Errno> {
        match self.find(maker.directory, name) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Errno::EXIST),
        }
        let is_directory = matches!(body, Body::Directory(_));
        let node = self.make_nameless(maker, mode, rdev, body)?;
        self.change(maker.directory)?.put(name, node);
        self.node_mut(node)?.attr.nlink = 1 + u32::from(is_directory);
        self.node_mut(maker.directory)?.attr.nlink += u32::from(is_directory);
        Ok(node)
    }

    pub(crate) fn make_directory(
        &mut self,
        maker: Maker,
        name: &OsStr,
        mode: u32,
    ) -> Result<u64, Errno> {
        let body = Body::Directory(Directory::new(maker.directory));
        self.make(maker, name, mode | S_IFDIR, 0, body)
    }

    pub(crate) fn link(&mut self, node: u64, directory: u64, name: &OsStr) -> Result<(), Errno> {
        match self.find(directory, name) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Errno::EXIST),
        }
        self.change(directory)?.put(name, node);
        let linked = self.node_mut(node)?;
        linked.attr.nlink += 1;
        linked.touch_attributes();
        Ok(())
    }

    /// Removes a name, which must be a directory's or must not.
    pub(crate) fn remove(
        &mut self,
        directory: u64,
        name: &OsStr,
        of_directory: bool,
    ) -> Result<(), Errno> {
        let node = self.find(directory, name)?;
        match &self.node(node)?.body {
            Body::Directory(_) if !of_directory => return Err(Errno::ISDIR),
            Body::Directory(found) if !found.names.is_empty() => return Err(Errno::NOTEMPTY),
            Body::Directory(_) => {}
            _ if of_directory => return Err(Errno::NOTDIR),
            _ => {}
        }
        self.change(directory)?.take(name);
        self.unlink(node, directory)
    }

    /// An inode has lost its name in `directory`.
    fn unlink(&mut self, node: u64, directory: u64) -> Result<(), Errno> {
        let removed = self.node_mut(node)?;
        removed.touch_attributes();
        if matches!(removed.body, Body::Directory(_)) {
            removed.attr.nlink = 0;
            self.node_mut(directory)?.attr.nlink -= 1;
        } else {
            removed.attr.nlink -= 1;
        }
        self.drop_if_unused(node);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        (from, name): (u64, &OsStr),
        (to, new_name): (u64, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let node = self.find(from, name)?;
        let target = match self.find(to, new_name) {
            Ok(target) => Some(target),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        match (flags, target) {
            (RenameFlags::EMPTY, None) | (RenameFlags::NO_REPLACE, None) => {}
            (RenameFlags::NO_REPLACE, Some(_)) => return Err(Errno::EXIST),
            (RenameFlags::EXCHANGE, None) => return Err(Errno::NOENT),
            (RenameFlags::EXCHANGE, Some(target)) => {
                self.change(from)?.put(name, target);
                self.change(to)?.put(new_name, node);
                self.moved(target, to, from)?;
                return self.moved(node, from, to);
            }
            (RenameFlags::EMPTY, Some(target)) if target == node => return Ok(()),
            (RenameFlags::EMPTY, Some(target)) => {
                let of_directory = matches!(self.node(node)?.body, Body::Directory(_));
                debug_assert_ne!(target, node);
                self.remove(to, new_name, of_directory)?;
            }
            _ => return Err(Errno::INVAL),
        }
        self.change(from)?.take(name);
        self.change(to)?.put(new_name, node);
        self.moved(node, from, to)
    }

    /// An inode has come from a directory to another, or to another name.
    fn moved(&mut self, node: u64, from: u64, to: u64) -> Result<(), Errno> {
        let found = self.node_mut(node)?;
        found.touch_attributes();
        if let Body::Directory(directory) = &mut found.body
            && from != to
        {
            directory.parent = to;
            self.node_mut(from)?.attr.nlink -= 1;
            self.node_mut(to)?.attr.nlink += 1;
        }
        Ok(())
    }

    pub(crate) fn set_attributes(&mut self, node: u64, set: &SetAttr) -> Result<Attr, Errno> {
        let has = |field| set.valid.contains(field);
        if has(SetAttrFields::SIZE) {
            self.content(node)?.truncate(set.size);
        }
        let node = self.node_mut(node)?;
        if has(SetAttrFields::SIZE) {
            node.touch();
        }
        if has(SetAttrFields::UID) || has(SetAttrFields::GID) || has(SetAttrFields::KILL_SUIDGID) {
            node.kill_privileges();
        }
        if has(SetAttrFields::MODE) {
            node.attr.mode = node.attr.mode & S_IFMT | set.mode & !S_IFMT;
        }
        if has(SetAttrFields::UID) {
            node.attr.uid = set.uid;
        }
        if has(SetAttrFields::GID) {
            node.attr.gid = set.gid;
        }
        if has(SetAttrFields::ATIME_NOW) {
            (node.attr.atime, node.attr.atime_nsec) = now();
        } else if has(SetAttrFields::ATIME) {
            (node.attr.atime, node.attr.atime_nsec) = (set.atime, set.atime_nsec);
        }
        if has(SetAttrFields::MTIME_NOW) {
            (node.attr.mtime, node.attr.mtime_nsec) = now();
        } else if has(SetAttrFields::MTIME) {
            (node.attr.mtime, node.attr.mtime_nsec) = (set.mtime, set.mtime_nsec);
        }
        node.touch_attributes();
        Ok(node.attr())
    }
}

impl Node {
    pub(crate) fn attr(&self) -> Attr {
        let (size, blocks) = match &self.body {
            Body::File(content) => (content.size(), content.blocks()),
            Body::SymLink(target) => (target.len() as u64, 0),
            Body::Directory(directory) => (directory.names.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr { size, blocks, ..self.attr }
    }

    /// The content changes.
    pub(crate) fn touch(&mut self) {
        (self.attr.mtime, self.attr.mtime_nsec) = now();
        (self.attr.ctime, self.attr.ctime_nsec) = (self.attr.mtime, self.attr.mtime_nsec);
    }

    /// The attributes change.
    pub(crate) fn touch_attributes(&mut self) {
        (self.attr.ctime, self.attr.ctime_nsec) = now();
    }

    /// Takes set-user-id away, and set-group-id where it is not a mark for locking.
    pub(crate) fn kill_privileges(&mut self) {
        if matches!(self.body, Body::Directory(_)) {
            return;
        }
        self.attr.mode &= !S_ISUID;
        if self.attr.mode & S_IXGRP != 0 {
            self.attr.mode &= !S_ISGID;
        }
    }
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
/// Bytes of a name.
pub(crate) const NAME_MAX: usize = 255;
/// Places 1 and 2 are those of `.` and `..`.
const FIRST_PLACE: u64 = 3;
