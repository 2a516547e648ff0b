//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.
//!
//! Many directories are listed at a time, the deepest that are known first, so that what waits for
//! its turn stays a part of the tree's depth and not of its width. What is counted is what the
//! buckets listed.

use std::ops::Bound;

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::metadata::FileKind;
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{Context, Environment};
use crate::{
    hydration::{
        import::{Tally, broken},
        left_out,
        walk::{inode, may_list},
    },
    namespace::Inode,
    store::{
        View, borrow, keys, prefix_end,
        records::{self, Entry, LeftOutRecord},
    },
};

/// Directories that one job has listed at a time.
const DIRECTORIES_MAX: usize = 12;

/// Names of one query: keeps it short.
const NAMES_MAX: usize = 1000;

/// The deepest tree that is walked.
const DEPTH_MAX: usize = 4096;

/// Lists everything below the job's directory that its caller may see.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let root = context.job.root;
    let top = match inode(&**context.environment, root).await {
        Ok(top) => top,
        Err(failure) => return context.fail_id(root, failure).await,
    };
    if !top.is_directory()
        && let Err(failure) = context.importer.object(root).await
    {
        return context.fail_id(root, failure).await;
    }
    if top.is_directory() {
        context.progress.listed(1, 0);
        tree_of(context, root).await;
    } else {
        context.progress.found(top.size);
        context.progress.moved(top.size);
        context.done_id(root, top.size).await;
    }
}

/// A directory that is listed, and how far its subdirectories have been begun.
struct Level {
    directory: InodeId,
    after: Option<FileName>,
    /// Subdirectories that were read and have not been begun.
    waiting: Vec<InodeId>,
    depth: usize,
}

async fn tree_of<E: Environment>(context: &Context<'_, E>, root: InodeId) {
    let mut levels: Vec<Level> = Vec::new();
    let mut running = FuturesUnordered::new();
    running.push(listed(context, root, 0));
    loop {
        while running.len() < DIRECTORIES_MAX
            && let Some(level) = levels.last_mut()
        {
            match level.next(context).await {
                Ok(Some(directory)) => running.push(listed(context, directory, level.depth + 1)),
                Ok(None) => drop(levels.pop()),
                Err(failure) => {
                    context.fail_id(level.directory, failure).await;
                    levels.pop();
                }
            }
        }
        match running.next().await {
            None => return,
            Some((directory, _, Err(failure))) => context.fail_id(directory, failure).await,
            Some((_, DEPTH_MAX.., Ok(_))) => {}
            Some((directory, depth, Ok(inode))) => {
                // Of a directory without subdirectories no name needs to be looked at, unless
                // each is to be told.
                if inode.links > 2 || context.outcomes.is_some() {
                    levels.push(Level { directory, after: None, waiting: Vec::new(), depth });
                }
            }
        }
    }
}

/// Lists one directory, and counts while that goes on.
async fn listed<E: Environment>(
    context: &Context<'_, E>,
    directory: InodeId,
    depth: usize,
) -> (InodeId, usize, Result<Inode, Failure>) {
    let work = async {
        let environment = &**context.environment;
        if !may_list(environment, &context.job.caller, directory).await? {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let _turn = context.importer.turn().await?;
        let mut counted = Tally::default();
        let count = |now: Tally| {
            context.progress.listed(now.names - counted.names, now.bytes - counted.bytes);
            counted = now;
        };
        context.importer.refresh(directory, count).await?;
        if context.outcomes.is_some() {
            tell_left_out(context, directory).await?;
        }
        inode(environment, directory).await
    };
    (directory, depth, work.await)
}

/// Tells which keys the listing of a directory left out.
async fn tell_left_out<E: Environment>(
    context: &Context<'_, E>,
    directory: InodeId,
) -> Result<(), Failure> {
    let record = left_out::of(&**context.environment, directory).await?;
    let Some(LeftOutRecord { keys, first }) = record else { return Ok(()) };
    let others = keys.saturating_sub(first.len() as u64);
    for out in first {
        let why = format!("{}: {}", out.key.escape_debug(), out.reason.words());
        context.left_out_id(directory, why).await;
    }
    if others > 0 {
        context.left_out_id(directory, format!("and {others} more keys")).await;
    }
    Ok(())
}

impl Level {
    /// The next subdirectory. Tells of what is passed over on the way.
    async fn next<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
    ) -> Result<Option<InodeId>, Failure> {
        loop {
            if let Some(directory) = self.waiting.pop() {
                return Ok(Some(directory));
            }
            let (directory, after) = (self.directory, self.after.take());
            let query =
                context.environment.read(move |view| names(view, directory, after.as_ref()));
            let names = query.await?;
            let Some((last, _)) = names.last() else { return Ok(None) };
            self.after = Some(last.clone());
            for (_, entry) in &names {
                if entry.kind == FileKind::Directory {
                    self.waiting.push(entry.inode);
                } else if context.outcomes.is_some() {
                    context.told_id(entry.inode).await;
                }
            }
            self.waiting.reverse();
        }
    }
}

/// Some names of a directory behind one, in the order of names.
fn names(
    view: &dyn View,
    directory: InodeId,
    after: Option<&FileName>,
) -> Result<Vec<(FileName, Entry)>, Failure> {
    let prefix = keys::entries(directory);
    let from = after.map_or(prefix.clone(), |name| keys::entry(directory, name.as_bytes()));
    let from =
        if after.is_some() { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
    let pairs = view.scan(from, borrow(&prefix_end(&prefix)), NAMES_MAX).map_err(broken)?;
    let entries = pairs.into_iter().map(|(key, bytes)| {
        let name = FileName::parse(keys::after(&key, &prefix))?;
        Ok((name, records::decode(&key, &bytes).map_err(broken)?))
    });
    entries.collect()
}
