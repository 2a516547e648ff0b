//! Work of targets that is to be told with what it asked buckets.

use millrace_types::Failure;
use rkyv::{Archive, Deserialize, Serialize};

use crate::requests::RequestCounts;

/// Another request to a target, to be answered with what that asked buckets: one that moves bytes
/// between a target and a bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Tallied {
    /// Its number.
    pub kind: u16,
    /// Its message.
    pub request: Vec<u8>,
}

/// The answer of the other request, and what that asked buckets. What others had asked already, who
/// want the same bytes, is not in it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TalliedReply {
    /// Its message, or its failure.
    pub answer: Result<Vec<u8>, Failure>,
    /// What it asked.
    pub requests: RequestCounts,
}
