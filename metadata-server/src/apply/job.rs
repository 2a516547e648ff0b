//! Jobs: taken into the queue, moved on, ended.

use millrace_protocol::{
    admin::{JOB_FAILURES_MAX, JobState},
    job_detail::DIRECTORIES_MAX,
};
use millrace_types::{ErrorKind, Timestamp};

use super::{ApplyError, Transaction};
use crate::{
    command::{
        AddJob, AddJobByState, AddJobWithOptions, AddSelectedJob, AddUnusedJob, NoteJobDetail,
        Outcome, UpdateJob,
    },
    namespace::tree,
    store::{
        keys,
        records::{
            JobDetailRecord, JobOptionsRecord, JobRecord, SelectionRecord, StatesRecord,
            UnusedRecord,
        },
    },
};

/// Takes a job; the oldest ended one beyond [`JOBS_KEPT`] is forgotten.
pub(super) fn add(tx: &mut Transaction<'_>, add: &AddJob) -> Result<Outcome, ApplyError> {
    let id = tx.file_system()?.next_job;
    tx.change_file_system(|fs| fs.next_job = id.next())?;
    let known = tree::scan::<JobRecord>(tx, &keys::jobs(), usize::MAX)?;
    if known.len() >= JOBS_KEPT {
        let ended = known.iter().find(|(_, record)| record.job.state.is_final());
        match ended {
            Some((key, record)) => {
                tx.delete(key.clone());
                tx.delete(keys::selection(record.job.id));
                tx.delete(keys::publication(record.job.id));
                tx.delete(keys::job_options(record.job.id));
                tx.delete(keys::unused(record.job.id));
                tx.delete(keys::states(record.job.id));
                tx.delete(keys::job_detail(record.job.id));
            }
            None => return Err(ErrorKind::Busy.into()),
        }
    }
    let mut job = add.job.clone();
    job.id = id;
    job.state = JobState::Queued;
    job.started = match goes_on_since(tx, add)? {
        Some(earlier) => earlier.min(tx.time),
        None => tx.time,
    };
    job.ended = None;
    let record = JobRecord { job, caller: add.caller.clone(), root: add.root };
    tx.put(keys::job(id), &record);
    Ok(Outcome::Job(id))
}

/// When the job was asked for that this one goes on with, if it goes on with any.
fn goes_on_since(tx: &Transaction<'_>, add: &AddJob) -> Result<Option<Timestamp>, ApplyError> {
    let goes_on = tx.file_system()?.feature_level >= GOING_ON_LEVEL && add.goes_on();
    Ok(goes_on.then_some(add.job.started))
}

/// The feature level from which on imports may go on with earlier ones.
const GOING_ON_LEVEL: u32 = 24;

/// Takes a job over a part of its tree.
pub(super) fn add_selected(
    tx: &mut Transaction<'_>,
    selected: &AddSelectedJob,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < SELECTION_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let id = tx.file_system()?.next_job;
    let outcome = add(tx, &selected.add)?;
    let (selection, dry_run) = (selected.selection.clone(), selected.dry_run);
    tx.put(keys::selection(id), &SelectionRecord { selection, dry_run });
    Ok(outcome)
}

/// The feature level from which on there are jobs over a part of a tree.
const SELECTION_LEVEL: u32 = 5;

/// Takes an export that ends with a manifest: what logs have from before there were options.
pub(super) fn add_publication(
    tx: &mut Transaction<'_>,
    job: &AddJob,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < PUBLICATION_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let id = tx.file_system()?.next_job;
    let outcome = add(tx, job)?;
    tx.put_bytes(keys::publication(id), Vec::new());
    Ok(outcome)
}

/// The feature level from which on there are exports with a manifest.
const PUBLICATION_LEVEL: u32 = 9;

/// Takes a job that is done in some way of its own.
pub(super) fn add_with_options(
    tx: &mut Transaction<'_>,
    job: &AddJobWithOptions,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < OPTIONS_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let AddJobWithOptions { selected, options } = job;
    let id = tx.file_system()?.next_job;
    let outcome = match selected.selection.is_everything() && !selected.dry_run {
        true => add(tx, &selected.add)?,
        false => add_selected(tx, selected)?,
    };
    tx.put(keys::job_options(id), &JobOptionsRecord { options: options.clone() });
    Ok(outcome)
}

/// Takes a job over what nobody has used for a while.
pub(super) fn add_unused(
    tx: &mut Transaction<'_>,
    unused: &AddUnusedJob,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < UNUSED_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let id = tx.file_system()?.next_job;
    let outcome = add_with_options(tx, &unused.job)?;
    tx.put(keys::unused(id), &UnusedRecord { seconds: unused.seconds });
    Ok(outcome)
}

/// The feature level from which on jobs may look at the last use of files.
const UNUSED_LEVEL: u32 = 15;

/// Takes a job over the files in some states.
pub(super) fn add_by_state(
    tx: &mut Transaction<'_>,
    by_state: &AddJobByState,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < STATES_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let AddJobByState { job, unused, states } = by_state;
    let id = tx.file_system()?.next_job;
    let outcome = add_with_options(tx, job)?;
    if let Some(seconds) = *unused {
        tx.put(keys::unused(id), &UnusedRecord { seconds });
    }
    tx.put(keys::states(id), &StatesRecord { states: states.clone() });
    Ok(outcome)
}

/// The feature level from which on jobs may look at the states of files.
const STATES_LEVEL: u32 = 20;

/// Records more of a job, also of one that has ended.
pub(super) fn note_detail(
    tx: &mut Transaction<'_>,
    note: &NoteJobDetail,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < OPTIONS_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let record: Option<JobRecord> = tx.read(&keys::job(note.id))?;
    record.ok_or(ErrorKind::NotFound)?;
    let mut detail = note.detail.clone();
    detail.directories.truncate(DIRECTORIES_MAX);
    tx.put(keys::job_detail(note.id), &JobDetailRecord { detail });
    Ok(Outcome::Job(note.id))
}

/// The feature level from which on jobs have options.
const OPTIONS_LEVEL: u32 = 10;

/// Moves a job on. An ended one stays as it ended.
pub(super) fn update(tx: &mut Transaction<'_>, update: &UpdateJob) -> Result<Outcome, ApplyError> {
    let key = keys::job(update.id);
    let mut record: JobRecord = tx.read(&key)?.ok_or(ErrorKind::NotFound)?;
    let job = &mut record.job;
    if job.state.is_final() {
        return Ok(Outcome::Job(job.id));
    }
    if let Some(state) = update.state {
        let legal = match (job.state, state) {
            (JobState::Queued, next) => next != JobState::Succeeded,
            (JobState::Running, next) => next != JobState::Queued,
            _ => false,
        };
        if !legal {
            return Err(ErrorKind::InvalidArgument.into());
        }
        job.state = state;
        if state.is_final() {
            job.ended = Some(tx.time);
        }
    }
    job.files_done = update.counts.files_done;
    job.files_total = update.counts.files_total;
    job.bytes_done = update.counts.bytes_done;
    job.bytes_total = update.counts.bytes_total;
    job.errors = update.counts.errors;
    job.failures = update.failures.clone();
    job.failures.truncate(JOB_FAILURES_MAX);
    tx.put(key, &record);
    Ok(Outcome::Job(update.id))
}

/// How many jobs are remembered, with those that wait or run.
const JOBS_KEPT: usize = 256;
