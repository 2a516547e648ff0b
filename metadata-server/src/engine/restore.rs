//! Puts a backup back: makes a state directory from which a start goes on, while no server runs.
//!
//! ```text
//!  checked ─▶ `restoring` ─▶ the snapshot ─▶ the log, with one record ─▶ `restoring` gone
//! ```
//!
//! The record says that a backup was put back: [`apply`](crate::apply) then skips everything that
//! the lost end of the log may have given out, and raises the doubt that keeps checks of the
//! targets from freeing anything. In front of it stand records that cancel the jobs that the backup
//! was taken in the middle of and, where its sessions had much open, that end this. A stop in
//! between leaves the file `restoring`; a server refuses to start with it, and the restore begins
//! anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_protocol::admin::{Job, JobState};
use millrace_types::{ClusterId, InodeId, LogIndex, SessionId, Timestamp};

use super::{
    lock::lock,
    opens::{OPENS_MAX, ends},
    startup::{EngineSettings, RESTORING, StartError, make_private},
};
use crate::{
    command::{Command, Envelope, JobCounts, UpdateJob},
    files::Access,
    log::{LogSettings, Writer, segment},
    snapshot::{
        format::{Decoder, Flaw},
        writer::SnapshotWriter,
    },
    store::{
        keys,
        records::{Applied, FileSystem, JobRecord, OpenRecord, Record as _},
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
    let (found, had) = check(settings.cluster, backup)?;
    let dir = &settings.dir;
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    make_private(dir).map_err(disk)?;
    let _lock = lock(dir, Duration::ZERO)?;
    clear(settings)?;
    let files = &*settings.files;
    let restoring = files.open(&dir.join(RESTORING), Access::Create).map_err(disk)?;
    restoring.sync_data().and_then(|()| files.sync_dir(dir)).map_err(disk)?;
    copy_pairs(settings, backup, found.index)?;
    begin_log(settings, found, had)?;
    files.sync_dir(dir).map_err(disk)?;
    files.remove(&dir.join(RESTORING)).and_then(|()| files.sync_dir(dir)).map_err(disk)?;
    Ok(found)
}

/// What a session of the backup has open.
type Open = (SessionId, InodeId, OpenRecord);

/// What was under way when the backup was taken.
#[derive(Debug, Default)]
struct UnderWay {
    opens: Vec<Open>,
    jobs: Vec<Job>,
}

/// Reads all of the backup before anything is changed.
fn check(cluster: ClusterId, path: &Path) -> Result<(Restored, UnderWay), RestoreError> {
    let mut decoder = open(cluster, path)?;
    let (mut applied, mut file_system, mut had) = (None, None, UnderWay::default());
    while let Some(pairs) = decoder.next_pairs().map_err(|flaw| unusable(path, flaw))? {
        for (key, value) in pairs {
            if key == keys::applied() {
                applied = Applied::decode(&value);
            } else if key == keys::file_system() {
                file_system = FileSystem::decode(&value);
            } else {
                had.opens.extend(open_of(&key, &value));
                had.jobs.extend(job_of(&key, &value));
            }
        }
    }
    match (applied, file_system) {
        (Some(Applied { index, time }), Some(_)) if index == decoder.index() => {
            Ok((Restored { index, time }, had))
        }
        _ => Err(RestoreError::Unknown(path.to_owned())),
    }
}

fn open_of(key: &[u8], value: &[u8]) -> Option<Open> {
    if key.first() != Some(&keys::OPENS) {
        return None;
    }
    let (inode, session) = (keys::number_at(key, 1)?, keys::number_at(key, 9)?);
    Some((SessionId(session), InodeId(inode), OpenRecord::decode(value)?))
}

/// A job that has not ended.
fn job_of(key: &[u8], value: &[u8]) -> Option<Job> {
    let job = key.starts_with(&keys::jobs()).then(|| JobRecord::decode(value)).flatten()?.job;
    (!job.state.is_final()).then_some(job)
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
        let known = name == "lock"
            || (stopped && of_restore.contains(&name.as_str()))
            || (name == LOST_FOUND && is_bare(&dir.join(LOST_FOUND)));
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

/// What a file system that was just made has in its root.
const LOST_FOUND: &str = "lost+found";

/// Whether it is a directory with nothing in it, or one of root's into which nobody else can look.
fn is_bare(dir: &Path) -> bool {
    if !dir.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return false;
    }
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
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
fn begin_log(settings: &EngineSettings, found: Restored, had: UnderWay) -> Result<(), StartError> {
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
    let jobs = had.jobs.into_iter().map(cancel);
    let before = ends_of(had.opens).into_iter().chain(jobs);
    for command in before.chain([Command::Restored(reason)]) {
        let envelope = Envelope { time, operation: None, command };
        log.append(&envelope.to_bytes())?;
    }
    Ok(log.syncer().sync_all()?)
}

/// What ends a job that had not ended: what it was to do may have been done since, and what it
/// would put over may be newer than what it has.
fn cancel(job: Job) -> Command {
    let (id, state, counts) = (job.id, Some(JobState::Cancelled), JobCounts::of(&job));
    Command::UpdateJob(UpdateJob { id, state, counts, failures: job.failures })
}

/// What ends the opens of all sessions where they are many: [`Command::Restored`], which ends the
/// sessions, then has little left to do at once.
fn ends_of(mut opens: Vec<Open>) -> Vec<Command> {
    if opens.len() <= OPENS_MAX {
        return Vec::new();
    }
    opens.sort_unstable_by_key(|&(session, inode, _)| (session, inode));
    let of_sessions = opens.chunk_by(|one, other| one.0 == other.0);
    let parts = of_sessions.flat_map(|of_one| of_one.chunks(OPENS_MAX));
    let commands = parts.flat_map(|part| {
        let opens: Vec<_> = part.iter().map(|&(_, inode, open)| (inode, open)).collect();
        ends(part[0].0, &opens)
    });
    commands.collect()
}
