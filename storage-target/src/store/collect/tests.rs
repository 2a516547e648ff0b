//! Reads in several parts on a target with the least memory, and reads of what was given up, or of
//! what the disk has not kept.

use std::{fs, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::poll;
use millrace_object_source::{Bucket, LinkSpec, Settings};
use millrace_protocol::{
    capability::{Content, Origin},
    cluster,
    target::ContentName,
};
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ChunkSize, ClusterId, ContentGeneration, Crc32c, ErrorKind,
    Failure, GroupEpoch, InodeId, Layout, LinkId, PoolId, SessionId, TargetId, WriteEpoch,
    WriteNumber,
};
use tokio::task::JoinHandle;

use crate::{
    disk::{BufferPool, DiskError, Operation, simulated::SimulatedDisk},
    format::{batch::BootId, superblock},
    hydration::Hydrator,
    links::Links,
    misses::Misses,
    parts::BLOCK,
    release::{Releaser, Watermarks},
    store::{Behind, Reader, Store},
    view::ChunkView,
    volume::{Authority, Blank, Options, Volume, WriteRequest, ZeroRequest},
};

/// Bytes of each read.
const LEN: u32 = 1 << 20;

/// Bytes of a chunk of the default size.
const CHUNK: usize = 8 << 20;

/// More reads at the same time than there are buffers.
const READS: u32 = 16;

/// Too much for any buffer but the largest.
const PIECE: u32 = 5 * BLOCK;

/// One region behind a small ring.
const LAYOUT: superblock::Layout = superblock::Layout {
    capacity: 512 + 8192,
    roots: 16,
    journal: 256,
    journal_pages: 256,
    regions: 512,
};

struct World {
    store: Store,
    disk: SimulatedDisk,
    bucket: tempfile::TempDir,
    links: Links,
}

impl World {
    async fn new() -> Self {
        let disk = SimulatedDisk::new(LAYOUT.capacity * 4096, 1);
        let options = Options {
            cluster: ClusterId([1; 16]),
            blank: Some(Blank { target: TargetId([2; 8]), layout: LAYOUT }),
            disk: disk.queue(),
            growth: None,
            pool: BufferPool::new(0),
            cache_bytes: 1 << 20,
            sync_interval: Duration::from_secs(3600),
            boot: BootId([1; 16]),
        };
        let volume = Arc::new(Volume::open(&options).await.unwrap());
        let links = Links::new(Settings::default());
        let releaser = Releaser::new(Arc::clone(&volume), Watermarks { high: 100, low: 95 });
        let runtime = tokio::runtime::Handle::current();
        let hydrator = Hydrator::new(Arc::clone(&volume), links.clone(), releaser.clone(), runtime);
        let store = Store::new(volume, hydrator, releaser, Misses::default());
        Self { store, disk, bucket: tempfile::tempdir().unwrap(), links }
    }

    /// Puts an object into the bucket that backs the content.
    async fn put(&self, bytes: &[u8], content: Content) -> Content {
        fs::write(self.bucket.path().join("object"), bytes).unwrap();
        let url = format!("file://{}", self.bucket.path().display());
        let spec = LinkSpec::new(&url, None, None, None).unwrap();
        let bucket = Bucket::open(&spec, &Settings::default()).unwrap();
        let version = bucket.head("object").await.unwrap().version;
        let bucket = cluster::Bucket { url, endpoint: None, region: None, credentials: None };
        let mode = cluster::LinkMode::ImportExport;
        let links = vec![cluster::Link { id: LinkId(1), bucket, mode }];
        self.links.replace(cluster::Links { version: 1, links });
        let origin = Origin {
            link: LinkId(1),
            key: "object".to_owned(),
            size: version.size,
            tag: version.tag.as_str().to_owned(),
            modified: version.modified,
        };
        Content { origin: Some(origin), origin_length: version.size, ..content }
    }

    async fn write(&self, view: &ChunkView, offset: u32, bytes: &[u8]) {
        let request = WriteRequest {
            key: view.key,
            offset,
            checksum: Crc32c::of(bytes),
            body: vec![Bytes::copy_from_slice(bytes)],
            group_epoch: GroupEpoch(1),
            write_epoch: view.write_epoch,
            chunk_size: view.chunk_size,
            backed: view.backed,
            session: SessionId(1),
            number: WriteNumber(1),
            authority: Authority::default(),
        };
        self.store.write(view, request, false).await.unwrap();
    }

    /// Puts an object into the bucket and has it all here.
    async fn hydrate(&self, bytes: &[u8]) -> ChunkView {
        let content = self.put(bytes, Content { sparse: false, ..sparse() }).await;
        let view = ChunkView::new(&content, ChunkIndex(0));
        self.store.hydrate(&view, Behind::Job).await.unwrap();
        self.store.volume().sync().await.unwrap();
        view
    }

    /// Where on the disk a page of a chunk lies.
    async fn disk_page(&self, view: &ChunkView, page: u32) -> u64 {
        let block = u16::try_from(page / 16).unwrap();
        let snapshot = self.store.volume().snapshot(view.key, block..block + 1).await.unwrap();
        snapshot.disk_page(page).unwrap()
    }

    /// Has the disk fail to read a page of a chunk.
    async fn set_unreadable(&self, view: &ChunkView, page: u32) {
        self.disk.set_unreadable(self.disk_page(view, page).await, true);
    }

    /// Begins to read; the buffers go when the bytes are there.
    fn read(&self, view: &ChunkView, start: u32) -> JoinHandle<Vec<u8>> {
        let (store, view) = (self.store.clone(), view.clone());
        tokio::spawn(async move {
            let read = store.read(&view, start..start + LEN, Reader::Random).await.unwrap();
            let bytes = read.body.concat();
            assert_eq!(read.checksum, Crc32c::of(&bytes));
            bytes
        })
    }
}

/// A file that may have holes.
fn sparse() -> Content {
    Content {
        inode: InodeId(7),
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(0),
        layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
        origin: None,
        origin_length: 0,
        sparse: true,
    }
}

fn piece(nth: u32) -> Vec<u8> {
    (0..PIECE).map(|at| (at % 251 + nth).to_le_bytes()[0]).collect()
}

#[tokio::test]
async fn more_reads_over_holes_than_there_is_memory_for_go_on_all_the_same() {
    let world = World::new().await;
    let views: Vec<_> = (0..READS).map(|nth| ChunkView::new(&sparse(), ChunkIndex(nth))).collect();
    for (nth, view) in (0..).zip(&views) {
        world.write(view, 0, &piece(nth)).await;
        world.write(view, LEN - PIECE, &piece(nth + READS)).await;
    }
    world.disk.set_delays(true);
    let reads: Vec<_> = views.iter().map(|view| world.read(view, 0)).collect();
    for _ in 0..100_000 {
        tokio::task::yield_now().await;
    }
    assert!(reads.iter().all(|read| read.is_finished()), "nobody holds memory and waits for more");
    for (nth, read) in (0..).zip(reads) {
        let mut expected = piece(nth);
        expected.resize((LEN - PIECE) as usize, 0);
        expected.extend(piece(nth + READS));
        assert!(read.await.unwrap() == expected, "read {nth}");
    }
    assert_eq!(world.store.volume().pool().used_bytes(), 0);
}

#[tokio::test]
async fn more_reads_of_what_is_partly_in_the_bucket_than_there_is_memory_for_go_on() {
    let world = World::new().await;
    let mut bytes: Vec<u8> = (0..2 * CHUNK).map(|at| (at % 253).to_le_bytes()[0]).collect();
    let content = world.put(&bytes, sparse()).await;
    let place = |nth: u32| {
        let start = nth as usize * LEN as usize;
        let index = u32::try_from(start / CHUNK).unwrap();
        let view = ChunkView::new(&content, ChunkIndex(index));
        (start, view, u32::try_from(start % CHUNK).unwrap())
    };
    for nth in 0..READS {
        let (start, view, within) = place(nth);
        world.write(&view, within, &piece(nth)).await;
        bytes[start..start + PIECE as usize].copy_from_slice(&piece(nth));
    }
    world.disk.set_delays(true);
    let reads = (0..READS).map(|nth| {
        let (_, view, within) = place(nth);
        world.read(&view, within)
    });
    let reads = futures::future::join_all(reads.collect::<Vec<_>>());
    // The bucket is a real directory, which no count of steps bounds.
    let reads = tokio::time::timeout(Duration::from_secs(60), reads).await;
    let reads = reads.expect("what waits for the bucket leaves it memory");
    for (nth, read) in (0..).zip(reads) {
        let (start, ..) = place(nth);
        assert!(read.unwrap() == bytes[start..start + LEN as usize], "read {nth}");
    }
}

#[tokio::test]
async fn what_is_absent_of_a_content_that_was_given_up_is_no_hole() {
    let world = World::new().await;
    let volume = world.store.volume();
    let view = ChunkView::new(&sparse(), ChunkIndex(0));
    world.write(&view, 0, &piece(1)).await;
    let name = ContentName { inode: view.key.inode, generation: view.key.generation };
    let size = u64::from(BLOCK);
    volume.trim(name, u64::from(view.chunk_size), size, WriteEpoch(3)).await.unwrap();
    let kind = |failure: Failure| failure.kind;
    // Who knows the file from before the cut cannot tell what is absent.
    let read = world.store.read(&view, 0..LEN, Reader::Random).await;
    assert_eq!(read.map(drop).map_err(kind), Err(ErrorKind::StaleEpoch));
    let sought = world.store.seek(&view, 0..LEN, true).await;
    assert_eq!(sought.map_err(kind), Err(ErrorKind::StaleEpoch));
    world.store.read(&view, 0..BLOCK, Reader::Random).await.unwrap();
    let view = ChunkView { write_epoch: WriteEpoch(3), ..view };
    let found = world.read(&view, 0).await.unwrap();
    assert_eq!(found[..BLOCK as usize], piece(1)[..BLOCK as usize]);
    assert!(found[BLOCK as usize..].iter().all(|&byte| byte == 0));
    assert_eq!(world.store.seek(&view, 0..LEN, true).await.unwrap(), Some(BLOCK));

    volume.reclaim(&[(name.inode, name.generation)]).await.unwrap();
    for sparse in [true, false] {
        let late = ChunkView { sparse, ..view.clone() };
        let read = world.store.read(&late, 0..LEN, Reader::Random).await;
        assert_eq!(read.map(drop).map_err(kind), Err(ErrorKind::StaleContent));
        let found = world.store.seek(&late, 0..LEN, true).await;
        assert_eq!(found.map_err(kind), Err(ErrorKind::StaleContent));
    }
    let key = ChunkKey { generation: ContentGeneration(2), ..view.key };
    let newer = ChunkView { key, ..view.clone() };
    assert!(world.read(&newer, 0).await.unwrap().iter().all(|&byte| byte == 0));
}

/// An object of [`LEN`] bytes.
fn object() -> Vec<u8> {
    (0..LEN).map(|at| (at % 253).to_le_bytes()[0] ^ (at >> 12).to_le_bytes()[0]).collect()
}

#[tokio::test]
async fn what_the_disk_fails_to_read_is_fetched_for_whoever_needs_it() {
    let world = World::new().await;
    let mut bytes = object();
    let view = world.hydrate(&bytes).await;
    // A part of the page is written; the rest of it stays.
    world.set_unreadable(&view, 5).await;
    world.write(&view, 5 * 4096 + 100, &[7; 100]).await;
    bytes[5 * 4096 + 100..5 * 4096 + 200].fill(7);
    // The ends of what is zeroed lie in two others.
    world.set_unreadable(&view, 40).await;
    world.set_unreadable(&view, 70).await;
    let zeroed = 40 * 4096 + 1000..70 * 4096 + 1000;
    let request = ZeroRequest {
        key: view.key,
        range: zeroed.clone(),
        group_epoch: GroupEpoch(1),
        write_epoch: view.write_epoch,
        chunk_size: view.chunk_size,
        backed: view.backed,
        session: SessionId(1),
        number: WriteNumber(2),
        authority: Authority::default(),
    };
    world.store.zero(&view, request).await.unwrap();
    bytes[zeroed.start as usize..zeroed.end as usize].fill(0);
    // Two blocks of one read.
    world.set_unreadable(&view, 100).await;
    world.set_unreadable(&view, 200).await;
    assert!(world.read(&view, 0).await.unwrap() == bytes);
    world.store.volume().take_second_looks().await.unwrap();
    assert_eq!(world.store.volume().statistics().bad_blocks, 0, "nothing is wrong with the rest");
}

#[tokio::test]
async fn a_read_that_the_disk_fails_once_is_tried_again() {
    let world = World::new().await;
    let bytes = object();
    let view = world.hydrate(&bytes).await;
    // Nothing is fetched for that.
    fs::remove_dir_all(world.bucket.path()).unwrap();
    world.disk.fail(Operation::Read, 0, libc::EIO);
    assert!(world.read(&view, 0).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_sound_block_stays_although_what_another_reads_with_it_meanwhile_fails() {
    let world = World::new().await;
    let view = world.hydrate(&object()).await;
    world.set_unreadable(&view, 9 * 16 + 3).await;
    let volume = world.store.volume();
    let snapshot = volume.snapshot(view.key, 0..16).await.unwrap();
    // Under way for as long as it is not asked for again.
    world.disk.set_delays(true);
    let mut other = Box::pin(volume.load(&snapshot, 0, 256));
    assert!(poll!(&mut other).is_pending());
    world.disk.set_delays(false);
    // A read of the first block was refused.
    let (store, seen) = (world.store.clone(), view.clone());
    let looking = tokio::spawn(async move {
        let source = io::Error::from_raw_os_error(libc::EIO);
        let failed = DiskError::Io { operation: "read", offset: 0, len: 4096, source };
        store.give_up_damaged(&seen, [0], failed.into()).await
    });
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(looking.is_finished(), "it waits for nobody else's read");
    looking.await.unwrap().unwrap();
    other.await.expect_err("block 9 is not read");
    let snapshot = volume.snapshot(view.key, 0..1).await.unwrap();
    assert_eq!(snapshot.state(0), BlockState::Clean);
}

#[tokio::test]
async fn what_was_written_here_and_is_not_read_any_more_is_an_error() {
    let world = World::new().await;
    let view = world.hydrate(&object()).await;
    world.write(&view, 5 * 4096, &[7; 4096]).await;
    world.set_unreadable(&view, 5).await;
    let read = world.store.read(&view, 0..LEN, Reader::Random).await;
    assert_eq!(read.map(drop).map_err(|failure| failure.kind), Err(ErrorKind::Disk));
    world.store.read(&view, BLOCK..LEN, Reader::Random).await.unwrap();
}

#[tokio::test]
async fn a_block_stays_of_which_a_page_is_damaged_and_the_bucket_has_another_version() {
    let world = World::new().await;
    let bytes = object();
    let view = world.hydrate(&bytes).await;
    let kind = |failure: Failure| failure.kind;
    fs::write(world.bucket.path().join("object"), b"another").unwrap();
    let (unread, damaged) = (world.disk_page(&view, 5).await, world.disk_page(&view, 20).await);
    world.disk.set_unreadable(unread, true);
    world.disk.flip(damaged * 4096 + 9, 4);
    for page in [5, 20] {
        let range = page * 4096..(page + 1) * 4096;
        let read = world.store.read(&view, range, Reader::Random).await;
        assert_eq!(read.map(drop).map_err(kind), Err(ErrorKind::ObjectChanged), "page {page}");
    }
    for around in [0..5 * 4096, 6 * 4096..20 * 4096, 21 * 4096..LEN] {
        let read = world.store.read(&view, around.clone(), Reader::Random).await.unwrap();
        assert!(read.body.concat() == bytes[around.start as usize..around.end as usize]);
    }
    // Without the bucket too.
    fs::remove_dir_all(world.bucket.path()).unwrap();
    world.store.read(&view, 5 * 4096..6 * 4096, Reader::Random).await.unwrap_err();
    world.disk.set_unreadable(unread, false);
    world.disk.flip(damaged * 4096 + 9, 4);
    assert!(world.read(&view, 0).await.unwrap() == bytes, "all of it is still here");
}
