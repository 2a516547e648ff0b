//! The turns of those that must not work beside each other: export jobs, release jobs, what links
//! export by themselves, and deletions. Each link has one.
//!
//! Whoever works takes the turns of all links that it touches together: who waits for one has none
//! yet, so that no two wait for each other. Of those that want the same, who came first comes
//! first.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

pub(super) use self::claim::{Claim, Claims};

mod claim;

/// Of each link one has the turn at a time. Jobs come before what happens by itself, which gives
/// the turn back as soon as one wants it.
#[derive(Debug, Default)]
pub(super) struct Alone {
    table: Mutex<Table>,
    /// Told whenever one has given its turns back, or waits no longer.
    ended: Notify,
    /// Told whenever a job has to wait.
    wanted: Notify,
}

/// Those who have turns, and those who wait for some.
#[derive(Debug, Default)]
struct Table {
    last: u64,
    /// In the order in which they came.
    all: BTreeMap<u64, Party>,
}

#[derive(Debug)]
struct Party {
    claim: Arc<Claim>,
    is_job: bool,
    waits: bool,
}

/// The turns of all links of a claim, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    alone: &'a Alone,
    number: u64,
    claim: Arc<Claim>,
}

impl Alone {
    /// Waits for the turns, for a job. May be dropped at its await.
    pub(super) async fn take(&self, claim: Arc<Claim>) -> Turn<'_> {
        self.wait(claim, true).await
    }

    /// Waits for the turns, for what happens by itself. May be dropped at its await.
    pub(super) async fn take_last(&self, claim: Arc<Claim>) -> Turn<'_> {
        self.wait(claim, false).await
    }

    /// Waits until a job has to wait. For one who has turns that it would give back.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    async fn wait(&self, claim: Arc<Claim>, is_job: bool) -> Turn<'_> {
        let number = self.table().enter(Arc::clone(&claim), is_job);
        let turn = Turn { alone: self, number, claim };
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // From here on no end is missed.
            ended.as_mut().enable();
            if self.table().begin(number) {
                return turn;
            }
            if is_job {
                self.wanted.notify_one();
            }
            ended.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// The links whose turns these are.
    pub(super) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// Whether a job waits for any of them.
    pub(super) fn is_wanted(&self) -> bool {
        let table = self.alone.table();
        let mut later = table.all.range(self.number + 1..);
        later.any(|(_, party)| party.is_job && party.waits && party.claim.meets(&self.claim))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.alone.table().all.remove(&self.number);
        self.alone.ended.notify_waiters();
    }
}

impl Table {
    /// One more waits.
    fn enter(&mut self, claim: Arc<Claim>, is_job: bool) -> u64 {
        self.last += 1;
        self.all.insert(self.last, Party { claim, is_job, waits: true });
        self.last
    }

    /// Lets one who waits have its turns, if nobody who came before has or wants any of them.
    fn begin(&mut self, number: u64) -> bool {
        let Some(own) = self.all.get(&number) else { return false };
        let mut before = self.all.range(..number);
        if before.any(|(_, party)| party.claim.meets(&own.claim)) {
            return false;
        }
        if let Some(own) = self.all.get_mut(&number) {
            own.waits = false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_has_the_turn_and_who_has_it_learns_that_a_job_waits() {
        let alone = Alone::default();
        let claim = || Claim::of(&[(1, "s3://b/one/")]);
        let turn = alone.take_last(claim()).await;
        assert!(!turn.is_wanted());
        {
            let mut job = pin!(alone.take(claim()));
            assert!(futures::poll!(&mut job).is_pending());
            assert!(turn.is_wanted());
            assert!(alone.wanted().now_or_never().is_some());
        }
        assert!(!turn.is_wanted(), "it was given up");
        drop(turn);
        let job = alone.take(claim()).await;
        assert!(futures::poll!(pin!(alone.take_last(claim()))).is_pending());
        assert!(!job.is_wanted(), "only what happens by itself waits");
        drop(job);
        assert!(alone.table().all.is_empty());
    }

    #[tokio::test]
    async fn links_have_turns_of_their_own_and_who_needs_several_has_all_or_none() {
        let alone = Alone::default();
        let [one, two] = [Claim::of(&[(1, "s3://b/1/")]), Claim::of(&[(2, "s3://b/2/")])];
        let both = Claim::of(&[(1, "s3://b/1/"), (2, "s3://b/2/")]);
        let first = alone.take(Arc::clone(&one)).await;
        let second = alone.take_last(Arc::clone(&two)).await;
        let mut waits = pin!(alone.take(both));
        assert!(futures::poll!(&mut waits).is_pending());
        assert!(second.is_wanted() && first.is_wanted());
        drop(second);
        assert!(futures::poll!(&mut waits).is_pending(), "another has the first");
        let third = alone.take(Claim::of(&[(3, "s3://b/3/")])).now_or_never();
        assert!(third.is_some(), "nobody wants that one");
        let mut later = pin!(alone.take(two));
        assert!(futures::poll!(&mut later).is_pending(), "the one before waits for it");
        drop(first);
        let both = waits.now_or_never().unwrap();
        assert!(futures::poll!(&mut later).is_pending());
        drop(both);
        assert!(later.now_or_never().is_some());
    }
}
