//! Fetching absent bytes from the bucket: one fetch for all who ask, handed on as it arrives.
//!
//! ```text
//!  reader ──▶ fetch(blocks) ──▶ claimed by a stream? ── no ──▶ new stream: one conditional GET
//!                 ▲                    │ yes                     │
//!                 │                    ▼                         ▼ segment by segment
//!                 └───────────── waits for its blocks ◀──── deliver ──▶ volume: absent → clean
//! ```
//!
//! Each chunk with fetches under way has a [`Chunk`]: which blocks are claimed by which stream,
//! which segments have arrived and are not yet in the volume, and who waits for what. A stream
//! begins at the first block that somebody needs and, when the reader goes on sequentially, runs
//! on behind the reader's back, 8 MiB at most: a longer chunk is brought by several streams at a
//! time. A random read far ahead of where a stream has come takes the rest of its claim over with a
//! stream of its own; a sequential one waits, because what a stream gives up has been asked of the
//! bucket already and costs a connection.
//!
//! Buckets tell checksums of whole objects, and of no ranges. So an object of at most a segment
//! that lies in one chunk is fetched whole whatever is wanted of it, and no byte of it goes to
//! anybody, or to the volume, before all of them match.
//!
//! Bounds: the bucket's own limits on requests and bytes; the buffer pool, since every segment that
//! is in memory is a buffer of it, and what targets and links may have of it in segments that are
//! not stored yet; turns for who holds some segments while it waits for others, which go on without
//! one as soon as the others have come; one entry per chunk with a fetch under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use bytes::Bytes;
use millrace_object_source::tallied;
use millrace_types::{BlockState, ChunkKey, Crc32c, ErrorKind, Failure, WriteEpoch};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use crate::{
    links::Links,
    parts::BLOCK,
    release::Releaser,
    view::ChunkView,
    volume::{EngineError, Volume},
};

mod chunk;
mod stream;
#[cfg(test)]
mod tests;
mod turns;

use chunk::{Backed, Chunk};
use turns::Turns;

/// Blocks of one segment: 1 MiB, what one disk write moves best.
const SEGMENT_BLOCKS: u16 = 16;

/// Blocks of one sequential stream: 8 MiB, a default chunk, at which the first byte's delay and
/// the bucket's price of a request no longer count (a GET of 1 MiB costs the bucket's server twice
/// the CPU).
const STREAM_BLOCKS: u16 = 128;

/// How far ahead of a stream a random read must lie to get a stream of its own: 4 MiB, which a
/// stream needs 50 ms for at the 80 MB/s that one S3 connection gives, about the time to a first
/// byte.
const AHEAD_BLOCKS: u16 = 64;

/// Fetches for the chunks of one target. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Hydrator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    volume: Arc<Volume>,
    links: Links,
    releaser: Releaser,
    /// Where streams run: beside the threads that serve the network.
    runtime: Handle,
    chunks: Mutex<HashMap<FetchKey, Chunk>>,
    turns: Turns,
    fetched_bytes: AtomicU64,
    fetches: AtomicU64,
}

/// Whose fetches may be shared: another write epoch may back fewer bytes, another tag is another
/// version of the object.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct FetchKey {
    chunk: ChunkKey,
    write_epoch: WriteEpoch,
    tag: String,
}

impl FetchKey {
    fn of(view: &ChunkView) -> Self {
        let tag = view.origin.as_ref().map(|origin| origin.tag.clone()).unwrap_or_default();
        Self { chunk: view.key, write_epoch: view.write_epoch, tag }
    }
}

/// Consecutive blocks that have arrived.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The first block.
    pub(crate) first_block: u16,
    /// How many.
    pub(crate) blocks: u16,
    /// Valid bytes; what is missing to whole blocks is zero.
    pub(crate) len: u32,
    /// The bytes, padded with zeros to whole pages.
    pub(crate) bytes: Bytes,
    /// The checksum of each page.
    pub(crate) checksums: Arc<[Crc32c]>,
    /// Whether the volume has it, once that is known.
    installed: watch::Receiver<Option<Result<(), EngineError>>>,
}

impl Segment {
    /// One past the last block.
    pub(crate) fn end(&self) -> u16 {
        self.first_block + self.blocks
    }

    /// Waits until the volume has the bytes. May be dropped at its await.
    ///
    /// # Errors
    /// Why it has not, such as [`EngineError::NoSpace`].
    pub(crate) async fn installed(&mut self) -> Result<(), EngineError> {
        let outcome = self.installed.wait_for(Option::is_some).await;
        let outcome = outcome.map_err(|_| EngineError::Stopped)?.clone();
        outcome.expect("waited for")
    }
}

/// What a fetch gave.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// Segments that cover the blocks asked for.
    Segments(Vec<Segment>),
    /// The blocks are in the volume meanwhile: look again.
    Present,
}

/// Blocks wanted, and what the reader is likely to want next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) first: u16,
    /// One past the last.
    pub(crate) end: u16,
    /// Whether the rest of the chunk shall follow.
    pub(crate) sequential: bool,
}

impl Wanted {
    /// One past the last block that a fetch for these may bring, of `backed` that there are.
    fn reach(self, backed: u16) -> u16 {
        let step = if self.sequential { STREAM_BLOCKS } else { SEGMENT_BLOCKS };
        self.end.next_multiple_of(step).min(backed)
    }
}

impl Hydrator {
    /// Streams run on `runtime`.
    pub(crate) fn new(
        volume: Arc<Volume>,
        links: Links,
        releaser: Releaser,
        runtime: Handle,
    ) -> Self {
        let turns = Turns::new(volume.pool().turns());
        let inner = Inner {
            volume,
            links,
            releaser,
            runtime,
            chunks: Mutex::default(),
            turns,
            fetched_bytes: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Where streams run.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// Bytes that have arrived from buckets since the start.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.inner.fetched_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// GET requests since the start.
    pub(crate) fn fetches(&self) -> u64 {
        self.inner.fetches.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Brings blocks of a chunk that the bucket backs. A caller that goes away leaves the fetch to
    /// the others, and to the policy.
    ///
    /// # Errors
    /// [`millrace_types::ErrorKind::ObjectChanged`] when the object is another version by now, and
    /// the bucket's other refusals; those of the volume's index.
    pub(crate) async fn fetch(&self, view: &ChunkView, wanted: Wanted) -> Result<Fetched, Failure> {
        assert!(wanted.first < wanted.end, "something is wanted");
        assert!(u32::from(wanted.end - 1) * BLOCK < view.backed, "the bucket backs it");
        let looking = Looking::begin(&self.inner, FetchKey::of(view));
        let link = view.origin.as_ref().ok_or(ErrorKind::Internal)?.link;
        let mut next_turn = Box::pin(self.inner.turns.take(link));
        let mut turn = None;
        loop {
            match looking.register(view, wanted, turn.is_some()).await? {
                chunk::Registered::Present => return Ok(Fetched::Present),
                chunk::Registered::Arrived(segments) => return Ok(Fetched::Segments(segments)),
                chunk::Registered::NeedsTurn(mut changes) => tokio::select! {
                    biased;
                    taken = &mut next_turn => turn = Some(taken),
                    // Perhaps it needs none any more. It keeps its place among those that wait.
                    _ = changes.changed() => {}
                },
                chunk::Registered::Waiting { arrived, streams } => {
                    drop((looking, next_turn));
                    for stream in streams {
                        Arc::clone(&self.inner).start(view.clone(), stream);
                    }
                    let mut waiting = Waiting { hydrator: self, key: FetchKey::of(view), arrived };
                    // Only when the daemon stops is there no answer.
                    let unanswered = |_| Err(ErrorKind::Unavailable.into());
                    let outcome = (&mut waiting.arrived).await.unwrap_or_else(unanswered);
                    return outcome.map(Fetched::Segments);
                }
            }
        }
    }

    /// Makes sure that the bucket still has the version of its object that a view names. Goes on
    /// when its caller goes away.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub(crate) async fn check_object(&self, view: &ChunkView) -> Result<(), Failure> {
        let (inner, view) = (Arc::clone(&self.inner), view.clone());
        let check = tallied(async move { inner.check_object(&view).await });
        // Only when the daemon stops is there no answer.
        let checked = self.inner.runtime.spawn(check).await;
        checked.unwrap_or_else(|_| Err(ErrorKind::Unavailable.into()))
    }
}

/// Keeps the entry of a chunk while somebody looks at what the volume has of it, and waits for a
/// turn.
struct Looking<'a> {
    inner: &'a Inner,
    key: FetchKey,
}

impl<'a> Looking<'a> {
    fn begin(inner: &'a Inner, key: FetchKey) -> Self {
        inner.lock().entry(key.clone()).or_default().begin_look();
        Self { inner, key }
    }

    /// Registers for blocks.
    ///
    /// # Errors
    /// Those of the volume's index.
    async fn register(
        &self,
        view: &ChunkView,
        wanted: Wanted,
        has_turn: bool,
    ) -> Result<chunk::Registered, EngineError> {
        let blocks = u16::try_from(view.backed.div_ceil(BLOCK)).expect("1,024 blocks at most");
        let backed = Backed { blocks, is_whole: view.whole_object().is_some() };
        let looked_at = match backed.is_whole {
            true => 0..blocks,
            false => wanted.first..wanted.reach(blocks),
        };
        loop {
            let seen = self.with_chunk(|chunk| chunk.installs());
            let snapshot = self.inner.volume.snapshot(view.key, looked_at.clone()).await?;
            let absent = |block: u16| snapshot.state(block) == BlockState::Absent;
            let registered = self.with_chunk(|chunk| {
                // What the volume got meanwhile is no longer in memory, and not in the snapshot.
                let is_current = chunk.installs() == seen;
                is_current.then(|| chunk.register(wanted, backed, has_turn, absent))
            });
            if let Some(registered) = registered {
                return Ok(registered);
            }
        }
    }

    fn with_chunk<T>(&self, work: impl FnOnce(&mut Chunk) -> T) -> T {
        let mut chunks = self.inner.lock();
        work(chunks.get_mut(&self.key).expect("an entry that is looked at stays"))
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut chunks = self.inner.lock();
        if let Some(chunk) = chunks.get_mut(&self.key) {
            chunk.end_look();
            if chunk.is_idle() {
                chunks.remove(&self.key);
            }
        }
    }
}

/// A fetch that waits; one that goes away lets go of the segments gathered for it.
struct Waiting<'a> {
    hydrator: &'a Hydrator,
    key: FetchKey,
    arrived: oneshot::Receiver<Result<Vec<Segment>, Failure>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.arrived.close();
        let mut chunks = self.hydrator.inner.lock();
        if let Some(chunk) = chunks.get_mut(&self.key) {
            chunk.forget_gone();
            if chunk.is_idle() {
                chunks.remove(&self.key);
            }
        }
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<FetchKey, Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
