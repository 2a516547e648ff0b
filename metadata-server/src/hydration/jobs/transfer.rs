//! The hydrate and release jobs: everything that a file has in a bucket is fetched, or dropped.

use std::collections::VecDeque;

use millrace_protocol::{admin::JobKind, capability::Content};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{
    Context, Environment,
    dispatch::{Dispatcher, Task},
    release::may_go,
    sources::Sources,
};
use crate::{
    hydration::{
        import::broken,
        walk::{Unlisted, inode},
    },
    namespace::{Body, Inode, tree},
};

/// Works through the job's file or tree.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    let hydrate = context.job.job.kind == JobKind::Hydrate;
    let (task, unlisted) = if hydrate {
        (Task::Hydrate, Unlisted::List)
    } else {
        // What nobody has listed is not here to be released.
        (Task::Release, Unlisted::Leave)
    };
    let map = match context.environment.map().await {
        Ok(map) => map,
        Err(failure) => return context.fail_id(context.job.root, failure).await,
    };
    let mut dispatcher = Dispatcher::new(context, task, map);
    if hydrate {
        dispatcher.set_changed_aside();
    }
    // To read is enough for a hydrate; the owner of a tree may release all of it.
    let viewer = hydrate.then_some(&context.job.caller);
    let mut sources = match Sources::of(context, unlisted, viewer).await {
        Ok(sources) => sources,
        Err(failure) => return context.fail_id(context.job.root, failure).await,
    };
    loop {
        match dispatcher.beside(sources.next(context)).await {
            Ok(None) => break,
            Ok(Some(mut page)) => {
                renew_map(context, &mut dispatcher, &mut page.inodes).await;
                for inode in page.inodes {
                    let look = look(context, &inode, hydrate, page.branch.as_ref());
                    if let Some((content, size)) = dispatcher.beside(look).await {
                        dispatcher.file(inode.id, &content, size).await;
                    }
                }
            }
            Err(unfound) => context.fail(unfound).await,
        }
    }
    dispatcher.finish().await;
    // The bucket has other versions of some objects than their files know, or the files have been
    // exported since they were found: follow that, once.
    for (id, before) in dispatcher.take_changed() {
        if let Some(map) = dispatcher.newer_map().await {
            dispatcher.use_map(map).await;
        }
        if context.is_removed(id).await {
            context.progress.gone(id);
            continue;
        }
        // Where the bucket has none any more, the file goes too.
        let path = context.path_now(id).await;
        // What is under way may be who looks whether the bucket is back.
        let followed = context.patiently(id, || follow(context, id));
        match dispatcher.beside(followed).await {
            Ok((content, size)) => {
                context.progress.resized(id, before, size);
                dispatcher.file(id, &content, size).await;
            }
            Err(failure) if context.is_gone(id, &failure).await => context.progress.gone(id),
            Err(failure) => context.fail_at(id, path, failure),
        }
    }
    dispatcher.finish().await;
}

/// Goes by the map as it is now, and by the inodes of a page as they are after it was read. A
/// target may have come since the job began, in whose groups files lie that were imported since;
/// and of one that was given up others have the groups.
async fn renew_map<E: Environment>(
    context: &Context<'_, E>,
    dispatcher: &mut Dispatcher<'_, E>,
    inodes: &mut VecDeque<Inode>,
) {
    let Some(map) = dispatcher.newer_map().await else { return };
    match again(&**context.environment, inodes).await {
        Ok(now) => {
            *inodes = now;
            dispatcher.use_map(map).await;
        }
        // What is known of the files is older than this map: the one from before stays.
        Err(failure) => tracing::debug!(%failure, "a page cannot be read again"),
    }
}

/// Inodes as they are now, without those that are gone.
async fn again<E: Environment>(
    environment: &E,
    inodes: &VecDeque<Inode>,
) -> Result<VecDeque<Inode>, Failure> {
    let ids: Vec<InodeId> = inodes.iter().map(|inode| inode.id).collect();
    let query = environment.read(move |view| {
        let found = ids.into_iter().map(|id| tree::find(view, id).map_err(broken));
        found.filter_map(Result::transpose).collect()
    });
    query.await
}

/// Takes the new version of a file's object: its content, and how much of it comes from there.
async fn follow<E: Environment>(
    context: &Context<'_, E>,
    id: InodeId,
) -> Result<(Content, u64), Failure> {
    context.importer.object(id).await?;
    let inode = inode(&**context.environment, id).await?;
    let content = inode.content().ok_or(ErrorKind::Stale)?;
    let size = inode.size.min(content.origin_length);
    Ok((content, size))
}

/// What targets are to be asked for of one file: its content, and how much of it.
async fn look<E: Environment>(
    context: &Context<'_, E>,
    inode: &Inode,
    hydrate: bool,
    branch: Option<&FileName>,
) -> Option<(Content, u64)> {
    let (Body::File(body), Some(content)) = (&inode.body, inode.content()) else { return None };
    // Only these bytes can come from the bucket or be dropped because it has them.
    let size = inode.size.min(body.origin_length);
    let mut concerned = size > 0 && body.inline.is_none();
    if concerned && !hydrate {
        let id = inode.id;
        // As it is now: the page may be some moments old.
        match context.environment.read(move |view| may_go(view, id)).await {
            Ok(may_go) => concerned = may_go,
            Err(failure) => {
                context.progress.enter(id, branch);
                context.fail_id(id, failure).await;
                return None;
            }
        }
    }
    if !context.selects(inode).await || !context.may_touch(inode, branch).await {
        return None;
    }
    context.progress.enter(inode.id, branch);
    match (context.dry_run, concerned) {
        (true, true) => context.would_id(inode.id, size).await,
        (true, false) => context.progress.leave(inode.id),
        (false, true) => {
            context.progress.found(inode.id, size);
            return Some((content, size));
        }
        (false, false) => {
            context.progress.found(inode.id, 0);
            context.done_id(inode.id, 0).await;
        }
    }
    None
}
