//! What can go wrong with a bucket, by what the caller must do.

use std::time::Duration;

use millrace_types::{ErrorKind, Failure};

/// A failed operation on a bucket. Messages are sentences for a person and never hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The key names no object.
    #[error("no object {key:?}")]
    NotFound {
        /// The whole key within the bucket.
        key: String,
    },
    /// The bucket, or the directory of a `file://` link, does not exist.
    #[error("{message}")]
    NoBucket {
        /// Which one, and where it was looked for.
        message: String,
    },
    /// The multipart upload is unknown: completed, aborted, or never begun.
    #[error("the upload of {key:?} is unknown to the bucket: completed or aborted before")]
    NoUpload {
        /// The key that is uploaded to.
        key: String,
    },
    /// The object is not the version that the condition names.
    #[error("the object {key:?} is not the expected version")]
    Changed {
        /// The whole key within the bucket.
        key: String,
    },
    /// The bucket refuses the credentials, or there are none.
    #[error("{message}")]
    Denied {
        /// What was refused and why, as far as the server says.
        message: String,
    },
    /// Nobody answers, or the answer is no answer of a bucket.
    #[error("{message}")]
    Unavailable {
        /// What was tried and what happened.
        message: String,
    },
    /// The bucket has stored something, and tells another checksum of it than what was sent has.
    #[error("the bucket says that {key:?} arrived damaged: it has another checksum")]
    Damaged {
        /// The whole key within the bucket.
        key: String,
    },
    /// The server asks to slow down, or this host's own limits are reached.
    #[error("{message}")]
    Busy {
        /// Whose limit.
        message: String,
    },
    /// The request makes no sense: a link, key or name that cannot be.
    #[error("{message}")]
    Invalid {
        /// What is wrong and what would be right.
        message: String,
    },
    /// This kind of bucket cannot do it.
    #[error("{message}")]
    Unsupported {
        /// What is not offered.
        message: String,
    },
    /// The file system behind a `file://` link is full.
    #[error("{message}")]
    NoSpace {
        /// Where.
        message: String,
    },
}

/// How long callers are asked to wait when a bucket wants fewer requests. S3 forgets a burst within
/// about a second.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// The class that crosses the wire.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::NoBucket { .. } | Self::Unavailable { .. } => ErrorKind::BucketUnavailable,
            Self::NoUpload { .. } => ErrorKind::Stale,
            Self::Changed { .. } => ErrorKind::ObjectChanged,
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Denied { .. } => ErrorKind::BucketDenied,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Invalid { .. } => ErrorKind::InvalidArgument,
            Self::Unsupported { .. } => ErrorKind::NotSupported,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
        }
    }

    /// Whether the same request may succeed a little later without anybody's help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unavailable { .. } | Self::Damaged { .. })
    }

    /// Whether a completion or put that failed so may nevertheless have taken effect: the answer
    /// was lost, or an earlier attempt of the same request won. Settle it by HEAD and the upload's
    /// own mark in the object's metadata, never by guess.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::Busy { .. }
                | Self::Changed { .. }
                | Self::Damaged { .. }
                | Self::NotFound { .. }
                | Self::NoUpload { .. }
        )
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::new(error.kind(), error.to_string());
        match error {
            Error::Busy { .. } => failure.retry_after(BUSY_PAUSE),
            _ => failure,
        }
    }
}
