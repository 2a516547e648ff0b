//! Trees at random: nothing is complained of while they change, and damages at random are repaired
//! without a change of anything else.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use millrace_metadata_server::{
    command::{Command, Create},
    engine::StoreKind,
    namespace::{Inode, tree},
    store::{
        Batch, View, borrow, keys, prefix_end,
        records::{Entry, FileSystem, Record as _},
    },
};
use millrace_protocol::{fsck::NamespaceState, metadata::NewNode, session::Caller};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, FileName, InodeId};
use tempfile::TempDir;

use super::{
    check, check_at, expect_none,
    plant::{second_entry, with_entry, with_inode, without_entry},
};
use crate::{
    chance::{for_each_seed, pick, stretched},
    commands::Commands,
    engine::{ON_DISK, Server, settings},
};

/// Executes so many random commands.
fn go_on(server: &Server, mut commands: Commands, count: usize) -> Commands {
    let time = server.time.clone();
    server.turn(move |core| {
        for _ in 0..count {
            let next = commands.next(core.view());
            time.advance(next.pause.min(Duration::from_millis(10)));
            if let Err(failure) = core.execute(next.operation, next.command.clone()) {
                assert!(failure.kind != ErrorKind::Disk, "{failure} at {next:?}");
            }
        }
        commands
    })
}

/// A directory with more names than are counted in one turn. To be made first: an empty root may
/// be linked, and nothing is written to some buckets.
fn make_large(server: &Server, names: u64) {
    server.turn(move |core| {
        let mut make = |parent, text: String, node, inode| {
            let name = FileName::parse(text.as_bytes()).unwrap();
            let create = Create {
                caller: Caller::ROOT,
                parent,
                name,
                node,
                mode: 0o755,
                inode,
                seed: 0,
                open: None,
                exclusive: true,
            };
            core.execute(None, Command::Create(create)).unwrap();
        };
        make(InodeId::ROOT, "large".to_owned(), NewNode::Directory, LARGE);
        for number in 0..names {
            let node = if number % 7 == 0 { NewNode::Directory } else { NewNode::Fifo };
            make(LARGE, format!("{number:05}"), node, InodeId(LARGE.0 + 1 + number));
        }
    });
}

const LARGE: InodeId = InodeId(1 << 22);

#[test]
fn nothing_is_complained_of_while_everything_changes() {
    for_each_seed(3, |random| {
        let dir = TempDir::new().unwrap();
        let server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
        make_large(&server, 3_000);
        let mut commands = go_on(&server, Commands::new(random.clone()), 300);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        for round in 0..stretched(4) {
            let engine = server.handle().clone();
            let running =
                runtime.spawn(async move { check_at(&engine, round % 2 == 1, 60_000).await });
            let mut given = 0;
            while !running.is_finished() {
                let count = usize::try_from(random.within(1..8)).unwrap();
                commands = go_on(&server, commands, count);
                change_large(&server, &random);
                given += count;
            }
            let report = runtime.block_on(running).unwrap();
            assert_eq!(report.state, NamespaceState::Done, "{report:?}");
            expect_none(&report, &format!("round {round}, during {given} commands"));
            assert!(given > 20, "something has changed: {given}");
        }
    });
}

/// Takes a name out of the large directory, or puts it back, wherever in its order.
fn change_large(server: &Server, random: &Random) {
    let number = random.within(0..3_000);
    let is_directory = number.is_multiple_of(7);
    let fresh = random.within(1 << 30..1 << 40);
    server.turn(move |core| {
        let name = FileName::parse(format!("{number:05}").as_bytes()).unwrap();
        let there = tree::entry(core.view(), LARGE, &name).unwrap().is_some();
        let command = match there {
            true => Command::Remove(millrace_metadata_server::command::Remove {
                caller: Caller::ROOT,
                parent: LARGE,
                name,
                directory: is_directory,
                readers: Vec::new(),
            }),
            false => Command::Create(Create {
                caller: Caller::ROOT,
                parent: LARGE,
                name,
                node: if is_directory { NewNode::Directory } else { NewNode::Fifo },
                mode: 0o755,
                inode: InodeId(fresh),
                seed: 0,
                open: None,
                exclusive: true,
            }),
        };
        if let Err(failure) = core.execute(None, command) {
            // The other commands use this directory too.
            assert!(failure.kind != ErrorKind::Disk, "{failure}");
        }
    });
}

/// What a tree is, without times, change counts and positions in listings.
fn shape(view: &dyn View) -> BTreeMap<Vec<u8>, String> {
    let all = view.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap();
    let mut shape = BTreeMap::new();
    for (key, value) in all {
        let text = match key[0] {
            b'D' => {
                let entry = Entry::decode(&value).unwrap();
                format!("{} {:?}", entry.inode, entry.kind)
            }
            b'I' => of_inode(view, &Inode::decode(&value).unwrap()),
            b'F' => {
                let said = FileSystem::decode(&value).unwrap();
                format!("{} {}", said.inodes, said.reclaim_entries)
            }
            // A name is found by the entries; who is first among several does not matter.
            b'N' | b'C' | b'A' | b'B' | b'K' | b'M' | b'S' => continue,
            _ => format!("{value:?}"),
        };
        shape.insert(key, text);
    }
    shape
}

fn of_inode(view: &dyn View, inode: &Inode) -> String {
    let names = tree::parents(view, inode).unwrap().into_iter();
    let names: BTreeSet<_> =
        names.map(|link| (link.directory, link.name.as_bytes().to_vec())).collect();
    let Inode { kind, mode, uid, gid, links, size, accounting, xattr_bytes, .. } = inode;
    format!("{kind:?} {mode} {uid} {gid} {links} {size} {accounting} {xattr_bytes} {names:?}")
}

/// One damage at random that takes nothing away that only it knows.
fn damage(view: &dyn View, random: &Random) -> Batch {
    let mut entries = {
        let all = keys::all_entries();
        view.scan(Bound::Included(&all), borrow(&prefix_end(&all)), usize::MAX).unwrap()
    };
    entries.retain(|(_, value)| {
        let inode = Entry::decode(value).unwrap().inode;
        view.get(&keys::inode(inode)).unwrap().is_some()
    });
    let (key, value) = pick(random, &entries).unwrap().clone();
    let (directory, name) = (InodeId(keys::number_at(&key, 1).unwrap()), key[9..].to_vec());
    let entry = Entry::decode(&value).unwrap();
    let number = random.within(0..1 << 20);
    match random.within(0..9) {
        0 => with_inode(view, entry.inode, |inode| inode.links = inode.links.wrapping_add(3)),
        1 => with_inode(view, directory, |inode| inode.size += 5),
        2 => with_inode(view, directory, |inode| inode.links += 2),
        3 => with_inode(view, entry.inode, |inode| inode.xattr_bytes += 11),
        4 => with_entry(view, (directory, &name), |entry| entry.cookie = 0),
        5 => {
            let lost = format!("dead-{number}");
            let of = Entry { inode: InodeId(1 << 50), ..entry };
            second_entry(view, directory, lost.as_bytes(), &of)
        }
        6 => with_inode(view, entry.inode, |inode| {
            if let Some(parent) = &mut inode.parent {
                parent.directory = InodeId(1 << 51);
            }
        }),
        7 => {
            let mut batch = Batch::default();
            let name = format!("user.{number}");
            batch.put(keys::xattr(InodeId(1 << 52), name.as_bytes()), b"1".to_vec());
            batch
        }
        _ => with_inode(view, entry.inode, |inode| inode.accounting = 5),
    }
}

#[test]
fn damages_at_random_are_repaired_and_nothing_else_changes() {
    for_each_seed(6, |random| {
        let dir = TempDir::new().unwrap();
        let store = *pick(&random, &ON_DISK).unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), store);
        make_large(&server, 1_200);
        go_on(&server, Commands::new(random.clone()), stretched(600));
        server.restart();
        expect_none(&check(&server, false), "before");
        let before = server.turn(|core| shape(core.view()));
        server.stop();
        let mut store = server.open_store();
        let planted = 1 + random.within(0..25);
        for _ in 0..planted {
            // Each on top of those before.
            let batch = damage(&*store, &random);
            store.commit(&batch).unwrap();
        }
        store.checkpoint().unwrap();
        drop(store);
        server.begin();
        let found = check(&server, false);
        assert!(!found.flaws.is_empty(), "{planted} were planted");
        let report = check(&server, true);
        let left = report.flaws.iter().filter(|count| count.found != count.repaired);
        assert_eq!(left.count(), 0, "{report:?}");
        expect_none(&check(&server, false), "after the repairs");
        let after = server.turn(|core| shape(core.view()));
        for (key, text) in &before {
            assert_eq!(after.get(key), Some(text), "{}", key.escape_ascii());
        }
        assert_eq!(after.len(), before.len(), "nothing has come to it");
    });
}

/// What is lost is found, whatever it is; and everything that was not lost is as it was.
#[test]
fn inodes_that_lose_their_names_at_random_are_all_found() {
    for_each_seed(4, |random| {
        let dir = TempDir::new().unwrap();
        let (settings, time) = settings(&dir.path().join("metadata"), StoreKind::Lsm);
        let mut server = Server::start_with(settings, time);
        go_on(&server, Commands::new(random.clone()), stretched(500));
        server.restart();
        let before = server.turn(|core| all_inodes(core.view()));
        server.stop();
        let mut store = server.open_store();
        let mut lost = BTreeSet::new();
        for _ in 0..1 + random.within(0..6) {
            let all = keys::all_entries();
            let end = prefix_end(&all);
            let entries = store.scan(Bound::Included(&all), borrow(&end), usize::MAX).unwrap();
            let Some((key, value)) = pick(&random, &entries).cloned() else { break };
            let directory = InodeId(keys::number_at(&key, 1).unwrap());
            lost.insert(Entry::decode(&value).unwrap().inode);
            let batch = without_entry(&*store, directory, &key[9..]);
            store.commit(&batch).unwrap();
        }
        store.checkpoint().unwrap();
        drop(store);
        server.begin();
        check(&server, true);
        expect_none(&check(&server, false), "after the repairs");
        let after = server.turn(|core| all_inodes(core.view()));
        assert!(after.is_superset(&before), "no inode is gone: {:?}", before.difference(&after));
        let reached = server.turn(|core| reachable(core.view()));
        assert!(lost.is_subset(&reached), "{:?}", lost.difference(&reached));
    });
}

fn all_inodes(view: &dyn View) -> BTreeSet<InodeId> {
    let found = tree::scan::<Inode>(view, &keys::inodes(), usize::MAX).unwrap();
    found.into_iter().map(|(_, inode)| inode.id).collect()
}

/// Everything that a walk from the root meets.
fn reachable(view: &dyn View) -> BTreeSet<InodeId> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![InodeId::ROOT]);
    while let Some(directory) = open.pop() {
        for (_, entry) in tree::list(view, directory, 0, usize::MAX).unwrap() {
            let inode = tree::named(view, &entry).unwrap();
            if seen.insert(inode.id) && inode.is_directory() {
                open.push(inode.id);
            }
        }
    }
    seen
}
