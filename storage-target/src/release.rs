//! Makes room: drops bytes that their bucket has too before the target is full.
//!
//! ```text
//!   used > high ──┐
//!                 ├─▶ look through the index ──▶ the chunks used longest ago that are enough
//!   no space left ┘                                │ ask the metadata server, some at a time
//!                  until used < low ◀── drop ◀─────┘ (saved? written to? pinned?)
//! ```
//!
//! The target knows what is clean and when it was used; the metadata server knows whose file is
//! saved in its bucket, nobody writes to and nobody has pinned. Only what both allow goes. A file
//! whose bytes go is fetched again when somebody reads it.
//!
//! While the metadata server is away nothing is dropped. A change that finds no space has a round
//! begin and waits for it; it is refused only when that frees nothing, and nothing was removed
//! before ([`removed`]). A round that has not come to the end of all candidates is gone on with by
//! the next ([`sweep`]).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::release::{ASK_RELEASE_MAX, AskRelease};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ByteLen, ChunkKey, ErrorKind, Failure, TargetId};
use tokio::sync::{Notify, watch};

use crate::{
    cluster::Cluster,
    volume::{EngineError, Judge, Statistics, Volume},
};

mod judge;
mod oldest;
mod recency;
mod refused;
mod removed;
mod sweep;

use judge::MetadataJudge;
use oldest::{Candidate, Oldest};
use recency::Recency;
use removed::Removed;
use sweep::Sweep;

/// When bytes are dropped. Shares of what the target can hold, in percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watermarks {
    /// Above it dropping begins; 100: only when no space is left.
    pub(crate) high: u8,
    /// Down to it; at most [`LOW_MAX`].
    pub(crate) low: u8,
}

/// Above it, what a single write needs would not be free on the smallest target.
pub(crate) const LOW_MAX: u8 = 95;

/// Frees space of one target. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Releaser {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    volume: Arc<Volume>,
    watermarks: Watermarks,
    recency: Recency,
    /// Somebody found no space.
    wanted: Notify,
    /// Changes that wait for space.
    waiting: AtomicU32,
    progress: watch::Sender<Progress>,
    /// Who is asked, once the daemon is a member of its cluster.
    metadata: Arc<OnceLock<(Peer, Cluster)>>,
    released: AtomicU64,
    removed: Removed,
    /// Bytes that are being fetched and that nobody asked for.
    unasked: AtomicU64,
}

/// Room for bytes that are being fetched.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    unasked: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.unasked.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// How far the rounds are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    begun: u64,
    ended: u64,
    /// Bytes dropped in all of them.
    freed: u64,
    /// When the last one ended that dropped nothing, if no other has since.
    vain: Option<Instant>,
    /// When something was dropped last.
    made: Option<Instant>,
    /// Whether the last one ended before it had asked for all.
    unanswered: bool,
}

/// How often the use of the space is looked at without anybody asking.
const LOOK: Duration = Duration::from_secs(1);

/// How long a change waits for space. Rounds take milliseconds where the index is in memory; a long
/// one has dropped something before its end, or the next one goes on.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the metadata server may take for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long an answer counts that something may go. Whoever gives it knows of a rename, a pin or
/// another object a moment later, and a disk may hang for minutes between two chunks.
pub(crate) const ANSWER_COUNTS: Duration = Duration::from_secs(10);

/// What a round frees at least for who waits, so that not each write has to: a 16th of the target,
/// or so many bytes.
const ROUND_BYTES: u64 = 64 << 20;

/// How long one round looks for what may go.
const ROUND_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a change waits before it looks again whether what was dropped is free.
const QUARANTINE_PAUSE: Duration = Duration::from_millis(250);

/// After a round that freed nothing, the watermark alone begins no other one for so long, unless
/// that has only asked about some.
const VAIN: Duration = Duration::from_secs(60);

/// And no change waits for another one for so long: a target that is full of what nobody has saved
/// refuses at once. Much less than answers count, so that rounds for a change go on.
const VAIN_ASKED: Duration = Duration::from_secs(2);

impl Releaser {
    pub(crate) fn new(volume: Arc<Volume>, watermarks: Watermarks) -> Self {
        assert!(
            watermarks.low <= watermarks.high.min(LOW_MAX) && watermarks.high <= 100,
            "percent, in order"
        );
        let inner = Inner {
            volume,
            watermarks,
            recency: Recency::new(Instant::now()),
            wanted: Notify::new(),
            waiting: AtomicU32::new(0),
            progress: watch::Sender::new(Progress::default()),
            metadata: Arc::default(),
            released: AtomicU64::new(0),
            removed: Removed::default(),
            unasked: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A chunk is read or written.
    pub(crate) fn note_use(&self, chunk: ChunkKey) {
        self.inner.recency.note(chunk, Instant::now());
    }

    /// Space is short; nobody waits for it.
    pub(crate) fn ask(&self) {
        self.inner.wanted.notify_one();
    }

    /// Takes a place for bytes that nobody asked for yet, as long as the guard is there.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] when others would have to go for them.
    pub(crate) fn take_place(&self, bytes: u64) -> Result<Place<'_>, Failure> {
        let place = Place { unasked: &self.inner.unasked, bytes };
        let all = self.inner.unasked.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        let Statistics { used, free, .. } = self.inner.volume.statistics();
        let (used, free) = (used.0.saturating_add(all), free.0.saturating_sub(all));
        if is_short(self.inner.watermarks, ByteLen(used), ByteLen(free)) {
            let words = "the target has no room for what nobody asked for yet";
            return Err(Failure::new(ErrorKind::NoSpace, words));
        }
        Ok(place)
    }

    /// Waits until something was dropped, or what was is free, or what was removed a moment ago.
    /// May be dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] when there is nothing that may go; [`ErrorKind::Unavailable`] when
    /// nobody can be asked now.
    pub(crate) async fn make_room(&self) -> Result<(), Failure> {
        let Err(refusal) = self.drop_saved().await else { return Ok(()) };
        match self.free_removed().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refusal),
            Err(error) => {
                tracing::debug!(target = %self.target(), %error, "nothing is freed at once");
                Err(refusal)
            }
        }
    }

    /// Waits until something was dropped that the bucket has too, or what was is free.
    async fn drop_saved(&self) -> Result<(), Failure> {
        let full = || Failure::from(EngineError::NoSpace);
        let mut progress = self.inner.progress.subscribe();
        let before = *progress.borrow();
        let Statistics { space, used, free, .. } = self.inner.volume.statistics();
        if !is_short(self.inner.watermarks, used, free) {
            // Room was made meanwhile, or is when no reader looks any more at what was dropped.
            if space.quarantined == 0 && !before.has_made_room(VAIN_ASKED) {
                return Err(full());
            }
            tokio::time::sleep(QUARANTINE_PAUSE).await;
            return Ok(());
        }
        if self.inner.metadata.get().is_none() || space.clean == 0 {
            return Err(full());
        }
        if before.is_vain(VAIN_ASKED) {
            return Err(before.refusal());
        }
        let _waiting = Waiting::begin(&self.inner.waiting);
        self.ask();
        // A round that is under way answers too if it was in vain: no other begins at once.
        let made = progress.wait_for(|now| {
            let over = now.ended > before.begun || (now.ended > before.ended && now.vain.is_some());
            now.freed > before.freed || over
        });
        match tokio::time::timeout(PATIENCE, made).await {
            Ok(Ok(now)) if now.freed > before.freed || now.is_settled() => Ok(()),
            Ok(Ok(now)) => Err(now.refusal()),
            Ok(Err(_)) => Err(full()),
            Err(_) => Err(unanswered()),
        }
    }

    /// Who says whether damaged bytes of the target may go. Asks whom this does, and holds nothing
    /// of the volume.
    pub(crate) fn judge(&self) -> Arc<dyn Judge> {
        Arc::new(MetadataJudge::new(Arc::clone(&self.inner.metadata)))
    }

    /// Bytes dropped since the start.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.inner.released.load(Ordering::Relaxed)
    }

    /// Makes room whenever it is due, until it is dropped.
    pub(crate) async fn run(self, metadata: Peer, cluster: Cluster) {
        assert!(self.inner.metadata.set((metadata, cluster)).is_ok(), "it runs once");
        let mut sweep = Sweep::default();
        let (mut warned, mut goes_on) = (false, false);
        loop {
            drop(tokio::time::timeout(LOOK, self.inner.wanted.notified()).await);
            let asked = self.inner.waiting.load(Ordering::Acquire) > 0;
            let before = *self.inner.progress.borrow();
            let pauses = before.is_vain(if asked || goes_on { VAIN_ASKED } else { VAIN });
            if pauses {
                continue;
            }
            let Some(goal) = self.goal(asked) else {
                // Whoever waits looks again: others have made room.
                if asked {
                    self.end_round(None, false);
                }
                continue;
            };
            self.inner.progress.send_modify(|progress| progress.begun += 1);
            let target = self.target();
            let outcome = self.round(goal, asked, &mut sweep).await;
            if let Err(error) = &outcome {
                tracing::warn!(%target, %error, "no room is made now");
            }
            let freed = self.inner.progress.borrow().freed - before.freed;
            if freed > 0 {
                tracing::info!(%target, bytes = freed, asked, "dropped what the bucket has too");
                warned = false;
            } else if matches!(outcome, Ok(Looked::AtAll)) && !warned {
                tracing::warn!(%target, "the target is nearly full, and nothing of it may go");
                warned = true;
            }
            goes_on = matches!(outcome, Ok(Looked::AtSome));
            let vain = (freed == 0).then(Instant::now);
            self.end_round(vain, !matches!(outcome, Ok(Looked::AtAll)));
        }
    }

    fn end_round(&self, vain: Option<Instant>, unanswered: bool) {
        self.inner.progress.send_modify(|progress| {
            progress.ended += 1;
            progress.begun = progress.ended;
            (progress.vain, progress.unanswered) = (vain, unanswered);
        });
    }

    /// How many bytes to drop now, if any.
    fn goal(&self, asked: bool) -> Option<ByteLen> {
        let Statistics { used, free, space, .. } = self.inner.volume.statistics();
        if space.clean == 0 {
            return None;
        }
        due(self.inner.watermarks, used, free, asked)
    }

    /// Drops `goal` bytes, if so many may go. Goes on where the last round has ended.
    async fn round(
        &self,
        goal: ByteLen,
        asked: bool,
        sweep: &mut Sweep,
    ) -> Result<Looked, RoundError> {
        let deadline = Instant::now() + ROUND_TIME_MAX;
        sweep.resume(Instant::now());
        let (mut left, mut wanted) = (goal.0, goal.0);
        while Instant::now() < deadline {
            let begun = Instant::now();
            let oldest = self.look(ByteLen(wanted), sweep).await?;
            let (has_all, candidates) = (oldest.has_all(), oldest.into_sorted());
            // A look that took long is worth as much time for questions.
            let until = deadline.max(Instant::now() + begun.elapsed());
            for batch in candidates.chunks(ASK_RELEASE_MAX) {
                left = left.saturating_sub(self.drop_batch(batch, asked, sweep).await?);
                if left == 0 {
                    sweep.begin_again();
                    return Ok(Looked::AtAll);
                }
                if Instant::now() >= until {
                    return Ok(Looked::AtSome);
                }
            }
            // Otherwise what an earlier round was refused may go by now.
            if has_all && (sweep.end(Instant::now()) || left < goal.0) {
                return Ok(Looked::AtAll);
            }
            // Where much may not go, fewer looks show more.
            wanted = wanted.saturating_mul(2);
        }
        Ok(Looked::AtSome)
    }

    /// The chunks ahead that were used longest ago and make so many bytes together.
    async fn look(&self, wanted: ByteLen, sweep: &Sweep) -> Result<Oldest, EngineError> {
        let mut oldest = Oldest::new(wanted);
        let mut from = None;
        loop {
            let page = self.inner.volume.clean_chunks(from).await?;
            for (chunk, bytes) in page.chunks {
                let candidate = Candidate { used: self.inner.recency.of(chunk), chunk, bytes };
                if sweep.is_ahead(&candidate) {
                    oldest.push(candidate);
                }
            }
            if page.next.is_none() {
                return Ok(oldest);
            }
            from = page.next;
            // Requests come first.
            tokio::task::yield_now().await;
        }
    }

    /// Drops what of these may go; returns the bytes.
    async fn drop_batch(
        &self,
        batch: &[Candidate],
        asked: bool,
        sweep: &mut Sweep,
    ) -> Result<u64, RoundError> {
        let Some((metadata, cluster)) = self.inner.metadata.get() else { return Ok(0) };
        cluster.check_may_write()?;
        let contents = batch.iter().map(Candidate::content).collect();
        let request = AskRelease { contents };
        let asked_at = Instant::now();
        let reply = metadata.call(&request, CallOptions::control(ANSWER)).await?;
        let mut freed = 0;
        for Candidate { used, chunk, .. } in sweep.pass(batch, &reply.answers, Instant::now()) {
            // Somebody has come back to it; but a write comes first.
            if !asked && self.inner.recency.of(chunk) != used {
                continue;
            }
            let Some(bytes) = self.drop_clean(chunk, asked_at).await? else { break };
            self.inner.recency.forget(chunk);
            self.inner.released.fetch_add(bytes, Ordering::Relaxed);
            self.inner.progress.send_modify(|progress| {
                progress.freed += bytes;
                progress.made = Some(Instant::now());
            });
            freed += bytes;
        }
        if freed > 0 {
            // What was dropped is free when that is durable.
            self.inner.volume.sync().await?;
        }
        Ok(freed)
    }

    /// Drops what is clean of a chunk that may go by what was asked then; returns the bytes, or
    /// `None` if its turn came when that did not count any more. The caller syncs.
    ///
    /// # Errors
    /// As [`Volume::release`].
    pub(crate) async fn drop_clean(
        &self,
        chunk: ChunkKey,
        asked_at: Instant,
    ) -> Result<Option<u64>, EngineError> {
        let counts = move || asked_at.elapsed() < ANSWER_COUNTS;
        let bytes = self.inner.volume.release_readable_while(chunk, counts).await?.0;
        Ok((bytes > 0 || counts()).then_some(bytes))
    }

    fn target(&self) -> TargetId {
        self.inner.volume.target()
    }
}

impl Progress {
    /// Whether the last round dropped nothing, and that is not longer ago.
    fn is_vain(&self, within: Duration) -> bool {
        self.vain.is_some_and(|ended| ended.elapsed() < within)
    }

    /// Whether the last round found that there is room.
    fn is_settled(&self) -> bool {
        self.vain.is_none() && !self.unanswered
    }

    /// Whether something was dropped, not longer ago.
    fn has_made_room(&self, within: Duration) -> bool {
        self.made.is_some_and(|made| made.elapsed() < within)
    }

    /// What a change is told for which nothing was dropped.
    fn refusal(&self) -> Failure {
        if self.unanswered { unanswered() } else { EngineError::NoSpace.into() }
    }
}

fn unanswered() -> Failure {
    let words = "the target is full, and nobody says what of it may go";
    Failure::new(ErrorKind::Unavailable, words).retry_after(VAIN_ASKED)
}

/// How much of the target a round has looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looked {
    /// As much as was needed, or all.
    AtAll,
    /// It took too long: the next goes on.
    AtSome,
}

/// Why a round ends early.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Metadata(#[from] Failure),
}

/// How many bytes are to be dropped, if any, where `used` are in use and `free` can still be had.
fn due(watermarks: Watermarks, used: ByteLen, free: ByteLen, asked: bool) -> Option<ByteLen> {
    let mark = if asked { watermarks.low } else { watermarks.high };
    if used.0 <= share(mark, used, free) {
        return None;
    }
    let least = if asked { ROUND_BYTES.min((used.0 + free.0) / 16) } else { 1 };
    let goal = used.0.saturating_sub(share(watermarks.low, used, free));
    Some(ByteLen(goal.max(least)))
}

/// Whether there is so little room that dropping helps who found none.
fn is_short(watermarks: Watermarks, used: ByteLen, free: ByteLen) -> bool {
    used.0 > share(watermarks.low, used, free)
}

fn share(percent: u8, used: ByteLen, free: ByteLen) -> u64 {
    let all = u128::from(used.0) + u128::from(free.0);
    u64::try_from(all * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// A change waits for space as long as this is there.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_above_the_high_mark_down_to_the_low_one_and_when_asked() {
        let marks = Watermarks { high: 90, low: 80 };
        let goal = |used, asked| due(marks, ByteLen(used), ByteLen(1000 - used), asked);
        assert_eq!(goal(900, false), None);
        assert_eq!(goal(901, false), Some(ByteLen(101)));
        assert_eq!(goal(100, false), None);
        assert_eq!(goal(800, true), None, "there is room");
        assert_eq!(goal(810, true), Some(ByteLen(62)), "a round is worth its while");
        assert_eq!(goal(1000, true), Some(ByteLen(200)));
        let only_asked = Watermarks { high: 100, low: 95 };
        assert_eq!(due(only_asked, ByteLen(100), ByteLen(0), false), None);
        assert_eq!(due(only_asked, ByteLen(100), ByteLen(0), true), Some(ByteLen(6)));
    }
}
