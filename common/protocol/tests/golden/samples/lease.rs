//! Messages about what clients keep under leases.

use millrace_protocol::{
    lease::{
        AwaitNews, AwaitRecalls, CoveredEntry, DirectoryEnd, EntriesPage, FindEnd, FindName,
        FoundName, ListEntries, ListEntriesBare, ListFrom, MadeName, MakeName, MarkedPage, News,
        Recall, Recalls, RemoveName, RemovedName, ShowContents, ShowInode, ShownContent,
        ShownContents, ShownInode,
    },
    metadata::{Coverage, Create, CreateMasked, DirectoryEntry, NewNode, Remove},
};
use millrace_types::{InodeId, SessionId};

use super::{
    Sample, caller, done,
    metadata::{attributes, inode_reply, name},
    operation, pair,
};

pub(super) fn all() -> Vec<Sample> {
    let (session, parent, lease) = (SessionId(7), InodeId(9), Some(InodeId(9)));
    let found = FoundName { found: Some(inode_reply()), coverage: Coverage::Names, lease };
    let list = ListEntries {
        caller: caller(),
        session,
        inode: parent,
        from: ListFrom::Name(name()),
        entries_max: 512,
    };
    let entry = DirectoryEntry { name: name(), cookie: 17, attributes: attributes() };
    let page = EntriesPage {
        entries: vec![CoveredEntry { entry, lease }],
        last: true,
        parent: InodeId::ROOT,
        coverage: Coverage::Names,
        directory: Some(attributes()),
    };
    let marked = MarkedPage { page: page.clone(), with_xattrs: vec![0] };
    let recalls = Recalls {
        through: 34,
        recalls: vec![
            Recall::Name(parent, name()),
            Recall::Attributes(InodeId(10)),
            Recall::Lease(parent),
            Recall::Everything,
        ],
    };
    let awaits = AwaitRecalls { session, incarnation: 0x1122_3344_5566_7788, acknowledged: 33 };
    [
        pair(&FindName { caller: caller(), session, parent, name: name() }, &found),
        pair(
            &ShowInode { caller: caller(), session, inode: InodeId(10) },
            &ShownInode { reply: inode_reply(), lease },
        ),
        pair(
            &FindEnd { caller: caller(), session, inode: InodeId(10) },
            &DirectoryEnd { cookie: Some(12) },
        ),
        pair(&list, &page),
        pair(&ListEntriesBare { list: list.clone() }, &marked),
        pair(&awaits, &recalls),
        news(),
        contents(),
    ]
    .into_iter()
    .chain(changes())
    .flatten()
    .collect()
}

fn news() -> [Sample; 2] {
    let (session, directory) = (SessionId(7), InodeId(9));
    pair(
        &AwaitNews { session, incarnation: 0x1122_3344_5566_7788, acknowledged: 33 },
        &News {
            through: 35,
            recalls: vec![Recall::Name(directory, name())],
            shown: vec![attributes()],
        },
    )
}

fn contents() -> [Sample; 2] {
    let capability = inode_reply().capability.expect("the sample has one");
    let shown =
        ShownContent { attributes: attributes(), capability, inline: Some(b"small".to_vec()) };
    pair(
        &ShowContents {
            caller: caller(),
            session: SessionId(7),
            inode: InodeId(10),
            entries_max: 64,
        },
        &ShownContents { directory: InodeId(9), contents: vec![shown.clone(), shown] },
    )
}

fn changes() -> [[Sample; 2]; 2] {
    let parent = InodeId(9);
    let create = Create {
        caller: caller(),
        operation: operation(),
        parent,
        name: name(),
        node: NewNode::Directory,
        mode: 0o777,
        open: false,
        exclusive: true,
    };
    let made = MadeName {
        reply: inode_reply(),
        lease: Some(InodeId(10)),
        coverage: Coverage::Names,
        empty: true,
        directory: Some(attributes()),
    };
    let remove =
        Remove { caller: caller(), operation: operation(), parent, name: name(), directory: true };
    let removed = RemovedName { done: done(), directory: Some(attributes()) };
    [
        pair(&MakeName { make: CreateMasked { create, umask: 0o022 } }, &made),
        pair(&RemoveName { remove }, &removed),
    ]
}
