//! Gets a frozen file's bytes into a bucket: by one put, or by parts that the targets send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{Bucket, Condition, Stored, Tag, UploadId, UploadedPart};
use millrace_protocol::{
    capability::{Content, Signed},
    cluster::{self, Map},
    target::{
        StoreObject, UploadCondition, UploadObject, UploadObjectTo, UploadPart, UploadPartTo,
        UploadSource,
    },
};
use millrace_types::{ChunkIndex, ErrorKind, Failure, HostId, KIB, LinkId, MIB};
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
    Stored(Stored),
    /// The file changed before the object was made; nothing is there.
    Changed,
}

/// How long a target may take for one part or object beside sending it: its turn, its own retries,
/// which begin within two minutes, and the bucket's answer.
const PART_TIMEOUT: Duration = Duration::from_secs(300);

/// The slowest at which buckets are let take what a target holds in memory, in bytes a second; and
/// the most that it holds for a part.
const HELD_RATE_MIN: u64 = 128 * KIB;
const HELD_LEN_MAX: u64 = 64 * MIB;

/// The slowest that a larger part may be, in bytes a second.
const PART_RATE_MIN: u64 = MIB;

/// How often a part is sent again when a target or the bucket is busy or away.
pub(super) const ATTEMPTS: u32 = 6;
pub(super) const PAUSE: Duration = Duration::from_millis(500);

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
        context.paced(size).await;
        let (body, condition) = (vec![bytes.into()], export.condition()?);
        let put = bucket.put_small(&export.key, body, &metadata, &condition);
        return Ok(End::Stored(put.await?));
    }
    let to = To { bucket: None, link: export.link, key: export.key.clone() };
    let sender = Sender::new(context, uploads, &source.content, to).await?;
    let condition = export.condition()?;
    if is_one_chunk(&source.content, size, plan) {
        let metadata = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let stored = sender.whole(size, metadata.collect(), &condition).await?;
        return Ok(End::Stored(stored));
    }
    let upload = bucket.create_upload(&export.key, &metadata).await?;
    let record = Command::RecordUpload {
        inode: source.inode.id,
        export: export.id,
        upload_id: upload.as_str().to_owned(),
    };
    context.environment.execute(record, true).await?;
    let made = async {
        let parts = sender.parts(&upload, plan.parts()).await?;
        if !is_unchanged(&**context.environment, export.inode, export.change_count).await? {
            return Ok(End::Changed);
        }
        let made = bucket.complete_upload(&export.key, &upload, &parts, &condition).await;
        Ok(End::Stored(Stored::unchecked(made?)))
    };
    let made = made.await;
    // The whole file is counted when it is done; parts only show that it goes on.
    sender.uncount();
    // After an unclear answer this may find the upload gone, which is no error; the object, if the
    // completion won after all, stays.
    if !matches!(made, Ok(End::Stored(_)))
        && let Err(error) = bucket.abort_upload(&export.key, &upload).await
    {
        tracing::warn!(key = %export.key, %error, "an upload stays behind in the bucket");
    }
    made
}

/// Whether a file goes by one put: a chunk is read as it is at one moment.
pub(super) fn is_one_chunk(content: &Content, size: u64, plan: &PartPlan) -> bool {
    size <= content.layout.chunk_size().bytes() && plan.is_single()
}

/// Where an object goes.
pub(super) struct To {
    /// A bucket that no link leads to; `None` for the link's.
    pub(super) bucket: Option<cluster::Bucket>,
    pub(super) link: LinkId,
    pub(super) key: String,
}

/// Has targets send what they have of one file.
pub(super) struct Sender<'a, E> {
    map: Map,
    capability: Signed,
    context: &'a Context<'a, E>,
    uploads: &'a Arc<Semaphore>,
    content: &'a Content,
    to: To,
    /// Bytes of finished parts, as the job counts them.
    moved: AtomicU64,
}

impl<'a, E: Environment> Sender<'a, E> {
    pub(super) async fn new(
        context: &'a Context<'a, E>,
        uploads: &'a Arc<Semaphore>,
        content: &'a Content,
        to: To,
    ) -> Result<Self, Failure> {
        let map = context.environment.map().await?;
        let capability = context.environment.sign_read(content.clone()).await?;
        Ok(Self { map, capability, context, uploads, content, to, moved: AtomicU64::new(0) })
    }

    /// Stores a file of one chunk. What a lost answer leaves open is for the caller to settle.
    pub(super) async fn whole(
        &self,
        size: u64,
        metadata: Vec<(String, String)>,
        condition: &Condition,
    ) -> Result<Stored, Failure> {
        let place = place_of(&self.map, &self.content.layout, ChunkIndex(0))?;
        let condition = match condition {
            Condition::Matches(tag) => UploadCondition::Tag(tag.as_str().to_owned()),
            Condition::Absent | Condition::None => UploadCondition::Absent,
        };
        let object = UploadObject { source: self.source(0, size), metadata, condition };
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        self.context.paced(size).await;
        let environment = &**self.context.environment;
        let store = StoreObject { bucket: self.to.bucket.clone(), object: object.clone() };
        match environment.ask(place.host, store, timeout_of(size)).await {
            Ok(reply) => Ok(Stored { tag: tag(&reply.etag)?, is_checked: reply.is_checked }),
            Err(failure) if failure.kind == ErrorKind::NotSupported => {
                self.whole_by_older(place.host, object).await
            }
            Err(failure) => Err(failure),
        }
    }

    /// The same by a target daemon from before it told what the bucket says.
    async fn whole_by_older(&self, host: HostId, object: UploadObject) -> Result<Stored, Failure> {
        let environment = &**self.context.environment;
        let timeout = timeout_of(object.source.len);
        let reply = match self.to.bucket.clone() {
            None => environment.ask(host, object, timeout).await?,
            Some(bucket) => {
                let request = UploadObjectTo { bucket, object };
                environment.ask(host, request, timeout).await?
            }
        };
        Ok(Stored::unchecked(tag(&reply.etag)?))
    }

    /// Sends parts, as many at a time as may be; in their order when all are there.
    pub(super) async fn parts(
        &self,
        upload: &UploadId,
        parts: impl Iterator<Item = Part>,
    ) -> Result<Vec<UploadedPart>, Failure> {
        let sent = stream::iter(parts).map(|part| self.part(upload, part));
        let sent = sent.buffer_unordered(PARTS_AT_ONCE).try_collect();
        let mut sent: Vec<UploadedPart> = sent.await?;
        sent.sort_by_key(|part| part.number);
        Ok(sent)
    }

    /// Counts parts that are there already.
    pub(super) fn count(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.context.progress.moved(self.content.inode, bytes);
    }

    /// Takes what was counted of parts back.
    pub(super) fn uncount(&self) {
        let bytes = self.moved.swap(0, Ordering::Relaxed);
        self.context.progress.unmoved(self.content.inode, bytes);
    }

    async fn part(&self, upload: &UploadId, part: Part) -> Result<UploadedPart, Failure> {
        let place = place_of(&self.map, &self.content.layout, part.first_chunk)?;
        let request = UploadPart {
            source: self.source(part.offset, part.len),
            upload_id: upload.as_str().to_owned(),
            part_number: part.number,
        };
        let environment = &**self.context.environment;
        let timeout = timeout_of(part.len);
        let mut pause = PAUSE;
        let mut attempt = 1;
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        self.context.paced(part.len).await;
        loop {
            let asked = match self.to.bucket.clone() {
                None => environment.ask(place.host, request.clone(), timeout).await,
                Some(bucket) => {
                    let request = UploadPartTo { bucket, part: request.clone() };
                    environment.ask(place.host, request, timeout).await
                }
            };
            match asked {
                Ok(reply) => {
                    let tag = tag(&reply.etag)?;
                    self.moved.fetch_add(part.len, Ordering::Relaxed);
                    self.context.progress.moved(self.content.inode, part.len);
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

    fn source(&self, offset: u64, len: u64) -> UploadSource {
        UploadSource {
            content: self.content.clone(),
            capability: self.capability.clone(),
            offset,
            len,
            link: self.to.link,
            key: self.to.key.clone(),
        }
    }
}

/// How long a target may take for a part or object of so many bytes.
fn timeout_of(len: u64) -> Duration {
    let sending = len.min(HELD_LEN_MAX) / HELD_RATE_MIN + len / PART_RATE_MIN;
    PART_TIMEOUT + Duration::from_secs(sending)
}

/// What replaces itself can be sent again, whatever became of it.
pub(super) fn is_repeatable(kind: ErrorKind) -> bool {
    kind.is_transient() || kind == ErrorKind::BucketUnavailable
}

fn tag(text: &str) -> Result<Tag, Failure> {
    Tag::new(text).map_err(|_| Failure::new(ErrorKind::Protocol, "a tag that no bucket gives"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_time_for_a_part_that_goes_as_slowly_as_it_may() {
        // A bucket's patience, and the bytes; after a first attempt that failed late.
        for (len, seconds) in [(8 * MIB, 120 + 60 + 64), (64 * MIB, 120 + 60 + 512)] {
            assert!(timeout_of(len) > Duration::from_secs(seconds), "{len}");
        }
        assert!(timeout_of(576 * MIB) > Duration::from_secs(120 + 60 + 576));
        assert_eq!(timeout_of(0), PART_TIMEOUT);
    }
}
