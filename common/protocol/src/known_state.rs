//! How files stand against their bucket, as far as the targets that answer know it.

use millrace_types::{ByteLen, TargetId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::admin::{ShowState, StateReply};

/// Asks as [`ShowState`] does, and is answered also while targets are away.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowKnownState {
    /// Of what, and for whom.
    pub of: ShowState,
}

/// What is known. A single file whose state is not known is a failure.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct KnownStateReply {
    /// The state, or the sums. Files of unknown state are in `size` and in no sum, and what silent
    /// targets hold is not in `hydrated`.
    pub state: StateReply,
    /// Files below a directory whose state depends on what silent targets hold.
    pub unknown_files: u64,
    /// Bytes of these.
    pub unknown_size: ByteLen,
    /// Targets that may hold some of what was asked about, and did not answer.
    pub silent: Vec<SilentTarget>,
}

/// A target that did not answer.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SilentTarget {
    /// The target.
    pub target: TargetId,
    /// Files that may lie on it, at least in part: also those whose state is known all the same.
    pub files: u64,
    /// Why, for people.
    pub reason: String,
}
