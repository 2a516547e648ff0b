//! What hangs leaves to others: a disk to the daemon's other targets, buckets to what is stored.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use millrace_object_source::{Bucket, LinkSpec, Settings};
use millrace_protocol::{
    capability::{Content, Origin},
    cluster::{self, Link, LinkMode},
};
use millrace_types::{
    ChunkIndex, Crc32c, ErrorKind, GroupEpoch, HostId, InodeId, LinkId, MapEpoch, SessionId,
    TargetId, Timestamp, WriteNumber,
};
use tokio::time::timeout;

use super::{HangingDisk, MIB, TARGET, World, content, open, options};
use crate::{
    daemon::Stores,
    disk::BufferPool,
    format::batch::BootId,
    links::Links,
    store::{Reader, Store},
    view::ChunkView,
    volume::{Authority, Options, Volume, WriteRequest},
};

const OTHER: TargetId = TargetId([3; 8]);

/// How long what must not hang may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of an object whose bucket stops in the middle of its answers.
const STOPPING_LEN: u64 = 64 << 20;

/// Two targets that have the smallest pool together: twelve buffers.
struct Neighbours {
    /// The first one's.
    disk: HangingDisk,
    first: Store,
    others_disk: HangingDisk,
    other: Store,
    links: Links,
}

impl Neighbours {
    async fn new() -> Self {
        let (disk, others_disk) = (HangingDisk::new(), HangingDisk::new());
        let links = Links::new(Settings::default());
        let mut pools = BufferPool::new(0).divide(2).into_iter();
        let first = options(TARGET, &disk, pools.next().unwrap());
        let other = options(OTHER, &others_disk, pools.next().unwrap());
        let first = open(&first, &links).await;
        let other = open(&other, &links).await;
        Self { disk, first, others_disk, other, links }
    }

    /// Reads of the other target again and again, while everything else goes on.
    async fn read_other(&self) {
        for _ in 0..1000 {
            let read = timeout(PATIENCE, read(&self.other, &content(), 0)).await;
            read.expect("the other target has its part of the memory");
            tokio::task::yield_now().await;
        }
    }
}

/// Lets everything get on that can.
async fn others() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

/// Writes a MiB of the file.
async fn write(store: &Store, nth: u32) {
    write_part(store, &content(), nth, MIB).await;
}

/// Writes the first bytes of a MiB of a file.
async fn write_part(store: &Store, content: &Content, nth: u32, len: u32) {
    let (view, offset) = place(content, nth);
    let bytes = Bytes::from(vec![7; len as usize]);
    let request = WriteRequest {
        key: view.key,
        offset,
        checksum: Crc32c::of(&bytes),
        body: vec![bytes],
        group_epoch: GroupEpoch(1),
        write_epoch: view.write_epoch,
        chunk_size: view.chunk_size,
        backed: view.backed,
        session: SessionId(1),
        number: WriteNumber(1),
        authority: Authority::default(),
    };
    store.write(&view, request, false).await.unwrap();
}

/// Reads a MiB of a file.
async fn read(store: &Store, content: &Content, nth: u32) {
    let (view, start) = place(content, nth);
    let read = store.read(&view, start..start + MIB, Reader::Sequential).await.unwrap();
    assert_eq!(read.body.iter().map(Bytes::len).sum::<usize>(), MIB as usize);
}

/// The chunk of a MiB, and where in that it begins.
fn place(content: &Content, nth: u32) -> (ChunkView, u32) {
    (ChunkView::new(content, ChunkIndex(nth / 8)), nth % 8 * MIB)
}

/// The file as an object in the bucket of a link.
fn backed(link: u32, size: u64, tag: &str) -> Content {
    let origin = Origin {
        link: LinkId(link),
        key: "object".to_owned(),
        size,
        tag: tag.to_owned(),
        modified: Timestamp(0),
    };
    let inode = InodeId(100 + u64::from(link));
    Content { inode, origin: Some(origin), origin_length: size, ..content() }
}

fn link(id: u32, url: String, endpoint: Option<&str>) -> Link {
    let bucket = cluster::Bucket {
        url,
        endpoint: endpoint.map(str::to_owned),
        region: None,
        credentials: endpoint.map(|_| "anonymous".to_owned()),
    };
    Link { id: LinkId(id), bucket, mode: LinkMode::ImportExport }
}

/// A bucket that begins to answer and stops, and how often it has done so.
fn stopping_bucket() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let begun = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&begun);
    // Ends with the process of the test.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let begun = Arc::clone(&counted);
            thread::spawn(move || begin_answer(stream.unwrap(), &begun));
        }
    });
    (endpoint, begun)
}

fn begin_answer(mut stream: TcpStream, begun: &AtomicUsize) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let head = lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty());
    let head: Vec<_> = head.map(|line| line.to_ascii_lowercase()).collect();
    let range = head.iter().find_map(|line| line.strip_prefix("range: bytes=")).unwrap();
    let (first, last) = range.split_once('-').unwrap();
    let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
    let answer = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\
         Content-Range: bytes {first}-{last}/{STOPPING_LEN}\r\nETag: \"tag\"\r\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n.",
        last + 1 - first,
    );
    stream.write_all(answer.as_bytes()).unwrap();
    begun.fetch_add(1, Ordering::Relaxed);
    // Until the other end has had enough.
    drop(lines.next());
}

#[tokio::test]
async fn what_a_disk_that_hangs_is_to_read_leaves_memory_to_another_target() {
    let world = Neighbours::new().await;
    write(&world.other, 0).await;
    for nth in 0..12 {
        write(&world.first, nth).await;
    }
    world.disk.hang();
    let reads = (0..12).map(|nth| {
        let store = world.first.clone();
        tokio::spawn(async move { read(&store, &content(), nth).await })
    });
    let reads: Vec<_> = reads.collect();
    others().await;
    assert_eq!(world.disk.count(), 9, "half of what is divided, and all that is common");
    world.read_other().await;
    write(&world.other, 1).await;
    world.disk.go_on();
    for read in reads {
        read.await.unwrap();
    }
}

#[tokio::test]
async fn what_is_fetched_for_a_disk_that_hangs_leaves_memory_to_another_target() {
    let world = Neighbours::new().await;
    write(&world.other, 0).await;
    let bucket = tempfile::tempdir().unwrap();
    let (url, tag) = object_of_16_mib(bucket.path()).await;
    let links = vec![link(1, url, None)];
    world.links.replace(cluster::Links { version: 1, links });
    // What the index has on the disk is in memory then.
    write(&world.first, 0).await;
    world.disk.hang();
    let store = world.first.clone();
    let reader = tokio::spawn(async move {
        let content = backed(1, 16 << 20, &tag);
        for nth in 0..16 {
            read(&store, &content, nth).await;
        }
    });
    // Of its own part a half, which is one buffer, and of the common one.
    let comes = async {
        while world.disk.count() < 4 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, comes).await.expect("it is never asked to store that much");
    world.read_other().await;
    assert_eq!(world.disk.count(), 4, "the stream waits");
    assert!(!reader.is_finished(), "and its reader");
    world.disk.go_on();
    reader.await.unwrap();
}

#[tokio::test]
async fn reads_from_a_disk_that_hangs_and_a_bucket_leave_such_reads_to_another_target() {
    let world = Neighbours::new().await;
    let bucket = tempfile::tempdir().unwrap();
    let (url, tag) = object_of_16_mib(bucket.path()).await;
    world.links.replace(cluster::Links { version: 1, links: vec![link(1, url, None)] });
    let content = backed(1, 16 << 20, &tag);
    for nth in 0..16 {
        write_part(&world.first, &content, nth, MIB / 2).await;
        write_part(&world.other, &content, nth, MIB / 2).await;
    }
    world.disk.hang();
    let reads = (0..16).map(|nth| {
        let (store, content) = (world.first.clone(), content.clone());
        tokio::spawn(async move { read(&store, &content, nth).await })
    });
    let reads: Vec<_> = reads.collect();
    others().await;
    for nth in 0..16 {
        let read = timeout(PATIENCE, read(&world.other, &content, nth)).await;
        read.expect("the other target has its part of the memory");
    }
    world.disk.go_on();
    for read in reads {
        read.await.unwrap();
    }
}

/// Makes an object in a bucket; returns where that is, and the object's tag.
async fn object_of_16_mib(bucket: &Path) -> (String, String) {
    File::create(bucket.join("object")).unwrap().set_len(16 << 20).unwrap();
    let url = format!("file://{}", bucket.display());
    let spec = LinkSpec::new(&url, None, None, None).unwrap();
    let opened = Bucket::open(&spec, &Settings::default()).unwrap();
    let version = opened.head("object").await.unwrap().version;
    (url, version.tag.as_str().to_owned())
}

#[tokio::test]
async fn buckets_that_stop_in_the_middle_leave_memory_to_what_is_stored() {
    let (endpoint, begun) = stopping_bucket();
    // A bucket that is given up leaves its memory to others, which shall not hide that they wait.
    let links = Links::new(Settings { read_timeout: 30 * PATIENCE, ..Settings::default() });
    let names = [(1, "one"), (2, "two"), (3, "three")];
    let list = names.map(|(id, name)| link(id, format!("s3://{name}"), Some(&endpoint)));
    links.replace(cluster::Links { version: 1, links: list.into() });
    let disk = HangingDisk::new();
    let store = open(&options(TARGET, &disk, BufferPool::new(0)), &links).await;
    write(&store, 0).await;
    // Each at another chunk, so that none waits for the answer to another one.
    let fetches = names.into_iter().flat_map(|(id, _)| (0..8).map(move |chunk| (id, 8 * chunk)));
    let fetches: Vec<_> = fetches.collect();
    for &(id, nth) in &fetches {
        let store = store.clone();
        let content = backed(id, STOPPING_LEN, "\"tag\"");
        drop(tokio::spawn(async move { read(&store, &content, nth).await }));
    }
    let all_begin = async {
        while begun.load(Ordering::Relaxed) < fetches.len() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all_begin).await.expect("the bucket is never asked for all");
    for _ in 0..1000 {
        let read = timeout(PATIENCE, read(&store, &content(), 0)).await;
        read.expect("what is stored needs no bucket");
        tokio::task::yield_now().await;
    }
    timeout(PATIENCE, write(&store, 1)).await.expect("nor does what is written");
}

#[tokio::test]
async fn behind_a_disk_that_hangs_the_other_targets_end_in_order() {
    let world = Neighbours::new().await;
    write(&world.first, 0).await;
    write(&world.other, 0).await;
    world.disk.hang();
    let stores = Stores::new(vec![world.first.clone(), world.other.clone()], 2);
    let mut closing = Box::pin(stores.close());
    tokio::select! {
        biased;
        () = &mut closing => panic!("the disk hangs"),
        () = others() => {}
    }
    // After a restart of the machine: of what has not ended in order something may be lost.
    let again = options(OTHER, &world.others_disk, BufferPool::new(0));
    let again = Volume::open(&Options { boot: BootId([2; 16]), ..again }).await.unwrap();
    assert_eq!(again.loss_count(), 0);
}

#[tokio::test]
async fn a_target_of_this_host_whose_disk_is_not_open_is_to_be_asked_again() {
    let world = World::new().await;
    let (here, elsewhere, given_up) = (HostId([4; 16]), HostId([5; 16]), TargetId([9; 8]));
    let host = |id| cluster::Host { id, name: "host".to_owned(), addresses: Vec::new() };
    let places = [(TARGET, here), (OTHER, here), (TargetId([4; 8]), elsewhere)];
    let targets = places.map(|(id, host)| cluster::Target { id, host });
    world.daemon.cluster.replace_map(cluster::Map {
        epoch: MapEpoch(3),
        hosts: vec![host(here), host(elsewhere)],
        targets: targets.into(),
        pools: Vec::new(),
    });
    let kind = |target| world.daemon.store(target).map(Store::id).map_err(|failure| failure.kind);
    assert_eq!(kind(TARGET), Ok(TARGET));
    assert_eq!(kind(OTHER), Err(ErrorKind::Busy));
    assert_eq!(kind(TargetId([4; 8])), Err(ErrorKind::StaleGroup));
    assert_eq!(kind(given_up), Err(ErrorKind::StaleGroup));
}

#[tokio::test]
async fn once_all_are_closed_no_other_is_taken_in() {
    let world = Neighbours::new().await;
    let stores = Stores::new(vec![world.first.clone()], 2);
    stores.close().await;
    stores.add(world.other.clone());
    assert_eq!(stores.open_count(), 1);
}
