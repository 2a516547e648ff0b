//! Ways through the tree that import on the way: down a path, and over everything below a
//! directory.

use std::{collections::VecDeque, sync::Arc};

use millrace_protocol::{admin::PathBytes, session::Caller};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{
    environment::Environment,
    import::{Importer, broken},
};
use crate::{
    apply::ApplyError,
    namespace::{
        Inode,
        permission::{self, Access},
        tree,
    },
};

/// For whom a path is walked, and from where.
#[derive(Debug, Clone, Copy)]
pub struct Viewpoint<'a> {
    /// The directory that the asking client's certificate is restricted to, where the path begins;
    /// the way to there is open to its users whatever lies on it. Empty for the root.
    pub top: &'a [u8],
    /// The user, after root squash.
    pub caller: &'a Caller,
}

impl Viewpoint<'static> {
    /// An operator, who may enter everything.
    pub const OPERATOR: Self = Self { top: b"", caller: &Caller::ROOT };
}

/// Finds the inode at `path`, asking buckets for names that are not imported yet. The caller must
/// be allowed to search every directory on the way, as in a lookup.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`], or those
/// of the bucket.
pub async fn resolve<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    from: Viewpoint<'_>,
    path: &[u8],
) -> Result<Inode, Failure> {
    let top = descend(environment, importer, InodeId::ROOT, from.top, &Caller::ROOT).await?;
    descend(environment, importer, top.id, path, from.caller).await
}

/// Finds what is at `path` below `top`, as [`resolve`] does.
pub(super) async fn descend<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: InodeId,
    path: &[u8],
    caller: &Caller,
) -> Result<Inode, Failure> {
    let mut at = inode(environment, top).await?;
    for name in tree::components(path)? {
        at.directory()?;
        // Before anything is asked about the name, so that nothing is learned by the way either.
        check(environment, caller, &at, Access::Search).await?;
        importer.name(at.id, &name).await?;
        at = child(environment, at.id, name.clone()).await?.ok_or_else(|| {
            let whole = path.escape_ascii();
            let text = match path.ends_with(name.as_bytes()) {
                true => whole.to_string(),
                false => format!("{name} in {whole}"),
            };
            Failure::new(ErrorKind::NotFound, text)
        })?;
    }
    Ok(at)
}

/// The inode of that id.
///
/// # Errors
/// [`ErrorKind::Stale`] when it is gone.
pub async fn inode<E: Environment>(environment: &E, id: InodeId) -> Result<Inode, Failure> {
    environment.read(move |view| tree::inode(view, id).map_err(refused)).await
}

/// The inode that a name leads to, if the tree has it.
///
/// # Errors
/// That the server is busy or shutting down.
pub async fn child<E: Environment>(
    environment: &E,
    directory: InodeId,
    name: FileName,
) -> Result<Option<Inode>, Failure> {
    let query = environment.read(move |view| {
        let entry = tree::entry(view, directory, &name).map_err(broken)?;
        entry.map(|entry| tree::named(view, &entry).map_err(broken)).transpose()
    });
    query.await
}

/// The path of an inode, for people; its id when it has no name any more.
pub async fn path_of<E: Environment>(environment: &E, inode: &Inode) -> PathBytes {
    let (id, wanted) = (inode.id, inode.clone());
    let path = environment.read(move |view| tree::path(view, &wanted).map_err(broken)).await;
    path.ok().flatten().unwrap_or_else(|| id.to_string().into_bytes())
}

/// Which directories a walk lists before it reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlisted {
    /// It asks their buckets.
    List,
    /// It asks their buckets, also for those that were listed before.
    Refresh,
    /// It takes what is there.
    Leave,
}

/// Everything at and below one inode, a page at a time; a directory before what is in it. Holds a
/// position for each level, one for each other directory of that level's last page, and one page.
#[derive(Debug)]
pub struct Walk {
    /// Where it begins, and whether it has.
    top: (InodeId, bool),
    open: Vec<Position>,
    /// Directories that lie too deep, of which nobody was told yet.
    too_deep: Vec<Position>,
    /// The directory that could not be listed just now.
    failed: Option<Position>,
    levels_max: u32,
    branch: Option<Arc<FileName>>,
    unlisted: Unlisted,
    caller: Option<Caller>,
}

#[derive(Debug, Clone)]
struct Position {
    directory: InodeId,
    cookie: u64,
    /// How far below the top it lies.
    level: u32,
    /// The directory right below the top that it is, or lies in: shared, as there may be hundreds
    /// of positions for each level.
    branch: Option<Arc<FileName>>,
}

/// Entries of one page: keeps a query of the store short.
const PAGE_ENTRIES: usize = 256;

/// The levels that are walked. Renames can make deeper trees: there is no path to the bottom then.
const LEVELS_MAX: u32 = 4096;

impl Walk {
    /// Begins at `top`.
    #[must_use]
    pub fn new(top: InodeId, unlisted: Unlisted) -> Self {
        Self {
            top: (top, false),
            open: Vec::new(),
            too_deep: Vec::new(),
            failed: None,
            levels_max: LEVELS_MAX,
            branch: None,
            unlisted,
            caller: None,
        }
    }

    /// The same walk over fewer levels.
    #[cfg(test)]
    pub(super) fn at_most(self, levels_max: u32) -> Self {
        Self { levels_max, ..self }
    }

    /// The same walk for a user: a directory that they may not read and search is an error
    /// ([`ErrorKind::PermissionDenied`]).
    #[must_use]
    pub fn seen_by(self, caller: &Caller) -> Self {
        Self { caller: Some(caller.clone()), ..self }
    }

    /// The name of the directory right below the top in which all lies that came, or failed, last;
    /// none for what lies in the top itself.
    pub(super) fn branch(&self) -> Option<&FileName> {
        self.branch.as_deref()
    }

    /// Goes on with the directory that could not be listed just now. Whether there is one.
    pub(super) fn try_again(&mut self) -> bool {
        let failed = self.failed.take();
        let is_there = failed.is_some();
        self.open.extend(failed);
        is_there
    }

    /// Where the next step is.
    pub(super) fn at(&self) -> InodeId {
        self.open.last().map_or(self.top.0, |next| next.directory)
    }

    /// The directory of which the next step asks its bucket, if it does.
    pub(super) async fn asks<E: Environment>(
        &self,
        importer: &Arc<Importer<E>>,
    ) -> Option<InodeId> {
        let next = self.open.last().filter(|next| self.too_deep.is_empty() && next.cookie == 0)?;
        let asks = asks(self.unlisted, importer, next.directory).await;
        asks.unwrap_or(false).then_some(next.directory)
    }

    /// Goes on behind the directory of which the next step would ask its bucket.
    pub(super) fn pass_over(&mut self) {
        self.failed = None;
        if let Some(passed) = self.open.pop() {
            self.branch = passed.branch;
        }
    }

    /// Some more inodes, or `None` at the end; no inodes where the next directory is empty. A
    /// directory that cannot be listed is an error, after which the walk goes on behind it.
    ///
    /// # Errors
    /// The directory that failed, and why; [`ErrorKind::NotSupported`] for one that lies too deep.
    pub async fn next<E: Environment>(
        &mut self,
        environment: &E,
        importer: &Arc<Importer<E>>,
    ) -> Result<Option<VecDeque<Inode>>, (InodeId, Failure)> {
        self.failed = None;
        let (top, has_begun) = self.top;
        if !has_begun {
            self.top.1 = true;
            let inode = inode(environment, top).await.map_err(|failure| (top, failure))?;
            if inode.is_directory() {
                self.enter(top, 0, None);
            }
            return Ok(Some(VecDeque::from([inode])));
        }
        if let Some(Position { directory, branch, .. }) = self.too_deep.pop() {
            self.branch = branch;
            return Err((directory, too_deep(directory, self.levels_max)));
        }
        let Some(position) = self.open.last() else { return Ok(None) };
        let Position { directory, cookie, level, branch } = position.clone();
        self.branch.clone_from(&branch);
        if cookie == 0
            && let Err(failure) = self.begin(environment, importer, directory).await
        {
            self.failed = self.open.pop();
            return Err((directory, failure));
        }
        let page = match page(environment, directory, cookie).await {
            Ok(page) => page,
            Err(failure) => {
                self.open.pop();
                return Err((directory, failure));
            }
        };
        match (page.last(), self.open.last_mut()) {
            (Some(&(last, _)), Some(position)) if page.len() == PAGE_ENTRIES => {
                position.cookie = last;
            }
            // There is nothing behind it: the next step is in another directory, and knows that.
            _ => drop(self.open.pop()),
        }
        let inodes: VecDeque<Inode> = page.into_iter().map(|(_, inode)| inode).collect();
        for inode in inodes.iter().rev().filter(|inode| inode.is_directory()) {
            let own = inode.parent.as_ref().filter(|_| directory == top);
            let own = own.map(|parent| Arc::new(parent.name.clone()));
            self.enter(inode.id, level + 1, own.or_else(|| branch.clone()));
        }
        Ok(Some(inodes))
    }

    fn enter(&mut self, directory: InodeId, level: u32, branch: Option<Arc<FileName>>) {
        let position = Position { directory, cookie: 0, level, branch };
        match level < self.levels_max {
            true => self.open.push(position),
            false => self.too_deep.push(position),
        }
    }

    /// Does what a directory needs before its first page.
    async fn begin<E: Environment>(
        &self,
        environment: &E,
        importer: &Arc<Importer<E>>,
        directory: InodeId,
    ) -> Result<(), Failure> {
        if let Some(caller) = &self.caller
            && !may_list(environment, caller, directory).await?
        {
            return Err(ErrorKind::PermissionDenied.into());
        }
        list(self.unlisted, importer, directory).await
    }
}

fn too_deep(directory: InodeId, levels: u32) -> Failure {
    let words = format!(
        "the directory with inode number {} lies {levels} levels down, and nothing in it is looked \
         at: move it further up",
        directory.0
    );
    Failure::new(ErrorKind::NotSupported, words)
}

/// Whether the user may see what is in a directory.
pub(super) async fn may_list<E: Environment>(
    environment: &E,
    caller: &Caller,
    directory: InodeId,
) -> Result<bool, Failure> {
    let caller = caller.clone();
    let query = environment.read(move |view| {
        let directory = tree::inode(view, directory).map_err(refused)?;
        for access in [Access::Read, Access::Search] {
            match permission::check(view, &caller, &directory, access) {
                Ok(()) => {}
                Err(ApplyError::Refused(_)) => return Ok(false),
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(true)
    });
    query.await
}

/// Checks one access of a user to an inode.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`]; that the server is busy or shutting down.
pub(super) async fn check<E: Environment>(
    environment: &E,
    caller: &Caller,
    inode: &Inode,
    access: Access,
) -> Result<(), Failure> {
    let (caller, inode) = (caller.clone(), inode.clone());
    let query = environment
        .read(move |view| permission::check(view, &caller, &inode, access).map_err(refused));
    query.await
}

/// Whether a directory's bucket is to be asked. What is here already must not wait for the turns of
/// a slow one.
async fn asks<E: Environment>(
    unlisted: Unlisted,
    importer: &Arc<Importer<E>>,
    directory: InodeId,
) -> Result<bool, Failure> {
    match unlisted {
        Unlisted::List => importer.is_due(directory).await,
        Unlisted::Refresh => Ok(true),
        Unlisted::Leave => Ok(false),
    }
}

async fn list<E: Environment>(
    unlisted: Unlisted,
    importer: &Arc<Importer<E>>,
    directory: InodeId,
) -> Result<(), Failure> {
    if !asks(unlisted, importer, directory).await? {
        return Ok(());
    }
    let _turn = importer.turn(directory).await?;
    match unlisted {
        Unlisted::List => importer.whole(directory).await,
        Unlisted::Refresh => importer.refresh(directory, |_| ()).await,
        Unlisted::Leave => Ok(()),
    }
}

async fn page<E: Environment>(
    environment: &E,
    directory: InodeId,
    cookie: u64,
) -> Result<Vec<(u64, Inode)>, Failure> {
    let query = environment.read(move |view| {
        let listed = tree::list(view, directory, cookie, PAGE_ENTRIES).map_err(broken)?;
        let inodes = listed.into_iter().map(|(_, entry)| {
            tree::named(view, &entry).map(|inode| (entry.cookie, inode)).map_err(broken)
        });
        inodes.collect()
    });
    query.await
}

/// What a query's refusal is to the caller.
pub(super) fn refused(error: ApplyError) -> Failure {
    match error {
        ApplyError::Refused(kind) => kind.into(),
        ApplyError::Store(error) => broken(error),
    }
}
