//! A daemon whose disk hangs, and clients that ask much of it: what they keep of its memory.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use bytes::Bytes;
use futures::{FutureExt, poll};
use millrace_object_source::Settings;
use millrace_protocol::{
    capability::{Capability, Content, Purpose, Rights, Signed},
    cluster::{Group, HeartbeatReply, Keys, Map, Pool, SigningKey},
    codec,
    session::{Role, Ticket},
    storage::{Attach, Place, Read, Write},
    target::{ContentName, Item, Presence, Release},
};
use millrace_service::metrics::Metrics;
use millrace_types::{
    ChunkIndex, ChunkKey, ChunkSize, ClusterId, ContentGeneration, CopyIndex, Crc32c, ErrorKind,
    Failure, GroupEpoch, HostId, InodeId, KeyId, Layout, MapEpoch, PoolId, SessionId, TargetId,
    Timestamp, WriteEpoch, WriteNumber,
};
use tokio::runtime::Handle;

use super::{Caller, Daemon, Exporter, Remote, Stores};
use crate::{
    background::Background,
    cluster::Cluster,
    disk::{BufferPool, Disk, DiskQueue, Request, simulated::SimulatedDisk},
    format::{batch::BootId, superblock},
    hydration::Hydrator,
    links::Links,
    metrics::Counters,
    misses::Misses,
    page_checksum::of_pages,
    release::{self, Releaser, Watermarks},
    sessions::{Cut, Holder},
    store::Store,
    volume::{Blank, Fill, Options, Volume},
};

mod copies;
mod neighbours;
mod older;
mod uploads;

const TARGET: TargetId = TargetId([2; 8]);
const HOLDER: Holder = Holder { host: HostId([4; 16]), fingerprint: [5; 32] };
const KEY: KeyId = KeyId(5);
const SECRET: [u8; 32] = [42; 32];
const NOW: Timestamp = Timestamp(1_000_000_000_000);
const MIB: u32 = 1 << 20;
const BLOCK: u32 = 64 * 1024;

/// One region behind a small ring.
const LAYOUT: superblock::Layout = superblock::Layout {
    capacity: 512 + 8192,
    roots: 16,
    journal: 256,
    journal_pages: 256,
    regions: 512,
};

/// A disk that hangs when it is told to.
#[derive(Clone, Debug)]
struct HangingDisk {
    disk: SimulatedDisk,
    /// While it hangs, what it has been asked.
    held: Arc<Mutex<Option<Vec<Request>>>>,
}

impl HangingDisk {
    fn new() -> Self {
        let disk = SimulatedDisk::new(LAYOUT.capacity * 4096, 1);
        Self { disk, held: Arc::default() }
    }

    fn hang(&self) {
        *self.held() = Some(Vec::new());
    }

    fn go_on(&self) {
        let held = self.held().take();
        held.into_iter().flatten().for_each(|request| self.disk.submit(request));
    }

    /// Waits until it has been asked something since it hangs.
    async fn asked(&self) {
        let comes = async {
            while self.count() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), comes).await.expect("it is never asked");
    }

    /// How many requests wait because it hangs.
    fn count(&self) -> usize {
        self.held().as_ref().map_or(0, Vec::len)
    }

    fn held(&self) -> MutexGuard<'_, Option<Vec<Request>>> {
        self.held.lock().unwrap()
    }
}

impl Disk for HangingDisk {
    fn submit(&self, request: Request) {
        if let Some(held) = self.held().as_mut() {
            return held.push(request);
        }
        self.disk.submit(request);
    }

    fn name(&self) -> &'static str {
        self.disk.name()
    }
}

/// A connection that shows tickets.
#[derive(Debug, Default)]
struct Connection {
    is_closed: bool,
}

impl Cut for Connection {
    fn id(&self) -> u64 {
        1
    }

    fn cut(&self, _: &str) {}

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn is_unwanted(&self) -> bool {
        false
    }
}

/// No other host has a target.
#[derive(Debug)]
pub(crate) struct NoOther;

#[async_trait::async_trait]
impl Remote for NoOther {
    async fn read(
        &self,
        _: HostId,
        _: &[String],
        _: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        Err(ErrorKind::Unavailable.into())
    }

    async fn try_read(
        &self,
        _: HostId,
        _: &[String],
        _: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure> {
        Err(ErrorKind::Unavailable.into())
    }
}

struct World {
    daemon: Daemon,
    disk: HangingDisk,
}

impl World {
    /// A daemon with the smallest pool: eight buffers.
    async fn new() -> Self {
        let (disk, links) = (HangingDisk::new(), Links::new(Settings::default()));
        let store = open(&options(TARGET, &disk, BufferPool::new(0)), &links).await;
        let daemon = Daemon::new(
            Stores::new(vec![store], 1),
            cluster(),
            links,
            Exporter::new(Arc::new(NoOther), Handle::current()),
            Counters::register(&mut Metrics::new()),
            Background::new(4),
        );
        Self { daemon, disk }
    }

    /// A client that has shown the ticket of a session.
    async fn client(&self, session: u64) -> Caller {
        let connection = Arc::new(Connection::default());
        let attached = self.daemon.attach(HOLDER, connection, &attach(session)).await;
        Caller { role: Role::Client, session: Some(Arc::new(attached.unwrap().0)) }
    }

    /// Writes 1 MiB for a session.
    async fn write(&self, session: u64, number: u64) {
        let (client, (request, body)) = (self.client(session).await, write(session, number));
        let let_in = self.daemon.let_in(&client, &request).await.unwrap();
        self.daemon.write(&client, request, let_in, body).await.unwrap();
    }

    /// Stores the first block of a chunk of that file as the bucket's.
    async fn fetch(&self, index: u32) {
        let volume = self.daemon.store(TARGET).unwrap().volume();
        let Content { inode, generation, layout, .. } = content();
        let key = ChunkKey { inode, generation, index: ChunkIndex(index), copy: CopyIndex(0) };
        let mut buffer = volume.pool().acquire(BLOCK as usize).await;
        buffer.as_mut_slice().fill(7);
        let checksums = of_pages(buffer.as_slice()).into();
        let chunk_size = u32::try_from(layout.chunk_size().bytes()).unwrap();
        let fill = Fill {
            key,
            first_block: 0,
            buffer: Arc::new(buffer),
            len: BLOCK,
            checksums,
            write_epoch: WriteEpoch(0),
            chunk_size,
            backed: chunk_size,
            mark: volume.drop_mark(&key),
            gathers: false,
        };
        assert_eq!(volume.fill(fill).await.unwrap(), u64::from(BLOCK));
    }

    /// How much of that file is here as the bucket has it.
    async fn clean(&self) -> u64 {
        let Content { inode, generation, .. } = content();
        let contents = vec![ContentName { inode, generation }];
        let presence = self.daemon.presence(&Presence { target: TARGET, contents }).await;
        presence.unwrap().present[0].clean.0
    }

    /// Reads that 1 MiB for another session.
    async fn read(&self, client: &Caller, session: u64) -> Vec<Bytes> {
        let request = Read { place: place(session, Rights::Read), sequential: false };
        self.daemon.read(client, &request).await.unwrap().1
    }
}

fn options(target: TargetId, disk: &HangingDisk, pool: BufferPool) -> Options {
    Options {
        cluster: ClusterId([1; 16]),
        blank: Some(Blank { target, layout: LAYOUT }),
        disk: DiskQueue::new(Arc::new(disk.clone())),
        growth: None,
        pool,
        cache_bytes: 1 << 20,
        sync_interval: Duration::from_secs(3600),
        boot: BootId([1; 16]),
    }
}

async fn open(options: &Options, links: &Links) -> Store {
    let volume = Arc::new(Volume::open(options).await.unwrap());
    let releaser = Releaser::new(Arc::clone(&volume), Watermarks { high: 100, low: 95 });
    let (links, runtime) = (links.clone(), Handle::current());
    let hydrator = Hydrator::new(Arc::clone(&volume), links, releaser.clone(), runtime);
    Store::new(volume, hydrator, releaser, Misses::default())
}

/// A cluster with one target and one key.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    let news = HeartbeatReply {
        server_time: NOW,
        lease_ms: 3_600_000,
        incarnation: 1,
        map_epoch: MapEpoch(2),
        newest_key: KEY,
        links_version: 0,
        reclaim_waiting: false,
    };
    let now = Instant::now();
    cluster.handle_heartbeat(&news, now, now);
    cluster.replace_keys(&Keys { keys: vec![SigningKey { id: KEY, secret: SECRET }] });
    let group = Group { epoch: GroupEpoch(1), targets: vec![TARGET] };
    let pool = Pool { id: PoolId(0), name: "default".to_owned(), groups: vec![group] };
    let (hosts, targets) = (Vec::new(), Vec::new());
    cluster.replace_map(Map { epoch: MapEpoch(2), hosts, targets, pools: vec![pool] });
    cluster
}

fn sign(purpose: Purpose, body: &Bytes) -> Signed {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &SECRET);
    let mac = hmac::sign(&key, &Signed::signed_bytes(purpose, KEY, body));
    Signed { key: KEY, body: body.to_vec(), mac: mac.as_ref().try_into().unwrap() }
}

fn attach(session: u64) -> Attach {
    let Holder { host, fingerprint } = HOLDER;
    let expires = NOW.plus(Duration::from_secs(3600));
    let ticket = Ticket { session: SessionId(session), host, fingerprint, expires };
    Attach { ticket: sign(Purpose::Ticket, &codec::encode(&ticket)), connection_number: 1 }
}

/// The file that everybody uses.
fn content() -> Content {
    Content {
        inode: InodeId(7),
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(0),
        layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
        origin: None,
        origin_length: 0,
        sparse: false,
    }
}

/// Its first 1 MiB.
fn place(session: u64, rights: Rights) -> Place {
    let capability = Capability { rights, session: SessionId(session), content: content() };
    Place {
        target: TARGET,
        group_epoch: GroupEpoch(1),
        capability: sign(Purpose::Capability, &codec::encode(&capability)),
        chunk: ChunkIndex(0),
        offset: 0,
        len: MIB,
    }
}

fn write(session: u64, number: u64) -> (Write, Vec<Bytes>) {
    let body = Bytes::from(vec![7; MIB as usize]);
    let request = Write {
        place: place(session, Rights::ReadWrite),
        checksum: Crc32c::of(&body),
        number: WriteNumber(number),
        lowest_pending: WriteNumber(1),
        durable: false,
    };
    (request, vec![body])
}

#[tokio::test]
async fn a_write_that_is_sent_again_to_a_disk_that_hangs_takes_no_more_memory() {
    let world = World::new().await;
    let (daemon, client) = (&world.daemon, world.client(1).await);
    let (request, body) = write(1, 1);
    world.disk.hang();
    let let_in = daemon.let_in(&client, &request).await.unwrap();
    let mut first = Box::pin(daemon.write(&client, request.clone(), let_in, body.clone()));
    assert!(poll!(&mut first).is_pending());
    world.disk.asked().await;
    drop(first);
    assert_eq!(daemon.bodies.taken(), MIB as usize, "its task has the body, whoever waits");

    let mut second = Box::pin(daemon.let_in(&client, &request));
    assert!(poll!(&mut second).is_pending());
    assert_eq!(daemon.bodies.taken(), MIB as usize, "the second waits without room");
    drop(second);
    let mut third = Box::pin(daemon.let_in(&client, &request));
    assert!(poll!(&mut third).is_pending());

    world.disk.go_on();
    let let_in = third.await.unwrap();
    let (session, number) = (SessionId(1), WriteNumber(1));
    let version = daemon.store(TARGET).unwrap().volume().applied(session, number).await;
    assert!(version.is_some(), "what has begun is finished");
    let reply = daemon.write(&client, request, let_in, body).await.unwrap();
    assert_eq!(Some(reply.version), version);
    assert_eq!(daemon.bodies.taken(), 0);
}

#[tokio::test]
async fn who_may_not_write_takes_no_room() {
    let world = World::new().await;
    let (daemon, client) = (&world.daemon, world.client(1).await);
    // All of it: half of what is the target's for each of two, and of the rest.
    let mut held = Vec::new();
    for session in 11..15 {
        held.push(daemon.bodies.room(TARGET, SessionId(session), 16 * MIB).await.unwrap());
    }
    let (request, _) = write(1, 1);
    let refused = |caller: &Caller, request: &Write| {
        let answer = daemon.let_in(caller, request).now_or_never();
        answer.expect("it does not wait for room").unwrap_err().kind
    };
    let stranger = Caller { role: Role::Client, session: None };
    assert_eq!(refused(&stranger, &request), ErrorKind::TicketExpired);
    let other = write(2, 1).0;
    assert_eq!(refused(&client, &other), ErrorKind::Forbidden);
    let reading = Write { place: place(1, Rights::Read), ..request.clone() };
    assert_eq!(refused(&client, &reading), ErrorKind::Forbidden);
    let mut long = request.clone();
    long.place.len = MIB + 1;
    assert_eq!(refused(&client, &long), ErrorKind::InvalidArgument);
    assert!(daemon.let_in(&client, &request).now_or_never().is_none(), "who may waits");
}

#[tokio::test]
async fn who_does_not_take_its_answers_waits_alone() {
    let world = World::new().await;
    world.write(1, 1).await;
    let (slow, other) = (world.client(1).await, world.client(2).await);
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(world.read(&slow, 1).await);
    }
    let mut fifth = Box::pin(world.read(&slow, 1));
    assert!(poll!(&mut fifth).is_pending());
    for _ in 0..8 {
        let found = world.read(&other, 2).await.concat();
        assert!(found.len() == MIB as usize && found.iter().all(|&byte| byte == 7));
        assert!(poll!(&mut fifth).is_pending(), "half of the pool is on its way to it");
    }
    answers.pop();
    assert_eq!(fifth.await.concat().len(), MIB as usize);
}

#[tokio::test]
async fn who_reads_ahead_all_that_it_may_still_reads_here_and_there() {
    let world = World::new().await;
    world.write(1, 1).await;
    let client = world.client(1).await;
    let ahead = Read { place: place(1, Rights::Read), sequential: true };
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(world.daemon.read(&client, &ahead).await.unwrap());
    }
    let mut waiting = [0; 2].map(|_| Box::pin(world.daemon.read(&client, &ahead)));
    for read in &mut waiting {
        assert!(poll!(read).is_pending(), "a third of the pool is on its way to it");
    }
    let here = tokio::time::timeout(Duration::from_secs(120), world.read(&client, 1)).await;
    assert_eq!(here.expect("it has a share of its own").concat().len(), MIB as usize);
    drop(answers);
    let answers = futures::future::join_all(waiting).await;
    assert!(answers.iter().all(Result::is_ok));
}

#[tokio::test]
async fn reads_that_are_given_up_count_while_a_disk_that_hangs_has_their_memory() {
    let world = World::new().await;
    world.write(1, 1).await;
    let client = world.client(1).await;
    // None lies within another one, whose buffer would do.
    let requests = [0, 1, 2, 3, 4].map(|nth| {
        let mut request = Read { place: place(1, Rights::Read), sequential: false };
        (request.place.offset, request.place.len) = (nth * MIB / 16, MIB / 2);
        request
    });
    world.disk.hang();
    let reads = requests.iter().map(|request| Box::pin(world.daemon.read(&client, request)));
    let mut reads: Vec<_> = reads.collect();
    for read in &mut reads {
        assert!(poll!(read).is_pending());
    }
    assert_eq!(world.disk.count(), 4, "a half of the pool");
    let mut fifth = reads.pop().unwrap();
    drop(reads);
    assert!(poll!(&mut fifth).is_pending());
    assert_eq!(world.disk.count(), 4, "nobody waits for them, but the disk has them");
    world.disk.go_on();
    assert_eq!(fifth.await.unwrap().1.concat().len(), MIB as usize / 2);
}

#[tokio::test]
async fn who_keeps_what_another_one_has_read_pays_for_it_itself() {
    let world = World::new().await;
    world.write(1, 1).await;
    let (leading, following) = (world.client(1).await, world.client(2).await);
    world.disk.hang();
    let mut led = Box::pin(world.read(&leading, 1));
    assert!(poll!(&mut led).is_pending());
    let mut followed = Box::pin(world.read(&following, 2));
    assert!(poll!(&mut followed).is_pending());
    assert_eq!(world.disk.count(), 1, "one transfer for both");
    world.disk.go_on();
    let (led, kept) = futures::join!(led, followed);
    drop(led);
    let room = || world.daemon.replies.room(SessionId(1), &(0..MIB), false).now_or_never();
    let rooms: Vec<_> = std::iter::from_fn(room).collect();
    assert_eq!(rooms.len(), 4, "all of its half");
    drop(kept);
}

#[tokio::test]
async fn a_connection_that_has_ended_attaches_to_nothing() {
    let world = World::new().await;
    let ended = Arc::new(Connection { is_closed: true });
    let refused = world.daemon.attach(HOLDER, ended, &attach(1)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert_eq!(world.daemon.sessions.connections(), 0);
    world.client(1).await;
    assert_eq!(world.daemon.sessions.connections(), 1);
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_goes_on_to_no_further_chunk() {
    let world = World::new().await;
    for index in 0..3 {
        world.fetch(index).await;
    }
    let item = |first, count| Item { content: content(), first: ChunkIndex(first), count };
    for items in [vec![item(0, 3)], vec![item(0, 1), item(1, 2)]] {
        let before = world.clean().await;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let request = Release { target: TARGET, items };
        world.disk.hang();
        let release = world.daemon.release(&request, move || told.load(Ordering::Relaxed));
        let mut release = Box::pin(release);
        // It comes to the first chunk that is here.
        tokio::select! {
            _ = &mut release => panic!("the disk hangs"),
            () = world.disk.asked() => {}
        }
        over.store(true, Ordering::Relaxed);
        world.disk.go_on();
        assert_eq!(release.await.unwrap_err().kind, ErrorKind::DeadlineExceeded);
        assert_eq!(world.clean().await, before - u64::from(BLOCK));
    }
    assert_eq!(world.clean().await, u64::from(BLOCK));
}

#[tokio::test]
async fn a_target_drops_nothing_by_itself_that_was_allowed_to_go_long_ago() {
    let world = World::new().await;
    world.fetch(0).await;
    let releaser = world.daemon.store(TARGET).unwrap().releaser().clone();
    let Content { inode, generation, .. } = content();
    let chunk = ChunkKey { inode, generation, index: ChunkIndex(0), copy: CopyIndex(0) };
    // Behind what was fetched.
    let (client, (mut request, body)) = (world.client(1).await, write(1, 1));
    request.place.offset = MIB;
    let mut writing = Box::pin(async {
        let let_in = world.daemon.let_in(&client, &request).await.unwrap();
        world.daemon.write(&client, request.clone(), let_in, body).await.unwrap();
    });
    world.disk.hang();
    tokio::select! {
        () = &mut writing => panic!("the disk hangs"),
        () = world.disk.asked() => {}
    }
    let almost = release::ANSWER_COUNTS - Duration::from_millis(50);
    let asked_at = Instant::now().checked_sub(almost).unwrap();
    let mut dropping = Box::pin(releaser.drop_clean(chunk, asked_at));
    assert!(poll!(&mut dropping).is_pending(), "somebody writes to the chunk");
    while asked_at.elapsed() < release::ANSWER_COUNTS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.disk.go_on();
    writing.await;
    assert_eq!(dropping.await.unwrap(), None);
    assert_eq!(world.clean().await, u64::from(BLOCK));
    assert_eq!(releaser.drop_clean(chunk, Instant::now()).await.unwrap(), Some(u64::from(BLOCK)));
    assert_eq!(world.clean().await, 0);
}
