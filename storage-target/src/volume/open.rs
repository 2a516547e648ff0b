//! Opening a target's disk, or making one.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use millrace_runtime::Clock;
use millrace_types::{ByteLen, Crc32c, TargetId};

use super::{
    Blank, EngineError, INODE_TURNS, Options, Shared, State, Upkeep, Volume,
    checkpoint::{INDEX_STEP, RETRIES},
    drops::Drops,
    ends::UnreadCuts,
    fills::Fills,
    findings::Finder,
    inspect::Inspection,
    judge::Judging,
    locks::BlockLocks,
    read::Flights,
    recovery::{Recovered, recover},
    reopen::Live,
    run,
    scrub::Scrub,
    spots::Sequence,
};
use crate::{
    disk::{BufferPool, DiskError, DiskQueue, Piece, PlaceError},
    format::{
        FormatError,
        batch::claimed_len,
        fact::Fact,
        free_map::REGION_PAGES,
        root::{ROOT_MAGIC, ROOT_SLOTS, Segment},
        superblock::{COPIES, JOURNAL, Layout, ROOTS, Superblock, SuperblockError},
        table::Entry,
    },
    index::{self, Index, IndexError},
    journal::{self, JournalError, Ring},
    page_checksum::PAGE,
    space::{Purpose, ReplayError, Space},
};

/// Memory for the transfers of index and journal.
const METADATA_POOL: usize = 16 * 1024 * 1024;

/// Pages written with one request while a target is made.
const PAGES_PER_WRITE: usize = 256;

/// Why a target cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The superblock refuses.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The disk is blank, and no target shall be made.
    #[error(
        "the disk is blank, but a certain target is expected; attach its disk, or remove the id \
         from the settings to begin with a blank target"
    )]
    Blank,
    /// The disk's length cannot be told.
    #[error("its length cannot be told: {0}")]
    Length(#[source] io::Error),
    /// The disk is shorter than what lies on it.
    #[error(
        "it has {found}, and its target needs {needed}: it was cut off, or this is a part of it; \
         restore it as a whole"
    )]
    Short {
        /// Bytes of the disk.
        found: ByteLen,
        /// Bytes up to the end of what is in use.
        needed: ByteLen,
    },
    /// There is a journal, and both copies of the superblock are gone.
    #[error(
        "there is data but no superblock; restore the superblock, or empty the disk to begin with \
         a blank target"
    )]
    NoSuperblock,
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The index cannot be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A value or record is none that a program writes.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Journal and free maps disagree.
    #[error(transparent)]
    Space(#[from] ReplayError),
    /// Another target lies there than before.
    #[error("it holds target {found}, where target {expected} was before")]
    OtherTarget {
        /// What is there.
        found: TargetId,
        /// What was there.
        expected: TargetId,
    },
    /// The place cannot be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// No disk engine can be started.
    #[error("no disk engine can be started: {0}")]
    Start(#[source] io::Error),
    /// Something of the above, and where.
    #[error("{}: {source}", path.display())]
    At {
        /// The place.
        path: PathBuf,
        /// What.
        source: Box<Self>,
    },
    /// The state that was found could not be made durable.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Volume {
    /// Opens the target on a disk, recovering as needed; makes one on a blank disk.
    ///
    /// # Errors
    /// [`OpenError`]; what was durable is then as it was.
    pub async fn open(options: &Options) -> Result<Self, OpenError> {
        let live = Live::open(options, None).await?;
        Ok(Self::of(live, options.pool.clone()))
    }
}

/// What an engine takes over from the one before, whose journal has failed in the same process.
#[derive(Clone, Debug)]
pub(super) struct Predecessor {
    pub(super) target: TargetId,
    /// What clients have heard last.
    pub(super) loss_count: u64,
    pub(super) checksum_failures: u64,
    pub(super) blank: bool,
    pub(super) drops: Arc<Drops>,
    pub(super) judging: Arc<Judging>,
}

impl Live {
    /// Opens the target on a disk. After a failure the disk is taken for one that may have lost
    /// what was not synced, whatever the boot says, and the loss count is another one.
    pub(super) async fn open(
        options: &Options,
        before: Option<Predecessor>,
    ) -> Result<Self, OpenError> {
        Self::open_by(Clock::system(), options, before).await
    }

    /// The same, by another clock.
    pub(super) async fn open_by(
        clock: Clock,
        options: &Options,
        before: Option<Predecessor>,
    ) -> Result<Self, OpenError> {
        let metadata_pool = BufferPool::new(METADATA_POOL);
        options.disk.expect_buffers(&metadata_pool);
        options.disk.expect_buffers(&options.pool);
        let parts = Parts { options, pool: metadata_pool, clock };
        let (superblock, blank) = match parts.read_superblock().await? {
            Some(superblock) => (superblock, false),
            None => (parts.make().await?, true),
        };
        let target = superblock.target;
        if let Some(before) = before.as_ref().filter(|before| before.target != target) {
            return Err(OpenError::OtherTarget { found: target, expected: before.target });
        }
        let superblock = parts.raise_capacity(superblock).await?;
        match parts.start(&superblock, blank, before).await {
            Ok(shared) => Ok(Self::begin(shared, options.sync_interval)),
            Err(error) => {
                parts.count_lost_sync(&superblock).await;
                Err(error)
            }
        }
    }

    /// Starts what runs beside the requests.
    fn begin(shared: Arc<Shared>, sync_interval: Duration) -> Self {
        let upkeep = Upkeep(tokio::spawn(upkeep(Arc::clone(&shared), sync_interval)));
        let preparer = Upkeep(tokio::spawn(Arc::clone(&shared).prepare_regions()));
        let finder = Finder::start(Arc::clone(&shared));
        Self { shared, upkeep, preparer, finder: Some(finder), scrub: None }
    }
}

/// What opening needs.
pub(super) struct Parts<'a> {
    pub(super) options: &'a Options,
    /// For index and journal.
    pub(super) pool: BufferPool,
    pub(super) clock: Clock,
}

impl Parts<'_> {
    fn disk(&self) -> &DiskQueue {
        &self.options.disk
    }

    pub(super) fn index(&self, superblock: &Superblock) -> index::Options {
        index::Options {
            target: superblock.target,
            disk: self.options.disk.clone(),
            pool: self.pool.clone(),
            first_root_page: superblock.layout.roots,
            cache_bytes: self.options.cache_bytes,
        }
    }

    pub(super) fn journal(&self, superblock: &Superblock) -> journal::Options {
        journal::Options {
            target: superblock.target,
            boot: self.options.boot,
            disk: self.options.disk.clone(),
            pool: self.pool.clone(),
            ring: ring(&superblock.layout),
        }
    }

    /// The superblock; `None` when the disk is blank. Makes a damaged copy good.
    async fn read_superblock(&self) -> Result<Option<Superblock>, OpenError> {
        let head = self.read_head().await?;
        let copies = COPIES.map(|page| page_of(&head, page));
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        let newest = match Superblock::newest(copies) {
            Ok(newest) => newest,
            Err(_) if is_zero(&head) => return Ok(None),
            Err(_) if is_zero(copies[1]) && self.is_unmade(&head).await? => return Ok(None),
            Err(_) if copies.into_iter().all(is_zero) => return Err(OpenError::NoSuperblock),
            Err(error) => return Err(error.into()),
        };
        // Of another cluster's disk nothing is changed, not for the better either.
        newest.superblock.check(self.options.cluster, None)?;
        for &copy in &newest.stale {
            tracing::warn!(copy, "a copy of the superblock is damaged or old; written anew");
            write_superblock(self.disk(), &self.pool, &newest.superblock, copy).await?;
        }
        Ok(Some(newest.superblock))
    }

    /// Whether a disk without a sound superblock is one on which a target was being made when it
    /// stopped: nothing is there, or roots are, and no target that was ever opened has an empty
    /// ring.
    async fn is_unmade(&self, head: &[u8]) -> Result<bool, OpenError> {
        let no_superblock = page_of(head, COPIES[0]).iter().all(|&byte| byte == 0);
        let has_root =
            (0..ROOT_SLOTS).any(|slot| page_of(head, ROOTS + slot).starts_with(ROOT_MAGIC));
        let has_batch = match self.pages()? > JOURNAL {
            true => claimed_len(&self.read(JOURNAL, 1).await?).is_some(),
            false => false,
        };
        Ok(!has_batch && (no_superblock || has_root))
    }

    /// Makes a target. The superblock comes last: a stop before leaves a blank disk.
    async fn make(&self) -> Result<Superblock, OpenError> {
        let Blank { target, layout } = self.options.blank.ok_or(OpenError::Blank)?;
        let cluster = self.options.cluster;
        let superblock = Superblock { cluster, target, writes: 1, losses: 0, layout };
        self.grow_to(layout.end_of(1)).await?;
        self.zero_ring(&layout).await?;
        let space = Space::new(layout, 1);
        let pages = INDEX_STEP.min(layout.capacity / 64).min(u64::from(REGION_PAGES) / 4);
        let no_space = |_| EngineError::NoSpace;
        let mut reservation = space.reserve(pages, Purpose::Index).map_err(no_space)?;
        reservation.place(pages).map_err(no_space)?;
        let extents = reservation.into_index();
        let segments: Vec<Segment> = extents
            .iter()
            .map(|extent| Segment {
                first: extent.first,
                pages: u32::try_from(extent.pages).expect("4 MiB at most"),
            })
            .collect();
        let index = Index::create(self.index(&superblock), &segments).await?;
        for (key, value) in space.checkpoint().map_err(no_space)? {
            index.put(key, value.expect("the index has pages there"));
        }
        let (key, value) = Entry::Fact(Fact::LossesSeen(superblock.losses)).encode();
        index.put(key, value);
        assert!(index.freeze(0), "nothing was before");
        index.checkpoint().await?;
        for copy in 0..COPIES.len() {
            write_superblock(self.disk(), &self.pool, &superblock, copy).await?;
        }
        tracing::info!(%target, "made a blank target");
        Ok(superblock)
    }

    /// Writes zeros to the whole ring, and syncs. Space that was only allocated would make each
    /// sync dear, and batches of a target that lay here before could be taken for this one's.
    async fn zero_ring(&self, layout: &Layout) -> Result<(), OpenError> {
        let mut zeros = self.pool.acquire(PAGES_PER_WRITE * PAGE).await;
        zeros.as_mut_slice().fill(0);
        let zeros = Arc::new(zeros);
        let end = layout.journal + layout.journal_pages;
        for first in (layout.journal..end).step_by(PAGES_PER_WRITE) {
            let pages = usize::try_from(end - first).unwrap_or(usize::MAX).min(PAGES_PER_WRITE);
            let piece = Piece { offset: first * PAGE as u64, range: 0..pages * PAGE };
            self.disk().write(vec![piece], Arc::clone(&zeros)).await?;
        }
        Ok(self.disk().sync().await?)
    }

    /// Makes the disk so many pages long at least.
    async fn grow_to(&self, pages: u64) -> Result<(), OpenError> {
        let Some(growth) = &self.options.growth else { return Ok(()) };
        let backing = Arc::clone(&growth.backing);
        let len = backing.len_bytes().map_err(OpenError::Length)?;
        if len < pages * PAGE as u64 {
            backing.grow(len, pages * PAGE as u64).await?;
        }
        Ok(())
    }

    /// Recovers what lies there, and decides what of it counts.
    async fn start(
        &self,
        superblock: &Superblock,
        blank: bool,
        before: Option<Predecessor>,
    ) -> Result<Arc<Shared>, OpenError> {
        let options = self.options;
        let regions = self.regions(&superblock.layout)?;
        let mut recovered = recover(self, superblock, regions, before.is_some()).await?;
        let (lossy, dropped) = (recovered.lossy, recovered.dropped);
        if let Some(before) = &before {
            // Also what was answered after the failure is answered otherwise from now on.
            let least = (before.loss_count + 1).saturating_sub(superblock.losses);
            recovered.loss_count = recovered.loss_count.max(least);
        }
        let mut shared = shared_of(self, superblock, recovered, blank);
        if let Some(before) = before {
            shared.blank = before.blank;
            shared.drops = before.drops;
            shared.judging = before.judging;
            shared.checksum_failures = AtomicU64::new(before.checksum_failures);
        }
        let shared = Arc::new(shared);
        shared.look_for_room();
        if lossy || dropped > 0 {
            // Before any batch names the present boot, so that it is never decided again.
            shared.checkpoint_what_was_found(lossy).await?;
        }
        shared.load_findings().await?;
        shared.settle().await?;
        let (target, disk) = (superblock.target, options.disk.name());
        let loss_count = shared.loss_count.load(Ordering::Acquire);
        tracing::info!(%target, disk, dropped_writes = dropped, loss_count, "target opened");
        Ok(shared)
    }

    /// When a sync has failed while the target was being opened: what the process before has left
    /// unsynced may be gone, and the kernel does not say so again. So that the next start knows, it
    /// is counted as if the journal had failed.
    async fn count_lost_sync(&self, superblock: &Superblock) {
        if !self.disk().has_failed_sync() {
            return;
        }
        let (writes, losses) = (superblock.writes + 1, superblock.losses + 1);
        let counted = Superblock { writes, losses, ..superblock.clone() };
        for copy in 0..COPIES.len() {
            if let Err(error) = write_superblock(self.disk(), &self.pool, &counted, copy).await {
                let target = superblock.target;
                tracing::error!(%target, %error, "the loss cannot be recorded");
                return;
            }
        }
    }

    /// Records that the space may be larger than it was made for, if that is so now.
    async fn raise_capacity(&self, superblock: Superblock) -> Result<Superblock, OpenError> {
        let capacity = self.options.growth.as_ref().map_or(0, |growth| growth.capacity);
        let Some(layout) = superblock.layout.raised(capacity) else { return Ok(superblock) };
        let (before, now) = (superblock.layout.capacity, layout.capacity);
        let raised = Superblock { writes: superblock.writes + 1, layout, ..superblock };
        for copy in 0..COPIES.len() {
            write_superblock(self.disk(), &self.pool, &raised, copy).await?;
        }
        let [before, now] = [before, now].map(bytes);
        tracing::info!(target = %raised.target, %before, %now, "the target's capacity was raised");
        Ok(raised)
    }

    /// How many regions the disk has now.
    fn regions(&self, layout: &Layout) -> Result<u32, OpenError> {
        if self.options.growth.is_none() {
            return Ok(layout.region_count());
        }
        let pages = self.pages()?;
        if pages < layout.end_of(1) {
            return Err(OpenError::Short { found: bytes(pages), needed: bytes(layout.end_of(1)) });
        }
        Ok(layout.regions_before(pages))
    }

    /// Pages of the disk now.
    fn pages(&self) -> Result<u64, OpenError> {
        let Some(growth) = &self.options.growth else { return Ok(u64::MAX) };
        Ok(growth.backing.len_bytes().map_err(OpenError::Length)? / PAGE as u64)
    }

    /// Everything before the journal; what the disk does not have yet is zero.
    async fn read_head(&self) -> Result<Bytes, OpenError> {
        let pages = self.pages()?.min(JOURNAL);
        let mut head = match pages {
            0 => BytesMut::new(),
            pages => BytesMut::from(self.read(0, pages).await?),
        };
        head.resize(usize::try_from(JOURNAL).expect("1 MiB") * PAGE, 0);
        Ok(head.freeze())
    }

    async fn read(&self, first: u64, pages: u64) -> Result<Bytes, OpenError> {
        let len = usize::try_from(pages).expect("at most 1 MiB") * PAGE;
        let buffer = self.pool.acquire(len).await;
        let piece = Piece { offset: first * PAGE as u64, range: 0..len };
        let buffer = self.disk().read(vec![piece], buffer).await?;
        Ok(Bytes::copy_from_slice(&buffer.as_slice()[..len]))
    }
}

fn page_of(head: &[u8], page: u64) -> &[u8] {
    let start = usize::try_from(page).expect("before the journal") * PAGE;
    &head[start..start + PAGE]
}

pub(super) fn bytes(pages: u64) -> ByteLen {
    ByteLen(pages.saturating_mul(PAGE as u64))
}

/// Writes and syncs a copy of the superblock, also on a disk of which a sync has failed: it is this
/// that says so.
pub(super) async fn write_superblock(
    disk: &DiskQueue,
    pool: &BufferPool,
    superblock: &Superblock,
    copy: usize,
) -> Result<(), DiskError> {
    let mut buffer = pool.acquire(PAGE).await;
    buffer.as_mut_slice()[..PAGE].copy_from_slice(&superblock.encode(copy));
    let piece = Piece { offset: COPIES[copy] * PAGE as u64, range: 0..PAGE };
    disk.write(vec![piece], Arc::new(buffer)).await?;
    disk.sync_after_failure().await
}

/// The journal's pages.
pub(super) fn ring(layout: &Layout) -> Ring {
    Ring { first: layout.journal, pages: layout.journal_pages }
}

fn shared_of(
    parts: &Parts<'_>,
    superblock: &Superblock,
    recovered: Recovered,
    blank: bool,
) -> Shared {
    let options = parts.options;
    let Recovered { index, journal, space, inode_max, loss_count, applied, .. } = recovered;
    let (readers, bad) = (BTreeMap::new(), BTreeMap::new());
    let state = State { readers, inode_max, bad, is_closed: false };
    Shared {
        target: superblock.target,
        superblock: superblock.clone(),
        disk: options.disk.clone(),
        fills: Fills::new(options.disk.clone()),
        pool: options.pool.clone(),
        index,
        journal,
        space,
        state: Mutex::new(state),
        locks: BlockLocks::default(),
        section_locks: BlockLocks::default(),
        inode_turns: (0..INODE_TURNS).map(|_| tokio::sync::RwLock::new(())).collect(),
        flights: Flights::default(),
        small_writes: Sequence::default(),
        applied,
        growth: options.growth.clone(),
        room_due: tokio::sync::Notify::new(),
        growth_turn: tokio::sync::Mutex::new(()),
        checkpoint_turn: tokio::sync::Mutex::new(()),
        checkpoint_due: tokio::sync::Notify::new(),
        map_turn: tokio::sync::Mutex::new(()),
        // Failures of the journal are counted in the superblock (`failed`), from 1 on.
        loss_count: AtomicU64::new(loss_count + superblock.losses),
        released_end: AtomicU64::new(0),
        lost: AtomicBool::new(false),
        failure: tokio::sync::Notify::new(),
        checksum_failures: AtomicU64::new(0),
        unread_cuts: UnreadCuts::default(),
        inspection: Inspection::default(),
        scrub: Scrub::default(),
        clock: parts.clock.clone(),
        zero_page: Crc32c::of(&[0; PAGE]),
        blank,
        drops: Arc::default(),
        judging: Arc::default(),
    }
}

async fn upkeep(shared: Arc<Shared>, interval: Duration) {
    // When a checkpoint that has failed is tried again, and the pause before that.
    let mut again: Option<(Instant, Duration)> = None;
    loop {
        let due = tokio::select! {
            () = is_due(&shared, again) => true,
            () = tokio::time::sleep(interval) => false,
        };
        if shared.lost.load(Ordering::Acquire) {
            // Nothing can be synced any more before it is opened again.
            return;
        }
        let worker = Arc::clone(&shared);
        // In a task of its own, because a checkpoint must not be dropped in the middle.
        let work = run(async move {
            match due {
                true => worker.checkpoint().await,
                false => worker.sync_if_needed().await,
            }
        });
        let done = work.await;
        if let Err(error) = &done {
            tracing::error!(target = %shared.target, %error, "upkeep failed");
        }
        again = match again {
            unchanged if !due => unchanged,
            _ if done.is_ok() => None,
            last => {
                let pause = last.map_or(RETRIES.min, |(_, pause)| RETRIES.longer(pause));
                Some((Instant::now() + pause, pause))
            }
        };
    }
}

/// Waits until a checkpoint is due. After one that has failed that is so after a pause, however
/// often writers ask for it.
async fn is_due(shared: &Shared, again: Option<(Instant, Duration)>) {
    match again {
        Some((moment, _)) => shared.clock.sleep_until(moment).await,
        None => shared.checkpoint_due.notified().await,
    }
}
