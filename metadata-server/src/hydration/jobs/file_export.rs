//! One file to its object.
//!
//! ```text
//!   BeginExport (logged: id, change count, condition, part size)
//!     -> create upload, or that of an earlier run -> RecordUpload (logged)
//!     -> parts by the targets, those that are not there
//!     -> change count still the same? -> complete under the condition -> HEAD
//!     -> CompleteExport (logged) -> MarkExportedAt at the targets -> forgotten (logged)
//! ```
//!
//! A file of one chunk goes by one conditional put of the target that holds it: a chunk is read as
//! it is at one moment, so that the object is a version that existed. Where the bucket has told the
//! checksum of what it has, there is no HEAD. If the file changed meanwhile it is exported once
//! more. Every answer that leaves open what happened is settled by HEAD and the
//! export's id in the object's metadata.

use std::sync::Arc;

use millrace_object_source::{
    Bucket, Error as BucketError, Head, ObjectVersion, PosixAttributes, Stored,
};
use millrace_protocol::{
    capability::{Content, Origin},
    cluster::LinkMode,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, Timestamp};
use tokio::sync::Semaphore;

use super::{
    Context, Environment,
    begun::{self, Before, Planned},
    needed::check_not_needed,
    publish,
    settle::{self, Export, Published},
    upload::{self, SentPart},
};
use crate::{
    hydration::{
        conflicts::missing,
        destination::{Destination, destination},
        exporting::Turn,
        import::broken,
        own::OwnMark,
        walk::refused,
    },
    namespace::{Body, FileBody, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, DeletionRecord, Whiteout},
    },
};

/// How often a file that changes under its export is begun again.
const ATTEMPTS: usize = 3;

/// How often one is begun again whose targets were restarted before they knew of its object.
const UNMARKED_MAX: usize = 10;

/// A file and where it goes.
pub(super) struct Source {
    pub(super) inode: Inode,
    /// With the bytes of a file that lives in its inode.
    pub(super) body: FileBody,
    pub(super) content: Content,
    pub(super) destination: Destination,
    /// Tag of the object whose name was removed here, or replaced by this file.
    pub(super) removed: Option<String>,
    /// The same, as it was read.
    known: Option<String>,
    /// Tag of an object that an earlier export of this file made, which nobody waited for any more.
    own: Option<String>,
    /// The file that had the name then.
    pub(super) moved: Option<InodeId>,
}

/// What of a file went to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// So many bytes.
    Now(u64),
    /// So many bytes, by the same job before the server was restarted.
    Before(u64),
    /// The bucket has it as it is.
    Nothing,
}

/// Exports one regular file, if the bucket lacks its content.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    inode: InodeId,
) -> Result<Sent, Failure> {
    let mut counted = false;
    let mut forgotten = false;
    let mut own = None;
    let mut other = None;
    let mut sent = None;
    let (mut attempts, mut unmarked) = (0, 0);
    context.unmarked.leave(inode).await;
    settle::earlier(context.environment, context.importer, context.unmarked, inode).await?;
    while attempts < ATTEMPTS && unmarked < UNMARKED_MAX {
        let (mut source, _turn) = take_source(context, inode).await?;
        if forgotten {
            source.removed = None;
        }
        if let Some((tag, id)) = other.clone() {
            (source.removed, source.moved) = (Some(tag), Some(id));
        }
        source.own = own.clone();
        if own_version(&source).is_none() {
            check_not_needed(context, &source).await?;
        }
        let size = source.inode.size;
        let needed = is_needed(&source);
        let earlier = was_sent_since(&source, context.job.job.started);
        if !counted {
            context.progress.found(inode, if needed || earlier { size } else { 0 });
            counted = true;
        }
        if !needed {
            if !earlier {
                if context.is_atomic {
                    publish::check_stands(context, &source).await?;
                }
                return Ok(Sent::Nothing);
            }
            context.progress.moved(inode, size);
            return Ok(Sent::Before(size));
        }
        match once(context, uploads, &source, sent.take()).await? {
            Attempt::Exported => {
                context.progress.moved(inode, size);
                return Ok(Sent::Now(size));
            }
            Attempt::Again => {}
            Attempt::Unmarked(stands) => {
                unmarked += 1;
                sent = stands;
                continue;
            }
            Attempt::NothingToReplace => forgotten = true,
            Attempt::BehindOwn(tag) => own = Some(tag),
            Attempt::BehindOther(tag, id) => other = Some((tag, id)),
        }
        attempts += 1;
    }
    let text = "the file, or its upload in the bucket, keeps changing while it is exported";
    Err(Failure::new(ErrorKind::InUse, text))
}

/// What one attempt came to.
enum Attempt {
    /// The object stands.
    Exported,
    /// The file, or its upload, did not last until the end.
    Again,
    /// The object stands, but not all targets know which of their blocks it has. If it was sent by
    /// parts they can look.
    Unmarked(Option<Standing>),
    /// The object that the file was to replace, whose name was removed here, is gone from the
    /// bucket.
    NothingToReplace,
    /// The bucket has an older version of this file that an earlier export made, late, with this
    /// tag.
    BehindOwn(String),
    /// The bucket has an object, with this tag, that this cluster made of a file which was moved
    /// away and still stands against it: a directory was renamed, say, and made anew.
    BehindOther(String, InodeId),
}

/// An object that an earlier attempt made.
struct Standing {
    export: Export,
    version: ObjectVersion,
    parts: Vec<SentPart>,
}

/// Counts one regular file as found, if the bucket lacks its content.
pub(super) async fn look<E: Environment>(
    context: &Context<'_, E>,
    inode: InodeId,
) -> Result<(), Failure> {
    let source = read_source(context, inode).await?;
    if is_needed(&source) {
        context.would_id(inode, source.inode.size).await;
    }
    Ok(())
}

/// Whether the export of a file asks its bucket for anything, as far as its own state tells.
pub(super) async fn asks<E: Environment>(
    context: &Context<'_, E>,
    inode: InodeId,
) -> Result<bool, Failure> {
    Ok(context.is_atomic || is_needed(&read_source(context, inode).await?))
}

/// Refuses what lies below a link that does not export.
pub(super) async fn check_exports<E: Environment>(
    context: &Context<'_, E>,
    inode: &Inode,
) -> Result<(), Failure> {
    let id = inode.id;
    let destination = context.environment.read(move |view| {
        let inode = tree::inode(view, id).map_err(refused)?;
        destination(view, &inode)
    });
    check_mode(&destination.await?)
}

/// One attempt. What `stands` of an earlier one need not be sent again.
async fn once<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    source: &Source,
    stands: Option<Standing>,
) -> Result<Attempt, Failure> {
    check_mode(&source.destination)?;
    let bucket = context.importer.bucket(&source.destination.bucket)?;
    let left = match begun::before(context, source, &bucket).await? {
        Before::Nothing => None,
        Before::Left(left) => Some(left),
        Before::Settled => return Ok(Attempt::Again),
    };
    let stands = stands.filter(|stands| is_of(stands, source));
    let planned = Planned::new(source, left)?;
    let earlier = planned.left.as_ref().map(|left| left.export);
    let earlier = earlier.or_else(|| stands.as_ref().map(|stands| stands.export.id));
    let export = begun::begin(context, source, planned.plan.part_size(), earlier).await?;
    if let Some(left) = &planned.left {
        begun::record_upload(context, &export, &left.upload).await?;
    }
    // Marks of an earlier one that are on their way would be set on what is read from now on.
    context.unmarked.leave(source.inode.id).await;
    if export.change_count != source.inode.change_count {
        settle::give_up(context.environment, &bucket, &export).await?;
        return Ok(Attempt::Again);
    }
    if let Some(Standing { version, parts, .. }) = stands {
        if upload::is_still_read(context, uploads, source, &export, &parts).await? {
            return publish(context, export, version, parts).await;
        }
        // Another id, or the one that stands would be taken for what is sent from here on.
        begun::forget(context, &export).await?;
        return Ok(Attempt::Again);
    }
    let uploaded = upload::run(context, uploads, source, &bucket, &export, planned).await;
    let (version, parts) = match uploaded {
        Ok(upload::End::Stored(put, parts)) => {
            (stored(&bucket, &export, source.inode.size, put).await?, parts)
        }
        Ok(upload::End::Changed) => {
            settle::give_up(context.environment, &bucket, &export).await?;
            return Ok(Attempt::Again);
        }
        Ok(upload::End::Interrupted(failure)) => return Err(failure),
        // Who may not write is not told what stands there either. If an earlier attempt of the same
        // put has won after all, the next export finds its object as an older version of the file.
        Err(failure) if failure.kind == ErrorKind::BucketDenied => {
            return lost(context, source, &bucket, &export, failure).await;
        }
        Err(failure) => match settle::look(&bucket, &export).await? {
            settle::Found::Whole(version) if failure.kind != ErrorKind::Corrupt => {
                (version, Vec::new())
            }
            settle::Found::Nothing => {
                return lost(context, source, &bucket, &export, failure).await;
            }
            // An older version of the file, whatever the failure was: also what is as long, if the
            // bucket said that it had arrived damaged.
            settle::Found::Cut(_) | settle::Found::Whole(_) => {
                let words = format!("{} does not have its bytes in the bucket", export.key);
                let cut = Failure::new(ErrorKind::ObjectChanged, words);
                return lost(context, source, &bucket, &export, cut).await;
            }
        },
    };
    publish(context, export, version, parts).await
}

/// Whether an object was made of this very version of a file, and is where and what it replaces.
fn is_of(stands: &Standing, source: &Source) -> bool {
    let Standing { export, version, .. } = stands;
    export.change_count == source.inode.change_count
        && own_version(source).as_deref() == Some(version.tag.as_str())
}

/// The object stands.
async fn publish<E: Environment>(
    context: &Context<'_, E>,
    export: Export,
    version: ObjectVersion,
    parts: Vec<SentPart>,
) -> Result<Attempt, Failure> {
    let Context { environment, unmarked, .. } = context;
    Ok(match settle::publish(environment, unmarked, &export, version.clone()).await? {
        Published::Exported => Attempt::Exported,
        Published::Changed => Attempt::Again,
        Published::Unmarked => {
            let stands = Standing { export, version, parts };
            Attempt::Unmarked(Some(stands).filter(|stands| !stands.parts.is_empty()))
        }
    })
}

/// What the bucket says of the object that was just stored, unless it has said already that it has
/// these bytes. Somebody may have replaced it since: then it is the tag that counts, and the next
/// listing finds the other one.
async fn stored(
    bucket: &Bucket,
    export: &Export,
    size: u64,
    put: Stored,
) -> Result<ObjectVersion, Failure> {
    let Stored { tag, is_checked } = put;
    if is_checked {
        return Ok(ObjectVersion { tag, size, modified: Timestamp(0) });
    }
    match bucket.head(&export.key).await {
        Ok(head) if head.version.tag == tag && head.version.size == size => Ok(head.version),
        Ok(head) if head.version.tag == tag => Err(Failure::new(
            ErrorKind::Corrupt,
            format!("{} has {} bytes in the bucket, not {size}", export.key, head.version.size),
        )),
        Ok(_) | Err(_) => Ok(ObjectVersion { tag, size, modified: Timestamp(0) }),
    }
}

/// The upload failed for sure. If that was because somebody else changed the object, the file is a
/// conflict from now on.
async fn lost<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
    bucket: &Bucket,
    export: &Export,
    failure: Failure,
) -> Result<Attempt, Failure> {
    if let Err(error) = settle::give_up(context.environment, bucket, export).await {
        // The file's next export does that first.
        tracing::warn!(key = %export.key, %error, "an upload cannot be given up now");
        // Not the first one, which may say that the file is gone, of which nothing is known.
        return Err(if failure.kind == ErrorKind::Stale { error } else { failure });
    }
    let replaces = replaced(source).is_some();
    match failure.kind {
        // Gone by itself, without an object: a rule of the bucket, or an operator, ended it.
        ErrorKind::Stale => return Ok(Attempt::Again),
        // What was to be read is gone with the content that it belonged to.
        ErrorKind::Lost | ErrorKind::StaleContent | ErrorKind::StaleEpoch
            if !is_unchanged(&**context.environment, export.inode, export.change_count).await? =>
        {
            return Ok(Attempt::Again);
        }
        ErrorKind::ObjectChanged => {}
        // Some buckets say so where a condition names an object that is gone.
        ErrorKind::NotFound if replaces => {}
        _ => return Err(failure),
    }
    let key = &export.key;
    let head = bucket.head(key).await;
    if let Ok(head) = &head
        && own_mark(&**context.environment, source).await?.has_made(&head.metadata)
        // Bytes that are nowhere but in the version before it are gone: that is for a person.
        && missing(&**context.environment, &source.inode, &source.body).await?.0 == 0
    {
        tracing::info!(inode = %export.inode, %key, "an upload arrived after it was given up");
        return Ok(Attempt::BehindOwn(head.version.tag.as_str().to_owned()));
    }
    let own = own_version(source).is_some();
    if !own
        && settle::others(context.environment, context.importer, context.unmarked, export).await?
    {
        return Ok(Attempt::Again);
    }
    // Another file may have left its object behind since, by an export to where it is now.
    if !own && read_source(context, export.inode).await?.known != source.known {
        return Ok(Attempt::Again);
    }
    if !own && replaces && matches!(head, Err(BucketError::NotFound { .. })) {
        return Ok(Attempt::NothingToReplace);
    }
    if let Ok(head) = head
        && !own
        && !replaces
        && let Some(id) = left_by(context, export, &head).await?
    {
        return Ok(Attempt::BehindOther(head.version.tag.as_str().to_owned(), id));
    }
    if !own && source.body.origin.is_some() {
        return Err(Failure::new(
            ErrorKind::Conflict,
            format!(
                "the bucket has another object at {key}, which this file did not come from; \
                 nothing was overwritten: rename the file, or remove the object"
            ),
        ));
    }
    if let Err(error) = context.importer.object(export.inode).await {
        tracing::warn!(%key, %error, "the bucket's version of a conflict cannot be recorded");
    }
    Err(Failure::new(
        ErrorKind::Conflict,
        format!("{key} was changed in the bucket too; nothing was overwritten"),
    ))
}

/// The file that an object at the key of an export was made of, if that is elsewhere and stands
/// against this very version still: nobody else can need it.
async fn left_by<E: Environment>(
    context: &Context<'_, E>,
    export: &Export,
    head: &Head,
) -> Result<Option<InodeId>, Failure> {
    let (link, key, tag) = (export.link, export.key.clone(), head.version.tag.as_str().to_owned());
    let maker = OwnMark::maker(&**context.environment, link, &key, &head.metadata).await?;
    let Some(id) = maker.filter(|id| *id != export.inode) else { return Ok(None) };
    let query = context.environment.read(move |view| {
        let inode = tree::find(view, id).map_err(broken)?;
        let Some(Body::File(body)) = inode.map(|inode| inode.body) else { return Ok(false) };
        let is_its =
            |origin: &Origin| (origin.link, &origin.key, &origin.tag) == (link, &key, &tag);
        Ok(body.origin.as_ref().is_some_and(is_its))
    });
    Ok(query.await?.then_some(id))
}

/// The version that the object must still have: the one that the file came from or went to, or
/// whose name was taken away here before this file got it (as a checkpoint is renamed over the last
/// one).
pub(super) fn replaced(source: &Source) -> Option<String> {
    source.own.clone().or_else(|| own_version(source)).or_else(|| source.removed.clone())
}

/// The version that the file came from or went to, if its object is the destination.
pub(super) fn own_version(source: &Source) -> Option<String> {
    let origin = source.body.origin.as_ref()?;
    source.destination.is_of(origin).then(|| origin.tag.clone())
}

pub(super) async fn own_mark<E: Environment>(
    environment: &E,
    source: &Source,
) -> Result<OwnMark, Failure> {
    let Destination { link, key, .. } = &source.destination;
    OwnMark::of(environment, source.inode.id, *link, key).await
}

/// Files that were written here, and files that have another name than their object.
fn is_needed(source: &Source) -> bool {
    match source.body.state {
        ObjectState::Local | ObjectState::Dirty | ObjectState::Conflict | ObjectState::Lost => true,
        ObjectState::Clean | ObjectState::Exported => own_version(source).is_none(),
    }
}

/// Whether the file went to the bucket since the job began: before the server was restarted.
fn was_sent_since(source: &Source, began: Timestamp) -> bool {
    source.body.state == ObjectState::Exported && source.inode.changed >= began
}

/// Whether the file is still as it was frozen.
pub(super) async fn is_unchanged<E: Environment>(
    environment: &E,
    inode: InodeId,
    change_count: ChangeCount,
) -> Result<bool, Failure> {
    let query = environment.read(move |view| {
        let found = tree::find(view, inode).map_err(broken)?;
        Ok(found.is_some_and(|inode| inode.change_count == change_count))
    });
    query.await
}

/// What goes into the object's metadata.
pub(super) fn attributes(inode: &Inode) -> PosixAttributes {
    let kind = match &inode.body {
        Body::Symlink(_) => 0o120_000,
        Body::Directory(_) => 0o040_000,
        _ => 0o100_000,
    };
    PosixAttributes {
        mode: Some(kind | u32::from(inode.mode)),
        uid: Some(inode.uid),
        gid: Some(inode.gid),
        mtime: Some(inode.modified),
    }
}

/// What is to be exported now, with the turn of its key: nobody else exports to that until it is
/// dropped.
async fn take_source<'a, E: Environment>(
    context: &'a Context<'_, E>,
    id: InodeId,
) -> Result<(Source, Turn<'a>), Failure> {
    let mut source = read_source(context, id).await?;
    loop {
        let Destination { link, key, .. } = source.destination;
        let turn = context.importer.exporting.take(link, &key).await;
        // Another file's export may have changed what this one replaces.
        source = read_source(context, id).await?;
        if (source.destination.link, &source.destination.key) == (link, &key) {
            return Ok((source, turn));
        }
    }
}

async fn read_source<E: Environment>(
    context: &Context<'_, E>,
    id: InodeId,
) -> Result<Source, Failure> {
    let query = context.environment.read(move |view| {
        let inode = tree::inode(view, id).map_err(refused)?;
        let (Body::File(body), Some(content)) = (&inode.body, inode.content()) else {
            return Err(ErrorKind::InvalidArgument.into());
        };
        let destination = destination(view, &inode)?;
        let (removed, moved) = match removed(view, &inode)? {
            Some(tag) => (Some(tag), moved(view, &inode)?),
            None => queued(view, &destination)?,
        };
        let mut body = (**body).clone();
        // With the inode: it may have none any more a moment later.
        body.inline = tree::inline(view, &inode).map_err(refused)?;
        let known = removed.clone();
        Ok(Source { body, content, destination, removed, known, moved, inode, own: None })
    });
    query.await
}

/// The tag of the object that had the inode's name before, if the name was taken away from it here.
fn removed(view: &dyn View, inode: &Inode) -> Result<Option<String>, Failure> {
    let Some(parent) = &inode.parent else { return Ok(None) };
    let key = keys::whiteout(parent.directory, parent.name.as_bytes());
    let whiteout: Option<Whiteout> = records::read(view, &key).map_err(broken)?;
    Ok(whiteout.map(|whiteout| whiteout.tag).filter(|tag| !tag.is_empty()))
}

/// The tag of an object that waits for being deleted in its bucket, and a file that may need it
/// still: a directory was removed with all in it, and made anew.
fn queued(
    view: &dyn View,
    destination: &Destination,
) -> Result<(Option<String>, Option<InodeId>), Failure> {
    let key = keys::deletion(destination.link, &destination.key);
    let record: Option<DeletionRecord> = records::read(view, &key).map_err(broken)?;
    let record = record.filter(|record| !record.tag.is_empty());
    let Some(DeletionRecord { tag, inodes, .. }) = record else { return Ok((None, None)) };
    // Without a name and open still.
    for id in inodes.into_iter().rev() {
        if tree::find(view, id).map_err(broken)?.is_some() {
            return Ok((Some(tag), Some(id)));
        }
    }
    Ok((Some(tag), None))
}

/// The file that had the inode's name before, if it was imported.
pub(super) fn moved(view: &dyn View, inode: &Inode) -> Result<Option<InodeId>, Failure> {
    let Some(parent) = &inode.parent else { return Ok(None) };
    let key = keys::moved_file(parent.directory, parent.name.as_bytes());
    let value = view.get(&key).map_err(broken)?;
    let id = value.and_then(|value| value.as_slice().try_into().ok().map(u64::from_be_bytes));
    Ok(id.map(InodeId))
}

pub(super) fn check_mode(destination: &Destination) -> Result<(), Failure> {
    if destination.mode == LinkMode::ImportExport {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::ReadOnly,
        "the link does not export: add it with --mode import-export",
    ))
}
