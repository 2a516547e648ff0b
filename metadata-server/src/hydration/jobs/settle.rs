//! Finds out what became of an export whose answer was lost, and draws the conclusion: the object
//! stands, or the upload is given up. Never by guess: the export's id is in the object's metadata.

use std::sync::Arc;

use millrace_object_source::{
    Bucket, Condition, EXPORT_ID_KEY, Error as BucketError, ObjectVersion, Tag, UploadId,
};
use millrace_protocol::target::Item;
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, Layout, LinkId};

use super::{
    Environment,
    dispatch::{Task, ask},
};
use crate::{
    command::{Command, CompleteExport, Outcome},
    hydration::{
        import::{Importer, broken, origin_of},
        spread::{places_of, runs},
        walk::inode,
    },
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
    let (inode, id) = (export.inode, export.id);
    // The upload began after the export did, and perhaps could not be aborted then.
    let upload = environment.read(move |view| {
        let record: Option<records::Export> =
            records::read(view, &keys::export(inode)).map_err(broken)?;
        Ok(record.filter(|record| record.id == id).and_then(|record| record.upload_id))
    });
    if let Some(id) = upload.await? {
        bucket.abort_upload(&export.key, &UploadId::new(id)?).await?;
    }
    let abort = Command::AbortExport { inode: export.inode, export: export.id };
    environment.execute(abort, true).await.map(|_| ())
}

/// Records that the object stands, and has the targets take their blocks for the bucket's. False
/// when the file had changed: the object then is an older version of it.
pub(super) async fn publish<E: Environment>(
    environment: &Arc<E>,
    export: &Export,
    layout: Layout,
    version: ObjectVersion,
) -> Result<bool, Failure> {
    let size = version.size;
    let origin = origin_of(export.link, export.key.clone(), &version);
    let complete = CompleteExport { inode: export.inode, export: export.id, origin };
    let outcome = environment.execute(Command::CompleteExport(complete), true).await?;
    let Outcome::Exported(same) = outcome else { return Err(ErrorKind::Internal.into()) };
    if same && let Err(failure) = mark(environment, export.inode, layout, size).await {
        // The object stands. Blocks that stay "written" only cannot be released.
        tracing::warn!(inode = %export.inode, %failure, "targets do not know of an export yet");
    }
    Ok(same)
}

async fn mark<E: Environment>(
    environment: &Arc<E>,
    id: InodeId,
    layout: Layout,
    size: u64,
) -> Result<(), Failure> {
    let content = inode(&**environment, id).await?.content().ok_or(ErrorKind::Stale)?;
    debug_assert_eq!(content.layout, layout, "a content keeps its layout");
    let map = environment.map().await?;
    for item in runs(&content, size) {
        for place in places_of(&map, &item, size)?.into_keys() {
            let one: Vec<Item> = vec![item.clone()];
            let reply = ask(&**environment, place, Task::MarkExported, one).await?;
            reply.results.into_iter().try_for_each(|result| result.map(|_| ()))?;
        }
    }
    Ok(())
}

/// Settles every export that an earlier run left under way.
pub(super) async fn all<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
) -> Result<(), Failure> {
    let left = environment.read(|view| {
        let known = tree::scan::<records::Export>(view, &keys::exports(), LEFT_MAX);
        known.map_err(broken)
    });
    for (key, record) in left.await? {
        let Some(id) = keys::number_at(&key, 1) else { continue };
        let export = Export::new(InodeId(id), record);
        if let Err(failure) = one(environment, importer, &export).await {
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
    inode: InodeId,
) -> Result<(), Failure> {
    let query = environment.read(move |view| {
        records::read::<records::Export>(view, &keys::export(inode)).map_err(broken)
    });
    match query.await? {
        Some(record) => one(environment, importer, &Export::new(inode, record)).await,
        None => Ok(()),
    }
}

/// At most as many exports are under way as the job that was interrupted had.
const LEFT_MAX: usize = 10_000;

async fn one<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    export: &Export,
) -> Result<(), Failure> {
    let link = export.link;
    let query = environment
        .read(move |view| records::read::<LinkRecord>(view, &keys::link(link)).map_err(broken));
    let Some(record) = query.await? else {
        let abort = Command::AbortExport { inode: export.inode, export: export.id };
        return environment.execute(abort, true).await.map(|_| ());
    };
    let bucket = importer.bucket(&record.bucket)?;
    let Some(version) = look(&bucket, export).await? else {
        return give_up(environment, &bucket, export).await;
    };
    match inode(&**environment, export.inode).await {
        Ok(inode) => {
            let layout = inode.file()?.layout;
            publish(environment, export, layout, version).await.map(|_| ())
        }
        Err(failure) if failure.kind == ErrorKind::Stale => {
            let abort = Command::AbortExport { inode: export.inode, export: export.id };
            environment.execute(abort, true).await.map(|_| ())
        }
        Err(failure) => Err(failure),
    }
}
