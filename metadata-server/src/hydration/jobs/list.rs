//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.

use millrace_protocol::admin::PathBytes;
use millrace_types::{FileName, InodeId};

use super::{Context, Environment};
use crate::{
    hydration::{
        import::broken,
        walk::{Unlisted, Walk, inode, path_of},
    },
    namespace::{Inode, tree},
    store::{StoreError, View},
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
        let (root, wanted) = (self.job.root, inode.clone());
        let query = self.environment.read(move |view| below(view, root, &wanted).map_err(broken));
        // What was moved out of the tree meanwhile is not in it.
        match query.await {
            Ok(Some(path)) => self.filter.admits(inode, &path),
            _ => false,
        }
    }

    /// Counts a failure under the path that an inode has now.
    pub(super) async fn fail_id(&self, id: InodeId, failure: millrace_types::Failure) {
        let path = match inode(&**self.environment, id).await {
            Ok(inode) => path_of(&**self.environment, &inode).await,
            Err(_) => id.to_string().into_bytes(),
        };
        self.progress.failed(path, failure);
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
