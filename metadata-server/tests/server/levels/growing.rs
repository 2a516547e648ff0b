//! Paths that grow longer than any key of a bucket, and files that grow.

use super::*;

/// The directory so deep in the link.
fn at(depth: u64) -> InodeId {
    InodeId(2 + depth)
}

/// Makes directories in one another, 256 bytes of a path each; what all are called.
fn nest(log: &mut Log, count: u64) -> FileName {
    let name = FileName::parse(&[b'd'; 255]).unwrap();
    for depth in 1..=count {
        log.apply(Command::Create(Create {
            caller: Caller::ROOT,
            parent: at(depth - 1),
            name: name.clone(),
            node: NewNode::Directory,
            mode: 0o755,
            inode: at(depth),
            seed: 0,
            open: None,
            exclusive: true,
        }))
        .unwrap();
    }
    name
}

/// Some of them are renamed.
#[test]
fn no_removal_waits_for_what_no_key_can_be_from_the_eighteenth_level_on() {
    for (level, expected) in [(17, vec![1, 16, 17, 255]), (18, vec![1, 16])] {
        let mut log = linked(LinkMode::ImportExport);
        log.apply(Command::SetFeatureLevel(level)).unwrap();
        let set = SetDeletePropagation { link: LinkId(1), on: true };
        log.apply(Command::SetDeletePropagation(set)).unwrap();
        let name = nest(&mut log, 260);
        for depth in [260, 256, 255, 17, 16, 1] {
            log.apply(Command::Rename(Rename {
                caller: Caller::ROOT,
                source_parent: at(depth - 1),
                source_name: name.clone(),
                target_parent: at(depth - 1),
                target_name: FileName::parse(b"away").unwrap(),
                mode: RenameMode::NoReplace,
                readers: Vec::new(),
            }))
            .unwrap();
        }
        let queue = keys::deletions(LinkId(1));
        let queued = tree::scan::<DeletionRecord>(&log.store, &queue, usize::MAX).unwrap();
        let lens: Vec<usize> = queued.iter().map(|(key, _)| key.len() - queue.len()).collect();
        let expected: Vec<usize> = expected.into_iter().map(|depth| depth * 256).collect();
        assert_eq!(lens, expected, "level {level}");
    }
}

/// Each would have all the names above it in its record, although no bucket has such a key.
#[test]
fn directories_deeper_than_any_key_show_nothing_of_a_bucket_from_the_twenty_sixth_level_on() {
    for level in [25, 26] {
        let mut log = linked(LinkMode::ImportExport);
        log.apply(Command::SetFeatureLevel(level)).unwrap();
        nest(&mut log, 18);
        let prefix = |depth| {
            let directory = tree::inode(&log.store, at(depth)).unwrap();
            directory.directory().unwrap().linked.as_ref().map(|linked| linked.prefix.len())
        };
        assert_eq!(prefix(16), Some(4096));
        for depth in [17, 18] {
            let len = usize::try_from(depth).unwrap() * 256;
            assert_eq!(prefix(depth), (level == 25).then_some(len), "level {level}");
        }
    }
}

/// Another host has written behind the end that the one that zeroes knew.
#[test]
fn what_is_zeroed_past_its_end_is_not_cut_from_the_twenty_sixth_level_on() {
    for (level, after) in [(25, 150), (26, 4096)] {
        let mut log = exported(level);
        let set = |size, make_sparse| {
            let caller = Some(Caller::ROOT);
            let set =
                SetAttributes { caller, inode: FILE, size, make_sparse, ..Default::default() };
            Command::SetAttributes(set)
        };
        log.apply(set(Some(4096), false)).unwrap();
        log.apply(set(Some(150), true)).unwrap();
        let size = || tree::inode(&log.store, FILE).unwrap().size;
        assert_eq!(size(), after, "level {level}");
        if level == 26 {
            log.apply(set(Some(8192), true)).unwrap();
            let found = tree::inode(&log.store, FILE).unwrap();
            assert!(found.size == 8192 && found.file().unwrap().sparse);
        }
    }
}
