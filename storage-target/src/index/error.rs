//! Why the index fails.

use crate::{
    disk::DiskError,
    format::{FormatError, root::SEGMENTS_MAX},
};

/// Why a request to the index failed.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A page holds other bytes than it should: what lies below it cannot be told.
    #[error("page {page} of the disk is damaged: {source}")]
    Damaged {
        /// The page.
        page: u64,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A value in a sound leaf is none that a program writes.
    #[error("a value of the index is impossible: {source}")]
    Value {
        /// What is wrong with it.
        source: FormatError,
    },
    /// None of the four root records can be read: there is no index here, or it is lost.
    #[error("no root record of an index can be read at page {page}: {source}")]
    NoIndex {
        /// The first of their pages.
        page: u64,
        /// What is wrong with the first one.
        source: FormatError,
    },
    /// No page is left for a node. Nothing was changed; extend the index, then try again.
    #[error("the index has no free page for its next node")]
    Full,
    /// The index lies in as many separate places as its root record names, and needs more room.
    #[error(
        "the index lies in {SEGMENTS_MAX} separate places already and cannot get room in another: \
         the target is too fragmented; move its contents to another one"
    )]
    Scattered,
    /// A checkpoint ended in the middle, and whether it counts cannot be told. Open again.
    #[error("an earlier checkpoint ended in the middle; the index must be opened again")]
    Uncertain,
}

impl IndexError {
    /// Whether the disk failed to read a page, which it may read again in a moment: unlike damage.
    #[must_use]
    pub fn is_failed_read(&self) -> bool {
        matches!(self, Self::Disk(error) if error.is_failed_read())
    }

    /// Whether a page cannot be read as it was written: damage, or the disk.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Damaged { .. }) || self.is_failed_read()
    }
}
