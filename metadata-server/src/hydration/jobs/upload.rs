//! Gets a frozen file's bytes into the bucket: by one put, or by parts that the targets send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{Bucket, Condition, Tag, UploadId, UploadedPart};
use millrace_protocol::{
    capability::Signed,
    cluster::Map,
    target::{UploadCondition, UploadObject, UploadPart, UploadSource},
};
use millrace_types::{ChunkIndex, ErrorKind, Failure};
use tokio::sync::Semaphore;

use super::{
    Context, Environment,
    file_export::{Source, attributes, is_unchanged},
    settle::Export,
};
use crate::{
    command::Command,
    hydration::{
        parts::{Part, PartPlan},
        spread::place_of,
    },
};

/// How an upload ended that did not fail.
pub(super) enum End {
    /// The object is there.
    Stored(Tag),
    /// The file changed before the object was made; nothing is there.
    Changed,
}

/// How long a target may take for one part: 64 MiB at 1 MiB/s, and its own retries.
const PART_TIMEOUT: Duration = Duration::from_secs(300);

/// How often a part is sent again when a target or the bucket is busy or away.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// Parts of one file that are under way at the same time; all files together are bounded by the
/// semaphore.
const PARTS_AT_ONCE: usize = 16;

/// Uploads everything and makes the object, under the export's condition.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    source: &Source,
    bucket: &Bucket,
    export: &Export,
    plan: &PartPlan,
) -> Result<End, Failure> {
    let metadata = attributes(&source.inode).to_metadata(Some(&export.mark()))?;
    let size = source.inode.size;
    let inline = if size == 0 { Some(Vec::new()) } else { source.body.inline.clone() };
    if let Some(bytes) = inline {
        let tag = bucket
            .put_small(&export.key, vec![bytes.into()], &metadata, &export.condition()?)
            .await?;
        return Ok(End::Stored(tag));
    }
    let work = Work {
        map: context.environment.map().await?,
        capability: context.environment.sign_read(source.content.clone()).await?,
        context,
        uploads,
        source,
        export,
        moved: AtomicU64::new(0),
    };
    if size <= source.content.layout.chunk_size().bytes() && plan.is_single() {
        let metadata = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        return work.whole(metadata.collect()).await;
    }
    let upload = bucket.create_upload(&export.key, &metadata).await?;
    let record = Command::RecordUpload {
        inode: source.inode.id,
        export: export.id,
        upload_id: upload.as_str().to_owned(),
    };
    context.environment.execute(record, true).await?;
    let made = by_parts(&work, bucket, &upload, plan).await;
    // The whole file is counted when it is done; parts only show that it goes on.
    context.progress.unmoved(work.moved.load(Ordering::Relaxed));
    // After an unclear answer this may find the upload gone, which is no error; the object, if the
    // completion won after all, stays.
    if !matches!(made, Ok(End::Stored(_)))
        && let Err(error) = bucket.abort_upload(&export.key, &upload).await
    {
        tracing::warn!(key = %export.key, %error, "an upload stays behind in the bucket");
    }
    made
}

async fn by_parts<E: Environment>(
    work: &Work<'_, E>,
    bucket: &Bucket,
    upload: &UploadId,
    plan: &PartPlan,
) -> Result<End, Failure> {
    let sent = stream::iter(plan.parts()).map(|part| work.part(upload, part));
    let mut parts: Vec<UploadedPart> = sent.buffer_unordered(PARTS_AT_ONCE).try_collect().await?;
    parts.sort_by_key(|part| part.number);
    let export = work.export;
    if !is_unchanged(&**work.context.environment, export.inode, export.change_count).await? {
        return Ok(End::Changed);
    }
    let made = bucket.complete_upload(&export.key, upload, &parts, &export.condition()?).await;
    Ok(End::Stored(made?))
}

/// What all uploads of one file share.
struct Work<'a, E> {
    map: Map,
    capability: Signed,
    context: &'a Context<'a, E>,
    uploads: &'a Arc<Semaphore>,
    source: &'a Source,
    export: &'a Export,
    /// Bytes of finished parts, as the job counts them.
    moved: AtomicU64,
}

impl<E: Environment> Work<'_, E> {
    async fn whole(&self, metadata: Vec<(String, String)>) -> Result<End, Failure> {
        let place = place_of(&self.map, &self.source.content.layout, ChunkIndex(0))?;
        let condition = match self.export.condition()? {
            Condition::Matches(tag) => UploadCondition::Tag(tag.as_str().to_owned()),
            Condition::Absent | Condition::None => UploadCondition::Absent,
        };
        let request = UploadObject {
            source: self.upload_source(0, self.source.inode.size),
            metadata,
            condition,
        };
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        self.context.paced(self.source.inode.size).await;
        let environment = &**self.context.environment;
        let reply = environment.ask(place.host, request, PART_TIMEOUT).await?;
        Ok(End::Stored(tag(&reply.etag)?))
    }

    async fn part(&self, upload: &UploadId, part: Part) -> Result<UploadedPart, Failure> {
        let place = place_of(&self.map, &self.source.content.layout, part.first_chunk)?;
        let request = UploadPart {
            source: self.upload_source(part.offset, part.len),
            upload_id: upload.as_str().to_owned(),
            part_number: part.number,
        };
        let environment = &**self.context.environment;
        let mut pause = PAUSE;
        let mut attempt = 1;
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        self.context.paced(part.len).await;
        loop {
            match environment.ask(place.host, request.clone(), PART_TIMEOUT).await {
                Ok(reply) => {
                    let tag = tag(&reply.etag)?;
                    self.moved.fetch_add(part.len, Ordering::Relaxed);
                    self.context.progress.moved(part.len);
                    return Ok(UploadedPart { number: part.number, tag, len: part.len });
                }
                Err(failure) if is_repeatable(failure.kind) && attempt < ATTEMPTS => {
                    let hint = Duration::from_millis(failure.retry_after_ms.into());
                    tokio::time::sleep(pause.max(hint)).await;
                    pause *= 2;
                    attempt += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn upload_source(&self, offset: u64, len: u64) -> UploadSource {
        UploadSource {
            content: self.source.content.clone(),
            capability: self.capability.clone(),
            offset,
            len,
            link: self.export.link,
            key: self.export.key.clone(),
        }
    }
}

/// A part replaces itself, so that it can be sent again whatever became of it.
fn is_repeatable(kind: ErrorKind) -> bool {
    kind.is_transient() || kind == ErrorKind::BucketUnavailable
}

fn tag(text: &str) -> Result<Tag, Failure> {
    Tag::new(text).map_err(|_| Failure::new(ErrorKind::Protocol, "a tag that no bucket gives"))
}
