//! Whether damaged bytes could be had again if they were dropped.
//!
//! Clean bytes are those that a bucket had too when they came from there, or went there. Since then
//! the object may have been replaced or deleted, the file renamed, or its own version kept in a
//! conflict: then what is here is all there is, and the sound pages around a damaged one are worth
//! keeping. The metadata server knows, so it is asked before anything is dropped because of damage.
//!
//! Nobody holds blocks or sections while it is asked, so what is dropped is looked at again after
//! the answer. As long as there is none everything is kept, and a server that says nothing is not
//! asked about each section: a pass of the scrub would stand still.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use millrace_protocol::target::ContentName;
use millrace_runtime::Clock;

use super::Volume;

/// After a question that nobody has answered there is no other one for so long.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// How long an answer counts: as long as one that something may go to make room.
pub(super) const ANSWER_COUNTS: Duration = Duration::from_secs(10);

/// Who knows what a bucket still has.
pub trait Judge: Send + Sync + fmt::Debug {
    /// Whether the clean bytes of a content may be dropped and be had again. `None`: nobody can
    /// tell at present. It answers within seconds, and may be dropped at its await.
    fn is_saved(&self, content: ContentName) -> BoxFuture<'_, Option<bool>>;
}

/// What is known of a content's clean bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// They can be had again, by what was asked at that moment.
    Saved(Instant),
    /// They cannot, or nobody would promise it.
    Unsaved,
    /// Nobody has answered.
    Unknown,
}

/// The judge of a target, once it has one. Outlives the volume's being opened again.
#[derive(Debug, Default)]
pub(super) struct Judging {
    judge: OnceLock<Arc<dyn Judge>>,
    /// When the last question was given up, if it was not answered.
    unanswered: Mutex<Option<Instant>>,
}

impl Volume {
    /// Says who is asked before damaged clean bytes are dropped; the first one stays. Without one
    /// they are kept and listed.
    pub fn set_judge(&self, judge: Arc<dyn Judge>) {
        drop(self.shared().judging.judge.set(judge));
    }
}

impl Judging {
    /// Asks what is known of a content. The caller holds no blocks and no sections.
    pub(super) async fn ask(&self, content: ContentName, clock: &Clock) -> Verdict {
        let asked = clock.now();
        let silent = self.unanswered().is_some_and(|since| asked.duration_since(since) < SILENCE);
        let Some(judge) = self.judge.get().filter(|_| !silent) else { return Verdict::Unknown };
        let answer = judge.is_saved(content).await;
        *self.unanswered() = answer.is_none().then(|| clock.now());
        match answer {
            Some(true) => Verdict::Saved(asked),
            Some(false) => Verdict::Unsaved,
            None => Verdict::Unknown,
        }
    }

    /// A panic elsewhere leaves it whole: it is one value.
    fn unanswered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
