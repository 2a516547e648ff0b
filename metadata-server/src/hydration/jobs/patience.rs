//! What a job does about a bucket at which nobody answers: it waits until somebody does, instead of
//! failing one file after the other with all their retries.
//!
//! Whether that is so is not guessed from failures, of which a key, a file or a target may be the
//! reason: the metadata server looks, with one request, also where something takes very long. While
//! a bucket is away it is looked at for the whole job; nothing that needs it is begun. What failed
//! is tried again once it answers. All of that is in memory: a job that goes on after a restart
//! waits anew.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_object_source::{Bucket, LinkSpec};
use millrace_protocol::{cluster, job_waits::JobWait};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId};
use tokio::time::Instant;

use self::standing::{Change, Next, PATIENCE, Standing, Waits};
use super::{Context, Environment};
use crate::{
    hydration::{
        destination::link_of,
        import::{broken, spec_of},
    },
    namespace::{Body, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

mod beside;
mod standing;

/// How often something is tried whose bucket answers to others: a bucket may have been away for a
/// moment, and a key may be refused for ever.
const TRIES_MAX: u32 = 2;

/// How often it is tried in all, where its bucket comes and goes.
const RETURNS_MAX: u32 = 5;

/// What one job knows of the buckets that failed it, or that it waits for answers of.
#[derive(Debug, Default)]
pub(super) struct Patience {
    known: Mutex<HashMap<LinkSpec, Arc<Known>>>,
}

/// A bucket that failed the job, or was slow, at least once.
#[derive(Debug)]
struct Known {
    bucket: Arc<Bucket>,
    prefix: String,
    standing: Mutex<Standing>,
    /// Whoever looks has this. Given up where that work is.
    look: tokio::sync::Mutex<()>,
}

/// What a look found.
struct Looked {
    found: Result<(), Failure>,
    began: Instant,
    ended: Instant,
}

/// How often something was tried.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tries {
    /// While its buckets answered.
    answered: u32,
    all: u32,
}

impl Patience {
    /// What the job waits for, by the names of buckets.
    pub(super) fn waits(&self) -> Vec<JobWait> {
        let now = Instant::now();
        let known: Vec<_> = self.known().values().cloned().collect();
        let mut waits: Vec<_> = known.iter().filter_map(|known| known.wait(now)).collect();
        waits.sort_by(|a, b| a.bucket.cmp(&b.bucket));
        waits
    }

    /// What it knows of a bucket, if anything.
    fn known_of(&self, bucket: &cluster::Bucket) -> Option<Arc<Known>> {
        self.known().get(&spec_of(bucket).ok()?.without_prefix()).cloned()
    }

    /// Whether no bucket keeps anything of the job from being begun.
    pub(super) fn is_fair(&self) -> bool {
        self.known().values().all(|known| known.standing().is_fair())
    }

    /// Whether it waits for one.
    pub(super) fn is_waiting(&self) -> bool {
        self.known().values().any(|known| matches!(*known.standing(), Standing::Away(_)))
    }

    /// A bucket may have failed it, or be about to.
    fn enter(&self, spec: &LinkSpec, bucket: Arc<Bucket>) -> Arc<Known> {
        let begin = || {
            let (standing, look) = (Mutex::default(), tokio::sync::Mutex::default());
            Arc::new(Known { bucket, prefix: spec.prefix().to_owned(), standing, look })
        };
        Arc::clone(self.known().entry(spec.without_prefix()).or_insert_with(begin))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<LinkSpec, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the bucket has answered after something failed, which was tried from then till
    /// then. Whether it was away meanwhile. May be dropped at any time.
    ///
    /// # Errors
    /// That it was away for too long.
    async fn settle(
        &self,
        tried: (Instant, Instant),
        jitter: impl Fn(Duration) -> Duration,
    ) -> Result<bool, Failure> {
        let _look = self.look.lock().await;
        loop {
            let due = match self.standing().next(tried) {
                Next::Goes { was_away } => return Ok(was_away),
                Next::GiveUp(failure) => return Err(failure),
                Next::Look(due) => due,
            };
            tokio::time::sleep_until(due).await;
            let looked = self.look_now().await;
            self.note(looked, Waits::Somebody, &jitter);
        }
    }

    /// Looks at it. The caller has the turn to, and is to [note](Self::note) what was found.
    async fn look_now(&self) -> Looked {
        let began = Instant::now();
        let found = self.bucket.answers(&self.prefix).await.map_err(Failure::from);
        Looked { found, began, ended: Instant::now() }
    }

    fn note(&self, looked: Looked, waits: Waits, jitter: impl Fn(Duration) -> Duration) {
        let Looked { found, began, ended } = looked;
        let why = found.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let change = self.standing().handle(found, (began, ended), waits, jitter);
        let bucket = self.bucket.name();
        match change {
            Change::Nothing => {}
            Change::WentAway => tracing::warn!(bucket, why, "a job waits for a bucket"),
            Change::CameBack => tracing::info!(bucket, "a job goes on with a bucket"),
            Change::GaveUp => tracing::warn!(bucket, why, "a job waits no more for a bucket"),
        }
    }

    fn wait(&self, now: Instant) -> Option<JobWait> {
        let standing = self.standing();
        let Standing::Away(away) = &*standing else { return None };
        let seconds = now.saturating_duration_since(away.since).as_secs();
        Some(JobWait {
            bucket: self.bucket.name().to_owned(),
            seconds,
            next_seconds: away.due.saturating_duration_since(now).as_secs(),
            seconds_left: PATIENCE.as_secs().saturating_sub(seconds),
            failure: away.why.clone(),
        })
    }
}

impl Tries {
    /// One more has failed. Whether there is to be another.
    fn count(&mut self, was_away: bool) -> bool {
        self.all += 1;
        self.answered += u32::from(!was_away);
        self.answered < TRIES_MAX && self.all < RETURNS_MAX
    }
}

impl<E: Environment> Context<'_, E> {
    /// Does something with an inode, again when a bucket that this needs was away.
    ///
    /// # Errors
    /// Those of the work; [`ErrorKind::BucketUnavailable`] without having begun it, of a bucket
    /// that was away for too long.
    pub(super) async fn patiently<T, F>(
        &self,
        id: InodeId,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut tries = Tries::default();
        loop {
            self.answered(id).await?;
            let begun = Instant::now();
            match self.watched(&[id], work()).await {
                Err(failure) => {
                    self.again(id, failure, (begun, Instant::now()), &mut tries).await?;
                }
                done => return done,
            }
        }
    }

    /// Waits while a bucket is away that work on an inode needs, as far as that is known.
    ///
    /// # Errors
    /// [`ErrorKind::BucketUnavailable`] of one that was away for too long.
    pub(super) async fn answered(&self, id: InodeId) -> Result<(), Failure> {
        let Some(patience) = self.patience.filter(|_| !self.is_fair()) else { return Ok(()) };
        let (buckets, now) = (self.needed(id).await, Instant::now());
        for known in buckets.iter().filter_map(|bucket| patience.known_of(bucket)) {
            if !known.standing().is_fair() {
                known.settle((now, now), |pause| self.jitter(pause)).await?;
            }
        }
        Ok(())
    }

    /// Whether nothing is known of a bucket that is away.
    pub(super) fn is_fair(&self) -> bool {
        self.patience.is_none_or(Patience::is_fair)
    }

    /// Returns when what failed with an inode, tried from then till then, is to be tried again:
    /// none of the buckets that it needs is away, or not any more.
    ///
    /// # Errors
    /// The failure itself, when that was not the bucket's, or when it was tried often enough;
    /// [`ErrorKind::BucketUnavailable`] of a bucket that was away for too long.
    pub(super) async fn again(
        &self,
        id: InodeId,
        failure: Failure,
        tried: (Instant, Instant),
        tries: &mut Tries,
    ) -> Result<(), Failure> {
        let is_of_bucket = matches!(failure.kind, ErrorKind::BucketUnavailable | ErrorKind::Busy);
        let Some(patience) = self.patience.filter(|_| is_of_bucket) else { return Err(failure) };
        // What goes elsewhere needs nothing of its own link's bucket, most of the time.
        let buckets = match tries.answered {
            0 => self.needed(id).await,
            _ => self.buckets_of(id).await.unwrap_or_default(),
        };
        let mut was_away = false;
        for (number, bucket) in buckets.iter().enumerate() {
            let Some(known) = self.entered(patience, bucket) else { continue };
            match known.settle(tried, |pause| self.jitter(pause)).await {
                Ok(away) => was_away = away,
                Err(given_up) if number == 0 => return Err(given_up),
                // It may have nothing to do with it.
                Err(given_up) => tracing::debug!(%given_up, "of a bucket that may not be needed"),
            }
            if was_away {
                break;
            }
        }
        match tries.count(was_away) {
            true => Ok(()),
            false => Err(failure),
        }
    }

    /// What the job knows of a bucket, from now on at the latest.
    fn entered(&self, patience: &Patience, bucket: &cluster::Bucket) -> Option<Arc<Known>> {
        Some(patience.enter(&spec_of(bucket).ok()?, self.importer.bucket(bucket).ok()?))
    }

    /// The buckets that must answer before work on an inode is begun. What goes elsewhere may need
    /// nothing of its own link's. Who cannot ask the server itself finds that out by the work.
    async fn needed(&self, id: InodeId) -> Vec<cluster::Bucket> {
        match self.elsewhere {
            Some(to) => vec![to.bucket.clone()],
            None => self.buckets_of(id).await.unwrap_or_default(),
        }
    }

    /// The buckets that work on an inode may need, the one that it goes to first.
    async fn buckets_of(&self, id: InodeId) -> Result<Vec<cluster::Bucket>, Failure> {
        let linked = self.environment.read(move |view| buckets_of(view, id)).await?;
        let elsewhere = self.elsewhere.map(|to| to.bucket.clone());
        Ok(elsewhere.into_iter().chain(linked).collect())
    }

    fn jitter(&self, pause: Duration) -> Duration {
        shortened(pause, self.environment.random())
    }
}

/// Half to all of a pause, so that jobs which lost a bucket together do not look together.
pub(super) fn shortened(pause: Duration, random: u64) -> Duration {
    let share = f64::from(u32::try_from(random >> 32).unwrap_or(0));
    pause.mul_f64(0.5 + share / f64::from(u32::MAX) / 2.0)
}

/// The buckets of the links that an inode lies below, and that its bytes come from.
fn buckets_of(view: &dyn View, id: InodeId) -> Result<Vec<cluster::Bucket>, Failure> {
    let Some(inode) = tree::find(view, id).map_err(broken)? else { return Ok(Vec::new()) };
    let mut links: BTreeSet<LinkId> = link_of(view, &inode)?.into_iter().collect();
    if let Body::File(file) = &inode.body {
        links.extend(file.origin.as_ref().map(|origin| origin.link));
    }
    let mut buckets = Vec::new();
    for link in links {
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        buckets.extend(record.map(|record| record.bucket));
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_while_its_bucket_answers_is_tried_once_more() {
        let mut tries = Tries::default();
        assert!(tries.count(false));
        assert!(!tries.count(false));
        let mut tries = Tries::default();
        for _ in 1..RETURNS_MAX {
            assert!(tries.count(true), "its bucket was away");
        }
        assert!(!tries.count(true), "that may go on for ever");
        let mut tries = Tries::default();
        assert!(tries.count(true) && tries.count(false) && !tries.count(false));
    }
}
