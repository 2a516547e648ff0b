//! Work for jobs, answered with what it asked buckets.

use bytes::Bytes;
use millrace_object_source::Tally;
use millrace_protocol::{
    Request, RequestKind,
    codec::{self, decode},
    requests::RequestCounts,
    tallied::{Tallied, TalliedReply},
    target::{
        DigestPart, Hydrate, StoreObject, UploadObject, UploadObjectTo, UploadPart, UploadPartTo,
    },
};
use millrace_types::{ErrorKind, Failure};

use super::Daemon;

impl Daemon {
    /// Does what is asked, and counts the requests.
    pub(crate) async fn tallied(&self, asked: Tallied) -> Result<TalliedReply, Failure> {
        let tally = Tally::default();
        let request = &asked.request;
        let work = async {
            match RequestKind::from_code(asked.kind) {
                Some(RequestKind::Hydrate) => {
                    encoded::<Hydrate>(self.hydrate(decode(request)?).await)
                }
                Some(RequestKind::UploadPart) => {
                    encoded::<UploadPart>(self.upload_part(decode(request)?).await)
                }
                Some(RequestKind::UploadObject) => {
                    encoded::<UploadObject>(self.upload_object(decode(request)?).await)
                }
                Some(RequestKind::UploadPartTo) => {
                    encoded::<UploadPartTo>(self.upload_part_to(decode(request)?).await)
                }
                Some(RequestKind::UploadObjectTo) => {
                    encoded::<UploadObjectTo>(self.upload_object_to(decode(request)?).await)
                }
                Some(RequestKind::StoreObject) => {
                    encoded::<StoreObject>(self.store_object(decode(request)?).await)
                }
                Some(RequestKind::DigestPart) => {
                    encoded::<DigestPart>(self.digest_part(decode(request)?).await)
                }
                _ => Err(ErrorKind::NotSupported.into()),
            }
        };
        let answer = tally.clone().scope(work).await.map(Vec::from);
        let counters = tally.counters();
        let (received, sent) = (counters.bytes_received(), counters.bytes_sent());
        let requests = RequestCounts::new(counters.by_class(), counters.failures(), received, sent);
        Ok(TalliedReply { answer, requests })
    }
}

fn encoded<R: Request>(result: Result<R::Reply, Failure>) -> Result<Bytes, Failure> {
    result.map(|reply| codec::encode(&reply))
}
