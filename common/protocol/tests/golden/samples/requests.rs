//! Messages about what links cost.

use millrace_protocol::requests::{
    BucketRequests, CountRequests, CountsReply, ListRequests, RequestCounts, RequestsReply,
};
use millrace_types::LinkId;

use super::{Sample, cluster::bucket, pair};

pub(super) fn all() -> Vec<Sample> {
    let counts = RequestCounts::new([1, 2, 3, 4, 5, 6, 7], 8, 1 << 40, 1 << 30);
    let counted = BucketRequests { url: "s3://photos".into(), links: vec![LinkId(3)], counts };
    let reply = RequestsReply { buckets: vec![counted], silent: vec!["storage2".into()] };
    [
        pair(&CountRequests { buckets: vec![bucket()] }, &CountsReply { counts: vec![counts] }),
        pair(&ListRequests {}, &reply),
    ]
    .into_iter()
    .flatten()
    .collect()
}
