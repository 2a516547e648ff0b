//! The volume under test, wherever it lies, behind few and plain operations.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    pin::Pin,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::target::ContentName;
use millrace_runtime::Clock;
use millrace_storage_target::{
    disk::{BufferPool, simulated::Flush},
    format::batch::BootId,
    verify::{self, report::Remark},
    volume::{
        Authority, EngineError, ExportedBlocks, Fill, OpenError, ScrubCommand, ScrubSettings,
        Snapshot, Volume, WriteRequest, ZeroRequest,
    },
};
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, Crc32c, GroupEpoch, InodeId,
    SessionId, Timestamp, WriteEpoch, WriteNumber,
};

use super::ground::Directory;
use super::model::{BLOCK, BLOCKS, CHUNK, PAGE, State};

/// The inode of the data that makes a large disk small.
const BALLAST: u64 = 1 << 40;

/// Bytes of one chunk of it.
const BALLAST_CHUNK: usize = 1 << 20;

/// Bytes of a chunk of the run on the target: larger than what the model knows of it, so that this
/// part can lie over two sections.
const TARGET_CHUNK: usize = 1 << 20;

/// How long a scrub of a small disk may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

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
    /// Of the ring.
    pub(crate) journal_pages: u64,
}

/// The volume, open or not.
pub(crate) struct Subject {
    pub(crate) directory: Directory,
    /// Bytes that the run may use.
    room: u64,
    pool: BufferPool,
    /// The block of the target's chunks that is the first of the model's.
    pub(crate) first_block: usize,
    boot: u64,
    volume: RefCell<Option<Arc<Volume>>>,
    has_ballast: bool,
    /// Marks made, so that a sync has something to tell.
    announcements: Cell<u32>,
    reopened: Cell<bool>,
}

impl Subject {
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        Self::on(Directory::simulated(seed, shape), shape)
    }

    pub(crate) fn on(directory: Directory, shape: Shape) -> Self {
        Self {
            directory,
            room: shape.capacity,
            pool: BufferPool::new(16 << 20),
            first_block: 0,
            boot: 1,
            volume: RefCell::new(None),
            has_ballast: false,
            announcements: Cell::new(0),
            reopened: Cell::new(false),
        }
    }

    /// Opens the target, or makes it.
    pub(crate) fn open(&mut self) -> Result<(), OpenError> {
        self.reopen()?;
        if !self.has_ballast && !self.directory.is_off() {
            self.has_ballast = self.take_ballast()?;
        }
        Ok(())
    }

    /// Fills the disk but for the room that a run shall have.
    fn take_ballast(&self) -> Result<bool, OpenError> {
        let volume = self.volume();
        let Some(room) = self.directory.room(self.room) else { return Ok(true) };
        let totals = volume.statistics().space;
        // Without what it will grow by.
        let available = (totals.available() - totals.growable) * PAGE as u64;
        let (mut left, mut index) = (available.saturating_sub(room), 0);
        apart(async move {
            while left > 0 {
                let len = usize::try_from(left).unwrap().min(BALLAST_CHUNK);
                let chunk = Chunk { inode: BALLAST, generation: 1, index, epoch: 0, backed: 0 };
                let bytes = vec![index.to_le_bytes()[0]; len];
                let request = write_request(chunk, 0, bytes, BALLAST_CHUNK);
                if volume.write(request).await.is_err() {
                    return Ok(false);
                }
                (left, index) = (left - len as u64, index + 1);
            }
            Ok(volume.sync().await.is_ok())
        })
    }

    fn reopen(&self) -> Result<(), OpenError> {
        *self.volume.borrow_mut() = None;
        let (boot, pool) = (self.boot(), self.pool.clone());
        let volume = apart(self.directory.open(boot, pool))?;
        *self.volume.borrow_mut() = Some(Arc::new(volume));
        Ok(())
    }

    /// Ends the process at once; what it has written stays.
    pub(crate) fn kill(&mut self) {
        *self.volume.borrow_mut() = None;
        self.directory.resume();
    }

    /// Cuts the power and turns it on again.
    pub(crate) fn cut(&mut self) {
        *self.volume.borrow_mut() = None;
        self.directory.restart();
        self.boot += 1;
    }

    /// Breaks the promise of syncs; one disk holds everything.
    pub(crate) fn lie(&self, data: Flush, _files: Flush) {
        self.directory.set_flush(data);
    }

    /// A block of the target's chunk.
    fn block(&self, own: usize) -> u16 {
        u16::try_from(self.first_block + own).unwrap()
    }

    fn blocks(&self) -> Range<u16> {
        self.block(0)..self.block(BLOCKS)
    }

    /// A byte of the target's chunk.
    fn offset(&self, own: usize) -> usize {
        self.first_block * BLOCK + own
    }

    /// What the bucket has of the target's chunk reaches as far.
    fn chunk(&self, chunk: Chunk) -> Chunk {
        let backed = if chunk.backed == 0 { 0 } else { self.offset(chunk.backed) };
        Chunk { backed, ..chunk }
    }

    /// Lets the scrub look at everything once, and drop the clean blocks that are bad.
    pub(crate) fn scrub(&self) -> Result<(), Refused> {
        let (volume, directory) = (self.volume(), &self.directory);
        let finished = apart(async {
            let (clock, time) = Clock::manual(Timestamp(1_000_000_000_000_000_000));
            let interval = Duration::from_secs(1 << 30);
            volume.start_scrub(ScrubSettings { bytes_per_second: 1 << 40, interval }, clock);
            let mut wanted = volume.scrub_status().progress;
            // What an end has interrupted goes on where it was; a whole pass comes after it.
            let whole = wanted.pass + 1;
            wanted.pass += u64::from(!wanted.is_under_way());
            volume.control_scrub(ScrubCommand::Start);
            let started = Instant::now();
            while started.elapsed() < PATIENCE {
                // A real disk answers from another thread.
                tokio::task::yield_now().await;
                let progress = volume.scrub_status().progress;
                if progress.pass >= wanted.pass && !progress.is_under_way() {
                    if progress.pass >= whole {
                        return true;
                    }
                    wanted.pass = whole;
                    volume.control_scrub(ScrubCommand::Start);
                }
                if directory.is_off() {
                    return false;
                }
                time.advance(Duration::from_secs(1));
            }
            panic!("a scrub does not end: {:?}", volume.scrub_status())
        });
        match finished {
            true => Ok(()),
            false => Err(Refused::Failed("the scrub was interrupted".to_owned())),
        }
    }

    /// Blocks that are listed as bad.
    pub(crate) fn findings(&self) -> usize {
        self.volume().findings(None, usize::MAX).len()
    }

    /// What the offline check says about the disk as it is; `None` on a real one.
    pub(crate) fn verify(&self, quick: bool) -> Option<Vec<Remark>> {
        self.directory.verify(&verify::Options { quick, boot: Some(self.boot()) })
    }

    fn boot(&self) -> BootId {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&self.boot.to_le_bytes());
        BootId(boot)
    }

    fn volume(&self) -> Arc<Volume> {
        Arc::clone(self.volume.borrow().as_ref().expect("open"))
    }

    /// A volume whose journal has failed is opened again, as its daemon would be.
    fn after(&self, error: EngineError) -> Refused {
        if self.volume().has_failed() && !self.directory.is_off() {
            let opened = self.reopen();
            self.reopened.set(true);
            assert!(opened.is_ok() || self.directory.is_off(), "after {error}: {opened:?}");
        }
        match error.into() {
            Refused::NeedsFill(block) => Refused::NeedsFill(block - self.first_block),
            other => other,
        }
    }

    /// Whether the volume has been opened again since the last call.
    pub(crate) fn take_reopened(&self) -> bool {
        self.reopened.take()
    }

    /// Pages that are neither free nor in the use of the index or of any section, when nothing is
    /// under way and what was given up has been freed.
    pub(crate) fn lost_pages(&self) -> u64 {
        let space = self.volume().statistics().space;
        space.reserved + space.quarantined
    }

    pub(crate) fn loss_count(&self) -> u64 {
        self.volume().loss_count()
    }

    /// Bytes used by chunks of the run, and what it can use.
    pub(crate) fn space(&self) -> (u64, u64) {
        let volume = self.volume();
        let content = ContentName { inode: InodeId(BALLAST), generation: ContentGeneration(1) };
        let ballast = twice(|| volume.presence(std::slice::from_ref(&content)))[0].written.0;
        let space = volume.statistics().space;
        let page = PAGE as u64;
        assert_eq!(space.reserved, 0, "nothing is under way");
        ((space.clean + space.written) * page - ballast, space.available() * page)
    }

    pub(crate) async fn close(&self) -> Result<(), Refused> {
        let closed = self.volume().close().await;
        closed.map_err(|error| self.after(error))
    }

    pub(crate) async fn sync(&self) -> Result<u64, Refused> {
        let synced = self.volume().sync().await;
        synced.map_err(|error| self.after(error))
    }

    /// Begins a sync, which goes on while others write.
    #[expect(clippy::unused_async, reason = "the other engine's sync must be waited for")]
    pub(crate) async fn begin_sync(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<u64, Refused>> + '_>> {
        let volume = self.volume();
        let syncing = tokio::spawn(async move { volume.sync().await });
        Box::pin(async move { syncing.await.unwrap().map_err(|error| self.after(error)) })
    }

    /// Begins a checkpoint, which goes on while others do something.
    pub(crate) fn begin_checkpoint(&self) -> impl Future<Output = Result<(), Refused>> + use<> {
        let volume = self.volume();
        let writing = tokio::spawn(async move { volume.checkpoint().await });
        async move { writing.await.unwrap().map_err(Refused::from) }
    }

    pub(crate) async fn write(
        &self,
        chunk: Chunk,
        offset: usize,
        bytes: Vec<u8>,
    ) -> Result<(), Refused> {
        let offset = self.offset(offset);
        let request = write_request(self.chunk(chunk), offset, bytes, TARGET_CHUNK);
        let done = self.volume().write(request).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    pub(crate) async fn write_durably(
        &self,
        chunk: Chunk,
        offset: usize,
        bytes: Vec<u8>,
    ) -> Result<(), Refused> {
        let offset = self.offset(offset);
        let request = write_request(self.chunk(chunk), offset, bytes, TARGET_CHUNK);
        let done = self.volume().write_durably(request).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    pub(crate) async fn zero(&self, chunk: Chunk, range: Range<usize>) -> Result<(), Refused> {
        let (chunk, range) = (self.chunk(chunk), self.offset(range.start)..self.offset(range.end));
        let request = ZeroRequest {
            key: chunk.key(),
            range: u32::try_from(range.start).unwrap()..u32::try_from(range.end).unwrap(),
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(chunk.epoch),
            chunk_size: u32::try_from(TARGET_CHUNK).unwrap(),
            backed: u32::try_from(chunk.backed).unwrap(),
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        let done = self.volume().zero(request).await;
        done.map(drop).map_err(|error| self.after(error))
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
            first_block: self.block(first_block),
            buffer: Arc::new(buffer),
            len: u32::try_from(bytes.len()).unwrap(),
            checksums: checksums.into(),
            write_epoch: WriteEpoch(chunk.epoch),
            chunk_size: u32::try_from(TARGET_CHUNK).unwrap(),
            backed: u32::try_from(TARGET_CHUNK).unwrap(),
            mark: self.volume().drop_mark(&chunk.key()),
            gathers: false,
        };
        let done = self.volume().fill(fill).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    pub(crate) async fn release(&self, chunk: Chunk) -> Result<(), Refused> {
        let done = self.volume().release(chunk.key()).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    pub(crate) async fn drop_clean(&self, chunk: Chunk, block: usize) -> Result<(), Refused> {
        let done = self.volume().drop_clean(chunk.key(), self.block(block)).await;
        done.map_err(|error| self.after(error))
    }

    /// The blocks that an export would take, with what it must know of them.
    pub(crate) fn exportable(&self, chunk: Chunk) -> ExportedBlocks {
        let blocks = self.blocks();
        let volume = self.volume();
        let snapshot = twice(|| volume.snapshot(chunk.key(), blocks.clone()));
        (0..)
            .zip(blocks)
            .filter(|&(_, block)| snapshot.state(block) == BlockState::Written)
            .map(|(own, block)| (own, snapshot.fingerprint(block)))
            .collect()
    }

    pub(crate) async fn mark_exported(
        &self,
        chunk: Chunk,
        exported: &ExportedBlocks,
    ) -> Result<(), Refused> {
        let exported =
            exported.iter().map(|(&own, &seen)| (self.block(own.into()), seen)).collect();
        let done = self.volume().mark_exported(chunk.key(), &exported).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    /// Cuts the file of `chunk` at `size`; older epochs than that of `chunk` are refused then.
    pub(crate) async fn trim(&self, chunk: Chunk, size: usize) -> Result<(), Refused> {
        let key = chunk.key();
        let content = ContentName { inode: key.inode, generation: key.generation };
        let epoch = WriteEpoch(chunk.epoch);
        let (index, rest) = (size / CHUNK, size % CHUNK);
        let size = index * TARGET_CHUNK + if rest == 0 { 0 } else { self.offset(rest) };
        let done = self.volume().trim(content, TARGET_CHUNK as u64, size as u64, epoch).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    pub(crate) async fn reclaim(&self, inode: u64, generation: u32) -> Result<(), Refused> {
        let entry = (InodeId(inode), ContentGeneration(generation));
        let done = self.volume().reclaim(&[entry]).await;
        done.map(drop).map_err(|error| self.after(error))
    }

    /// Whether the target holds any chunk of a content.
    pub(crate) async fn holds_any(&self, inode: u64, generation: u32) -> Result<bool, Refused> {
        let generation = ContentGeneration(generation);
        let content = ContentName { inode: InodeId(inode), generation };
        let found = self.volume().chunks(content, ChunkIndex(0), u32::MAX).await;
        Ok(!found?.is_empty())
    }

    /// All blocks of a chunk.
    pub(crate) async fn look(&self, chunk: Chunk) -> Result<Vec<Found>, Refused> {
        let volume = self.volume();
        let snapshot = volume.snapshot(chunk.key(), self.blocks()).await?;
        let mut found = Vec::with_capacity(BLOCKS);
        for at in self.blocks() {
            let state = match snapshot.state(at) {
                BlockState::Absent => State::Absent,
                BlockState::Clean => State::Clean,
                BlockState::Written | BlockState::Zero => State::Own,
            };
            let len = if state == State::Absent { 0 } else { BLOCK };
            let pages = snapshot.page_count(at);
            let mut this = Found { state, bytes: vec![0; len], rot: 0, pages };
            if pages > 0 {
                let first = u32::from(at) * 16;
                match volume.load(&snapshot, first, 16).await {
                    Ok(loaded) => this.bytes.copy_from_slice(&loaded.bytes),
                    Err(EngineError::Corrupt { .. }) => {
                        look_at_pages(&volume, &snapshot, first, &mut this).await?;
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
        let volume = self.volume();
        // The journal must know that the page is durable. Until then damage looks like a write that
        // never arrived, which is a limit of the format.
        let inode = InodeId(BALLAST + 1);
        let content = ContentName { inode, generation: ContentGeneration(1) };
        self.announcements.set(self.announcements.get() + 1);
        let epoch = WriteEpoch(self.announcements.get());
        if let Err(error) = apart(volume.trim(content, CHUNK as u64, 0, epoch)) {
            self.after(error);
            return false;
        }
        let block = self.block(block);
        let snapshot = apart(volume.snapshot(chunk.key(), block..block + 1)).unwrap();
        let page = u32::from(block) * 16 + u32::try_from(page).unwrap();
        let Some(place) = snapshot.disk_page(page) else { return false };
        let offset = place * PAGE as u64 + (bit / 8) as u64;
        self.directory.flip(offset, u8::try_from(bit % 8).unwrap());
        true
    }
}

/// Looks at the pages of a block one by one.
async fn look_at_pages(
    volume: &Volume,
    snapshot: &Snapshot,
    first: u32,
    found: &mut Found,
) -> Result<(), Refused> {
    for (page, bytes) in (0..).zip(found.bytes.chunks_exact_mut(PAGE)) {
        match volume.load(snapshot, first + page, 1).await {
            Ok(loaded) => bytes.copy_from_slice(&loaded.bytes),
            Err(EngineError::Corrupt { .. }) => found.rot |= 1 << page,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_request(chunk: Chunk, offset: usize, bytes: Vec<u8>, chunk_size: usize) -> WriteRequest {
    WriteRequest {
        key: chunk.key(),
        offset: u32::try_from(offset).unwrap(),
        checksum: Crc32c::of(&bytes),
        body: vec![Bytes::from(bytes)],
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(chunk.epoch),
        chunk_size: u32::try_from(chunk_size).unwrap(),
        backed: u32::try_from(chunk.backed).unwrap(),
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}

/// What the test itself asks for; a fault that was meant for something else may be in its way,
/// once.
fn twice<T: Send, F>(ask: impl Fn() -> F + Sync) -> T
where
    F: Future<Output = Result<T, EngineError>> + Send,
{
    apart(async {
        match ask().await {
            Ok(found) => found,
            Err(_) => ask().await.unwrap(),
        }
    })
}

/// Runs something to its end on a runtime of its own, because a run opens its target from code
/// that is not asynchronous. The volume's upkeep ends with it: nothing happens unasked.
fn apart<T: Send>(work: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work)
        });
        running.join().unwrap()
    })
}
