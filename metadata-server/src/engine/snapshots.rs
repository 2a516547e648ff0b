//! Takes snapshots beside the running server: asks the engine for a piece, writes it, asks for the
//! next. Owns the thread for that and the order of steps; the bytes are the business of
//! [`snapshot`](crate::snapshot).
//!
//! ```text
//!  begin ─▶ pieces ─▶ bytes synced ─▶ log synced ─▶ named ─▶ older ones and old segments removed
//! ```
//!
//! A stop between any two steps leaves what a start finds its way with. The disk keeps twice
//! the reserve that the engine keeps: a snapshot that would use it up is given up before.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    time::Instant,
};

use millrace_types::{ClusterId, ErrorKind, Failure, LogIndex};

use super::{Handle, WeakHandle, startup::EngineSettings};
use crate::{
    files::Files,
    snapshot::{kept, writer::SnapshotWriter},
};

mod backup;
mod metrics;

pub use backup::{Backup, Prepared};
pub use metrics::SnapshotMetrics;

/// Tasks that wait.
pub(super) const TASKS_MAX: usize = 8;

/// What the thread is asked for.
#[derive(Debug)]
pub enum Task {
    /// A snapshot to recover from.
    Snapshot,
    /// A backup for an operator.
    Backup(Arc<Backup>),
}

/// What a snapshot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To recover from: it gets its name, and the log is shortened behind it.
    Recovery,
    /// For an operator: without the signing keys, and without a name.
    Backup,
}

/// Where snapshots are kept.
#[derive(Debug, Clone)]
pub struct Place {
    files: Arc<dyn Files>,
    dir: PathBuf,
    cluster: ClusterId,
    /// Bytes of the disk that are kept free.
    reserve_bytes: u64,
}

impl Place {
    /// That of an engine.
    #[must_use]
    pub fn of(settings: &EngineSettings) -> Self {
        Self {
            files: Arc::clone(&settings.files),
            dir: settings.snapshot_dir(),
            cluster: settings.cluster,
            // So that changes are not refused while a snapshot finds out that it does not fit.
            reserve_bytes: settings.reserve().saturating_mul(2),
        }
    }

    /// Refuses to go on when the disk has no more than is kept free. One that does not say
    /// counts as one that has room: the write finds out.
    fn check_room(&self) -> Result<(), Failure> {
        match self.files.free(&self.dir) {
            Ok(free) if free < self.reserve_bytes => {
                Err(Failure::new(ErrorKind::NoSpace, "no room on the disk for a snapshot"))
            }
            _ => Ok(()),
        }
    }
}

/// A snapshot that is being taken, a step at a time. Dropped before its end it leaves nothing.
#[derive(Debug)]
pub struct Taking {
    engine: Handle,
    place: Place,
    writer: SnapshotWriter,
}

impl Taking {
    /// Begins with what the store shows now.
    ///
    /// # Errors
    /// When the disk is full or fails, and while the store is broken.
    pub fn begin(engine: &Handle, place: &Place, purpose: Purpose) -> Result<Self, Failure> {
        let name = match purpose {
            Purpose::Recovery => "next",
            Purpose::Backup => "backup",
        };
        let disk = |error| failed(place, &error);
        place.files.make_dir(&place.dir).map_err(disk)?;
        place.check_room()?;
        let index = engine.blocking_turn(move |core| core.begin_snapshot(purpose))?;
        let files = Arc::clone(&place.files);
        let writer = SnapshotWriter::begin(files, &place.dir, name, index, place.cluster);
        Ok(Self { engine: engine.clone(), place: place.clone(), writer: writer.map_err(disk)? })
    }

    /// Writes all that has been gathered since; tells whether there is more. Behind the last of it
    /// the bytes are on stable storage.
    ///
    /// # Errors
    /// When the disk is full or fails, or the engine has given it up.
    pub fn step(&mut self) -> Result<bool, Failure> {
        let index = self.writer.index();
        let blocks = self.engine.blocking_turn(move |core| core.snapshot_piece(index))?;
        self.place.check_room()?;
        let more = !blocks.is_empty();
        for pairs in blocks {
            self.writer.write(&pairs).map_err(|error| failed(&self.place, &error))?;
            self.place.check_room()?;
        }
        if !more {
            self.writer.finish().map_err(|error| failed(&self.place, &error))?;
        }
        Ok(more)
    }

    /// Gives it its name, and removes what it makes needless: older snapshots, and segments of the
    /// log.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn keep(self) -> Result<LogIndex, Failure> {
        let Self { engine, place, writer } = self;
        let (index, len) = (writer.index(), writer.size());
        engine.blocking_synced(index)?;
        writer.keep().map_err(|error| failed(&place, &error))?;
        let older = kept::older(&*place.files, &place.dir);
        if let Some(through) = older.map_err(|error| failed(&place, &error))? {
            // One in a turn: removing a large file takes its time.
            while engine.blocking_turn(move |core| core.shorten_log(through))? {}
        }
        // It is under way until the log is short again.
        engine.blocking_turn(move |core| {
            core.note_snapshot(len);
            Ok(())
        })?;
        Ok(index)
    }

    /// What is written so far.
    #[must_use]
    pub fn writer(&self) -> &SnapshotWriter {
        &self.writer
    }
}

fn failed(place: &Place, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Disk,
    };
    Failure::new(kind, format!("cannot write to {}: {error}", place.dir.display()))
}

/// The thread's work.
#[derive(Debug)]
pub(super) struct Taker {
    pub(super) engine: WeakHandle,
    pub(super) place: Place,
    pub(super) metrics: SnapshotMetrics,
    pub(super) stopping: Arc<AtomicBool>,
}

impl Taker {
    /// Does one task after another until the engine has ended.
    pub(super) fn run(&self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            let Some(engine) = self.engine.upgrade() else { return };
            match task {
                Task::Snapshot => self.snapshot(&engine),
                Task::Backup(backup) => self.backup(&engine, &backup),
            }
        }
    }

    /// Takes a snapshot, or says why not and has it tried again later.
    fn snapshot(&self, engine: &Handle) {
        let started = Instant::now();
        let taken = self.take(engine, Purpose::Recovery, |_| {}).and_then(|taking| {
            let len = taking.writer().size();
            taking.keep().map(|index| (index, len))
        });
        match taken {
            Ok((index, len)) => {
                let log = engine.blocking_turn(|core| Ok(core.log_bytes())).unwrap_or_default();
                tracing::info!(%index, bytes = len, log_bytes = log, took = ?started.elapsed(),
                    "snapshot taken");
                self.metrics.taken(len, engine.now());
            }
            Err(_) if self.is_stopping() => {}
            Err(failure) => {
                tracing::warn!(%failure, "no snapshot was taken; it is tried again later, and the \
                    command log grows until then");
                self.metrics.failed();
                let noted = engine.blocking_turn(move |core| {
                    core.end_snapshot("it could not be written");
                    core.note_snapshot_failure();
                    Ok(())
                });
                if let Err(failure) = noted {
                    tracing::debug!(%failure, "the engine has ended");
                }
            }
        }
    }

    /// Takes a backup, whose file has no name any more when it is ready.
    fn backup(&self, engine: &Handle, backup: &Backup) {
        let taken = self.take(engine, Purpose::Backup, |bytes| backup.note(bytes));
        let prepared = taken.and_then(|taking| {
            let writer = taking.writer();
            // What was lost in a loss of power right after it would else be in the backup.
            engine.blocking_synced(writer.index())?;
            Ok(Prepared {
                file: writer.file(),
                index: writer.index(),
                len: writer.size(),
                checksum: writer.checksum(),
            })
        });
        if let Err(failure) = &prepared {
            tracing::warn!(%failure, "no backup was made");
            drop(engine.blocking_turn(|core| {
                core.end_snapshot("it could not be written");
                Ok(())
            }));
        }
        backup.end(prepared);
    }

    /// Takes a snapshot up to where all its bytes are on stable storage.
    fn take(
        &self,
        engine: &Handle,
        purpose: Purpose,
        progress: impl Fn(u64),
    ) -> Result<Taking, Failure> {
        let mut taking = Taking::begin(engine, &self.place, purpose)?;
        while taking.step()? {
            progress(taking.writer().size());
            if self.is_stopping() {
                return Err(Failure::new(ErrorKind::Unavailable, "the server is stopping"));
            }
        }
        Ok(taking)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
