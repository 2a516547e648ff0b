//! Opening a target's directory, or making one.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use millrace_types::MIB;

use super::{
    Engine, JournalSizes, OpenError, Options, Shared, State,
    allocator::Allocator,
    barrier::{self, Barrier},
    data_path,
    index::used_pages,
    journal::{Identity, Journal},
    journal_dir,
    locks::BlockLocks,
    read::Flights,
    recovery::{Expected, Recovered, recover},
    sessions::AppliedWrites,
    superblock_path,
};
use crate::{
    disk::{BufferPool, Directory, LocalDirectory, directory::Data},
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
        let directory = LocalDirectory::lock(dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::InUse { path: dir.clone() },
            _ => OpenError::io(dir)(error),
        })?;
        Self::open_on(Arc::new(directory), options, JournalSizes::default(), pool)
    }

    /// As [`Self::open`], on any directory; that of `options` is not looked at.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(
        directory: Arc<dyn Directory>,
        options: &Options,
        sizes: JournalSizes,
        pool: BufferPool,
    ) -> Result<Self, OpenError> {
        let dir = &directory.path().to_owned();
        let (superblock, blank) = read_or_make_superblock(&*directory, options)?;
        // Also when a stop came just after the superblock was written. A journal that is missing
        // beside data is damage.
        let blank =
            blank || !(directory.exists(&journal_dir(dir)) || directory.exists(&data_path(dir)));
        if blank {
            make_journal(&*directory).map_err(OpenError::io(&journal_dir(dir)))?;
        }
        let data = directory.data(&data_path(dir)).map_err(OpenError::io(&data_path(dir)))?;
        let expected =
            Expected { cluster: options.cluster, target: superblock.target, boot: options.boot };
        let applied = AppliedWrites::default();
        let journal_dir = journal_dir(dir);
        let mut recovered =
            recover(&*directory, &journal_dir, expected, &applied, |first_page, bytes| {
                data.read_at(first_page * u64::from(PAGE_SIZE), bytes)
            })?;
        if recovered.lossy {
            settle_loss(&*directory, &journal_dir, expected, &*data, &mut recovered)
                .map_err(OpenError::io(&journal_dir))?;
        }
        let identity =
            Identity { cluster: options.cluster, target: superblock.target, boot: options.boot };
        let state = build_state(&directory, options, sizes, &*data, identity, &recovered)?;
        let loss_count = recovered.loss_count;
        let shared = Arc::new(Shared {
            cluster: options.cluster,
            target: superblock.target,
            dir: dir.clone(),
            disk: data.start(options.disk_engine).map_err(OpenError::io(&data_path(dir)))?,
            directory,
            data,
            sizes,
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
    directory: &dyn Directory,
    journal_dir: &Path,
    expected: Expected,
    data: &dyn Data,
    recovered: &mut Recovered,
) -> io::Result<()> {
    tracing::warn!(
        target = %expected.target,
        dropped_writes = recovered.dropped,
        "the machine stopped with unsynced writes; what clients still hold is sent again"
    );
    data.sync()?;
    recovered.loss_count += 1;
    let header = CheckpointHeader {
        cluster: expected.cluster,
        target: expected.target,
        sequence: recovered.sequence,
        loss_count: recovered.loss_count,
    };
    let index = recovered.index.clone();
    let snapshot = barrier::Snapshot { index, covered_bytes: 0, first_kept: None };
    barrier::write_checkpoint(directory, journal_dir, &header, &snapshot)?;
    recovered.replay_bytes = 0;
    Ok(())
}

fn build_state(
    directory: &Arc<dyn Directory>,
    options: &Options,
    sizes: JournalSizes,
    data: &dyn Data,
    identity: Identity,
    recovered: &Recovered,
) -> Result<State, OpenError> {
    let dir = directory.path();
    let page = u64::from(PAGE_SIZE);
    let total = data.len_bytes().map_err(OpenError::io(&data_path(dir)))? / page;
    let capacity = match options.capacity {
        Some(capacity) => capacity.0 / page,
        None => {
            let free = directory.free_bytes().map_err(OpenError::io(dir))?;
            total + free.saturating_sub(METADATA_RESERVE) / page
        }
    };
    let used = recovered.index.chunks().flat_map(|record| used_pages(record)).collect();
    let allocator = Allocator::new(total, capacity, used)
        .map_err(|page| OpenError::Overlap { path: dir.to_owned(), page })?;
    let journal_dir = journal_dir(dir);
    let (sequence, replay_bytes) = (recovered.sequence, recovered.replay_bytes);
    let journal = Journal::begin(directory, &journal_dir, identity, sizes, sequence, replay_bytes)
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

fn read_or_make_superblock(
    directory: &dyn Directory,
    options: &Options,
) -> Result<(Superblock, bool), OpenError> {
    let dir = directory.path();
    let path = superblock_path(dir);
    let bytes = match directory.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return make_target(directory, options).map(|superblock| (superblock, true));
        }
        Err(error) => return Err(OpenError::io(&path)(error)),
    };
    let superblock = Superblock::decode(&bytes)
        .map_err(|source| OpenError::Format { path: path.clone(), source })?;
    if superblock.cluster != options.cluster {
        return Err(OpenError::OtherCluster {
            path: dir.to_owned(),
            found: superblock.cluster,
            expected: options.cluster,
        });
    }
    Ok((superblock, false))
}

fn make_target(directory: &dyn Directory, options: &Options) -> Result<Superblock, OpenError> {
    let dir = directory.path();
    let journal_dir = journal_dir(dir);
    let has_data = directory.exists(&data_path(dir)) || directory.exists(&journal_dir);
    if has_data {
        return Err(OpenError::NoSuperblock { path: dir.to_owned() });
    }
    let Some(target) = options.new_target else {
        return Err(OpenError::Blank { path: dir.to_owned() });
    };
    let superblock = Superblock {
        cluster: options.cluster,
        target,
        capacity_bytes: options.capacity.map_or(0, |capacity| capacity.0),
    };
    // The superblock comes first; whoever finds it alone makes the rest.
    write_superblock(directory, &superblock).map_err(OpenError::io(dir))?;
    tracing::info!(%target, dir = %dir.display(), "made a blank target");
    Ok(superblock)
}

fn make_journal(directory: &dyn Directory) -> io::Result<()> {
    directory.make_directory(&journal_dir(directory.path()))?;
    directory.sync_names(directory.path())
}

fn write_superblock(directory: &dyn Directory, superblock: &Superblock) -> io::Result<()> {
    let dir = directory.path();
    let temporary = dir.join("superblock.new");
    let file = directory.create(&temporary)?;
    file.write_at(0, &superblock.encode())?;
    file.sync()?;
    directory.rename(&temporary, &superblock_path(dir))?;
    directory.sync_names(dir)
}
