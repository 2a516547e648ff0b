//! Jobs on their way into the queue: who may start them, over what, and how they are done.

use std::{collections::HashSet, time::SystemTime};

use millrace_protocol::{
    admin::{FileState, Job, JobKind, JobState, PathBytes, StartJob},
    by_state::StartByState,
    file_list::{AppendFiles, FileListId, FilesReply},
    job_options::{JobOptions, StartWithOptions},
    selection::{RetryJob, Selection, SelectionReply, StartSelected},
    session::Caller,
    unused::StartUnused,
};
use millrace_types::{ErrorKind, Failure, JobId, Timestamp};

use super::{
    Environment, Jobs, PRUNE_INTERVAL, blocking, check_owner, copy, files, filter::Filter, publish,
    reach::Reach,
};
use crate::{
    command::{
        AddJob, AddJobByState, AddJobWithOptions, AddSelectedJob, AddUnusedJob, Command, Outcome,
    },
    hydration::{
        import::broken,
        walk::{Viewpoint, check, inode, path_of, resolve},
    },
    namespace::{
        Inode,
        permission::{self, Access},
    },
    store::{
        keys,
        records::{self, JobOptionsRecord, JobRecord, SelectionRecord, StatesRecord, UnusedRecord},
    },
};

/// What a job looks at of its files besides what its selection says.
#[derive(Debug, Default, Clone)]
struct Looks {
    /// The least seconds from the last use of a file to the job's start.
    unused: Option<u64>,
    /// One of which a file must be in; empty: any.
    states: Vec<FileState>,
}

impl<E: Environment> Jobs<E> {
    /// Takes a job into the queue. The request's path begins at `top`.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::NotPermitted`] when the caller may not; a
    /// path that leads nowhere; [`ErrorKind::Busy`] when the queue is full.
    pub async fn start(&self, top: &[u8], request: &StartJob) -> Result<Job, Failure> {
        let add = self.prepare(top, request).await?;
        self.add(Command::AddJob(add)).await
    }

    /// Takes a job over a part of a tree into the queue.
    ///
    /// # Errors
    /// As [`Self::start`]; [`ErrorKind::InvalidArgument`] for a selection that makes no sense, and
    /// for one of an import that says more than which directories it lists.
    pub async fn start_selected(
        &self,
        top: &[u8],
        request: &StartSelected,
    ) -> Result<Job, Failure> {
        check_selection(request.start.kind, &request.selection)?;
        let add = self.prepare(top, &request.start).await?;
        let (selection, dry_run) = (request.selection.clone(), request.dry_run);
        let command = AddSelectedJob { add, selection, dry_run };
        self.add(Command::AddSelectedJob(Box::new(command))).await
    }

    /// Takes a job into the queue that is done in some way of its own.
    ///
    /// # Errors
    /// As [`Self::start_selected`]; [`ErrorKind::InvalidArgument`] for options that such a job
    /// cannot keep; of one that ends with a manifest, [`ErrorKind::NotDirectory`],
    /// [`ErrorKind::InvalidArgument`] below no link, and [`ErrorKind::ReadOnly`] below one that
    /// does not export; of one that goes elsewhere, that a server does not reach that bucket.
    pub async fn start_with_options(
        &self,
        top: &[u8],
        request: &StartWithOptions,
    ) -> Result<Job, Failure> {
        self.start_over(top, request, Looks::default()).await
    }

    /// Takes a job over what nobody has used for a while into the queue.
    ///
    /// # Errors
    /// As [`Self::start_with_options`].
    pub async fn start_unused(&self, top: &[u8], request: &StartUnused) -> Result<Job, Failure> {
        let looks = Looks { unused: Some(request.seconds), ..Looks::default() };
        self.start_over(top, &request.job, looks).await
    }

    /// Takes a job over the files in some states into the queue.
    ///
    /// # Errors
    /// As [`Self::start_with_options`]; [`ErrorKind::InvalidArgument`] when it names no state.
    pub async fn start_by_state(&self, top: &[u8], request: &StartByState) -> Result<Job, Failure> {
        request.check()?;
        let looks = Looks { unused: request.unused, states: request.states.clone() };
        self.start_over(top, &request.job, looks).await
    }

    async fn start_over(
        &self,
        top: &[u8],
        request: &StartWithOptions,
        looks: Looks,
    ) -> Result<Job, Failure> {
        let StartWithOptions { start, selection, dry_run, options } = request;
        let looks_no_further = looks.unused.is_none() && looks.states.is_empty();
        let is_whole = selection.is_everything() && !dry_run && looks_no_further;
        if start.kind == JobKind::Import && !looks_no_further {
            let words = "an import lists whole directories: uses and states of files choose none";
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        check_selection(start.kind, selection)?;
        options.check(start.kind, is_whole)?;
        let add = self.prepare(top, start).await?;
        if options.atomic {
            publish::check(&*self.environment, add.root, options.destination.is_some()).await?;
        }
        if let Some(destination) = &options.destination {
            copy::check(&*self.environment, &self.importer, add.root, destination).await?;
        }
        self.keep_files(options, start.caller.uid).await?;
        let selected = AddSelectedJob { add, selection: selection.clone(), dry_run: *dry_run };
        self.add(command_of(selected, options.clone(), looks)).await
    }

    /// Adds a page to a list of files, for a job of the same caller's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a page that is none; [`ErrorKind::NotFound`] for a list
    /// that is not there, or is somebody else's; [`ErrorKind::NoSpace`] when there is no room.
    pub async fn append_files(&self, request: AppendFiles) -> Result<FilesReply, Failure> {
        let list = request.list.unwrap_or_else(|| FileListId(self.environment.random()));
        let directory = self.environment.reports().to_owned();
        let keep_free = self.environment.reports_keep_free();
        blocking(move || files::append(&directory, keep_free, list, &request)).await?;
        Ok(FilesReply { list })
    }

    /// Removes lists of files that no job names any more, from time to time.
    pub(super) async fn prune_for_ever(&self) {
        loop {
            if let Err(failure) = self.prune_lists().await {
                tracing::debug!(%failure, "old lists of files are not looked for");
            }
            tokio::time::sleep(PRUNE_INTERVAL).await;
        }
    }

    pub(in crate::hydration) async fn prune_lists(&self) -> Result<(), Failure> {
        let mut named = HashSet::new();
        for job in self.list().await? {
            named.extend(self.options(job.id).await?.files);
        }
        let directory = self.environment.reports().to_owned();
        blocking(move || {
            files::prune(&directory, &named, SystemTime::now());
            Ok(())
        })
        .await
    }

    /// Takes a job that has ended into the queue once more, as a new one. An import that did not
    /// succeed goes on: it is taken as asked for when that one was, so that what was listed since
    /// then is not listed again, also after a restart, and by those that go on with this one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::NotPermitted`] for anybody but its owner and root;
    /// [`ErrorKind::Busy`] while it has not ended.
    pub async fn retry(&self, request: &RetryJob) -> Result<Job, Failure> {
        let JobRecord { job, caller, root } = self.record(request.id).await?;
        check_owner(&request.caller, &caller)?;
        if !job.state.is_final() {
            let words = format!("job {} has not ended", request.id.0);
            return Err(Failure::new(ErrorKind::Busy, words));
        }
        let SelectionRecord { selection, dry_run } = self.selection_record(request.id).await?;
        let since = self.environment.now().since(job.started).as_secs();
        let selection = at_later_start(selection, since);
        // What was allowed then need not be now.
        let top = inode(&*self.environment, root).await?;
        self.check_caller(job.kind, &caller, &top).await?;
        let mut add = self.addition(job.kind, caller, &top).await?;
        if is_to_go_on(&job) {
            add.job.started = job.started;
        }
        let options = self.options(request.id).await?;
        let (unused, states) = (self.unused(request.id).await?, self.states(request.id).await?);
        let unused = unused.map(|least| least_at_later_start(least, since));
        self.keep_files(&options, add.caller.uid).await?;
        let selected = AddSelectedJob { add, selection, dry_run };
        self.add(command_of(selected, options, Looks { unused, states })).await
    }

    /// Keeps the list of files that a job is about to name from being taken for an old one.
    async fn keep_files(&self, options: &JobOptions, uid: u32) -> Result<(), Failure> {
        let Some(list) = options.files else { return Ok(()) };
        let directory = self.environment.reports().to_owned();
        blocking(move || files::keep(&directory, list, uid)).await
    }

    /// What a job works on.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn selection(&self, id: JobId) -> Result<SelectionReply, Failure> {
        let SelectionRecord { selection, dry_run } = self.selection_record(id).await?;
        Ok(SelectionReply { selection, dry_run })
    }

    /// How a job is done.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn options(&self, id: JobId) -> Result<JobOptions, Failure> {
        let query = self.environment.read(move |view| {
            let record = records::read(view, &keys::job_options(id)).map_err(broken)?;
            if let Some(JobOptionsRecord { options }) = record {
                return Ok(options);
            }
            let atomic = view.get(&keys::publication(id)).map_err(broken)?.is_some();
            Ok(JobOptions { atomic, ..JobOptions::default() })
        });
        query.await
    }

    /// For how long nobody has used what a job works on, in seconds, if it looks at that.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn unused(&self, id: JobId) -> Result<Option<u64>, Failure> {
        let query = self.environment.read(move |view| {
            let record: Option<UnusedRecord> =
                records::read(view, &keys::unused(id)).map_err(broken)?;
            Ok(record.map(|record| record.seconds))
        });
        query.await
    }

    /// In which states files must be that a job works on; empty when it does not look at that.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn states(&self, id: JobId) -> Result<Vec<FileState>, Failure> {
        let query = self.environment.read(move |view| {
            let record: Option<StatesRecord> =
                records::read(view, &keys::states(id)).map_err(broken)?;
            Ok(record.map(|record| record.states).unwrap_or_default())
        });
        query.await
    }

    pub(super) async fn selection_record(&self, id: JobId) -> Result<SelectionRecord, Failure> {
        let query = self
            .environment
            .read(move |view| records::read(view, &keys::selection(id)).map_err(broken));
        let everything = || SelectionRecord { selection: Selection::default(), dry_run: false };
        Ok(query.await?.unwrap_or_else(everything))
    }

    async fn prepare(&self, top: &[u8], request: &StartJob) -> Result<AddJob, Failure> {
        let from = Viewpoint { top, caller: &request.caller };
        let top = resolve(&*self.environment, &self.importer, from, &request.path).await?;
        self.check_caller(request.kind, &request.caller, &top).await?;
        self.addition(request.kind, request.caller.clone(), &top).await
    }

    /// A job over `top` that is about to be recorded.
    async fn addition(
        &self,
        kind: JobKind,
        caller: Caller,
        top: &Inode,
    ) -> Result<AddJob, Failure> {
        let job = fresh(kind, path_of(&*self.environment, top).await);
        Ok(AddJob { job, caller, root: top.id })
    }

    async fn add(&self, command: Command) -> Result<Job, Failure> {
        // For one that goes on with another, listings count that began since that was asked for.
        let is_dry = is_dry_run(&command);
        let begins_anew =
            |add: &&AddJob| add.job.kind == JobKind::Import && !add.goes_on() && !is_dry;
        let import = addition_of(&command).filter(begins_anew).map(|add| add.root);
        let record = self.environment.execute(command, true);
        let outcome = match import {
            Some(top) => self.importer.note_import(top, record).await?,
            None => record.await?,
        };
        let Outcome::Job(id) = outcome else { return Err(ErrorKind::Internal.into()) };
        self.waiting.notify_one();
        self.show(id).await
    }

    /// Reading is enough to import and hydrate; the others change what is where.
    async fn check_caller(
        &self,
        kind: JobKind,
        caller: &Caller,
        top: &Inode,
    ) -> Result<(), Failure> {
        match kind {
            JobKind::Import | JobKind::Hydrate => {
                check(&*self.environment, caller, top, Access::Read).await?;
            }
            JobKind::Release | JobKind::Export => {
                if !permission::is_root(caller) && caller.uid != top.uid {
                    return Err(Failure::new(
                        ErrorKind::NotPermitted,
                        "only the owner or root may release or export it",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether a job that has ended is taken for begun when it is started once more. Of one that
/// succeeded nothing is left to be done: to import that again is to look at the bucket again.
fn is_to_go_on(job: &Job) -> bool {
    job.kind == JobKind::Import && job.state != JobState::Succeeded
}

/// The selection that is over the same files in a job that begins so many whole seconds later: each
/// is as much older by then.
fn at_later_start(selection: Selection, since: u64) -> Selection {
    let age_min = selection.age_min.map(|least| least_at_later_start(least, since));
    // With the part of a second that is left.
    let age_max = selection.age_max.map(|most| most.saturating_add(since).saturating_add(1));
    Selection { age_min, age_max, ..selection }
}

/// The same of one lower bound in seconds; 0 leaves nothing out.
fn least_at_later_start(least: u64, since: u64) -> u64 {
    if least == 0 { 0 } else { least.saturating_add(since) }
}

/// The plainest command that adds such a job, so that logs stay readable to older servers.
fn command_of(selected: AddSelectedJob, options: JobOptions, looks: Looks) -> Command {
    let Looks { unused, states } = looks;
    if !states.is_empty() {
        let job = AddJobWithOptions { selected, options };
        return Command::AddJobByState(Box::new(AddJobByState { job, unused, states }));
    }
    if let Some(seconds) = unused {
        let job = AddJobWithOptions { selected, options };
        return Command::AddUnusedJob(Box::new(AddUnusedJob { job, seconds }));
    }
    if options != JobOptions::default() {
        return Command::AddJobWithOptions(Box::new(AddJobWithOptions { selected, options }));
    }
    match selected.selection.is_everything() && !selected.dry_run {
        true => Command::AddJob(selected.add),
        false => Command::AddSelectedJob(Box::new(selected)),
    }
}

/// The job that a command adds.
fn addition_of(command: &Command) -> Option<&AddJob> {
    match command {
        Command::AddJob(add) => Some(add),
        Command::AddSelectedJob(selected) => Some(&selected.add),
        Command::AddJobWithOptions(job) => Some(&job.selected.add),
        Command::AddUnusedJob(unused) => Some(&unused.job.selected.add),
        Command::AddJobByState(by_state) => Some(&by_state.job.selected.add),
        _ => None,
    }
}

/// Whether the job that a command adds does nothing.
fn is_dry_run(command: &Command) -> bool {
    match command {
        Command::AddSelectedJob(selected) => selected.dry_run,
        Command::AddJobWithOptions(job) => job.selected.dry_run,
        Command::AddUnusedJob(unused) => unused.job.selected.dry_run,
        Command::AddJobByState(by_state) => by_state.job.selected.dry_run,
        _ => false,
    }
}

/// Reads what such a job is to work on.
fn check_selection(kind: JobKind, selection: &Selection) -> Result<(), Failure> {
    if kind == JobKind::Import {
        Reach::compile(selection)?;
    }
    Filter::compile(selection, Timestamp(0)).map(drop)
}

/// A job that nobody has begun.
pub(super) fn fresh(kind: JobKind, path: PathBytes) -> Job {
    Job {
        id: JobId(0),
        kind,
        path,
        state: JobState::Queued,
        files_done: 0,
        files_total: 0,
        bytes_done: 0,
        bytes_total: 0,
        errors: 0,
        failures: Vec::new(),
        started: Timestamp(0),
        ended: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_on_ages_move_with_the_start() {
        let moved = |age_min, age_max| {
            let selection = Selection { age_min, age_max, ..Selection::default() };
            let moved = at_later_start(selection, 3600);
            (moved.age_min, moved.age_max)
        };
        assert_eq!(moved(None, None), (None, None));
        assert_eq!(moved(Some(10), Some(10)), (Some(3610), Some(3611)));
        assert_eq!(moved(Some(0), Some(u64::MAX)), (Some(0), Some(u64::MAX)));
    }
}
