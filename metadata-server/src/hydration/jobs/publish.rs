//! Publishes a directory: behind an export of everything in it, one object that names all others.
//!
//! Who finds the manifest knows that every object in it stood in the bucket before, whole, and in
//! which version. A checkpoint is read by it, or not at all; a directory that is exported again
//! keeps the manifest of before until the new one takes its place.

use std::{collections::HashSet, sync::Arc};

use millrace_object_source::{Condition, PosixAttributes};
use millrace_protocol::cluster::LinkMode;
use millrace_types::{ErrorKind, Failure, FileName, InodeId};
use serde::Serialize;

use super::{
    Context, Environment,
    copy::Elsewhere,
    file_export::{Source, own_version},
    symlink_export,
};
use crate::{
    hydration::{
        destination::{Destination, destination, prefix_of},
        import::{Linked, broken, linked_anywhere},
        walk::{Unlisted, Walk, inode, path_of, refused},
    },
    leases::touched::writers,
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

/// The manifest's name in the directory.
pub(super) const NAME: &str = ".millrace-manifest.json";

/// Files of one manifest: 15 MiB of it, one put.
pub(super) const FILES_MAX: usize = 100_000;

#[derive(Debug, Serialize)]
struct Manifest {
    /// Of this description.
    format: u32,
    /// Of the cluster that put the objects there.
    cluster: String,
    /// RFC 3339, in UTC.
    published: String,
    /// What the keys begin with.
    prefix: String,
    bytes: u64,
    files: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    /// The key is the prefix and this.
    path: String,
    size: u64,
    /// The entity tag of the version, with its quotes; of a symbolic link none.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Where a symbolic link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink: Option<String>,
}

/// Refuses what cannot be published: a file, and what lies below no link that exports.
///
/// # Errors
/// [`ErrorKind::NotDirectory`]; [`ErrorKind::InvalidArgument`]; [`ErrorKind::ReadOnly`].
pub(super) async fn check<E: Environment>(
    environment: &E,
    top: InodeId,
    is_elsewhere: bool,
) -> Result<(), Failure> {
    match is_elsewhere {
        true => inode(environment, top).await?.directory().map(|_| ()).map_err(Failure::from),
        false => place(environment, top).await.map(|_| ()),
    }
}

/// Behind an export job: puts the manifest there, if nothing has failed.
pub(super) async fn run<E: Environment>(context: &Context<'_, E>) {
    if context.progress.errors() == 0
        && let Err(failure) = context.patiently(context.job.root, || publish(context)).await
    {
        context.fail_id(context.job.root, failure).await;
    }
}

/// Whether a path is that of a manifest, of this directory or of another one below it.
pub(super) fn is_manifest(path: &str) -> bool {
    path.rsplit('/').next() == Some(NAME)
}

/// Leaves a manifest out of what goes to another place: it names what stands where it lies, and
/// there it would be taken for the one of that place.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] where the job is to copy nothing else.
pub(super) async fn leave<E: Environment>(
    context: &Context<'_, E>,
    id: InodeId,
) -> Result<(), Failure> {
    let words = "a manifest names the objects of its own place: say --atomic for one of another";
    if id == context.job.root {
        return Err(Failure::new(ErrorKind::InvalidArgument, words));
    }
    context.left_out_id(id, words.to_owned()).await;
    Ok(())
}

/// Refuses to name a version of an object that the bucket has not any more. For each file that the
/// job need not send: of the others the bucket has just said which version it has.
///
/// # Errors
/// [`ErrorKind::ObjectChanged`], when it has another version or none; those of the bucket.
pub(super) async fn check_stands<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
) -> Result<(), Failure> {
    let Some(known) = own_version(source) else { return Ok(()) };
    // The manifest of before is named by none, and was perhaps imported before the last one came.
    let parent = source.inode.parent.as_ref();
    if parent.is_some_and(|at| at.directory == context.job.root && is_name(&at.name)) {
        return Ok(());
    }
    let Destination { bucket, key, .. } = &source.destination;
    let became = match context.importer.bucket(bucket)?.look(key).await? {
        Some(head) if head.version.tag.as_str() == known => return Ok(()),
        Some(_) => "was replaced in the bucket: an import has the file follow",
        None => "is gone from the bucket: an import removes the file here, too",
    };
    Err(Failure::new(ErrorKind::ObjectChanged, format!("{key} {became}; nothing is published")))
}

/// The directory, and what its keys begin with.
async fn place<E: Environment>(environment: &E, top: InodeId) -> Result<(Linked, String), Failure> {
    let query = environment.read(move |view| {
        tree::inode(view, top).map_err(refused)?.directory()?;
        let linked = linked_anywhere(view, top)?;
        let mode = match &linked {
            Some(linked) => {
                let record: Option<LinkRecord> =
                    records::read(view, &keys::link(linked.link)).map_err(broken)?;
                record.map(|record| record.mode)
            }
            None => None,
        };
        Ok((linked, mode, prefix_of(view, top)?))
    });
    match query.await? {
        (Some(linked), Some(LinkMode::ImportExport), Some(prefix)) => Ok((linked, prefix)),
        (Some(_), Some(_), Some(_)) => {
            let words = "the link does not export: add it with --mode import-export";
            Err(Failure::new(ErrorKind::ReadOnly, words))
        }
        _ => {
            let words = "only a directory in a linked directory can be published";
            Err(Failure::new(ErrorKind::InvalidArgument, words))
        }
    }
}

async fn publish<E: Environment>(context: &Context<'_, E>) -> Result<(), Failure> {
    let environment = &**context.environment;
    let top = inode(environment, context.job.root).await?;
    let (bucket, prefix, files) = match context.elsewhere {
        Some(to) => (Arc::clone(&to.open), to.prefix().to_owned(), copies(context, to).await?),
        None => {
            let (linked, prefix) = place(environment, top.id).await?;
            let files = entries(context, &linked, &prefix).await?;
            (context.importer.bucket(&linked.bucket)?, prefix, files)
        }
    };
    let now = environment.now();
    let manifest = Manifest {
        format: 1,
        cluster: environment.cluster().to_string(),
        published: jiff::Timestamp::from_nanosecond(i128::from(now.0))
            .map_err(|_| ErrorKind::Internal)?
            .to_string(),
        bytes: files.iter().map(|entry| entry.size).sum(),
        prefix: prefix.clone(),
        files,
    };
    let mut text = serde_json::to_vec_pretty(&manifest).map_err(|_| ErrorKind::Internal)?;
    text.push(b'\n');
    let attributes = PosixAttributes {
        mode: Some(0o100_644),
        uid: Some(top.uid),
        gid: Some(top.gid),
        mtime: Some(now),
    };
    let (key, posix) = (format!("{prefix}{NAME}"), attributes.to_metadata(None)?);
    let (metadata, condition) = match context.elsewhere {
        // The one of before is older in any case: whoever puts the last one has seen all of it.
        None => (posix, Condition::None),
        Some(to) => {
            let mut path = path_of(environment, &top).await;
            path.extend_from_slice(b"/");
            path.extend_from_slice(NAME.as_bytes());
            to.manifest(&key, (&top, &path), &posix).await?
        }
    };
    bucket.put_small(&key, vec![text.into()], &metadata, &condition).await?;
    tracing::info!(key, files = manifest.files.len(), bytes = manifest.bytes, "published");
    Ok(())
}

/// All that lies below the directory, as its objects are.
async fn entries<E: Environment>(
    context: &Context<'_, E>,
    linked: &Linked,
    prefix: &str,
) -> Result<Vec<Entry>, Failure> {
    let environment = &**context.environment;
    let mut entries = Vec::new();
    let mut linked_twice = HashSet::new();
    // What nobody has listed here is in the bucket too, and belongs to it.
    let mut walk = Walk::new(context.job.root, Unlisted::List);
    while let Some(page) = walk.next(environment, context.importer).await.map_err(|(_, e)| e)? {
        for inode in page {
            let named_again = inode.links > 1 && !linked_twice.insert(inode.id);
            if inode.is_directory() || matches!(inode.body, Body::Special) || named_again {
                continue;
            }
            let is_symlink = matches!(&inode.body, Body::Symlink(_));
            // Nothing but its time says whether the export has met it.
            if is_symlink && inode.changed >= context.job.job.started {
                match Box::pin(symlink_export::run(context, inode.id)).await {
                    Ok(()) => {}
                    Err(failure) if failure.kind == ErrorKind::Stale => {
                        return Err(changed(environment, &inode).await);
                    }
                    Err(failure) => return Err(failure),
                }
            }
            let (link, wanted) = (linked.link, prefix.to_owned());
            let (id, count, parent) = (inode.id, inode.change_count, inode.parent.clone());
            let query = environment.read(move |view| {
                let Some(now) = tree::find(view, id).map_err(broken)? else { return Ok(None) };
                let is_same = now.change_count == count && now.parent == parent;
                match is_symlink && !is_same {
                    true => Ok(None),
                    false => entry(view, &now, link, &wanted),
                }
            });
            match query.await? {
                Some(found) if found.path == NAME => {}
                Some(found) => entries.push(found),
                None => return Err(changed(environment, &inode).await),
            }
            if entries.len() > FILES_MAX {
                return Err(too_many());
            }
        }
    }
    Ok(entries)
}

/// All that lies below the directory, as it stands at another place.
async fn copies<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
) -> Result<Vec<Entry>, Failure> {
    let environment = &**context.environment;
    let mut entries = Vec::new();
    let mut linked_twice = HashSet::new();
    let mut walk = Walk::new(context.job.root, Unlisted::Leave);
    while let Some(page) = walk.next(environment, context.importer).await.map_err(|(_, e)| e)? {
        for inode in page {
            let named_again = inode.links > 1 && !linked_twice.insert(inode.id);
            if inode.is_directory() || matches!(inode.body, Body::Special) || named_again {
                continue;
            }
            let parent = inode.parent.as_ref();
            if parent.is_some_and(|at| is_name(&at.name)) {
                continue;
            }
            let id = inode.id;
            let open = environment.read(move |view| writers(view, id).map_err(broken)).await?;
            let Some(copied) = to.copied(&inode).filter(|_| open.is_empty()) else {
                return Err(changed(environment, &inode).await);
            };
            let symlink = match &inode.body {
                Body::Symlink(target) => Some(String::from_utf8_lossy(target).into_owned()),
                _ => None,
            };
            let tag = symlink.is_none().then(|| copied.object.tag.as_str().to_owned());
            entries.push(Entry { path: copied.path, size: copied.object.size, tag, symlink });
            if entries.len() > FILES_MAX {
                return Err(too_many());
            }
        }
    }
    Ok(entries)
}

fn is_name(name: &FileName) -> bool {
    name.as_bytes() == NAME.as_bytes()
}

fn too_many() -> Failure {
    let words = format!("more than {FILES_MAX} files are not published at once");
    Failure::new(ErrorKind::InvalidArgument, words)
}

/// `None` for what the bucket does not have as it is now.
fn entry(
    view: &dyn View,
    inode: &Inode,
    link: millrace_types::LinkId,
    prefix: &str,
) -> Result<Option<Entry>, Failure> {
    let there = destination(view, inode)?;
    let path = there.key.strip_prefix(prefix).filter(|_| there.link == link);
    let Some(path) = path.map(str::to_owned) else {
        let words = format!("{} belongs to another link: publish it by itself", there.key);
        return Err(Failure::new(ErrorKind::InvalidArgument, words));
    };
    match &inode.body {
        Body::Symlink(target) => Ok(Some(Entry {
            path,
            size: target.len() as u64,
            tag: None,
            symlink: Some(String::from_utf8_lossy(target).into_owned()),
        })),
        Body::File(file) => {
            let agrees = matches!(file.state, ObjectState::Clean | ObjectState::Exported)
                && writers(view, inode.id).map_err(broken)?.is_empty();
            let origin = file.origin.as_ref().filter(|origin| agrees && there.is_of(origin));
            Ok(origin.map(|origin| Entry {
                path,
                size: origin.size,
                tag: Some(origin.tag.clone()),
                symlink: None,
            }))
        }
        Body::Directory(_) | Body::Special => Ok(None),
    }
}

async fn changed<E: Environment>(environment: &E, inode: &Inode) -> Failure {
    let path = path_of(environment, inode).await;
    let words = format!(
        "{} was changed while its directory was published: nothing says that it is whole; run the \
         job again",
        path.escape_ascii(),
    );
    Failure::new(ErrorKind::InUse, words)
}
