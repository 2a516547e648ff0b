//! Uploading: parts of a multipart upload, and small objects.
//!
//! The bytes of chunks on this host's targets are read here; those of others come from their
//! daemons with the capability that the metadata server gave to the system session. They are
//! gathered in memory of their own (not in the disk's buffers, which an upload would hold for
//! seconds). What is larger than a chunk can be is sent while it is read (`stream`).
//!
//! Whoever has a chunk is told whether it goes to the link's bucket, so that its blocks may become
//! clean afterwards, or to another place, by which nothing changes here.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millrace_object_source::{Bucket, Condition, Metadata, Stored, Tag, UploadId, tallied};
use millrace_protocol::{
    capability::Content,
    storage::{Place, Read, TRANSFER_LEN_MAX},
    target::{
        StoreObject, StoreObjectReply, UploadCondition, UploadObject, UploadObjectReply,
        UploadObjectTo, UploadPart, UploadPartReply, UploadPartTo, UploadSource,
    },
};
use millrace_types::{ChunkIndex, Crc32c, ErrorKind, Failure, HostId, LinkId, TargetId};
use tokio::runtime::Handle;

use super::Daemon;
use crate::{store::Reader, view::ChunkView};

mod digest;
mod memory;
mod stream;

use memory::{Held, Memory, UPLOAD_LEN_MAX};

/// How often a file that is written under its export is read again, of 8 MiB in some milliseconds.
const GATHERS_MAX: usize = 8;

/// Reads from the daemons of other hosts.
#[async_trait::async_trait]
pub(crate) trait Remote: Send + Sync + std::fmt::Debug {
    /// Sends a read to the daemon on `host`, at `addresses`; again while that cannot answer, for a
    /// minute.
    async fn read(
        &self,
        host: HostId,
        addresses: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure>;

    /// The same once: whoever asked knows better what to do where it cannot be reached.
    async fn try_read(
        &self,
        host: HostId,
        addresses: &[String],
        request: &Read,
    ) -> Result<(Crc32c, Vec<Bytes>), Failure>;
}

/// Gathers and uploads.
#[derive(Debug)]
pub(crate) struct Exporter {
    remote: Arc<dyn Remote>,
    /// Requests to buckets run beside the threads that serve the network.
    runtime: Handle,
    pub(super) memory: Memory,
}

impl Exporter {
    pub(crate) fn new(remote: Arc<dyn Remote>, runtime: Handle) -> Self {
        Self { remote, runtime, memory: Memory::new() }
    }

    /// The daemons of other hosts.
    pub(super) fn remote(&self) -> &dyn Remote {
        &*self.remote
    }
}

impl Daemon {
    /// Uploads one part to the bucket of a link.
    pub(crate) async fn upload_part(
        &self,
        request: UploadPart,
    ) -> Result<UploadPartReply, Failure> {
        let bucket = self.links.bucket(request.source.link).await?;
        self.part_into(bucket, request, Reader::Export).await
    }

    /// Uploads one part to a bucket that no link leads to.
    pub(crate) async fn upload_part_to(
        &self,
        request: UploadPartTo,
    ) -> Result<UploadPartReply, Failure> {
        let bucket = self.links.open(&request.bucket)?;
        self.part_into(bucket, request.part, Reader::Copy).await
    }

    async fn part_into(
        &self,
        bucket: Arc<Bucket>,
        request: UploadPart,
        reader: Reader,
    ) -> Result<UploadPartReply, Failure> {
        let UploadPart { source, upload_id, part_number } = request;
        let upload = UploadId::new(upload_id)?;
        if source.len > u64::from(UPLOAD_LEN_MAX) {
            return self.stream_part(bucket, (source, reader), upload, part_number).await;
        }
        let held = self.upload_permit(source.link, source.len).await?;
        let (body, checksum) = self.gather(&source, reader).await?;
        let (key, offset) = (source.key, source.offset);
        let part = self.on_buckets(bucket, move |bucket| async move {
            let _held = held;
            bucket.put_part(&key, &upload, part_number, offset, body).await
        });
        let part = part.await?;
        self.counters.exported_bytes.inc_by(source.len);
        Ok(UploadPartReply { etag: part.tag.as_str().to_owned(), checksum })
    }

    /// Uploads a whole object to the bucket of a link.
    pub(crate) async fn upload_object(
        &self,
        request: UploadObject,
    ) -> Result<UploadObjectReply, Failure> {
        let bucket = self.links.bucket(request.source.link).await?;
        let (stored, checksum) = self.object_into(bucket, request, Reader::Export).await?;
        Ok(UploadObjectReply { etag: stored.tag.as_str().to_owned(), checksum })
    }

    /// Uploads a whole object to a bucket that no link leads to.
    pub(crate) async fn upload_object_to(
        &self,
        request: UploadObjectTo,
    ) -> Result<UploadObjectReply, Failure> {
        let bucket = self.links.open(&request.bucket)?;
        let (stored, checksum) = self.object_into(bucket, request.object, Reader::Copy).await?;
        Ok(UploadObjectReply { etag: stored.tag.as_str().to_owned(), checksum })
    }

    /// Uploads a whole object to either, and tells what the bucket says of it. What the bucket does
    /// not know is no request that this daemon does not know: it would be asked in the older way.
    pub(crate) async fn store_object(
        &self,
        request: StoreObject,
    ) -> Result<StoreObjectReply, Failure> {
        let stored = self.stored(request).await.map_err(|failure| match failure.kind {
            ErrorKind::NotSupported => Failure::new(ErrorKind::InvalidArgument, failure.message),
            _ => failure,
        });
        let Stored { tag, is_checked } = stored?;
        Ok(StoreObjectReply { etag: tag.as_str().to_owned(), is_checked })
    }

    async fn stored(&self, request: StoreObject) -> Result<Stored, Failure> {
        let (bucket, reader) = match request.bucket {
            None => (self.links.bucket(request.object.source.link).await?, Reader::Export),
            Some(bucket) => (self.links.open(&bucket)?, Reader::Copy),
        };
        let (stored, _) = self.object_into(bucket, request.object, reader).await?;
        Ok(stored)
    }

    async fn object_into(
        &self,
        bucket: Arc<Bucket>,
        request: UploadObject,
        reader: Reader,
    ) -> Result<(Stored, Crc32c), Failure> {
        let UploadObject { source, metadata, condition } = request;
        let metadata = Metadata::new(metadata)?;
        let condition = match condition {
            UploadCondition::Absent => Condition::Absent,
            UploadCondition::Tag(tag) => Condition::Matches(Tag::new(tag)?),
        };
        let held = self.upload_permit(source.link, source.len).await?;
        let (body, checksum) = self.gather_at_once(&source, reader).await?;
        let key = source.key;
        let stored = self.on_buckets(bucket, move |bucket| async move {
            let _held = held;
            bucket.put_small(&key, body, &metadata, &condition).await
        });
        let stored = stored.await?;
        self.counters.exported_bytes.inc_by(source.len);
        Ok((stored, checksum))
    }

    /// Does the work of an upload, which goes on when nobody waits for it any more: it must hold
    /// what it was allowed of memory itself.
    async fn on_buckets<T, F>(
        &self,
        bucket: Arc<Bucket>,
        work: impl FnOnce(Arc<Bucket>) -> F,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, millrace_object_source::Error>> + Send + 'static,
    {
        let task = self.exporter.runtime.spawn(tallied(work(bucket)));
        Ok(task.await.map_err(|_| Failure::from(ErrorKind::Unavailable))??)
    }

    async fn upload_permit(&self, link: LinkId, len: u64) -> Result<Held, Failure> {
        let fitting = u32::try_from(len).ok().filter(|&len| len <= UPLOAD_LEN_MAX);
        let len = fitting.ok_or_else(|| {
            let words = format!("{len} bytes are more than one upload holds");
            Failure::new(ErrorKind::InvalidArgument, words)
        })?;
        Ok(self.exporter.memory.take(link, len).await)
    }

    /// Reads a file of one chunk, which is here, as it is at one moment: what is being written
    /// meanwhile is in it or not.
    async fn gather_at_once(
        &self,
        source: &UploadSource,
        reader: Reader,
    ) -> Result<(Vec<Bytes>, Crc32c), Failure> {
        let content = source.content.clone().checked()?;
        let view = ChunkView::new(&content, ChunkIndex(0));
        let len = u32::try_from(source.len).ok().filter(|&len| len <= view.chunk_size);
        let len = len.filter(|_| source.offset == 0).ok_or_else(|| {
            let words = "only a file of one chunk goes to the bucket at once";
            Failure::new(ErrorKind::InvalidArgument, words)
        })?;
        let map = self.cluster.map_with(&content.layout, view.key.index).await?;
        let group = map.group(content.layout.pool(), content.layout.group(view.key.index));
        let target = group.and_then(|group| group.targets.first());
        let elsewhere =
            || Failure::new(ErrorKind::StaleGroup, "the file's chunk is on another host");
        let store = self.store(*target.ok_or_else(elsewhere)?)?;
        for _ in 0..GATHERS_MAX {
            let before = store.version(&view, len).await?;
            let gathered = self.gather(source, reader).await?;
            if store.version(&view, len).await? == before {
                return Ok(gathered);
            }
        }
        Err(Failure::new(ErrorKind::InUse, "the file is being written while it is exported"))
    }

    /// Reads a byte range of a file from wherever its chunks are.
    async fn gather(
        &self,
        source: &UploadSource,
        reader: Reader,
    ) -> Result<(Vec<Bytes>, Crc32c), Failure> {
        let content = source.content.clone().checked()?;
        let mut body = Vec::new();
        let mut checksum = Crc32c::EMPTY;
        for (view, range) in transfers(&content, source) {
            let piece = self.gather_piece((source, reader), &content, &view, range);
            let (bytes, sum) = piece.await?;
            checksum = checksum.combine(sum, bytes.len());
            body.push(bytes);
        }
        let gathered: u64 = body.iter().map(|bytes| bytes.len() as u64).sum();
        if gathered != source.len {
            return Err(Failure::new(ErrorKind::InvalidArgument, "the range leaves the file"));
        }
        Ok((body, checksum))
    }

    async fn gather_piece(
        &self,
        (source, reader): (&UploadSource, Reader),
        content: &Content,
        view: &ChunkView,
        range: Range<u32>,
    ) -> Result<(Bytes, Crc32c), Failure> {
        let index = view.key.index;
        let map = self.cluster.map_with(&content.layout, index).await?;
        let group = map.group(content.layout.pool(), content.layout.group(index));
        let unknown = || Failure::new(ErrorKind::StaleGroup, "the chunk's group is unknown here");
        let group = group.ok_or_else(unknown)?;
        let target: TargetId = *group.targets.first().ok_or_else(unknown)?;
        let (parts, checksum) = if self.stores.get(&target).is_some() {
            let store = self.store(target)?;
            self.cluster.check_fresh(&content.layout, index, source.capability.key)?;
            let read = store.read(view, range.clone(), reader).await?;
            (read.body, read.checksum)
        } else {
            let host = map.host_of(target).ok_or_else(unknown)?;
            let len = u32::try_from(range.len()).expect("within a transfer");
            let request = Read {
                place: Place {
                    target,
                    group_epoch: group.epoch,
                    capability: source.capability.clone(),
                    chunk: index,
                    offset: range.start,
                    len,
                },
                sequential: reader.says_sequential(),
            };
            let (checksum, body) =
                self.exporter.remote.read(host.id, &host.addresses, &request).await?;
            (body, checksum)
        };
        let bytes = Bytes::from(parts.concat());
        // What goes to the bucket is what was verified on disk, whatever lay between.
        if bytes.len() != range.len() || Crc32c::of(&bytes) != checksum {
            return Err(ErrorKind::Corrupt.into());
        }
        Ok((bytes, checksum))
    }
}

/// The reads that bring a range, in its order.
fn transfers<'a>(
    content: &'a Content,
    source: &UploadSource,
) -> impl Iterator<Item = (ChunkView, Range<u32>)> + use<'a> {
    content.layout.pieces(source.offset, source.len).flat_map(|piece| {
        let view = ChunkView::new(content, piece.index);
        let within = |at: u64| u32::try_from(at).expect("a chunk has 64 MiB at most");
        let (first, end) =
            (within(piece.offset_in_chunk), within(piece.offset_in_chunk + piece.len));
        let starts = (first..end).step_by(TRANSFER_LEN_MAX as usize);
        starts.map(move |at| (view.clone(), at..end.min(at.saturating_add(TRANSFER_LEN_MAX))))
    })
}
