//! The import job: lists a linked tree to its end, also what was listed before; of a single file it
//! asks for the object again.
//!
//! Patterns leave out directories, with all below them ([`Reach`]); what is listed is listed as a
//! whole. A dry run counts the directories that are known and would be listed, and asks no bucket.
//!
//! Many directories are listed at a time, the deepest that are known first, so that what waits for
//! its turn stays a part of the tree's depth and not of its width. What was listed since the job
//! was asked for is not listed again, so that after a restart it goes on with the rest; of a job
//! that goes on with one that failed, since that one was. What is counted is what the buckets
//! listed; of what is not listed again, what of it is here.

use std::{
    ops::Bound,
    sync::{Mutex, PoisonError},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::metadata::FileKind;
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{
    Context, Environment,
    reach::{Point, Reach},
};
use crate::{
    hydration::{
        import::{Tally, broken},
        left_out,
        walk::{inode, may_list},
    },
    namespace::{Body, Inode, tree},
    store::{
        View, borrow, keys, prefix_end,
        records::{self, Entry, LeftOutRecord},
    },
};

/// Directories that one job has listed at a time.
const DIRECTORIES_MAX: usize = 12;

/// Names of one query: keeps it short.
const NAMES_MAX: usize = 1000;

/// Inodes of one query.
const INODES_MAX: usize = 256;

/// The deepest tree that is walked.
const DEPTH_MAX: usize = 4096;

/// Lists everything below the job's directory that its caller may see.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let root = context.job.root;
    let top = match inode(&**context.environment, root).await {
        Ok(top) => top,
        Err(failure) => return context.fail_id(root, failure).await,
    };
    if top.is_directory() {
        let reach = match Reach::compile(context.filter.selection()) {
            Ok(reach) => reach,
            Err(failure) => return context.fail_id(root, failure).await,
        };
        if !context.dry_run {
            context.progress.enter(root, None);
            context.progress.found(root, 0);
            context.progress.done(root);
        }
        return tree_of(context, root, &reach).await;
    }
    if context.dry_run {
        context.progress.enter(root, None);
        return context.would_id(root, top.size).await;
    }
    match context.patiently(root, || object(context, root)).await {
        Ok(size) => {
            context.progress.enter(root, None);
            context.progress.found(root, size);
            context.progress.moved(root, size);
            context.done_id(root, size).await;
        }
        Err(failure) => context.fail_id(root, failure).await,
    }
}

/// Asks for the object of one file again; how large the file is then.
async fn object<E: Environment>(context: &Context<'_, E>, id: InodeId) -> Result<u64, Failure> {
    context.importer.object(id).await?;
    Ok(inode(&**context.environment, id).await?.size)
}

/// A directory that is to be listed.
struct Place {
    directory: InodeId,
    depth: usize,
    /// The directory right below the job's that it is, or lies in.
    branch: Option<FileName>,
    /// How far its path has come in the job's patterns.
    point: Point,
}

/// A directory that was listed, and how far its subdirectories have been begun.
struct Level {
    place: Place,
    after: Option<FileName>,
    /// Subdirectories that were read and have not been begun.
    waiting: Vec<(InodeId, FileName)>,
}

async fn tree_of<E: Environment>(context: &Context<'_, E>, root: InodeId, reach: &Reach) {
    let mut levels: Vec<Level> = Vec::new();
    let mut running = FuturesUnordered::new();
    let top = Place { directory: root, depth: 0, branch: None, point: reach.top() };
    running.push(listed(context, top));
    loop {
        while running.len() < DIRECTORIES_MAX
            && let Some(level) = levels.last_mut()
        {
            match level.next(context, reach).await {
                Ok(Some(place)) => running.push(listed(context, place)),
                Ok(None) => drop(levels.pop()),
                Err(failure) => {
                    fail(context, &level.place, failure).await;
                    levels.pop();
                }
            }
        }
        match running.next().await {
            None => return,
            Some((place, Err(failure))) => fail(context, &place, failure).await,
            Some((Place { depth: DEPTH_MAX.., .. }, Ok(_))) => {}
            Some((place, Ok(inode))) => {
                if !context.dry_run {
                    context.listed_id(place.directory).await;
                }
                // Of a directory without subdirectories no name needs to be looked at, unless
                // each is to be told.
                if inode.links > 2 || is_told(context) {
                    levels.push(Level { place, after: None, waiting: Vec::new() });
                }
            }
        }
    }
}

/// Whether each name is to be told.
fn is_told<E>(context: &Context<'_, E>) -> bool {
    context.outcomes.is_some() && !context.dry_run
}

async fn fail<E: Environment>(context: &Context<'_, E>, place: &Place, failure: Failure) {
    if context.is_gone(place.directory, &failure).await {
        return;
    }
    // With the names of the directory that it lies in it counts as done.
    context.progress.unlisted(place.branch.as_ref().filter(|_| place.depth > 1));
    context.progress.enter(place.directory, place.branch.as_ref());
    context.fail_id(place.directory, failure).await;
}

/// Lists one directory, and counts while that goes on.
async fn listed<E: Environment>(
    context: &Context<'_, E>,
    place: Place,
) -> (Place, Result<Inode, Failure>) {
    let (directory, branch) = (place.directory, place.branch.clone());
    let counted = Mutex::new(Counted::default());
    let work = || async {
        let environment = &**context.environment;
        if !may_list(environment, &context.job.caller, directory).await? {
            return Err(ErrorKind::PermissionDenied.into());
        }
        if context.dry_run {
            if context.importer.is_to_list(directory).await? {
                context.progress.enter(directory, branch.as_ref());
                context.would_id(directory, 0).await;
            }
            return inode(environment, directory).await;
        }
        let _turn = context.importer.turn(directory).await?;
        let count = |now: Tally| {
            let (names, bytes) = counted.lock().unwrap_or_else(PoisonError::into_inner).grow(now);
            context.progress.listed(branch.as_ref(), names, bytes);
        };
        let asked = context.job.job.started;
        if !context.importer.refresh_since(directory, asked, count).await? {
            count(known(environment, directory).await?);
        }
        if context.outcomes.is_some() {
            tell_left_out(context, directory).await?;
        }
        inode(environment, directory).await
    };
    // What was listed since the job was asked for has no part in the absence of its bucket.
    let asked = context.job.job.started;
    let asks = context.is_fair()
        || (!context.dry_run
            && context.importer.is_due_since(directory, asked).await.unwrap_or(false));
    let result = match asks {
        true => context.patiently(directory, work).await,
        false => work().await,
    };
    (place, result)
}

/// What was counted of a listing.
#[derive(Debug, Default)]
struct Counted {
    names: u64,
    bytes: u64,
}

impl Counted {
    /// The names and bytes that are new in a tally. A listing that begins again, by itself or with
    /// the next try, tells once more of what is counted.
    fn grow(&mut self, now: Tally) -> (u64, u64) {
        let before = (self.names, self.bytes);
        self.names = self.names.max(now.names);
        self.bytes = self.bytes.max(now.bytes);
        (self.names - before.0, self.bytes - before.1)
    }
}

/// What the tree has of a bucket in a directory that was listed.
async fn known<E: Environment>(environment: &E, directory: InodeId) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut cookie = 0;
    loop {
        let query = environment.read(move |view| {
            let entries = tree::list(view, directory, cookie, INODES_MAX).map_err(broken)?;
            let mut inodes = Vec::new();
            for (_, entry) in &entries {
                inodes.push(tree::named(view, entry).map_err(broken)?);
            }
            Ok((entries.last().map(|(_, entry)| entry.cookie), inodes))
        });
        let (Some(last), inodes) = query.await? else { return Ok(tally) };
        for inode in inodes {
            let bytes = match &inode.body {
                Body::File(file) => file.origin.as_ref().map(|origin| origin.size),
                Body::Directory(_) | Body::Symlink(_) => Some(0),
                Body::Special => None,
            };
            tally.names += u64::from(bytes.is_some());
            tally.bytes += bytes.unwrap_or(0);
        }
        cookie = last;
    }
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
        reach: &Reach,
    ) -> Result<Option<Place>, Failure> {
        loop {
            while let Some((directory, name)) = self.waiting.pop() {
                let Some(point) = reach.below(&self.place.point, &name) else { continue };
                let branch = self.place.branch.clone().or(Some(name));
                let depth = self.place.depth + 1;
                return Ok(Some(Place { directory, depth, branch, point }));
            }
            let (directory, after) = (self.place.directory, self.after.take());
            let query =
                context.environment.read(move |view| names(view, directory, after.as_ref()));
            let names = query.await?;
            let Some((last, _)) = names.last() else { return Ok(None) };
            self.after = Some(last.clone());
            for (name, entry) in &names {
                if entry.kind == FileKind::Directory {
                    self.waiting.push((entry.inode, name.clone()));
                } else if is_told(context) {
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
    let from = after.map_or_else(|| prefix.clone(), |name| keys::entry(directory, name.as_bytes()));
    let from =
        if after.is_some() { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
    let pairs = view.scan(from, borrow(&prefix_end(&prefix)), NAMES_MAX).map_err(broken)?;
    let entries = pairs.into_iter().map(|(key, bytes)| {
        let name = FileName::parse(keys::after(&key, &prefix))?;
        Ok((name, records::decode(&key, &bytes).map_err(broken)?))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_listing_that_begins_again_nothing_counts_twice() {
        let mut counted = Counted::default();
        let tally = |names, bytes| Tally { names, bytes, left_out: 0 };
        let told = [tally(1_000, 10), tally(3_000, 30), tally(0, 0), tally(2_000, 40)];
        let grown: Vec<_> = told.into_iter().map(|now| counted.grow(now)).collect();
        assert_eq!(grown, [(1_000, 10), (2_000, 20), (0, 0), (0, 10)]);
        assert_eq!(counted.grow(tally(5_000, 50)), (2_000, 10));
    }
}
