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
                    // Of a directory the size is how many entries it has.
                    let bytes = if inode.is_directory() { 0 } else { inode.size };
                    context.progress.found(inode.id, bytes);
                    context.progress.moved(bytes);
                    context.done_id(inode.id, bytes).await;
                }
            }
            Err(unfound) => context.fail(unfound).await,
        }
    }
}
