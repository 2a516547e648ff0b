//! Where names stand in listings, and where the listing of a directory ends.

use millrace_metadata_server::{
    command::{Command, Create, Format, Rename},
    engine::StoreKind,
    namespace::tree,
    ops,
};
use millrace_protocol::{
    lease::{DirectoryEnd, FindEnd},
    metadata::{NewNode, RenameMode},
    session::Caller,
};
use millrace_types::{ErrorKind, InodeId};
use tempfile::TempDir;

use crate::{
    engine::Server,
    hosts::{Host, name},
    levels::Log,
};

/// The names of the root in their order, with what they lead to and where they stand.
fn listed(log: &Log) -> Vec<(String, u64, u64)> {
    let listed = tree::list(&log.store, InodeId::ROOT, 0, usize::MAX).unwrap();
    let shown = listed.iter().map(|(name, entry)| {
        let name = String::from_utf8(name.as_bytes().to_vec()).unwrap();
        (name, entry.inode.0, entry.cookie)
    });
    shown.collect()
}

fn rename(log: &mut Log, from: &str, to: &str, mode: RenameMode) {
    log.apply(Command::Rename(Rename {
        caller: Caller::ROOT,
        source_parent: InodeId::ROOT,
        source_name: name(from),
        target_parent: InodeId::ROOT,
        target_name: name(to),
        mode,
        readers: Vec::new(),
    }))
    .unwrap();
}

#[test]
fn a_name_that_another_file_takes_keeps_its_place_from_the_nineteenth_level_on() {
    for level in [18, 19] {
        let mut log = Log::default();
        log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
        log.apply(Command::SetFeatureLevel(level)).unwrap();
        for (text, inode) in [("a", 11), ("b", 12), ("c", 13)] {
            log.apply(Command::Create(Create {
                caller: Caller::ROOT,
                parent: InodeId::ROOT,
                name: name(text),
                node: NewNode::Fifo,
                mode: 0o644,
                inode: InodeId(inode),
                seed: 1,
                open: None,
                exclusive: true,
            }))
            .unwrap();
        }
        let entry = |text: &str, inode, cookie| (text.to_owned(), inode, cookie);
        assert_eq!(listed(&log), [entry("a", 11, 1), entry("b", 12, 2), entry("c", 13, 3)]);
        rename(&mut log, "c", "a", RenameMode::Replace);
        rename(&mut log, "a", "b", RenameMode::Exchange);
        let expected = match level {
            18 => [entry("b", 13, 5), entry("a", 12, 6)],
            _ => [entry("a", 12, 1), entry("b", 13, 2)],
        };
        assert_eq!(listed(&log), expected, "at level {level}");
        // A name that was not there stands behind all others.
        rename(&mut log, "a", "d", RenameMode::NoReplace);
        let last = listed(&log).pop().unwrap();
        assert_eq!((last.0.as_str(), last.1), ("d", 12), "at level {level}");
    }
}

#[test]
fn what_is_made_and_renamed_stands_behind_the_end_that_was_found_before() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
    let mut host = Host::open(&server, 1);
    for text in ["a", "b"] {
        host.make(&server, InodeId::ROOT, text, NewNode::Fifo).unwrap();
    }
    let find = |host: &Host, inode| {
        let request = FindEnd { caller: Caller::ROOT, session: host.session, inode };
        host.run(&server, request, ops::lease::find_end)
    };
    let DirectoryEnd { cookie } = find(&host, InodeId::ROOT).unwrap();
    let end = cookie.unwrap();
    let made = host.make(&server, InodeId::ROOT, "c", NewNode::Fifo).unwrap();
    for (from, to) in [("a", "d"), ("c", "b")] {
        let request = host.rename((InodeId::ROOT, from), (InodeId::ROOT, to));
        host.run(&server, request, ops::rename::rename).unwrap();
    }
    let names = |from, until| {
        server.turn(move |core| {
            let all = tree::list(core.view(), InodeId::ROOT, 0, usize::MAX).unwrap();
            let found = all.into_iter().filter(|(_, at)| (from..until).contains(&at.cookie));
            found.map(|(name, _)| name).collect::<Vec<_>>()
        })
    };
    assert_eq!(names(0, end), [name("b")], "it was there throughout");
    assert_eq!(names(end, u64::MAX), [name("d")]);
    let refused = find(&host, made.attributes.inode).map(drop);
    assert_eq!(refused, Err(ErrorKind::NotDirectory));
}
