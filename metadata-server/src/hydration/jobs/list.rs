//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.

use super::{Context, Environment};
use crate::hydration::walk::{Unlisted, Walk};

/// Lists everything below the job's directory that its caller may see.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let mut walk = Walk::new(context.job.root, Unlisted::Refresh).seen_by(&context.job.caller);
    loop {
        match walk.next(&**context.environment, context.importer).await {
            Ok(None) => return,
            Ok(Some(page)) => {
                for inode in page {
                    let top = inode.id == context.job.root && !inode.is_directory();
                    if top && let Err(failure) = context.importer.object(inode.id).await {
                        context.fail_id(inode.id, failure).await;
                        continue;
                    }
                    context.progress.found(inode.size);
                    context.progress.moved(inode.size);
                    context.done_id(inode.id, inode.size).await;
                }
            }
            Err((directory, failure)) => {
                context.fail_id(directory, failure).await;
            }
        }
    }
}
