//! Opening a target's directory, or making one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use millrace_types::MIB;
use rustix::fs::FlockOperation;

use super::{
    Engine, OpenError, Options, Shared, State,
    allocator::Allocator,
    barrier::{self, Barrier},
    data_path,
    index::used_pages,
    journal::{Identity, Journal, sync_directory},
    journal_dir,
    locks::BlockLocks,
    read::Flights,
    recovery::{Expected, Recovered, recover},
    sessions::AppliedWrites,
    start_disk, superblock_path,
};
use crate::{
    disk::{BufferPool, DataFile},
    format::{checkpoint::CheckpointHeader, chunk::PAGE_SIZE, superblock::Superblock},
};

/// Room that is left to the journal when the capacity is taken from the file system.
const METADATA_RESERVE: u64 = 256 * MIB;

impl Engine {
    /// Opens the target in `options.dir`, recovering as needed; makes one in an empty directory.
    /// Blocks the calling thread on the disk.
    ///
    /// # Errors
    /// [`OpenError`]; nothing on the disk is then changed.
    pub fn open(options: &Options, pool: BufferPool) -> Result<Self, OpenError> {
        let dir = &options.dir;
        let lock_file = lock(dir)?;
        let (superblock, blank) = read_or_make_superblock(options)?;
        let data = DataFile::open(&data_path(dir)).map_err(OpenError::io(&data_path(dir)))?;
        let expected =
            Expected { cluster: options.cluster, target: superblock.target, boot: options.boot };
        let applied = AppliedWrites::default();
        let journal_dir = journal_dir(dir);
        // Through the page cache, which needs no aligned memory.
        let plain = File::open(data_path(dir)).map_err(OpenError::io(&data_path(dir)))?;
        let mut recovered = recover(&journal_dir, expected, &applied, |first_page, bytes| {
            plain.read_exact_at(bytes, first_page * u64::from(PAGE_SIZE))
        })?;
        if recovered.lossy {
            settle_loss(&journal_dir, expected, &plain, &mut recovered)
                .map_err(OpenError::io(&journal_dir))?;
        }
        let identity =
            Identity { cluster: options.cluster, target: superblock.target, boot: options.boot };
        let state = build_state(options, &data, identity, &recovered)?;
        let loss_count = recovered.loss_count;
        let shared = Arc::new(Shared {
            cluster: options.cluster,
            target: superblock.target,
            dir: dir.clone(),
            disk: start_disk(options, &data)?,
            data,
            pool,
            state: Mutex::new(state),
            locks: BlockLocks::default(),
            flights: Flights::default(),
            applied,
            growth: tokio::sync::Mutex::new(()),
            barrier_turn: Mutex::new(()),
            loss_count: AtomicU64::new(loss_count),
            checksum_failures: AtomicU64::new(0),
            blank,
            lock_file: Mutex::new(Some(lock_file)),
        });
        // Pages that a pending record gave up may be used again only when it is durable.
        shared.state().dirty = recovered.replay_bytes > 0;
        barrier::run(&shared, false).map_err(|error| OpenError::Io {
            path: journal_dir.clone(),
            source: io::Error::other(error),
        })?;
        let barrier = Barrier::start(Arc::clone(&shared), options.barrier_interval)
            .map_err(OpenError::io(dir))?;
        tracing::info!(
            target = %superblock.target,
            disk_engine = shared.disk.name(),
            direct = shared.data.is_direct(),
            chunks = shared.state().index.chunk_count(),
            dropped_writes = recovered.dropped,
            loss_count,
            "target opened"
        );
        Ok(Self { shared, barrier })
    }
}

/// Makes the outcome of a lossy recovery durable before a new segment names the present boot, so
/// that what was dropped is never taken for sound by a later start.
fn settle_loss(
    journal_dir: &Path,
    expected: Expected,
    data: &File,
    recovered: &mut Recovered,
) -> io::Result<()> {
    tracing::warn!(
        target = %expected.target,
        dropped_writes = recovered.dropped,
        "the machine stopped with unsynced writes; what clients still hold is sent again"
    );
    data.sync_data()?;
    recovered.loss_count += 1;
    let header = CheckpointHeader {
        cluster: expected.cluster,
        target: expected.target,
        sequence: recovered.sequence,
        loss_count: recovered.loss_count,
    };
    let index = recovered.index.clone();
    let snapshot = barrier::Snapshot { index, covered_bytes: 0, first_kept: None };
    barrier::write_checkpoint(journal_dir, &header, &snapshot)?;
    recovered.replay_bytes = 0;
    Ok(())
}

fn build_state(
    options: &Options,
    data: &DataFile,
    identity: Identity,
    recovered: &Recovered,
) -> Result<State, OpenError> {
    let dir = &options.dir;
    let page = u64::from(PAGE_SIZE);
    let total = data.len_bytes().map_err(OpenError::io(&data_path(dir)))? / page;
    let capacity = match options.capacity {
        Some(capacity) => capacity.0 / page,
        None => total + free_bytes(dir).map_err(OpenError::io(dir))? / page,
    };
    let used = recovered.index.chunks().flat_map(|record| used_pages(record)).collect();
    let allocator = Allocator::new(total, capacity, used)
        .map_err(|page| OpenError::Overlap { path: dir.clone(), page })?;
    let journal_dir = journal_dir(dir);
    let journal =
        Journal::begin(&journal_dir, identity, recovered.sequence, recovered.replay_bytes)
            .map_err(OpenError::io(&journal_dir))?;
    Ok(State {
        index: recovered.index.clone(),
        allocator,
        journal,
        committed: 0,
        dirty: false,
        readers: BTreeMap::new(),
        bad: BTreeSet::new(),
    })
}

/// Bytes that unprivileged processes may still store on the file system, less the reserve.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let figures = rustix::fs::statvfs(dir)?;
    let free = figures.f_bavail.saturating_mul(figures.f_frsize);
    Ok(free.saturating_sub(METADATA_RESERVE))
}

/// Keeps a second process out; the lock ends with the process, however it ends.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let directory = File::open(dir).map_err(OpenError::io(dir))?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { path: dir.to_owned() }),
        Err(error) => Err(OpenError::io(dir)(error.into())),
    }
}

fn read_or_make_superblock(options: &Options) -> Result<(Superblock, bool), OpenError> {
    let dir = &options.dir;
    let path = superblock_path(dir);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return make_target(options).map(|superblock| (superblock, true));
        }
        Err(error) => return Err(OpenError::io(&path)(error)),
    };
    let superblock = Superblock::decode(&bytes)
        .map_err(|source| OpenError::Format { path: path.clone(), source })?;
    if superblock.cluster != options.cluster {
        return Err(OpenError::OtherCluster {
            path: dir.clone(),
            found: superblock.cluster,
            expected: options.cluster,
        });
    }
    Ok((superblock, false))
}

fn make_target(options: &Options) -> Result<Superblock, OpenError> {
    let dir = &options.dir;
    let journal_dir = journal_dir(dir);
    let has_data = data_path(dir).exists() || journal_dir.exists();
    if has_data {
        return Err(OpenError::NoSuperblock { path: dir.clone() });
    }
    let Some(target) = options.new_target else {
        return Err(OpenError::Blank { path: dir.clone() });
    };
    let superblock = Superblock {
        cluster: options.cluster,
        target,
        capacity_bytes: options.capacity.map_or(0, |capacity| capacity.0),
    };
    // The superblock comes first: a stop between the two leaves an empty journal to be made again.
    write_superblock(dir, &superblock).map_err(OpenError::io(dir))?;
    DirBuilder::new().mode(0o700).create(&journal_dir).map_err(OpenError::io(&journal_dir))?;
    sync_directory(dir).map_err(OpenError::io(dir))?;
    tracing::info!(%target, dir = %dir.display(), "made a blank target");
    Ok(superblock)
}

fn write_superblock(dir: &Path, superblock: &Superblock) -> io::Result<()> {
    let temporary = dir.join("superblock.new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&superblock.encode())?;
    file.sync_all()?;
    fs::rename(&temporary, superblock_path(dir))?;
    sync_directory(dir)
}
