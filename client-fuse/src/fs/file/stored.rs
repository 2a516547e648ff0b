//! What targets have acknowledged and the server does not know yet.

use millrace_types::{ContentGeneration, WriteEpoch};

/// The acknowledged writes that a commit will tell the server about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stored {
    /// The content and epoch under which they were made.
    pub(crate) version: (ContentGeneration, WriteEpoch),
    /// One past the largest byte.
    pub(crate) end: u64,
    /// Counts acknowledgements, so that a commit knows whether it told the last one.
    pub(crate) acknowledgements: u64,
}
