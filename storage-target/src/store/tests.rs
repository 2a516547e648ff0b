//! A target on a real disk: what becomes clean after which reads.

use std::time::Duration;

use millrace_object_source::Settings;
use millrace_protocol::capability::Content;
use millrace_types::{
    ChunkIndex, ChunkSize, ClusterId, ContentGeneration, GroupEpoch, InodeId, Layout, MIB, PoolId,
    WriteEpoch, WriteNumber,
};

use super::*;
use crate::{
    disk::{BufferPool, DiskEngine},
    format::batch::BootId,
    links::Links,
    misses::Misses,
    release::Watermarks,
    volume::{Authority, PlaceOptions},
};

/// Bytes of the file: sixteen blocks.
const LEN: u32 = 1 << 20;

struct World {
    store: Store,
    view: ChunkView,
    _disk: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let disk = tempfile::tempdir().unwrap();
        let options = PlaceOptions {
            path: disk.path().to_owned(),
            cluster: ClusterId([1; 16]),
            new_target: Some(TargetId([2; 8])),
            capacity: Some(ByteLen(64 * MIB)),
            disk_engine: DiskEngine::Auto,
            sync_interval: Duration::from_secs(3600),
            boot: BootId([1; 16]),
            cache_bytes: 1 << 20,
        };
        let volume = Volume::open_at(&options, BufferPool::new(64 << 20)).await.unwrap();
        let volume = Arc::new(volume);
        let releaser = Releaser::new(Arc::clone(&volume), Watermarks { high: 100, low: 95 });
        let links = Links::new(Settings::default());
        let runtime = tokio::runtime::Handle::current();
        let hydrator = Hydrator::new(Arc::clone(&volume), links, releaser.clone(), runtime);
        let content = Content {
            inode: InodeId(7),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(0),
            layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
            origin: None,
            origin_length: 0,
            sparse: false,
        };
        let view = ChunkView::new(&content, ChunkIndex(0));
        Self { store: Store::new(volume, hydrator, releaser, Misses::default()), view, _disk: disk }
    }

    async fn write(&self, number: u64, len: u32) {
        let bytes = Bytes::from(vec![number.to_le_bytes()[0]; len as usize]);
        let request = WriteRequest {
            key: self.view.key,
            offset: 0,
            checksum: Crc32c::of(&bytes),
            body: vec![bytes],
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(0),
            chunk_size: self.view.chunk_size,
            backed: 0,
            session: SessionId(1),
            number: WriteNumber(number),
            authority: Authority::default(),
        };
        self.store.write(&self.view, request, false).await.unwrap();
    }

    async fn read(&self, reader: Reader) {
        self.store.read(&self.view, 0..LEN, reader).await.unwrap();
    }

    async fn mark(&self) -> Result<u64, ErrorKind> {
        let marked = self.store.mark_exported(self.view.key, LEN).await;
        marked.map(|bytes| bytes.0).map_err(|failure| failure.kind)
    }

    /// The blocks that count as written here.
    async fn written(&self) -> Vec<u16> {
        let blocks = 0..block_of(LEN - 1) + 1;
        let snapshot = self.store.volume().snapshot(self.view.key, blocks.clone()).await.unwrap();
        blocks.filter(|&block| snapshot.state(block) == BlockState::Written).collect()
    }
}

#[tokio::test]
async fn what_is_copied_elsewhere_does_not_become_clean_by_it() {
    let world = World::new().await;
    world.write(1, LEN).await;
    world.read(Reader::Copy).await;
    world.read(Reader::Sequential).await;
    assert_eq!(world.mark().await, Err(ErrorKind::ObjectChanged));
    assert_eq!(world.written().await.len(), 16);
    world.read(Reader::Export).await;
    // The object of the export lacks this, whoever else reads it.
    world.write(2, 10).await;
    world.read(Reader::Copy).await;
    assert_eq!(world.mark().await, Err(ErrorKind::ObjectChanged));
    assert_eq!(world.written().await, [0]);
    world.read(Reader::Export).await;
    assert_eq!(world.mark().await, Ok(u64::from(BLOCK)));
    assert!(world.written().await.is_empty());
}

#[tokio::test]
async fn a_clean_chunk_is_exported_without_a_note_of_it() {
    let world = World::new().await;
    world.write(1, LEN).await;
    world.read(Reader::Export).await;
    assert_eq!(world.mark().await, Ok(u64::from(LEN)));
    let before = format!("{:?}", world.store.exported());
    world.read(Reader::Export).await;
    assert_eq!(format!("{:?}", world.store.exported()), before);
    assert_eq!(world.mark().await, Ok(0));
}

#[test]
fn a_target_knows_what_another_one_reads_for() {
    for reader in [Reader::Export, Reader::Copy] {
        assert_eq!(Reader::of(SYSTEM_SESSION, reader.says_sequential()), reader);
    }
    for reader in [Reader::Random, Reader::Sequential] {
        assert_eq!(Reader::of(SessionId(1), reader.says_sequential()), reader);
    }
}
