//! Lists of files for jobs: sent in pages before the job is started, and kept for it.

use rkyv::{Archive, Deserialize, Serialize};

use crate::session::Caller;

/// Adds a page to a list of files, or begins one. Sent again after an answer that was lost, it
/// changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AppendFiles {
    /// For whom: only they may start a job over it.
    pub caller: Caller,
    /// The list; `None` begins one.
    pub list: Option<FileListId>,
    /// Bytes of the pages before; what was there from here on is replaced.
    pub offset: u64,
    /// Whole paths, each ended by a zero byte; at most [`FILES_PAGE_MAX`] bytes.
    pub paths: Vec<u8>,
}

/// Which list a page went to.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FilesReply {
    /// For [`JobOptions::files`](crate::job_options::JobOptions::files).
    pub list: FileListId,
}

/// A list of files. Not told to anybody but who made it.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash,
)]
pub struct FileListId(pub u64);

/// The most bytes of one page.
pub const FILES_PAGE_MAX: usize = 256 * 1024;

/// The most bytes of one list: some ten million paths.
pub const FILES_BYTES_MAX: u64 = 1024 * 1024 * 1024;
