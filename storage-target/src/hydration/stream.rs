//! One GET: its bytes into buffers, segment by segment.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use millrace_object_source::{RangeBody, Tag, tallied};
use millrace_types::{ErrorKind, Failure};
use tokio::{sync::watch, time::timeout};

use super::{FetchKey, Inner, Segment, chunk::Claim};
use crate::{
    disk::{AlignedBuffer, SegmentRoom},
    page_checksum::of_pages,
    parts::BLOCK,
    view::ChunkView,
    volume::{DropMark, EngineError, Fill},
};

/// How long a request to a bucket stays open while there is no room for what it brings. A bucket
/// has only so many at a time, and those for a disk that hangs must not be all of them: others wait
/// for their turn three times as long.
const OPEN_MAX: Duration = Duration::from_secs(20);

impl Inner {
    /// Starts a stream for a claim.
    pub(super) fn start(self: Arc<Self>, view: ChunkView, claim: Claim) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn(tallied(async move {
            let outcome = self.run(&view, claim).await;
            if let Err(failure) = &outcome {
                tracing::warn!(
                    chunk = %view.key,
                    object = view.origin.as_ref().map_or("", |origin| origin.key.as_str()),
                    %failure,
                    "fetching from the bucket failed"
                );
            }
            let mut chunks = self.lock();
            if let Some(chunk) = chunks.get_mut(&FetchKey::of(&view)) {
                chunk.end_stream(claim.id, outcome.as_ref().err());
                if chunk.is_idle() {
                    chunks.remove(&FetchKey::of(&view));
                }
            }
        })));
    }

    async fn run(self: &Arc<Self>, view: &ChunkView, claim: Claim) -> Result<(), Failure> {
        let mark = self.volume.drop_mark(&view.key);
        let link = view.origin.as_ref().ok_or(ErrorKind::Internal)?.link;
        let pool = self.volume.pool();
        let mut opened = None;
        loop {
            let next = {
                let chunks = self.lock();
                chunks.get(&FetchKey::of(view)).and_then(|chunk| chunk.next_segment(claim.id))
            };
            let Some((first, end)) = next else { return Ok(()) };
            let start = u32::from(first) * BLOCK;
            let len = (u32::from(end) * BLOCK).min(view.backed) - start;
            let place = (first, end - first);
            if start == 0 && view.whole_object() == Some(u64::from(len)) {
                drop(pool.segment_room(link, len as usize).await);
                let Some(Whole { buffer, mut room }) = self.fetch_whole(view, len).await? else {
                    continue;
                };
                room.arrived();
                self.fetched_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
                self.deliver(view, claim, place, (buffer, len), (mark, room));
                continue;
            }
            let mut source = match opened.take() {
                Some(source) => source,
                None => {
                    // Only looked for: nobody has room and waits for the turn of a request.
                    drop(pool.segment_room(link, len as usize).await);
                    self.open(view, Claim { next: first, ..claim }).await?
                }
            };
            let room = pool.segment_room(link, len as usize);
            let room = match source.body {
                Some(_) => timeout(OPEN_MAX, room).await.ok(),
                // No request is open any more.
                None => Some(room.await),
            };
            let Some(mut room) = room else { continue };
            let buffer = pool.acquire(len as usize).await;
            let buffer = source.fill(buffer, len as usize).await?;
            room.arrived();
            self.fetched_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
            self.deliver(view, claim, place, (buffer, len), (mark, room));
            opened = Some(source);
        }
    }

    /// All of a small object, into a buffer that is there when it comes; nothing where there is no
    /// room for it for long.
    async fn fetch_whole(&self, view: &ChunkView, len: u32) -> Result<Option<Whole>, Failure> {
        let origin = view.origin.as_ref().ok_or(ErrorKind::Internal)?;
        let bucket = self.links.bucket(origin.link).await?;
        let tag = Tag::new(origin.tag.clone())?;
        let pool = self.volume.pool();
        let make_room = || async {
            let room = pool.segment_room(origin.link, len as usize);
            let room = timeout(OPEN_MAX, room).await.ok()?;
            Some(Whole { buffer: pool.acquire(len as usize).await, room })
        };
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let size = u64::from(len);
        let whole = bucket.get_whole_into(&origin.key, size, &tag, &make_room).await;
        let mut whole = whole.map_err(as_seen)?;
        if let Some(Whole { buffer, .. }) = &mut whole {
            buffer.as_mut_slice()[len as usize..].fill(0);
        }
        Ok(whole)
    }

    async fn open(&self, view: &ChunkView, claim: Claim) -> Result<Source, Failure> {
        let origin = view.origin.as_ref().ok_or(ErrorKind::Internal)?;
        let bucket = self.links.bucket(origin.link).await?;
        let tag = Tag::new(origin.tag.clone())?;
        let first = view.start + u64::from(claim.next) * u64::from(BLOCK);
        let end = u64::from(claim.end) * u64::from(BLOCK);
        let end = view.start + end.min(u64::from(view.backed));
        self.fetches.fetch_add(1, Ordering::Relaxed);
        if let Some(size) = view.whole_object() {
            // Nobody gets a byte before the last one is there: so all of them can be checked.
            let whole = bucket.get_whole(&origin.key, size, &tag).await.map_err(as_seen)?;
            return Ok(Source { body: None, rest: part_of(whole, size, first..end)? });
        }
        let body = bucket.get_range(&origin.key, first..end, &tag).await.map_err(as_seen)?;
        Ok(Source { body: Some(body), rest: Bytes::new() })
    }

    /// Looks whether a fetch for the view would find its version of the object.
    pub(super) async fn check_object(&self, view: &ChunkView) -> Result<(), Failure> {
        let origin = view.origin.as_ref().ok_or(ErrorKind::Internal)?;
        let bucket = self.links.bucket(origin.link).await?;
        let head = bucket.head(&origin.key).await.map_err(as_seen)?;
        if head.version.tag.as_str() != origin.tag {
            let words = format!("{} is another version by now", origin.key);
            return Err(Failure::new(ErrorKind::ObjectChanged, words));
        }
        Ok(())
    }

    /// Hands a segment to who waits, and to the volume.
    fn deliver(
        self: &Arc<Self>,
        view: &ChunkView,
        claim: Claim,
        (first_block, blocks): (u16, u16),
        (buffer, len): (AlignedBuffer, u32),
        (mark, room): (DropMark, SegmentRoom),
    ) {
        let buffer = Arc::new(buffer);
        let checksums: Arc<[_]> = of_pages(buffer.as_slice()).into();
        let (install, installed) = watch::channel(None);
        let segment = Segment {
            first_block,
            blocks,
            len,
            bytes: Bytes::from_owner(SharedBuffer(Arc::clone(&buffer))),
            checksums: Arc::clone(&checksums),
            installed,
        };
        if let Some(chunk) = self.lock().get_mut(&FetchKey::of(view)) {
            chunk.deliver(claim.id, &segment);
        }
        drop(segment);
        let fill = Fill {
            key: view.key,
            first_block,
            buffer,
            len,
            checksums,
            write_epoch: view.write_epoch,
            chunk_size: view.chunk_size,
            backed: view.backed,
            mark,
            // A write may wait for a block that was asked for by itself.
            gathers: claim.sequential,
        };
        let fetch_key = FetchKey::of(view);
        let inner = Arc::clone(self);
        drop(self.runtime.spawn(async move {
            let outcome = inner.volume.fill(fill).await.map(drop);
            drop(room);
            if let Err(error) = &outcome {
                // The readers have their bytes; the next ones will fetch again.
                if matches!(error, EngineError::NoSpace) {
                    inner.releaser.ask();
                }
                tracing::debug!(chunk = %fetch_key.chunk, %error, "fetched bytes are not stored");
            }
            let mut chunks = inner.lock();
            if let Some(chunk) = chunks.get_mut(&fetch_key) {
                chunk.forget_segment(first_block);
                if chunk.is_idle() {
                    chunks.remove(&fetch_key);
                }
            }
            drop(chunks);
            install.send_replace(Some(outcome));
        }));
    }
}

/// A vanished object is a changed one to who holds its old version.
fn as_seen(error: millrace_object_source::Error) -> Failure {
    let failure = Failure::from(error);
    match failure.kind {
        ErrorKind::NotFound => Failure { kind: ErrorKind::ObjectChanged, ..failure },
        _ => failure,
    }
}

/// A part of a whole object: what is missing here. The rest is let go of.
fn part_of(whole: Bytes, size: u64, part: Range<u64>) -> Result<Bytes, Failure> {
    if part == (0..size) {
        return Ok(whole);
    }
    let within = |at: u64| usize::try_from(at).ok().filter(|at| *at <= whole.len());
    let (Some(start), Some(end)) = (within(part.start), within(part.end)) else {
        return Err(ErrorKind::BucketUnavailable.into());
    };
    Ok(Bytes::copy_from_slice(&whole[start..end]))
}

/// A buffer for a small object, with the right to hold it.
struct Whole {
    buffer: AlignedBuffer,
    room: SegmentRoom,
}

impl AsMut<[u8]> for Whole {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }
}

/// The body of a GET, cut into segments. Of a small object all has come already.
struct Source {
    body: Option<RangeBody>,
    rest: Bytes,
}

impl Source {
    /// Fills the first `len` bytes of a buffer and pads the rest with zeros.
    async fn fill(
        &mut self,
        mut buffer: AlignedBuffer,
        len: usize,
    ) -> Result<AlignedBuffer, Failure> {
        let mut at = 0;
        while at < len {
            if self.rest.is_empty() {
                let ended = || Failure::from(ErrorKind::BucketUnavailable);
                let next = self.body.as_mut().ok_or_else(ended)?.next().await;
                self.rest = next.ok_or_else(ended)?.map_err(as_seen)?;
            }
            let some = self.rest.split_to(self.rest.len().min(len - at));
            buffer.as_mut_slice()[at..at + some.len()].copy_from_slice(&some);
            at += some.len();
        }
        buffer.as_mut_slice()[len..].fill(0);
        Ok(buffer)
    }
}

/// Lets readers see a buffer that the volume is writing to the disk.
struct SharedBuffer(Arc<AlignedBuffer>);

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
