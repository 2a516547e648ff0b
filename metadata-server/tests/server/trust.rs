//! Doubt about the namespace: what raises it, that it lasts, and that it comes in time. And about
//! targets: whether one is an older copy of itself.

use std::{fs, time::Duration};

use millrace_metadata_server::{
    command::{Command, Outcome, ReclaimOrphans, RegisterHost},
    engine::StoreKind,
};
use millrace_protocol::{
    cluster::{LogPoint, LogWitness},
    target::ContentName,
};
use millrace_types::{ByteLen, ContentGeneration, ErrorKind, HostId, InodeId, LogIndex, TargetId};

use crate::engine::{ENGINES, ON_DISK, Server, copy};

const TARGET: TargetId = TargetId([3; 8]);

/// Why the namespace is doubted.
pub(crate) fn doubt(server: &Server) -> Option<String> {
    server.turn(|core| core.distrusted()).unwrap().map(|doubt| doubt.reason)
}

fn show(server: &Server, seen: LogPoint) {
    let witness = LogWitness { target: TARGET, seen: Some(seen) };
    server.turn(move |core| core.compare_log(witness)).unwrap();
}

fn point(server: &Server) -> LogPoint {
    server.turn(|core| {
        core.syncer().sync_all().unwrap();
        core.log_point()
    })
}

/// So many records for the log, which change nothing.
pub(crate) fn go_on(server: &Server, records: u32) {
    server.turn(move |core| {
        for _ in 0..records {
            core.execute(None, Command::ReserveIds(InodeId(1))).unwrap();
        }
    });
}

#[test]
fn what_a_target_saw_of_this_log_raises_no_doubt_however_often_the_server_starts() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::default());
    let mut seen = vec![point(&server)];
    for round in 0..3 {
        go_on(&server, round);
        seen.push(point(&server));
        server.restart();
    }
    for point in seen {
        show(&server, point);
    }
    assert_eq!(doubt(&server), None);
    assert!(server.turn(|core| core.has_compared(TARGET)));
}

#[test]
fn an_older_copy_of_the_directory_is_known_by_what_targets_saw_and_the_doubt_stays() {
    for begin_again_first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (state, older) = (dir.path().join("state"), dir.path().join("older"));
        let mut server = Server::start(&state, StoreKind::default());
        server.stop();
        copy(&state, &older);
        server.begin();
        go_on(&server, 1);
        if begin_again_first {
            // A run of which the copy knows nothing.
            server.restart();
        }
        let seen = point(&server);
        server.stop();
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&older, &state).unwrap();
        server.begin();
        // However far it has gone on by itself: the target was away all the time.
        go_on(&server, 100);
        assert!(point(&server).index > seen.index, "the log is longer than what was seen");
        assert_eq!(doubt(&server), None, "nobody has told yet");
        show(&server, seen);
        let reason = doubt(&server).unwrap();
        assert!(reason.contains("older copy") && reason.contains(&TARGET.to_string()), "{reason}");
        server.restart();
        assert_eq!(doubt(&server).as_deref(), Some(reason.as_str()));
        server.turn(|core| core.trust()).unwrap();
        server.restart();
        assert_eq!(doubt(&server), None);
    }
}

#[test]
fn a_log_that_lost_its_end_is_known_also_within_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::Memory);
    let seen = point(&server);
    server.restart();
    // Of the run before, record `seen` was the newest; one that is said to be behind it is gone.
    show(&server, seen);
    assert_eq!(doubt(&server), None);
    let gone = LogPoint { index: LogIndex(seen.index.0 + 100), ..seen };
    show(&server, gone);
    assert!(doubt(&server).unwrap().contains("lost its end"));
}

#[test]
fn a_store_that_is_made_anew_raises_a_doubt_before_anybody_is_served() {
    for store in ON_DISK {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(dir.path(), store);
        assert_eq!(doubt(&server), None, "a new file system");
        server.stop();
        fs::remove_dir_all(server.store_dir()).unwrap();
        server.begin();
        let reason = doubt(&server).unwrap();
        assert!(reason.contains("made anew"), "{reason}");
        // The doubt stays although the next start finds the store in order.
        server.restart();
        assert_eq!(doubt(&server), Some(reason));
    }
}

#[test]
fn a_target_with_ids_that_were_never_given_out_raises_a_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    server.turn(|core| core.skip_inode_ids(InodeId::ROOT)).unwrap();
    assert_eq!(doubt(&server), None);
    server.turn(|core| core.skip_inode_ids(InodeId(5_000_000))).unwrap();
    assert!(doubt(&server).unwrap().contains("never given out"));
    let next = server.turn(|core| core.new_inode_id()).unwrap();
    assert!(next > InodeId(5_000_000));
}

/// Makes the target known.
fn register(server: &Server) {
    let register = RegisterHost {
        host: HostId([4; 16]),
        name: "store-1".to_owned(),
        addresses: vec!["127.0.0.1:7000".to_owned()],
        targets: vec![(TARGET, ByteLen(1 << 30))],
    };
    server.turn(|core| core.execute(None, Command::RegisterHost(register))).unwrap();
}

/// Asks the command to free a content; tells whether it does.
fn frees(server: &Server, inode: InodeId) -> bool {
    let contents = vec![ContentName { inode, generation: ContentGeneration(1) }];
    let reclaim = Command::ReclaimOrphans(ReclaimOrphans { target: TARGET, contents });
    server.turn(|core| core.execute(None, reclaim)) == Ok(Outcome::Queued(1))
}

#[test]
fn a_file_that_the_log_lost_and_no_target_told_of_is_not_freed_and_raises_a_doubt() {
    for store in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(dir.path(), store);
        register(&server);
        // Given out, and its create is in no log: as in a copy from just before it.
        let lost = server.turn(|core| core.new_inode_id()).unwrap();
        server.restart();
        let removed = server.turn(|core| core.new_inode_id()).unwrap();
        assert!(frees(&server, removed), "an id of this run, which a file had");
        server.restart();
        assert_eq!(doubt(&server), None);
        assert!(!frees(&server, lost), "the command has the last word");
        let content = ContentName { inode: lost, generation: ContentGeneration(1) };
        let doubted = server.turn(move |core| core.doubt_orphans(TARGET, &[content])).unwrap();
        let reason = doubt(&server).unwrap();
        assert!(doubted && reason.contains(&lost.to_string()), "{reason}");
        server.turn(|core| core.trust()).unwrap();
        assert!(frees(&server, lost));
        let doubted = server.turn(move |core| core.doubt_orphans(TARGET, &[content])).unwrap();
        assert!(!doubted, "an operator has decided");
    }
}

/// A target shows a point; tells whether it is taken for what it was.
fn is_itself(server: &Server, seen: LogPoint) -> bool {
    let witness = LogWitness { target: TARGET, seen: Some(seen) };
    match server.turn(move |core| core.compare_log(witness)) {
        Ok(()) => true,
        Err(failure) => {
            assert_eq!(failure.kind, ErrorKind::Stale, "{failure}");
            false
        }
    }
}

fn older_copies(server: &Server) -> Vec<String> {
    server.turn(|core| core.older_copies())
}

fn last(server: &Server) -> LogIndex {
    server.turn(|core| core.last_index())
}

#[test]
fn an_older_copy_of_a_target_is_refused_until_it_shows_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::default());
    register(&server);
    let first = point(&server);
    assert!(is_itself(&server, first));
    go_on(&server, 3);
    let second = point(&server);
    assert!(is_itself(&server, second));
    assert!(!is_itself(&server, first), "it is known at once");
    assert!(!server.turn(|core| core.has_compared(TARGET)), "nothing is freed on it");
    for _ in 0..2 {
        server.restart();
        assert!(older_copies(&server).is_empty());
        assert!(!is_itself(&server, first), "it stays known");
        let told = older_copies(&server).concat();
        assert!(told.contains(&format!("millrace target lost {TARGET}")), "{told}");
        assert!(is_itself(&server, second), "the right disk is back");
        assert!(older_copies(&server).is_empty());
        assert!(server.turn(|core| core.has_compared(TARGET)));
    }
    assert_eq!(doubt(&server), None, "the namespace is as good as before");
}

#[test]
fn what_a_target_has_shown_is_noted_once_a_run_and_while_the_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::default());
    register(&server);
    let older = point(&server);
    server.restart();
    let before = last(&server);
    for _ in 0..3 {
        let seen = point(&server);
        assert!(is_itself(&server, seen));
    }
    assert_eq!(last(&server), before.next(), "when it first shows the run");
    server.time.advance(Duration::from_secs(301));
    let seen = point(&server);
    assert!(is_itself(&server, seen));
    assert_eq!(last(&server), before.next(), "nothing else was logged since");
    go_on(&server, 1);
    let seen = point(&server);
    assert!(is_itself(&server, seen));
    assert_eq!(last(&server), before.next().next().next());
    server.restart();
    assert!(!is_itself(&server, older), "as if the server had been killed");
    assert!(is_itself(&server, seen));
}

#[test]
fn an_operator_takes_an_older_copy_of_a_target_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::default());
    register(&server);
    let first = point(&server);
    go_on(&server, 3);
    let second = point(&server);
    assert!(is_itself(&server, second));
    assert!(!is_itself(&server, first));
    server.turn(|core| core.trust()).unwrap();
    assert!(older_copies(&server).is_empty());
    for _ in 0..2 {
        assert!(is_itself(&server, first));
        server.restart();
    }
}

#[test]
fn under_an_older_copy_of_the_metadata_no_target_is_taken_for_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let (state, older) = (dir.path().join("state"), dir.path().join("older"));
    let mut server = Server::start(&state, StoreKind::default());
    register(&server);
    let seen = point(&server);
    assert!(is_itself(&server, seen));
    server.stop();
    copy(&state, &older);
    server.begin();
    go_on(&server, 3);
    // Of a run that the copy does not know, and of one that goes on longer than it knows.
    let last = point(&server);
    assert!(is_itself(&server, last));
    let newer = [last, LogPoint { index: last.index, ..seen }];
    server.stop();
    fs::remove_dir_all(&state).unwrap();
    fs::rename(&older, &state).unwrap();
    server.begin();
    for seen in newer {
        assert!(is_itself(&server, seen));
    }
    assert!(doubt(&server).unwrap().contains("older copy"));
    let seen = point(&server);
    assert!(is_itself(&server, seen), "it was told of this log since");
}
