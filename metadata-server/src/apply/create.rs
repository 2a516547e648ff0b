//! Makes inodes and names: create, mkdir, symlink, mknod, link; and the root of a new file system.

use millrace_protocol::{
    metadata::{FileKind, NewNode},
    session::{Caller, Operation},
};
use millrace_types::{
    ChangeCount, ContentGeneration, ErrorKind, FileName, InodeId, JobId, KeyId, LinkId, MapEpoch,
    PoolId, SessionId, WriteEpoch, name::SYMLINK_LEN_MAX,
};

use super::{
    ApplyError, FIRST_LEVEL, Transaction, acl, commit, deletion::KEY_LEN_MAX, layout, open, unnamed,
};
use crate::{
    command::{Create, Format, MakeLink, Opener, Outcome},
    namespace::{
        Body, DirectoryBody, FileBody, Inode, LayoutDefaults, LinkedDirectory, ObjectState,
        ParentLink, permission,
        tree::{self, LINKS_MAX},
    },
    store::{
        keys,
        records::{Entry, FileSystem, PoolRecord, Whiteout},
    },
};

/// Makes the root directory and the first pool.
pub(super) fn format(tx: &mut Transaction<'_>, format: &Format) -> Result<Outcome, ApplyError> {
    if tx.read::<FileSystem>(&keys::file_system())?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    let file_system = FileSystem {
        feature_level: FIRST_LEVEL,
        inodes: 1,
        inode_limit: InodeId::ROOT.next(),
        next_session: SessionId(1),
        next_link: LinkId(1),
        next_job: JobId(1),
        next_key: KeyId(1),
        map_epoch: MapEpoch(1),
        links_version: 1,
        reclaim_entries: 0,
    };
    tx.put(keys::file_system(), &file_system);
    let pool = PoolRecord { name: "default".to_owned(), groups: 0, targets: Vec::new() };
    tx.put(keys::pool(PoolId(0)), &pool);
    let owner = (format.uid, format.gid);
    let body = directory_body(LayoutDefaults::default(), None);
    let mut root = new_inode(tx, InodeId::ROOT, FileKind::Directory, owner, body);
    root.mode = format.mode & permission::MODE_MAX;
    tx.put_inode(&root);
    Ok(Outcome::Inode(root.id))
}

/// Makes an inode and its name, or opens what the name has already. The umask takes permissions
/// away where no default list of the directory says what they are.
pub(super) fn create(
    tx: &mut Transaction<'_>,
    create: &Create,
    umask: u16,
) -> Result<Outcome, ApplyError> {
    let parent = tx.inode(create.parent)?;
    parent.directory()?;
    permission::check(tx, &create.caller, &parent, permission::Access::Search)?;
    if let Some(entry) = tree::entry(tx, parent.id, &create.name)? {
        return open_existing(tx, create, &entry);
    }
    add(tx, create, parent, umask, |tx, create, parent| build(tx, create, parent))
}

/// Makes a new inode under a name that nothing has, and opens a file as it is asked to.
pub(super) fn add(
    tx: &mut Transaction<'_>,
    create: &Create,
    mut parent: Inode,
    umask: u16,
    build: impl FnOnce(&mut Transaction<'_>, &Create, &Inode) -> Result<Inode, ApplyError>,
) -> Result<Outcome, ApplyError> {
    permission::check_add(tx, &create.caller, &parent)?;
    tx.check_names_writable(&parent)?;
    let mut inode = build(tx, create, &parent)?;
    inherit_group(&mut inode, &parent, &create.caller);
    acl::inherit(tx, &parent, &mut inode, umask)?;
    add_name(tx, &mut parent, &mut inode, &create.name)?;
    tx.put_inode(&inode);
    tx.put_inode(&parent);
    tx.change_file_system(|fs| fs.inodes += 1)?;
    if let (Some(session), FileKind::Regular) = (create.open, inode.kind) {
        let opener = Opener { session, inode: inode.id };
        open::register_writer(tx, opener)?;
    }
    Ok(Outcome::Inode(inode.id))
}

/// Gives a file a further name, or the first one that it gets after it was made without.
pub(super) fn make_link(
    tx: &mut Transaction<'_>,
    link: &MakeLink,
    operation: Option<Operation>,
) -> Result<Outcome, ApplyError> {
    let mut parent = tx.inode(link.parent)?;
    let mut inode = tx.inode(link.inode)?;
    if inode.is_directory() {
        return Err(ErrorKind::NotPermitted.into());
    }
    permission::check_add(tx, &link.caller, &parent)?;
    if tree::entry(tx, parent.id, &link.name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    tx.check_names_writable(&parent)?;
    let Some(first) = &inode.parent else {
        unnamed::check_nameable(tx, &inode, &parent, operation)?;
        tx.delete(keys::nameable(inode.id));
        inode.links = 1;
        inode.changed = tx.time;
        add_name(tx, &mut parent, &mut inode, &link.name)?;
        tx.put_inode(&inode);
        tx.put_inode(&parent);
        return Ok(Outcome::Inode(inode.id));
    };
    if inode.links >= LINKS_MAX {
        return Err(ErrorKind::TooManyLinks.into());
    }
    let first = tx.inode(first.directory)?;
    check_same_realm(tx, &first, &parent)?;
    inode.links += 1;
    inode.changed = tx.time;
    tx.put_bytes(keys::name(inode.id, parent.id, link.name.as_bytes()), Vec::new());
    insert_entry(tx, &mut parent, &inode, &link.name)?;
    tx.put_inode(&inode);
    tx.put_inode(&parent);
    Ok(Outcome::Inode(inode.id))
}

/// Names do not move or spread between accounting ids or links.
pub(super) fn check_same_realm(
    tx: &Transaction<'_>,
    source: &Inode,
    target: &Inode,
) -> Result<(), ApplyError> {
    let link = |directory| Ok::<_, ApplyError>(tx.link_of(directory)?.map(|(id, _)| id));
    if source.accounting != target.accounting || link(source)? != link(target)? {
        return Err(ErrorKind::CrossDevice.into());
    }
    Ok(())
}

/// Gives a new inode its first name.
pub(super) fn add_name(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    inode: &mut Inode,
    name: &FileName,
) -> Result<(), ApplyError> {
    inode.accounting = parent.accounting;
    inode.parent = Some(ParentLink { directory: parent.id, name: name.clone() });
    insert_entry(tx, parent, inode, name)
}

/// Adds an entry to a directory and counts it there; the caller stores both inodes.
pub(super) fn insert_entry(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    inode: &Inode,
    name: &FileName,
) -> Result<(), ApplyError> {
    let directory = parent.directory_mut()?;
    let cookie = directory.next_cookie;
    directory.next_cookie += 1;
    insert_entry_at(tx, parent, inode, name, cookie);
    Ok(())
}

/// The same, at a place of the listing where the name was before, and nothing is any more.
pub(super) fn insert_entry_at(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    inode: &Inode,
    name: &FileName,
    cookie: u64,
) {
    let entry = Entry { inode: inode.id, kind: inode.kind, cookie };
    tx.put(keys::entry(parent.id, name.as_bytes()), &entry);
    tx.put_bytes(keys::cookie(parent.id, cookie), name.as_bytes().to_vec());
    parent.size += 1;
    parent.links += u32::from(inode.is_directory());
    touch_directory(tx, parent);
}

/// The names of a directory changed.
pub(super) fn touch_directory(tx: &Transaction<'_>, directory: &mut Inode) {
    directory.modified = tx.time;
    directory.changed = tx.time;
    directory.change_count = directory.change_count.next();
}

/// An inode with times and counts of a new one.
pub(super) fn new_inode(
    tx: &Transaction<'_>,
    id: InodeId,
    kind: FileKind,
    (uid, gid): (u32, u32),
    body: Body,
) -> Inode {
    let size = match &body {
        Body::Symlink(target) => target.len() as u64,
        _ => 0,
    };
    Inode {
        id,
        kind,
        mode: 0,
        uid,
        gid,
        device: 0,
        links: if kind == FileKind::Directory { 2 } else { 1 },
        size,
        accessed: tx.time,
        modified: tx.time,
        changed: tx.time,
        born: tx.time,
        change_count: ChangeCount(1),
        parent: None,
        accounting: 0,
        xattr_bytes: 0,
        body,
    }
}

/// The body of a new, empty file with this layout.
pub(super) fn file_body(layout: millrace_types::Layout) -> FileBody {
    FileBody {
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(1),
        layout,
        origin: None,
        origin_length: 0,
        sparse: false,
        inline: None,
        state: ObjectState::Local,
    }
}

/// The body of a new directory.
pub(super) fn directory_body(defaults: LayoutDefaults, linked: Option<LinkedDirectory>) -> Body {
    Body::Directory(Box::new(DirectoryBody { next_cookie: 1, defaults, linked }))
}

fn build(tx: &Transaction<'_>, create: &Create, parent: &Inode) -> Result<Inode, ApplyError> {
    let body_of_parent = parent.directory()?;
    let (kind, body, device) = match &create.node {
        NewNode::Regular => {
            let layout = layout::place(tx, &body_of_parent.defaults, create.seed)?;
            (FileKind::Regular, Body::File(Box::new(file_body(layout))), 0)
        }
        NewNode::Directory => {
            let linked = match &body_of_parent.linked {
                Some(linked) => below(tx, (parent.id, linked), &create.name)?,
                None => None,
            };
            let body = directory_body(body_of_parent.defaults, linked);
            (FileKind::Directory, body, 0)
        }
        NewNode::Symlink(target) => {
            if target.is_empty() || target.contains(&0) {
                return Err(ErrorKind::InvalidArgument.into());
            }
            if target.len() > SYMLINK_LEN_MAX {
                return Err(ErrorKind::NameTooLong.into());
            }
            (FileKind::Symlink, Body::Symlink(target.clone()), 0)
        }
        NewNode::Fifo => (FileKind::Fifo, Body::Special, 0),
        NewNode::Socket => (FileKind::Socket, Body::Special, 0),
        NewNode::CharDevice(device) => (FileKind::CharDevice, Body::Special, *device),
        NewNode::BlockDevice(device) => (FileKind::BlockDevice, Body::Special, *device),
    };
    if device != 0 && !permission::is_root(&create.caller) {
        return Err(ErrorKind::NotPermitted.into());
    }
    let owner = (create.caller.uid, create.caller.gid);
    let mut inode = new_inode(tx, create.inode, kind, owner, body);
    inode.device = device;
    inode.mode = match kind {
        FileKind::Symlink => 0o777,
        _ => create.mode & permission::MODE_MAX,
    };
    Ok(inode)
}

/// A directory made here below a linked one: the bucket holds nothing of it yet, or what was
/// removed here before.
fn below(
    tx: &Transaction<'_>,
    (directory, parent): (InodeId, &LinkedDirectory),
    name: &FileName,
) -> Result<Option<LinkedDirectory>, ApplyError> {
    let Ok(text) = std::str::from_utf8(name.as_bytes()) else { return Ok(None) };
    let level = tx.file_system()?.feature_level;
    let prefix = format!("{}{text}/", parent.prefix);
    if level >= DEEP_LEVEL && prefix.len() > KEY_LEN_MAX {
        return Ok(None);
    }
    let removed = level >= REMOVED_STAYS_LEVEL
        && tx.read::<Whiteout>(&keys::whiteout(directory, name.as_bytes()))?.is_some();
    // What lies below what was removed is as little here as that.
    let inherits =
        level >= REMOVED_BELOW_LEVEL && parent.listed == Some(LinkedDirectory::NEVER_AGAIN);
    Ok(Some(LinkedDirectory {
        link: parent.link,
        prefix,
        listed: Some(if removed || inherits { LinkedDirectory::NEVER_AGAIN } else { tx.time }),
    }))
}

/// The feature level from which on a directory that lies deeper than any key of a bucket shows
/// nothing of one: each would have all the names above it in its record.
const DEEP_LEVEL: u32 = 26;

/// The feature level from which on what was removed below a link stays removed although its
/// directory is made anew, symbolic links stay removed, and files that were moved are known.
pub(super) const REMOVED_STAYS_LEVEL: u32 = 6;

/// The feature level from which on the same holds for directories that are made below such a one.
const REMOVED_BELOW_LEVEL: u32 = 10;

/// A new inode gets the group of a directory that says so.
pub(super) fn inherit_group(inode: &mut Inode, parent: &Inode, caller: &Caller) {
    if parent.mode & permission::SETGID == 0 {
        return;
    }
    inode.gid = parent.gid;
    let executable_by_group = inode.mode & 0o010 != 0;
    if inode.is_directory() {
        inode.mode |= permission::SETGID;
    } else if executable_by_group
        && !permission::in_group(caller, inode.gid)
        && !permission::is_root(caller)
    {
        inode.mode &= !permission::SETGID;
    }
}

fn open_existing(
    tx: &mut Transaction<'_>,
    create: &Create,
    entry: &Entry,
) -> Result<Outcome, ApplyError> {
    if create.exclusive || create.node != NewNode::Regular {
        return Err(ErrorKind::Exists.into());
    }
    if entry.kind == FileKind::Directory {
        return Err(ErrorKind::IsDirectory.into());
    }
    if let (Some(session), FileKind::Regular) = (create.open, entry.kind) {
        let inode = tx.inode(entry.inode)?;
        permission::check(tx, &create.caller, &inode, permission::Access::Write)?;
        commit::check_whole(inode.file()?)?;
        open::begin(tx, inode, session)?;
    }
    Ok(Outcome::Inode(entry.inode))
}
