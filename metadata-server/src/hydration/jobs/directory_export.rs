//! The mark of a directory: an empty object `name/` with its attributes.

use millrace_protocol::cluster;
use millrace_types::Failure;

use super::{
    Context, Environment,
    export::Counted,
    file_export::{self, Sent},
};
use crate::{
    hydration::{
        destination::prefix_of,
        import::{Defaults, linked_anywhere},
    },
    namespace::Inode,
};

/// Marks a directory in the bucket if an import could not make it out of its files.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    inode: &Inode,
) -> Result<Counted, Failure> {
    let Some((bucket, prefix)) = mark_of(context, inode).await? else { return Ok(Counted::No) };
    context.progress.found(inode.id, 0);
    file_export::check_exports(context, inode).await?;
    let bucket = context.importer.bucket(&bucket)?;
    let metadata = file_export::attributes(inode).to_metadata(None)?;
    bucket.mark_directory(&prefix, &metadata).await?;
    Ok(Counted::Yes { sent: Sent::Nothing })
}

/// Where the mark of a directory belongs, if it needs one.
pub(super) async fn mark_of<E: Environment>(
    context: &Context<'_, E>,
    inode: &Inode,
) -> Result<Option<(cluster::Bucket, String)>, Failure> {
    let id = inode.id;
    let Some(parent) = inode.parent.as_ref().map(|parent| parent.directory) else {
        return Ok(None);
    };
    let query = context.environment.read(move |view| {
        let own = linked_anywhere(view, id)?;
        Ok((own, linked_anywhere(view, parent)?, prefix_of(view, id)?))
    });
    let (Some(own), Some(above), Some(prefix)) = query.await? else {
        // The directory of a link itself, or a link that is being removed.
        return Ok(None);
    };
    let Defaults { uid, gid } = above.defaults;
    let guessed = (inode.mode, inode.uid, inode.gid) == (Defaults::DIRECTORY_MODE, uid, gid);
    let needs_one = own.link == above.link && (inode.size == 0 || !guessed);
    Ok(needs_one.then_some((own.bucket, prefix)))
}
