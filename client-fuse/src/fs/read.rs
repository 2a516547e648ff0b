//! read: from the buffer of writes, from what was fetched ahead, or from the targets.
//!
//! A read begins on the thread that brought it, which decides under one lock what is here, what
//! another fetch is already bringing, and what to fetch now and ahead. If everything is here the
//! answer is given at once; otherwise the rest runs as a task that waits for the pieces.

use std::{ops::Range, sync::Arc, time::Instant};

use millrace_protocol::capability::Content;
use millrace_transport::Body;
use millrace_types::{ErrorKind, Failure};

use crate::{
    cache::{
        pieces::{Part, Piece},
        write_buffer::Awaited,
    },
    cluster::lanes::Purpose,
    fs::{
        FileSystem, REFRESH_PAUSE, REFRESHES_MAX,
        file::{Access, File},
        handle::FileHandle,
        inline::{self, InInode},
    },
    prefetch::queue,
};

/// How far a read got without waiting.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The bytes; fewer than asked for at the end of the file.
    Done(Body),
    /// To be finished by [`FileSystem::finish_read`].
    Waiting(Waiting),
}

/// A read that waits for bytes.
#[derive(Debug)]
pub(crate) struct Waiting {
    range: Range<u64>,
    parts: Vec<Part>,
    landings: u64,
    sequential: bool,
    first: Option<First>,
}

/// What a read waits for before it fetches anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum First {
    /// Buffered writes lie over part of the range: they go to the targets.
    Flush {
        /// These, and what lies beside them.
        written: Awaited,
        /// How many failures there were before.
        failures: u64,
    },
    /// The bytes that are known to live in the inode may be old.
    Refresh,
    /// They are not here.
    Bring,
}

impl FileSystem {
    /// Begins to read `len` bytes at `offset`. Never blocks.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] when the server gave no right to the content;
    /// [`ErrorKind::Stale`] when the handle was opened on an older version of the object;
    /// [`ErrorKind::SessionGone`] when a lock of the handle is lost.
    pub(crate) fn begin_read(
        &self,
        handle: &FileHandle,
        offset: u64,
        len: u32,
    ) -> Result<Begun, Failure> {
        self.handle_returned(handle);
        handle.check_locks()?;
        let file = &handle.file;
        let mut state = file.state();
        // First: the end of a new version is not the end of the one that is read here.
        handle.check_version(&state)?;
        let size = state.attributes.size;
        let range = offset.min(size)..offset.saturating_add(u64::from(len)).min(size);
        if range.is_empty() {
            return Ok(Begun::Done(Body::default()));
        }
        if !handle.options.no_atime {
            self.note_read(&mut state.attributes);
        }
        let landings = state.landings;
        if state.buffer.held_bytes() > 0 && state.buffer.overlaps(&range) {
            if let Some(bytes) = state.buffer.read_covered(&range) {
                return Ok(Begun::Done(bytes.into()));
            }
            let parts = Vec::new();
            let written = state.buffer.written_to(&range);
            let first = Some(First::Flush { written, failures: state.failures });
            let sequential = false;
            return Ok(Begun::Waiting(Waiting { range, parts, landings, sequential, first }));
        }
        if let Some(inline) = &state.inline {
            let first = match (inline.bytes(), self.names.content_stands(file.inode, state.viewed))
            {
                (Some(bytes), true) => return Ok(Begun::Done(inline::cut(bytes, &range).into())),
                (None, true) => First::Bring,
                // Another host may have written since, which brought them to the targets.
                (_, false) => First::Refresh,
            };
            let (parts, sequential, first) = (Vec::new(), false, Some(first));
            return Ok(Begun::Waiting(Waiting { range, parts, landings, sequential, first }));
        }
        let Some(access) = state.access.clone() else {
            return Err(Failure::new(ErrorKind::PermissionDenied, "no right to the content"));
        };
        let chunk_size = access.content.layout.chunk_size().bytes();
        // What is buffered elsewhere in the file is not at the targets yet: nothing is read ahead
        // there. A reader that passes `O_DIRECT` knows what it wants, except that a bucket serves
        // large requests only at a decent price.
        let exact = handle.options.direct && access.content.origin.is_none();
        let advised = !exact && state.buffer.held_bytes() == 0;
        let advice = advised.then(|| {
            let window_max = self.window_max(&state.streams);
            state.streams.handle_read(range.clone(), size, window_max)
        });
        let sequential = advice.as_ref().is_some_and(|advice| advice.sequential);
        let parts = self.claim(file, &mut state.pieces, &range, chunk_size, sequential);
        if let Some(advice) = advice {
            let (pieces, ahead) = (&mut state.pieces, &advice.ahead);
            let left = self.fetch_ahead(file, pieces, ahead, range.end, chunk_size);
            if !left.is_empty() {
                state.streams.handle_unfetched(&left);
            }
        }
        if let Some(ready) = take_ready(&parts) {
            for part in &parts {
                if let Part::Held { piece, range } = part {
                    state.pieces.hand_out(piece, range.end - range.start);
                }
            }
            drop(state);
            self.metrics.read_ready.inc();
            return Ok(Begun::Done(ready));
        }
        Ok(Begun::Waiting(Waiting { range, parts, landings, sequential, first: None }))
    }

    /// Waits for the bytes of a read that could not be answered at once.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Lost`] or what else the targets answer, and
    /// [`ErrorKind::Unavailable`] when they stay silent for the mount's timeout.
    pub(crate) async fn finish_read(
        &self,
        handle: &FileHandle,
        waiting: Waiting,
    ) -> Result<Body, Failure> {
        let Waiting { range, parts, landings, sequential, first } = waiting;
        let file = &handle.file;
        match first {
            Some(First::Flush { written, failures }) => {
                self.flush_part_telling(file, written, failures).await?;
                return self.read_again(handle, range).await;
            }
            Some(First::Refresh) => {
                self.refresh(file).await?;
                return self.read_again(handle, range).await;
            }
            Some(First::Bring) => return self.read_again(handle, range).await,
            None => {}
        }
        let mut bytes = Body::default();
        for part in parts {
            let Part::Held { piece, range } = part else {
                unreachable!("everything that was missing has been claimed");
            };
            let part = match piece.wait(&range).await {
                Ok(part) => part,
                // It was fetched for a guess, maybe before the bytes were written: ask exactly.
                Err(_) if piece.is_ahead() => {
                    self.fetch(file, &range, sequential, Purpose::Read).await?
                }
                Err(failure) => return Err(failure),
            };
            bytes.append(part);
            file.state().pieces.hand_out(&piece, range.end - range.start);
        }
        let (landed, overlaid) = {
            let state = file.state();
            // What was fetched may be of a version that was opened meanwhile.
            handle.check_version(&state)?;
            let overlaid = state.buffer.overlaps(&range).then(|| {
                let mut bytes = bytes.to_vec();
                state.buffer.overlay(range.start, &mut bytes);
                Body::from(bytes)
            });
            (state.landings != landings, overlaid)
        };
        if landed {
            // Writes were stored while this fetch was on its way: it may be older than they are.
            return self.read_again(handle, range).await;
        }
        Ok(overlaid.unwrap_or(bytes))
    }

    async fn read_again(&self, handle: &FileHandle, range: Range<u64>) -> Result<Body, Failure> {
        let file = &handle.file;
        self.bring_inline(file).await?;
        let size = {
            let state = file.state();
            handle.check_version(&state)?;
            state.attributes.size
        };
        let range = range.start.min(size)..range.end.min(size);
        let (inline, overlaid) = {
            let state = file.state();
            let inline = state.inline.as_ref().and_then(InInode::bytes);
            let inline = inline.map(|bytes| inline::cut(bytes, &range));
            (inline, state.buffer.overlaps(&range))
        };
        if let Some(inline) = inline.filter(|_| !overlaid) {
            return Ok(inline.into());
        }
        if overlaid && file.state().inline.is_some() {
            // What is written goes over them at the targets.
            self.writable(file).await?;
        }
        let chunk_size = file.access()?.content.layout.chunk_size().bytes();
        let mut bytes = Body::default();
        for request in queue::requests(range.clone(), range.start, chunk_size) {
            bytes.append(self.fetch(file, &request, false, Purpose::Read).await?);
        }
        let state = file.state();
        if !state.buffer.overlaps(&range) {
            return Ok(bytes);
        }
        let mut bytes = bytes.to_vec();
        state.buffer.overlay(range.start, &mut bytes);
        Ok(bytes.into())
    }

    /// Begins a fetch for whatever of `range` nobody fetches yet; the answer has no missing part.
    fn claim(
        &self,
        file: &Arc<File>,
        pieces: &mut crate::cache::pieces::Pieces,
        range: &Range<u64>,
        chunk_size: u64,
        sequential: bool,
    ) -> Vec<Part> {
        let now = Instant::now();
        let mut claimed = Vec::new();
        for part in pieces.plan(range) {
            let missing = match part {
                held @ Part::Held { .. } => {
                    claimed.push(held);
                    continue;
                }
                Part::Missing(missing) => missing,
            };
            for request in queue::requests(missing.clone(), missing.start, chunk_size) {
                let piece = pieces.begin(request.clone(), false, None, now);
                self.spawn_fetch(file, &piece, sequential);
                claimed.push(Part::Held { piece, range: request });
            }
        }
        claimed
    }

    /// Begins fetches of `ahead`, as far as the memory budget goes; returns what is left.
    fn fetch_ahead(
        &self,
        file: &Arc<File>,
        pieces: &mut crate::cache::pieces::Pieces,
        ahead: &Range<u64>,
        phase: u64,
        chunk_size: u64,
    ) -> Range<u64> {
        let now = Instant::now();
        for part in pieces.plan(ahead) {
            let Part::Missing(missing) = part else {
                continue;
            };
            for request in queue::requests(missing, phase, chunk_size) {
                let Some(permit) = self.budget.try_take_ahead(request.end - request.start) else {
                    return request.start..ahead.end;
                };
                let piece = pieces.begin(request, true, Some(permit), now);
                self.spawn_fetch(file, &piece, true);
            }
        }
        ahead.end..ahead.end
    }

    fn spawn_fetch(&self, file: &Arc<File>, piece: &Arc<Piece>, sequential: bool) {
        let file = Arc::clone(file);
        let piece = Arc::clone(piece);
        self.spawn(|this| async move {
            let purpose = if piece.is_ahead() { Purpose::ReadAhead } else { Purpose::Read };
            let outcome = this.fetch(&file, piece.range(), sequential, purpose).await;
            let failure = outcome.as_ref().err().map(|failure| failure.kind);
            piece.complete(outcome);
            if let Some(kind) = failure {
                let mut state = file.state();
                state.pieces.forget(&piece);
                // Otherwise it would fail again.
                if piece.is_ahead() && kind.is_transient() {
                    state.streams.handle_unfetched(piece.range());
                }
            }
        });
    }

    /// Fetches bytes within one chunk, with a fresh view as often as the present one is old.
    async fn fetch(
        &self,
        file: &File,
        range: &Range<u64>,
        sequential: bool,
        purpose: Purpose,
    ) -> Result<Body, Failure> {
        let (mut lost, mut moved) = (false, false);
        for attempt in 0..REFRESHES_MAX {
            let access = file.access()?;
            let read = self.cluster.read(&access, range.clone(), sequential, purpose);
            let failure = match read.await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failure,
            };
            match failure.kind {
                ErrorKind::StaleContent | ErrorKind::StaleEpoch | ErrorKind::KeyRetired => {}
                ErrorKind::Forbidden | ErrorKind::SessionGone => {}
                // Another host may have made the file sparse since its view was fetched.
                ErrorKind::Lost if !lost => lost = true,
                ErrorKind::ObjectChanged => {
                    let count = file.state().attributes.change_count;
                    if moved || !self.has_other_object(file, &access).await {
                        self.changed.note(file.inode, count);
                        return Err(failure);
                    }
                    moved = true;
                    continue;
                }
                _ => return Err(failure),
            }
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            self.refresh(file).await?;
            if lost && file.state().has_undeclared_hole() {
                self.declare_sparse(file).await?;
            }
            let renewed = file.access()?;
            if failure.kind == ErrorKind::KeyRetired
                && renewed.capability.key > access.capability.key
            {
                self.contents.handle_retired(access.capability.key);
            }
            if renewed.content.generation != access.content.generation
                && access.content.origin.is_some()
                && renewed.content.origin.is_some()
            {
                // The object changed in the bucket: never mix two versions in one open file.
                return Err(ErrorKind::Stale.into());
            }
        }
        Err(Failure::new(ErrorKind::Stale, "the file changes faster than it can be read"))
    }

    /// Whether the same content has another object by now: the file was exported since, and the
    /// object of before was replaced, or is gone with the old name of the file. Who has it open
    /// reads on from the new one.
    async fn has_other_object(&self, file: &File, access: &Access) -> bool {
        if self.refresh(file).await.is_err() {
            return false;
        }
        file.access().is_ok_and(|renewed| was_exported(&access.content, &renewed.content))
    }

    /// How far one of the running streams may read ahead: all of them together half of the budget,
    /// so that what was fetched and is not yet read, and writes, have the rest. By default 64 MiB
    /// for a single stream: eight default chunks, as many connections to a bucket at a time.
    fn window_max(&self, streams: &crate::prefetch::window::Streams) -> u64 {
        let running = u64::try_from(streams.running().max(1)).expect("a few streams");
        (self.budget.limit() / 2 / running).max(1)
    }
}

/// Whether the second view of a file is of the same content, with an object that the first one does
/// not know.
fn was_exported(before: &Content, now: &Content) -> bool {
    let object = |content: &Content| {
        content.origin.as_ref().map(|origin| (origin.key.clone(), origin.tag.clone()))
    };
    now.generation == before.generation
        && object(now).is_some_and(|now| Some(now) != object(before))
}

/// The bytes of every part, if all are here.
fn take_ready(parts: &[Part]) -> Option<Body> {
    let mut whole = Body::default();
    for part in parts {
        match part {
            Part::Held { piece, range } => whole.append(piece.ready(range)?),
            Part::Missing(_) => return None,
        }
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::capability::{Origin, Rights};
    use millrace_types::{ContentGeneration, LinkId, Timestamp};

    use super::*;
    use crate::fs::file::tests::reply;

    #[test]
    fn an_export_gives_the_same_content_another_object_also_under_the_same_key() {
        let view = |generation, object: Option<(&str, &str)>| {
            let content = reply(1, 4, 1, Rights::Read).content.expect("a regular file's");
            let origin = object.map(|(key, tag)| Origin {
                link: LinkId(1),
                key: key.to_owned(),
                size: 4,
                tag: tag.to_owned(),
                modified: Timestamp(1),
            });
            Content { generation: ContentGeneration(generation), origin, ..content }
        };
        let before = view(1, Some(("old", "1")));
        for (generation, object, expected) in [
            (1, Some(("old", "1")), false),
            (1, Some(("old", "2")), true),
            (1, Some(("new", "1")), true),
            (1, None, false),
            (2, Some(("old", "2")), false),
        ] {
            let now = view(generation, object);
            assert_eq!(was_exported(&before, &now), expected, "{generation}, {object:?}");
        }
        assert!(was_exported(&view(1, None), &before));
    }
}
