//! Why the engine refuses or fails.

use std::{io, sync::Arc};

use millrace_types::{ChunkKey, ErrorKind, Failure};

use crate::{disk::DiskError, index::IndexError, journal::JournalError};

/// Why a request to the engine failed. Cheap to clone, because one read serves several callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The target is at its capacity, or the file system under it is full. Nothing was changed.
    #[error("no space left on the target")]
    NoSpace,
    /// The disk failed.
    #[error(transparent)]
    Disk(Arc<DiskError>),
    /// The journal cannot be written.
    #[error("the journal cannot be written: {0}")]
    Journal(Arc<io::Error>),
    /// The index on disk cannot be read or written.
    #[error(transparent)]
    Index(Arc<IndexError>),
    /// Bytes on disk do not match their checksum.
    #[error("block {block} of chunk {key} does not match its checksum")]
    Corrupt {
        /// The chunk.
        key: ChunkKey,
        /// The block.
        block: u16,
        /// Whether it is clean: dropping it mends it, if the bucket still has the same bytes.
        clean: bool,
    },
    /// The bytes of the request do not match the checksum that came with them.
    #[error("the bytes that arrived do not match their checksum")]
    Damaged,
    /// A part of an absent block shall be written, and the bucket has the rest: fill it first.
    #[error("block {block} of chunk {key} must be fetched before a part of it can be written")]
    NeedsFill {
        /// The chunk.
        key: ChunkKey,
        /// The block.
        block: u16,
    },
    /// The file shrank meanwhile.
    #[error("the file shrank meanwhile: its write epoch is newer than the request's")]
    StaleEpoch,
    /// The content was replaced meanwhile.
    #[error("the file's content was replaced meanwhile")]
    StaleContent,
    /// The session's ticket ran out before the write's turn had come, or the target was opened
    /// again. Nothing was changed.
    #[error(
        "the session's ticket ran out, or the target was opened again, before the write could be \
         applied"
    )]
    Revoked,
    /// The engine has ended.
    #[error("the storage engine has stopped")]
    Stopped,
}

impl EngineError {
    /// The kind that peers see.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Disk(error) => error.kind(),
            Self::Journal(_) => ErrorKind::Disk,
            Self::Index(error) => match &**error {
                IndexError::Disk(error) => error.kind(),
                IndexError::Full | IndexError::Scattered => ErrorKind::NoSpace,
                IndexError::Damaged { .. }
                | IndexError::Value { .. }
                | IndexError::NoIndex { .. } => ErrorKind::Corrupt,
                IndexError::Uncertain => ErrorKind::Disk,
            },
            Self::Corrupt { .. } | Self::Damaged => ErrorKind::Corrupt,
            Self::NeedsFill { .. } => ErrorKind::Internal,
            Self::StaleEpoch => ErrorKind::StaleEpoch,
            Self::StaleContent => ErrorKind::StaleContent,
            Self::Revoked => ErrorKind::TicketExpired,
            Self::Stopped => ErrorKind::Unavailable,
        }
    }
}

impl From<DiskError> for EngineError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::NoSpace => Self::NoSpace,
            other => Self::Disk(Arc::new(other)),
        }
    }
}

impl From<IndexError> for EngineError {
    fn from(error: IndexError) -> Self {
        Self::Index(Arc::new(error))
    }
}

impl From<JournalError> for EngineError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Disk(error) => Self::Disk(error),
            other => Self::Journal(Arc::new(io::Error::other(other))),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}
