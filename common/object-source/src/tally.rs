//! What one piece of work asked buckets: counted beside the counters of each bucket, in whatever
//! tasks the work runs.

use std::{future::Future, sync::Arc};

use tokio::task::futures::TaskLocalFuture;

use crate::Counters;

tokio::task_local! {
    static PRESENT: Option<Tally>;
}

/// Counts the requests of the work that it is given to. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Counters>);

impl Tally {
    /// The tally of the work that this task does, if it has one.
    #[must_use]
    pub fn present() -> Option<Self> {
        PRESENT.try_with(Clone::clone).ok().flatten()
    }

    /// Has requests of `work` counted here, besides those of tasks that it starts.
    pub fn scope<F: Future>(self, work: F) -> TaskLocalFuture<Option<Self>, F> {
        PRESENT.scope(Some(self), work)
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0
    }
}

/// Has requests of `work`, which another task will run, counted where this task's are.
pub fn tallied<F: Future>(work: F) -> TaskLocalFuture<Option<Tally>, F> {
    PRESENT.scope(Tally::present(), work)
}

/// Counts for the work that this task does.
pub(crate) fn note(count: impl Fn(&Counters)) {
    if let Some(Tally(counters)) = Tally::present() {
        count(&counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestClass;

    #[tokio::test]
    async fn work_is_counted_in_the_tasks_that_are_told_and_in_no_others() {
        let (tally, bucket) = (Tally::default(), Arc::new(Counters::default()));
        bucket.count(RequestClass::Get);
        let counters = Arc::clone(&bucket);
        let work = async move {
            counters.count(RequestClass::List);
            counters.fail();
            let own = Arc::clone(&counters);
            let told = tokio::spawn(tallied(async move {
                own.count(RequestClass::Head);
                own.receive(7);
            }));
            told.await.unwrap();
            tokio::spawn(async move { counters.count(RequestClass::Put) }).await.unwrap();
        };
        tally.clone().scope(work).await;
        assert!(Tally::present().is_none());
        assert_eq!(bucket.by_class(), [1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(tally.counters().by_class(), [1, 1, 0, 0, 0, 0, 0]);
        assert_eq!((tally.counters().failures(), tally.counters().bytes_received()), (1, 7));
        // Work without a tally has tasks without one.
        tallied(async { bucket.count(RequestClass::Get) }).await;
        assert_eq!(bucket.requests(RequestClass::Get), 2);
    }
}
