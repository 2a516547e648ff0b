//! One file to its object.
//!
//! ```text
//!   BeginExport (logged: id, change count, condition, part size)
//!     -> create upload -> RecordUpload (logged) -> parts by the targets
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
    settle::{self, Export, Published},
    upload,
};
use crate::{
    command::{BeginExport, Command, Outcome},
    hydration::{
        conflicts::missing,
        destination::{Destination, destination},
        exporting::Turn,
        holdings::reason,
        import::broken,
        own::OwnMark,
        parts::PartPlan,
        walk::{path_of, refused},
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
    removed: Option<String>,
    /// The same, as it was read.
    known: Option<String>,
    /// Tag of an object that an earlier export of this file made, which nobody waited for any more.
    own: Option<String>,
    /// The file that had the name then.
    moved: Option<InodeId>,
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
                return Ok(Sent::Nothing);
            }
            context.progress.moved(inode, size);
            return Ok(Sent::Before(size));
        }
        match once(context, uploads, &source).await? {
            Attempt::Exported => {
                context.progress.moved(inode, size);
                return Ok(Sent::Now(size));
            }
            Attempt::Again => {}
            Attempt::Unmarked => {
                unmarked += 1;
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
    /// The object stands, but not all targets know which of their blocks it has.
    Unmarked,
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

/// One attempt.
async fn once<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    source: &Source,
) -> Result<Attempt, Failure> {
    check_mode(&source.destination)?;
    let size = source.inode.size;
    let plan = PartPlan::new(size, source.content.layout.chunk_size()).ok_or_else(|| {
        Failure::new(
            ErrorKind::FileTooLarge,
            "files beyond 5 TiB cannot be exported: no object is larger",
        )
    })?;
    let bucket = context.importer.bucket(&source.destination.bucket)?;
    let export = begin(context, source, plan.part_size()).await?;
    // Marks of an earlier one that are on their way would be set on what is read from now on.
    context.unmarked.leave(source.inode.id).await;
    if export.change_count != source.inode.change_count {
        settle::give_up(context.environment, &bucket, &export).await?;
        return Ok(Attempt::Again);
    }
    let uploaded = upload::run(context, uploads, source, &bucket, &export, &plan).await;
    let version = match uploaded {
        Ok(upload::End::Stored(put)) => stored(&bucket, &export, size, put).await?,
        Ok(upload::End::Changed) => {
            settle::give_up(context.environment, &bucket, &export).await?;
            return Ok(Attempt::Again);
        }
        Err(failure) => match settle::look(&bucket, &export).await? {
            settle::Found::Whole(version) if failure.kind != ErrorKind::Corrupt => version,
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
    let Context { environment, unmarked, .. } = context;
    Ok(match settle::publish(environment, unmarked, &export, version).await? {
        Published::Exported => Attempt::Exported,
        Published::Changed => Attempt::Again,
        Published::Unmarked => Attempt::Unmarked,
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

async fn begin<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
    part_size: u64,
) -> Result<Export, Failure> {
    let own = own_mark(&**context.environment, source).await?;
    let id = own.id(context.environment.random());
    let inode = source.inode.id;
    let begin = BeginExport {
        inode,
        job: context.job.job.id,
        export: id,
        link: source.destination.link,
        key: source.destination.key.clone(),
        replaces: replaced(source),
        part_size,
    };
    let frozen = context.environment.execute(Command::BeginExport(begin), true).await;
    let frozen = frozen.map_err(|failure| match failure.kind {
        ErrorKind::InUse => Failure::new(ErrorKind::InUse, "the file is open for writing"),
        _ => failure,
    })?;
    let Outcome::Frozen(_) = frozen else { return Err(ErrorKind::Internal.into()) };
    let query = context.environment.read(move |view| {
        let record: Option<records::Export> =
            records::read(view, &keys::export(inode)).map_err(broken)?;
        record.ok_or_else(|| ErrorKind::Stale.into())
    });
    Ok(Export::new(inode, query.await?))
}

/// The version that the object must still have: the one that the file came from or went to, or
/// whose name was taken away here before this file got it (as a checkpoint is renamed over the last
/// one).
fn replaced(source: &Source) -> Option<String> {
    source.own.clone().or_else(|| own_version(source)).or_else(|| source.removed.clone())
}

/// The version that the file came from or went to, if its object is the destination.
fn own_version(source: &Source) -> Option<String> {
    let origin = source.body.origin.as_ref()?;
    source.destination.is_of(origin).then(|| origin.tag.clone())
}

async fn own_mark<E: Environment>(environment: &E, source: &Source) -> Result<OwnMark, Failure> {
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

/// Refuses to replace an object that a file still needs which was moved away from it: bytes that
/// were never fetched would be gone. While a target is away that the file lies on, nobody knows.
async fn check_not_needed<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
) -> Result<(), Failure> {
    let (Some(removed), Some(id)) = (&source.removed, source.moved) else { return Ok(()) };
    if id == source.inode.id {
        return Ok(());
    }
    check_not_needed_by(context, &source.destination, removed, id).await
}

/// The same of one file, and the version of the object with this tag.
pub(super) async fn check_not_needed_by<E: Environment>(
    context: &Context<'_, E>,
    to: &Destination,
    tag: &str,
    id: InodeId,
) -> Result<(), Failure> {
    let query = context.environment.read(move |view| tree::find(view, id).map_err(broken));
    let Some(other) = query.await? else { return Ok(()) };
    let Body::File(body) = &other.body else { return Ok(()) };
    let needs = |origin: &Origin| to.is_of(origin) && origin.tag == tag;
    if !body.origin.as_ref().is_some_and(needs) {
        return Ok(());
    }
    let missing = missing(&**context.environment, &other, body).await;
    if missing.as_ref().is_ok_and(|missing| missing.0 == 0) {
        return Ok(());
    }
    let path = path_of(&**context.environment, &other).await;
    let moved = format!("{} was moved away from {}", path.escape_ascii(), to.key);
    Err(match missing {
        Ok(missing) => Failure::new(
            ErrorKind::Conflict,
            format!(
                "{moved}, and {missing} of it are nowhere but in the object there: hydrate or \
                 export it before the object is replaced"
            ),
        ),
        Err(failure) => {
            let words = format!("{moved} and may need the object there: {}", reason(&failure));
            Failure::new(failure.kind, words)
        }
    })
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
