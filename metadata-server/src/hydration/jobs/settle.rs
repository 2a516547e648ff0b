//! Finds out what became of an export whose answer was lost, and draws the conclusion: the object
//! stands, or the upload is given up. Never by guess: the export's id is in the object's metadata.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::future::join_all;
use millrace_object_source::{
    Bucket, Condition, EXPORT_ID_KEY, Error as BucketError, LinkSpec, ObjectVersion, Tag, UploadId,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, LinkId};

use super::{
    Environment,
    alone::Claim,
    begun,
    marks::{self, Marks, Unmarked},
};
use crate::{
    apply::export_has_made,
    command::{Command, CompleteExport, Outcome},
    hydration::import::{Importer, broken, origin_of, spec_of},
    namespace::tree,
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

mod left;

use left::left;

/// An export as it was recorded before its upload began.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) inode: InodeId,
    pub(super) id: u128,
    pub(super) change_count: ChangeCount,
    /// Bytes of the file, and so of the object.
    size: u64,
    pub(super) link: LinkId,
    pub(super) key: String,
    replaces: Option<String>,
}

impl Export {
    pub(super) fn new(inode: InodeId, record: records::Export) -> Self {
        Self {
            inode,
            id: record.id,
            change_count: record.change_count,
            size: record.size,
            link: record.link,
            key: record.key,
            replaces: record.replaces,
        }
    }

    /// What stands in the object's metadata.
    pub(super) fn mark(&self) -> String {
        format!("{:032x}", self.id)
    }

    /// What must hold at the key for the object to be made.
    pub(super) fn condition(&self) -> Result<Condition, Failure> {
        match &self.replaces {
            None => Ok(Condition::Absent),
            Some(tag) => Ok(Condition::Matches(Tag::new(tag.clone())?)),
        }
    }
}

/// What an export made in the bucket.
#[derive(Debug)]
pub(super) enum Found {
    /// This version of the object.
    Whole(ObjectVersion),
    /// One of another size, which is never the file: the next export replaces it, as any older
    /// version.
    Cut(ObjectVersion),
    /// Nothing that stands.
    Nothing,
}

/// Asks the bucket what an export made.
pub(super) async fn look(bucket: &Bucket, export: &Export) -> Result<Found, Failure> {
    let head = match bucket.head(&export.key).await {
        Ok(head) => head,
        Err(BucketError::NotFound { .. }) => return Ok(Found::Nothing),
        Err(error) => return Err(error.into()),
    };
    if head.metadata.value(EXPORT_ID_KEY) != Some(export.mark().as_str()) {
        return Ok(Found::Nothing);
    }
    let (bytes, size) = (head.version.size, export.size);
    if bytes == size {
        return Ok(Found::Whole(head.version));
    }
    tracing::warn!(key = %export.key, bytes, size, "a sent object is damaged");
    Ok(Found::Cut(head.version))
}

/// Forgets an export that made nothing; not before the bucket has forgotten its upload.
pub(super) async fn give_up<E: Environment>(
    environment: &Arc<E>,
    bucket: &Bucket,
    export: &Export,
) -> Result<(), Failure> {
    end_upload(environment, bucket, export).await?;
    let abort = Command::AbortExport { inode: export.inode, export: export.id };
    environment.execute(abort, true).await.map(|_| ())
}

/// Has the bucket forget the upload of an export, if it knows one.
async fn end_upload<E: Environment>(
    environment: &Arc<E>,
    bucket: &Bucket,
    export: &Export,
) -> Result<(), Failure> {
    let (inode, id) = (export.inode, export.id);
    // The upload began after the export did, and perhaps could not be aborted then.
    let upload = environment.read(move |view| {
        let record: Option<records::Export> =
            records::read(view, &keys::export(inode)).map_err(broken)?;
        let Some(record) = record.filter(|record| record.id == id) else { return Ok(Upload::No) };
        if let Some(upload) = record.upload_id {
            return Ok(Upload::As(upload));
        }
        let file = tree::find(view, inode).map_err(broken)?;
        let one_chunk = file.and_then(|inode| Some(inode.content()?.layout.chunk_size().bytes()));
        Ok(if record.size > one_chunk.unwrap_or(0) { Upload::Perhaps } else { Upload::No })
    });
    match upload.await? {
        Upload::As(id) => bucket.abort_upload(&export.key, &UploadId::new(id)?).await?,
        Upload::Perhaps => abort_unknown(bucket, &export.key).await?,
        Upload::No => {}
    }
    Ok(())
}

/// Has the bucket of a link that is about to be removed forget all uploads: nobody would know them
/// any more. A bucket that is away holds up no removal.
pub(in crate::hydration) async fn end_uploads<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    link: LinkId,
) -> Result<(), Failure> {
    let left =
        left(
            environment,
            move |_, _, record| Ok(record.link == link && record.upload_id.is_some()),
        )
        .await?;
    if left.is_empty() {
        return Ok(());
    }
    let query = environment
        .read(move |view| records::read::<LinkRecord>(view, &keys::link(link)).map_err(broken));
    let Some(record) = query.await? else { return Ok(()) };
    let ended = async {
        let bucket = importer.bucket(&record.bucket)?;
        for export in &left {
            end_upload(environment, &bucket, export).await?;
        }
        Ok::<_, Failure>(())
    };
    if let Err(failure) = ended.await {
        tracing::warn!(%link, %failure, "uploads stay behind in the bucket of a removed link");
    }
    Ok(())
}

/// What an export may have begun in the bucket.
enum Upload {
    No,
    /// Its name was recorded.
    As(String),
    /// It is begun before its name is recorded, which may not have come to pass.
    Perhaps,
}

/// Aborts what is begun of a key. Nobody knows whose it is; whoever else uploads to the key just
/// now is told that the upload is gone, and begins again.
pub(super) async fn abort_unknown(bucket: &Bucket, key: &str) -> Result<(), Failure> {
    let uploads = match bucket.list_uploads(key).await {
        Ok(uploads) => uploads,
        Err(error @ (BucketError::Denied { .. } | BucketError::Unsupported { .. })) => {
            tracing::warn!(key, %error, "an upload may stay behind: uploads cannot be listed");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    for upload in uploads {
        tracing::info!(key, upload = upload.as_str(), "an upload that nobody knows is aborted");
        bucket.abort_upload(key, &upload).await?;
    }
    Ok(())
}

/// What the record of a stored object came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    /// The file is exported.
    Exported,
    /// The file had changed: the object is an older version of it.
    Changed,
    /// The targets do not know which blocks the object has: it is to be sent once more.
    Unmarked,
}

/// Records that the object stands, and has the targets take their blocks for the bucket's.
pub(super) async fn publish<E: Environment>(
    environment: &Arc<E>,
    unmarked: &Unmarked,
    export: &Export,
    version: ObjectVersion,
) -> Result<Published, Failure> {
    let origin = origin_of(export.link, export.key.clone(), &version);
    let complete = CompleteExport { inode: export.inode, export: export.id, origin };
    let outcome = environment.execute(Command::CompleteExport(complete), true).await?;
    match outcome {
        Outcome::Exported(true) => Ok(match marks::set(environment, unmarked, export).await {
            Marks::Known => Published::Exported,
            Marks::Missing => Published::Unmarked,
        }),
        Outcome::Exported(false) => Ok(Published::Changed),
        _ => Err(ErrorKind::Internal.into()),
    }
}

/// Settles every export that an earlier run, or a cancelled job, left under way: of the links whose
/// turn the caller has, or of all before anybody works. Buckets are asked beside each other: one
/// that is away holds up no other. Targets that have to hear of one are asked later. Where an
/// object was cut, the bucket is away, or an upload is to go on, the export stays known until the
/// next one of its file.
pub(super) async fn all<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    turn: Option<&Claim>,
) -> Result<(), Failure> {
    let turn = turn.cloned();
    let left = left(environment, move |_, _, record| {
        Ok(turn.as_ref().is_none_or(|turn| turn.has(record.link)))
    });
    let mut of_buckets: HashMap<_, Vec<_>> = HashMap::new();
    let buckets = buckets(environment).await?;
    for export in left.await? {
        of_buckets.entry(buckets.get(&export.link)).or_default().push(export);
    }
    let settled =
        of_buckets.into_values().map(|exports| of_bucket(environment, importer, unmarked, exports));
    join_all(settled).await;
    Ok(())
}

/// Settles exports to one bucket, one after the other.
async fn of_bucket<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    exports: Vec<Export>,
) {
    let (mut is_away, mut denied) = (false, HashSet::new());
    for export in exports {
        let outcome = match standing(environment, &export).await {
            Ok(Standing::Settled) => continue,
            Ok(Standing::Made) => {
                unmarked.put(export);
                continue;
            }
            // Each request to it takes long, and others wait for the turn.
            Ok(Standing::Begun(_)) if is_away || denied.contains(&export.link) => continue,
            Ok(Standing::Begun(begun)) => {
                settle(environment, importer, unmarked, &export, begun, For::Jobs).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = outcome {
            match failure.kind {
                ErrorKind::BucketUnavailable | ErrorKind::Busy => is_away = true,
                ErrorKind::BucketDenied => drop(denied.insert(export.link)),
                _ => {}
            }
            // It is tried again by the file's next export.
            tracing::warn!(key = %export.key, %failure, "an export cannot be settled now");
        }
    }
}

/// Where the bucket of each link is. Links with other credentials ask for themselves.
async fn buckets<E: Environment>(
    environment: &Arc<E>,
) -> Result<HashMap<LinkId, LinkSpec>, Failure> {
    let query = environment.read(move |view| {
        let links = tree::scan::<LinkRecord>(view, &keys::links(), usize::MAX).map_err(broken)?;
        let specs = links.into_iter().filter_map(|(key, record)| {
            let spec = spec_of(&record.bucket).ok()?;
            Some((keys::link_of(&key)?, spec.without_prefix()))
        });
        Ok(specs.collect())
    });
    query.await
}

/// Settles what an earlier export of one file left under way: its job was interrupted, or the
/// bucket could not be asked. An upload of the version that is here stays, to go on.
pub(super) async fn earlier<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    inode: InodeId,
) -> Result<(), Failure> {
    let query = environment.read(move |view| {
        records::read::<records::Export>(view, &keys::export(inode)).map_err(broken)
    });
    match query.await? {
        Some(record) => {
            let export = Export::new(inode, record);
            one(environment, importer, unmarked, &export, For::Itself).await
        }
        None => Ok(()),
    }
}

/// Settles one export, if nobody has done so since.
pub(super) async fn one<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    export: &Export,
    whom: For,
) -> Result<(), Failure> {
    match standing(environment, export).await? {
        Standing::Settled => Ok(()),
        Standing::Made => {
            marks::set(environment, unmarked, export).await;
            Ok(())
        }
        Standing::Begun(begun) => {
            settle(environment, importer, unmarked, export, begun, whom).await
        }
    }
}

/// Settles exports of files that have no name any more, and no export of their own therefore that
/// would do so: the bucket could not be asked in time. Of the links whose turn the caller has, and
/// of those that are gone: these nobody has the turn of.
pub(super) async fn removed<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    turn: &Claim,
) -> Result<(), Failure> {
    let turn = turn.clone();
    let left = left(environment, move |view, id, record| {
        if !turn.has(record.link) {
            return Ok(view.get(&keys::link(record.link)).map_err(broken)?.is_none());
        }
        let inode = tree::find(view, id).map_err(broken)?;
        Ok(inode.is_none_or(|inode| inode.links == 0))
    });
    let mut away = HashSet::new();
    for export in left.await? {
        // One that is on its way ends by itself. And each request to a bucket that is away takes
        // long.
        if importer.exporting.has(export.link, &export.key) || away.contains(&export.link) {
            continue;
        }
        let settled = one(environment, importer, unmarked, &export, For::Removed);
        if let Err(failure) = settled.await {
            away.insert(export.link);
            tracing::warn!(key = %export.key, %failure, "an export cannot be settled now");
        }
    }
    Ok(())
}

/// Settles what other files left under way at the key of an export: the object there may be of one
/// that was removed, or has another name, since. Says whether there was any.
pub(super) async fn others<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    export: &Export,
) -> Result<bool, Failure> {
    let (inode, link, key) = (export.inode, export.link, export.key.clone());
    let left = left(environment, move |view, id, record| {
        if id == inode || record.link != link || record.key != key {
            return Ok(false);
        }
        let file = tree::find(view, id).map_err(broken)?;
        Ok(!file.is_some_and(|file| export_has_made(record, &file)))
    });
    let left = left.await?;
    for export in &left {
        one(environment, importer, unmarked, export, For::Another).await?;
    }
    Ok(!left.is_empty())
}

/// How far an export is that was left under way.
enum Standing {
    /// Another one has settled it.
    Settled,
    /// Only the targets have to hear of it.
    Made,
    /// Nobody knows what the bucket has.
    Begun(Begun),
}

/// An export of which nobody knows what it made.
struct Begun {
    /// The link, if it is still there.
    link: Option<LinkRecord>,
    /// Whether its file is not there any more.
    is_gone: bool,
    /// Whether its upload may go on.
    can_go_on: bool,
    /// Whether somebody is to go on with it.
    is_awaited: bool,
}

/// For whom an export is settled that was left under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// For the jobs that come to its file later, if they do: the server has begun to run, or a job
    /// was cancelled.
    Jobs,
    /// For its file, whose next export begins.
    Itself,
    /// For another file, or another version of it.
    Another,
    /// For nobody, since its file has no name any more.
    Removed,
}

impl For {
    /// Whether the record of an export stays whose object was cut. As long as there is one, no
    /// listing takes the object for somebody else's.
    fn keeps_cut(self) -> bool {
        matches!(self, Self::Jobs | Self::Removed)
    }

    /// Whether an upload stays that made nothing yet.
    fn keeps_upload(self, begun: &Begun) -> bool {
        match self {
            Self::Jobs => begun.can_go_on && begun.is_awaited,
            Self::Itself => begun.can_go_on,
            Self::Another | Self::Removed => false,
        }
    }
}

async fn standing<E: Environment>(
    environment: &Arc<E>,
    export: &Export,
) -> Result<Standing, Failure> {
    let (link, id, own) = (export.link, export.inode, export.id);
    let query = environment.read(move |view| {
        let record: Option<records::Export> =
            records::read(view, &keys::export(id)).map_err(broken)?;
        let Some(record) = record.filter(|record| record.id == own) else {
            return Ok(Standing::Settled);
        };
        let inode = tree::find(view, id).map_err(broken)?;
        if inode.as_ref().is_some_and(|inode| export_has_made(&record, inode)) {
            return Ok(Standing::Made);
        }
        let link: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        let exports = link.as_ref().is_some_and(|link| !link.removing);
        let same = inode.as_ref().is_some_and(|inode| begun::can_go_on(&record, inode));
        let can_go_on = exports && same;
        let is_awaited = begun::is_awaited(view, &record)?;
        Ok(Standing::Begun(Begun { link, is_gone: inode.is_none(), can_go_on, is_awaited }))
    });
    query.await
}

async fn settle<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    export: &Export,
    begun: Begun,
    whom: For,
) -> Result<(), Failure> {
    let Some(link) = &begun.link else {
        let abort = Command::AbortExport { inode: export.inode, export: export.id };
        return environment.execute(abort, true).await.map(|_| ());
    };
    let bucket = importer.bucket(&link.bucket)?;
    let version = match look(&bucket, export).await? {
        Found::Whole(version) => version,
        // Nobody sends it again: it is left behind as a whole one would be.
        Found::Cut(version) if begun.is_gone => version,
        Found::Cut(_) if whom.keeps_cut() => return Ok(()),
        Found::Nothing if whom.keeps_upload(&begun) => return Ok(()),
        Found::Cut(_) | Found::Nothing => return give_up(environment, &bucket, export).await,
    };
    // On gs:// and az:// the object stands before what it was made of is deleted.
    if let Err(failure) = end_upload(environment, &bucket, export).await {
        tracing::warn!(key = %export.key, %failure, "an upload stays behind in the bucket");
    }
    // Of a file that is gone the export is forgotten.
    match publish(environment, unmarked, export, version).await {
        // Another one has settled it meanwhile.
        Err(failure) if failure.kind == ErrorKind::NotFound => Ok(()),
        published => published.map(|_| ()),
    }
}
