//! Backups for operators: prepared by the thread that takes snapshots, read a piece at a time.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::backup::{
    BACKUP_PIECE_MAX, BackupPiece, BackupReply, BackupState, PrepareBackup, ReadBackup,
};
use millrace_transport::{EncodedReply, IncomingCall};
use millrace_types::{ByteLen, Crc32c, ErrorKind, Failure, LogIndex, Timestamp};

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

/// One that was read to its end is kept so long for whom the last answer did not reach: until a
/// connection has ended and another is made, and the request comes once more.
const READ_IDLE_MAX: Duration = Duration::from_secs(20);

/// Those that were asked for and not forgotten, by the number that the caller drew. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Backups {
    known: Arc<Mutex<BTreeMap<u64, Known>>>,
    /// Where files are let go: to free the space of a large one takes its time.
    background: tokio::runtime::Handle,
}

#[derive(Debug)]
struct Known {
    backup: Arc<Backup>,
    asked: Timestamp,
    /// How many of its first bytes were read, piece after piece.
    read: u64,
}

impl Known {
    /// Whether nobody needs it, but for a request that comes twice.
    fn is_over(&self) -> bool {
        match self.backup.outcome() {
            Some(Ok(prepared)) => self.read >= prepared.len,
            Some(Err(_)) => true,
            None => false,
        }
    }

    fn is_idle(&self, now: Timestamp) -> bool {
        let idle_max = if self.is_over() { READ_IDLE_MAX } else { IDLE_MAX };
        // One that is being made is held by who makes it in any case.
        self.backup.outcome().is_some() && now.since(self.asked) >= idle_max
    }
}

impl Backups {
    /// None yet; files of those to come are closed on `background`.
    #[must_use]
    pub fn new(background: tokio::runtime::Handle) -> Self {
        Self { known: Arc::default(), background }
    }

    /// Forgets those that nobody asks about any more. Called again and again.
    pub fn forget_idle(&self, now: Timestamp) {
        let idle: Vec<_> = {
            let mut all = self.known();
            let idle = all.extract_if(.., |_, known| known.is_idle(now));
            idle.map(|(_, known)| known.backup).collect()
        };
        if !idle.is_empty() {
            self.let_go(idle);
        }
    }

    /// The backup of this number, begun if it is a new one.
    async fn prepare(&self, engine: &Handle, number: u64) -> Result<BackupReply, Failure> {
        let now = engine.now();
        if let Some(backup) = self.find(number, now) {
            return Ok(reply(&backup));
        }
        let backup = self.add(number, now)?;
        let task = Task::Backup(Arc::clone(&backup));
        if let Err(failure) = engine.turn(move |core| core.ask_for(task)).await {
            self.known().remove(&number);
            return Err(failure);
        }
        Ok(reply(&backup))
    }

    fn find(&self, number: u64, now: Timestamp) -> Option<Arc<Backup>> {
        let mut all = self.known();
        let known = all.get_mut(&number)?;
        known.asked = now;
        Some(Arc::clone(&known.backup))
    }

    /// One more, for which one that is over makes room at once where there are as many as may be.
    fn add(&self, number: u64, now: Timestamp) -> Result<Arc<Backup>, Failure> {
        let mut all = self.known();
        if all.len() >= BACKUPS_MAX {
            let over = all.iter().filter(|(_, known)| known.is_over());
            let oldest = over.min_by_key(|(_, known)| known.asked).map(|(number, _)| *number);
            let Some(oldest) = oldest.and_then(|oldest| all.remove(&oldest)) else {
                return Err(Failure::new(ErrorKind::Busy, "too many backups are under way"));
            };
            self.let_go(vec![oldest.backup]);
        }
        let backup = Arc::<Backup>::default();
        all.insert(number, Known { backup: Arc::clone(&backup), asked: now, read: 0 });
        Ok(backup)
    }

    /// Somebody has read these bytes. They count when all before them were read: a look at the end
    /// of one says nothing.
    fn note_read(&self, number: u64, bytes: Range<u64>) {
        if let Some(known) = self.known().get_mut(&number)
            && bytes.start <= known.read
        {
            known.read = known.read.max(bytes.end);
        }
    }

    fn let_go(&self, backups: Vec<Arc<Backup>>) {
        drop(self.background.spawn_blocking(move || drop(backups)));
    }

    /// Nothing is half done when a holder panics.
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (number, offset) = (request.backup, request.offset);
        let backup = self.backups.find(number, self.engine.now()).ok_or_else(gone)?;
        let room = self.rooms.for_others()?;
        let reading = self.background.spawn_blocking(move || {
            let _room = room;
            read(&backup, &request)
        });
        let bytes = reading.await.unwrap_or_else(|error| {
            Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
        })?;
        if !bytes.is_empty() {
            let end = offset.saturating_add(bytes.len() as u64);
            self.backups.note_read(number, offset..end);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::snapshots::Prepared;

    const LEN: u64 = 300;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_parts(1_800_000_000, 0).plus(Duration::from_secs(seconds))
    }

    /// None yet, in the runtime of the test.
    fn backups() -> Backups {
        Backups::new(tokio::runtime::Handle::current())
    }

    /// One that was asked for, and is ready.
    fn ready(backups: &Backups, number: u64, now: Timestamp) {
        let (file, checksum) = (Arc::new(tempfile::tempfile().unwrap()), Crc32c::EMPTY);
        let prepared = Prepared { file, index: LogIndex(1), len: LEN, checksum };
        backups.add(number, now).unwrap().end(Ok(prepared));
    }

    fn numbers(backups: &Backups) -> Vec<u64> {
        backups.known().keys().copied().collect()
    }

    #[tokio::test]
    async fn backups_that_were_read_make_room_at_once_for_another_the_oldest_first() {
        let backups = backups();
        for number in 0..4 {
            ready(&backups, number, at(number));
            // In pieces, the first of which came twice.
            for bytes in [0..100, 0..100, 100..LEN] {
                backups.note_read(number, bytes);
            }
        }
        // Whose last answer was lost reads it once more, and needs it longer than others.
        assert!(backups.find(0, at(4)).is_some());
        backups.add(9, at(5)).unwrap();
        assert_eq!(numbers(&backups), [0, 2, 3, 9]);
    }

    #[tokio::test]
    async fn backups_that_are_made_or_read_make_no_room() {
        let backups = backups();
        for number in 0..3 {
            ready(&backups, number, at(0));
            backups.note_read(number, 0..LEN - 1);
        }
        // Nor does one of which somebody has read the end, and not what comes before it.
        ready(&backups, 3, at(0));
        backups.note_read(3, LEN - 1..LEN);
        assert_eq!(backups.add(9, at(59)).unwrap_err().kind, ErrorKind::Busy);
        backups.known().remove(&3);
        backups.add(3, at(0)).unwrap();
        assert_eq!(backups.add(9, at(59)).unwrap_err().kind, ErrorKind::Busy);
        backups.known()[&3].backup.end(Err(Failure::new(ErrorKind::NoSpace, "no room")));
        backups.add(9, at(59)).unwrap();
        assert_eq!(numbers(&backups), [0, 1, 2, 9]);
    }

    #[tokio::test]
    async fn what_nobody_asks_about_is_forgotten_though_no_other_backup_comes() {
        let backups = backups();
        ready(&backups, 1, at(0));
        ready(&backups, 2, at(0));
        backups.note_read(1, 0..LEN);
        backups.add(3, at(0)).unwrap();
        backups.forget_idle(at(19));
        assert_eq!(numbers(&backups), [1, 2, 3]);
        backups.forget_idle(at(20));
        assert_eq!(numbers(&backups), [2, 3]);
        backups.forget_idle(at(60));
        assert_eq!(numbers(&backups), [3], "it is being made");
    }
}
