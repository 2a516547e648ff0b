//! Brings log and store together at a start.
//!
//! The log is recovered first. The store is trusted only after a clean shutdown or within the same
//! boot of the machine (a kill of the process loses nothing that the kernel had); otherwise, and
//! when it does not open, is damaged, or shows an index that the log does not have, it is made
//! anew from the newest snapshot and the log: see `rebuild`. So it is when the settings name
//! another engine than the run before had: each engine has a directory of its own, and the marker
//! names the one that it vouches for.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_runtime::{Clock, Random};
use millrace_types::{ClusterId, ErrorKind, LogIndex};

use super::{
    Core,
    lock::{LEAVING_MAX, lock},
    marker::{Marker, present_boot},
    rebuild::{Recovered, Standing, recover_store},
    room,
};
use crate::{
    apply::{self, ApplyError},
    command::{Command, Envelope, Format},
    files::{Files, MachineFiles},
    log::{LogError, LogSettings, Writer},
    snapshot::kept,
    store::{
        MetaStore, StoreError, Stores,
        lsm::{self, LsmStores},
        memory::MemoryStores,
        sled::SledStores,
    },
};

/// How the engine works.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Where log, store and marker are; made if missing, and of mode 0700 from then on.
    pub dir: PathBuf,
    /// The cluster that the log belongs to.
    pub cluster: ClusterId,
    /// Which engine keeps the store.
    pub store: StoreKind,
    /// A store of somebody else's instead.
    pub stores: Option<Arc<dyn Stores>>,
    /// Bytes of the store's page cache.
    pub cache_bytes: u64,
    /// Bytes after which a segment of the log is ended.
    pub segment_bytes: u64,
    /// A snapshot is taken when the log has grown by so many bytes since the last, and by a quarter
    /// of that one's: so that never more than four times the log is written for snapshots.
    pub snapshot_bytes: u64,
    /// New files beyond 4 KiB may live in their inodes while the newest snapshot and the log behind
    /// it have fewer bytes.
    pub small_files_bytes: u64,
    /// Changes are refused when the disk has fewer free bytes (see [`Self::least_reserve`]), or a
    /// sixty-fourth of all, up to 256 MiB: the store needs them.
    pub reserve_bytes: u64,
    /// Nothing in the log stays unsynced for longer.
    pub sync_interval: Duration,
    /// Length of a session's lease.
    pub lease: Duration,
    /// By how much clocks of nodes may differ within a lease.
    pub clock_error: Duration,
    /// After so long a new signing key is made.
    pub key_lifetime: Duration,
    /// Owner, group and mode of a new root directory.
    pub root: Format,
    /// In which boot of the machine this is; the kernel is asked when nobody says so.
    pub boot: Option<String>,
    /// Below what log and snapshots lie; the store has its own.
    pub files: Arc<dyn Files>,
    /// Where time comes from.
    pub clock: Clock,
    /// Where the numbers of runs and the secrets of the log's segments come from.
    pub random: Random,
}

/// Which engine keeps the store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// sled, on disk.
    Sled,
    /// The log-structured merge tree of fjall, on disk.
    #[default]
    #[serde(alias = "fjall")]
    Lsm,
    /// In memory; rebuilt from the log at every start.
    Memory,
}

impl StoreKind {
    /// The word in settings and in the marker.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Lsm => "lsm",
            Self::Memory => "memory",
        }
    }

    /// The directory of its own below the state directory, if it has files.
    #[must_use]
    pub fn folder(self) -> Option<&'static str> {
        match self {
            Self::Sled => Some("store"),
            Self::Lsm => Some("store-lsm"),
            Self::Memory => None,
        }
    }
}

impl EngineSettings {
    /// Defaults for a state directory.
    #[must_use]
    pub fn new(dir: PathBuf, cluster: ClusterId) -> Self {
        Self {
            dir,
            cluster,
            store: StoreKind::default(),
            stores: None,
            boot: None,
            cache_bytes: 128 << 20,
            segment_bytes: 32 << 20,
            // A million small commands or two are replayed at most when the store is made anew.
            snapshot_bytes: 256 << 20,
            // Which a snapshot takes a minute for.
            small_files_bytes: 4 << 30,
            // Many times what the store writes between two looks at the disk.
            reserve_bytes: 16 << 20,
            sync_interval: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            clock_error: Duration::from_secs(2),
            key_lifetime: Duration::from_secs(30 * 24 * 3600),
            root: Format { uid: 0, gid: 0, mode: 0o755 },
            files: Arc::new(MachineFiles),
            clock: Clock::system(),
            random: Random::system(),
        }
    }

    /// Where the store comes from.
    pub(super) fn stores(&self) -> Arc<dyn Stores> {
        match (&self.stores, self.store) {
            (Some(stores), _) => Arc::clone(stores),
            (None, StoreKind::Memory) => Arc::new(MemoryStores),
            (None, StoreKind::Sled) => {
                Arc::new(SledStores { dir: self.store_dir(), cache_bytes: self.cache_bytes })
            }
            (None, StoreKind::Lsm) => {
                Arc::new(LsmStores { dir: self.store_dir(), cache_bytes: self.cache_bytes })
            }
        }
    }

    /// Bytes of the disk that are left to the store at least: [`Self::reserve_bytes`], and what a
    /// merge tree may have in memory and is still to write.
    #[must_use]
    pub fn least_reserve(&self) -> u64 {
        let unwritten = match self.store {
            StoreKind::Lsm => lsm::unwritten_bytes(self.cache_bytes),
            StoreKind::Sled | StoreKind::Memory => 0,
        };
        self.reserve_bytes + unwritten
    }

    /// The same with the share of the disk that it lies on.
    pub(crate) fn reserve(&self) -> u64 {
        room::reserve(&self.dir, self.least_reserve())
    }

    /// Where the store's files are, if it has some.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.dir.join(self.store.folder().unwrap_or_default())
    }

    /// Where the segments of the log are.
    pub(super) fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Where the snapshots are.
    pub(super) fn snapshot_dir(&self) -> PathBuf {
        self.dir.join("snapshots")
    }
}

/// Why the engine cannot start or stop in order.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store failed even after it was made anew.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another server uses the directory.
    #[error("{} is in use by another metadata server", .0.display())]
    InUse(PathBuf),
    /// The disk failed.
    #[error("cannot use {}: {source}", path.display())]
    Disk {
        /// Which file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A record of the log is not understood.
    #[error(
        "record {0} of the command log is intact, but this program cannot read the command in it; \
         was it written by a newer one?"
    )]
    Unreadable(LogIndex),
    /// A newer program has changed what the file system may contain.
    #[error(
        "the file system has feature level {found}, and this program knows those up to {known}: a \
         newer one has been here. Start that one; to this one leads only a backup that was taken \
         before the newer one was started"
    )]
    NewerLevel {
        /// The level of the file system.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// A record of the log does not apply: the log and this program disagree about the past.
    #[error("record {index} of the command log does not apply again: {kind}")]
    Disagrees {
        /// The record.
        index: LogIndex,
        /// Why.
        kind: ErrorKind,
    },
    /// The store must be made anew, the log does not reach back to its beginning, and no snapshot
    /// can be used.
    #[error(
        "the store must be made anew, and the command log begins only with record {first}: {what}. \
         Put a sound snapshot into {} (one of a copy of this directory will do), or restore a \
         backup",
        dir.display()
    )]
    NoSnapshot {
        /// The first record that the log has.
        first: LogIndex,
        /// What became of the snapshots.
        what: String,
        /// Where they are looked for.
        dir: PathBuf,
    },
    /// A restore was begun and has not ended.
    #[error(
        "{} holds a restore that has not come to its end: run it again",
        .0.display()
    )]
    HalfRestored(PathBuf),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The engine's thread panicked; its message is in the log output.
    #[error("the engine stopped at a defect in the program")]
    Panicked,
}

/// Recovers everything and returns what the engine's thread owns.
pub(super) fn open(settings: EngineSettings) -> Result<Core, StartError> {
    let started = Instant::now();
    let dir = &settings.dir;
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    make_private(dir).map_err(disk)?;
    let lock = lock(dir, LEAVING_MAX)?;
    let boot = settings.boot.clone().map_or_else(present_boot, Ok).map_err(disk)?;
    let files = &*settings.files;
    if dir.join(RESTORING).exists() {
        return Err(StartError::HalfRestored(dir.clone()));
    }
    let snapshots = settings.snapshot_dir();
    kept::remove_unfinished(files, &snapshots).map_err(disk)?;
    let snapshot = kept::newest_synced(files, &snapshots, settings.cluster).map_err(disk)?;
    let marker = Marker::load(files, dir).map_err(disk)?;
    let clean = marker.as_ref().is_some_and(|marker| marker.clean);
    let synced_at_least = match &marker {
        Some(marker) if marker.clean => marker.last.max(snapshot),
        _ => snapshot,
    };
    let log_settings = LogSettings {
        files: Arc::clone(&settings.files),
        dir: settings.log_dir(),
        cluster: settings.cluster,
        segment_bytes: settings.segment_bytes,
        sync_interval: settings.sync_interval,
        random: settings.random.clone(),
    };
    let (mut log, found) = Writer::open(log_settings, synced_at_least)?;
    let standing = standing(&settings, marker.as_ref(), &boot);
    let Recovered { mut store, rebuilt } = recover_store(&settings, found.last, &standing)?;
    remove_others(&settings);
    let store_name = settings.store.name().to_owned();
    let marker = Marker { boot, store: store_name, clean: false, last: LogIndex(0) };
    match rebuilt {
        None => marker.save(files, dir).map_err(disk)?,
        // It comes back when the log says that the store was made anew.
        Some(_) => Marker::forget(files, dir).map_err(disk)?,
    }
    if found.last == LogIndex(0) {
        format(&settings, &mut log, &mut *store)?;
    }
    tracing::info!(last = %log.last(), took = ?started.elapsed(), clean, "recovered");
    Core::new(settings, log, store, lock, marker, rebuilt)
}

/// What the last run has left of the store.
fn standing(settings: &EngineSettings, marker: Option<&Marker>, boot: &str) -> Standing {
    match marker {
        Some(marker) if !marker.clean && marker.boot != boot => Standing::Doubtful,
        Some(marker) if marker.store != settings.store.name() => {
            Standing::OfOtherEngine(marker.store.clone())
        }
        Some(_) => Standing::Trusted,
        None => Standing::Doubtful,
    }
}

/// Removes what another engine has left. It would never be opened again: a marker names the engine
/// that it vouches for.
pub(super) fn remove_others(settings: &EngineSettings) {
    if settings.stores.is_some() {
        return;
    }
    let own = settings.store.folder();
    let folders = [StoreKind::Sled, StoreKind::Lsm].map(StoreKind::folder);
    let others = folders.into_iter().filter(|folder| *folder != own).flatten();
    for folder in others.chain([FOLDER_OF_FJALL]) {
        let dir = settings.dir.join(folder);
        match fs::remove_dir_all(&dir) {
            Ok(()) => tracing::info!(dir = %dir.display(), "the store before is removed"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(dir = %dir.display(), %error,
                "the store of another engine takes room, and cannot be removed"),
        }
    }
}

/// What fjall as a whole had, an engine of older programs.
const FOLDER_OF_FJALL: &str = "store-fjall";

/// The first command of a new log. The store is on the disk after it: one that a kill leaves empty
/// would look like one that somebody has removed.
fn format(
    settings: &EngineSettings,
    log: &mut Writer,
    store: &mut dyn MetaStore,
) -> Result<(), StartError> {
    let envelope = Envelope {
        time: settings.clock.timestamp(),
        operation: None,
        command: Command::Format(settings.root.clone()),
    };
    let index = log.last().next();
    let effect = apply::apply(store, index, &envelope).map_err(|error| match error {
        ApplyError::Refused(kind) => StartError::Disagrees { index, kind },
        ApplyError::Store(error) => StartError::Store(error),
    })?;
    log.append(&envelope.to_bytes())?;
    store.commit(&effect.batch)?;
    store.checkpoint()?;
    Ok(())
}

/// Makes the state directory if it is missing, and closes it to others than its owner: the log
/// holds the keys that sign capabilities.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(PRIVATE).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let mode = fs::metadata(dir)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        tracing::warn!(dir = %dir.display(), mode = format!("{mode:o}"),
            "the state directory was open to others: its mode is set to 0700");
        fs::set_permissions(dir, fs::Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// What only the owner may enter and read.
const PRIVATE: u32 = 0o700;

/// The file that is there while a restore is under way.
pub(super) const RESTORING: &str = "restoring";
