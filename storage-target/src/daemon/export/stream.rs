//! Parts that are larger than any chunk: read from wherever their chunks are while they are sent.
//!
//! ```text
//!   this task: reads in order, some ahead ──▶ a channel ──▶ the bucket's task: one PUT
//!                      ▲                                        │
//!                      └── begins again for another attempt ◀───┘
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use millrace_object_source::{Bucket, Error as BucketError, PartPlace, UploadId};
use millrace_protocol::target::{UploadPartReply, UploadSource};
use millrace_types::{Crc32c, ErrorKind, Failure};
use tokio::sync::mpsc;

use super::{Daemon, transfers};
use crate::store::Reader;

/// Reads of 1 MiB at most that are under way, and as many that wait for being sent.
const AHEAD: usize = 4;

/// What a streamed part may have in memory.
const WINDOW: u64 = 2 * 1024 * 1024 * AHEAD as u64;

/// Where the pieces of one attempt go.
type Attempt = mpsc::Sender<Result<Bytes, BucketError>>;

impl Daemon {
    /// Uploads one part without holding it in memory.
    pub(super) async fn stream_part(
        &self,
        bucket: Arc<Bucket>,
        (source, reader): (UploadSource, Reader),
        upload: UploadId,
        number: u16,
    ) -> Result<UploadPartReply, Failure> {
        let _permit = self.upload_permit(WINDOW).await?;
        let (begin, mut attempts) = mpsc::unbounded_channel::<Attempt>();
        let read = move || {
            let (pieces, arriving) = mpsc::channel(AHEAD);
            // Nobody listens any more when the request was given up; then nothing comes.
            drop(begin.send(pieces));
            stream::unfold(arriving, |mut arriving| async {
                arriving.recv().await.map(|piece| (piece, arriving))
            })
        };
        let (key, len) = (source.key.clone(), source.len);
        let place = PartPlace { number, offset: source.offset, len };
        let sent = self.on_buckets(bucket, move |bucket| async move {
            bucket.put_part_streamed(&key, &upload, place, read).await
        });
        let mut last = Ok(Crc32c::EMPTY);
        let feed = async {
            while let Some(attempt) = attempts.recv().await {
                if let Some(read) = self.feed((&source, reader), attempt).await {
                    last = read;
                }
            }
        };
        // The channel of attempts ends with the request.
        let (sent, ()) = tokio::join!(sent, feed);
        // What could not be read says more than that it did not come.
        let checksum = last?;
        let part = sent?;
        self.counters.exported_bytes.inc_by(len);
        Ok(UploadPartReply { etag: part.tag.as_str().to_owned(), checksum })
    }

    /// Reads the range in order, as far as somebody takes it. The checksum of all of it, or why it
    /// cannot be read.
    async fn feed(
        &self,
        (source, reader): (&UploadSource, Reader),
        attempt: Attempt,
    ) -> Option<Result<Crc32c, Failure>> {
        let content = match source.content.clone().checked() {
            Ok(content) => content,
            Err(error) => return Some(Err(error.into())),
        };
        let reads = stream::iter(transfers(&content, source)).map(|(view, range)| {
            let content = &content;
            async move { self.gather_piece((source, reader), content, &view, range).await }
        });
        let mut reads = std::pin::pin!(reads.buffered(AHEAD));
        let (mut checksum, mut read) = (Crc32c::EMPTY, 0);
        while let Some(piece) = reads.next().await {
            let (bytes, sum) = match piece {
                Ok(piece) => piece,
                Err(failure) => {
                    let message = failure.to_string();
                    drop(attempt.send(Err(BucketError::Invalid { message })).await);
                    return Some(Err(failure));
                }
            };
            checksum = checksum.combine(sum, bytes.len());
            read += bytes.len() as u64;
            // Who gave this attempt up begins another one.
            attempt.send(Ok(bytes)).await.ok()?;
        }
        if read != source.len {
            let words = "the range leaves the file";
            return Some(Err(Failure::new(ErrorKind::InvalidArgument, words)));
        }
        Some(Ok(checksum))
    }
}
