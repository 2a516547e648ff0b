//! A namespace as POSIX has it, in the simplest form that is obviously right: counts are counted,
//! not kept; every operation checks first and changes then.

use std::collections::BTreeMap;

use millrace_protocol::{
    metadata::{
        Close, Commit, Create, CreateUnnamed, FileKind, MakeLink, NewNode, Open, OpenMode, Remove,
        SetAttributes, SetTime,
    },
    session::Caller,
};
use millrace_types::{
    ErrorKind::{
        self, Exists, FileTooLarge, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound,
        NotPermitted, PermissionDenied, Stale,
    },
    FileName, InodeId, SessionId, Timestamp,
};

use super::acl::listed;

/// What an operation answers.
pub(super) type Answer<T> = Result<T, ErrorKind>;

/// Everything there is.
pub(super) struct Model {
    pub(super) nodes: BTreeMap<InodeId, Node>,
    /// Contents whose chunks may go, in the order in which they were given up.
    pub(super) freed: Vec<(InodeId, u32)>,
    pub(super) now: Timestamp,
}

/// A file, directory, symbolic link or special node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) device: u32,
    /// Bytes of a file.
    pub(super) size: u64,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
    pub(super) changed: Timestamp,
    pub(super) born: Timestamp,
    pub(super) target: Option<Vec<u8>>,
    /// Names of a directory in the order of a listing.
    pub(super) names: Vec<(FileName, InodeId)>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) generation: u32,
    pub(super) write_epoch: u32,
    pub(super) sparse: bool,
    pub(super) writers: BTreeMap<SessionId, u32>,
    pub(super) readers: BTreeMap<SessionId, u32>,
    /// Made without a name, and may get one.
    pub(super) nameable: bool,
}

const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;

/// What a program may do; goes when its bytes or its owner change.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// A chunk of 8 MiB for each 32-bit index.
const SIZE_MAX: u64 = 8 << 20 << 32;

impl Model {
    pub(super) fn new(root: Node) -> Self {
        let now = root.born;
        Self { nodes: BTreeMap::from([(InodeId::ROOT, root)]), freed: Vec::new(), now }
    }

    pub(super) fn node(&self, id: InodeId) -> Answer<&Node> {
        self.nodes.get(&id).ok_or(Stale)
    }

    pub(super) fn node_mut(&mut self, id: InodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("it was looked up before")
    }

    pub(super) fn directory(&self, id: InodeId) -> Answer<&Node> {
        let node = self.node(id)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(NotDirectory) }
    }

    pub(super) fn find(&self, directory: InodeId, name: &FileName) -> Option<InodeId> {
        let names = &self.nodes[&directory].names;
        names.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
    }

    /// Every place where the inode has a name.
    pub(super) fn places(&self, id: InodeId) -> usize {
        let all = self.nodes.values().flat_map(|node| &node.names);
        all.filter(|(_, named)| *named == id).count()
    }

    pub(super) fn parent(&self, id: InodeId) -> Option<InodeId> {
        let holds = |node: &Node| node.names.iter().any(|(_, named)| *named == id);
        self.nodes.iter().find(|(_, node)| holds(node)).map(|(parent, _)| *parent)
    }

    pub(super) fn links(&self, id: InodeId) -> u32 {
        let node = &self.nodes[&id];
        let count = match node.kind {
            FileKind::Directory => {
                let is_directory = |id: &InodeId| self.nodes[id].kind == FileKind::Directory;
                2 + node.names.iter().filter(|(_, id)| is_directory(id)).count()
            }
            _ => self.places(id),
        };
        u32::try_from(count).unwrap()
    }

    pub(super) fn size(&self, id: InodeId) -> u64 {
        let node = &self.nodes[&id];
        match node.kind {
            FileKind::Directory => node.names.len() as u64,
            FileKind::Symlink => node.target.as_ref().map_or(0, Vec::len) as u64,
            _ => node.size,
        }
    }

    pub(super) fn may(&self, caller: &Caller, id: InodeId, access: u16) -> Answer<()> {
        let node = self.node(id)?;
        let class = if caller.uid == node.uid {
            node.mode >> 6
        } else if caller.gid == node.gid || caller.groups.contains(&node.gid) {
            node.mode >> 3
        } else {
            node.mode
        };
        let listed = || {
            let mut each = [READ, WRITE, SEARCH].into_iter().filter(|bit| access & bit != 0);
            each.try_fold(true, |all, bit| Some(all & listed(node, caller, bit)?))
        };
        let allowed = match listed() {
            // Root searches every directory; nobody executes anything here.
            _ if caller.uid == 0 => true,
            Some(allowed) if caller.uid != node.uid => allowed,
            _ => class & access == access,
        };
        if allowed { Ok(()) } else { Err(PermissionDenied) }
    }

    pub(super) fn may_read(&self, caller: &Caller, id: InodeId) -> Answer<()> {
        self.may(caller, id, READ)
    }

    pub(super) fn may_write(&self, caller: &Caller, id: InodeId) -> Answer<()> {
        self.may(caller, id, WRITE)
    }

    pub(super) fn may_search(&self, caller: &Caller, id: InodeId) -> Answer<()> {
        self.may(caller, id, SEARCH)
    }

    pub(super) fn may_add(&self, caller: &Caller, directory: InodeId) -> Answer<()> {
        self.directory(directory)?;
        self.may(caller, directory, WRITE | SEARCH)
    }

    pub(super) fn may_take(&self, caller: &Caller, directory: InodeId, id: InodeId) -> Answer<()> {
        self.may_add(caller, directory)?;
        let (directory, node) = (&self.nodes[&directory], &self.nodes[&id]);
        let owner = caller.uid == directory.uid || caller.uid == node.uid || caller.uid == 0;
        if directory.mode & STICKY != 0 && !owner { Err(NotPermitted) } else { Ok(()) }
    }

    pub(super) fn touch(&mut self, directory: InodeId) {
        let now = self.now;
        let node = self.node_mut(directory);
        (node.modified, node.changed) = (now, now);
    }

    pub(super) fn add_name(&mut self, directory: InodeId, name: &FileName, id: InodeId) {
        self.node_mut(directory).names.push((name.clone(), id));
        self.touch(directory);
    }

    pub(super) fn take_name(&mut self, directory: InodeId, name: &FileName) {
        self.node_mut(directory).names.retain(|(known, _)| known != name);
        self.touch(directory);
    }

    pub(super) fn mark_changed(&mut self, id: InodeId) {
        self.node_mut(id).changed = self.now;
    }

    /// An inode goes when nothing names it and nobody has it open.
    pub(super) fn drop_if_unused(&mut self, id: InodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        let open = !node.writers.is_empty() || !node.readers.is_empty();
        if id == InodeId::ROOT || open || self.places(id) > 0 {
            return;
        }
        let node = self.nodes.remove(&id).expect("it was found");
        if node.kind == FileKind::Regular {
            self.freed.push((id, node.generation));
        }
    }

    /// `made` is the id that the server gave to what is new.
    pub(super) fn create(
        &mut self,
        request: &Create,
        umask: u16,
        made: Option<InodeId>,
    ) -> Answer<InodeId> {
        let (caller, parent) = (&request.caller, request.parent);
        self.directory(parent)?;
        self.may_search(caller, parent)?;
        let session = request.operation.session;
        if let Some(id) = self.find(parent, &request.name) {
            if request.exclusive || request.node != NewNode::Regular {
                return Err(Exists);
            }
            match self.nodes[&id].kind {
                FileKind::Directory => return Err(IsDirectory),
                FileKind::Regular if request.open => {
                    self.may_write(caller, id)?;
                    *self.node_mut(id).writers.entry(session).or_default() += 1;
                }
                _ => {}
            }
            return Ok(id);
        }
        self.may_add(caller, parent)?;
        let mut node = self.build(request)?;
        node.inherit(&self.nodes[&parent], umask);
        let id = made.unwrap_or_default();
        let writes = request.open && node.kind == FileKind::Regular;
        self.nodes.insert(id, node);
        self.add_name(parent, &request.name, id);
        if writes {
            self.node_mut(id).writers.insert(session, 1);
        }
        Ok(id)
    }

    /// `made` is the id that the server gave to it.
    pub(super) fn create_unnamed(
        &mut self,
        request: &CreateUnnamed,
        made: Option<InodeId>,
    ) -> Answer<InodeId> {
        self.may_add(&request.caller, request.directory)?;
        let named = Create {
            caller: request.caller.clone(),
            operation: request.operation,
            parent: request.directory,
            name: FileName::parse(b"unused").expect("a name"),
            node: NewNode::Regular,
            mode: request.mode,
            open: true,
            exclusive: true,
        };
        let mut node = self.build(&named)?;
        node.inherit(&self.nodes[&request.directory], request.umask);
        node.nameable = request.nameable;
        node.writers.insert(request.operation.session, 1);
        let id = made.unwrap_or_default();
        self.nodes.insert(id, node);
        Ok(id)
    }

    fn build(&self, request: &Create) -> Answer<Node> {
        let (caller, parent) = (&request.caller, &self.nodes[&request.parent]);
        let (kind, device, target) = match &request.node {
            NewNode::Regular => (FileKind::Regular, 0, None),
            NewNode::Directory => (FileKind::Directory, 0, None),
            NewNode::Symlink(target) if target.is_empty() => return Err(InvalidArgument),
            NewNode::Symlink(target) => (FileKind::Symlink, 0, Some(target.clone())),
            NewNode::Fifo => (FileKind::Fifo, 0, None),
            NewNode::Socket => (FileKind::Socket, 0, None),
            NewNode::CharDevice(device) => (FileKind::CharDevice, *device, None),
            NewNode::BlockDevice(device) => (FileKind::BlockDevice, *device, None),
        };
        if device != 0 && caller.uid != 0 {
            return Err(NotPermitted);
        }
        let mut mode = if kind == FileKind::Symlink { 0o777 } else { request.mode };
        let mut gid = caller.gid;
        if parent.mode & SETGID != 0 {
            gid = parent.gid;
            let member = caller.uid == 0 || caller.gid == gid || caller.groups.contains(&gid);
            if kind == FileKind::Directory {
                mode |= SETGID;
            } else if mode & 0o010 != 0 && !member {
                mode &= !SETGID;
            }
        }
        let mut node = Node::new(kind, mode, (caller.uid, gid), self.now);
        (node.device, node.target) = (device, target);
        Ok(node)
    }

    pub(super) fn make_link(&mut self, request: &MakeLink) -> Answer<InodeId> {
        self.node(request.parent)?;
        if self.node(request.inode)?.kind == FileKind::Directory {
            return Err(NotPermitted);
        }
        self.may_add(&request.caller, request.parent)?;
        if self.find(request.parent, &request.name).is_some() {
            return Err(Exists);
        }
        let node = &self.nodes[&request.inode];
        let may_begin = node.nameable && node.writers.contains_key(&request.operation.session);
        if self.places(request.inode) == 0 && !may_begin {
            return Err(NotFound);
        }
        self.node_mut(request.inode).nameable = false;
        self.add_name(request.parent, &request.name, request.inode);
        self.mark_changed(request.inode);
        Ok(request.inode)
    }

    pub(super) fn remove(&mut self, request: &Remove) -> Answer<()> {
        let (caller, parent) = (&request.caller, request.parent);
        self.directory(parent)?;
        self.may_search(caller, parent)?;
        let id = self.find(parent, &request.name).ok_or(NotFound)?;
        self.may_take(caller, parent, id)?;
        match (self.nodes[&id].kind, request.directory) {
            (FileKind::Directory, false) => return Err(IsDirectory),
            (FileKind::Directory, true) if self.size(id) > 0 => return Err(NotEmpty),
            (FileKind::Directory, true) => {}
            (_, true) => return Err(NotDirectory),
            (_, false) => {}
        }
        self.take_name(parent, &request.name);
        self.mark_changed(id);
        self.drop_if_unused(id);
        Ok(())
    }

    pub(super) fn open(&mut self, request: &Open) -> Answer<InodeId> {
        let (id, session) = (request.inode, request.operation.session);
        let kind = self.node(id)?.kind;
        if request.mode == OpenMode::Read && !request.truncate {
            if kind != FileKind::Regular {
                return Err(InvalidArgument);
            }
            *self.node_mut(id).readers.entry(session).or_default() += 1;
            return Ok(id);
        }
        self.check_regular(id)?;
        self.may_write(&request.caller, id)?;
        let is_written = self.is_written_by_others(id, session);
        *self.node_mut(id).writers.entry(session).or_default() += 1;
        if request.truncate {
            self.empty(id, is_written);
        }
        Ok(id)
    }

    pub(super) fn close(&mut self, request: &Close) {
        let Some(node) = self.nodes.get_mut(&request.inode) else { return };
        let opens = match request.mode {
            OpenMode::Read => &mut node.readers,
            OpenMode::Write => &mut node.writers,
        };
        let session = request.operation.session;
        if let Some(count) = opens.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                opens.remove(&session);
            }
        }
        self.drop_if_unused(request.inode);
    }

    /// The session ends. Of what it wrote the targets may have more than anybody has heard of, and
    /// drop it unless others still write: then an empty content that shows none of it is at least
    /// not as it was made any more.
    pub(super) fn end(&mut self, session: SessionId) {
        let has = |node: &Node| {
            node.readers.contains_key(&session) || node.writers.contains_key(&session)
        };
        let open = self.nodes.iter().filter(|(_, node)| has(node)).map(|(id, _)| *id);
        for id in open.collect::<Vec<_>>() {
            let node = self.node_mut(id);
            node.readers.remove(&session);
            let has_written = node.writers.remove(&session).is_some();
            if has_written && node.writers.is_empty() {
                node.write_epoch += 1;
            } else if has_written && node.size == 0 && node.is_first() {
                node.sparse = true;
            }
            self.drop_if_unused(id);
        }
    }

    pub(super) fn commit(&mut self, request: &Commit) -> Answer<InodeId> {
        let (id, now) = (request.inode, self.now);
        let node = self.node(id)?;
        if !node.writers.contains_key(&request.operation.session) {
            return Err(NotPermitted);
        }
        let version = (request.generation.0, request.write_epoch.0);
        let grows = request.end > node.size;
        if version != (node.generation, node.write_epoch)
            || (!grows && request.written_at.is_none())
        {
            return Ok(id);
        }
        if grows && request.end > SIZE_MAX {
            return Err(FileTooLarge);
        }
        let node = self.node_mut(id);
        node.size = node.size.max(request.end);
        if let Some(written_at) = request.written_at {
            node.modified = written_at.min(now);
        }
        node.xattrs.remove(CAPABILITY);
        node.changed = now;
        Ok(id)
    }

    pub(super) fn check_regular(&self, id: InodeId) -> Answer<()> {
        match self.node(id)?.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(IsDirectory),
            _ => Err(InvalidArgument),
        }
    }

    /// A new, empty content; only one that never had a byte, and that nobody may give any, is kept.
    fn empty(&mut self, id: InodeId, is_written: bool) {
        let now = self.now;
        let node = self.node_mut(id);
        let fresh = node.size == 0 && node.is_first() && !is_written;
        let generation = node.generation;
        if !fresh {
            node.generation += 1;
            node.sparse = false;
        }
        node.size = 0;
        node.xattrs.remove(CAPABILITY);
        (node.modified, node.changed) = (now, now);
        if !fresh {
            self.freed.push((id, generation));
        }
    }

    fn is_written_by_others(&self, id: InodeId, session: SessionId) -> bool {
        self.nodes[&id].writers.keys().any(|writer| *writer != session)
    }

    fn resize(&mut self, id: InodeId, size: u64, session: SessionId) {
        if size == 0 {
            let is_written = self.is_written_by_others(id, session);
            return self.empty(id, is_written);
        }
        let now = self.now;
        let node = self.node_mut(id);
        node.sparse |= size > node.size;
        node.write_epoch += u32::from(size < node.size);
        node.size = size;
        node.xattrs.remove(CAPABILITY);
        (node.modified, node.changed) = (now, now);
    }

    pub(super) fn set_attributes(&mut self, request: &SetAttributes) -> Answer<InodeId> {
        let (id, caller) = (request.inode, &request.caller);
        let node = self.node(id)?;
        let others = request.mode.is_some()
            || request.uid.is_some()
            || request.gid.is_some()
            || request.accessed.is_some()
            || request.modified.is_some();
        let writes = node.writers.contains_key(&request.operation.session);
        let trusted = request.open && !others && writes;
        if let Some(size) = request.size {
            self.check_regular(id)?;
            if !trusted {
                self.may_write(caller, id)?;
            }
            if size > SIZE_MAX {
                return Err(FileTooLarge);
            }
        }
        if request.make_sparse {
            if !trusted {
                self.may_write(caller, id)?;
            }
            self.check_regular(id)?;
        }
        let mut node = self.nodes[&id].clone();
        if others {
            self.change(&mut node, id, request)?;
        }
        let Node { mode, uid, gid, accessed, modified, .. } = node;
        if let Some(size) = request.size {
            self.resize(id, size, request.operation.session);
        }
        let now = self.now;
        let node = self.node_mut(id);
        (node.mode, node.uid, node.gid, node.accessed) = (mode, uid, gid, accessed);
        node.sparse |= request.make_sparse;
        if request.modified.is_some() {
            node.modified = modified;
        }
        if others {
            node.changed = now;
        }
        let chown = request.uid.is_some() || request.gid.is_some();
        if chown && node.kind == FileKind::Regular {
            node.xattrs.remove(CAPABILITY);
        }
        if request.mode.is_some() {
            node.follow_mode();
        }
        Ok(id)
    }

    fn change(&self, node: &mut Node, id: InodeId, request: &SetAttributes) -> Answer<()> {
        let caller = &request.caller;
        let root = caller.uid == 0;
        let owner = if root || caller.uid == node.uid { Ok(()) } else { Err(NotPermitted) };
        let member = |gid| caller.gid == gid || caller.groups.contains(&gid);
        if request.uid.is_some() || request.gid.is_some() {
            owner?;
            let (uid, gid) = (request.uid.unwrap_or(node.uid), request.gid.unwrap_or(node.gid));
            if !root && (uid != node.uid || (gid != node.gid && !member(gid))) {
                return Err(NotPermitted);
            }
            let in_old_group = root || member(node.gid);
            (node.uid, node.gid) = (uid, gid);
            if node.kind != FileKind::Directory {
                node.mode &= !SETUID;
                if node.mode & 0o010 != 0 || !in_old_group {
                    node.mode &= !SETGID;
                }
            }
        }
        // Who gives a file away in the same request owns it no longer.
        let owner = if root || caller.uid == node.uid { Ok(()) } else { Err(NotPermitted) };
        if let Some(mode) = request.mode {
            owner?;
            node.mode = mode;
            if !root && !member(node.gid) {
                node.mode &= !SETGID;
            }
        }
        let times = [request.accessed, request.modified];
        if times.iter().flatten().any(|time| matches!(time, SetTime::At(_))) {
            owner?;
        } else if times.iter().any(Option::is_some) && owner.is_err() {
            self.may_write(caller, id)?;
        }
        let at = |time| match time {
            SetTime::Now => self.now,
            SetTime::At(time) => time,
        };
        node.accessed = request.accessed.map_or(node.accessed, at);
        node.modified = request.modified.map_or(node.modified, at);
        Ok(())
    }
}

impl Node {
    pub(super) fn new(kind: FileKind, mode: u16, (uid, gid): (u32, u32), now: Timestamp) -> Self {
        Self {
            kind,
            mode,
            uid,
            gid,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            target: None,
            names: Vec::new(),
            xattrs: BTreeMap::new(),
            generation: 1,
            write_epoch: 1,
            sparse: false,
            writers: BTreeMap::new(),
            readers: BTreeMap::new(),
            nameable: false,
        }
    }

    /// Whether the content is as it was made: nothing was cut, and there is no hole.
    fn is_first(&self) -> bool {
        (self.generation, self.write_epoch) == (1, 1) && !self.sparse
    }
}
