//! Uploads by parts to buckets of no link: recorded before they are begun, gone on with after a
//! crash, given up when their job is over.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use millrace_object_source::{
    Bucket, Condition, Error as BucketError, Tag, UploadId, UploadedPart,
};
use millrace_types::{ErrorKind, Failure, InodeId, JobId};

use super::{Elsewhere, Source};
use crate::{
    command::{Command, RecordCopy},
    hydration::{
        environment::Environment,
        import::{Importer, broken},
        jobs::{
            Context,
            file_export::is_unchanged,
            settle::abort_unknown,
            upload::{Sender, SentPart},
        },
        parts::PartPlan,
    },
    namespace::tree,
    store::{
        keys,
        records::{self, CopyRecord, JobRecord},
    },
};

/// Uploads that are given up at one time: more than all jobs have under way.
const LEFT_MAX: usize = 10_000;

/// Sends a file by parts, those that are not there yet. `None` when it changed meanwhile.
pub(super) async fn by_parts<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    sender: &Sender<'_, E>,
    source: &Source,
    plan: PartPlan,
    condition: &Condition,
) -> Result<Option<Tag>, Failure> {
    let environment = context.environment;
    let job = context.job.job.id;
    let Begun { upload, plan, parts: known } = match go_on(to, source).await? {
        Some(begun) => begun,
        None => {
            end(environment, to, job, source).await?;
            create(context, to, source, plan).await?
        }
    };
    let made = async {
        sender.count(known.values().map(|part| part.len).sum());
        let missing = plan.parts().filter(|part| !known.contains_key(&part.number));
        let sent = sender.parts(&upload, missing, &BTreeMap::new()).await?;
        let mut parts = known.clone();
        let sent = sent.into_iter().map(SentPart::into_uploaded);
        parts.extend(sent.map(|part| (part.number, part)));
        let (id, count) = (source.inode.id, source.version.change_count);
        if !is_unchanged(&**environment, id, count).await? {
            return Ok(None);
        }
        let parts: Vec<UploadedPart> = parts.into_values().collect();
        Ok(Some(to.open.complete_upload(&source.key, &upload, &parts, condition).await?))
    };
    let made = made.await;
    sender.uncount();
    let ended = match &made {
        Ok(Some(_)) => forget(environment, job, source.inode.id).await,
        _ => abort(environment, &to.open, job, source.inode.id, &source.key, Some(&upload)).await,
    };
    if let Err(failure) = ended {
        // It is tried again at the end of the job.
        tracing::warn!(key = %source.key, %failure, "an upload stays behind in the bucket");
    }
    made
}

/// Gives up what an earlier run began of a file that needs it no more.
pub(super) async fn end<E: Environment>(
    environment: &Arc<E>,
    to: &Elsewhere,
    job: JobId,
    source: &Source,
) -> Result<(), Failure> {
    let Some(begun) = &source.begun else { return Ok(()) };
    let upload = begun.upload_id.clone().map(UploadId::new).transpose()?;
    abort(environment, &to.open, job, source.inode.id, &begun.key, upload.as_ref()).await
}

/// Gives up what jobs left that are over, and not still at work.
pub(in crate::hydration::jobs) async fn settle<E: Environment>(
    environment: &Arc<E>,
    importer: &Arc<Importer<E>>,
    is_running: impl Fn(JobId) -> bool,
) -> Result<(), Failure> {
    let left = environment.read(|view| {
        let mut left = Vec::new();
        for (key, record) in
            tree::scan::<CopyRecord>(view, &keys::copies(), LEFT_MAX).map_err(broken)?
        {
            let (Some(job), Some(inode)) = (keys::number_at(&key, 1), keys::number_at(&key, 9))
            else {
                continue;
            };
            let known: Option<JobRecord> =
                records::read(view, &keys::job(JobId(job))).map_err(broken)?;
            if known.is_none_or(|known| known.job.state.is_final()) {
                left.push((JobId(job), InodeId(inode), record));
            }
        }
        Ok(left)
    });
    let mut away = HashSet::new();
    for (job, inode, record) in left.await? {
        let CopyRecord { bucket, key, upload_id, .. } = record;
        // Each request to a bucket that is away takes long.
        if is_running(job) || away.contains(&bucket) {
            continue;
        }
        let given_up = async {
            let open = importer.bucket(&bucket)?;
            let upload = upload_id.map(UploadId::new).transpose()?;
            abort(environment, &open, job, inode, &key, upload.as_ref()).await
        };
        let given_up = given_up.await;
        if let Err(failure) = given_up {
            tracing::warn!(key, %failure, "an upload cannot be given up now");
            if failure.kind == ErrorKind::BucketUnavailable {
                away.insert(bucket);
            }
        }
    }
    Ok(())
}

/// An upload that is under way, with the parts that the bucket has.
struct Begun {
    upload: UploadId,
    plan: PartPlan,
    parts: BTreeMap<u16, UploadedPart>,
}

/// The upload that an earlier run of the job began, if it is of this version and still there.
async fn go_on(to: &Elsewhere, source: &Source) -> Result<Option<Begun>, Failure> {
    let same = |begun: &&CopyRecord| {
        let version = (source.version.generation, source.version.change_count);
        begun.key == source.key
            && (begun.generation, begun.change_count) == version
            && begun.size == source.inode.size
    };
    let Some(begun) = source.begun.as_ref().filter(same) else { return Ok(None) };
    let Some(upload) = begun.upload_id.clone() else { return Ok(None) };
    let Some(content) = source.inode.content() else { return Ok(None) };
    let chunk_size = content.layout.chunk_size();
    let Some(plan) = PartPlan::recorded(begun.size, begun.part_size, chunk_size) else {
        return Ok(None);
    };
    let upload = UploadId::new(upload)?;
    let there = match to.open.list_parts(&source.key, &upload).await {
        Ok(parts) => parts,
        // A directory does not know which parts it has: all are sent again.
        Err(BucketError::Unsupported { .. }) => Vec::new(),
        Err(BucketError::NoUpload { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let lens: BTreeMap<u16, u64> = plan.parts().map(|part| (part.number, part.len)).collect();
    let whole = |part: &UploadedPart| lens.get(&part.number) == Some(&part.len);
    let there = there.into_iter().map(|held| held.part);
    let parts = there.filter(whole).map(|part| (part.number, part)).collect();
    Ok(Some(Begun { upload, plan, parts }))
}

async fn create<E: Environment>(
    context: &Context<'_, E>,
    to: &Elsewhere,
    source: &Source,
    plan: PartPlan,
) -> Result<Begun, Failure> {
    let record = RecordCopy {
        job: context.job.job.id,
        inode: source.inode.id,
        bucket: to.bucket.clone(),
        key: source.key.clone(),
        generation: source.version.generation,
        change_count: source.version.change_count,
        size: source.inode.size,
        part_size: plan.part_size(),
        upload_id: None,
    };
    // Before it exists, so that one whose name was never recorded is looked for.
    let environment = context.environment;
    environment.execute(Command::RecordCopy(Box::new(record.clone())), true).await?;
    let upload = to.open.create_upload(&source.key, &source.metadata).await?;
    let named = RecordCopy { upload_id: Some(upload.as_str().to_owned()), ..record };
    environment.execute(Command::RecordCopy(Box::new(named)), true).await?;
    Ok(Begun { upload, plan, parts: BTreeMap::new() })
}

async fn abort<E: Environment>(
    environment: &Arc<E>,
    bucket: &Bucket,
    job: JobId,
    inode: InodeId,
    key: &str,
    upload: Option<&UploadId>,
) -> Result<(), Failure> {
    match upload {
        Some(upload) => bucket.abort_upload(key, upload).await?,
        None => abort_unknown(bucket, key).await?,
    }
    forget(environment, job, inode).await
}

async fn forget<E: Environment>(
    environment: &Arc<E>,
    job: JobId,
    inode: InodeId,
) -> Result<(), Failure> {
    environment.execute(Command::ForgetCopy { job, inode }, true).await.map(|_| ())
}
