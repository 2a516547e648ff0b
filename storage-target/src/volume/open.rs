//! Opening a target's disk, or making one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use bytes::Bytes;
use millrace_types::Crc32c;

use super::{
    Blank, INODE_TURNS, Options, Shared, State, Upkeep, Volume,
    checkpoint::INDEX_STEP,
    read::Flights,
    recovery::{Recovered, recover},
    run,
};
use crate::{
    disk::{BufferPool, DiskError, DiskQueue, Piece},
    engine::{EngineError, locks::BlockLocks, page_checksum::PAGE},
    format::{
        FormatError,
        batch::claimed_len,
        root::{ROOT_MAGIC, ROOT_SLOTS, Segment},
        superblock::linear::{COPIES, Layout, Superblock, SuperblockError},
    },
    index::{self, Index, IndexError},
    journal::{self, JournalError, Ring},
    space::{Purpose, ReplayError, Space},
};

/// Memory for the transfers of index and journal.
const METADATA_POOL: usize = 16 * 1024 * 1024;

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
        let metadata_pool = BufferPool::new(METADATA_POOL);
        let parts = Parts { options, pool: metadata_pool };
        let (superblock, blank) = match parts.read_superblock().await? {
            Some(superblock) => (superblock, false),
            None => (parts.make().await?, true),
        };
        superblock.check(options.cluster, None)?;
        let recovered = recover(&parts, &superblock).await?;
        let (lossy, dropped) = (recovered.lossy, recovered.dropped);
        let shared = Arc::new(shared_of(options, &superblock, recovered, blank));
        if lossy {
            // Before any batch names the present boot, so that it is never decided again.
            shared.checkpoint_what_was_found().await?;
        }
        shared.settle().await?;
        let loss_count = shared.loss_count.load(std::sync::atomic::Ordering::Acquire);
        let (target, disk) = (superblock.target, options.disk.name());
        tracing::info!(%target, disk, dropped_writes = dropped, loss_count, "target opened");
        let upkeep = Upkeep(tokio::spawn(upkeep(Arc::clone(&shared), options.sync_interval)));
        Ok(Self { shared, upkeep })
    }
}

/// What opening needs.
pub(super) struct Parts<'a> {
    pub(super) options: &'a Options,
    /// For index and journal.
    pub(super) pool: BufferPool,
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
        let mut copies = Vec::new();
        for page in COPIES {
            copies.push(self.read_page(page).await?);
        }
        let is_zero = |copy: &Bytes| copy.iter().all(|&byte| byte == 0);
        let newest = match Superblock::newest([&copies[0], &copies[1]]) {
            Ok(newest) => newest,
            Err(_) if is_zero(&copies[1]) && self.is_unmade(is_zero(&copies[0])).await? => {
                return Ok(None);
            }
            Err(_) if copies.iter().all(is_zero) => return Err(OpenError::NoSuperblock),
            Err(error) => return Err(error.into()),
        };
        for &copy in &newest.stale {
            tracing::warn!(copy, "a copy of the superblock is damaged or old; written anew");
            write_superblock(self.disk(), &self.pool, &newest.superblock, copy).await?;
        }
        Ok(Some(newest.superblock))
    }

    /// Whether a disk without a sound superblock is blank, or one on which a target was being made
    /// when the power went: it has roots then, and none that was ever opened has an empty ring.
    async fn is_unmade(&self, no_superblock: bool) -> Result<bool, OpenError> {
        let Some(Blank { layout, .. }) = self.options.blank else { return Ok(no_superblock) };
        let mut has_root = false;
        for slot in 0..ROOT_SLOTS {
            has_root |= self.read_page(layout.roots + slot).await?.starts_with(ROOT_MAGIC);
        }
        let has_batch = claimed_len(&self.read_page(layout.journal).await?).is_some();
        Ok(!has_batch && (no_superblock || has_root))
    }

    /// Makes a target. The superblock comes last: a stop before leaves a blank disk.
    async fn make(&self) -> Result<Superblock, OpenError> {
        let Blank { target, layout } = self.options.blank.ok_or(OpenError::Blank)?;
        let superblock = Superblock { cluster: self.options.cluster, target, writes: 1, layout };
        let space = Space::new(layout, layout.region_count());
        let pages = INDEX_STEP.min(layout.capacity / 64);
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
        assert!(index.freeze(0), "nothing was before");
        index.checkpoint().await?;
        for copy in 0..COPIES.len() {
            write_superblock(self.disk(), &self.pool, &superblock, copy).await?;
        }
        tracing::info!(%target, "made a blank target");
        Ok(superblock)
    }

    async fn read_page(&self, page: u64) -> Result<Bytes, OpenError> {
        let buffer = self.pool.acquire(PAGE).await;
        let piece = Piece { offset: page * PAGE as u64, range: 0..PAGE };
        let buffer = self.disk().read(vec![piece], buffer).await?;
        Ok(Bytes::copy_from_slice(&buffer.as_slice()[..PAGE]))
    }
}

/// Writes and syncs a copy of the superblock.
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
    disk.sync().await
}

/// The journal's pages.
pub(super) fn ring(layout: &Layout) -> Ring {
    Ring { first: layout.journal, pages: layout.journal_pages }
}

fn shared_of(
    options: &Options,
    superblock: &Superblock,
    recovered: Recovered,
    blank: bool,
) -> Shared {
    let Recovered { index, journal, space, inode_max, loss_count, applied, .. } = recovered;
    let state = State { readers: BTreeMap::new(), inode_max, bad: BTreeSet::new() };
    Shared {
        target: superblock.target,
        superblock: superblock.clone(),
        disk: options.disk.clone(),
        pool: options.pool.clone(),
        index,
        journal,
        space,
        state: Mutex::new(state),
        locks: BlockLocks::default(),
        section_locks: BlockLocks::default(),
        inode_turns: (0..INODE_TURNS).map(|_| tokio::sync::RwLock::new(())).collect(),
        flights: Flights::default(),
        applied,
        checkpoint_turn: tokio::sync::Mutex::new(()),
        checkpoint_due: tokio::sync::Notify::new(),
        map_turn: tokio::sync::Mutex::new(()),
        // Failures of the journal are counted in the superblock (`failed`), from 1 on.
        loss_count: AtomicU64::new(loss_count + superblock.writes.saturating_sub(1)),
        lost: AtomicBool::new(false),
        checksum_failures: AtomicU64::new(0),
        zero_page: Crc32c::of(&[0; PAGE]),
        blank,
    }
}

async fn upkeep(shared: Arc<Shared>, interval: Duration) {
    loop {
        let due = tokio::select! {
            () = shared.checkpoint_due.notified() => true,
            () = tokio::time::sleep(interval) => false,
        };
        let worker = Arc::clone(&shared);
        // In a task of its own, because a checkpoint must not be dropped in the middle.
        let work = run(async move {
            match due {
                true => worker.checkpoint().await,
                false => worker.sync_if_needed().await,
            }
        });
        if let Err(error) = work.await {
            tracing::error!(target = %shared.target, %error, "upkeep failed");
        }
    }
}
