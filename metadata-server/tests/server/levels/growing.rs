//! Paths and files that grow, from the twenty-sixth level on.

use super::*;

/// Each would have all the names above it in its record, although no bucket has such a key.
#[test]
fn directories_deeper_than_any_key_show_nothing_of_a_bucket_from_the_twenty_sixth_level_on() {
    for level in [25, 26] {
        let mut log = linked(LinkMode::ImportExport);
        log.apply(Command::SetFeatureLevel(level)).unwrap();
        let at = |depth: u64| InodeId(2 + depth);
        // 256 bytes of a path each.
        for depth in 1..=18 {
            log.apply(Command::Create(Create {
                caller: Caller::ROOT,
                parent: at(depth - 1),
                name: FileName::parse(&[b'd'; 255]).unwrap(),
                node: NewNode::Directory,
                mode: 0o755,
                inode: at(depth),
                seed: 0,
                open: None,
                exclusive: true,
            }))
            .unwrap();
        }
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
