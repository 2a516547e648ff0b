//! The export job: every file that the bucket lacks or has in another version is uploaded.
//!
//! Several files at a time, and in them several parts, within one limit of requests. A directory is
//! walked once; what is made behind the walk waits for the next export. A symbolic link is an
//! object that holds its target. A directory with nothing in it, or with another owner or mode than
//! an import would give it, is marked by an empty object `name/`, unless it is already.

use std::{pin::pin, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio::sync::Semaphore;

use super::{
    Context, Environment, copy, directory_export,
    file_export::{self, Sent},
    settle,
    sources::Sources,
    symlink_export,
};
use crate::{
    hydration::walk::Unlisted,
    namespace::{Body, Inode},
};

/// Files under way at the same time: small ones wait mostly for the bucket's answer.
pub(super) const FILES_MAX: usize = 16;

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

/// Works through the job's file or tree.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let uploads = Arc::new(Semaphore::new(UPLOADS_MAX));
    let mut files: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
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
        match beside(context, &mut files, sources.next(context)).await {
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
                    while files.len() >= FILES_MAX {
                        take(context, files.next().await).await;
                    }
                    let id = inode.id;
                    context.progress.enter(id, page.branch.as_ref());
                    match begin(context, &uploads, inode) {
                        Some(file) => files.push(file),
                        None => context.progress.leave(id),
                    }
                }
            }
            Err(unfound) => context.fail(unfound).await,
        }
    }
    while !files.is_empty() {
        take(context, files.next().await).await;
    }
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
            // Of what was never listed here nothing is known that the bucket has not.
            body.linked.as_ref().filter(|linked| linked.listed.is_some())?;
            Some(Box::pin(async move {
                let id = inode.id;
                let result = directory_export::run(context, &inode).await;
                Ended { inode: id, result }
            }))
        }
        Body::Special => None,
    }
}

/// Does `work`, and meanwhile goes on with the files that are under way: to learn in which states
/// files are takes minutes where targets are away.
async fn beside<E: Environment, T>(
    context: &Context<'_, E>,
    files: &mut FuturesUnordered<BoxFuture<'_, Ended>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        let ended = tokio::select! {
            biased;
            Some(ended) = files.next(), if !files.is_empty() => ended,
            done = &mut work => return done,
        };
        take(context, Some(ended)).await;
    }
}

async fn take<E: Environment>(context: &Context<'_, E>, ended: Option<Ended>) {
    match ended {
        None => {}
        Some(Ended { inode, result: Ok(Counted::No) }) => context.progress.leave(inode),
        Some(Ended { inode, result: Ok(Counted::Yes { sent }) }) => {
            let bytes = match sent {
                Sent::Now(bytes) | Sent::Before(bytes) => bytes,
                Sent::Nothing => 0,
            };
            context.done_id(inode, bytes).await;
        }
        // Removed since the walk saw it: nothing is missing in the bucket, and a report could not
        // name it.
        Some(Ended { inode, result: Err(failure) }) if failure.kind == ErrorKind::Stale => {
            context.progress.gone(inode);
        }
        Some(Ended { inode, result: Err(failure) }) => context.fail_id(inode, failure).await,
    }
}
