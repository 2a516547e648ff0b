//! Which of the jobs that wait begins next: of those that may, the oldest of the highest priority.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use millrace_protocol::admin::JobKind;
use millrace_types::{Failure, JobId};

use super::{
    Environment, Jobs,
    alone::{Claim, Claims},
};
use crate::{
    hydration::import::broken,
    namespace::tree,
    store::{
        View, keys,
        records::{self, JobOptionsRecord, JobRecord},
    },
};

/// A job that may begin.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) record: JobRecord,
    /// The links that it must have the turn of; `None` for one that needs no turn.
    pub(super) claim: Option<Arc<Claim>>,
}

/// Exports and releases at work at the same time, each below links of its own. Those that only wait
/// for their turn are not counted, so that one which keeps it for long holds up no others.
const ALONE_MAX: usize = 16;

/// Of these, those of one bucket at the same time, with those that wait: a bucket that is away
/// leaves the others their room.
const BUCKET_MAX: usize = 4;

/// Jobs at work at the same time besides them: each has its own bounds on requests to targets.
/// Those that wait for a bucket are not counted.
const OTHERS_MAX: usize = 3;

/// The same with these: when their buckets are back, so many are at work.
const AWAITED_MAX: usize = 16;

/// What is at work.
#[derive(Debug)]
struct Busy {
    jobs: Vec<JobId>,
    /// What the exports and releases of these touch.
    claims: Vec<Arc<Claim>>,
    /// How many of these have their turn, or get it at once.
    alone: usize,
    /// How many jobs besides them are at work.
    others: usize,
    /// How many of the others wait for a bucket.
    awaited: usize,
}

impl<E: Environment> Jobs<E> {
    /// The job that begins next, if any may.
    pub(super) async fn next(&self) -> Result<Option<Next>, Failure> {
        let busy = {
            let running = self.running();
            let claims = running.values().filter_map(|one| one.claim.clone());
            let claims: Vec<Arc<Claim>> = claims.collect();
            let waits = running.values().filter(|one| one.waits).count();
            let others = running.values().filter(|one| one.claim.is_none());
            let awaited = others.filter(|one| one.work.patience.is_waiting()).count();
            Busy {
                jobs: running.keys().copied().collect(),
                alone: claims.len() - waits,
                others: running.len() - claims.len(),
                awaited,
                claims,
            }
        };
        self.environment.read(move |view| choose(view, &busy)).await
    }
}

impl Busy {
    /// Whether there is room for one that needs no turn.
    fn has_room(&self) -> bool {
        self.others - self.awaited < OTHERS_MAX && self.others < AWAITED_MAX
    }
}

/// Chooses a job, beside those that are at work.
fn choose(view: &dyn View, busy: &Busy) -> Result<Option<Next>, Failure> {
    let is_full = busy.alone >= ALONE_MAX;
    let (mut known, mut before) = (Claims::new(view), busy.claims.clone());
    for (record, is_alone) in waiting(view, &busy.jobs)? {
        if !is_alone && busy.has_room() {
            return Ok(Some(Next { record, claim: None }));
        }
        if !is_alone || is_full {
            continue;
        }
        let claim = known.of_job(record.root)?;
        if has_room(&claim, &busy.claims) && !before.iter().any(|known| known.meets(&claim)) {
            return Ok(Some(Next { record, claim: Some(claim) }));
        }
        // What is behind it in the queue must not overtake it: it might wait for ever.
        before.push(claim);
    }
    Ok(None)
}

/// Whether each bucket of a job has room for it beside those that have begun.
fn has_room(claim: &Claim, begun: &[Arc<Claim>]) -> bool {
    let mut jobs: HashMap<&str, usize> = HashMap::new();
    for bucket in begun.iter().flat_map(|begun| begun.buckets()) {
        *jobs.entry(bucket).or_default() += 1;
    }
    claim.buckets().iter().all(|bucket| jobs.get(bucket).is_none_or(|jobs| *jobs < BUCKET_MAX))
}

/// The jobs that wait, in the order of the queue, and whether they must have the turn of the links
/// that they touch.
fn waiting(view: &dyn View, busy: &[JobId]) -> Result<Vec<(JobRecord, bool)>, Failure> {
    let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX).map_err(broken)?;
    let mut waiting = Vec::new();
    for (_, record) in known {
        let job = &record.job;
        if job.state.is_final() || busy.contains(&job.id) {
            continue;
        }
        let options: Option<JobOptionsRecord> =
            records::read(view, &keys::job_options(job.id)).map_err(broken)?;
        let options = options.map(|record| record.options).unwrap_or_default();
        let is_kind = matches!(job.kind, JobKind::Export | JobKind::Release);
        // What goes to another place changes nothing that an export could meet.
        waiting.push((options.priority, record, is_kind && options.destination.is_none()));
    }
    // Those of one priority stay in their order.
    waiting.sort_by_key(|(priority, ..)| Reverse(*priority));
    Ok(waiting.into_iter().map(|(_, record, is_alone)| (record, is_alone)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_for_buckets_leave_others_their_room() {
        let has_room = |others, awaited| {
            let (jobs, claims) = (Vec::new(), Vec::new());
            Busy { jobs, claims, alone: 0, others, awaited }.has_room()
        };
        assert!(has_room(2, 0) && !has_room(3, 0));
        assert!(has_room(3, 1) && !has_room(4, 1));
        assert!(has_room(15, 15) && !has_room(16, 16), "all of them may come back together");
    }

    #[test]
    fn jobs_at_one_bucket_leave_others_their_room() {
        let claim =
            |at: u32, bucket: &str| Claim::of(&[(at, format!("s3://{bucket}/{at}/").as_str())]);
        let mut begun: Vec<_> = (0..3).map(|at| claim(at, "away")).collect();
        assert!(has_room(&claim(9, "away"), &begun));
        begun.push(claim(3, "away"));
        assert!(!has_room(&claim(9, "away"), &begun));
        assert!(has_room(&claim(9, "other"), &begun));
        let both = Claim::of(&[(8, "s3://other/8/"), (9, "s3://away/9/")]);
        assert!(!has_room(&both, &begun));
    }
}
