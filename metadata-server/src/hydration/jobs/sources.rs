//! What a job works on, a page at a time: all of a tree, or the files of a list.
//!
//! Each inode comes once, also when it has several names or is named twice: what came is kept as a
//! bit map of inode numbers, which is dense, so that a million files take some hundred KiB.

use std::collections::VecDeque;

use millrace_protocol::{admin::PathBytes, session::Caller};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};
use roaring::RoaringTreemap;
use tokio::time::Instant;

use super::{
    Context, Environment, blocking,
    files::FileList,
    judge::{JUDGED_MAX, Judge},
    patience::Tries,
};
use crate::{
    hydration::walk::{Unlisted, Walk, child, descend},
    namespace::{Inode, tree},
};

/// Everything that a job works on.
pub(super) struct Sources {
    seen: RoaringTreemap,
    from: From,
    judge: Judge,
    /// Of a job that looks at states, what has been read and not been judged yet.
    unjudged: Option<Page>,
}

enum From {
    Tree(Walk),
    List(Box<Listed>),
}

/// The files of a list, and what lies below its directories.
struct Listed {
    list: Option<FileList>,
    paths: VecDeque<Vec<u8>>,
    /// The directory of the list under way, and the name below the top that it belongs to.
    walk: Option<(Walk, Option<FileName>)>,
    unlisted: Unlisted,
    viewer: Option<Caller>,
}

/// Some inodes, and the directory right below the job's top in which all of them lie.
pub(super) struct Page {
    pub(super) inodes: VecDeque<Inode>,
    pub(super) branch: Option<FileName>,
}

/// What could not be looked at.
pub(super) struct Unfound {
    pub(super) subject: Subject,
    pub(super) branch: Option<FileName>,
    pub(super) failure: Failure,
}

/// What a failure is about.
pub(super) enum Subject {
    Inode(InodeId),
    /// A path of a list that leads nowhere.
    Path(PathBytes),
}

impl Sources {
    /// What a job works on. Directories that nobody has listed are treated as `unlisted` says; with
    /// a `viewer`, only what that user may reach is found.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the job's list is gone.
    pub(super) async fn of<E: Environment>(
        context: &Context<'_, E>,
        unlisted: Unlisted,
        viewer: Option<&Caller>,
    ) -> Result<Self, Failure> {
        let seen = RoaringTreemap::new();
        let root = context.job.root;
        let (judge, unjudged) = (Judge::default(), None);
        let Some(id) = context.files else {
            let from = From::Tree(walk(root, unlisted, viewer));
            return Ok(Self { seen, from, judge, unjudged });
        };
        let directory = context.environment.reports().to_owned();
        let uid = context.job.caller.uid;
        let list = Some(blocking(move || FileList::open(&directory, id, uid)).await?);
        let (paths, walk, viewer) = (VecDeque::new(), None, viewer.cloned());
        let listed = Listed { list, paths, walk, unlisted, viewer };
        Ok(Self { seen, from: From::List(Box::new(listed)), judge, unjudged })
    }

    /// Some more inodes, or `None` at the end; of a job that looks at states, those that are in
    /// one of them now. Behind what fails it goes on.
    ///
    /// # Errors
    /// A directory that cannot be listed, or a path of the list that leads nowhere.
    pub(super) async fn next<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
    ) -> Result<Option<Page>, Unfound> {
        let Some(states) = context.filter.states() else { return self.read(context).await };
        if self.unjudged.is_none() {
            self.unjudged = self.read(context).await?;
        }
        let Some(mut page) = self.unjudged.take() else { return Ok(None) };
        let some = page.inodes.len().min(JUDGED_MAX);
        let some: Vec<Inode> = page.inodes.drain(..some).collect();
        let branch = page.branch.clone();
        self.unjudged = Some(page).filter(|page| !page.inodes.is_empty());
        let inodes = self.judge.choose(context, states, some, branch.as_ref()).await;
        Ok(Some(Page { inodes, branch }))
    }

    async fn read<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
    ) -> Result<Option<Page>, Unfound> {
        let (page, is_list) = match &mut self.from {
            From::Tree(walk) => (pages(walk, context, None).await?, false),
            From::List(listed) => (listed.next(context).await?, true),
        };
        Ok(page.map(|Page { mut inodes, branch }| {
            inodes.retain(|inode| {
                let may_come_again = is_list || (inode.links > 1 && !inode.is_directory());
                !may_come_again || self.seen.insert(inode.id.0)
            });
            Page { inodes, branch }
        }))
    }
}

impl Listed {
    async fn next<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
    ) -> Result<Option<Page>, Unfound> {
        loop {
            if let Some((walk, branch)) = &mut self.walk {
                let branch = branch.clone();
                if let Some(page) = pages(walk, context, Some(branch)).await? {
                    return Ok(Some(page));
                }
                self.walk = None;
            }
            let Some(path) = self.next_path(context).await? else { return Ok(None) };
            let branch = branch_of(&path);
            match self.find(context, &path).await {
                // All of the tree belongs to no directory below it.
                Ok(inode) if inode.is_directory() => {
                    let walk = walk(inode.id, self.unlisted, self.viewer.as_ref());
                    let branch = branch.or_else(|| inode.parent.map(|parent| parent.name));
                    self.walk = Some((walk, branch.filter(|_| inode.id != context.job.root)));
                }
                Ok(inode) => return Ok(Some(Page { inodes: VecDeque::from([inode]), branch })),
                Err(failure) => {
                    let subject = Subject::Path(shown(&context.job.job.path, &path));
                    return Err(Unfound { subject, branch, failure });
                }
            }
        }
    }

    async fn next_path<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
    ) -> Result<Option<Vec<u8>>, Unfound> {
        if self.paths.is_empty()
            && let Some(mut list) = self.list.take()
        {
            let read = blocking(move || list.next().map(|paths| (list, paths))).await;
            let (list, paths) = read.map_err(|failure| Unfound {
                subject: Subject::Inode(context.job.root),
                branch: None,
                failure,
            })?;
            self.list = (!paths.is_empty()).then_some(list);
            self.paths = paths;
        }
        Ok(self.paths.pop_front())
    }

    async fn find<E: Environment>(
        &self,
        context: &Context<'_, E>,
        path: &[u8],
    ) -> Result<Inode, Failure> {
        if path.starts_with(b"/") {
            let words = "it does not lie below the directory of the job";
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        let environment = &**context.environment;
        const ROOT: &Caller = &Caller::ROOT;
        let caller = self.viewer.as_ref().unwrap_or(ROOT);
        let (importer, root) = (context.importer, context.job.root);
        let mut tries = Tries::default();
        loop {
            if !context.is_fair() {
                let known = known_of(environment, root, path).await;
                if importer.is_due(known).await.unwrap_or(false) {
                    context.answered(known).await?;
                }
            }
            let begun = Instant::now();
            let found = descend(environment, importer, root, path, caller);
            match context.watched(&[root], found).await {
                Err(failure) => {
                    let tried = (begun, Instant::now());
                    let known = known_of(environment, root, path).await;
                    context.again(known, failure, tried, &mut tries).await?;
                }
                found => return found,
            }
        }
    }
}

/// The last inode on the way down a path that the tree has.
async fn known_of<E: Environment>(environment: &E, top: InodeId, path: &[u8]) -> InodeId {
    let mut at = top;
    for name in tree::components(path).unwrap_or_default() {
        match child(environment, at, name).await {
            Ok(Some(inode)) => at = inode.id,
            _ => break,
        }
    }
    at
}

/// The next page of a walk, which belongs to `branch`, or to the directories right below the top.
async fn pages<E: Environment>(
    walk: &mut Walk,
    context: &Context<'_, E>,
    branch: Option<Option<FileName>>,
) -> Result<Option<Page>, Unfound> {
    let mut tries = Tries::default();
    loop {
        let begun = Instant::now();
        let page = listed(walk, context).await;
        let branch = branch.clone().unwrap_or_else(|| walk.branch().cloned());
        let (directory, failure) = match page {
            Ok(page) => return Ok(page.map(|inodes| Page { inodes, branch })),
            Err(unlisted) => unlisted,
        };
        let (kept, tried) = (failure.clone(), (begun, Instant::now()));
        let failure = match context.again(directory, failure, tried, &mut tries).await {
            Ok(()) if walk.try_again() => continue,
            Ok(()) => kept,
            Err(failure) => failure,
        };
        return Err(Unfound { subject: Subject::Inode(directory), branch, failure });
    }
}

/// The next page of a walk, which lists no directory whose bucket is known to be away.
async fn listed<E: Environment>(
    walk: &mut Walk,
    context: &Context<'_, E>,
) -> Result<Option<VecDeque<Inode>>, (InodeId, Failure)> {
    if !context.is_fair()
        && let Some(directory) = walk.asks(context.importer).await
        && let Err(failure) = context.answered(directory).await
    {
        walk.pass_over();
        return Err((directory, failure));
    }
    let at = walk.at();
    context.watched(&[at], walk.next(&**context.environment, context.importer)).await
}

fn walk(top: InodeId, unlisted: Unlisted, viewer: Option<&Caller>) -> Walk {
    let walk = Walk::new(top, unlisted);
    match viewer {
        Some(viewer) => walk.seen_by(viewer),
        None => walk,
    }
}

/// The first name of a path of several.
fn branch_of(path: &[u8]) -> Option<FileName> {
    let mut names = tree::components(path).ok()?.into_iter();
    names.next().filter(|_| names.next().is_some())
}

/// A path of a list as people see it.
fn shown(top: &[u8], path: &[u8]) -> PathBytes {
    match path.starts_with(b"/") {
        true => path.to_vec(),
        false => [top.strip_suffix(b"/").unwrap_or(top), path].join(&b'/'),
    }
}
