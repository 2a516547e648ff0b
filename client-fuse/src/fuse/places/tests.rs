use std::{sync::mpsc, time::Instant};

use millrace_types::{ChangeCount, Timestamp};

use super::*;

const DIRECTORY: InodeId = InodeId(7);
const PARENTS: [InodeId; 3] = [InodeId(1), InodeId(2), InodeId(3)];

fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

fn found(inode: InodeId, kind: FileKind) -> Attributes {
    Attributes {
        inode,
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        links: 2,
        device: 0,
        size: 0,
        accessed: Timestamp(0),
        modified: Timestamp(0),
        changed: Timestamp(0),
        born: Timestamp(0),
        change_count: ChangeCount(0),
    }
}

fn directory() -> Attributes {
    found(DIRECTORY, FileKind::Directory)
}

/// Places, what is dropped, and a way to let each drop end.
fn connected() -> (Arc<Places>, mpsc::Receiver<Place>, mpsc::Sender<()>) {
    let places = Arc::new(Places::default());
    let (dropping, dropped) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let ended = Mutex::new(ended);
    places.connect(move |place: &Place| {
        dropping.send(place.clone()).unwrap();
        // Without a sender it ends at once.
        let _ended: Result<(), mpsc::RecvError> = ended.lock().unwrap().recv();
    });
    (places, dropped, end)
}

#[test]
fn a_directory_that_is_where_it_was_and_whatever_is_none_is_answered_at_once() {
    let places = Places::default();
    assert!(places.take(&directory(), PARENTS[0], &name("a")));
    assert!(places.take(&directory(), PARENTS[0], &name("a")));
    assert!(places.take(&directory(), PARENTS[0], &name("b")), "in the same directory");
    assert!(!places.take(&directory(), PARENTS[1], &name("b")), "elsewhere");
    places.forget(DIRECTORY, 2);
    assert!(!places.take(&directory(), PARENTS[1], &name("b")), "it was told three times");
    places.forget(DIRECTORY, 1);
    assert!(places.take(&directory(), PARENTS[1], &name("b")), "the kernel had forgotten it");
    let file = found(InodeId(8), FileKind::Regular);
    assert!(places.take(&file, PARENTS[0], &name("f")));
    assert!(places.take(&file, PARENTS[1], &name("f")));
}

#[test]
fn what_this_mount_has_renamed_is_where_the_kernel_has_put_it() {
    let places = Places::default();
    let other = found(InodeId(9), FileKind::Directory);
    let at = |number: usize, text: &str| (PARENTS[number], name(text));
    assert!(places.take(&directory(), PARENTS[0], &name("a")));
    assert!(places.take(&other, PARENTS[1], &name("b")));
    places.handle_rename(at(0, "a"), at(1, "b"), RenameMode::Exchange);
    assert!(places.take(&directory(), PARENTS[1], &name("b")));
    assert!(places.take(&other, PARENTS[0], &name("a")));
    places.handle_rename(at(0, "a"), at(2, "c"), RenameMode::Replace);
    assert!(places.take(&other, PARENTS[2], &name("c")));
    places.handle_rename(at(1, "b"), at(2, "c"), RenameMode::Replace);
    assert!(places.take(&directory(), PARENTS[2], &name("c")));
    assert!(places.take(&other, PARENTS[0], &name("d")), "it was replaced, and nothing is known");
}

#[tokio::test]
async fn the_old_place_is_dropped_before_the_answer() {
    let (places, dropped, end) = connected();
    places.settle(&directory(), PARENTS[0], &name("a")).await;
    assert!(dropped.try_recv().is_err(), "there is no old place");
    drop(end);
    places.settle(&directory(), PARENTS[1], &name("b")).await;
    assert_eq!(dropped.try_recv().unwrap(), (PARENTS[0], name("a")));
    assert!(places.take(&directory(), PARENTS[1], &name("b")));
}

#[tokio::test]
async fn an_answer_waits_for_changes_that_were_under_way_and_not_for_its_own_call() {
    let (places, dropped, end) = connected();
    places.settle(&directory(), PARENTS[0], &name("a")).await;
    let change = places.begin_change();
    let (to, here) = (name("b"), directory());
    let mut settling = pin!(places.settle(&here, PARENTS[1], &to));
    let waited = tokio::time::timeout(5 * GRACE, settling.as_mut()).await;
    waited.expect_err("the change may have the directory locked");
    // One that begins now waits for the lock behind this.
    let _later = places.begin_change();
    drop(change);
    settling.await;
    assert_eq!(dropped.recv().unwrap(), (PARENTS[0], name("a")));

    // Who comes to one of the two directories meanwhile is shown it when the place is dropped.
    let parent = found(PARENTS[1], FileKind::Directory);
    assert!(!places.take(&parent, InodeId(1), &to));
    let begun = Instant::now();
    places.settle(&parent, InodeId(1), &to).await;
    assert!(begun.elapsed() >= GRACE, "it waits for that");
    assert!(!places.take(&parent, InodeId(1), &to));
    end.send(()).unwrap();
    // The thread that drops the place may get its turn late.
    loop {
        places.settle(&parent, InodeId(1), &to).await;
        if places.take(&parent, InodeId(1), &to) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the place is never dropped");
    }
}
