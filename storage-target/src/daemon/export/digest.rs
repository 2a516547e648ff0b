//! Parts that are in the bucket already: read once more, and not sent.

use std::pin::pin;

use futures::{StreamExt, stream};
use millrace_object_source::Md5Sum;
use millrace_protocol::target::{DigestPart, DigestPartReply};
use millrace_types::{Crc32c, ErrorKind, Failure, GIB};

use super::{
    Daemon,
    stream::{AHEAD, WINDOW},
    transfers,
};
use crate::store::Reader;

/// The most bytes of a part that are read: S3's largest.
const PART_LEN_MAX: u64 = 5 * GIB;

impl Daemon {
    /// Reads what a part would send to the bucket of a link, and tells its digests. What was read
    /// is noted as for an upload.
    pub(crate) async fn digest_part(
        &self,
        request: DigestPart,
    ) -> Result<DigestPartReply, Failure> {
        let DigestPart { source, with_md5 } = request;
        if source.len > PART_LEN_MAX {
            let words = format!("{} bytes are no part of an upload", source.len);
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        let content = source.content.clone().checked()?;
        let _held = self.upload_permit(source.link, source.len.min(WINDOW)).await?;
        let reads = stream::iter(transfers(&content, &source)).map(|(view, range)| {
            let (content, source) = (&content, &source);
            async move { self.gather_piece((source, Reader::Export), content, &view, range).await }
        });
        let mut reads = pin!(reads.buffered(AHEAD));
        let (mut checksum, mut read) = (Crc32c::EMPTY, 0);
        let mut md5 = with_md5.then(Md5Sum::default);
        while let Some(piece) = reads.next().await {
            let (bytes, sum) = piece?;
            checksum = checksum.combine(sum, bytes.len());
            read += bytes.len() as u64;
            if let Some(mut sum) = md5.take() {
                // A millisecond or two: beside the threads that serve the network.
                let summed = self.exporter.runtime.spawn(async move {
                    sum.update(&bytes);
                    sum
                });
                md5 = Some(summed.await.map_err(|_| Failure::from(ErrorKind::Unavailable))?);
            }
        }
        if read != source.len {
            let words = "the range leaves the file";
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        Ok(DigestPartReply { checksum, md5: md5.map(Md5Sum::finish) })
    }
}
