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
//! begin and waits for it; it is refused only when that frees nothing.

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::{
    release::{ASK_RELEASE_MAX, AskRelease, ReleaseAnswer},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ByteLen, ChunkKey, Failure, TargetId};
use tokio::sync::{Notify, watch};

use crate::{
    cluster::Cluster,
    volume::{EngineError, Statistics, Volume},
};

mod oldest;
mod recency;

use oldest::{Candidate, Oldest};
use recency::Recency;

/// When bytes are dropped. Shares of what the target can hold, in percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watermarks {
    /// Above it dropping begins; 100: only when no space is left.
    pub(crate) high: u8,
    /// Down to it.
    pub(crate) low: u8,
}

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
    progress: watch::Sender<Progress>,
    /// Who is asked, once the daemon is a member of its cluster.
    metadata: OnceLock<(Peer, Cluster)>,
    released: AtomicU64,
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
}

/// How often the use of the space is looked at without anybody asking.
const LOOK: Duration = Duration::from_secs(1);

/// How long a change waits for space. Rounds take milliseconds where the index is in memory; a long
/// one has dropped something before its end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the metadata server may take for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// What a round frees at least, so that who waits for space does not wait for each write.
const ROUND_BYTES_MIN: u64 = 64 << 20;

/// Looks through the index in one round: what the metadata server refuses is replaced by others.
const LOOKS_MAX: usize = 4;

/// Contents remembered as refused in one round.
const REFUSED_MAX: usize = 1 << 20;

/// After a round that freed nothing, the watermark alone begins no other one for so long.
const VAIN: Duration = Duration::from_secs(60);

/// And no change waits for another one for so long: a target that is full of what nobody has saved
/// refuses at once.
const VAIN_ASKED: Duration = Duration::from_secs(2);

impl Releaser {
    pub(crate) fn new(volume: Arc<Volume>, watermarks: Watermarks) -> Self {
        assert!(watermarks.low <= watermarks.high && watermarks.high <= 100, "percent, in order");
        let inner = Inner {
            volume,
            watermarks,
            recency: Recency::new(Instant::now()),
            wanted: Notify::new(),
            progress: watch::Sender::new(Progress::default()),
            metadata: OnceLock::new(),
            released: AtomicU64::new(0),
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

    /// Waits until something was dropped. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::NoSpace`] when there is nothing that may go, or nobody to ask.
    pub(crate) async fn make_room(&self) -> Result<(), EngineError> {
        let mut progress = self.inner.progress.subscribe();
        let before = *progress.borrow();
        let alone = self.inner.metadata.get().is_none();
        if alone || before.is_vain(VAIN_ASKED) || self.inner.volume.statistics().space.clean == 0 {
            return Err(EngineError::NoSpace);
        }
        self.ask();
        // A round that is under way answers too: after one in vain no other begins at once.
        let made = progress.wait_for(|now| now.freed > before.freed || now.ended > before.ended);
        match tokio::time::timeout(PATIENCE, made).await {
            Ok(Ok(now)) if now.freed > before.freed => Ok(()),
            _ => Err(EngineError::NoSpace),
        }
    }

    /// Bytes dropped since the start.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.inner.released.load(Ordering::Relaxed)
    }

    /// Makes room whenever it is due, until it is dropped.
    pub(crate) async fn run(self, metadata: Peer, cluster: Cluster) {
        assert!(self.inner.metadata.set((metadata, cluster)).is_ok(), "it runs once");
        loop {
            let asked = tokio::time::timeout(LOOK, self.inner.wanted.notified()).await.is_ok();
            let before = *self.inner.progress.borrow();
            let pauses = before.is_vain(if asked { VAIN_ASKED } else { VAIN });
            let Some(goal) = self.goal(asked).filter(|_| !pauses) else { continue };
            self.inner.progress.send_modify(|progress| progress.begun += 1);
            let target = self.target();
            if let Err(error) = self.round(goal).await {
                tracing::warn!(%target, %error, "no room is made now");
            }
            let freed = self.inner.progress.borrow().freed - before.freed;
            if freed > 0 {
                tracing::info!(%target, bytes = freed, asked, "dropped what the bucket has too");
            } else if !before.is_vain(VAIN) {
                tracing::warn!(%target, "the target is nearly full, and nothing of it may go");
            }
            self.inner.progress.send_modify(|progress| {
                progress.ended = progress.begun;
                progress.vain = (freed == 0).then(Instant::now);
            });
        }
    }

    /// How many bytes to drop now, if any.
    fn goal(&self, asked: bool) -> Option<ByteLen> {
        let Statistics { used, free, .. } = self.inner.volume.statistics();
        due(self.inner.watermarks, used, free, asked)
    }

    async fn round(&self, goal: ByteLen) -> Result<(), RoundError> {
        let mut left = goal.0;
        let mut refused = HashSet::new();
        for _ in 0..LOOKS_MAX {
            let candidates = self.look(ByteLen(left), &refused).await?;
            if candidates.is_empty() {
                return Ok(());
            }
            for batch in candidates.chunks(ASK_RELEASE_MAX) {
                let freed = self.drop_batch(batch, &mut refused).await?;
                left = left.saturating_sub(freed);
                if left == 0 {
                    return Ok(());
                }
            }
            if refused.len() >= REFUSED_MAX {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The chunks used longest ago that make so many bytes together.
    async fn look(
        &self,
        wanted: ByteLen,
        refused: &HashSet<ContentName>,
    ) -> Result<Vec<Candidate>, EngineError> {
        let mut oldest = Oldest::new(wanted);
        let mut from = None;
        loop {
            let page = self.inner.volume.clean_chunks(from).await?;
            for (chunk, bytes) in page.chunks {
                if !refused.contains(&content_of(chunk)) {
                    let used = self.inner.recency.of(chunk);
                    oldest.push(Candidate { used, chunk, bytes });
                }
            }
            if page.next.is_none() {
                return Ok(oldest.into_sorted());
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
        refused: &mut HashSet<ContentName>,
    ) -> Result<u64, RoundError> {
        let Some((metadata, cluster)) = self.inner.metadata.get() else { return Ok(0) };
        cluster.check_may_write()?;
        let contents = batch.iter().map(|candidate| content_of(candidate.chunk)).collect();
        let request = AskRelease { contents };
        let reply = metadata.call(&request, CallOptions::control(ANSWER)).await?;
        let mut freed = 0;
        for (candidate, answer) in batch.iter().zip(reply.answers) {
            let chunk = candidate.chunk;
            if answer != ReleaseAnswer::MayGo {
                refused.insert(content_of(chunk));
                continue;
            }
            // Somebody has come back to it.
            if self.inner.recency.of(chunk) != candidate.used {
                continue;
            }
            freed += self.inner.volume.release(chunk).await?.0;
            self.inner.recency.forget(chunk);
        }
        // What was dropped is free when that is durable.
        self.inner.volume.sync().await?;
        self.inner.released.fetch_add(freed, Ordering::Relaxed);
        self.inner.progress.send_modify(|progress| progress.freed += freed);
        Ok(freed)
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
    let all = u128::from(used.0) + u128::from(free.0);
    let share = |percent: u8| u64::try_from(all * u128::from(percent) / 100).unwrap_or(u64::MAX);
    if used.0 <= share(watermarks.high) && !asked {
        return None;
    }
    let least = if asked { ROUND_BYTES_MIN.min(used.0) } else { 1 };
    Some(ByteLen(used.0.saturating_sub(share(watermarks.low)).max(least)))
}

fn content_of(chunk: ChunkKey) -> ContentName {
    ContentName { inode: chunk.inode, generation: chunk.generation }
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
        assert_eq!(goal(100, true), Some(ByteLen(100)), "no more than there is");
        assert_eq!(goal(1000, true), Some(ByteLen(1000)), "a round is worth its while");
        let full = due(marks, ByteLen(1 << 40), ByteLen(0), true);
        assert_eq!(full, Some(ByteLen((1 << 40) - (1 << 40) * 80 / 100)));
        let only_asked = Watermarks { high: 100, low: 100 };
        assert_eq!(due(only_asked, ByteLen(10), ByteLen(0), false), None);
    }
}
