//! Parts that are larger than any chunk: read from wherever their chunks are while they are sent.
//!
//! No read begins before there is a place for what it brings. Once begun it never waits for the
//! bucket: clients that read the same pages at the same time wait for it.
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

/// Reads of 1 MiB at most that are under way at a time.
pub(super) const AHEAD: usize = 4;

/// Places for what is read, and for what waits for being sent.
const PLACES: usize = 2 * AHEAD;

/// What a streamed part may have in memory.
pub(super) const WINDOW: u64 = 1024 * 1024 * PLACES as u64;

/// What is sent, or why it cannot be read.
type Sent = Result<Bytes, BucketError>;

/// Where the pieces of one attempt go.
type Attempt = mpsc::Sender<Sent>;

impl Daemon {
    /// Uploads one part without holding it in memory.
    pub(super) async fn stream_part(
        &self,
        bucket: Arc<Bucket>,
        (source, reader): (UploadSource, Reader),
        upload: UploadId,
        number: u16,
    ) -> Result<UploadPartReply, Failure> {
        let held = self.upload_permit(source.link, WINDOW).await?;
        let (begin, mut attempts) = mpsc::unbounded_channel::<Attempt>();
        let read = move || {
            let (pieces, arriving) = mpsc::channel(PLACES);
            // Nobody listens any more when the request was given up; then nothing comes.
            drop(begin.send(pieces));
            stream::unfold(arriving, |mut arriving| async {
                arriving.recv().await.map(|piece| (piece, arriving))
            })
        };
        let (key, len) = (source.key.clone(), source.len);
        let place = PartPlace { number, offset: source.offset, len };
        let sent = self.on_buckets(bucket, move |bucket| async move {
            let _held = held;
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
            let (content, attempt) = (&content, &attempt);
            async move {
                let read = self.gather_piece((source, reader), content, &view, range);
                with_place(attempt, read).await
            }
        });
        let mut reads = std::pin::pin!(reads.buffered(AHEAD));
        let (mut checksum, mut read) = (Crc32c::EMPTY, 0);
        while let Some(piece) = reads.next().await {
            // Who gave this attempt up begins another one.
            let (place, piece) = piece?;
            let (bytes, sum) = match piece {
                Ok(piece) => piece,
                Err(failure) => {
                    let message = failure.to_string();
                    drop(place.send(Err(BucketError::Invalid { message })));
                    return Some(Err(failure));
                }
            };
            checksum = checksum.combine(sum, bytes.len());
            read += bytes.len() as u64;
            drop(place.send(Ok(bytes)));
        }
        if read != source.len {
            let words = "the range leaves the file";
            return Some(Err(Failure::new(ErrorKind::InvalidArgument, words)));
        }
        Some(Ok(checksum))
    }
}

/// Does what brings a piece, once there is a place for it. `None` when the attempt was given up
/// before that.
async fn with_place<T>(
    attempt: &Attempt,
    read: impl Future<Output = T>,
) -> Option<(mpsc::OwnedPermit<Sent>, T)> {
    let place = attempt.clone().reserve_owned().await.ok()?;
    Some((place, read.await))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn nothing_is_read_before_there_is_a_place_for_it() {
        let (attempt, mut arriving) = mpsc::channel(1);
        let begun = Cell::new(0);
        let read = || async { begun.set(begun.get() + 1) };
        let (place, ()) = with_place(&attempt, read()).now_or_never().unwrap().unwrap();
        let mut second = Box::pin(with_place(&attempt, read()));
        assert!(poll!(&mut second).is_pending());
        drop(place.send(Ok(Bytes::from_static(b"mill"))));
        assert!(poll!(&mut second).is_pending(), "it is not taken yet");
        assert_eq!(begun.get(), 1);
        assert_eq!(arriving.recv().await.unwrap().unwrap(), "mill");
        let (place, ()) = second.now_or_never().unwrap().unwrap();
        assert_eq!(begun.get(), 2);
        drop((place, arriving));
        assert!(with_place(&attempt, read()).await.is_none(), "nobody listens");
        assert_eq!(begun.get(), 2);
    }
}
