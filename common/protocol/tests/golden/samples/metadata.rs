//! Messages of the namespace.

use millrace_protocol::metadata::{
    Attributes, Close, CloseFiles, CloseUnwritten, Commit, Coverage, Create, CreateMasked,
    CreateUnnamed, DirectoryEntry, DirectoryPage, FileKind, FileSystemUse, FileSystemUseReply,
    GetInode, GetXattr, InodeReply, ListXattrs, Lookup, MakeLink, NewNode, Open, OpenMode,
    ReadDirectory, Remove, RemoveXattr, Rename, RenameMode, SetAttributes, SetTime, SetXattr,
    SyncMetadata, XattrMode, XattrNames, XattrReply,
};
use millrace_types::{
    ChangeCount, ContentGeneration, FileName, InodeId, LogIndex, SessionId, Timestamp, WriteEpoch,
};

use super::{Sample, caller, content, done, operation, pair, signed};

pub(super) fn all() -> Vec<Sample> {
    [names(), inodes(), xattrs()].into_iter().flatten().collect()
}

fn names() -> Vec<Sample> {
    let (caller, operation, parent) = (caller(), operation(), InodeId(9));
    let page = DirectoryPage {
        entries: vec![DirectoryEntry { name: name(), cookie: 17, attributes: attributes() }],
        last: true,
        parent: InodeId::ROOT,
    };
    let create = Create {
        caller: caller.clone(),
        operation,
        parent,
        name: name(),
        node: NewNode::Symlink(b"../target".to_vec()),
        mode: 0o644,
        open: true,
        exclusive: true,
    };
    let masked = CreateMasked { create: create.clone(), umask: 0o027 };
    let unnamed = CreateUnnamed {
        caller: caller.clone(),
        operation,
        directory: parent,
        mode: 0o640,
        umask: 0o027,
        nameable: true,
    };
    let rename = Rename {
        caller: caller.clone(),
        operation,
        source_parent: parent,
        source_name: name(),
        target_parent: InodeId(10),
        target_name: FileName::parse(b"new").expect("a name"),
        mode: RenameMode::Exchange,
    };
    let read =
        ReadDirectory { caller: caller.clone(), inode: parent, cookie: 16, entries_max: 512 };
    let link =
        MakeLink { caller: caller.clone(), operation, inode: InodeId(11), parent, name: name() };
    let remove =
        Remove { caller: caller.clone(), operation, parent, name: name(), directory: true };
    [
        pair(&Lookup { caller, parent, name: name() }, &inode_reply()),
        pair(&read, &page),
        pair(&create, &inode_reply()),
        pair(&link, &inode_reply()),
        pair(&remove, &done()),
        pair(&rename, &done()),
        pair(&masked, &inode_reply()),
        pair(&unnamed, &inode_reply()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn inodes() -> Vec<Sample> {
    let (caller, operation, inode) = (caller(), operation(), InodeId(9));
    let set = SetAttributes {
        caller: caller.clone(),
        operation,
        inode,
        mode: Some(0o4755),
        uid: Some(1),
        gid: Some(2),
        size: Some(1 << 40),
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::At(Timestamp(-1))),
        make_sparse: true,
        open: true,
    };
    let open = Open {
        caller: caller.clone(),
        operation,
        inode,
        mode: OpenMode::Write,
        truncate: true,
        reopen: true,
    };
    let commit = Commit {
        operation,
        inode,
        generation: ContentGeneration(5),
        write_epoch: WriteEpoch(6),
        end: 1 << 33,
        written_at: Some(Timestamp(1_700_000_000_000_000_001)),
        durable: true,
    };
    let used = FileSystemUseReply { capacity_bytes: 1 << 50, used_bytes: 1 << 49, inodes: 12 };
    [
        pair(&GetInode { caller, session: Some(SessionId(7)), inode }, &inode_reply()),
        pair(&set, &inode_reply()),
        pair(&open, &inode_reply()),
        pair(&Close { operation, inode, mode: OpenMode::Write }, &done()),
        pair(&CloseFiles { operation, inodes: vec![inode, InodeId(10), inode] }, &done()),
        pair(&CloseUnwritten { operation, inodes: vec![inode, InodeId(10)] }, &done()),
        pair(&commit, &inode_reply()),
        pair(&SyncMetadata { index: LogIndex(55) }, &done()),
        pair(&FileSystemUse { inode }, &used),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn xattrs() -> Vec<Sample> {
    let (caller, operation, inode) = (caller(), operation(), InodeId(9));
    let name = b"user.comment".to_vec();
    let value = b"\x00\xff".to_vec();
    let set = SetXattr {
        caller: caller.clone(),
        operation,
        inode,
        name: name.clone(),
        value: value.clone(),
        mode: XattrMode::Replace,
    };
    let names = XattrNames { names: vec![name.clone(), b"user.b".to_vec()] };
    let remove = RemoveXattr { caller: caller.clone(), operation, inode, name: name.clone() };
    [
        pair(&GetXattr { caller: caller.clone(), inode, name }, &XattrReply { value }),
        pair(&ListXattrs { caller, inode }, &names),
        pair(&set, &done()),
        pair(&remove, &done()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn name() -> FileName {
    FileName::parse(b"0001.jpg\xff").expect("a name")
}

pub(super) fn attributes() -> Attributes {
    Attributes {
        inode: InodeId(0x1_0000_0001),
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        links: 2,
        device: 0x0801,
        size: 123_456,
        accessed: Timestamp(1),
        modified: Timestamp(2),
        changed: Timestamp(3),
        born: Timestamp(4),
        change_count: ChangeCount(8),
    }
}

pub(super) fn inode_reply() -> InodeReply {
    InodeReply {
        attributes: attributes(),
        content: Some(content()),
        capability: Some(signed()),
        symlink: Some(b"../target".to_vec()),
        inline: Some(b"small".to_vec()),
        coverage: Coverage::Directory,
        index: LogIndex(44),
    }
}
