//! Messages about files that are made before the server hears of them.

use millrace_protocol::{
    delegation::{
        DeclareDelegations, Delegate, Delegated, Delegation, NewFile, PublishFiles, PublishedFile,
        PublishedFiles,
    },
    lease::MadeName,
    metadata::Coverage,
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId, Timestamp};

use super::{
    Sample, caller, done,
    metadata::{attributes, inode_reply, name},
    operation, pair,
};

pub(super) fn all() -> Vec<Sample> {
    let (session, directory) = (SessionId(7), InodeId(9));
    let content = inode_reply().capability.expect("the sample has one");
    let delegation = Delegation {
        directory: attributes(),
        contents: vec![content.clone(), content.clone()],
        inline_bytes_max: 4096,
    };
    let file = NewFile {
        operation: operation(),
        caller: caller(),
        parent: directory,
        name: name(),
        mode: 0o644,
        made_at: Timestamp(1_767_225_600_000_000_011),
        content,
        end: 16_384,
        written_at: Some(Timestamp(1_767_225_600_000_000_012)),
        inline: Some(b"small".to_vec()),
    };
    let made = MadeName {
        reply: inode_reply(),
        lease: Some(directory),
        coverage: Coverage::Names,
        empty: false,
        directory: Some(attributes()),
    };
    let refused = PublishedFile::Refused(Failure::new(ErrorKind::Exists, "the name is taken"));
    let whole = PublishedFile::MadeInline(Box::new(made.clone()));
    let published =
        PublishedFiles { files: vec![PublishedFile::Made(Box::new(made)), refused, whole] };
    let declare = DeclareDelegations {
        session,
        incarnation: 0x1122_3344_5566_7788,
        directories: vec![directory, InodeId(10)],
    };
    [
        pair(
            &Delegate { session, directory, contents_max: 64 },
            &Delegated { delegation: Some(delegation) },
        ),
        pair(&PublishFiles { session, files: vec![file.clone(), file] }, &published),
        pair(&declare, &done()),
    ]
    .into_iter()
    .flatten()
    .collect()
}
