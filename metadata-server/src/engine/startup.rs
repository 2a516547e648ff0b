//! Brings log and store together at a start.
//!
//! The log is recovered first. The store is trusted only after a clean shutdown or within the same
//! boot of the machine (a kill of the process loses nothing that the kernel had); otherwise, and
//! when it does not open, is damaged, or shows an index that the log does not have, it is set
//! aside and rebuilt from the log. Snapshots, once there are any, will shorten that rebuild: its
//! first index is a parameter of `catch_up`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use millrace_runtime::{Clock, Random};
use millrace_types::{ClusterId, ErrorKind, LogIndex};

use super::{
    Core,
    marker::{Marker, present_boot},
};
use crate::{
    apply::{self, ApplyError},
    command::{Command, Envelope, Format},
    log::{self, LogError, LogSettings, Writer},
    store::{
        MetaStore, StoreError, keys,
        memory::MemoryStore,
        records::{self, Applied, FileSystem},
        sled::SledStore,
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
    /// Bytes of the store's page cache.
    pub cache_bytes: u64,
    /// Bytes after which a segment of the log is ended.
    pub segment_bytes: u64,
    /// Changes are refused when the disk has fewer free bytes: the store needs them.
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
    /// Where time comes from.
    pub clock: Clock,
    /// Where the numbers of runs come from.
    pub random: Random,
}

/// Which engine keeps the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// sled, on disk.
    Sled,
    /// In memory; rebuilt from the log at every start.
    Memory,
}

impl EngineSettings {
    /// Defaults for a state directory.
    #[must_use]
    pub fn new(dir: PathBuf, cluster: ClusterId) -> Self {
        Self {
            dir,
            cluster,
            store: StoreKind::Sled,
            cache_bytes: 128 << 20,
            segment_bytes: 32 << 20,
            // Many times what the store writes between two looks at the disk.
            reserve_bytes: 16 << 20,
            sync_interval: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            clock_error: Duration::from_secs(2),
            key_lifetime: Duration::from_secs(30 * 24 * 3600),
            root: Format { uid: 0, gid: 0, mode: 0o755 },
            clock: Clock::system(),
            random: Random::system(),
        }
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
    /// A record of the log does not apply: the log and this program disagree about the past.
    #[error("record {index} of the command log does not apply again: {kind}")]
    Disagrees {
        /// The record.
        index: LogIndex,
        /// Why.
        kind: ErrorKind,
    },
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
    let lock = lock(dir)?;
    let boot = present_boot().map_err(disk)?;
    let marker = Marker::load(dir).map_err(disk)?;
    let clean = marker.as_ref().is_some_and(|marker| marker.clean);
    let same_boot = marker.as_ref().is_some_and(|marker| marker.boot == boot);
    let synced_at_least = match &marker {
        Some(marker) if marker.clean => marker.last,
        _ => LogIndex(0),
    };
    let log_settings = LogSettings {
        dir: dir.join("log"),
        cluster: settings.cluster,
        segment_bytes: settings.segment_bytes,
        sync_interval: settings.sync_interval,
    };
    let (mut log, found) = Writer::open(log_settings, synced_at_least)?;
    let trusted = clean || same_boot;
    let Recovered { mut store, rebuilt } = recover_store(&settings, found.last, trusted)?;
    let marker = Marker { boot, clean: false, last: LogIndex(0) };
    match rebuilt {
        None => marker.save(dir).map_err(disk)?,
        // It comes back when the log says that the store was made anew.
        Some(_) => Marker::forget(dir).map_err(disk)?,
    }
    if found.last == LogIndex(0) {
        format(&settings, &mut log, &mut *store)?;
    }
    tracing::info!(last = %log.last(), took = ?started.elapsed(), clean, "recovered");
    Core::new(settings, log, store, lock, marker, rebuilt)
}

/// A store that shows what the log says.
pub(super) struct Recovered {
    pub(super) store: Box<dyn MetaStore>,
    /// Why it was made anew although there had been one.
    pub(super) rebuilt: Option<String>,
}

/// Opens the store and replays what it misses; makes it anew when it cannot be trusted.
pub(super) fn recover_store(
    settings: &EngineSettings,
    last: LogIndex,
    trusted: bool,
) -> Result<Recovered, StartError> {
    let path = settings.dir.join("store");
    if settings.store == StoreKind::Memory {
        let mut store: Box<dyn MetaStore> = Box::new(MemoryStore::default());
        catch_up(settings, &mut *store, LogIndex(0))?;
        return Ok(Recovered { store, rebuilt: None });
    }
    let reason = if trusted {
        match try_present(settings, &path, last) {
            Ok(store) => return Ok(Recovered { store, rebuilt: None }),
            Err(reason) => reason,
        }
    } else {
        "the machine went down, or the store failed".to_owned()
    };
    let rebuilt = (last > LogIndex(0)).then(|| {
        tracing::warn!(reason, "the store is rebuilt from the command log");
        format!("the store was made anew from the command log: {reason}")
    });
    let disk = |source| StartError::Disk { path: path.clone(), source };
    if path.exists() {
        fs::remove_dir_all(&path).map_err(disk)?;
    }
    let mut store: Box<dyn MetaStore> = Box::new(SledStore::open(&path, settings.cache_bytes)?);
    catch_up(settings, &mut *store, LogIndex(0))?;
    store.checkpoint()?;
    Ok(Recovered { store, rebuilt })
}

/// The store as it is, caught up with the log; or in words why it cannot be used.
fn try_present(
    settings: &EngineSettings,
    path: &Path,
    last: LogIndex,
) -> Result<Box<dyn MetaStore>, String> {
    let mut store: Box<dyn MetaStore> =
        Box::new(SledStore::open(path, settings.cache_bytes).map_err(|error| error.to_string())?);
    let applied = applied(&*store).map_err(|error| error.to_string())?.index;
    if applied > LogIndex(0) {
        // One that an older program made does not decode.
        let file_system = records::read::<FileSystem>(&*store, &keys::file_system());
        file_system.map_err(|error| error.to_string())?;
    }
    if applied > last {
        return Err(format!("it shows index {applied}, but the log ends at {last}"));
    }
    if applied == LogIndex(0) && last > LogIndex(0) {
        return Err("it is missing or empty".to_owned());
    }
    catch_up(settings, &mut *store, applied).map_err(|error| error.to_string())?;
    Ok(store)
}

/// Applies every record behind `applied`.
fn catch_up(
    settings: &EngineSettings,
    store: &mut dyn MetaStore,
    applied: LogIndex,
) -> Result<(), StartError> {
    let dir = settings.dir.join("log");
    log::replay(&dir, settings.cluster, applied.next(), |index, body| {
        let envelope = Envelope::from_bytes(body).ok_or(StartError::Unreadable(index))?;
        let effect = apply::apply(&*store, index, &envelope).map_err(|error| match error {
            ApplyError::Refused(kind) => StartError::Disagrees { index, kind },
            ApplyError::Store(error) => StartError::Store(error),
        })?;
        store.commit(&effect.batch).map_err(StartError::Store)
    })
}

/// The index that a store shows; 0 in an empty one.
pub(super) fn applied(store: &dyn MetaStore) -> Result<Applied, StoreError> {
    Ok(records::read(store, &keys::applied())?.unwrap_or_default())
}

/// The first command of a new log.
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
    Ok(())
}

/// Makes the state directory if it is missing, and closes it to others than its owner: the log
/// holds the keys that sign capabilities.
fn make_private(dir: &Path) -> io::Result<()> {
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

/// Keeps a second server off the directory for as long as the file is open.
fn lock(dir: &Path) -> Result<File, StartError> {
    let path = dir.join("lock");
    let file =
        File::create(&path).map_err(|source| StartError::Disk { path: path.clone(), source })?;
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::InUse(dir.to_owned())),
        Err(error) => Err(StartError::Disk { path, source: error.into() }),
    }
}
