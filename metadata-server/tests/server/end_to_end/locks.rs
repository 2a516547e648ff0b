//! Locks over the network: waits that cost nothing, sessions that run out, restarts.

use std::time::{Duration, Instant};

use millrace_metadata_server::settings::Settings;
use millrace_protocol::{
    lock::{AwaitLocks, CancelLock, Lock, LockSpace, SetLock, SetLockReply, TestLock},
    metadata::{Close, CloseFiles, NewNode, Open, OpenMode},
    session::{AllTold, Caller, CloseSession, Declare, Held, Hello, Role},
};
use millrace_types::{ErrorKind, Failure, InodeId, LockKind, LockRange, LogIndex};

use super::cluster::{Cluster, Node, grant};

/// More than one connection carries at a time.
const WAITS: u64 = 400;

/// A request that waits is answered in this time when the server stops, much less than it waits
/// ([`WATCH`]), and than a stop waits for it ([`DRAIN`]).
const STOP_MAX: Duration = Duration::from_secs(60);
const WATCH: Duration = Duration::from_secs(300);
const DRAIN: Duration = Duration::from_secs(120);

fn lock(inode: InodeId, owner: u64, kind: LockKind) -> Lock {
    let (space, range, process) = (LockSpace::Range, LockRange::WHOLE, 7);
    Lock { inode, space, owner, kind: Some(kind), range, process }
}

async fn set(node: &mut Node, lock: Lock, wait: u64) -> Result<SetLockReply, Failure> {
    let operation = node.operation();
    node.ask(&SetLock { operation, lock, wait }).await
}

async fn unlock(node: &mut Node, lock: Lock) {
    assert!(set(node, Lock { kind: None, ..lock }, 0).await.unwrap().granted);
}

fn open(node: &mut Node, inode: InodeId, mode: OpenMode) -> Open {
    let (operation, caller) = (node.operation(), Caller::ROOT);
    Open { caller, operation, inode, mode, truncate: false, reopen: false }
}

fn news(node: &Node) -> AwaitLocks {
    AwaitLocks { session: node.session, known: Vec::new() }
}

use LockKind::{Read, Write};

#[tokio::test(flavor = "multi_thread")]
async fn however_many_wait_other_requests_are_answered_and_all_hear_of_the_end() {
    let cluster = Cluster::start().await;
    let mut holder = cluster.client(&grant(Role::Client, 1)).await;
    let mut waiter = cluster.client(&grant(Role::Client, 2)).await;
    let file = holder.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    let granted = set(&mut holder, lock(file, 1, Write), 0).await.unwrap();
    let shown = holder.show(file).await.unwrap().attributes;
    assert_eq!((granted.granted, granted.change_count), (true, shown.change_count));
    for wait in 1..=WAITS {
        let queued = set(&mut waiter, lock(file, wait, Read), wait).await.unwrap();
        assert!(!queued.granted);
    }
    let request = news(&waiter);
    let (peer, asked) = (waiter.peer.clone(), request.clone());
    let options = millrace_transport::CallOptions::control(Duration::from_secs(30));
    let watching = tokio::spawn(async move { peer.call(&asked, options).await });
    for _ in 0..WAITS {
        waiter.show(file).await.unwrap();
    }
    let test = TestLock { session: waiter.session, lock: lock(file, 9, Write) };
    let conflict = waiter.ask(&test).await.unwrap().conflict.unwrap();
    assert_eq!((conflict.kind, conflict.process), (Write, 0), "a process of another host");
    unlock(&mut holder, lock(file, 1, Write)).await;
    let ended = watching.await.unwrap().unwrap().ended;
    assert_eq!(ended, (1..=WAITS).collect::<Vec<_>>());
    assert!(set(&mut waiter, lock(file, 5, Read), 5).await.unwrap().granted);
    assert_eq!(
        set(&mut holder, lock(file, 1, Write), 0).await.unwrap_err().kind,
        ErrorKind::Locked
    );
    for wait in 1..=WAITS {
        let operation = waiter.operation();
        waiter.ask(&CancelLock { operation, wait }).await.unwrap();
    }
    unlock(&mut waiter, lock(file, 5, Read)).await;
    assert!(set(&mut holder, lock(file, 1, Write), 0).await.unwrap().granted, "nobody is left");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_go_with_their_session_and_with_the_last_close_of_the_file() {
    let cluster = Cluster::start().await;
    let mut silent = cluster.client(&grant(Role::Client, 1)).await;
    let mut alive = cluster.client(&grant(Role::Client, 2)).await;
    let file = silent.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    assert!(set(&mut silent, lock(file, 1, Write), 0).await.unwrap().granted);
    cluster.pass(Duration::from_secs(20)).await;
    alive.ask(&millrace_protocol::session::RenewTicket { session: alive.session }).await.unwrap();
    assert!(!set(&mut alive, lock(file, 1, Write), 3).await.unwrap().granted);
    cluster.pass(Duration::from_secs(13)).await;
    assert_eq!(alive.ask(&news(&alive)).await.unwrap().ended, [3]);
    assert!(set(&mut alive, lock(file, 1, Write), 3).await.unwrap().granted);
    let late = set(&mut silent, lock(file, 1, Write), 0).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::SessionGone);

    let mut third = cluster.client(&grant(Role::Client, 3)).await;
    for _ in 0..2 {
        let request = open(&mut alive, file, OpenMode::Write);
        alive.ask(&request).await.unwrap();
    }
    for refused in [true, false] {
        let (operation, mode) = (alive.operation(), OpenMode::Write);
        let close = Close { operation, inode: file, mode };
        alive.ask(&close).await.unwrap();
        assert_eq!(set(&mut third, lock(file, 1, Write), 0).await.is_err(), refused);
    }
    third.ask(&CloseSession { session: third.session }).await.unwrap();
    assert!(set(&mut alive, lock(file, 1, Write), 0).await.unwrap().granted);
    let gone = set(&mut alive, lock(InodeId(1 << 40), 1, Write), 0).await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::Stale);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_after_a_restart_costs_no_lock_that_was_taken_through_what_is_not_told_yet() {
    let mut cluster = Cluster::start().await;
    let mut first = cluster.client(&grant(Role::Client, 1)).await;
    let mut second = cluster.client(&grant(Role::Client, 2)).await;
    let file = first.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    for mode in [OpenMode::Read, OpenMode::Write] {
        let request = open(&mut first, file, mode);
        first.ask(&request).await.unwrap();
    }
    let held = lock(file, 1, Write);
    assert!(set(&mut first, held, 0).await.unwrap().granted);
    cluster.restart().await;
    for (node, held) in [(&mut first, vec![Held::Lock(held)]), (&mut second, Vec::new())] {
        node.find_again(&cluster);
        let declare = Declare { session: node.session, held, last: true };
        assert!(node.ask(&declare).await.unwrap().lost.is_empty());
    }
    // Its other open is told of again later.
    let close = CloseFiles { operation: first.operation(), inodes: vec![file] };
    first.ask(&close).await.unwrap();
    let refused = set(&mut second, lock(file, 1, Write), 0).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Locked);
    unlock(&mut first, held).await;
    assert!(set(&mut second, lock(file, 1, Write), 0).await.unwrap().granted);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_ends_locks_again_when_its_session_has_told_this_life_of_the_server_all() {
    let mut cluster = Cluster::start().await;
    let mut first = cluster.client(&grant(Role::Client, 1)).await;
    let mut second = cluster.client(&grant(Role::Client, 2)).await;
    let file = first.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    for _ in 0..3 {
        let request = open(&mut first, file, OpenMode::Write);
        first.ask(&request).await.unwrap();
    }
    let held = lock(file, 1, Write);
    assert!(set(&mut first, held, 0).await.unwrap().granted);
    let hello = Hello { seen_index: LogIndex(0) };
    let before = first.ask(&hello).await.unwrap().incarnation;
    cluster.restart().await;
    for (node, held) in [(&mut first, vec![Held::Lock(held)]), (&mut second, Vec::new())] {
        node.find_again(&cluster);
        let declare = Declare { session: node.session, held, last: true };
        assert!(node.ask(&declare).await.unwrap().lost.is_empty());
    }
    let present = first.ask(&hello).await.unwrap().incarnation;
    let told = |incarnation| AllTold { session: first.session, incarnation };
    let (late, now) = (told(before), told(present));
    let others = AllTold { session: second.session, ..now.clone() };
    assert_eq!(first.refusal(&others).await, ErrorKind::SessionGone);
    assert_eq!(first.refusal(&late).await, ErrorKind::Stale);
    // Two opens are left after the first message.
    let close = CloseFiles { operation: first.operation(), inodes: vec![file] };
    first.ask(&close).await.unwrap();
    for _ in 0..2 {
        first.ask(&now).await.unwrap();
    }
    for is_last in [false, true] {
        let refused = set(&mut second, held, 0).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Locked, "the last is open: {is_last}");
        let close = CloseFiles { operation: first.operation(), inodes: vec![file] };
        first.ask(&close).await.unwrap();
    }
    assert!(set(&mut second, held, 0).await.unwrap().granted);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_grants_nothing_until_every_session_has_declared() {
    let mut cluster = Cluster::start_with(|settings| Settings { drain: DRAIN, ..settings }).await;
    let mut first = cluster.client(&grant(Role::Client, 1)).await;
    let mut second = cluster.client(&grant(Role::Client, 2)).await;
    let file = first.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    let held = lock(file, 1, Write);
    assert!(set(&mut first, held, 0).await.unwrap().granted);
    assert!(!set(&mut second, lock(file, 1, Read), 3).await.unwrap().granted);
    // Who watches does not hold the server up.
    let (peer, request) = (second.peer.clone(), news(&second));
    let options = millrace_transport::CallOptions::control(WATCH);
    let watching = tokio::spawn(async move { peer.call(&request, options).await });
    let begun = Instant::now();
    cluster.restart().await;
    assert!(begun.elapsed() < STOP_MAX, "{:?}", begun.elapsed());
    assert_eq!(watching.await.unwrap().unwrap_err().kind, ErrorKind::Unavailable);
    for node in [&mut first, &mut second] {
        node.find_again(&cluster);
    }
    let refused = set(&mut second, lock(file, 1, Read), 3).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    let declare =
        |node: &Node, held: Vec<Held>| Declare { session: node.session, held, last: true };
    let none = declare(&second, Vec::new());
    assert!(second.ask(&none).await.unwrap().lost.is_empty());
    assert_eq!(set(&mut second, lock(file, 1, Read), 3).await.unwrap_err().kind, ErrorKind::Busy);
    let all = declare(&first, vec![Held::Lock(held)]);
    assert!(first.ask(&all).await.unwrap().lost.is_empty());
    assert!(!set(&mut second, lock(file, 1, Read), 3).await.unwrap().granted, "it is still held");
    let stolen = declare(&second, vec![Held::Lock(lock(file, 8, Read)), Held::Lock(held)]);
    assert_eq!(second.ask(&stolen).await.unwrap().lost, [0, 1]);
    unlock(&mut first, held).await;
    assert_eq!(second.ask(&news(&second)).await.unwrap().ended, [3]);

    // One that never declares is waited for until its lease has run out.
    cluster.restart().await;
    for node in [&mut first, &mut second] {
        node.find_again(&cluster);
    }
    let none = declare(&second, Vec::new());
    second.ask(&none).await.unwrap();
    assert_eq!(set(&mut second, lock(file, 1, Read), 0).await.unwrap_err().kind, ErrorKind::Busy);
    // Nobody can declare to a server that stands still.
    cluster.time.advance(Duration::from_secs(600));
    cluster.tick().await;
    assert_eq!(set(&mut second, lock(file, 1, Read), 0).await.unwrap_err().kind, ErrorKind::Busy);
    cluster.pass(Duration::from_secs(20)).await;
    second.ask(&millrace_protocol::session::RenewTicket { session: second.session }).await.unwrap();
    cluster.pass(Duration::from_secs(13)).await;
    assert!(set(&mut second, lock(file, 1, Read), 0).await.unwrap().granted);
    cluster.stop().await;
}
