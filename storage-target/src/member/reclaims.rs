//! Working off the targets' reclaim queues.
//!
//! Each target in a task of its own, and one at a time: behind a disk that hangs, or a target that
//! fails, the others get their space back. Nor is a target asked about all the time whose queue is
//! empty, while that of another one waits.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use millrace_types::{Failure, TargetId};
use tokio::task::JoinSet;

/// How long a target whose queue was empty is left alone.
const REST: Duration = Duration::from_secs(10);

/// The tasks of all targets; they end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    targets: BTreeMap<TargetId, Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// One task at most; it tells whether the queue was empty.
    task: JoinSet<bool>,
    /// When that was seen to have been so.
    empty: Option<Instant>,
}

impl Reclaims {
    /// Begins to work off the queues of these targets, as far as nobody is at it. Where that fails,
    /// the next call tries again. What is called tells whether there was anything to do.
    pub(super) fn begin<F>(
        &mut self,
        targets: impl Iterator<Item = TargetId>,
        now: Instant,
        reclaim: impl Fn(TargetId) -> F,
    ) where
        F: Future<Output = Result<bool, Failure>> + Send + 'static,
    {
        for target in targets {
            let Queue { task, empty } = self.targets.entry(target).or_default();
            // A panic has been reported.
            while let Some(ended) = task.try_join_next() {
                *empty = ended.unwrap_or(false).then_some(now);
            }
            let rests = empty.is_some_and(|at| now.duration_since(at) < REST);
            if task.is_empty() && !rests {
                let reclaimed = reclaim(target);
                drop(task.spawn(async move {
                    match reclaimed.await {
                        Ok(found) => !found,
                        Err(failure) => {
                            tracing::warn!(%target, %failure, "reclaiming is put off");
                            false
                        }
                    }
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::future::{self, BoxFuture, FutureExt};
    use millrace_types::ErrorKind;

    use super::*;

    const HANGS: TargetId = TargetId([1; 8]);
    const FAILS: TargetId = TargetId([2; 8]);
    const WORKS: TargetId = TargetId([3; 8]);
    const EMPTY: TargetId = TargetId([4; 8]);

    /// Which targets' queues were looked at, in order.
    type Asked = Arc<Mutex<Vec<TargetId>>>;

    fn reclaim(asked: &Asked, target: TargetId) -> BoxFuture<'static, Result<bool, Failure>> {
        asked.lock().unwrap().push(target);
        match target {
            HANGS => future::pending().boxed(),
            FAILS => future::ready(Err(Failure::from(ErrorKind::Disk))).boxed(),
            _ => future::ready(Ok(target != EMPTY)).boxed(),
        }
    }

    /// Begins what is due, and lets all end that can; returns who was asked.
    async fn begin(reclaims: &mut Reclaims, targets: &[TargetId]) -> Vec<TargetId> {
        begin_at(reclaims, targets, Instant::now()).await
    }

    async fn begin_at(
        reclaims: &mut Reclaims,
        targets: &[TargetId],
        now: Instant,
    ) -> Vec<TargetId> {
        let asked = Asked::default();
        reclaims.begin(targets.iter().copied(), now, |target| reclaim(&asked, target));
        // On one thread, this goes to the end of the line.
        tokio::task::yield_now().await;
        asked.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn a_target_that_hangs_or_fails_holds_up_no_other() {
        let mut reclaims = Reclaims::default();
        assert_eq!(begin(&mut reclaims, &[HANGS, FAILS]).await, [HANGS, FAILS]);
        let all = [HANGS, FAILS, WORKS];
        assert_eq!(begin(&mut reclaims, &all).await, [FAILS, WORKS], "one came later");
        assert_eq!(begin(&mut reclaims, &all).await, [FAILS, WORKS]);
    }

    #[tokio::test]
    async fn a_target_whose_queue_is_empty_is_left_alone_for_a_while() {
        let mut reclaims = Reclaims::default();
        let (both, start) = ([WORKS, EMPTY], Instant::now());
        assert_eq!(begin_at(&mut reclaims, &both, start).await, both);
        assert_eq!(begin_at(&mut reclaims, &both, start).await, [WORKS]);
        assert_eq!(begin_at(&mut reclaims, &both, start + REST).await, both);
    }
}
