//! The export job: every file that the bucket lacks or has in another version is uploaded.
//!
//! Several files at a time, and in them several parts, within one limit of requests. A directory is
//! walked once; what is made behind the walk waits for the next export. A symbolic link is an
//! object that holds its target. A directory with nothing in it, or with another owner or mode than
//! an import would give it, is marked by an empty object `name/`, unless it is already.

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio::sync::Semaphore;

use super::{Context, Environment, copy, directory_export, file_export};
use crate::{
    hydration::walk::{Unlisted, Walk},
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
        /// Bytes of a file that the bucket lacked and has now.
        sent: Option<u64>,
    },
    No,
}

/// Works through the job's file or tree.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let uploads = Arc::new(Semaphore::new(UPLOADS_MAX));
    let mut files: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
    // Of what was never listed a link's bucket has everything, and another one nothing.
    let unlisted = context.elsewhere.map_or(Unlisted::Leave, |_| Unlisted::List);
    let mut walk = Walk::new(context.job.root, unlisted);
    // A file of several names is one object, under the first of them.
    let mut linked = HashSet::new();
    loop {
        match walk.next(&**context.environment, context.importer).await {
            Ok(None) => break,
            Ok(Some(page)) => {
                for inode in page {
                    // Of a selection the marks of directories are no part.
                    let whole = context.filter.is_everything() && !context.dry_run;
                    let left_out = inode.is_directory() && !whole;
                    if left_out || !context.selects(&inode).await {
                        continue;
                    }
                    let named_again = !inode.is_directory() && inode.links > 1;
                    if named_again && !linked.insert(inode.id) {
                        continue;
                    }
                    while files.len() >= FILES_MAX {
                        take(context, files.next().await).await;
                    }
                    if let Some(file) = begin(context, &uploads, inode) {
                        files.push(file);
                    }
                }
            }
            Err((directory, failure)) => context.fail_id(directory, failure).await,
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
            context.progress.found(0);
            let id = inode.id;
            let result = file_export::symlink(context, &inode).await;
            Ended { inode: id, result: result.map(|()| Counted::Yes { sent: None }) }
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

async fn take<E: Environment>(context: &Context<'_, E>, ended: Option<Ended>) {
    match ended {
        None => {}
        Some(Ended { result: Ok(Counted::No), .. }) => {}
        Some(Ended { inode, result: Ok(Counted::Yes { sent }) }) => {
            context.done_id(inode, sent.unwrap_or(0)).await;
        }
        // Removed since the walk saw it: nothing is missing in the bucket.
        Some(Ended { inode, result: Err(failure) }) if failure.kind == ErrorKind::Stale => {
            context.done_id(inode, 0).await;
        }
        Some(Ended { inode, result: Err(failure) }) => context.fail_id(inode, failure).await,
    }
}
