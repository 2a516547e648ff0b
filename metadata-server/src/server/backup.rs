//! Backups for operators: prepared by the thread that takes snapshots, read a piece at a time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::backup::{
    BACKUP_PIECE_MAX, BackupPiece, BackupReply, BackupState, PrepareBackup, ReadBackup,
};
use millrace_transport::{EncodedReply, IncomingCall};
use millrace_types::{ByteLen, Crc32c, ErrorKind, Failure, LogIndex};

use super::{
    MetadataService,
    answer::{Answer, Work, other},
};
use crate::engine::{
    Handle,
    snapshots::{Backup, Task},
};

/// Backups at the same time: each takes as much of the disk as a snapshot.
const BACKUPS_MAX: usize = 4;

/// One that nobody has asked about for so long is forgotten, and its space is free again.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Those that were asked for and not forgotten, by the number that the caller drew.
#[derive(Debug, Default)]
pub(super) struct Backups(Mutex<BTreeMap<u64, Known>>);

#[derive(Debug)]
struct Known {
    backup: Arc<Backup>,
    asked: Instant,
}

impl Backups {
    /// The backup of this number, begun if it is a new one.
    async fn prepare(&self, engine: &Handle, number: u64) -> Result<BackupReply, Failure> {
        if let Some(backup) = self.find(number) {
            return Ok(reply(&backup));
        }
        let backup = self.add(number)?;
        let task = Task::Backup(Arc::clone(&backup));
        if let Err(failure) = engine.turn(move |core| core.ask_for(task)).await {
            self.known().remove(&number);
            return Err(failure);
        }
        Ok(reply(&backup))
    }

    fn find(&self, number: u64) -> Option<Arc<Backup>> {
        let mut all = self.known();
        let known = all.get_mut(&number)?;
        known.asked = Instant::now();
        Some(Arc::clone(&known.backup))
    }

    fn add(&self, number: u64) -> Result<Arc<Backup>, Failure> {
        let mut all = self.known();
        // One that is being made is held by who makes it in any case.
        all.retain(|_, known| known.backup.outcome().is_none() || known.asked.elapsed() < IDLE_MAX);
        if all.len() >= BACKUPS_MAX {
            return Err(Failure::new(ErrorKind::Busy, "too many backups are under way"));
        }
        let backup = Arc::<Backup>::default();
        let known = Known { backup: Arc::clone(&backup), asked: Instant::now() };
        all.insert(number, known);
        Ok(backup)
    }

    /// Nothing is half done when a holder panics.
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reply(backup: &Backup) -> BackupReply {
    let nothing = BackupReply {
        state: BackupState::Preparing,
        size: ByteLen(backup.written()),
        index: LogIndex(0),
        checksum: Crc32c::EMPTY,
    };
    match backup.outcome() {
        None => nothing,
        Some(Err(failure)) => {
            BackupReply { state: BackupState::Failed(failure.clone()), ..nothing }
        }
        Some(Ok(prepared)) => BackupReply {
            state: BackupState::Ready,
            size: ByteLen(prepared.len),
            index: prepared.index,
            checksum: prepared.checksum,
        },
    }
}

/// The bytes of a part. Blocks.
fn read(backup: &Backup, request: &ReadBackup) -> Result<Vec<u8>, Failure> {
    let Some(Ok(prepared)) = backup.outcome() else {
        return Err(Failure::new(ErrorKind::InvalidArgument, "the backup is not ready"));
    };
    let left = prepared.len.saturating_sub(request.offset).min(u64::from(request.len));
    let mut bytes = vec![0; usize::try_from(left).unwrap_or(0)];
    let read = prepared.file.read_at(&mut bytes, request.offset);
    match read {
        Ok(count) if count == bytes.len() => Ok(bytes),
        Ok(_) => Err(Failure::new(ErrorKind::Disk, "the backup is shorter than it was")),
        Err(error) => Err(Failure::new(ErrorKind::Disk, format!("cannot read it: {error}"))),
    }
}

impl MetadataService {
    pub(super) fn prepare_backup(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let request = call.decode::<PrepareBackup>()?;
        Ok(other::<PrepareBackup>(self.backups.prepare(&self.engine, request.backup)))
    }

    pub(super) fn read_backup<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        Ok(Work::Other(Box::pin(async {
            let bytes = self.backup_piece(call).await?;
            let piece = BackupPiece { checksum: Crc32c::of(&bytes) };
            let answer: Answer =
                Box::new(move || EncodedReply::with_body::<ReadBackup>(&piece, bytes));
            Ok(answer)
        })))
    }

    async fn backup_piece(&self, call: &IncomingCall) -> Result<Vec<u8>, Failure> {
        let request = call.decode::<ReadBackup>()?;
        if !(1..=BACKUP_PIECE_MAX).contains(&request.len) {
            let text = format!("a piece has 1 to {BACKUP_PIECE_MAX} bytes");
            return Err(Failure::new(ErrorKind::InvalidArgument, text));
        }
        let gone = || Failure::new(ErrorKind::NotFound, "there is no such backup any more");
        let backup = self.backups.find(request.backup).ok_or_else(gone)?;
        let room = self.room()?;
        let reading = self.background.spawn_blocking(move || {
            let _room = room;
            read(&backup, &request)
        });
        reading.await.unwrap_or_else(|error| {
            Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
        })
    }
}
