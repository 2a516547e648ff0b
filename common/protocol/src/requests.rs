//! What links cost: the requests that their buckets were sent, by kind.

use millrace_types::LinkId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::cluster::Bucket;

/// What one daemon, or all, asked a bucket since the daemons began. Each repetition is a request of
/// its own.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounts {
    /// Listings.
    pub list: u64,
    /// HEAD.
    pub head: u64,
    /// GET of bytes.
    pub get: u64,
    /// PUT of whole objects.
    pub put: u64,
    /// PUT of parts.
    pub part: u64,
    /// Begin, list, complete and abort of uploads, and DELETE.
    pub upload: u64,
    /// Anything else, as for credentials.
    pub other: u64,
    /// Of all these, those that got no answer, or one with a status of 400 or more.
    pub failed: u64,
    /// Bytes of objects that arrived.
    pub received_bytes: u64,
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
}

impl RequestCounts {
    /// The counts of one daemon: requests by kind, in the order of the fields; of them the failed
    /// ones; bytes received and sent.
    #[must_use]
    pub fn new(by_kind: [u64; 7], failed: u64, received_bytes: u64, sent_bytes: u64) -> Self {
        let [list, head, get, put, part, upload, other] = by_kind;
        Self { list, head, get, put, part, upload, other, failed, received_bytes, sent_bytes }
    }

    /// Adds what another daemon asked.
    pub fn add(&mut self, other: &Self) {
        self.list += other.list;
        self.head += other.head;
        self.get += other.get;
        self.put += other.put;
        self.part += other.part;
        self.upload += other.upload;
        self.other += other.other;
        self.failed += other.failed;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}

/// Asks a target daemon what it asked some buckets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CountRequests {
    /// The buckets; what their URLs have behind the bucket's name does not matter.
    pub buckets: Vec<Bucket>,
}

/// What it asked them, in the same order. Zeros for one that it cannot open.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CountsReply {
    /// The counts.
    pub counts: Vec<RequestCounts>,
}

/// Asks what all daemons asked the buckets of all links.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListRequests {}

/// What was asked.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RequestsReply {
    /// By bucket.
    pub buckets: Vec<BucketRequests>,
    /// Daemons that do not answer: what they asked is not in the counts.
    pub silent: Vec<String>,
}

/// What one bucket was asked.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct BucketRequests {
    /// Its URL, without a prefix.
    pub url: String,
    /// The links into it, which share its connections and limits.
    pub links: Vec<LinkId>,
    /// The counts of all daemons that answered.
    pub counts: RequestCounts,
}
