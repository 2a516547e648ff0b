//! The engine under test on its simulated directory, as the model sees it: named places, plain
//! bytes, and few ways to be refused. Another engine is put behind the same operations here.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use millrace_protocol::target::ContentName;
use millrace_storage_target::{
    disk::{
        BufferPool, DiskEngine,
        simulated::{Flush, SimulatedDirectory},
    },
    engine::{
        Authority, Engine, EngineError, ExportedBlocks, Fill, JournalSizes, OpenError, Options,
        WriteRequest, ZeroRequest,
    },
    format::segment::BootId,
};
use millrace_types::{
    BlockState, ByteLen, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c,
    GroupEpoch, InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

use super::model::{BLOCK, BLOCKS, CHUNK, PAGE, State};

/// Which chunk, and what its caller believes about the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) index: usize,
    pub(crate) epoch: u32,
    /// How many bytes of the chunk are in the bucket.
    pub(crate) backed: usize,
}

impl Chunk {
    fn key(&self) -> ChunkKey {
        ChunkKey {
            inode: InodeId(self.inode),
            generation: ContentGeneration(self.generation),
            index: ChunkIndex(u32::try_from(self.index).unwrap()),
            copy: CopyIndex(0),
        }
    }
}

/// Why nothing was changed.
#[derive(Debug)]
pub(crate) enum Refused {
    NoSpace,
    /// The block must be filled first.
    NeedsFill(usize),
    /// Bytes on disk are not what was written.
    Corrupt,
    /// Content or write epoch are older than what the target accepts.
    Stale,
    /// The disk failed or is off.
    Failed(#[expect(dead_code, reason = "shown in failures")] String),
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NoSpace => Self::NoSpace,
            EngineError::NeedsFill { block, .. } => Self::NeedsFill(block.into()),
            EngineError::Corrupt { .. } => Self::Corrupt,
            EngineError::StaleEpoch | EngineError::StaleContent => Self::Stale,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// What is found in a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) state: State,
    /// All bytes of the block; none if it is absent.
    pub(crate) bytes: Vec<u8>,
    /// The pages that are refused as corrupt, by bit; their bytes are zero here.
    pub(crate) rot: u16,
    /// Pages that it takes on the disk.
    pub(crate) pages: u64,
}

/// How the target is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) capacity: u64,
    pub(crate) sizes: JournalSizes,
}

/// The engine, open or not.
pub(crate) struct Subject {
    pub(crate) directory: SimulatedDirectory,
    shape: Shape,
    pool: BufferPool,
    boot: u64,
    engine: Option<Engine>,
}

impl Subject {
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        Self {
            directory: SimulatedDirectory::new(shape.capacity, seed),
            shape,
            pool: BufferPool::new(16 << 20),
            boot: 1,
            engine: None,
        }
    }

    /// Opens the target, or makes it.
    pub(crate) fn open(&mut self) -> Result<(), OpenError> {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&self.boot.to_le_bytes());
        let options = Options {
            dir: "/simulated".into(),
            cluster: ClusterId([9; 16]),
            new_target: Some(TargetId([7; 8])),
            capacity: Some(ByteLen(self.shape.capacity)),
            disk_engine: DiskEngine::Auto,
            // Longer than any run: only what the test asks for happens.
            barrier_interval: Duration::from_secs(3600),
            boot: BootId(boot),
        };
        let directory = Arc::new(self.directory.clone());
        let engine = Engine::open_on(directory, &options, self.shape.sizes, self.pool.clone())?;
        self.engine = Some(engine);
        Ok(())
    }

    /// Ends the process at once; what it has written stays.
    pub(crate) fn kill(&mut self) {
        self.engine = None;
        self.directory.resume();
    }

    /// Cuts the power and turns it on again.
    pub(crate) fn cut(&mut self) {
        self.engine = None;
        self.directory.restart();
        self.boot += 1;
    }

    /// Breaks the promise of syncs.
    pub(crate) fn lie(&self, data: Flush, files: Flush) {
        self.directory.set_data_flush(data);
        self.directory.set_file_flush(files);
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("open")
    }

    pub(crate) fn loss_count(&self) -> u64 {
        self.engine().loss_count()
    }

    /// Bytes used, and the capacity.
    pub(crate) fn space(&self) -> (u64, u64) {
        let statistics = self.engine().statistics();
        (statistics.used.0, statistics.capacity.0)
    }

    pub(crate) async fn close(&self) -> Result<(), Refused> {
        Ok(self.engine().close().await?)
    }

    pub(crate) async fn sync(&self) -> Result<u64, Refused> {
        Ok(self.engine().sync().await?)
    }

    /// Begins a sync and holds it before it has done anything. There must be something to sync.
    pub(crate) async fn begin_sync(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<u64, Refused>> + '_>> {
        self.directory.hold_sync();
        let mut syncing = Box::pin(self.sync());
        assert!(futures::poll!(&mut syncing).is_pending(), "the sync is held");
        assert!(self.directory.wait_for_held_sync(), "there is something to sync");
        syncing
    }

    pub(crate) async fn write(
        &self,
        chunk: Chunk,
        offset: usize,
        bytes: Vec<u8>,
    ) -> Result<(), Refused> {
        let request = WriteRequest {
            key: chunk.key(),
            offset: u32::try_from(offset).unwrap(),
            checksum: Crc32c::of(&bytes),
            body: vec![Bytes::from(bytes)],
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(chunk.epoch),
            chunk_size: u32::try_from(CHUNK).unwrap(),
            backed: u32::try_from(chunk.backed).unwrap(),
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        self.engine().write(request).await?;
        Ok(())
    }

    pub(crate) async fn zero(
        &self,
        chunk: Chunk,
        range: std::ops::Range<usize>,
    ) -> Result<(), Refused> {
        let request = ZeroRequest {
            key: chunk.key(),
            range: u32::try_from(range.start).unwrap()..u32::try_from(range.end).unwrap(),
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(chunk.epoch),
            chunk_size: u32::try_from(CHUNK).unwrap(),
            backed: u32::try_from(chunk.backed).unwrap(),
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        self.engine().zero(request).await?;
        Ok(())
    }

    pub(crate) async fn fill(
        &self,
        chunk: Chunk,
        first_block: usize,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        let mut buffer = self.pool.acquire(bytes.len()).await;
        buffer.as_mut_slice().fill(0);
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let checksums: Vec<_> = buffer.as_slice().chunks(PAGE).map(Crc32c::of).collect();
        let fill = Fill {
            key: chunk.key(),
            first_block: u16::try_from(first_block).unwrap(),
            buffer: Arc::new(buffer),
            len: u32::try_from(bytes.len()).unwrap(),
            checksums: checksums.into(),
            write_epoch: WriteEpoch(chunk.epoch),
            chunk_size: u32::try_from(CHUNK).unwrap(),
        };
        self.engine().fill(fill).await?;
        Ok(())
    }

    pub(crate) async fn release(&self, chunk: Chunk) -> Result<(), Refused> {
        self.engine().release(chunk.key()).await?;
        Ok(())
    }

    pub(crate) async fn drop_clean(&self, chunk: Chunk, block: usize) -> Result<(), Refused> {
        Ok(self.engine().drop_clean(chunk.key(), u16::try_from(block).unwrap()).await?)
    }

    /// The blocks that an export would take, with what it must know of them.
    pub(crate) fn exportable(&self, chunk: Chunk) -> ExportedBlocks {
        let snapshot = self.engine().snapshot(chunk.key());
        (0..u16::try_from(BLOCKS).unwrap())
            .map(|block| (block, snapshot.block(block)))
            .filter(|(_, found)| found.state == BlockState::Written)
            .map(|(block, found)| (block, found.sequence))
            .collect()
    }

    pub(crate) async fn mark_exported(
        &self,
        chunk: Chunk,
        exported: &ExportedBlocks,
    ) -> Result<(), Refused> {
        self.engine().mark_exported(chunk.key(), exported).await?;
        Ok(())
    }

    /// Cuts the file of `chunk` at `size`; older epochs than that of `chunk` are refused then.
    pub(crate) async fn trim(&self, chunk: Chunk, size: usize) -> Result<(), Refused> {
        let key = chunk.key();
        let content = ContentName { inode: key.inode, generation: key.generation };
        let epoch = WriteEpoch(chunk.epoch);
        self.engine().trim(content, CHUNK as u64, size as u64, epoch).await?;
        Ok(())
    }

    pub(crate) async fn reclaim(&self, inode: u64, generation: u32) -> Result<(), Refused> {
        let entry = (InodeId(inode), ContentGeneration(generation));
        self.engine().reclaim(&[entry]).await?;
        Ok(())
    }

    /// Whether the target holds any chunk of a content.
    pub(crate) fn holds_any(&self, inode: u64, generation: u32) -> bool {
        let generation = ContentGeneration(generation);
        let content = ContentName { inode: InodeId(inode), generation };
        !self.engine().chunks(content, ChunkIndex(0), u32::MAX).is_empty()
    }

    /// All blocks of a chunk.
    pub(crate) async fn look(&self, chunk: Chunk) -> Result<Vec<Found>, Refused> {
        let snapshot = self.engine().snapshot(chunk.key());
        let mut found = Vec::with_capacity(BLOCKS);
        for at in 0..BLOCKS {
            let block = snapshot.block(u16::try_from(at).unwrap());
            let state = match block.state {
                BlockState::Absent => State::Absent,
                BlockState::Clean => State::Clean,
                BlockState::Written | BlockState::Zero => State::Own,
            };
            let len = if state == State::Absent { 0 } else { BLOCK };
            let pages = u64::from(block.pages);
            let mut this = Found { state, bytes: vec![0; len], rot: 0, pages };
            let first = u32::try_from(at * BLOCK / PAGE).unwrap();
            let count = u32::from(block.pages);
            if count > 0 {
                match self.engine().load(&snapshot, first, count).await {
                    Ok(loaded) => this.bytes[..loaded.bytes.len()].copy_from_slice(&loaded.bytes),
                    Err(EngineError::Corrupt { .. }) => {
                        for page in 0..count {
                            let start = usize::try_from(page).unwrap() * PAGE;
                            match self.engine().load(&snapshot, first + page, 1).await {
                                Ok(loaded) => {
                                    this.bytes[start..start + PAGE].copy_from_slice(&loaded.bytes)
                                }
                                Err(EngineError::Corrupt { .. }) => this.rot |= 1 << page,
                                Err(error) => return Err(error.into()),
                            }
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            found.push(this);
        }
        Ok(found)
    }

    /// Flips a bit of a stored page, which must be durable; returns whether the page is stored.
    pub(crate) fn flip(&self, chunk: Chunk, block: usize, page: usize, bit: usize) -> bool {
        let snapshot = self.engine().snapshot(chunk.key());
        let stored = snapshot.block(u16::try_from(block).unwrap());
        if page >= usize::from(stored.pages) {
            return false;
        }
        let offset = (stored.first_page + page as u64) * PAGE as u64 + (bit / 8) as u64;
        self.directory.data_disk().flip(offset, u8::try_from(bit % 8).unwrap());
        true
    }
}
