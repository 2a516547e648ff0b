//! Showing the metadata server what the targets have seen of its command log.
//!
//! Each target in a task of its own, and one at a time: a disk that hangs, or a target that fails,
//! holds up neither the other targets nor the heartbeats.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use millrace_types::{Failure, TargetId};
use tokio::{task::JoinSet, time::timeout};

/// Between two looks at how far the metadata server's log is.
const COMPARE: Duration = Duration::from_secs(10);

/// The tasks of all targets; they end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    targets: BTreeMap<TargetId, Comparison>,
    /// Raised when the server has forgotten what it was shown.
    round: u64,
}

#[derive(Debug, Default)]
struct Comparison {
    /// One task at most.
    task: JoinSet<Shown>,
    /// Which run of the server was shown this target's point last, and when.
    last: Option<(u64, Instant)>,
}

#[derive(Debug)]
struct Shown {
    round: u64,
    /// The run of the server.
    incarnation: Result<u64, Failure>,
}

impl Comparisons {
    /// There are these targets, perhaps besides others.
    pub(super) fn add(&mut self, targets: impl Iterator<Item = TargetId>) {
        for target in targets {
            self.targets.entry(target).or_default();
        }
    }

    /// The server has to be shown everything again; what is under way does not count.
    pub(super) fn forget(&mut self) {
        self.round += 1;
        self.targets.values_mut().for_each(|comparison| comparison.last = None);
    }

    /// Waits until what is under way has ended, and at most so long for targets that hang. What it
    /// came to does not count: it is shown once more.
    pub(super) async fn settle(&mut self, patience: Duration) {
        let all = join_all(self.targets.values_mut().map(Comparison::end));
        // Whoever is not done goes on beside the rest.
        drop(timeout(patience, all).await);
    }

    /// Begins to show what is due to this run of the server: once a run, and now and then. Where
    /// that failed, the next call tries again.
    pub(super) fn begin<F>(&mut self, incarnation: u64, now: Instant, show: impl Fn(TargetId) -> F)
    where
        F: Future<Output = Result<u64, Failure>> + Send + 'static,
    {
        let round = self.round;
        for (&target, comparison) in &mut self.targets {
            comparison.look(target, round, now);
            let is_due = comparison.last.is_none_or(|(known, at)| {
                known != incarnation || now.duration_since(at) >= COMPARE
            });
            if is_due && comparison.task.is_empty() {
                let shown = show(target);
                let work = async move { Shown { round, incarnation: shown.await } };
                drop(comparison.task.spawn(work));
            }
        }
    }
}

impl Comparison {
    async fn end(&mut self) {
        while self.task.join_next().await.is_some() {}
    }

    /// Takes what has ended.
    fn look(&mut self, target: TargetId, round: u64, now: Instant) {
        match self.task.try_join_next() {
            Some(Ok(Shown { round: of, incarnation: Ok(incarnation) })) if of == round => {
                self.last = Some((incarnation, now));
            }
            Some(Ok(Shown { incarnation: Err(failure), .. })) => {
                tracing::debug!(%target, %failure, "the command log cannot be compared");
            }
            // Of an earlier round, or a panic, which has been reported.
            _ => {}
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

    /// Which targets were asked, in order.
    type Asked = Arc<Mutex<Vec<TargetId>>>;

    fn show(asked: &Asked, target: TargetId) -> BoxFuture<'static, Result<u64, Failure>> {
        asked.lock().unwrap().push(target);
        match target {
            HANGS => future::pending().boxed(),
            FAILS => future::ready(Err(Failure::from(ErrorKind::Disk))).boxed(),
            _ => future::ready(Ok(1)).boxed(),
        }
    }

    fn of(targets: &[TargetId]) -> Comparisons {
        let mut comparisons = Comparisons::default();
        comparisons.add(targets.iter().copied());
        comparisons
    }

    /// Begins what is due, and lets all end that can; returns who was asked.
    async fn begin(comparisons: &mut Comparisons, now: Instant) -> Vec<TargetId> {
        let asked = Asked::default();
        comparisons.begin(1, now, |target| show(&asked, target));
        // On one thread, this goes to the end of the line.
        tokio::task::yield_now().await;
        asked.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn a_target_that_hangs_or_fails_holds_up_no_other() {
        let mut comparisons = of(&[HANGS, FAILS, WORKS]);
        let start = Instant::now();
        assert_eq!(begin(&mut comparisons, start).await, [HANGS, FAILS, WORKS]);
        assert_eq!(begin(&mut comparisons, start).await, [FAILS], "the first is never asked twice");
        assert_eq!(begin(&mut comparisons, start + COMPARE).await, [FAILS, WORKS]);
    }

    #[tokio::test]
    async fn a_target_whose_disk_came_later_is_asked_too() {
        let mut comparisons = of(&[WORKS]);
        let start = Instant::now();
        assert_eq!(begin(&mut comparisons, start).await, [WORKS]);
        comparisons.add([FAILS, WORKS].into_iter());
        assert_eq!(begin(&mut comparisons, start).await, [FAILS]);
    }

    #[tokio::test]
    async fn what_was_under_way_when_the_server_forgot_does_not_count() {
        let mut comparisons = of(&[WORKS]);
        let start = Instant::now();
        assert_eq!(begin(&mut comparisons, start).await, [WORKS]);
        comparisons.forget();
        assert_eq!(begin(&mut comparisons, start).await, [WORKS]);
        assert!(begin(&mut comparisons, start).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_waits_for_all_that_can_end_and_not_for_a_target_that_hangs() {
        let shown = |targets: &'static [TargetId]| async move {
            let ended = Arc::new(Mutex::new(Vec::new()));
            let mut comparisons = of(targets);
            comparisons.begin(1, Instant::now(), |target| {
                let ended = Arc::clone(&ended);
                async move {
                    match target {
                        HANGS => future::pending::<()>().await,
                        _ => tokio::time::sleep(Duration::from_millis(300)).await,
                    }
                    ended.lock().unwrap().push(target);
                    Ok(1)
                }
            });
            let began = tokio::time::Instant::now();
            comparisons.settle(Duration::from_secs(1)).await;
            (std::mem::take(&mut *ended.lock().unwrap()), began.elapsed().as_millis())
        };
        assert_eq!(shown(&[WORKS]).await, (vec![WORKS], 300));
        assert_eq!(shown(&[HANGS, WORKS]).await, (vec![WORKS], 1000));
    }
}
