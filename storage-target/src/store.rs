//! One target: its volume with the bucket behind it.
//!
//! Here meet what is on the disk, what the bucket backs, and what may be zeros. Everything that
//! serves peers goes through a [`Store`], never to the volume alone.

use std::{
    mem,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use bytes::Bytes;
use millrace_protocol::{
    capability::SYSTEM_SESSION,
    cluster::LogPoint,
    fsck::{ContentPosition, ContentsPage},
    storage::ChunkVersion,
    target::ContentName,
};
use millrace_types::{
    BlockState, ByteLen, ChunkKey, ContentGeneration, Crc32c, ErrorKind, Failure, InodeId,
    SessionId, TargetId, WriteEpoch,
};

use self::{
    collect::{ReadError, Share, held_len},
    exported::{Exported, Note, Taken},
};
use crate::{
    disk::Charge,
    hydration::{Fetched, Hydrator, Wanted},
    misses::Misses,
    parts::{BLOCK, Part, parts, seek},
    release::Releaser,
    view::ChunkView,
    volume::{EngineError, WriteRequest, ZeroRequest},
    volume::{Snapshot, Volume},
};

mod collect;
mod damaged;
mod exported;
#[cfg(test)]
mod tests;

/// How often a request looks again because the chunk changed under it. Each time somebody else got
/// on; more than this is a defect, and an error is better than a loop.
const ATTEMPTS_MAX: usize = 16;

/// One target. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    volume: Arc<Volume>,
    hydrator: Hydrator,
    releaser: Releaser,
    misses: Misses,
    exported: Arc<Mutex<Exported>>,
    /// Why it serves nobody.
    held_back: Arc<RwLock<Option<Hold>>>,
}

/// Why a target serves nobody, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// The metadata server has yet to see what it shows.
    Unseen(String),
    /// It is an older copy of itself.
    Older(String),
}

impl Hold {
    /// The words.
    pub(crate) fn into_words(self) -> String {
        match self {
            Self::Unseen(words) | Self::Older(words) => words,
        }
    }
}

/// Bytes that were read.
#[derive(Debug)]
pub(crate) struct ReadBytes {
    /// The bytes, in order.
    pub(crate) body: Vec<Bytes>,
    /// Of all of them.
    pub(crate) checksum: Crc32c,
    /// How many came from the bucket for this request.
    pub(crate) fetched: u32,
}

/// Which version of a chunk it is, as far as writers made it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Version(Vec<Option<(BlockState, u64)>>);

/// Who wants a chunk that nobody reads yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    /// A job: room is made for it.
    Job,
    /// Nobody: it comes only while no other bytes have to go for it.
    Readers,
}

/// Who reads, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    /// A client that reads here and there.
    Random,
    /// A client that will read on.
    Sequential,
    /// An export to the link's bucket: what it read may become clean afterwards.
    Export,
    /// An export to another place, by which nothing changes here.
    Copy,
}

impl Reader {
    /// Who sent a read. Targets read for each other's uploads, and always read on; so there the
    /// flag tells whether the upload is to the link's bucket. Daemons that do not know of this set
    /// it for every upload: then more is noted than anybody asks for.
    pub(crate) fn of(session: SessionId, sequential: bool) -> Self {
        match (session, sequential) {
            (SYSTEM_SESSION, true) => Self::Export,
            (SYSTEM_SESSION, false) => Self::Copy,
            (_, true) => Self::Sequential,
            (_, false) => Self::Random,
        }
    }

    /// The flag of a read for which another target has the chunk; see [`Self::of`].
    pub(crate) fn says_sequential(self) -> bool {
        matches!(self, Self::Sequential | Self::Export)
    }

    /// Whether a client waits for it: then it counts as a use.
    pub(crate) fn is_client(self) -> bool {
        matches!(self, Self::Random | Self::Sequential)
    }
}

impl Store {
    /// Reads that have to wait for a bucket are noted in `misses`.
    pub(crate) fn new(
        volume: Arc<Volume>,
        hydrator: Hydrator,
        releaser: Releaser,
        misses: Misses,
    ) -> Self {
        let (exported, held_back) = (Arc::default(), Arc::default());
        Self { volume, hydrator, releaser, misses, exported, held_back }
    }

    pub(crate) fn id(&self) -> TargetId {
        self.volume.target()
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    pub(crate) fn hydrator(&self) -> &Hydrator {
        &self.hydrator
    }

    pub(crate) fn releaser(&self) -> &Releaser {
        &self.releaser
    }

    /// Why the target serves nobody, if so.
    pub(crate) fn held_back(&self) -> Option<String> {
        let held_back = self.held_back.read().unwrap_or_else(PoisonError::into_inner).clone();
        held_back.map(Hold::into_words)
    }

    /// Has the target serve nobody from now on, for a reason, or everybody again; returns what was
    /// so before.
    pub(crate) fn hold_back(&self, why: Option<Hold>) -> Option<Hold> {
        let mut held_back = self.held_back.write().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *held_back, why)
    }

    /// What it shows cannot be compared now, which is no reason to serve nobody for longer.
    pub(crate) fn end_unseen(&self) {
        let mut held_back = self.held_back.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held_back, Some(Hold::Unseen(_))) {
            *held_back = None;
        }
    }

    /// What lies on the target from a place on, at most `limit` chunks.
    ///
    /// # Errors
    /// A damaged index.
    pub(crate) async fn contents(
        &self,
        from: ContentPosition,
        limit: u32,
    ) -> Result<ContentsPage, Failure> {
        Ok(self.volume.contents(from, limit).await?)
    }

    /// The newest point of the cluster's command log that the target was told.
    ///
    /// # Errors
    /// A damaged index.
    pub(crate) async fn log_seen(&self) -> Result<Option<LogPoint>, Failure> {
        Ok(self.volume.log_seen().await?)
    }

    /// Keeps a newer point.
    ///
    /// # Errors
    /// A failure of the journal.
    pub(crate) async fn note_log(&self, point: LogPoint) -> Result<(), Failure> {
        Ok(self.volume.note_log(point).await?)
    }

    /// Reads bytes of a chunk, at most 1 MiB. May be dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::StaleContent`] when the content was given up and is not all here any more, and
    /// [`ErrorKind::StaleEpoch`] when it was exported or cut since; [`ErrorKind::Lost`],
    /// [`ErrorKind::Corrupt`], the bucket's and the disk's refusals.
    pub(crate) async fn read(
        &self,
        view: &ChunkView,
        range: Range<u32>,
        reader: Reader,
    ) -> Result<ReadBytes, Failure> {
        self.read_charged(view, range, reader, None).await
    }

    /// The same; see [`Volume::load_charged`].
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) async fn read_charged(
        &self,
        view: &ChunkView,
        range: Range<u32>,
        reader: Reader,
        charge: Option<&Charge>,
    ) -> Result<ReadBytes, Failure> {
        if reader.is_client() {
            self.releaser.note_use(view.key);
        }
        let mut share: Option<Share> = None;
        let blocks = block_of(range.start)..block_of(range.end - 1) + 1;
        for _ in 0..ATTEMPTS_MAX {
            let (snapshot, cut) = self.look(view, range.clone(), reader, &mut share).await?;
            let read_of = (reader == Reader::Export).then(|| notes_of(&snapshot, &range));
            match self.collect(view, snapshot, cut, reader, charge).await {
                Ok(Some(read)) => {
                    if let Some(notes) = read_of {
                        self.exported().note(view.key, &notes);
                    }
                    return Ok(read);
                }
                Ok(None) => {}
                Err(ReadError::Volume(error)) => {
                    // The bucket is asked.
                    share = None;
                    self.give_up_damaged(view, blocks.clone(), error).await?;
                }
                Err(ReadError::Bucket(failure)) => return Err(failure),
            }
        }
        Err(busy(view))
    }

    /// What there is of a range, with the share that it takes to hold what is stored of it.
    async fn look(
        &self,
        view: &ChunkView,
        range: Range<u32>,
        reader: Reader,
        share: &mut Option<Share>,
    ) -> Result<(Snapshot, Vec<Part>), Failure> {
        let blocks = block_of(range.start)..block_of(range.end - 1) + 1;
        // What is sent to a bucket may have been written over the object before it went.
        let backed = if reader.is_client() { view.backed } else { 0 };
        loop {
            let snapshot = self.volume.snapshot(view.key, blocks.clone()).await?;
            self.check_absent(view, backed, &snapshot, blocks.clone()).await?;
            let cut =
                parts(&snapshot, range.clone(), view.backed, view.sparse).map_err(|kind| {
                    Failure::new(kind, format!("part of chunk {} is gone", view.key))
                })?;
            let held = held_len(&cut);
            if held <= share.as_ref().map_or(0, |share| share.len) {
                return Ok((snapshot, cut));
            }
            // Those who have the shares wait for buckets: no pages are held back until one is
            // free, and what is here is looked at again. Each share is of a larger buffer.
            drop((snapshot, share.take()));
            *share = Some(Share::take(self.volume.pool(), held).await);
        }
    }

    /// The first byte of a part of a chunk that is a hole, or that is none. Reads the index alone.
    ///
    /// # Errors
    /// [`ErrorKind::StaleContent`] and [`ErrorKind::StaleEpoch`] as of [`Self::read`]; a damaged
    /// index.
    pub(crate) async fn seek(
        &self,
        view: &ChunkView,
        range: Range<u32>,
        hole: bool,
    ) -> Result<Option<u32>, Failure> {
        let blocks = block_of(range.start)..block_of(range.end - 1) + 1;
        let snapshot = self.volume.snapshot(view.key, blocks.clone()).await?;
        self.check_absent(view, view.backed, &snapshot, blocks).await?;
        Ok(seek(&snapshot, range, view.backed, view.sparse, hole))
    }

    /// Writes, fetching first the rest of blocks of which only a part is written. The write itself
    /// goes on when the caller goes away. It survives a kill on return, and a loss of power if it
    /// is to be durable.
    ///
    /// # Errors
    /// Those of the volume, and of the bucket.
    pub(crate) async fn write(
        &self,
        view: &ChunkView,
        request: WriteRequest,
        durable: bool,
    ) -> Result<ChunkVersion, Failure> {
        self.releaser.note_use(view.key);
        let len: usize = request.body.iter().map(Bytes::len).sum();
        let ends = ends_of(request.offset, len as u64);
        for _ in 0..ATTEMPTS_MAX {
            let written = match durable {
                true => self.volume.write_durably(request.clone()).await,
                false => self.volume.write(request.clone()).await,
            };
            match written {
                Err(error) => self.mend(view, ends, error).await?,
                Ok(version) => return Ok(version),
            }
        }
        Err(busy(view))
    }

    /// Zeroes, likewise.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn zero(
        &self,
        view: &ChunkView,
        request: ZeroRequest,
    ) -> Result<ChunkVersion, Failure> {
        let ends = ends_of(request.range.start, request.range.len() as u64);
        for _ in 0..ATTEMPTS_MAX {
            match self.volume.zero(request.clone()).await {
                Err(error) => self.mend(view, ends, error).await?,
                Ok(version) => return Ok(version),
            }
        }
        Err(busy(view))
    }

    /// Does what a refused change needs before it can be tried again. Of the blocks at its ends a
    /// part may stay.
    async fn mend(
        &self,
        view: &ChunkView,
        ends: [u16; 2],
        error: EngineError,
    ) -> Result<(), Failure> {
        match error {
            EngineError::NeedsFill { block, .. } => {
                let wanted = Wanted { first: block, end: block + 1, sequential: false };
                self.bring(view, wanted, Behind::Job).await
            }
            EngineError::NoSpace => self.releaser.make_room().await,
            other => self.give_up_damaged(view, ends, other).await,
        }
    }

    /// Fetches blocks and waits until the volume has them.
    async fn bring(&self, view: &ChunkView, wanted: Wanted, behind: Behind) -> Result<(), Failure> {
        let mut installed = Ok(());
        if let Fetched::Segments(segments) = self.hydrator.fetch(view, wanted).await? {
            for mut segment in segments {
                installed = segment.installed().await;
                if installed.is_err() {
                    break;
                }
            }
        }
        // Nothing is held any more: who makes room waits for writers, and they for memory.
        match installed {
            // Then it is fetched once more.
            Err(EngineError::NoSpace) if behind == Behind::Job => self.releaser.make_room().await,
            other => Ok(other?),
        }
    }

    /// Fetches everything of a chunk that is absent and backed; returns the bytes fetched. Stored
    /// when it returns.
    ///
    /// # Errors
    /// Those of the bucket, [`ErrorKind::NoSpace`], and [`ErrorKind::StaleEpoch`] as of
    /// [`Self::read`].
    pub(crate) async fn hydrate(
        &self,
        view: &ChunkView,
        behind: Behind,
    ) -> Result<ByteLen, Failure> {
        let blocks = u16::try_from(view.backed.div_ceil(BLOCK)).expect("1,024 at most");
        if blocks == 0 {
            return Ok(ByteLen(0));
        }
        self.releaser.note_use(view.key);
        let mut missing = None;
        // Each round stores something, unless somebody releases at the same time.
        for _ in 0..ATTEMPTS_MAX + usize::from(blocks) {
            let snapshot = self.volume.snapshot(view.key, 0..blocks).await?;
            let absent = |at: &u16| snapshot.state(*at) == BlockState::Absent;
            let bytes_of = |at: u16| (view.backed - u32::from(at) * BLOCK).min(BLOCK);
            let bytes = (0..blocks).filter(absent).map(|at| u64::from(bytes_of(at))).sum();
            let missing = *missing.get_or_insert(bytes);
            let Some(first) = (0..blocks).find(absent) else { return Ok(ByteLen(missing)) };
            self.volume.check_content(view.key, view.write_epoch, true).await?;
            let _place = match behind {
                Behind::Job => None,
                Behind::Readers => Some(self.releaser.take_place(bytes)?),
            };
            // A megabyte at a time bounds the buffers that wait; the stream goes on by itself.
            let end =
                (first..blocks.min(first + 16)).take_while(absent).last().unwrap_or(first) + 1;
            drop(snapshot);
            self.bring(view, Wanted { first, end, sequential: true }, behind).await?;
        }
        Err(busy(view))
    }

    /// Tells versions of the first `len` bytes of a chunk apart: what somebody has written of them.
    /// What is only in the bucket is the same, fetched or not.
    ///
    /// # Errors
    /// A damaged index.
    pub(crate) async fn version(&self, view: &ChunkView, len: u32) -> Result<Version, Failure> {
        if len == 0 {
            return Ok(Version(Vec::new()));
        }
        let blocks = 0..block_of(len - 1) + 1;
        let snapshot = self.volume.snapshot(view.key, blocks.clone()).await?;
        let blocks = blocks.map(|block| match snapshot.state(block) {
            BlockState::Absent | BlockState::Clean => None,
            BlockState::Zero => Some((BlockState::Zero, 0)),
            BlockState::Written => Some((BlockState::Written, snapshot.fingerprint(block))),
        });
        Ok(Version(blocks.collect()))
    }

    /// Drops what lies past a size; see [`Volume::trim`].
    pub(crate) async fn trim(
        &self,
        content: ContentName,
        chunk_size: u64,
        size: u64,
        write_epoch: WriteEpoch,
    ) -> Result<ByteLen, Failure> {
        let freed = self.volume.trim(content, chunk_size, size, write_epoch).await?;
        self.exported().forget(content.inode, content.generation);
        Ok(freed)
    }

    /// Frees what is gone; see [`Volume::reclaim`].
    pub(crate) async fn reclaim(
        &self,
        entries: &[(InodeId, ContentGeneration)],
    ) -> Result<ByteLen, Failure> {
        let freed = self.volume.reclaim(entries).await?;
        let mut exported = self.exported();
        for &(inode, last) in entries {
            exported.forget(inode, last);
        }
        Ok(freed)
    }

    fn exported(&self) -> MutexGuard<'_, Exported> {
        self.exported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns the blocks clean that an export has read and that are still the same. The caller
    /// syncs.
    ///
    /// # Errors
    /// [`ErrorKind::ObjectChanged`] when other blocks are left as written within the first `backed`
    /// bytes of the chunk: they were written since, were read before this run of the daemon, or had
    /// to make room for what was read later; [`ErrorKind::FileTooLarge`] when the file has more of
    /// them than are remembered of one, so that reading them once more would come to much the same.
    /// A failure of the journal.
    pub(crate) async fn mark_exported(
        &self,
        key: ChunkKey,
        backed: u32,
    ) -> Result<ByteLen, Failure> {
        let Taken { blocks: noted, is_too_large } = self.exported().take(key);
        let marked = self.volume.mark_exported(key, &noted).await?;
        if backed > 0 {
            let blocks = 0..block_of(backed - 1) + 1;
            let snapshot = self.volume.snapshot(key, blocks.clone()).await?;
            let left = blocks.filter(|&at| snapshot.state(at) == BlockState::Written).count();
            if left > 0 {
                let words = format!("{left} blocks of {key} are not those that an export read");
                let kind = match is_too_large {
                    true => ErrorKind::FileTooLarge,
                    false => ErrorKind::ObjectChanged,
                };
                return Err(Failure::new(kind, words));
            }
        }
        Ok(marked)
    }
}

fn block_of(at: u32) -> u16 {
    u16::try_from(at / BLOCK).expect("a chunk has 1,024 blocks at most")
}

/// Which version of each written block of a range it is that an export reads.
fn notes_of(snapshot: &Snapshot, range: &Range<u32>) -> Vec<Note> {
    let blocks = block_of(range.start)..=block_of(range.end - 1);
    let written = blocks.filter(|&block| snapshot.state(block) == BlockState::Written);
    written.map(|block| Note { block, fingerprint: snapshot.fingerprint(block) }).collect()
}

/// The blocks in which a change of `len` bytes begins and ends.
fn ends_of(start: u32, len: u64) -> [u16; 2] {
    let last = (u64::from(start) + len).saturating_sub(1);
    [block_of(start), block_of(u32::try_from(last).expect("within a chunk"))]
}

fn busy(view: &ChunkView) -> Failure {
    Failure::new(ErrorKind::Busy, format!("chunk {} keeps changing", view.key))
}
