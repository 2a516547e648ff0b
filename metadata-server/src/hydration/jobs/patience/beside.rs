//! Looks at buckets beside the work of a job: at those of what takes long, and at those that are
//! away, whether anything waits for them or not.

use std::{convert::Infallible, time::Duration};

use futures::future::join_all;
use millrace_types::{ErrorKind, InodeId};
use tokio::time::Instant;

use super::{Context, Environment, Known, Looked, Patience, standing::Waits};

/// How long something may take before its buckets are looked at beside it. A bucket that refuses
/// fails what asks it at once; one that says nothing keeps it for minutes, and so long nobody would
/// hear of it. Most requests of a job take some seconds at the most, and 64 MiB of a slow one so
/// long.
const LOOK_AFTER: Duration = Duration::from_secs(30);

/// The pause before a second look: nothing has failed yet, and one answer that is late for ten
/// seconds is no reason to stop what may be well.
const SECOND_LOOK: Duration = Duration::from_secs(10);

/// How often what is due is looked for, which costs nothing.
const TICK: Duration = Duration::from_secs(1);

impl<E: Environment> Context<'_, E> {
    /// Does something with inodes, and looks at their buckets meanwhile if that takes long: it goes
    /// on, but nothing is begun beside it while one is away, and that is told.
    pub(in super::super) async fn watched<T>(
        &self,
        ids: &[InodeId],
        work: impl Future<Output = T>,
    ) -> T {
        let Some(patience) = self.patience else { return work.await };
        tokio::select! {
            biased;
            done = work => done,
            never = Box::pin(self.watch(patience, ids)) => match never {},
        }
    }

    async fn watch(&self, patience: &Patience, ids: &[InodeId]) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_AFTER).await;
            let mut needed = Vec::new();
            for &id in ids {
                for bucket in self.needed(id).await {
                    if !needed.contains(&bucket) {
                        needed.push(bucket);
                    }
                }
            }
            let known: Vec<_> =
                needed.iter().filter_map(|bucket| self.entered(patience, bucket)).collect();
            join_all(known.iter().map(|known| known.glance(|pause| self.jitter(pause)))).await;
        }
    }
}

impl Patience {
    /// Looks at buckets that are away when it is due, until they answer. What found one so may have
    /// ended meanwhile, and nothing else may need it for hours.
    pub(in super::super) async fn look_for_ever(
        &self,
        jitter: impl Fn(Duration) -> Duration + Copy,
    ) -> Infallible {
        loop {
            tokio::time::sleep(TICK).await;
            let known: Vec<_> = self.known().values().cloned().collect();
            join_all(known.iter().map(|known| known.look_when_due(jitter))).await;
        }
    }
}

impl Known {
    /// Looks at a bucket of which nothing is known to have failed, unless somebody has a moment
    /// ago. It is away when it is so twice; one that says *later* answers.
    async fn glance(&self, jitter: impl Fn(Duration) -> Duration) {
        let Ok(_look) = self.look.try_lock() else { return };
        let lately = Instant::now().checked_sub(LOOK_AFTER / 2);
        if !self.standing().is_fair() || lately.is_some_and(|then| self.standing().answers(then)) {
            return;
        }
        let is_answer = |looked: &Looked| {
            looked.found.as_ref().err().is_none_or(|failure| failure.kind == ErrorKind::Busy)
        };
        let mut looked = self.look_now().await;
        if !is_answer(&looked) {
            tokio::time::sleep(SECOND_LOOK).await;
            looked = self.look_now().await;
        }
        if is_answer(&looked) {
            looked.found = Ok(());
        }
        self.note(looked, Waits::Somebody, jitter);
    }

    async fn look_when_due(&self, jitter: impl Fn(Duration) -> Duration) {
        let is_due = self.standing().due().is_some_and(|due| due <= Instant::now());
        if is_due && let Ok(_look) = self.look.try_lock() {
            let looked = self.look_now().await;
            self.note(looked, Waits::Nobody, jitter);
        }
    }
}
