//! What a mount may make by itself, whoever gives and takes meanwhile.

use millrace_protocol::{capability::Rights, metadata::FileKind};
use millrace_types::{
    ChangeCount, ChunkSize, ContentGeneration, KeyId, Layout, PoolId, WriteEpoch,
};

use super::*;

const DIRECTORY: InodeId = InodeId(9);

fn told(incarnation: u64) -> Told {
    Told { session: SessionId(3), incarnation }
}

fn attributes(mode: u16) -> Attributes {
    Attributes {
        inode: DIRECTORY,
        kind: FileKind::Directory,
        mode,
        uid: 1000,
        gid: 100,
        links: 2,
        device: 0,
        size: 0,
        accessed: Timestamp(0),
        modified: Timestamp(0),
        changed: Timestamp(0),
        born: Timestamp(0),
        change_count: ChangeCount(1),
    }
}

fn given(inode: u64) -> (Content, Signed) {
    let content = Content {
        inode: InodeId(inode),
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(1),
        layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).expect("sound"),
        origin: None,
        origin_length: 0,
        sparse: false,
    };
    let capability =
        Capability { rights: Rights::ReadWrite, session: SessionId(3), content: content.clone() };
    let body = codec::encode(&capability).to_vec();
    (content, Signed { key: KeyId(1), body, mac: [0; 32] })
}

fn granted(contents: Contents) -> Option<Granted> {
    Some(Granted { told: told(1), directory: attributes(0o755), contents, inline_bytes_max: 4096 })
}

/// A delegation with so many contents, from id 20 on.
fn delegated(count: u64) -> Delegations {
    let delegations = Delegations::default();
    let now = Instant::now();
    let asks: Vec<_> = (0..BURST).map(|_| delegations.handle_made(DIRECTORY, now)).collect();
    assert_eq!(asks, [false, false, false, true]);
    assert!(!delegations.handle_made(DIRECTORY, now), "it is asked for already");
    let contents = (20..20 + count).map(given).collect();
    delegations.handle_answer(DIRECTORY, granted(contents), || true);
    delegations
}

fn take(delegations: &Delegations) -> Option<(u64, bool)> {
    let given = delegations.take(DIRECTORY, &Caller::ROOT, told(1))?;
    Some((given.content.inode.0, given.is_low))
}

#[test]
fn what_is_given_is_used_in_its_order_and_more_is_asked_for_once() {
    let delegations = delegated(66);
    for inode in 20..53 {
        assert_eq!(take(&delegations), Some((inode, false)));
    }
    assert_eq!(take(&delegations), Some((53, true)), "fewer than half are left");
    assert_eq!(take(&delegations), Some((54, false)), "somebody asks already");
    let more = (200..201).map(given).collect();
    delegations.handle_answer(DIRECTORY, granted(more), || true);
    for inode in 55..86 {
        assert_eq!(take(&delegations), Some((inode, false)));
    }
    assert_eq!(take(&delegations), Some((200, true)), "it was the last");
    assert_eq!(take(&delegations), None);
}

#[test]
fn files_that_are_made_now_and_then_are_asked_for() {
    let delegations = Delegations::default();
    let start = Instant::now();
    for number in 0..100 {
        let asks = delegations.handle_made(DIRECTORY, start + number * BURST_TIME / 2);
        assert!(!asks, "at {number}");
    }
    let later = start + 100 * BURST_TIME;
    assert!((0..BURST).any(|_| delegations.handle_made(DIRECTORY, later)));
}

#[test]
fn nothing_is_made_under_what_was_taken_back_or_is_of_another_life_or_session() {
    let delegations = delegated(5);
    let other_session = Told { session: SessionId(4), incarnation: 1 };
    for now in [told(2), other_session] {
        assert!(delegations.take(DIRECTORY, &Caller::ROOT, now).is_none(), "{now:?}");
    }
    delegations.end(Some(DIRECTORY));
    assert_eq!(take(&delegations), None);
    let delegations = delegated(5);
    delegations.end(None);
    assert_eq!(take(&delegations), None);
    // What arrives after it was taken back does not count.
    let late = granted(vec![given(99)]);
    delegations.handle_answer(DIRECTORY, late, || false);
    assert_eq!(take(&delegations), None);
}

#[test]
fn only_who_may_write_in_the_directory_makes_files_there() {
    let allowed = |uid, gid, groups: &[u32], mode| {
        may_add(&Caller { uid, gid, groups: groups.to_vec() }, &attributes(mode))
    };
    assert!(allowed(0, 0, &[], 0o000));
    assert!(allowed(1000, 5, &[], 0o300));
    assert!(!allowed(1000, 100, &[], 0o077), "the owner is nobody else");
    assert!(allowed(5, 100, &[], 0o030) && allowed(5, 5, &[7, 100], 0o030));
    assert!(!allowed(5, 100, &[], 0o703), "nor is the group");
    assert!(allowed(5, 5, &[], 0o003));
    assert!(!allowed(5, 5, &[], 0o772) && !allowed(5, 5, &[], 0o771));
}

#[test]
fn files_count_as_unpublished_until_they_are_removed() {
    let delegations = delegated(5);
    assert!(delegations.is_settled());
    let file = crate::fs::file::tests::file(20);
    assert!(delegations.insert(DIRECTORY, Arc::clone(&file)), "somebody must watch");
    assert!(!delegations.insert(InodeId(10), crate::fs::file::tests::file(21)));
    assert!(!delegations.is_settled());
    let inodes = |directory| {
        let files = delegations.unpublished(directory);
        let mut inodes: Vec<_> = files.iter().map(|file| file.inode.0).collect();
        inodes.sort_unstable();
        inodes
    };
    assert_eq!((inodes(None), inodes(Some(DIRECTORY))), (vec![20, 21], vec![20]));
    delegations.remove(DIRECTORY, file.inode);
    delegations.remove(DIRECTORY, file.inode);
    assert!(!delegations.is_settled());
    assert!(!delegations.end_watch(), "there is one left");
    delegations.remove(InodeId(10), InodeId(21));
    assert!(delegations.is_settled() && delegations.end_watch());
    assert!(delegations.insert(DIRECTORY, file), "nobody watches any more");
}

#[test]
fn what_is_watched_is_bounded() {
    let delegations = Delegations::default();
    let start = Instant::now();
    for inode in 0..4 * DIRECTORIES_MAX as u64 {
        delegations.handle_made(InodeId(inode), start);
    }
    assert_eq!(delegations.lock().len(), DIRECTORIES_MAX);
    delegations.handle_made(InodeId(1 << 20), start + 2 * BURST_TIME);
    assert_eq!(delegations.lock().len(), 1);
}
