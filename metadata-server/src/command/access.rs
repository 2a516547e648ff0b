//! What was read.

use millrace_protocol::access::LastRead;
use rkyv::{Archive, Deserialize, Serialize};

/// Raises times of access, where they are due at the command's index, to the command's time at
/// most. What is gone is passed over.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NoteReads {
    /// At most [`READS_MAX`](millrace_protocol::access::READS_MAX).
    pub reads: Vec<LastRead>,
}
