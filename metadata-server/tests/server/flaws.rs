//! The namespace against itself: every damage is named with its path and repaired, a second look
//! finds nothing, and a tree that is in order is never complained of, whatever changes meanwhile.

mod killed;
mod plant;
mod random;
mod swept;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use millrace_metadata_server::{
    command::{Command, MakeLink, SetXattr},
    engine::{Handle, StoreKind},
    ops,
    reconcile::{Reconciliation, Targets},
    settings::FsckSettings,
    store::{Batch, View},
};
use millrace_protocol::{
    fsck::{
        ContentsPage, FlawFinding, FlawKind, ListContents, NamespaceReport, NamespaceState,
        StartFsck,
    },
    metadata::{NewNode, Open, OpenMode, XattrMode},
    session::Caller,
    target::{Presence, PresenceReply},
};
use millrace_types::{ErrorKind, Failure, HostId, InodeId};
use tempfile::TempDir;

use crate::{
    engine::{ON_DISK, Server},
    hosts::{Host, name, register_targets},
};

/// Nothing lies on the targets.
#[derive(Debug)]
struct NoChunks;

#[async_trait]
impl Targets for NoChunks {
    async fn list(&self, _: HostId, _: ListContents) -> Result<ContentsPage, Failure> {
        Ok(ContentsPage::default())
    }

    async fn presence(&self, _: HostId, _: Presence) -> Result<PresenceReply, Failure> {
        Ok(PresenceReply { present: Vec::new() })
    }
}

/// Runs one check to its end, at so many records a second.
async fn check_at(engine: &Handle, repair: bool, pace: u64) -> NamespaceReport {
    let settings = FsckSettings {
        interval: Duration::ZERO,
        first_after: Duration::ZERO,
        contents_per_second: pace,
    };
    let checks = Reconciliation::new(engine.clone(), Arc::new(NoChunks), settings);
    let start = StartFsck { targets: Vec::new(), report_only: true, free_many: false };
    match repair {
        true => checks.start_repair(start).await.unwrap(),
        false => checks.start(start).await.unwrap(),
    };
    let ended = async {
        while checks.show().await.unwrap().state.is_running() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = checks.run() => unreachable!("it runs until it is dropped"),
        () = ended => {}
    }
    checks.show_namespace()
}

fn check(server: &Server, repair: bool) -> NamespaceReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let report = runtime.block_on(check_at(server.handle(), repair, u64::MAX));
    assert_eq!(report.state, NamespaceState::Done, "{report:?}");
    report
}

fn expect_none(report: &NamespaceReport, what: &str) {
    assert!(report.flaws.is_empty(), "{what}: {:?}", report.findings);
    assert!(report.inodes > 0 && report.records > report.inodes, "{what}: it has looked");
}

/// A server with a small tree.
struct Planted {
    server: Server,
    /// Ids by the path's last name.
    inodes: Vec<(&'static str, InodeId)>,
    _dir: TempDir,
}

impl Planted {
    /// `/a/b/file` with the further name `/a/link`, `/a/other`, `/a/symlink`, and `/c`.
    fn new(store: StoreKind) -> Self {
        let dir = TempDir::new().unwrap();
        let server = Server::start(&dir.path().join("metadata"), store);
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        let mut inodes = vec![("/", InodeId::ROOT)];
        for (parent, text, node) in [
            ("/", "a", NewNode::Directory),
            ("a", "b", NewNode::Directory),
            ("b", "file", NewNode::Regular),
            ("a", "other", NewNode::Regular),
            ("a", "symlink", NewNode::Symlink(b"somewhere".to_vec())),
            ("/", "c", NewNode::Directory),
        ] {
            let parent = inodes.iter().find(|(known, _)| *known == parent).unwrap().1;
            let made = host.make(&server, parent, text, node).unwrap();
            inodes.push((text, made.attributes.inode));
        }
        let mut planted = Self { server, inodes, _dir: dir };
        let (file, a) = (planted.id("file"), planted.id("a"));
        let link = MakeLink { caller: Caller::ROOT, inode: file, parent: a, name: name("link") };
        let xattr = SetXattr {
            caller: Caller::ROOT,
            inode: file,
            name: b"user.comment".to_vec(),
            value: b"hello".to_vec(),
            mode: XattrMode::Any,
        };
        for command in [Command::MakeLink(link), Command::SetXattr(xattr)] {
            planted.server.turn(move |core| core.execute(None, command)).unwrap();
        }
        planted.server.restart();
        expect_none(&check(&planted.server, false), "before");
        planted
    }

    fn id(&self, name: &str) -> InodeId {
        self.inodes.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Plants a damage. A start that finds the store still held by the one before, whose threads
    /// end when they like, makes it anew from the log: then once more.
    fn plant_one(&mut self, damage: &Damage) {
        for _ in 0..5 {
            self.server.stop();
            let mut store = self.server.open_store();
            let batch = (damage.plant)(self, &*store);
            store.commit(&batch).unwrap();
            store.checkpoint().unwrap();
            drop(store);
            self.server.begin();
            let contents: BTreeMap<_, _> = self.server.contents().0.into_iter().collect();
            let is_there = |key: &[u8], value: Option<&[u8]>| {
                MADE_BY_STARTS.contains(&key[0]) || value == contents.get(key).map(Vec::as_slice)
            };
            if batch.iter().all(|(key, value)| is_there(key, value)) {
                return;
            }
        }
        panic!("each start has made the store anew");
    }

    /// Changes the store behind the server's back.
    fn plant(&mut self, damage: impl FnOnce(&dyn View) -> Batch) {
        self.server.stop();
        let mut store = self.server.open_store();
        let batch = damage(&*store);
        store.commit(&batch).unwrap();
        store.checkpoint().unwrap();
        drop(store);
        self.server.begin();
    }
}

/// Nobody is shown an empty file, the check names it, and other changes go on.
#[test]
fn a_small_file_that_lacks_its_bytes_is_lost_and_nothing_else_is() {
    let mut planted = Planted::new(StoreKind::Lsm);
    let damage = Damage {
        kind: FlawKind::Unsound,
        path: Some("/a/other"),
        plant: |planted, view| {
            plant::with_inode(view, planted.id("other"), |inode| {
                inode.size = 3;
                inode.file_mut().unwrap().inline = Some(Vec::new());
            })
        },
    };
    planted.plant_one(&damage);
    assert!(finding(&check(&planted.server, true), &damage).text.contains("0 bytes"));

    let mut host = Host::open(&planted.server, 2);
    let (other, a) = (planted.id("other"), planted.id("a"));
    let open = Open { mode: OpenMode::Read, ..host.open_write(other, false) };
    let refused = host.run(&planted.server, open, ops::open::open).unwrap_err();
    assert_eq!(refused, ErrorKind::Lost);
    host.make(&planted.server, a, "new", NewNode::Regular).unwrap();
    let empty = host.open_write(other, true);
    let emptied = host.run(&planted.server, empty, ops::open::open).unwrap();
    assert_eq!((emptied.attributes.size, emptied.inline), (0, None));
    expect_none(&check(&planted.server, false), "after it was emptied");
}

/// What is planted, and what must be said of it.
struct Damage {
    kind: FlawKind,
    /// Where, if a path leads there.
    path: Option<&'static str>,
    plant: fn(&Planted, &dyn View) -> Batch,
}

fn finding(report: &NamespaceReport, damage: &Damage) -> FlawFinding {
    let path = damage.path.map(|path| path.as_bytes().to_vec());
    let mut found = report.findings.iter().filter(|found| found.kind == damage.kind);
    let found = found.find(|found| found.path == path);
    let found = found.unwrap_or_else(|| {
        panic!("no {:?} at {:?}: {:?}", damage.kind, damage.path, report.findings)
    });
    found.clone()
}

/// Each damage by itself, on each engine: named, named again, repaired, and gone; and what the
/// repairs made is what a replay makes of the same damage.
#[test]
fn every_damage_is_named_repaired_and_gone_and_a_replay_gives_the_same() {
    for (number, damage) in plant::all().iter().enumerate() {
        let mut planted = Planted::new(ON_DISK[number % ON_DISK.len()]);
        planted.plant_one(damage);
        let what = format!("damage {number}, {:?}", damage.kind);
        for _ in 0..2 {
            let told = finding(&check(&planted.server, false), damage);
            assert!(!told.repaired && !told.text.is_empty(), "{what}: {told:?}");
        }
        // The damage is in no command: with it, a replay begins at a snapshot.
        planted.server.settings.snapshot_bytes = 1;
        planted.server.restart();
        crate::snapshots::tick_and_wait(&planted.server);
        let told = finding(&check(&planted.server, true), damage);
        assert!(told.repaired, "{what}: {told:?}");
        expect_none(&check(&planted.server, false), &what);
        expect_none(&check(&planted.server, true), &what);
        let repaired = tree(&planted.server);
        planted.server.restart();
        planted.server.stop();
        std::fs::remove_dir_all(planted.server.store_dir()).unwrap();
        planted.server.begin();
        assert!(tree(&planted.server) == repaired, "{what}: a replay gives the same tree");
    }
}

/// Tables that a start adds to.
const MADE_BY_STARTS: &[u8] = b"ABFKM";

/// All records but those that a start adds to.
fn tree(server: &Server) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = server.contents().0.into_iter();
    pairs.filter(|(key, _)| !MADE_BY_STARTS.contains(&key[0])).collect()
}

/// What was lost is found under its number, by root alone, with everything in it.
#[test]
fn what_nothing_leads_to_is_named_in_lost_and_found() {
    let mut planted = Planted::new(StoreKind::Lsm);
    let (a, b, file) = (planted.id("a"), planted.id("b"), planted.id("file"));
    planted.plant(|view| plant::without_entry(view, a, b"b"));
    let report = check(&planted.server, true);
    assert!(report.flaws.iter().all(|count| count.found == count.repaired), "{report:?}");
    let host = Host::open(&planted.server, 2);
    let lost = host.lookup(&planted.server, InodeId::ROOT, "lost+found").unwrap().attributes;
    assert_eq!((lost.mode, lost.uid, lost.gid, lost.links), (0o700, 0, 0, 3));
    let again = host.lookup(&planted.server, lost.inode, &b.0.to_string()).unwrap().attributes;
    assert_eq!((again.inode, again.links, again.size), (b, 2, 1));
    assert_eq!(host.lookup(&planted.server, b, "file").unwrap().attributes.inode, file);
    expect_none(&check(&planted.server, false), "afterwards");
    // Another one goes into the same directory.
    let other = planted.id("other");
    planted.plant(|view| plant::without_entry(view, a, b"other"));
    check(&planted.server, true);
    let host = Host::open(&planted.server, 2);
    let again = host.lookup(&planted.server, lost.inode, &other.0.to_string()).unwrap();
    assert_eq!((again.attributes.inode, again.attributes.links), (other, 1));
    expect_none(&check(&planted.server, false), "in the end");
}

/// Somebody has a file of that name: nothing is repaired over it, and the finding stays.
#[test]
fn a_file_named_lost_and_found_is_left_alone() {
    let mut planted = Planted::new(StoreKind::default());
    let mut host = Host::open(&planted.server, 2);
    host.make(&planted.server, InodeId::ROOT, "lost+found", NewNode::Regular).unwrap();
    let a = planted.id("a");
    planted.plant(|view| plant::without_entry(view, a, b"other"));
    for _ in 0..2 {
        let report = check(&planted.server, true);
        let nameless = report.findings.iter().find(|found| found.kind == FlawKind::Nameless);
        assert!(!nameless.unwrap().repaired, "{report:?}");
    }
}
