//! Gets a frozen file's bytes into a bucket: by one put, or by parts that the targets send.

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{
    Bucket, Condition, HeldPart, PartDigest, Stored, Tag, UploadId, UploadedPart,
};
use millrace_protocol::{
    capability::{Content, Signed},
    cluster::{self, Map},
    target::{
        DigestPart, StoreObject, UploadCondition, UploadObject, UploadObjectTo, UploadPart,
        UploadPartTo, UploadSource,
    },
};
use millrace_types::{ChunkIndex, ErrorKind, Failure, HostId, KIB, LinkId, MIB};
use tokio::sync::Semaphore;

use super::{
    Context, Environment,
    begun::{self, Left, Planned},
    file_export::{Source, attributes, is_unchanged},
    settle::Export,
};
use crate::hydration::{
    parts::{Part, PartPlan},
    spread::place_of,
};

/// How an upload ended that did not fail.
pub(super) enum End {
    /// The object is there, of these parts if it was sent by parts.
    Stored(Stored, Vec<SentPart>),
    /// The file changed before the object was made; nothing is there.
    Changed,
    /// Not all parts could be sent for now; those that were are there, and nothing was made of
    /// them.
    Interrupted(Failure),
}

/// A part of an object, and what its bytes are.
#[derive(Debug, Clone)]
pub(super) struct SentPart {
    part: Part,
    uploaded: UploadedPart,
    digest: PartDigest,
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

/// Uploads everything that is not `left` there already, and makes the object, under the export's
/// condition.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    source: &Source,
    bucket: &Bucket,
    export: &Export,
    Planned { plan, left }: Planned,
) -> Result<End, Failure> {
    let metadata = attributes(&source.inode).to_metadata(Some(&export.mark()))?;
    let size = source.inode.size;
    let inline = if size == 0 { Some(Vec::new()) } else { source.body.inline.clone() };
    if let Some(bytes) = inline {
        context.paced(size).await;
        let (body, condition) = (vec![bytes.into()], export.condition()?);
        let put = bucket.put_small(&export.key, body, &metadata, &condition);
        return Ok(End::Stored(put.await?, Vec::new()));
    }
    let to = To { bucket: None, link: export.link, key: export.key.clone() };
    let sender = Sender::new(context, uploads, &source.content, to).await?;
    let condition = export.condition()?;
    if is_one_chunk(&source.content, size, &plan) {
        let metadata = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let stored = sender.whole(size, metadata.collect(), &condition).await?;
        return Ok(End::Stored(stored, Vec::new()));
    }
    let (upload, held) = match left {
        Some(Left { upload, parts, .. }) => (upload, parts),
        None => {
            let upload = bucket.create_upload(&export.key, &metadata).await?;
            begun::record_upload(context, export, &upload).await?;
            (upload, BTreeMap::new())
        }
    };
    let made = match sender.parts(&upload, plan.parts(), &held).await {
        Ok(parts) => made_of(context, bucket, export, &upload, parts).await,
        // Those that are there stay: the file's next export goes on with them.
        Err(failure) if is_repeatable(failure.kind) => {
            sender.uncount();
            return Ok(End::Interrupted(failure));
        }
        Err(failure) => Err(failure),
    };
    // The whole file is counted when it is done; parts only show that it goes on.
    sender.uncount();
    // After an unclear answer this may find the upload gone, which is no error; the object, if the
    // completion won after all, stays.
    if !matches!(made, Ok(End::Stored(..)))
        && let Err(error) = bucket.abort_upload(&export.key, &upload).await
    {
        tracing::warn!(key = %export.key, %error, "an upload stays behind in the bucket");
    }
    made
}

/// Makes the object of its parts, unless the file has changed.
async fn made_of<E: Environment>(
    context: &Context<'_, E>,
    bucket: &Bucket,
    export: &Export,
    upload: &UploadId,
    parts: Vec<SentPart>,
) -> Result<End, Failure> {
    if !is_unchanged(&**context.environment, export.inode, export.change_count).await? {
        return Ok(End::Changed);
    }
    let named: Vec<UploadedPart> = parts.iter().map(|sent| sent.uploaded.clone()).collect();
    let made = bucket.complete_upload(&export.key, upload, &named, &export.condition()?).await?;
    Ok(End::Stored(Stored::unchecked(made), parts))
}

/// Has targets read once more what they sent, so that they know again which blocks the object has.
/// Whether all of it is what was sent.
pub(super) async fn is_still_read<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    source: &Source,
    export: &Export,
    parts: &[SentPart],
) -> Result<bool, Failure> {
    let to = To { bucket: None, link: export.link, key: export.key.clone() };
    let sender = Sender::new(context, uploads, &source.content, to).await?;
    let sent: Vec<_> = parts.iter().map(|sent| (sent.part, sent.digest)).collect();
    let read = stream::iter(sent).map(|(part, digest)| sender.has_bytes(part, digest));
    read.buffer_unordered(PARTS_AT_ONCE).try_all(ready).await
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

impl SentPart {
    /// What completion names.
    pub(super) fn into_uploaded(self) -> UploadedPart {
        self.uploaded
    }
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

    /// Sends parts, as many at a time as may be, but for those that the bucket has with the same
    /// bytes; in their order when all are there.
    pub(super) async fn parts(
        &self,
        upload: &UploadId,
        parts: impl Iterator<Item = Part>,
        held: &BTreeMap<u16, HeldPart>,
    ) -> Result<Vec<SentPart>, Failure> {
        let sent = stream::iter(parts).map(|part| self.unless_held(upload, part, held));
        let sent = sent.buffer_unordered(PARTS_AT_ONCE).try_collect();
        let mut sent: Vec<SentPart> = sent.await?;
        sent.sort_by_key(|sent| sent.part.number);
        Ok(sent)
    }

    /// Counts a part, or parts that are there already.
    pub(super) fn count(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.context.progress.moved(self.content.inode, bytes);
    }

    /// Takes what was counted of parts back.
    pub(super) fn uncount(&self) {
        let bytes = self.moved.swap(0, Ordering::Relaxed);
        self.context.progress.unmoved(self.content.inode, bytes);
    }

    async fn unless_held(
        &self,
        upload: &UploadId,
        part: Part,
        held: &BTreeMap<u16, HeldPart>,
    ) -> Result<SentPart, Failure> {
        if let Some(HeldPart { part: uploaded, digest: Some(digest) }) = held.get(&part.number)
            && self.has_bytes(part, *digest).await?
        {
            self.count(part.len);
            return Ok(SentPart { part, uploaded: uploaded.clone(), digest: *digest });
        }
        self.part(upload, part).await
    }

    /// Has a part read as if it was sent. Whether its bytes have this digest.
    async fn has_bytes(&self, part: Part, digest: PartDigest) -> Result<bool, Failure> {
        let with_md5 = matches!(digest, PartDigest::Md5(_));
        let request = DigestPart { source: self.source(part.offset, part.len), with_md5 };
        let environment = &**self.context.environment;
        let ask = |host, timeout| environment.ask(host, request.clone(), timeout);
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        match (self.patiently(part, ask).await, digest) {
            (Ok(read), PartDigest::Crc32c(told)) => Ok(read.checksum == told),
            (Ok(read), PartDigest::Md5(told)) => Ok(read.md5 == Some(told)),
            // A target daemon from before there was this.
            (Err(failure), _) if failure.kind == ErrorKind::NotSupported => Ok(false),
            (Err(failure), _) => Err(failure),
        }
    }

    async fn part(&self, upload: &UploadId, part: Part) -> Result<SentPart, Failure> {
        let request = UploadPart {
            source: self.source(part.offset, part.len),
            upload_id: upload.as_str().to_owned(),
            part_number: part.number,
        };
        let environment = &**self.context.environment;
        let ask = |host, timeout| {
            let (bucket, request) = (self.to.bucket.clone(), request.clone());
            async move {
                match bucket {
                    None => environment.ask(host, request, timeout).await,
                    Some(bucket) => {
                        let request = UploadPartTo { bucket, part: request };
                        environment.ask(host, request, timeout).await
                    }
                }
            }
        };
        let _permit = self.uploads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        self.context.paced(part.len).await;
        let reply = self.patiently(part, ask).await?;
        let tag = tag(&reply.etag)?;
        self.count(part.len);
        let uploaded = UploadedPart { number: part.number, tag, len: part.len };
        Ok(SentPart { part, uploaded, digest: PartDigest::Crc32c(reply.checksum) })
    }

    /// Asks the target of a part's first chunk, again while it or the bucket is busy or away.
    async fn patiently<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        part: Part,
        ask: impl Fn(HostId, Duration) -> F,
    ) -> Result<T, Failure> {
        let place = place_of(&self.map, &self.content.layout, part.first_chunk)?;
        let mut pause = PAUSE;
        let mut attempt = 1;
        loop {
            match ask(place.host, timeout_of(part.len)).await {
                Err(failure) if is_repeatable(failure.kind) && attempt < ATTEMPTS => {
                    let hint = Duration::from_millis(failure.retry_after_ms.into());
                    tokio::time::sleep(pause.max(hint)).await;
                    pause *= 2;
                    attempt += 1;
                }
                answer => return answer,
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
