//! Pieces of one file that were fetched, or are being fetched, and not yet handed to the kernel.
//!
//! Every fetch is a piece from the moment when it is decided, so that a second reader of the same
//! range waits for the first one's fetch instead of asking again. A piece leaves the map when all
//! of its bytes were handed out (the kernel keeps them now), when it failed, when a write or a
//! foreign change makes it old, or when it was idle for long and no reader is on its way to it. Who
//! already waits for it still gets its bytes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_transport::Body;
use millrace_types::Failure;
use tokio::sync::Notify;

use crate::cache::budget::Permit;

/// The pieces of one file, which never overlap.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    by_start: BTreeMap<u64, Arc<Piece>>,
}

/// One fetch and its outcome.
#[derive(Debug)]
pub(crate) struct Piece {
    range: Range<u64>,
    outcome: OnceLock<Result<Body, Failure>>,
    done: Notify,
    handed_out: AtomicU64,
    begun: Instant,
    ahead: bool,
    _permit: Option<Permit>,
}

/// A part of a range that is wanted.
#[derive(Debug)]
pub(crate) enum Part {
    /// A piece holds it, or will.
    Held {
        /// The piece.
        piece: Arc<Piece>,
        /// The wanted bytes, counted from the start of the file.
        range: Range<u64>,
    },
    /// Nobody has asked for it.
    Missing(Range<u64>),
}

impl Pieces {
    /// Cuts `range` into what pieces hold and what is missing, in order.
    pub(crate) fn plan(&self, range: &Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for piece in self.meeting(range) {
            if at < piece.range.start {
                parts.push(Part::Missing(at..piece.range.start));
            }
            let held = at.max(piece.range.start)..piece.range.end.min(range.end);
            at = held.end;
            parts.push(Part::Held { piece: Arc::clone(piece), range: held });
        }
        if at < range.end {
            parts.push(Part::Missing(at..range.end));
        }
        parts
    }

    /// Adds a fetch that is about to begin, over a range that is missing.
    pub(crate) fn begin(
        &mut self,
        range: Range<u64>,
        ahead: bool,
        permit: Option<Permit>,
        now: Instant,
    ) -> Arc<Piece> {
        assert!(range.start < range.end, "a piece has bytes");
        debug_assert!(self.meeting(&range).next().is_none(), "pieces never overlap");
        let piece = Arc::new(Piece {
            range: range.clone(),
            outcome: OnceLock::new(),
            done: Notify::new(),
            handed_out: AtomicU64::new(0),
            begun: now,
            ahead,
            _permit: permit,
        });
        self.by_start.insert(range.start, Arc::clone(&piece));
        piece
    }

    /// Records that `len` bytes of `piece` were handed to the kernel.
    pub(crate) fn hand_out(&mut self, piece: &Arc<Piece>, len: u64) {
        let before = piece.handed_out.fetch_add(len, Ordering::Relaxed);
        if before + len >= piece.len() {
            self.forget(piece);
        }
    }

    /// Removes `piece`, unless another one took its place.
    pub(crate) fn forget(&mut self, piece: &Arc<Piece>) {
        let start = piece.range.start;
        if self.by_start.get(&start).is_some_and(|held| Arc::ptr_eq(held, piece)) {
            self.by_start.remove(&start);
        }
    }

    /// Removes everything that meets `range`: the bytes there are old.
    pub(crate) fn invalidate(&mut self, range: &Range<u64>) {
        let starts: Vec<u64> = self.meeting(range).map(|piece| piece.range.start).collect();
        for start in starts {
            self.by_start.remove(&start);
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.by_start.clear();
    }

    /// Removes what was fetched ahead longer than `idle` ago and never wanted since, unless
    /// somebody awaits it.
    pub(crate) fn evict(
        &mut self,
        now: Instant,
        idle: Duration,
        is_awaited: impl Fn(&Range<u64>) -> bool,
    ) {
        self.by_start.retain(|_, piece| {
            let is_young = now.saturating_duration_since(piece.begun) < idle;
            piece.outcome.get().is_none() || is_young || is_awaited(&piece.range)
        });
    }

    /// Whether there are none.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    fn meeting(&self, range: &Range<u64>) -> impl Iterator<Item = &Arc<Piece>> {
        let first = self
            .by_start
            .range(..=range.start)
            .next_back()
            .filter(|(_, piece)| piece.range.end > range.start)
            .map_or(range.start, |(&start, _)| start);
        self.by_start.range(first..range.end.max(first)).map(|(_, piece)| piece)
    }
}

impl Piece {
    /// The bytes of the file that it stands for.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Whether it was begun before anybody wanted it.
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// Ends the fetch. Only the first outcome counts.
    pub(crate) fn complete(&self, outcome: Result<Body, Failure>) {
        if let Ok(bytes) = &outcome {
            assert_eq!(u64::try_from(bytes.len()), Ok(self.len()), "fetches are whole");
        }
        // A second outcome can only come from the guard of a dropped fetch, and means nothing.
        drop(self.outcome.set(outcome));
        self.done.notify_waiters();
    }

    /// The wanted bytes, if they are here.
    pub(crate) fn ready(&self, range: &Range<u64>) -> Option<Body> {
        let bytes = self.outcome.get()?.as_ref().ok()?;
        Some(self.cut(bytes, range))
    }

    /// Waits for the wanted bytes. May be dropped while it waits.
    ///
    /// # Errors
    /// The failure of the fetch.
    pub(crate) async fn wait(&self, range: &Range<u64>) -> Result<Body, Failure> {
        loop {
            let done = self.done.notified();
            if let Some(outcome) = self.outcome.get() {
                let bytes = outcome.as_ref().map_err(Failure::clone)?;
                return Ok(self.cut(bytes, range));
            }
            done.await;
        }
    }

    fn cut(&self, bytes: &Body, range: &Range<u64>) -> Body {
        let within = |at: u64| usize::try_from(at - self.range.start).expect("within a piece");
        bytes.slice(within(range.start)..within(range.end))
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millrace_types::{ErrorKind, GIB, KIB, MIB};

    use super::*;
    use crate::prefetch::{queue, window::Streams};

    fn abcd() -> Body {
        Body::from(Bytes::from_static(b"abcd"))
    }

    fn ranges(parts: &[Part]) -> Vec<(bool, Range<u64>)> {
        let range = |part: &Part| match part {
            Part::Held { range, .. } => (true, range.clone()),
            Part::Missing(range) => (false, range.clone()),
        };
        parts.iter().map(range).collect()
    }

    #[test]
    fn a_plan_covers_the_range_in_order() {
        let mut pieces = Pieces::default();
        let now = Instant::now();
        pieces.begin(10..20, false, None, now);
        pieces.begin(30..40, true, None, now);
        assert_eq!(
            ranges(&pieces.plan(&(5..35))),
            [(false, 5..10), (true, 10..20), (false, 20..30), (true, 30..35)]
        );
        assert_eq!(ranges(&pieces.plan(&(12..18))), [(true, 12..18)]);
        assert_eq!(ranges(&pieces.plan(&(20..30))), [(false, 20..30)]);
        assert!(pieces.plan(&(15..15)).len() <= 1);
    }

    #[tokio::test]
    async fn who_waits_gets_the_bytes_even_if_the_piece_is_old_meanwhile() {
        let mut pieces = Pieces::default();
        let piece = pieces.begin(0..4, false, None, Instant::now());
        let waiting = piece.wait(&(1..3));
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        pieces.invalidate(&(3..9));
        assert!(pieces.is_empty());
        piece.complete(Ok(abcd()));
        assert_eq!(waiting.await.expect("it was fetched").to_vec(), b"bc");
    }

    #[tokio::test]
    async fn a_failed_fetch_fails_every_waiter_with_the_same_kind() {
        let mut pieces = Pieces::default();
        let piece = pieces.begin(0..4, true, None, Instant::now());
        piece.complete(Err(ErrorKind::Lost.into()));
        assert!(piece.ready(&(0..4)).is_none());
        assert_eq!(piece.wait(&(0..4)).await.expect_err("it failed").kind, ErrorKind::Lost);
    }

    #[test]
    fn a_piece_goes_when_all_of_it_was_handed_out() {
        let mut pieces = Pieces::default();
        let piece = pieces.begin(0..8, true, None, Instant::now());
        pieces.hand_out(&piece, 5);
        assert!(!pieces.is_empty());
        pieces.hand_out(&piece, 3);
        assert!(pieces.is_empty());
    }

    #[test]
    fn idle_pieces_are_evicted_and_fetches_in_progress_are_not() {
        let mut pieces = Pieces::default();
        let now = Instant::now();
        let old = pieces.begin(0..4, true, None, now);
        pieces.begin(4..8, true, None, now);
        old.complete(Ok(abcd()));
        let later = now + Duration::from_secs(10);
        pieces.evict(later, Duration::from_secs(5), |range| range.contains(&3));
        assert_eq!(ranges(&pieces.plan(&(0..8))), [(true, 0..4), (true, 4..8)]);
        pieces.evict(later, Duration::from_secs(5), |range| range.contains(&4));
        assert_eq!(ranges(&pieces.plan(&(0..8))), [(false, 0..4), (true, 4..8)]);
    }

    /// A program that reads a file at `rate` bytes a second, in steps of so many, for a minute;
    /// returns how much it has read, and how much was fetched for that.
    fn read_slowly(rate: u64, step: u64, window: u64) -> (u64, u64) {
        let (mut pieces, mut streams) = (Pieces::default(), Streams::default());
        let began = Instant::now();
        let length = |bytes: u64| usize::try_from(bytes).expect("at most a MiB");
        let whole = Body::from(Bytes::from(vec![0; length(MIB)]));
        let (mut at, mut fetched, mut ticks) = (0, 0, 0);
        while at < 60 * rate {
            let now = began + Duration::from_millis(at * 1000 / rate);
            while ticks < now.duration_since(began).as_secs() / 2 {
                ticks += 1;
                streams.handle_tick();
                pieces.evict(now, Duration::from_secs(5), |range| streams.awaits(range));
            }
            let read = at..at + step;
            let advice = streams.handle_read(read.clone(), 4 * GIB, window);
            for (wanted, ahead) in [(&read, false), (&advice.ahead, true)] {
                for part in pieces.plan(wanted) {
                    let Part::Missing(missing) = part else { continue };
                    for request in queue::requests(missing, read.end, 8 * MIB) {
                        let len = request.end - request.start;
                        let piece = pieces.begin(request, ahead, None, now);
                        piece.complete(Ok(whole.slice(0..length(len))));
                        fetched += len;
                    }
                }
            }
            for part in pieces.plan(&read) {
                let Part::Held { piece, range } = part else { unreachable!("it was fetched") };
                pieces.hand_out(&piece, range.end - range.start);
            }
            at += step;
        }
        (at, fetched)
    }

    #[test]
    fn what_is_fetched_for_a_slow_program_is_there_when_it_comes_to_it() {
        let window = 64 * MIB;
        for (rate, step) in [(5_000_000, 128 * KIB), (1_200_000, 8 * MIB), (20_000_000, MIB)] {
            let (read, fetched) = read_slowly(rate, step, window);
            assert!(fetched >= read && fetched <= read + window, "{fetched} for {read}");
        }
    }
}
