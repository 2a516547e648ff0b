use std::{pin::pin, task::Poll};

use futures::poll;
use millrace_types::ChangeCount;

use super::*;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 24 * 60 * 60 * SECOND;
/// When the tests begin.
const NOW: i64 = 100 * DAY;

const ALL: Followed = Followed { files: true, directories: true };

/// Last changed an hour before [`NOW`].
fn shown(inode: u64, kind: FileKind, accessed: i64) -> Attributes {
    let changed = Timestamp(NOW - 3600 * SECOND);
    Attributes {
        inode: InodeId(inode),
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size: 1,
        accessed: Timestamp(accessed),
        modified: changed,
        changed,
        born: changed,
        change_count: ChangeCount(1),
    }
}

fn file(inode: u64, accessed: i64) -> Attributes {
    shown(inode, FileKind::Regular, accessed)
}

fn times(followed: Followed) -> AccessTimes {
    AccessTimes::new(followed, Timestamp(NOW))
}

/// Reads what shows `shown` at `at`.
fn read(times: &AccessTimes, mut shown: Attributes, at: i64) -> Attributes {
    if times.may_be_due(&shown) {
        times.note(&mut shown, Timestamp(at));
    }
    shown
}

#[test]
fn a_read_comes_after_the_change_that_it_shows_whatever_the_clock_says() {
    let times = times(ALL);
    let changed = Attributes { changed: Timestamp(NOW + SECOND), ..file(7, NOW - DAY) };
    let first = read(&times, changed, NOW);
    assert_eq!(first.accessed, Timestamp(NOW + SECOND + 1));
    assert!(!times.may_be_due(&first), "once");
}

#[test]
fn a_read_is_noted_once_until_the_file_changes_or_a_day_has_passed() {
    let times = times(ALL);
    let first = read(&times, file(7, NOW - DAY), NOW);
    assert_eq!(first.accessed, Timestamp(NOW));
    let again = read(&times, first.clone(), NOW + SECOND);
    assert_eq!(again.accessed, Timestamp(NOW), "a moment later");
    let expected = LastRead { inode: InodeId(7), seen: Timestamp(NOW - DAY), at: Timestamp(NOW) };
    assert_eq!(times.batch(), [expected]);

    let written =
        Attributes { modified: Timestamp(NOW + 2 * SECOND), change_count: ChangeCount(2), ..again };
    let third = read(&times, written, NOW + 3 * SECOND);
    assert_eq!(third.accessed, Timestamp(NOW + 3 * SECOND));
    let expected = LastRead { at: third.accessed, ..expected };
    assert_eq!(times.batch(), [expected], "with what the server still shows");

    times.handle_told(&[expected], Timestamp(NOW + 4 * SECOND));
    assert!(times.batch().is_empty());
    times.handle_time(Timestamp(NOW + DAY));
    let within = read(&times, third.clone(), NOW + DAY);
    assert_eq!(within.accessed, third.accessed);
    times.handle_time(Timestamp(NOW + DAY + 3 * SECOND));
    let later = read(&times, third, NOW + DAY + 3 * SECOND);
    assert_eq!(later.accessed, Timestamp(NOW + DAY + 3 * SECOND));
}

#[test]
fn what_is_not_followed_is_not_noted() {
    let none = times(Followed { files: false, directories: false });
    let files = times(Followed { files: true, directories: false });
    assert!(!none.is_used() && files.is_used());
    for times in [&none, &files] {
        read(times, shown(7, FileKind::Directory, 0), NOW);
        assert!(times.batch().is_empty());
    }
    read(&none, file(7, 0), NOW);
    assert!(none.batch().is_empty());
    read(&files, file(7, 0), NOW);
    read(&files, shown(8, FileKind::Symlink, 0), NOW);
    assert_eq!(files.batch().len(), 2);
}

#[test]
fn what_was_read_is_shown_until_the_server_has_long_known_it() {
    let times = times(ALL);
    let before = file(7, 0);
    read(&times, before.clone(), NOW);
    let shows = |of: &Attributes| {
        let mut shown = of.clone();
        times.show(&mut shown);
        shown.accessed.0
    };
    assert_eq!(shows(&before), NOW);
    let set = Attributes { accessed: Timestamp(5), changed: Timestamp(NOW + SECOND), ..file(7, 0) };
    assert_eq!(shows(&set), 5, "set by another host since");
    let batch = times.batch();
    times.handle_told(&batch, Timestamp(NOW + SECOND));
    assert_eq!(shows(&before), NOW, "an answer from before");
    times.handle_told(&[], Timestamp(NOW + 12 * SECOND));
    assert_eq!(shows(&before), 0, "forgotten");
}

#[test]
fn a_program_that_sets_the_time_is_not_overruled_by_what_was_read_before() {
    let times = times(ALL);
    read(&times, file(7, 0), NOW);
    times.forget(InodeId(7));
    assert!(times.batch().is_empty());
    let mut shown = file(7, 0);
    times.show(&mut shown);
    assert_eq!(shown.accessed, Timestamp(0));
}

#[test]
fn a_file_that_is_read_while_its_batch_is_out_is_told_again() {
    let times = times(ALL);
    let first = read(&times, file(7, 0), NOW);
    let batch = times.batch();
    let written = Attributes { modified: Timestamp(NOW + SECOND), ..first };
    read(&times, written, NOW + 2 * SECOND);
    times.handle_told(&batch, Timestamp(NOW + 3 * SECOND));
    let again = LastRead { seen: Timestamp(NOW), at: Timestamp(NOW + 2 * SECOND), ..batch[0] };
    assert_eq!(times.batch(), [again]);
    times.handle_refused(&[again]);
    assert!(times.batch().is_empty());
}

#[test]
fn of_what_is_not_known_here_the_server_decides() {
    let times = times(ALL);
    times.note_unseen(InodeId(7), Timestamp(NOW));
    times.note_unseen(InodeId(7), Timestamp(NOW + SECOND));
    let unseen = LastRead { inode: InodeId(7), seen: LastRead::UNSEEN, at: Timestamp(NOW) };
    assert_eq!(times.batch(), [unseen]);
    times.handle_told(&[unseen], Timestamp(NOW + SECOND));
    times.note_unseen(InodeId(7), Timestamp(NOW + 2 * SECOND));
    assert!(times.batch().is_empty(), "it was told a moment ago");
}

#[tokio::test]
async fn what_is_noted_is_bounded_and_a_whole_batch_is_told_at_once() {
    let times = times(ALL);
    let at_most = NOTED_MAX as u64;
    for inode in 0..at_most + 10 {
        let wanted = pin!(times.full());
        let full = inode >= READS_MAX as u64;
        assert_eq!(poll!(wanted) == Poll::Ready(()), full, "{inode}");
        let seen = read(&times, file(inode, 0), NOW);
        assert_eq!(seen.accessed.0 == NOW, inode < at_most, "{inode}");
    }
    let batch = times.batch();
    assert_eq!(batch.len(), READS_MAX);
    times.handle_told(&batch, Timestamp(NOW));
    let room = read(&times, file(at_most + 10, 0), NOW);
    assert_eq!(room.accessed, Timestamp(NOW), "what was told makes room");
}
