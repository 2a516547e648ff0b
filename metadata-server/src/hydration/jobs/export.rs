//! The export job: every file that the bucket lacks or has in another version is uploaded.
//!
//! Several files at a time, and in them several parts, within one limit of requests. A directory is
//! walked once; what is made behind the walk waits for the next export. A symbolic link is an
//! object that holds its target. A directory with nothing in it, or with another owner or mode than
//! an import would give it, is marked by an empty object `name/`, unless it is already.

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Context, Environment, closes, copy, directory_export,
    file_export::{self, Sent},
    settle,
    sources::Sources,
    symlink_export,
};
use crate::{
    hydration::walk::{self, Unlisted},
    namespace::{Body, DirectoryBody, Inode},
};

/// Files under way at the same time: small ones wait mostly for the bucket's answer.
pub(super) const FILES_MAX: usize = 16;

/// Files that are open for writing and whose closes are waited for, all at the same time and beside
/// those under way: ten thousand that stay open take some seconds, and not minutes.
const OPEN_MAX: usize = 1024;

/// After so long a wait for a slot it is waited anew for the close of who may have opened a file
/// again meanwhile. That takes a slot: a file that was never seen closed gets no second wait.
const WAIT_COUNTS: Duration = Duration::from_secs(1);

/// Parts and small objects that targets upload at the same time, over all files.
pub(super) const UPLOADS_MAX: usize = 32;

/// How one file, link or directory ended.
pub(super) struct Ended {
    pub(super) inode: InodeId,
    pub(super) result: Result<Counted, Failure>,
}

/// Whether something was counted as found.
pub(super) enum Counted {
    Yes {
        /// Of a file, what the bucket lacked.
        sent: Sent,
    },
    No,
}

/// What a job has found and not done yet.
struct Files<'a, E> {
    context: &'a Context<'a, E>,
    uploads: Arc<Semaphore>,
    under_way: FuturesUnordered<BoxFuture<'a, Step>>,
    /// Open for writing when they had a slot, and until that has been waited for.
    open: FuturesUnordered<BoxFuture<'a, (Inode, Close)>>,
    /// That has been, and they have no slot again yet.
    waited: VecDeque<(Inode, Close)>,
}

/// What the wait for a file's close came to.
#[derive(Clone, Copy)]
enum Close {
    /// It came, at this time.
    Came(Instant),
    /// The file stays open.
    Missed,
}

/// What happens while files are worked on.
enum Step {
    /// One has ended.
    Ended(Ended),
    /// One is open for writing: its close may be on its way.
    Open(Inode),
    /// One was waited for long enough.
    Waited,
}

/// Works through the job's file or tree.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let mut files = Files::new(context);
    if let Some(turn) = context.turn.filter(|_| !context.dry_run) {
        let Context { environment, importer, unmarked, .. } = context;
        let removed = settle::removed(environment, importer, unmarked, turn);
        if let Err(failure) = Box::pin(removed).await {
            return context.fail_id(context.job.root, failure).await;
        }
    }
    // Of what was never listed a link's bucket has everything, and another one nothing.
    let unlisted = context.elsewhere.map_or(Unlisted::Leave, |_| Unlisted::List);
    let mut sources = match Sources::of(context, unlisted, None).await {
        Ok(sources) => sources,
        Err(failure) => return context.fail_id(context.job.root, failure).await,
    };
    // Of a selection the marks of directories are no part.
    let whole = context.filter.is_everything() && context.files.is_none() && !context.dry_run;
    loop {
        match files.beside(sources.next(context)).await {
            Ok(None) => break,
            Ok(Some(page)) => {
                for inode in page.inodes {
                    let left_out = inode.is_directory() && !whole;
                    if left_out || !context.selects(&inode).await {
                        continue;
                    }
                    if !context.may_touch(&inode, page.branch.as_ref()).await {
                        continue;
                    }
                    files.make_room().await;
                    context.progress.enter(inode.id, page.branch.as_ref());
                    files.begin(inode, None);
                }
            }
            Err(unfound) => context.fail(unfound).await,
        }
    }
    files.finish().await;
}

impl<'a, E: Environment> Files<'a, E> {
    fn new(context: &'a Context<'a, E>) -> Self {
        Self {
            context,
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            under_way: FuturesUnordered::new(),
            open: FuturesUnordered::new(),
            waited: VecDeque::new(),
        }
    }

    /// Waits until one more may be under way, or wait.
    async fn make_room(&mut self) {
        while self.under_way.len() >= FILES_MAX || self.open.len() + self.waited.len() >= OPEN_MAX {
            let Some(step) = self.next().await else { break };
            self.handle(step).await;
        }
    }

    /// Does `work`, and meanwhile goes on with the files that are under way: to learn in which
    /// states files are takes minutes where targets are away.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let step = tokio::select! {
                biased;
                Some(step) = self.next() => step,
                done = &mut work => return done,
            };
            self.handle(step).await;
        }
    }

    /// Goes on until nothing is left.
    async fn finish(&mut self) {
        while let Some(step) = self.next().await {
            self.handle(step).await;
        }
    }

    /// What happens next; `None` when nothing is under way, and nothing waits. May be dropped at
    /// any time.
    async fn next(&mut self) -> Option<Step> {
        tokio::select! {
            Some(step) = self.under_way.next() => Some(step),
            Some(waited) = self.open.next() => {
                self.waited.push_back(waited);
                Some(Step::Waited)
            }
            else => None,
        }
    }

    async fn handle(&mut self, step: Step) {
        let context = self.context;
        match step {
            Step::Ended(ended) => take(context, ended).await,
            // Without a slot, which others have meanwhile.
            Step::Open(inode) => self.open.push(Box::pin(async move {
                let close = match closes::wait(&**context.environment, inode.id).await {
                    true => Close::Came(Instant::now()),
                    false => Close::Missed,
                };
                (inode, close)
            })),
            Step::Waited => {}
        }
        while self.under_way.len() < FILES_MAX
            && let Some((inode, close)) = self.waited.pop_front()
        {
            self.begin(inode, Some(close));
        }
    }

    /// Gives a slot to one that was found, or whose close was waited for, with what came of it.
    fn begin(&mut self, inode: Inode, close: Option<Close>) {
        let (context, uploads) = (self.context, Arc::clone(&self.uploads));
        let may_be_open = matches!(inode.body, Body::File(_)) && !context.dry_run;
        self.under_way.push(Box::pin(async move {
            let (environment, id) = (&**context.environment, inode.id);
            let counts = match close {
                None => false,
                Some(Close::Came(at)) => at.elapsed() < WAIT_COUNTS,
                Some(Close::Missed) => true,
            };
            if may_be_open && !counts && closes::is_open(environment, id).await {
                if close.is_none() {
                    return Step::Open(inode);
                }
                closes::wait(environment, id).await;
            }
            Step::Ended(Ended { inode: id, result: one(context, &uploads, inode).await })
        }));
    }
}

/// Exports one, again when a bucket that it needs was away; what was seen of it before a wait is
/// looked at anew.
async fn one<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    inode: Inode,
) -> Result<Counted, Failure> {
    let (environment, id, seen) = (&**context.environment, inode.id, Instant::now());
    let once = || async {
        if seen.elapsed() < WAIT_COUNTS {
            return ended(begin(context, uploads, inode.clone())).await;
        }
        let now = walk::inode(environment, id).await?;
        // Of another link by now, perhaps.
        if !context.may_touch(&now, None).await {
            return Ok(Counted::No);
        }
        let may_be_open = matches!(now.body, Body::File(_)) && !context.dry_run;
        if may_be_open && closes::is_open(environment, id).await {
            closes::wait(environment, id).await;
        }
        ended(begin(context, uploads, now)).await
    };
    // What asks its bucket for nothing has no part in its absence.
    match context.is_fair() || asks(context, &inode).await {
        true => context.patiently(id, once).await,
        false => once().await,
    }
}

async fn ended(export: Option<BoxFuture<'_, Ended>>) -> Result<Counted, Failure> {
    match export {
        Some(export) => export.await.result,
        None => Ok(Counted::No),
    }
}

/// Whether a bucket is asked for anything. What cannot be looked at says why by itself.
async fn asks<E: Environment>(context: &Context<'_, E>, inode: &Inode) -> bool {
    let asks = match (&inode.body, context.elsewhere) {
        (Body::Special, _) => Ok(false),
        (Body::File(_) | Body::Symlink(_), Some(_)) | (Body::Symlink(_), None) => Ok(true),
        (Body::File(_), None) => file_export::asks(context, inode.id).await,
        (Body::Directory(_), Some(to)) => {
            copy::mark_of(context, to, inode).await.map(|mark| mark.is_some())
        }
        (Body::Directory(body), None) if is_listed(body) => {
            directory_export::mark_of(context, inode).await.map(|mark| mark.is_some())
        }
        (Body::Directory(_), None) => Ok(false),
    };
    asks.unwrap_or(false)
}

/// Of what was never listed here nothing is known that the bucket has not.
fn is_listed(body: &DirectoryBody) -> bool {
    body.linked.as_ref().is_some_and(|linked| linked.listed.is_some())
}

/// Exports one file, link or mark of a directory, if that can be exported at all.
pub(super) fn begin<'a, E: Environment>(
    context: &'a Context<'a, E>,
    uploads: &Arc<Semaphore>,
    inode: Inode,
) -> Option<BoxFuture<'a, Ended>> {
    if let Some(elsewhere) = context.elsewhere {
        return copy::begin(context, elsewhere, uploads, inode);
    }
    let uploads = Arc::clone(uploads);
    match &inode.body {
        Body::File(_) => Some(Box::pin(async move {
            let id = inode.id;
            let result = match context.dry_run {
                true => file_export::look(context, id).await.map(|()| Counted::No),
                false => {
                    let sent = file_export::run(context, &uploads, id).await;
                    sent.map(|sent| Counted::Yes { sent })
                }
            };
            Ended { inode: id, result }
        })),
        Body::Symlink(_) => Some(Box::pin(async move {
            if context.dry_run {
                return Ended { inode: inode.id, result: Ok(Counted::No) };
            }
            let id = inode.id;
            context.progress.found(id, 0);
            let result = symlink_export::run(context, id).await;
            Ended { inode: id, result: result.map(|()| Counted::Yes { sent: Sent::Nothing }) }
        })),
        Body::Directory(body) => {
            if !is_listed(body) {
                return None;
            }
            Some(Box::pin(async move {
                let id = inode.id;
                let result = directory_export::run(context, &inode).await;
                Ended { inode: id, result }
            }))
        }
        Body::Special => None,
    }
}

async fn take<E: Environment>(context: &Context<'_, E>, ended: Ended) {
    match ended {
        // Found perhaps before a wait, behind which there was nothing to be done any more.
        Ended { inode, result: Ok(Counted::No) } => context.progress.gone(inode),
        Ended { inode, result: Ok(Counted::Yes { sent }) } => {
            let bytes = match sent {
                Sent::Now(bytes) | Sent::Before(bytes) => bytes,
                Sent::Nothing => 0,
            };
            context.done_id(inode, bytes).await;
        }
        // Removed since the walk saw it: nothing is missing in the bucket, and a report could not
        // name it.
        Ended { inode, result: Err(failure) } if failure.kind == ErrorKind::Stale => {
            context.progress.gone(inode);
        }
        Ended { inode, result: Err(failure) } => context.fail_id(inode, failure).await,
    }
}
