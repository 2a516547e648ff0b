//! The class of every failure that crosses a boundary, its wire code and its errno.

use std::{fmt, time::Duration};

use rkyv::{Archive, Deserialize, Serialize};

/// Declares the kinds with their wire codes and errnos in one table.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $errno:ident;)*) => {
        /// The class of a failure. Callers match on this and never on message text.
        ///
        /// Each kind has one wire code and one errno; the table is here and nowhere else. Codes are
        /// never used again for another meaning.
        #[derive(
            Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug,
        )]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum ErrorKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl ErrorKind {
            /// Every kind, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The number that Linux programs see (x86-64 and aarch64 agree on all of these).
            #[must_use]
            pub fn errno(self) -> i32 {
                match self {
                    $(Self::$name => errno::$errno,)*
                }
            }
        }
    };
}

kinds! {
    /// The name or id does not exist. Do not retry.
    NotFound = 1, ENOENT;
    /// The name exists already.
    Exists = 2, EEXIST;
    /// A path component is no directory.
    NotDirectory = 3, ENOTDIR;
    /// The operation is not for directories.
    IsDirectory = 4, EISDIR;
    /// The directory still has entries.
    NotEmpty = 5, ENOTEMPTY;
    /// The permission bits refuse it.
    PermissionDenied = 6, EACCES;
    /// Only the owner, root, or an unrestricted client may do it.
    NotPermitted = 7, EPERM;
    /// An argument has no meaning here.
    InvalidArgument = 8, EINVAL;
    /// A name is longer than 255 bytes, or a path longer than 4,095.
    NameTooLong = 9, ENAMETOOLONG;
    /// No target of the file has room left.
    NoSpace = 10, ENOSPC;
    /// The file would pass the largest size that its chunk size allows.
    FileTooLarge = 11, EFBIG;
    /// The inode has as many links as it can have.
    TooManyLinks = 12, EMLINK;
    /// A rename or link would cross an accounting boundary or an imported link.
    CrossDevice = 13, EXDEV;
    /// The mount or the link is read-only.
    ReadOnly = 14, EROFS;
    /// The extended attribute does not exist.
    NoData = 15, ENODATA;
    /// This operation is not offered.
    NotSupported = 16, EOPNOTSUPP;
    /// The handle names something that is gone, or an older version of an imported object.
    Stale = 17, ESTALE;
    /// The resource is in use; a person has to decide.
    InUse = 18, EBUSY;
    /// The server is at a limit. Wait for the hint, then retry.
    Busy = 19, EAGAIN;
    /// Bytes do not match their checksum. Another copy, the bucket or a person must help.
    Corrupt = 20, EIO;
    /// Bytes that were stored are gone with their target. Never answered as zeros.
    Lost = 21, EIO;
    /// The caller's view of the group is old. Fetch the cluster map, then retry.
    StaleGroup = 22, EIO;
    /// The content generation is old. Fetch the inode again, then retry.
    StaleContent = 23, ESTALE;
    /// The write epoch is old: the file shrank meanwhile. Fetch the inode again, then retry.
    StaleEpoch = 24, EIO;
    /// The key that signed the capability is no longer kept. Fetch a new capability, then retry.
    KeyRetired = 25, EIO;
    /// The session is unknown or ended. Its buffered writes are lost; open a new one.
    SessionGone = 26, EIO;
    /// The session ticket ran out or is missing. Renew it, then retry.
    TicketExpired = 27, EIO;
    /// The peer's certificate does not allow this request.
    Forbidden = 28, EACCES;
    /// The peer cannot be reached now. Retry after a pause.
    Unavailable = 29, EIO;
    /// The deadline passed before the answer came.
    DeadlineExceeded = 30, ETIMEDOUT;
    /// The caller took the request back.
    Cancelled = 31, EINTR;
    /// The peer sent bytes that are no message of this protocol.
    Protocol = 32, EIO;
    /// The object in the bucket is not the recorded version any more.
    ObjectChanged = 33, ESTALE;
    /// The bucket refuses the credentials.
    BucketDenied = 34, EACCES;
    /// The bucket cannot be reached, or answers with errors.
    BucketUnavailable = 35, EIO;
    /// File and object both changed; `millrace conflicts` lists it. Nothing was overwritten.
    Conflict = 36, EBUSY;
    /// The disk under a target or a log failed.
    Disk = 37, EIO;
    /// Too many symbolic links, or a directory would be moved into itself.
    Loop = 38, ELOOP;
    /// A defect in Millrace. Report it with the log line.
    Internal = 39, EIO;
    /// Another owner has a lock that excludes this one. Try again when it may be gone, or wait.
    Locked = 40, EAGAIN;
    /// Waiting for this lock would never end: its owner waits for one of the caller's.
    Deadlock = 41, EDEADLK;
    /// The session holds, or waits for, as many locks as it may.
    NoLocks = 42, ENOLCK;
}

impl ErrorKind {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Reads a number from the wire.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// Whether the same request may succeed later without anybody's help.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable | Self::DeadlineExceeded)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::Exists => "already exists",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::PermissionDenied => "permission denied",
            Self::NotPermitted => "operation not permitted",
            Self::InvalidArgument => "invalid argument",
            Self::NameTooLong => "name too long",
            Self::NoSpace => "no space left",
            Self::FileTooLarge => "file too large",
            Self::TooManyLinks => "too many links",
            Self::CrossDevice => "crosses a link or accounting boundary",
            Self::ReadOnly => "read-only",
            Self::NoData => "no such attribute",
            Self::NotSupported => "not supported",
            Self::Stale => "stale handle",
            Self::InUse => "in use",
            Self::Busy => "server is busy",
            Self::Corrupt => "checksum mismatch",
            Self::Lost => "data was lost with its target",
            Self::StaleGroup => "old view of a placement group",
            Self::StaleContent => "old content generation",
            Self::StaleEpoch => "old write epoch",
            Self::KeyRetired => "signing key retired",
            Self::SessionGone => "session ended",
            Self::TicketExpired => "session ticket expired",
            Self::Forbidden => "the certificate does not allow it",
            Self::Unavailable => "server cannot be reached",
            Self::DeadlineExceeded => "deadline passed",
            Self::Cancelled => "cancelled",
            Self::Protocol => "malformed message",
            Self::ObjectChanged => "the object changed in the bucket",
            Self::BucketDenied => "the bucket refuses access",
            Self::BucketUnavailable => "the bucket cannot be reached",
            Self::Conflict => "changed both here and in the bucket",
            Self::Disk => "disk error",
            Self::Loop => "too many levels of links",
            Self::Internal => "internal error",
            Self::Locked => "locked by another",
            Self::Deadlock => "would wait for itself",
            Self::NoLocks => "too many locks",
        })
    }
}

impl std::error::Error for ErrorKind {}

/// A failure as it travels: what kind, for whom to wait how long, and a sentence for a person.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", said(*kind, message))]
pub struct Failure {
    /// What the caller must do.
    pub kind: ErrorKind,
    /// How long to wait before a retry, in milliseconds; 0 leaves it to the caller.
    pub retry_after_ms: u32,
    /// What happened and to what, in words; never parsed. At most [`MESSAGE_LEN_MAX`] bytes.
    pub message: String,
}

/// The longest message of a [`Failure`], in bytes; longer ones are cut.
pub const MESSAGE_LEN_MAX: usize = 1024;

/// The kind and the sentence, or the sentence alone where that says the same of a bucket by name.
fn said(kind: ErrorKind, message: &str) -> String {
    let says_so = kind == ErrorKind::BucketDenied && message.contains("refuses access");
    match message {
        "" => kind.to_string(),
        _ if says_so => message.to_owned(),
        _ => format!("{kind}: {message}"),
    }
}

impl Failure {
    /// A failure with a sentence about it.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_LEN_MAX {
            let cut = (0..=MESSAGE_LEN_MAX).rev().find(|&at| message.is_char_boundary(at));
            message.truncate(cut.unwrap_or(0));
        }
        Self { kind, retry_after_ms: 0, message }
    }

    /// The same failure with a hint how long to wait.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after_ms = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX);
        self
    }
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, retry_after_ms: 0, message: String::new() }
    }
}

/// Linux's error numbers, as far as the table above names them (asm-generic/errno.h).
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EINTR: i32 = 4;
    pub(super) const EIO: i32 = 5;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const EDEADLK: i32 = 35;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOLCK: i32 = 37;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ESTALE: i32 = 116;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_names_one_kind() {
        for (at, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(usize::from(kind.code()), at + 1, "codes are dense and in order");
            assert_eq!(ErrorKind::from_code(kind.code()), Some(*kind));
            assert!(kind.errno() > 0);
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(9999), None);
    }

    #[test]
    fn a_refusal_of_a_bucket_is_told_once() {
        let told = |message: &str| Failure::new(ErrorKind::BucketDenied, message).to_string();
        assert_eq!(told(""), "the bucket refuses access");
        let named = "the bucket b at http://h refuses access: check the credentials";
        assert_eq!(told(named), named);
        let other = "the bucket b at http://h does not know the access key";
        assert_eq!(told(other), format!("the bucket refuses access: {other}"));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let failure = Failure::new(ErrorKind::Internal, "é".repeat(MESSAGE_LEN_MAX));
        assert!(failure.message.len() <= MESSAGE_LEN_MAX);
    }
}
