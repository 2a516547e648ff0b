//! The command log: the only commit point of the metadata server.
//!
//! Owns the files of the log and the knowledge which index is written and which is synced. What the
//! records mean is not its business. A record is *written* once write(2) returned: it then survives
//! a kill of the process. It is *synced* once fdatasync(2) returned, within a second: it then
//! survives a loss of power.
//!
//! Invariants: indexes are dense from 1; a record is never changed; all segments but the last are
//! synced as a whole; bytes that users choose never pass for a record. Modules, in reading order:
//! [`record`] (bytes of one record), [`secret`] (what its checksums begin with), [`segment`] (one
//! file), [`recovery`] (what a start finds), [`writer`] (appending), [`group_commit`] (syncing).

use std::{io, path::PathBuf};

use millrace_types::LogIndex;

pub mod group_commit;
pub mod record;
pub mod recovery;
pub mod secret;
pub mod segment;
pub mod writer;

pub use group_commit::{SyncState, Syncer};
pub use recovery::{Recovered, replay};
pub use writer::{LogSettings, Writer};

/// Why the log cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk of the log is full. Nothing was appended; works again when there is room.
    #[error("no room on the disk of the command log")]
    NoSpace,
    /// A record is larger than [`record::BODY_LEN_MAX`].
    #[error("a command of {0} bytes is larger than a record may be")]
    TooLarge(usize),
    /// The disk failed. The log takes no more records until the server is started again.
    #[error("the command log failed at {}: {source}", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An earlier failure left the log unable to go on.
    #[error("the command log stopped after an earlier disk failure; restart the server")]
    Stopped,
    /// Records that were synced are damaged or missing.
    #[error(
        "the command log is damaged at {}, byte {offset}: {what}; records up to {last_good} are \
         good. Restore the file from a copy; nothing was changed",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
        /// The last record before the damage.
        last_good: LogIndex,
    },
}

impl LogError {
    /// An error of the disk at `path`; a full disk is its own kind.
    pub(crate) fn disk(path: &std::path::Path, source: io::Error) -> Self {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            Self::NoSpace
        } else {
            let path = path.to_owned();
            Self::Disk { path, source }
        }
    }
}
