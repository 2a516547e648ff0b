//! What holds for every store, whatever happened: read from its raw tables.

use std::collections::{BTreeMap, BTreeSet};

use millrace_metadata_server::{
    namespace::{Inode, tree},
    store::{
        View, keys,
        records::{self, Entry, FileSystem, OpenRecord, ReclaimRecord},
    },
};
use millrace_types::{InodeId, TargetId};

use crate::engine::contents;

/// One name: directory, name, and what it leads to.
type Name = (InodeId, Vec<u8>);

/// Checks everything that needs no model.
pub(super) fn check(view: &dyn View) {
    let inodes: BTreeMap<InodeId, Inode> = tree::scan::<Inode>(view, b"I", usize::MAX)
        .unwrap()
        .into_iter()
        .map(|(_, inode)| (inode.id, inode))
        .collect();
    let entries: BTreeMap<Name, Entry> = tree::scan::<Entry>(view, b"D", usize::MAX)
        .unwrap()
        .into_iter()
        .map(|(key, entry)| {
            ((InodeId(keys::number_at(&key, 1).unwrap()), key[9..].to_vec()), entry)
        })
        .collect();
    let file_system: FileSystem = records::read(view, &keys::file_system()).unwrap().unwrap();
    assert_eq!(file_system.inodes, inodes.len() as u64, "inodes are counted");
    names_lead_to_inodes(&inodes, &entries);
    links_are_counted(&inodes, &entries);
    parents_are_names(view, &inodes, &entries);
    everything_is_reachable(view, &inodes);
    opens_are_indexed_both_ways(view);
    let queued = tree::scan::<ReclaimRecord>(view, &keys::reclaims(), usize::MAX).unwrap();
    assert_eq!(file_system.reclaim_entries, queued.len() as u64, "the queues are counted");
}

fn names_lead_to_inodes(inodes: &BTreeMap<InodeId, Inode>, entries: &BTreeMap<Name, Entry>) {
    for ((directory, name), entry) in entries {
        let inode = inodes.get(&entry.inode);
        let inode = inode.unwrap_or_else(|| panic!("{name:?} in {directory} leads nowhere"));
        assert_eq!(inode.kind, entry.kind, "{name:?} in {directory} knows what it names");
        assert!(inodes[directory].is_directory(), "{directory} has names");
    }
}

fn links_are_counted(inodes: &BTreeMap<InodeId, Inode>, entries: &BTreeMap<Name, Entry>) {
    for inode in inodes.values() {
        let names = entries.values().filter(|entry| entry.inode == inode.id).count();
        if inode.is_directory() {
            let inside = || entries.iter().filter(|((directory, _), _)| *directory == inode.id);
            let below = inside().filter(|(_, entry)| inodes[&entry.inode].is_directory()).count();
            assert_eq!(inode.size, inside().count() as u64, "entries of {}", inode.id);
            assert_eq!(inode.links as usize, 2 + below, "links of the directory {}", inode.id);
            assert_eq!(names, usize::from(inode.id != InodeId::ROOT), "names of {}", inode.id);
        } else {
            assert_eq!(inode.links as usize, names, "links of {}", inode.id);
        }
    }
}

/// The first name of an inode and the table of further ones are its entries, each once.
fn parents_are_names(
    view: &dyn View,
    inodes: &BTreeMap<InodeId, Inode>,
    entries: &BTreeMap<Name, Entry>,
) {
    for inode in inodes.values() {
        let parents = tree::parents(view, inode).unwrap();
        let known: BTreeSet<Name> = parents
            .iter()
            .map(|parent| (parent.directory, parent.name.as_bytes().to_vec()))
            .collect();
        let named: BTreeSet<Name> = entries
            .iter()
            .filter(|(_, entry)| entry.inode == inode.id)
            .map(|(name, _)| name.clone())
            .collect();
        assert_eq!(known, named, "the names of {}", inode.id);
        assert_eq!(parents.len(), known.len(), "{} knows a name twice", inode.id);
    }
    let further = contents(view).0.into_iter().filter(|(key, _)| key[0] == b'N').count();
    let files = inodes.values().filter(|inode| !inode.is_directory());
    let expected: u32 = files.map(|inode| inode.links.saturating_sub(1)).sum();
    assert_eq!(further, expected as usize, "the table of further names holds no others");
}

/// From the root, or held open without a name.
fn everything_is_reachable(view: &dyn View, inodes: &BTreeMap<InodeId, Inode>) {
    let mut left: BTreeSet<InodeId> = inodes.keys().copied().collect();
    let mut open = vec![InodeId::ROOT];
    while let Some(directory) = open.pop() {
        left.remove(&directory);
        let listed = tree::list(view, directory, 0, usize::MAX).unwrap();
        assert_eq!(listed.len() as u64, inodes[&directory].size, "the listing of {directory}");
        for (_, entry) in listed {
            match inodes[&entry.inode].is_directory() {
                true => open.push(entry.inode),
                false => drop(left.remove(&entry.inode)),
            }
        }
    }
    for orphan in left {
        assert_eq!(inodes[&orphan].links, 0, "{orphan} cannot be reached");
        let opens = tree::scan::<OpenRecord>(view, &keys::opens(orphan), 1).unwrap();
        assert!(!opens.is_empty(), "{orphan} has neither a name nor an opener");
    }
}

fn opens_are_indexed_both_ways(view: &dyn View) {
    let table = |letter, first: usize, second: usize| -> BTreeSet<(u64, u64)> {
        let all = contents(view).0.into_iter().map(|(key, _)| key);
        let of_table = all.filter(|key| key[0] == letter);
        let number = |key: &[u8], at| keys::number_at(key, at).unwrap();
        of_table.map(|key| (number(&key, first), number(&key, second))).collect()
    };
    assert_eq!(table(b'O', 1, 9), table(b'Y', 9, 1), "opens by inode and by session");
    for (key, open) in tree::scan::<OpenRecord>(view, b"O", usize::MAX).unwrap() {
        assert!(open.writes > 0 || open.reads, "an open record without an open: {key:?}");
    }
}

/// The queue of a target: contents in the order in which they were given up.
pub(super) fn queue(view: &dyn View, target: TargetId) -> Vec<(InodeId, u32)> {
    let queue = tree::scan::<ReclaimRecord>(view, &keys::reclaims_of(target), usize::MAX).unwrap();
    queue.into_iter().map(|(_, record)| (record.inode, record.generation.0)).collect()
}
