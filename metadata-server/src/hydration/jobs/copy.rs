//! Exports to another place than the link's: a copy of each file, which changes nothing here.
//!
//! ```text
//!   HEAD: this very version? -> done        another version of it? -> replaced under its tag
//!         nothing there?     -> made        anybody else's?        -> an error, or --overwrite
//!   one chunk: the version is on stable storage -> one put by its target, under that condition
//!   more:      RecordCopy (logged) -> begin an upload -> RecordCopy with its name -> parts by the
//!              targets -> is the file unchanged? -> complete under the condition -> ForgetCopy
//! ```
//!
//! What stands in the bucket says by itself which version of which file it is ([`mark`]), so that a
//! job that begins again asks for each object and does no file twice. An upload by parts that a
//! crash interrupted goes on with the parts that the bucket has.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::BoxFuture;
use millrace_object_source::{
    Bucket, Condition, Error as BucketError, LinkSpec, Metadata, ObjectVersion, Stored, Tag,
};
use millrace_protocol::{
    cluster::{self, LinkMode},
    job_options::Destination,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LinkId, Timestamp};
use tokio::sync::Semaphore;

use self::mark::{Mark, Marker, Relation, Version};
use super::{
    Context, Environment, Importer,
    export::{Counted, Ended},
    file_export::{self, attributes, is_unchanged},
    publish,
    upload::{self, ATTEMPTS, PAUSE, Sender, To, is_repeatable},
};
use crate::{
    apply::ApplyError,
    hydration::{
        import::{Defaults, broken, linked_anywhere, spec_of},
        parts::PartPlan,
        trials,
        walk::refused,
    },
    leases::touched::writers,
    namespace::{Body, FileBody, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, CopyRecord, LinkRecord, RestoreRecord},
    },
};

mod mark;
pub(super) mod uploads;

/// How often a file that changes meanwhile, or whose object does, is begun again.
const BEGINNINGS_MAX: usize = 3;

/// The deepest path that a key is made of: deeper ones are longer than any key.
const DEPTH_MAX: usize = 1024;

/// The place that a job's files go to.
pub(super) struct Elsewhere {
    pub(super) bucket: cluster::Bucket,
    pub(super) open: Arc<Bucket>,
    spec: LinkSpec,
    overwrite: bool,
    marker: Marker,
    /// What was copied, for a manifest.
    copied: Option<Mutex<BTreeMap<InodeId, Copied>>>,
}

/// One file whose object stands.
#[derive(Debug, Clone)]
pub(super) struct Copied {
    version: Version,
    /// The key is the place's prefix and this.
    pub(super) path: String,
    pub(super) object: ObjectVersion,
}

/// A file or symbolic link and where it goes.
struct Source {
    inode: Inode,
    /// Its bytes, where no target has them: of a file that lives in its inode, and the target of a
    /// symbolic link.
    bytes: Option<Vec<u8>>,
    /// Below the top of the job.
    path: String,
    key: String,
    version: Version,
    mark: Mark,
    metadata: Metadata,
    /// The upload that an earlier run of the job began.
    begun: Option<CopyRecord>,
}

/// What stands at a file's key.
enum Standing {
    Nothing,
    Same(ObjectVersion),
    Older(Tag),
    Foreign(Tag),
}

/// What came of sending a file.
enum Sent {
    Stored(ObjectVersion),
    /// The file, its object or its upload did not last until the end.
    Again,
}

/// Refuses a place that cannot be, that lies in the link of the files themselves, or that a server
/// does not reach.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`]; as for the bucket of a new link.
pub(super) async fn check<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    root: InodeId,
    destination: &Destination,
) -> Result<(), Failure> {
    let spec = spec_of(&destination.bucket)?;
    let own = environment.read(move |view| link_above(view, root)).await?;
    if let Some(own) = own
        && overlap(&spec_of(&own)?, &spec)
    {
        let words = format!(
            "{} has keys in common with {}, which the directory is linked to: name another place, \
             or export without --to, if the link exports",
            destination.bucket.url, own.url
        );
        return Err(Failure::new(ErrorKind::InvalidArgument, words));
    }
    let mode = LinkMode::ImportExport;
    trials::check_everywhere(environment, importer, &destination.bucket, mode).await
}

/// The bucket of the link above an inode.
fn link_above(view: &dyn View, id: InodeId) -> Result<Option<cluster::Bucket>, Failure> {
    let inode = tree::inode(view, id).map_err(refused)?;
    let directory = match (&inode.body, &inode.parent) {
        (Body::Directory(_), _) => id,
        (_, Some(parent)) => parent.directory,
        (_, None) => return Ok(None),
    };
    let Some(linked) = linked_anywhere(view, directory)? else { return Ok(None) };
    let record: Option<LinkRecord> =
        records::read(view, &keys::link(linked.link)).map_err(broken)?;
    Ok(record.map(|record| record.bucket))
}

/// Whether keys of one place may be keys of the other.
fn overlap(one: &LinkSpec, other: &LinkSpec) -> bool {
    let place = |spec: &LinkSpec| spec.url_of(spec.prefix()).trim_end_matches('/').to_owned() + "/";
    let (first, second) = (place(one), place(other));
    let same = one.endpoint() == other.endpoint();
    same && (first.starts_with(&second) || second.starts_with(&first))
}

impl Elsewhere {
    /// Asks nobody but this server.
    ///
    /// # Errors
    /// When the bucket cannot be opened; that the server is busy or shutting down.
    pub(super) async fn open<E: Environment>(
        environment: &E,
        importer: &Importer<E>,
        destination: Destination,
        is_atomic: bool,
    ) -> Result<Self, Failure> {
        let Destination { bucket, overwrite } = destination;
        let query = environment
            .read(|view| records::read::<RestoreRecord>(view, &keys::restores()).map_err(broken));
        let restores = query.await?.map_or(0, |record| record.restores);
        let marker = Marker { cluster: environment.cluster(), restores };
        let (open, spec) = (importer.bucket(&bucket)?, spec_of(&bucket)?);
        let copied = is_atomic.then(Mutex::default);
        Ok(Self { bucket, open, spec, overwrite, marker, copied })
    }

    /// What every key begins with.
    pub(super) fn prefix(&self) -> &str {
        self.spec.prefix()
    }

    /// What was copied of a file, if that is the file as it is now.
    pub(super) fn copied(&self, inode: &Inode) -> Option<Copied> {
        let copied = self.copied.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        copied.get(&inode.id).filter(|copied| copied.version == version_of(inode)).cloned()
    }

    fn remember(&self, source: &Source, object: &ObjectVersion) {
        let Some(copied) = &self.copied else { return };
        let one =
            Copied { version: source.version, path: source.path.clone(), object: object.clone() };
        let mut copied = copied.lock().unwrap_or_else(PoisonError::into_inner);
        // One more, so that it is told that there are too many.
        if copied.len() <= publish::FILES_MAX {
            copied.insert(source.inode.id, one);
        }
    }
}

/// Copies one file, link or mark of a directory, if that can be copied at all.
pub(super) fn begin<'a, E: Environment>(
    context: &'a Context<'a, E>,
    to: &'a Elsewhere,
    uploads: &Arc<Semaphore>,
    inode: Inode,
) -> Option<BoxFuture<'a, Ended>> {
    let uploads = Arc::clone(uploads);
    let id = inode.id;
    match &inode.body {
        Body::File(_) | Body::Symlink(_) => Some(Box::pin(async move {
            let result = match context.dry_run {
                true => look_only(context, to, id).await.map(|()| Counted::No),
                false => one(context, to, &uploads, id).await,
            };
            Ended { inode: id, result }
        })),
        Body::Directory(_) => Some(Box::pin(async move {
            Ended { inode: id, result: directory(context, to, &inode).await }
        })),
        Body::Special => None,
    }
}

/// Counts a file as found, if the place lacks it.
async fn look_only<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    id: InodeId,
) -> Result<(), Failure> {
    let source = read(context, to, id).await?;
    if publish::is_manifest(&source.path) {
        return publish::leave(context, id).await;
    }
    if !matches!(look(to, &source).await?, Standing::Same(_)) {
        context.would_id(id, source.inode.size).await;
    }
    Ok(())
}

async fn one<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    uploads: &Arc<Semaphore>,
    id: InodeId,
) -> Result<Counted, Failure> {
    let mut counted = false;
    for _ in 0..BEGINNINGS_MAX {
        let source = read(context, to, id).await?;
        if publish::is_manifest(&source.path) {
            return publish::leave(context, id).await.map(|()| Counted::No);
        }
        check_free(context, &source).await?;
        let size = source.inode.size;
        let standing = look(to, &source).await?;
        // Whether it went there since the job began: before the server was restarted.
        let earlier = |object: &ObjectVersion| object.modified >= context.job.job.started;
        let counts = !matches!(&standing, Standing::Same(object) if !earlier(object));
        if !counted {
            context.progress.found(id, if counts { size } else { 0 });
            counted = true;
        }
        let condition = match standing {
            Standing::Same(object) => {
                uploads::end(context.environment, to, context.job.job.id, &source).await?;
                context.progress.moved(id, if counts { size } else { 0 });
                to.remember(&source, &object);
                let sent = match counts {
                    true => file_export::Sent::Before(size),
                    false => file_export::Sent::Nothing,
                };
                return Ok(Counted::Yes { sent });
            }
            Standing::Nothing => Condition::Absent,
            Standing::Older(tag) => Condition::Matches(tag),
            Standing::Foreign(tag) if to.overwrite => Condition::Matches(tag),
            Standing::Foreign(_) => return Err(to.taken(&source.key)),
        };
        if let Sent::Stored(object) = send(context, to, uploads, &source, &condition).await? {
            context.progress.moved(id, size);
            to.remember(&source, &object);
            return Ok(Counted::Yes { sent: file_export::Sent::Now(size) });
        }
    }
    let text = "the file, or its object at the other place, keeps changing while it is exported";
    Err(Failure::new(ErrorKind::InUse, text))
}

impl Elsewhere {
    /// Metadata and condition with which the manifest of a directory takes its place at `key`: of
    /// what stands there only an older manifest of this directory is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] for anything else that stands there; those of the bucket.
    pub(super) async fn manifest(
        &self,
        key: &str,
        (top, path): (&Inode, &[u8]),
        posix: &Metadata,
    ) -> Result<(Metadata, Condition), Failure> {
        let mark = self.marker.mark(version_of(top), &self.spec.url_of(key), path);
        let posix = posix.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let metadata = Metadata::new(posix.chain(mark.pairs()))?;
        let condition = match self.open.head(key).await {
            Err(BucketError::NotFound { .. }) => Condition::Absent,
            Err(error) => return Err(error.into()),
            Ok(head) => match mark.relation(&head.metadata) {
                Relation::Foreign if !self.overwrite => return Err(self.taken(key)),
                _ => Condition::Matches(head.version.tag),
            },
        };
        Ok((metadata, condition))
    }

    fn taken(&self, key: &str) -> Failure {
        let words = format!(
            "{} is there already, and no export of this file made it; nothing was overwritten: \
             remove it, or say --overwrite",
            self.spec.url_of(key)
        );
        Failure::new(ErrorKind::Exists, words)
    }
}

/// What stands at the file's key.
async fn look(to: &Elsewhere, source: &Source) -> Result<Standing, Failure> {
    let head = match to.open.head(&source.key).await {
        Ok(head) => head,
        Err(BucketError::NotFound { .. }) => return Ok(Standing::Nothing),
        Err(error) => return Err(error.into()),
    };
    Ok(match source.mark.relation(&head.metadata) {
        Relation::Same if head.version.size == source.inode.size => Standing::Same(head.version),
        Relation::Same | Relation::Older => Standing::Older(head.version.tag),
        Relation::Foreign => Standing::Foreign(head.version.tag),
    })
}

/// Makes the object, and settles what became of it if that is not clear.
async fn send<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    uploads: &Arc<Semaphore>,
    source: &Source,
    condition: &Condition,
) -> Result<Sent, Failure> {
    let unchanged =
        || is_unchanged(&**context.environment, source.inode.id, source.version.change_count);
    let failure = match put(context, to, uploads, source, condition).await {
        Ok(None) => return Ok(Sent::Again),
        // A chunk that was written to meanwhile is no version that anybody knows.
        Ok(Some(_)) if !unchanged().await? => return Ok(Sent::Again),
        Ok(Some(put)) => return stored(to, source, put).await.map(Sent::Stored),
        Err(failure) => failure,
    };
    // Nothing was made, and who may not write may not even be told so.
    if failure.kind == ErrorKind::BucketDenied {
        return Err(failure);
    }
    if let Standing::Same(object) = look(to, source).await? {
        if failure.kind == ErrorKind::Corrupt {
            // So the bucket said: it has the mark of the file, and other bytes.
            to.open.delete(&source.key, &object.tag).await?;
            return Ok(Sent::Again);
        }
        // The answer was lost, and with it how the file stood then.
        return Ok(if unchanged().await? { Sent::Stored(object) } else { Sent::Again });
    }
    match failure.kind {
        // Somebody else was faster, or the upload is gone by itself; or the file was exported to
        // its own object meanwhile, which does not count as a change.
        ErrorKind::ObjectChanged
        | ErrorKind::NotFound
        | ErrorKind::Stale
        | ErrorKind::StaleEpoch => Ok(Sent::Again),
        ErrorKind::Lost | ErrorKind::StaleContent if !unchanged().await? => Ok(Sent::Again),
        _ => Err(failure),
    }
}

/// What the bucket says of the object that was just stored, unless it has said already that it has
/// these bytes. Somebody may have replaced it since.
async fn stored(to: &Elsewhere, source: &Source, put: Stored) -> Result<ObjectVersion, Failure> {
    let size = source.inode.size;
    let Stored { tag, is_checked } = put;
    if is_checked {
        return Ok(ObjectVersion { tag, size, modified: Timestamp(0) });
    }
    match to.open.head(&source.key).await {
        Ok(head) if head.version.tag == tag && head.version.size != size => Err(Failure::new(
            ErrorKind::Corrupt,
            format!("{} has {} bytes there, not {size}", source.key, head.version.size),
        )),
        Ok(head) if head.version.tag == tag => Ok(head.version),
        Ok(_) | Err(_) => Ok(ObjectVersion { tag, size, modified: Timestamp(0) }),
    }
}

/// Sends the file. First the version that its mark names is on stable storage: one that a loss of
/// power takes back would be given to other bytes, which would be taken for these.
async fn put<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    uploads: &Arc<Semaphore>,
    source: &Source,
    condition: &Condition,
) -> Result<Option<Stored>, Failure> {
    let (size, metadata) = (source.inode.size, &source.metadata);
    if let Some(bytes) = &source.bytes {
        context.paced(size).await;
        context.environment.settled().await?;
        let pieces = vec![bytes.clone().into()];
        let made = to.open.put_small(&source.key, pieces, metadata, condition).await;
        return Ok(Some(made?));
    }
    let content = source.inode.content().ok_or(ErrorKind::InvalidArgument)?;
    let plan = PartPlan::new(size, content.layout.chunk_size()).ok_or_else(too_large)?;
    let (bucket, key) = (Some(to.bucket.clone()), source.key.clone());
    let place = To { bucket, link: LinkId(0), key };
    let sender = Sender::new(context, uploads, &content, place).await?;
    if !upload::is_one_chunk(&content, size, &plan) {
        let made = uploads::by_parts(context, to, &sender, source, plan, condition).await?;
        return Ok(made.map(Stored::unchecked));
    }
    context.environment.settled().await?;
    let mut pause = PAUSE;
    let mut attempt = 1;
    loop {
        let pairs = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        match sender.whole(size, pairs.collect(), condition).await {
            // It may have taken effect: then the condition does not hold any more.
            Err(failure) if is_repeatable(failure.kind) && attempt < ATTEMPTS => {
                if matches!(look(to, source).await?, Standing::Same(_)) {
                    return Err(failure);
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
                attempt += 1;
            }
            other => return other.map(Some),
        }
    }
}

/// What no target has: the target of a symbolic link, and files in their inodes.
fn bytes_here(view: &dyn View, inode: &Inode) -> Result<Option<Vec<u8>>, ApplyError> {
    match &inode.body {
        Body::Symlink(target) => Ok(Some(target.clone())),
        Body::File(_) if inode.size == 0 => Ok(Some(Vec::new())),
        Body::File(_) => tree::inline(view, inode),
        Body::Directory(_) | Body::Special => Ok(None),
    }
}

fn too_large() -> Failure {
    let words = "files beyond 5 TiB cannot be exported: no object is larger";
    Failure::new(ErrorKind::FileTooLarge, words)
}

/// Refuses a file that is being written, and one that is not whole.
async fn check_free<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
) -> Result<(), Failure> {
    if matches!(&source.inode.body, Body::File(file) if is_lost(file)) {
        return Err(ErrorKind::Lost.into());
    }
    let id = source.inode.id;
    let query = context.environment.read(move |view| writers(view, id).map_err(broken));
    match query.await?.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(ErrorKind::InUse, "the file is open for writing")),
    }
}

fn is_lost(file: &FileBody) -> bool {
    file.state == ObjectState::Lost
}

async fn read<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    id: InodeId,
) -> Result<Source, Failure> {
    let (root, job) = (context.job.root, context.job.job.id);
    let query = context.environment.read(move |view| {
        let inode = tree::inode(view, id).map_err(refused)?;
        let names = names_below(view, root, &inode)?.ok_or(ErrorKind::Stale)?;
        let whole = tree::path(view, &inode).map_err(broken)?.unwrap_or_default();
        let begun = records::read(view, &keys::copy(job, id)).map_err(broken)?;
        // With the inode: it may have none any more a moment later.
        let bytes = bytes_here(view, &inode).map_err(refused)?;
        Ok((inode, bytes, names, whole, begun))
    });
    let (inode, bytes, names, whole, begun) = query.await?;
    let path = text_of(&names)?;
    let key = format!("{}{path}", to.prefix());
    let version = version_of(&inode);
    let mark = to.marker.mark(version, &to.spec.url_of(&key), &whole);
    let posix = attributes(&inode).to_metadata(None)?;
    let posix = posix.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut metadata = Metadata::new(posix.chain(mark.pairs()))?;
    if let Body::Symlink(target) = &inode.body {
        metadata = metadata.with_symlink_target(target, to.spec.location());
    }
    Ok(Source { inode, bytes, path, key, version, mark, metadata, begun })
}

fn version_of(inode: &Inode) -> Version {
    let generation = match &inode.body {
        Body::File(file) => file.generation,
        _ => millrace_types::ContentGeneration(0),
    };
    Version { inode: inode.id, generation, change_count: inode.change_count }
}

/// The names from `root` down to an inode, by the first of its names that lies below; of a file
/// that is the root itself its name. `None` for what is not there any more.
fn names_below(
    view: &dyn View,
    root: InodeId,
    inode: &Inode,
) -> Result<Option<Vec<FileName>>, Failure> {
    for parent in tree::parents(view, inode).map_err(broken)? {
        let mut names = vec![parent.name];
        let mut at = parent.directory;
        if inode.id == root {
            return Ok(Some(names));
        }
        while at != root && names.len() < DEPTH_MAX {
            let above = tree::find(view, at).map_err(broken)?.and_then(|inode| inode.parent);
            let Some(above) = above else { break };
            names.push(above.name);
            at = above.directory;
        }
        if at == root {
            names.reverse();
            return Ok(Some(names));
        }
    }
    Ok(None)
}

fn text_of(names: &[FileName]) -> Result<String, Failure> {
    let names: Vec<_> = names.iter().map(FileName::as_bytes).collect();
    String::from_utf8(names.join(&b'/')).map_err(|_| {
        Failure::new(ErrorKind::InvalidArgument, "the name is no UTF-8, which keys must be")
    })
}

/// Marks a directory that an import could not make out of its files.
async fn directory<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    inode: &Inode,
) -> Result<Counted, Failure> {
    let Some(prefix) = mark_of(context, to, inode).await? else { return Ok(Counted::No) };
    context.progress.found(inode.id, 0);
    to.open.mark_directory(&prefix, &attributes(inode).to_metadata(None)?).await?;
    Ok(Counted::Yes { sent: file_export::Sent::Nothing })
}

/// Where the mark of a directory belongs, if it needs one.
pub(super) async fn mark_of<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    inode: &Inode,
) -> Result<Option<String>, Failure> {
    let (root, wanted) = (context.job.root, inode.clone());
    if inode.id == root {
        return Ok(None);
    }
    let query = context.environment.read(move |view| {
        let top = tree::inode(view, root).map_err(refused)?;
        Ok((names_below(view, root, &wanted)?, top.uid, top.gid))
    });
    let (Some(names), uid, gid) = query.await? else { return Ok(None) };
    let guessed = (inode.mode, inode.uid, inode.gid) == (Defaults::DIRECTORY_MODE, uid, gid);
    let needs_one = inode.size == 0 || !guessed;
    needs_one.then(|| Ok(format!("{}{}/", to.prefix(), text_of(&names)?))).transpose()
}
