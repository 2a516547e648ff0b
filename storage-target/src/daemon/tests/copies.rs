//! Copies: within a daemon, and between two of which each reads from the other.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::{join_all, pending};
use millrace_object_source::Settings;
use millrace_protocol::{
    capability::{Capability, Content, Purpose, Rights, SYSTEM_SESSION},
    cluster::{Group, Host, Map, Pool, Target},
    codec,
    session::Role,
    storage::{CopyRange, Place, Read, Write, WriteReply},
};
use millrace_service::metrics::Metrics;
use millrace_types::{
    ChunkIndex, ChunkSize, Crc32c, ErrorKind, Failure, GroupEpoch, GroupId, HostId, InodeId,
    Layout, MapEpoch, PoolId, SessionId, TargetId, WriteNumber,
};
use tokio::{runtime::Handle, time::timeout};

use super::{Connection, HOLDER, HangingDisk, MIB, TARGET, attach, cluster, open, options, sign};
use crate::{
    background::Background,
    daemon::{Caller, Daemon, Exporter, Remote, Stores},
    disk::BufferPool,
    links::Links,
    metrics::Counters,
};

const OTHER: TargetId = TargetId([3; 8]);

/// How long what must not hang may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a daemon is told when it reads from another one.
#[derive(Clone, Copy, Debug)]
enum Says {
    Bytes,
    Nothing,
    Failure(ErrorKind),
}

/// The way to the daemon of another host, without a network.
#[derive(Debug)]
struct Beside {
    daemon: OnceLock<Weak<Daemon>>,
    says: Says,
    asked: AtomicUsize,
}

impl Beside {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Remote for Beside {
    async fn read(
        &self,
        host: HostId,
        addresses: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        self.try_read(host, addresses, request).await
    }

    async fn try_read(
        &self,
        _: HostId,
        _: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.says {
            Says::Bytes => {}
            Says::Nothing => pending().await,
            Says::Failure(kind) => return Err(kind.into()),
        }
        let daemon = self.daemon.get().and_then(Weak::upgrade).unwrap();
        let (reply, body) = daemon.read(&neighbour(), request).await?;
        // On their way the bytes leave the other one's buffers.
        Ok((reply.checksum, vec![Bytes::from(body.concat())]))
    }
}

/// A host with one target, and its way to the other one.
struct OneOfTwo {
    daemon: Arc<Daemon>,
    beside: Arc<Beside>,
}

impl OneOfTwo {
    /// With the smallest pool: eight buffers.
    async fn new(target: TargetId, says: Says) -> Self {
        let beside = Beside { daemon: OnceLock::new(), says, asked: AtomicUsize::new(0) };
        let beside = Arc::new(beside);
        let (disk, links) = (HangingDisk::new(), Links::new(Settings::default()));
        let store = open(&options(target, &disk, BufferPool::new(0)), &links).await;
        let remote = Arc::clone(&beside) as Arc<dyn Remote>;
        let cluster = cluster();
        cluster.replace_map(map());
        let daemon = Daemon::new(
            Stores::new(vec![store], 1),
            cluster,
            links,
            Exporter::new(remote, Handle::current()),
            Counters::register(&mut Metrics::new()),
            Background::new(4),
        );
        Self { daemon: Arc::new(daemon), beside }
    }

    /// A client that has shown the ticket of a session.
    async fn client(&self, session: u64) -> Caller {
        let connection = Arc::new(Connection::default());
        let attached = self.daemon.attach(HOLDER, connection, &attach(session)).await;
        Caller { role: Role::Client, session: Some(Arc::new(attached.unwrap().0)) }
    }

    async fn write(&self, session: u64, place: Place, bytes: Bytes, numbers: (u64, u64)) {
        let request = Write {
            place,
            checksum: Crc32c::of(&bytes),
            number: WriteNumber(numbers.0),
            lowest_pending: WriteNumber(numbers.1),
            durable: false,
        };
        let client = self.client(session).await;
        let let_in = self.daemon.let_in(&client, &request).await.unwrap();
        self.daemon.write(&client, request, let_in, vec![bytes]).await.unwrap();
    }

    async fn read(&self, session: u64, place: Place) -> Result<Vec<u8>, Failure> {
        let client = self.client(session).await;
        let request = Read { place, sequential: false };
        Ok(self.daemon.read(&client, &request).await?.1.concat())
    }

    async fn copy(&self, session: u64, request: CopyRange) -> Result<WriteReply, Failure> {
        self.daemon.copy(&self.client(session).await, request).await
    }
}

/// Two hosts that reach each other.
async fn two() -> (OneOfTwo, OneOfTwo) {
    let one = OneOfTwo::new(TARGET, Says::Bytes).await;
    let other = OneOfTwo::new(OTHER, Says::Bytes).await;
    one.beside.daemon.set(Arc::downgrade(&other.daemon)).unwrap();
    other.beside.daemon.set(Arc::downgrade(&one.daemon)).unwrap();
    (one, other)
}

/// A cluster of two hosts with a target each, and a group on each.
fn map() -> Map {
    let all = [(TARGET, HostId([8; 16])), (OTHER, HostId([9; 16]))];
    let hosts = all.map(|(_, id)| Host { id, name: "host".to_owned(), addresses: Vec::new() });
    let targets = all.map(|(id, host)| Target { id, host });
    let groups = all.map(|(target, _)| Group { epoch: GroupEpoch(1), targets: vec![target] });
    let pool = Pool { id: PoolId(0), name: "default".to_owned(), groups: groups.into() };
    Map { epoch: MapEpoch(3), hosts: hosts.into(), targets: targets.into(), pools: vec![pool] }
}

/// A daemon as another one sees it.
fn neighbour() -> Caller {
    Caller { role: Role::Target, session: None }
}

/// A file that has chunks on both.
fn content(inode: u64) -> Content {
    let layout = Layout::new(ChunkSize::DEFAULT, 2, PoolId(0), 2, 0).unwrap();
    Content { inode: InodeId(inode), layout, ..super::content() }
}

/// A part of the first chunk of a file that a target has.
fn place(inode: u64, target: TargetId, range: Range<u32>, to: (SessionId, Rights)) -> Place {
    let (session, rights) = to;
    let content = content(inode);
    let group = if target == TARGET { GroupId(0) } else { GroupId(1) };
    let mut chunks = (0..2).map(ChunkIndex);
    let chunk = chunks.find(|&index| content.layout.group(index) == group).unwrap();
    let capability = Capability { rights, session, content };
    Place {
        target,
        group_epoch: GroupEpoch(1),
        capability: sign(Purpose::Capability, &codec::encode(&capability)),
        chunk,
        offset: range.start,
        len: range.end - range.start,
    }
}

fn written(inode: u64, target: TargetId, range: Range<u32>, session: u64) -> Place {
    place(inode, target, range, (SessionId(session), Rights::ReadWrite))
}

fn shown(inode: u64, target: TargetId, range: Range<u32>, session: u64) -> Place {
    place(inode, target, range, (SessionId(session), Rights::Read))
}

fn copy(place: Place, source: Place, number: u64) -> CopyRange {
    let (number, lowest_pending) = (WriteNumber(number), WriteNumber(1));
    CopyRange { place, source, number, lowest_pending, durable: true }
}

fn bytes(seed: u8) -> Bytes {
    (0..MIB).map(|at| (at % 251).to_le_bytes()[0] ^ seed).collect()
}

/// Lets everything get on that can.
async fn others() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_copied_is_what_the_source_has_on_this_host_or_on_another() {
    for holder in [TARGET, OTHER] {
        let (one, other) = two().await;
        let source = if holder == TARGET { &one } else { &other };
        source.write(1, written(1, holder, 0..MIB, 1), bytes(3), (1, 1)).await;
        let request =
            copy(written(2, TARGET, 5_000..105_000, 1), shown(1, holder, 70_001..170_001, 1), 2);
        one.copy(1, request).await.unwrap();
        let found = one.read(1, shown(2, TARGET, 5_000..105_000, 1)).await.unwrap();
        assert!(found[..] == bytes(3)[70_001..170_001]);
        assert_eq!(one.daemon.counters.copied_bytes.get(), 100_000);
        assert_eq!(one.daemon.counters.written_bytes.get() % u64::from(MIB), 0);
        assert_eq!(one.beside.asked(), usize::from(holder == OTHER));
    }
}

#[tokio::test]
async fn a_copy_needs_the_right_to_both_and_targets_only_read_for_others() {
    let (one, other) = two().await;
    one.write(1, written(1, TARGET, 0..MIB, 1), bytes(3), (1, 1)).await;
    other.write(1, written(1, OTHER, 0..MIB, 1), bytes(3), (1, 1)).await;
    let (kind, len) = (|failure: Failure| failure.kind, 0..65_536);
    let target = || written(2, TARGET, len.clone(), 1);
    for holder in [TARGET, OTHER] {
        let source = || shown(1, holder, len.clone(), 1);
        let system = place(1, holder, len.clone(), (SYSTEM_SESSION, Rights::Read));
        let refused = [
            (copy(target(), shown(1, holder, len.clone(), 2), 9), ErrorKind::Forbidden),
            (copy(target(), system, 9), ErrorKind::Forbidden),
            (copy(shown(2, TARGET, len.clone(), 1), source(), 9), ErrorKind::Forbidden),
            (copy(written(2, TARGET, len.clone(), 2), source(), 9), ErrorKind::Forbidden),
            (copy(target(), shown(1, holder, 0..65_535, 1), 9), ErrorKind::InvalidArgument),
            (
                copy(written(2, TARGET, 0..MIB + 1, 1), shown(1, holder, 0..MIB + 1, 1), 9),
                ErrorKind::InvalidArgument,
            ),
        ];
        for (request, expected) in refused {
            assert_eq!(one.copy(1, request).await.map_err(kind), Err(expected));
        }
        let stranger = Caller { role: Role::Client, session: None };
        let answer = one.daemon.copy(&stranger, copy(target(), source(), 9)).await;
        assert_eq!(answer.map_err(kind), Err(ErrorKind::TicketExpired));
        let answer = one.daemon.copy(&neighbour(), copy(target(), source(), 9)).await;
        assert_eq!(answer.map_err(kind), Err(ErrorKind::Forbidden));
    }
    assert_eq!(one.beside.asked(), 0, "nothing was read for any of them");

    let read = Read { place: shown(1, TARGET, len.clone(), 1), sequential: false };
    let (_, body) = one.daemon.read(&neighbour(), &read).await.unwrap();
    assert!(body.concat() == bytes(3)[..65_536]);
    for session in [SessionId(1), SYSTEM_SESSION] {
        let write = Write {
            place: place(1, TARGET, len.clone(), (session, Rights::ReadWrite)),
            checksum: Crc32c(1),
            number: WriteNumber(9),
            lowest_pending: WriteNumber(9),
            durable: false,
        };
        let answer = one.daemon.let_in(&neighbour(), &write).await.map(drop);
        assert_eq!(answer.map_err(kind), Err(ErrorKind::Forbidden));
    }
}

#[tokio::test]
async fn a_copy_that_comes_twice_is_applied_once_and_one_that_comes_late_is_not() {
    let (one, other) = two().await;
    other.write(1, written(1, OTHER, 0..MIB, 1), bytes(3), (1, 1)).await;
    let request = copy(written(2, TARGET, 0..MIB, 1), shown(1, OTHER, 0..MIB, 1), 5);
    let first = one.copy(1, request.clone()).await.unwrap();
    one.write(1, written(2, TARGET, 0..MIB, 1), bytes(4), (6, 5)).await;
    let again = one.copy(1, request.clone()).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(one.beside.asked(), 1, "nothing is read for a repetition");
    let found = one.read(1, shown(2, TARGET, 0..MIB, 1)).await.unwrap();
    assert!(found[..] == bytes(4)[..]);

    one.write(1, written(2, TARGET, 0..MIB, 1), bytes(4), (9, 9)).await;
    let late = CopyRange { number: WriteNumber(8), ..request };
    let refused = one.copy(1, late).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Cancelled);
    let found = one.read(1, shown(2, TARGET, 0..MIB, 1)).await.unwrap();
    assert!(found[..] == bytes(4)[..]);
}

#[tokio::test]
async fn who_cannot_have_it_copied_is_told_to_do_it_and_otherwise_what_is_wrong() {
    let told = [
        (ErrorKind::Forbidden, ErrorKind::NotSupported),
        (ErrorKind::Unavailable, ErrorKind::NotSupported),
        (ErrorKind::Lost, ErrorKind::Lost),
        (ErrorKind::StaleGroup, ErrorKind::StaleGroup),
    ];
    for (met, expected) in told {
        let one = OneOfTwo::new(TARGET, Says::Failure(met)).await;
        let (target, source) = (written(2, TARGET, 0..MIB, 1), shown(1, OTHER, 0..MIB, 1));
        let refused = one.copy(1, copy(target.clone(), source, 1)).await.unwrap_err();
        assert_eq!(refused.kind, expected, "{refused}");
        let nothing = one.read(1, target).await.unwrap_err();
        assert_eq!(nothing.kind, ErrorKind::Lost, "nothing was written");
    }
}

#[tokio::test]
async fn however_many_copies_wait_for_another_daemon_reads_and_writes_go_on() {
    let one = Arc::new(OneOfTwo::new(TARGET, Says::Nothing).await);
    let mut copies = Vec::new();
    for (session, number) in (1..4).flat_map(|session| (1..40).map(move |at| (session, at))) {
        let target = written(2, TARGET, 0..MIB, session);
        let request = copy(target, shown(1, OTHER, 0..MIB, session), number);
        let one = Arc::clone(&one);
        copies.push(tokio::spawn(async move { one.copy(session, request).await }));
    }
    others().await;
    assert_eq!(one.beside.asked(), 16, "what may wait for one target");
    for session in [1, 9] {
        let place = written(7, TARGET, 0..MIB, session);
        let write = one.write(session, place, bytes(5), (100, 1));
        timeout(PATIENCE, write).await.expect("bodies of writes have their own memory");
        let read = Read { place: shown(7, TARGET, 0..MIB, session), sequential: false };
        let read = timeout(PATIENCE, one.daemon.read(&neighbour(), &read)).await;
        read.expect("and reads need none of it").unwrap();
    }
    copies.iter().for_each(tokio::task::JoinHandle::abort);
    drop(join_all(copies).await);
    let room = one.daemon.copies.room(TARGET, SessionId(1), 16 * MIB);
    timeout(PATIENCE, room).await.expect("who goes away leaves nothing behind");
}

#[tokio::test]
async fn two_daemons_that_copy_from_each_other_come_to_an_end() {
    let (one, other) = two().await;
    one.write(1, written(1, TARGET, 0..MIB, 1), bytes(3), (1, 1)).await;
    other.write(1, written(1, OTHER, 0..MIB, 1), bytes(4), (1, 1)).await;
    let hosts = [(Arc::new(one), TARGET, OTHER), (Arc::new(other), OTHER, TARGET)];
    let mut copies = Vec::new();
    for (host, here, there) in &hosts {
        // Twice as many bytes as the pool has.
        for (session, nth) in [1, 2].into_iter().flat_map(|one| (0..8).map(move |at| (one, at))) {
            let target = written(20 + session, *here, nth * MIB..(nth + 1) * MIB, session);
            let source = shown(1, *there, 0..MIB, session);
            let request = copy(target, source, 10 + u64::from(nth));
            let host = Arc::clone(host);
            copies.push(tokio::spawn(async move { host.copy(session, request).await }));
        }
    }
    let ended = timeout(PATIENCE, join_all(copies)).await.expect("none waits for another");
    for copied in ended {
        copied.unwrap().unwrap();
    }
    for (host, here, seed) in [(&hosts[0].0, TARGET, 4), (&hosts[1].0, OTHER, 3)] {
        let found = host.read(2, shown(22, here, 7 * MIB..8 * MIB, 2)).await.unwrap();
        assert!(found[..] == bytes(seed)[..]);
    }
}
