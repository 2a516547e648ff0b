//! What `link check` and `conflicts list` print.

use millrace_protocol::{
    admin::Removal,
    ahead::{FetchPolicy, LinkFetches},
    bucket::{AutoExport, Conflict, DeletePropagation, TryLinkReply},
    left_out::{LeftOutKey, LeftOutReply},
    refresh::RefreshInterval,
};
use serde::Serialize;

use super::{FailureReport, mode_name};
use crate::output::{path_text, time_text};

/// Whether the hosts can use the bucket of a link.
#[derive(Serialize, Debug)]
pub(crate) struct LinkCheckReport {
    pub(crate) path: String,
    pub(crate) url: String,
    pub(crate) mode: &'static str,
    /// Whether all of them can.
    pub(crate) usable: bool,
    pub(crate) hosts: Vec<HostCheckReport>,
}

/// Whether one can.
#[derive(Serialize, Debug)]
pub(crate) struct HostCheckReport {
    pub(crate) host: String,
    pub(crate) took_ms: u32,
    /// Why not.
    pub(crate) error: Option<String>,
    /// Whether it tried to delete, and may.
    pub(crate) deletes: bool,
    /// What could not be tried, and why.
    pub(crate) untried: Vec<String>,
}

/// Keys that can be no names here.
#[derive(Serialize, Debug, Default)]
pub(crate) struct LeftOutReport {
    /// In all of the directories.
    pub(crate) keys: u64,
    pub(crate) directories: Vec<LeftOutDirectoryReport>,
}

/// What the last listing of a directory left out.
#[derive(Serialize, Debug)]
pub(crate) struct LeftOutDirectoryReport {
    pub(crate) path: String,
    pub(crate) keys: u64,
    /// Some of them.
    pub(crate) first: Vec<LeftOutKeyReport>,
}

/// A key, or the beginning of keys.
#[derive(Serialize, Debug)]
pub(crate) struct LeftOutKeyReport {
    pub(crate) key: String,
    pub(crate) reason: &'static str,
}

impl LeftOutReport {
    /// Adds a page.
    pub(crate) fn add(&mut self, page: &LeftOutReply) {
        for told in &page.directories {
            self.keys += told.keys;
            let key = |out: &LeftOutKey| LeftOutKeyReport {
                key: out.key.clone(),
                reason: out.reason.words(),
            };
            self.directories.push(LeftOutDirectoryReport {
                path: path_text(&told.path),
                keys: told.keys,
                first: told.first.iter().map(key).collect(),
            });
        }
    }
}

/// How a link is listed again by itself.
#[derive(Serialize, Debug)]
pub(crate) struct RefreshReport {
    pub(crate) every_seconds: u32,
    /// Whether a round is under way.
    pub(crate) running: bool,
    /// When the last whole round ended, since the metadata server began to run.
    pub(crate) ended: Option<String>,
    /// Directories that were listed again.
    pub(crate) directories: u64,
    /// Directories that could not be listed.
    pub(crate) failed: u64,
    /// Why the last of these could not.
    pub(crate) failure: Option<String>,
}

impl From<&RefreshInterval> for RefreshReport {
    fn from(told: &RefreshInterval) -> Self {
        Self {
            every_seconds: told.every_seconds,
            running: told.running,
            ended: told.ended.map(time_text),
            directories: told.directories,
            failed: told.failed,
            failure: told.failure.clone(),
        }
    }
}

/// How a link is being removed.
#[derive(Serialize, Debug)]
pub(crate) struct RemovalReport {
    /// Whether what its bucket does not have is given up.
    pub(crate) discard: bool,
}

impl From<&Removal> for RemovalReport {
    fn from(told: &Removal) -> Self {
        Self { discard: told.discard }
    }
}

/// A file that changed here and in its bucket.
#[derive(Serialize, Debug)]
pub(crate) struct ConflictReport {
    /// `null` for a file that has lost its last name and is open still.
    pub(crate) path: Option<String>,
    pub(crate) inode: u64,
    /// Of the version here.
    pub(crate) size_bytes: u64,
    /// When that was written.
    pub(crate) modified: String,
    /// The object's key; `null` for a file that was made here.
    pub(crate) key: Option<String>,
}

/// How a link exports by itself; all but the first since the metadata server began to run.
#[derive(Serialize, Debug)]
pub(crate) struct AutoExportReport {
    /// How long a file must have been left alone.
    pub(crate) quiet_seconds: u32,
    /// Files that are to be looked at.
    pub(crate) waiting: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files that cannot be sent now.
    pub(crate) failing: u64,
    /// The first of them.
    pub(crate) failures: Vec<FailureReport>,
}

impl From<&AutoExport> for AutoExportReport {
    fn from(export: &AutoExport) -> Self {
        let AutoExport { quiet_seconds, waiting, files, bytes, failing, .. } = *export;
        let failures = export.failures.iter().map(FailureReport::from).collect();
        Self { quiet_seconds, waiting, files, bytes, failing, failures }
    }
}

/// How removals reach a link's bucket.
#[derive(Serialize, Debug)]
pub(crate) struct PropagationReport {
    /// Objects, and marks of directories, that are to go.
    pub(crate) waiting: u64,
    /// What was deleted since the metadata server began to run.
    pub(crate) deleted: u64,
    /// Of those that wait, how many could not be deleted.
    pub(crate) failing: u64,
    /// The first of them, by their keys.
    pub(crate) failures: Vec<FailureReport>,
}

impl From<&DeletePropagation> for PropagationReport {
    fn from(deletes: &DeletePropagation) -> Self {
        let DeletePropagation { waiting, deleted, failing, .. } = *deletes;
        let failures = deletes.failures.iter().map(FailureReport::from).collect();
        Self { waiting, deleted, failing, failures }
    }
}

/// What is fetched behind reads; the figures since the metadata server began to run.
#[derive(Serialize, Debug)]
pub(crate) struct FetchReport {
    pub(crate) policy: &'static str,
    /// Files, or parts of large ones, that were fetched before anybody asked for them.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl From<&LinkFetches> for FetchReport {
    fn from(fetches: &LinkFetches) -> Self {
        let LinkFetches { policy, files, bytes, .. } = *fetches;
        let policy = match policy {
            FetchPolicy::Asked => "asked",
            FetchPolicy::Chunk => "chunk",
            FetchPolicy::File => "file",
            FetchPolicy::Ahead => "ahead",
        };
        Self { policy, files, bytes }
    }
}

impl LinkCheckReport {
    pub(crate) fn new(path: String, reply: &TryLinkReply) -> Self {
        let hosts = reply.hosts.iter().map(|tried| HostCheckReport {
            host: tried.host.clone(),
            took_ms: tried.took_ms,
            error: tried.result.as_ref().err().map(ToString::to_string),
            deletes: tried.result.as_ref().is_ok_and(|tried| tried.deletes),
            untried: tried.result.as_ref().map_or_else(|_| Vec::new(), |said| said.untried.clone()),
        });
        Self {
            path,
            url: reply.bucket.url.clone(),
            mode: mode_name(reply.mode),
            usable: reply.hosts.iter().all(|tried| tried.result.is_ok()),
            hosts: hosts.collect(),
        }
    }
}

impl From<&Conflict> for ConflictReport {
    fn from(told: &Conflict) -> Self {
        Self {
            path: (!told.path.is_empty()).then(|| path_text(&told.path)),
            inode: told.inode.0,
            size_bytes: told.size.0,
            modified: time_text(told.modified),
            key: told.key.clone(),
        }
    }
}
