//! What a job works with, and how it tells what became of a file.

use std::sync::Arc;

use millrace_protocol::{admin::PathBytes, file_list::FileListId};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{
    Environment, Importer,
    alone::Claim,
    copy::Elsewhere,
    filter::Filter,
    marks::Unmarked,
    outcomes::{Outcome, Outcomes},
    pace::Pace,
    patience::Patience,
    progress::Progress,
    sources::{Subject, Unfound},
};
use crate::{
    hydration::{
        destination::link_of,
        import::broken,
        walk::{inode, path_of},
    },
    namespace::{Inode, tree},
    store::{StoreError, View, records::JobRecord},
};

/// What a job works with.
pub(super) struct Context<'a, E> {
    pub(super) environment: &'a Arc<E>,
    pub(super) importer: &'a Arc<Importer<E>>,
    pub(super) unmarked: &'a Unmarked,
    pub(super) job: &'a JobRecord,
    pub(super) filter: &'a Filter,
    /// The files that it works on, unless that is all of its tree.
    pub(super) files: Option<FileListId>,
    /// Nothing is done: what would be is counted as found.
    pub(super) dry_run: bool,
    /// A manifest is to name everything: what the bucket had before must be there still.
    pub(super) is_atomic: bool,
    pub(super) progress: &'a Progress,
    /// Where what becomes of each file is written down, if somebody wants to know.
    pub(super) outcomes: Option<&'a Outcomes>,
    /// What bytes wait for, if the job is held to a rate.
    pub(super) pace: Option<&'a Pace>,
    /// Where files go, if that is not their link's bucket.
    pub(super) elsewhere: Option<&'a Elsewhere>,
    /// The links whose turn the job has, if it must have one.
    pub(super) turn: Option<&'a Claim>,
    /// What is known of buckets that may be away; without it nothing waits for them.
    pub(super) patience: Option<&'a Patience>,
}

impl<E: Environment> Context<'_, E> {
    /// Whether the job works on a file.
    pub(super) async fn selects(&self, inode: &Inode) -> bool {
        if self.filter.is_everything() {
            return true;
        }
        if !self.filter.needs_path() {
            return self.filter.admits(inode, b"");
        }
        let (root, wanted) = (self.job.root, inode.clone());
        let query = self.environment.read(move |view| below(view, root, &wanted).map_err(broken));
        // What was moved out of the tree meanwhile is not in it.
        match query.await {
            Ok(Some(path)) => self.filter.admits(inode, &path),
            _ => false,
        }
    }

    /// Whether the job may touch what it has found below `branch`; a failure is counted. A link
    /// that came below its top after it began, or in the place of its own, is left to the next job:
    /// others may have its turn.
    pub(super) async fn may_touch(&self, inode: &Inode, branch: Option<&FileName>) -> bool {
        let Some(turn) = self.turn else { return true };
        let wanted = inode.clone();
        match self.environment.read(move |view| link_of(view, &wanted)).await {
            Ok(link) => link.is_none_or(|link| turn.has(link)),
            Err(failure) => {
                self.progress.enter(inode.id, branch);
                self.fail_id(inode.id, failure).await;
                false
            }
        }
    }

    /// Waits for the turn of some bytes, if the job is held to a rate.
    pub(super) async fn paced(&self, bytes: u64) {
        if let Some(pace) = self.pace {
            pace.take(bytes).await;
        }
    }

    /// A file is done, for which so many bytes had to be moved or dropped.
    pub(super) async fn done_id(&self, id: InodeId, bytes: u64) {
        self.progress.done(id);
        self.note(id, bytes, Outcome::Done).await;
    }

    /// Tells of a file that a bucket has, and that was counted before, that it is done.
    pub(super) async fn told_id(&self, id: InodeId) {
        let Ok(inode) = inode(&**self.environment, id).await else { return };
        if inode.content().is_some_and(|content| content.origin.is_none()) {
            return;
        }
        self.note(id, inode.size, Outcome::Done).await;
    }

    /// Tells that a directory was listed, which is counted already.
    pub(super) async fn listed_id(&self, id: InodeId) {
        self.note(id, 0, Outcome::Done).await;
    }

    /// Something would be done with a file, were this no dry run.
    pub(super) async fn would_id(&self, id: InodeId, bytes: u64) {
        self.progress.found(id, bytes);
        self.progress.leave(id);
        self.note(id, bytes, Outcome::Would).await;
    }

    /// Counts a failure under the path that an inode has now.
    pub(super) async fn fail_id(&self, id: InodeId, failure: Failure) {
        let path = self.path_now(id).await;
        self.fail_at(id, path, failure);
    }

    /// Counts a failure of an inode under a path that it had, and may not have any more.
    pub(super) fn fail_at(&self, id: InodeId, path: PathBytes, failure: Failure) {
        self.note_failure(&path, &failure);
        self.progress.failed_at(id, path, failure);
    }

    /// Whether a failure says of something below the job's top only that it was removed meanwhile:
    /// then nothing is missing.
    pub(super) async fn is_gone(&self, id: InodeId, failure: &Failure) -> bool {
        if failure.kind != ErrorKind::Stale || id == self.job.root {
            return false;
        }
        let query = self.environment.read(move |view| tree::find(view, id).map_err(broken));
        matches!(query.await, Ok(None))
    }

    /// Whether something below the job's top has no name any more, whatever became of it: then
    /// nothing is missing.
    pub(super) async fn is_removed(&self, id: InodeId) -> bool {
        if id == self.job.root {
            return false;
        }
        let query = self.environment.read(move |view| tree::find(view, id).map_err(broken));
        query.await.is_ok_and(|found| found.is_none_or(|inode| inode.links == 0))
    }

    /// Counts what could not be looked at, unless it is not there any more.
    pub(super) async fn fail(&self, unfound: Unfound) {
        let Unfound { subject, branch, failure } = unfound;
        match subject {
            Subject::Inode(id) => {
                if self.is_gone(id, &failure).await {
                    return;
                }
                self.progress.enter(id, branch.as_ref());
                self.fail_id(id, failure).await;
            }
            Subject::Path(path) => {
                self.note_failure(&path, &failure);
                self.progress.missed(branch.as_ref(), path, failure);
            }
        }
    }

    /// Counts what is no file here any more, but an object, by its key.
    pub(super) fn apart(&self, key: Vec<u8>, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                if let Some(outcomes) = self.outcomes {
                    outcomes.note(&key, 0, &Outcome::Done);
                }
                self.progress.apart(true);
            }
            Err(failure) => {
                self.note_failure(&key, &failure);
                self.progress.apart(false);
                self.progress.failed(key, failure);
            }
        }
    }

    fn note_failure(&self, path: &[u8], failure: &Failure) {
        if let Some(outcomes) = self.outcomes {
            outcomes.note(path, 0, &Outcome::Failed(failure));
        }
    }

    /// Keys of the bucket were left out in a directory, or a file of what is copied.
    pub(super) async fn left_out_id(&self, id: InodeId, why: String) {
        self.note(id, 0, Outcome::LeftOut(why)).await;
    }

    /// What has no name any more is not told: nobody would know what it was.
    async fn note(&self, id: InodeId, bytes: u64, outcome: Outcome<'_>) {
        let Some(outcomes) = self.outcomes else { return };
        let Ok(inode) = inode(&**self.environment, id).await else { return };
        if inode.links == 0 {
            return;
        }
        let path = path_of(&**self.environment, &inode).await;
        outcomes.note(&path, bytes, &outcome);
    }

    /// The path that an inode has now; its id when it has none any more.
    pub(super) async fn path_now(&self, id: InodeId) -> PathBytes {
        match inode(&**self.environment, id).await {
            Ok(inode) => path_of(&**self.environment, &inode).await,
            Err(_) => id.to_string().into_bytes(),
        }
    }
}

/// The path of an inode below another one, by its first name; of that one itself, its name.
fn below(view: &dyn View, root: InodeId, inode: &Inode) -> Result<Option<PathBytes>, StoreError> {
    let mut names: Vec<FileName> = Vec::new();
    let mut at = inode.clone();
    while at.id != root || names.is_empty() {
        let Some(parent) = at.parent.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
        let is_root = at.id == root;
        names.push(parent.name);
        if is_root {
            break;
        }
        let Some(directory) = tree::find(view, parent.directory)? else { return Ok(None) };
        at = directory;
    }
    let names: Vec<_> = names.iter().rev().map(FileName::as_bytes).collect();
    Ok(Some(names.join(&b'/')))
}

/// Deeper than any path.
const DEPTH_MAX: usize = 4096;
