//! A symbolic link to its object, which holds the target.
//!
//! The object has the id of an export in its metadata, as those of files have. So a link that leads
//! elsewhere by now takes the place of the one that this cluster put there before. A listing that
//! does not ask for each object takes a link's for a file: one that was moved away may need it.

use millrace_object_source::{Bucket, Condition, Error as BucketError, Head, StoredSymlink};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{
    Context, Environment,
    file_export::{attributes, check_mode, moved},
    needed::check_not_needed_by,
};
use crate::{
    hydration::{
        destination::{Destination, destination},
        exporting::Turn,
        import::spec_of,
        own::OwnMark,
        walk::refused,
    },
    namespace::{Body, Inode, tree},
};

/// How often a link is put whose object changes meanwhile.
const ATTEMPTS: usize = 3;

/// Stores a symbolic link, unless the object is there already.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    id: InodeId,
) -> Result<(), Failure> {
    let environment = &**context.environment;
    let (inode, to, _turn) = take(context, id).await?;
    let Body::Symlink(target) = &inode.body else { return Ok(()) };
    check_mode(&to)?;
    let bucket = context.importer.bucket(&to.bucket)?;
    let key = &to.key;
    let own = OwnMark::of(environment, id, to.link, key).await?;
    let mark = format!("{:032x}", own.id(environment.random()));
    let metadata = attributes(&inode).to_metadata(Some(&mark))?;
    let metadata = metadata.with_symlink_target(target, spec_of(&to.bucket)?.location());
    let mut condition = Condition::Absent;
    for _ in 0..ATTEMPTS {
        match bucket.put_small(key, vec![target.clone().into()], &metadata, &condition).await {
            Ok(_) => return Ok(()),
            Err(BucketError::Changed { .. }) => {}
            // Some buckets say so where a condition names an object that is gone.
            Err(BucketError::NotFound { .. }) if matches!(condition, Condition::Matches(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let head = match bucket.head(key).await {
            Ok(head) => head,
            Err(BucketError::NotFound { .. }) => {
                condition = Condition::Absent;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if holds(&bucket, key, &head, target).await? {
            return Ok(());
        }
        if !is_own_link(environment, &to, &head).await? {
            let words = format!(
                "the bucket has another object at {key}; a link is put over no object but a link \
                 that this cluster put there"
            );
            return Err(Failure::new(ErrorKind::Conflict, words));
        }
        let by = environment.read(move |view| {
            let inode = tree::inode(view, id).map_err(refused)?;
            moved(view, &inode)
        });
        if let Some(by) = by.await? {
            check_not_needed_by(context, &to, head.version.tag.as_str(), by).await?;
        }
        condition = Condition::Matches(head.version.tag);
    }
    let words = format!("the object {key} keeps changing while the link is put there");
    Err(Failure::new(ErrorKind::InUse, words))
}

/// A link and where it goes, with the turn of its key: nobody else exports to that until it is
/// dropped.
async fn take<'a, E: Environment>(
    context: &'a Context<'_, E>,
    id: InodeId,
) -> Result<(Inode, Destination, Turn<'a>), Failure> {
    let (_, mut to) = read(context, id).await?;
    loop {
        let turn = context.importer.exporting.take(to.link, &to.key).await;
        // It may have been renamed, or be gone.
        let (inode, now) = read(context, id).await?;
        if (now.link, &now.key) == (to.link, &to.key) {
            return Ok((inode, now, turn));
        }
        to = now;
    }
}

async fn read<E: Environment>(
    context: &Context<'_, E>,
    id: InodeId,
) -> Result<(Inode, Destination), Failure> {
    let query = context.environment.read(move |view| {
        let inode = tree::inode(view, id).map_err(refused)?;
        let to = destination(view, &inode)?;
        Ok((inode, to))
    });
    query.await
}

/// Whether the object is the symbolic link to `target`.
async fn holds(bucket: &Bucket, key: &str, head: &Head, target: &[u8]) -> Result<bool, Failure> {
    if let Some(StoredSymlink::Target(told)) = head.symlink() {
        return Ok(told.as_bytes() == target);
    }
    let size = head.version.size;
    if size != target.len() as u64 {
        return Ok(false);
    }
    let bytes = bucket.get_whole(key, size, &head.version.tag).await?;
    Ok(*bytes == *target)
}

/// Whether an export of this cluster made the object of a symbolic link. One that it made of a file
/// may be needed by that still, wherever the file is now.
async fn is_own_link<E: Environment>(
    environment: &E,
    to: &Destination,
    head: &Head,
) -> Result<bool, Failure> {
    let maker = OwnMark::maker(environment, to.link, &to.key, &head.metadata).await?;
    Ok(head.symlink().is_some() && maker.is_some())
}
