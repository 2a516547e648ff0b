//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.

use super::{Context, Environment};
use crate::{
    hydration::walk::{Unlisted, Walk, inode, path_of},
    namespace::Inode,
};

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
                    context.progress.done();
                }
            }
            Err((directory, failure)) => {
                context.fail_id(directory, failure).await;
            }
        }
    }
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
        let path = path_of(&**self.environment, inode).await;
        let below = path.strip_prefix(self.job.job.path.as_slice()).unwrap_or(&path);
        self.filter.admits(inode, below.strip_prefix(b"/").unwrap_or(below))
    }

    /// Counts a failure under the path that an inode has now.
    pub(super) async fn fail_id(
        &self,
        id: millrace_types::InodeId,
        failure: millrace_types::Failure,
    ) {
        let path = match inode(&**self.environment, id).await {
            Ok(inode) => path_of(&**self.environment, &inode).await,
            Err(_) => id.to_string().into_bytes(),
        };
        self.progress.failed(path, failure);
    }
}
