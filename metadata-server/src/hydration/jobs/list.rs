//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.

use super::{Context, Environment, sources::Sources};
use crate::hydration::walk::Unlisted;

/// Lists everything below the job's directory that its caller may see.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let viewer = Some(&context.job.caller);
    let mut sources = match Sources::of(context, Unlisted::Refresh, viewer).await {
        Ok(sources) => sources,
        Err(failure) => return context.fail_id(context.job.root, failure).await,
    };
    loop {
        match sources.next(context).await {
            Ok(None) => return,
            Ok(Some(page)) => {
                for inode in page.inodes {
                    context.progress.enter(inode.id, page.branch.as_ref());
                    let top = inode.id == context.job.root && !inode.is_directory();
                    if top && let Err(failure) = context.importer.object(inode.id).await {
                        context.fail_id(inode.id, failure).await;
                        continue;
                    }
                    context.progress.found(inode.id, inode.size);
                    context.progress.moved(inode.size);
                    context.done_id(inode.id, inode.size).await;
                }
            }
            Err(unfound) => context.fail(unfound).await,
        }
    }
}
