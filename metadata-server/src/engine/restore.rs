//! Puts a backup back: makes a state directory from which a start goes on, while no server runs.
//!
//! ```text
//!  checked ─▶ `restoring` ─▶ the snapshot ─▶ the log, with one record ─▶ `restoring` gone
//! ```
//!
//! The record says that a backup was put back: [`apply`](crate::apply) then skips everything that
//! the lost end of the log may have given out, and raises the doubt that keeps checks of the
//! targets from freeing anything. A stop in between leaves the file `restoring`; a server refuses
//! to start with it, and the restore begins anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_types::{ClusterId, LogIndex, Timestamp};

use super::startup::{EngineSettings, RESTORING, StartError, lock, make_private};
use crate::{
    command::{Command, Envelope},
    files::Access,
    log::{LogSettings, Writer, segment},
    snapshot::{
        format::{Decoder, Flaw},
        writer::SnapshotWriter,
    },
    store::{
        keys,
        records::{Applied, FileSystem, Record as _},
    },
};

/// What was put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The last command that the backup shows.
    pub index: LogIndex,
    /// When it was given.
    pub time: Timestamp,
}

/// Why nothing was put back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is something already.
    #[error(
        "{} is not empty (there is {name}): a backup is only put into an empty directory; move \
         what is there away",
        dir.display()
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// Something in it.
        name: String,
    },
    /// The file cannot be used.
    #[error("{} cannot be put back: {flaw}", path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// The file is sound, and holds something else than metadata that this program knows.
    #[error("{} cannot be put back: it was made by another version of this program", .0.display())]
    Unknown(PathBuf),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] StartError),
}

/// Makes the state directory of `settings` from the backup in the file `backup`.
///
/// # Errors
/// [`RestoreError`]; before the directory is touched, except when the disk is full or fails: then
/// it is called again.
pub fn restore(settings: &EngineSettings, backup: &Path) -> Result<Restored, RestoreError> {
    let found = check(settings.cluster, backup)?;
    let dir = &settings.dir;
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    make_private(dir).map_err(disk)?;
    let _lock = lock(dir)?;
    clear(settings)?;
    let files = &*settings.files;
    let restoring = files.open(&dir.join(RESTORING), Access::Create).map_err(disk)?;
    restoring.sync_data().and_then(|()| files.sync_dir(dir)).map_err(disk)?;
    copy_pairs(settings, backup, found.index)?;
    begin_log(settings, found)?;
    files.sync_dir(dir).map_err(disk)?;
    files.remove(&dir.join(RESTORING)).and_then(|()| files.sync_dir(dir)).map_err(disk)?;
    Ok(found)
}

/// Reads all of the backup before anything is changed.
fn check(cluster: ClusterId, path: &Path) -> Result<Restored, RestoreError> {
    let mut decoder = open(cluster, path)?;
    let (mut applied, mut file_system) = (None, None);
    while let Some(pairs) = decoder.next_pairs().map_err(|flaw| unusable(path, flaw))? {
        for (key, value) in pairs {
            if key == keys::applied() {
                applied = Applied::decode(&value);
            } else if key == keys::file_system() {
                file_system = FileSystem::decode(&value);
            }
        }
    }
    match (applied, file_system) {
        (Some(Applied { index, time }), Some(_)) if index == decoder.index() => {
            Ok(Restored { index, time })
        }
        _ => Err(RestoreError::Unknown(path.to_owned())),
    }
}

fn open(cluster: ClusterId, path: &Path) -> Result<Decoder<io::BufReader<fs::File>>, RestoreError> {
    let file = fs::File::open(path).map_err(|error| unusable(path, error.into()))?;
    let decoder = Decoder::begin(io::BufReader::with_capacity(1 << 20, file));
    let decoder = decoder.map_err(|flaw| unusable(path, flaw))?;
    if decoder.cluster() == cluster {
        Ok(decoder)
    } else {
        Err(unusable(path, Flaw::OtherCluster(decoder.cluster())))
    }
}

fn unusable(path: &Path, flaw: Flaw) -> RestoreError {
    RestoreError::Backup { path: path.to_owned(), flaw }
}

/// Refuses a directory with anything in it; what a restore has left that was stopped goes.
fn clear(settings: &EngineSettings) -> Result<(), RestoreError> {
    let dir = &settings.dir;
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    let names = settings.files.list(dir).map_err(disk)?;
    let stopped = names.iter().any(|name| name == RESTORING);
    let of_restore = ["lock", RESTORING, "log", "snapshots"];
    for name in names {
        let known = name == "lock" || (stopped && of_restore.contains(&name.as_str()));
        if !known {
            return Err(RestoreError::NotEmpty { dir: dir.clone(), name });
        }
    }
    for dir in [settings.log_dir(), settings.snapshot_dir()] {
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(disk)?;
        }
    }
    Ok(())
}

/// The backup's pairs as the first snapshot.
fn copy_pairs(
    settings: &EngineSettings,
    backup: &Path,
    index: LogIndex,
) -> Result<(), RestoreError> {
    let dir = settings.snapshot_dir();
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    let files = Arc::clone(&settings.files);
    let writer = SnapshotWriter::begin(files, &dir, "next", index, settings.cluster);
    let mut writer = writer.map_err(disk)?;
    let mut decoder = open(settings.cluster, backup)?;
    while let Some(pairs) = decoder.next_pairs().map_err(|flaw| unusable(backup, flaw))? {
        writer.write(&pairs).map_err(disk)?;
    }
    writer.finish().and_then(|()| writer.keep()).map_err(disk)?;
    Ok(())
}

/// A log that begins behind the snapshot, with the record that says what happened.
fn begin_log(settings: &EngineSettings, found: Restored) -> Result<(), StartError> {
    let (files, dir, cluster) = (&*settings.files, settings.log_dir(), settings.cluster);
    files.make_dir(&dir).map_err(|source| StartError::Disk { path: dir.clone(), source })?;
    segment::create(files, &dir, found.index.next(), cluster, &settings.random)?;
    let log_settings = LogSettings {
        files: Arc::clone(&settings.files),
        dir,
        cluster,
        segment_bytes: settings.segment_bytes,
        sync_interval: settings.sync_interval,
        random: settings.random.clone(),
    };
    let (mut log, _) = Writer::open(log_settings, found.index)?;
    let reason = format!(
        "a backup was put back that ends at record {} of the command log: what came after it is \
         lost",
        found.index.0
    );
    // Commands carry no earlier time than those before; the machine's clock may be behind.
    let time = settings.clock.timestamp().max(found.time);
    let envelope = Envelope { time, operation: None, command: Command::Restored(reason) };
    log.append(&envelope.to_bytes())?;
    Ok(log.syncer().sync_all()?)
}
