//! How an export begins: anew, or with the upload by parts that an earlier run of it left behind.
//!
//! ```text
//!   the metadata server ends, or a target or the bucket is away for too long
//!     └─▶ the upload stays, and its record: id, change count, part size, the bucket's name of it
//!           ├─▶ the file is still that version ─▶ its next export asks ListParts and goes on
//!           └─▶ it is not, or nobody is to export it any more ─▶ it is given up
//! ```
//!
//! The parts are those of the recorded plan. Of each that the bucket has, a target reads the bytes
//! once more: they must be those of which the bucket tells the digest, or the part is sent again.
//! Reading them is needed anyhow, so that the target knows which blocks are in the object; and what
//! was written since, though the log lost that with a loss of power, is not taken for what was
//! sent.

use std::collections::BTreeMap;

use millrace_object_source::{Bucket, Error as BucketError, HeldPart, UploadId};
use millrace_protocol::admin::{JobKind, JobState};
use millrace_types::{ErrorKind, Failure};

use super::{
    Context, Environment,
    file_export::{Source, own_mark, replaced},
    settle::{self, Export, For},
};
use crate::{
    apply::export_has_made,
    command::{BeginExport, Command, Outcome},
    hydration::{import::broken, parts::PartPlan},
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, JobRecord},
    },
};

/// What was found of an earlier run.
pub(super) enum Before {
    /// Nothing that matters any more.
    Nothing,
    /// An upload of this very version.
    Left(Left),
    /// Something else, of which it is known now what became of it: the file is to be looked at
    /// anew.
    Settled,
}

/// An upload that goes on, with the parts that the bucket has.
pub(super) struct Left {
    /// The export's id, which is in the metadata that the upload was begun with.
    pub(super) export: u128,
    pub(super) upload: UploadId,
    pub(super) plan: PartPlan,
    pub(super) parts: BTreeMap<u16, HeldPart>,
}

/// In which parts a file is sent, and what is there of them.
pub(super) struct Planned {
    pub(super) plan: PartPlan,
    pub(super) left: Option<Left>,
}

impl Planned {
    /// As it was planned before, or anew.
    pub(super) fn new(source: &Source, left: Option<Left>) -> Result<Self, Failure> {
        let plan = match &left {
            Some(left) => Some(left.plan),
            None => PartPlan::new(source.inode.size, source.content.layout.chunk_size()),
        };
        let plan = plan.ok_or_else(|| {
            Failure::new(
                ErrorKind::FileTooLarge,
                "files beyond 5 TiB cannot be exported: no object is larger",
            )
        })?;
        Ok(Self { plan, left })
    }
}

/// Whether an upload may go on: the file is what it was begun for, and is to go to the bucket.
pub(super) fn can_go_on(record: &records::Export, inode: &Inode) -> bool {
    let Body::File(file) = &inode.body else { return false };
    record.upload_id.is_some()
        && inode.links > 0
        && (inode.change_count, inode.size) == (record.change_count, record.size)
        && file.generation == record.generation
        && matches!(file.state, ObjectState::Local | ObjectState::Dirty)
}

/// Whether somebody is to go on with an upload: its job, which has not ended or can be retried, or
/// the link by itself.
///
/// # Errors
/// When the store is damaged.
pub(super) fn is_awaited(view: &dyn View, record: &records::Export) -> Result<bool, Failure> {
    if view.get(&keys::auto_export(record.link)).map_err(broken)?.is_some() {
        return Ok(true);
    }
    let known: Option<JobRecord> = records::read(view, &keys::job(record.job)).map_err(broken)?;
    Ok(known.is_some_and(|JobRecord { job, .. }| {
        job.kind == JobKind::Export
            && matches!(job.state, JobState::Queued | JobState::Running | JobState::Failed)
    }))
}

/// Looks for what an earlier run left of a file, which has the turn of its key.
pub(super) async fn before<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
    bucket: &Bucket,
) -> Result<Before, Failure> {
    let id = source.inode.id;
    let query = context.environment.read(move |view| {
        let record: Option<records::Export> =
            records::read(view, &keys::export(id)).map_err(broken)?;
        let inode = tree::find(view, id).map_err(broken)?;
        let is_made = |record: &records::Export| {
            inode.as_ref().is_some_and(|inode| export_has_made(record, inode))
        };
        Ok(record.filter(|record| !is_made(record)))
    });
    let Some(record) = query.await? else { return Ok(Before::Nothing) };
    if is_same(&record, source)
        && let Some(left) = listed(&record, source, bucket).await?
    {
        return Ok(Before::Left(left));
    }
    let Context { environment, importer, unmarked, .. } = context;
    let left = Export::new(id, record);
    Box::pin(settle::one(environment, importer, unmarked, &left, For::Another)).await?;
    Ok(Before::Settled)
}

/// Whether an export was begun of this version, to where and over what it would go now.
fn is_same(record: &records::Export, source: &Source) -> bool {
    let to = &source.destination;
    can_go_on(record, &source.inode)
        && (record.link, &record.key) == (to.link, &to.key)
        && record.replaces == replaced(source)
}

/// What the bucket has of an upload. `None` when it is over, or was cut in a way that never was.
async fn listed(
    record: &records::Export,
    source: &Source,
    bucket: &Bucket,
) -> Result<Option<Left>, Failure> {
    let chunk_size = source.content.layout.chunk_size();
    let Some(plan) = PartPlan::recorded(record.size, record.part_size, chunk_size) else {
        return Ok(None);
    };
    let Some(upload) = record.upload_id.clone() else { return Ok(None) };
    let upload = UploadId::new(upload)?;
    let there = match bucket.list_parts(&record.key, &upload).await {
        Ok(there) => there,
        // A directory does not know which parts it has, and what may not be listed nobody knows:
        // all are sent again.
        Err(BucketError::Unsupported { .. } | BucketError::Denied { .. }) => Vec::new(),
        Err(BucketError::NoUpload { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let parts = of_plan(&plan, there);
    let (key, known) = (&record.key, parts.len());
    tracing::info!(key, parts = known, "an upload that was interrupted goes on");
    Ok(Some(Left { export: record.id, upload, plan, parts }))
}

/// Those of the plan, each as long as it is there.
fn of_plan(plan: &PartPlan, there: Vec<HeldPart>) -> BTreeMap<u16, HeldPart> {
    let lens: BTreeMap<u16, u64> = plan.parts().map(|part| (part.number, part.len)).collect();
    let is_whole = |held: &HeldPart| lens.get(&held.part.number) == Some(&held.part.len);
    there.into_iter().filter(is_whole).map(|held| (held.part.number, held)).collect()
}

/// Freezes the file and records its export: that with the id `earlier`, or a new one.
pub(super) async fn begin<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
    part_size: u64,
    earlier: Option<u128>,
) -> Result<Export, Failure> {
    let own = own_mark(&**context.environment, source).await?;
    let id = earlier.unwrap_or_else(|| own.id(context.environment.random()));
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

/// Forgets an export that began no upload.
pub(super) async fn forget<E: Environment>(
    context: &Context<'_, E>,
    export: &Export,
) -> Result<(), Failure> {
    let abort = Command::AbortExport { inode: export.inode, export: export.id };
    context.environment.execute(abort, true).await.map(|_| ())
}

/// Records which upload an export has.
pub(super) async fn record_upload<E: Environment>(
    context: &Context<'_, E>,
    export: &Export,
    upload: &UploadId,
) -> Result<(), Failure> {
    let upload_id = upload.as_str().to_owned();
    let record = Command::RecordUpload { inode: export.inode, export: export.id, upload_id };
    context.environment.execute(record, true).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use millrace_object_source::{Tag, UploadedPart};
    use millrace_types::{ChunkSize, MIB};

    use super::*;

    #[test]
    fn parts_of_another_length_or_number_are_sent_again() {
        let plan = PartPlan::new(20 * MIB, ChunkSize::new(8 * MIB).unwrap()).unwrap();
        let held = |number, len| {
            let part = UploadedPart { number, tag: Tag::new("t").unwrap(), len };
            HeldPart { part, digest: None }
        };
        let there = vec![held(1, 8 * MIB), held(2, 8 * MIB - 1), held(3, 4 * MIB), held(4, 1)];
        let kept: Vec<_> = of_plan(&plan, there).into_keys().collect();
        assert_eq!(kept, [1, 3]);
    }
}
