//! Against a bucket in a directory: what is fetched, how often, and what readers see meanwhile.

use std::{fs, path::Path, sync::Arc, time::Duration};

use millrace_object_source::{Bucket, LinkSpec, ObjectVersion, Settings};
use millrace_protocol::{
    capability::{Content, Origin},
    cluster,
};
use millrace_types::{
    BlockState, ByteLen, ChunkIndex, ChunkSize, ClusterId, ContentGeneration, Crc32c, ErrorKind,
    Failure, GroupEpoch, InodeId, Layout, LinkId, MIB, PoolId, SessionId, TargetId, WriteEpoch,
    WriteNumber,
};

use crate::{
    disk::{BufferPool, DiskEngine},
    format::batch::BootId,
    hydration::Hydrator,
    links::Links,
    misses::Misses,
    release::{Releaser, Watermarks},
    store::{Behind, Reader, Store},
    view::ChunkView,
    volume::{Authority, WriteRequest},
    volume::{PlaceOptions, Volume},
};

mod silent;
mod whole;

const OBJECT_LEN: usize = 10_000_001;

struct World {
    store: Store,
    misses: Misses,
    content: Content,
    bucket: tempfile::TempDir,
    disk: tempfile::TempDir,
    bytes: Vec<u8>,
}

fn object(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251).to_le_bytes()[0] ^ (at >> 16).to_le_bytes()[0]).collect()
}

async fn open(dir: &Path) -> Arc<Volume> {
    let options = PlaceOptions {
        path: dir.to_owned(),
        cluster: ClusterId([1; 16]),
        new_target: Some(TargetId([2; 8])),
        capacity: Some(ByteLen(64 * MIB)),
        disk_engine: DiskEngine::Auto,
        sync_interval: Duration::from_secs(3600),
        boot: BootId([1; 16]),
        cache_bytes: 1 << 20,
    };
    Arc::new(Volume::open_at(&options, BufferPool::new(64 << 20)).await.unwrap())
}

impl World {
    async fn new() -> Self {
        Self::with(object(OBJECT_LEN)).await
    }

    /// An object in a directory that plays the bucket.
    async fn with(bytes: Vec<u8>) -> Self {
        let bucket = tempfile::tempdir().unwrap();
        fs::write(bucket.path().join("object"), &bytes).unwrap();
        let url = format!("file://{}", bucket.path().display());
        let spec = LinkSpec::new(&url, None, None, None).unwrap();
        let opened = Bucket::open(&spec, &Settings::default()).unwrap();
        let version = opened.head("object").await.unwrap().version;
        let link = cluster::Bucket { url, endpoint: None, region: None, credentials: None };
        let links = Links::new(Settings::default());
        Self::over(links, link, version, bytes, bucket).await
    }

    /// An object, which has these bytes, in any bucket.
    async fn over(
        links: Links,
        link: cluster::Bucket,
        version: ObjectVersion,
        bytes: Vec<u8>,
        bucket: tempfile::TempDir,
    ) -> Self {
        let disk = tempfile::tempdir().unwrap();
        let mode = cluster::LinkMode::ImportExport;
        let links_there = vec![cluster::Link { id: LinkId(1), bucket: link, mode }];
        links.replace(cluster::Links { version: 1, links: links_there });
        let content = Content {
            inode: InodeId(7),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(0),
            layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
            origin: Some(Origin {
                link: LinkId(1),
                key: "object".to_owned(),
                size: version.size,
                tag: version.tag.as_str().to_owned(),
                modified: version.modified,
            }),
            origin_length: version.size,
            sparse: false,
        };
        let volume = open(disk.path()).await;
        let runtime = tokio::runtime::Handle::current();
        let releaser = Releaser::new(Arc::clone(&volume), Watermarks { high: 100, low: 95 });
        let hydrator = Hydrator::new(Arc::clone(&volume), links, releaser.clone(), runtime);
        let misses = Misses::default();
        let store = Store::new(volume, hydrator, releaser, misses.clone());
        Self { store, misses, content, bucket, disk, bytes }
    }

    fn view(&self, index: u32) -> ChunkView {
        ChunkView::new(&self.content, ChunkIndex(index))
    }

    async fn read(&self, start: usize, len: usize, reader: Reader) -> Result<u32, Failure> {
        let (chunk, within) = (start / (8 << 20), start % (8 << 20));
        let view = self.view(u32::try_from(chunk).unwrap());
        let range = u32::try_from(within).unwrap()..u32::try_from(within + len).unwrap();
        let read = self.store.read(&view, range, reader).await?;
        let found = read.body.concat();
        let mut expected = self.bytes.clone();
        expected.resize(expected.len().max(start + len), 0);
        assert!(found == expected[start..start + len], "wrong bytes at {start}");
        assert_eq!(read.checksum, Crc32c::of(&found));
        Ok(read.fetched)
    }

    async fn wait_until_stored(&self, chunk: u32, block: u16) {
        loop {
            let key = self.view(chunk).key;
            let snapshot = self.store.volume().snapshot(key, block..block + 1).await.unwrap();
            if snapshot.state(block) == BlockState::Clean {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn write(&self, offset: usize, bytes: Vec<u8>) -> WriteRequest {
        let view = self.view(0);
        WriteRequest {
            key: view.key,
            offset: u32::try_from(offset).unwrap(),
            checksum: Crc32c::of(&bytes),
            body: vec![bytes.into()],
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(0),
            chunk_size: view.chunk_size,
            backed: view.backed,
            session: SessionId(1),
            number: WriteNumber(1),
            authority: Authority::default(),
        }
    }
}

#[tokio::test]
async fn a_sequential_read_fetches_the_chunk_once_and_the_second_pass_nothing() {
    let world = World::new().await;
    for start in (0..8 << 20).step_by(1 << 20) {
        world.read(start, 1 << 20, Reader::Sequential).await.unwrap();
    }
    assert_eq!(world.store.hydrator().fetches(), 1);
    world.wait_until_stored(0, 127).await;
    for start in (0..8 << 20).step_by(1 << 20) {
        assert_eq!(world.read(start, 1 << 20, Reader::Sequential).await.unwrap(), 0);
    }
    assert_eq!(world.store.hydrator().fetches(), 1);
}

#[tokio::test]
async fn read_ahead_of_a_whole_chunk_at_once_is_one_fetch() {
    let world = World::new().await;
    let reads = (0..8).map(|at| world.read(at << 20, 1 << 20, Reader::Sequential));
    futures::future::try_join_all(reads).await.unwrap();
    assert_eq!(world.store.hydrator().fetches(), 1);
    assert_eq!(world.store.hydrator().fetched_bytes(), 8 << 20);
}

#[tokio::test]
async fn readers_of_one_range_at_the_same_time_share_one_fetch() {
    let world = World::new().await;
    let reads = (0..32).map(|at| world.read(at * 7000, 4096, Reader::Random));
    futures::future::try_join_all(reads).await.unwrap();
    assert_eq!(world.store.hydrator().fetches(), 1);
}

#[tokio::test]
async fn a_read_far_ahead_of_a_stream_does_not_wait_for_it() {
    let world = World::new().await;
    let first = world.read(0, 1 << 20, Reader::Sequential);
    let ahead = world.read(6 << 20, 4096, Reader::Random);
    futures::future::try_join(first, ahead).await.unwrap();
    world.wait_until_stored(0, 127).await;
    world.wait_until_stored(0, 95).await;
    assert_eq!(world.store.hydrator().fetches(), 2);
    assert_eq!(world.store.hydrator().fetched_bytes(), 8 << 20, "no byte came twice");
}

#[tokio::test]
async fn the_end_of_the_object_is_padded_with_zeros() {
    let world = World::new().await;
    world.read(OBJECT_LEN - 5000, 10_000, Reader::Random).await.unwrap();
    world.wait_until_stored(1, 24).await;
    let fetched = world.read(OBJECT_LEN - 5000, 10_000, Reader::Random).await.unwrap();
    assert_eq!(fetched, 0);
}

#[tokio::test]
async fn a_write_into_a_block_that_is_only_in_the_bucket_fetches_it_first() {
    let mut world = World::new().await;
    let request = world.write(100_000, vec![9; 10]);
    world.store.write(&world.view(0), request, false).await.unwrap();
    world.bytes[100_000..100_010].fill(9);
    world.read(0, 1 << 20, Reader::Sequential).await.unwrap();
    let snapshot = world.store.volume().snapshot(world.view(0).key, 1..2).await.unwrap();
    assert_eq!(snapshot.state(1), BlockState::Written);
}

#[tokio::test]
async fn an_object_that_changed_is_an_error_and_never_a_mix() {
    let world = World::new().await;
    fs::write(world.bucket.path().join("object"), b"other").unwrap();
    let failure = world.read(0, 4096, Reader::Random).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::ObjectChanged);
    fs::remove_file(world.bucket.path().join("object")).unwrap();
    let failure = world.read(0, 4096, Reader::Random).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::ObjectChanged);
}

#[tokio::test]
async fn a_damaged_clean_block_is_fetched_again() {
    use std::os::unix::fs::FileExt;
    let world = World::new().await;
    world.store.hydrate(&world.view(0), Behind::Job).await.unwrap();
    let snapshot = world.store.volume().snapshot(world.view(0).key, 3..4).await.unwrap();
    let page = snapshot.disk_page(3 * 16).unwrap();
    let store = fs::OpenOptions::new().write(true).open(world.disk.path().join("store")).unwrap();
    store.write_all_at(&[0xA5; 100], page * 4096).unwrap();
    store.sync_all().unwrap();
    world.read(0, 1 << 20, Reader::Random).await.unwrap();
    assert_eq!(world.store.volume().statistics().checksum_failures, 1);
    world.wait_until_stored(0, 3).await;
    assert_eq!(world.store.volume().statistics().bad_blocks, 0);
}

#[tokio::test]
async fn hydrating_stores_everything_and_counts_what_was_fetched() {
    let world = World::new().await;
    assert_eq!(world.store.hydrate(&world.view(0), Behind::Job).await.unwrap().0, 8 << 20);
    assert_eq!(world.store.hydrate(&world.view(0), Behind::Job).await.unwrap().0, 0);
    let tail = OBJECT_LEN as u64 - (8 << 20);
    assert_eq!(world.store.hydrate(&world.view(1), Behind::Job).await.unwrap().0, tail);
    fs::remove_file(world.bucket.path().join("object")).unwrap();
    world.read(0, 1 << 20, Reader::Random).await.unwrap();
    world.read(9 << 20, 100_000, Reader::Random).await.unwrap();
}

#[tokio::test]
async fn a_full_target_still_serves_what_it_cannot_store() {
    let world = World::new().await;
    let mut inode = 100;
    let mut full = world.write(0, vec![1; 1 << 20]);
    loop {
        full.key.inode = InodeId(inode);
        full.backed = 0;
        if world.store.volume().write(full.clone()).await.is_err() {
            break;
        }
        inode += 1;
    }
    world.read(3 << 20, 1 << 20, Reader::Random).await.unwrap();
    let failure = world.store.hydrate(&world.view(0), Behind::Job).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NoSpace);
}
