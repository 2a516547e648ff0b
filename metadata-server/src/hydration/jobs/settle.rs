//! Finds out what became of an export whose answer was lost, and draws the conclusion: the object
//! stands, or the upload is given up. Never by guess: the export's id is in the object's metadata.

use std::{collections::HashSet, sync::Arc};

use millrace_object_source::{
    Bucket, Condition, EXPORT_ID_KEY, Error as BucketError, ObjectVersion, Tag, UploadId,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, LinkId};

use super::{
    Environment,
    marks::{self, Marks, Unmarked},
};
use crate::{
    apply::export_has_made,
    command::{Command, CompleteExport, Outcome},
    hydration::import::{Importer, broken, origin_of},
    namespace::tree,
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

/// An export as it was recorded before its upload began.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) inode: InodeId,
    pub(super) id: u128,
    pub(super) change_count: ChangeCount,
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

/// The version of the object that this export made, if it stands.
pub(super) async fn look(
    bucket: &Bucket,
    export: &Export,
) -> Result<Option<ObjectVersion>, Failure> {
    match bucket.head(&export.key).await {
        Ok(head) => {
            let ours = head.metadata.value(EXPORT_ID_KEY) == Some(export.mark().as_str());
            Ok(ours.then_some(head.version))
        }
        Err(BucketError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
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
        let Some(record) = record.filter(|record| record.id == id) else { return Ok(Begun::No) };
        if let Some(upload) = record.upload_id {
            return Ok(Begun::As(upload));
        }
        let file = tree::find(view, inode).map_err(broken)?;
        let one_chunk = file.and_then(|inode| Some(inode.content()?.layout.chunk_size().bytes()));
        Ok(if record.size > one_chunk.unwrap_or(0) { Begun::Perhaps } else { Begun::No })
    });
    match upload.await? {
        Begun::As(id) => bucket.abort_upload(&export.key, &UploadId::new(id)?).await?,
        Begun::Perhaps => abort_unknown(bucket, &export.key).await?,
        Begun::No => {}
    }
    Ok(())
}

/// What an export may have begun in the bucket.
enum Begun {
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

/// Settles every export that an earlier run left under way. Targets that have to hear of one are
/// asked later.
pub(super) async fn all<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
) -> Result<(), Failure> {
    let left = environment.read(|view| {
        let known = tree::scan::<records::Export>(view, &keys::exports(), LEFT_MAX);
        known.map_err(broken)
    });
    for (key, record) in left.await? {
        let Some(id) = keys::number_at(&key, 1) else { continue };
        let export = Export::new(InodeId(id), record);
        let outcome = match standing(environment, &export).await {
            Ok(Standing::Settled) => continue,
            Ok(Standing::Made) => {
                unmarked.put(export);
                continue;
            }
            Ok(Standing::Begun(link)) => {
                begun(environment, importer, unmarked, &export, link).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = outcome {
            // Another bucket may be reachable; this one is tried again by the file's next export.
            tracing::warn!(key = %export.key, %failure, "an export cannot be settled now");
        }
    }
    Ok(())
}

/// Settles what an earlier export of one file left under way: its job was interrupted while the
/// bucket could not be asked.
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
        Some(record) => one(environment, importer, unmarked, &Export::new(inode, record)).await,
        None => Ok(()),
    }
}

async fn one<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    export: &Export,
) -> Result<(), Failure> {
    match standing(environment, export).await? {
        Standing::Settled => Ok(()),
        Standing::Made => {
            marks::set(environment, unmarked, export).await;
            Ok(())
        }
        Standing::Begun(link) => begun(environment, importer, unmarked, export, link).await,
    }
}

/// Settles exports of files that have no name any more, and no export of their own therefore that
/// would do so: the bucket could not be asked in time.
pub(super) async fn removed<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
) -> Result<(), Failure> {
    let left = environment.read(|view| {
        let known = tree::scan::<records::Export>(view, &keys::exports(), LEFT_MAX);
        let mut left = Vec::new();
        for (at, record) in known.map_err(broken)? {
            let Some(id) = keys::number_at(&at, 1).map(InodeId) else { continue };
            let inode = tree::find(view, id).map_err(broken)?;
            if inode.is_none_or(|inode| inode.links == 0) {
                left.push(Export::new(id, record));
            }
        }
        Ok(left)
    });
    let mut away = HashSet::new();
    for export in left.await? {
        // One that is on its way ends by itself. And each request to a bucket that is away takes
        // long.
        if importer.exporting.has(export.link, &export.key) || away.contains(&export.link) {
            continue;
        }
        if let Err(failure) = one(environment, importer, unmarked, &export).await {
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
    let left = environment.read(move |view| {
        let known = tree::scan::<records::Export>(view, &keys::exports(), LEFT_MAX);
        let mut left = Vec::new();
        for (at, record) in known.map_err(broken)? {
            let Some(id) = keys::number_at(&at, 1).map(InodeId) else { continue };
            if id == inode || record.link != link || record.key != key {
                continue;
            }
            let file = tree::find(view, id).map_err(broken)?;
            if !file.is_some_and(|file| export_has_made(&record, &file)) {
                left.push(Export::new(id, record));
            }
        }
        Ok(left)
    });
    let left = left.await?;
    for export in &left {
        one(environment, importer, unmarked, export).await?;
    }
    Ok(!left.is_empty())
}

/// At most as many exports are under way as the job that was interrupted had.
const LEFT_MAX: usize = 10_000;

/// How far an export is that was left under way.
enum Standing {
    /// Another one has settled it.
    Settled,
    /// Only the targets have to hear of it.
    Made,
    /// Nobody knows what the bucket has. The link, if it is still there.
    Begun(Option<LinkRecord>),
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
        if inode.is_some_and(|inode| export_has_made(&record, &inode)) {
            return Ok(Standing::Made);
        }
        let link = records::read(view, &keys::link(link)).map_err(broken)?;
        Ok(Standing::Begun(link))
    });
    query.await
}

async fn begun<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    unmarked: &Unmarked,
    export: &Export,
    link: Option<LinkRecord>,
) -> Result<(), Failure> {
    let Some(link) = link else {
        let abort = Command::AbortExport { inode: export.inode, export: export.id };
        return environment.execute(abort, true).await.map(|_| ());
    };
    let bucket = importer.bucket(&link.bucket)?;
    let Some(version) = look(&bucket, export).await? else {
        return give_up(environment, &bucket, export).await;
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
