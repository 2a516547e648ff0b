//! Whiteouts of a directory that is gone, some of which are still to go.

use millrace_metadata_server::{
    command::{
        AddLink, BATCH_MAX, Command, Create, ImportEntries, ImportEntry, ImportKind, Remove,
    },
    store::keys,
};
use millrace_protocol::{
    capability::Origin,
    cluster::{Bucket, LinkMode},
    metadata::NewNode,
    session::Caller,
};
use millrace_types::{InodeId, LinkId, Timestamp};
use tempfile::TempDir;

use super::{check, expect_none, tree};
use crate::{
    engine::{ON_DISK, Server},
    hosts::{name, register_targets},
    snapshots::tick_and_wait,
};

/// The directory of the link, and one below it.
const TOP: InodeId = InodeId(1 << 20);
const BELOW: InodeId = InodeId(TOP.0 + 1);

/// Names that are removed: each leaves two records.
const NAMES: usize = BATCH_MAX * 3 / 5;

fn execute(server: &Server, command: Command) {
    server.turn(move |core| core.execute(None, command).unwrap());
}

fn import(server: &Server, directory: InodeId, entries: Vec<ImportEntry>) {
    execute(server, Command::ImportEntries(ImportEntries { directory, entries }));
}

fn entry(text: &str, inode: InodeId, kind: ImportKind) -> ImportEntry {
    let (name, modified) = (name(text), Timestamp(0));
    ImportEntry { name, inode, seed: 0, mode: 0o755, uid: 0, gid: 0, modified, kind }
}

fn remove(server: &Server, parent: InodeId, text: &str, directory: bool) {
    let (caller, name, readers) = (Caller::ROOT, name(text), Vec::new());
    execute(server, Command::Remove(Remove { caller, parent, name, directory, readers }));
}

/// Removes imported names by the hundred, and then their directory.
fn remove_many(server: &Server) {
    execute(
        server,
        Command::Create(Create {
            caller: Caller::ROOT,
            parent: InodeId::ROOT,
            name: name("data"),
            node: NewNode::Directory,
            mode: 0o755,
            inode: TOP,
            seed: 0,
            open: None,
            exclusive: true,
        }),
    );
    let bucket =
        Bucket { url: "file:///b".to_owned(), endpoint: None, region: None, credentials: None };
    let (prefix, mode) = (String::new(), LinkMode::Import);
    execute(server, Command::AddLink(AddLink { directory: TOP, bucket, prefix, mode }));
    import(server, TOP, vec![entry("below", BELOW, ImportKind::Directory)]);
    let names: Vec<_> = (0..NAMES).map(|number| format!("{number:04}")).collect();
    let files = (1..).zip(&names).map(|(number, text)| {
        let origin = Origin {
            link: LinkId(1),
            key: format!("below/{text}"),
            size: 5,
            tag: "tag".to_owned(),
            modified: Timestamp(0),
        };
        entry(text, InodeId(BELOW.0 + number), ImportKind::File(origin))
    });
    import(server, BELOW, files.collect());
    execute(server, Command::MarkDirectoryListed(BELOW));
    for text in &names {
        remove(server, BELOW, text, false);
    }
    remove(server, TOP, "below", true);
}

/// Records of the whiteouts of the directory that is gone.
fn left(server: &Server) -> usize {
    let tables = [keys::whiteouts(BELOW), keys::moved_files(BELOW)];
    let contents = server.contents().0;
    let is_its = |key: &[u8]| tables.iter().any(|table| key.starts_with(table));
    contents.iter().filter(|(key, _)| is_its(key)).count()
}

#[test]
fn whiteouts_that_are_still_to_go_are_no_damage_and_go_after_a_restart_and_from_a_snapshot() {
    for store in ON_DISK {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), store);
        register_targets(&server);
        remove_many(&server);
        assert_eq!(left(&server), 2 * NAMES);
        expect_none(&check(&server, true), "before the first of them goes");
        assert_eq!(left(&server), 2 * NAMES, "a check takes none of them for a flaw");

        server.settings.snapshot_bytes = 1;
        server.restart();
        tick_and_wait(&server);
        execute(&server, Command::SweepWhiteouts);
        assert_eq!(left(&server), 2 * NAMES - BATCH_MAX);
        expect_none(&check(&server, true), "in between");
        let before = tree(&server);
        server.restart();
        server.stop();
        std::fs::remove_dir_all(server.store_dir()).unwrap();
        server.begin();
        assert!(tree(&server) == before, "a replay gives the same tree");

        execute(&server, Command::SweepWhiteouts);
        assert_eq!(left(&server), 0);
        expect_none(&check(&server, false), "afterwards");
    }
}
