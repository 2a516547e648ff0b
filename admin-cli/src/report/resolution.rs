//! What `resolve` prints.

use millrace_protocol::admin::{Keep, ResolveReply};
use serde::Serialize;

use super::{OriginReport, origin};

/// What became of one file.
#[derive(Serialize, Debug)]
pub(crate) struct ResolveReport {
    pub(crate) path: String,
    /// `local` or `bucket`.
    pub(crate) keep: &'static str,
    /// Whether the file is gone, as its object is.
    pub(crate) removed: bool,
    pub(crate) size_bytes: u64,
    pub(crate) origin: Option<OriginReport>,
}

/// What became of several, or would.
#[derive(Serialize, Debug)]
pub(crate) struct ResolutionsReport {
    /// `local` or `bucket`.
    pub(crate) keep: &'static str,
    /// Whether nothing was decided, but looked at.
    pub(crate) dry_run: bool,
    /// Files whose conflict is decided; with `dry_run` those that are in conflict.
    pub(crate) decided: u64,
    pub(crate) failed: u64,
    /// Files that were not come to, because nobody answered any more.
    pub(crate) untried: u64,
    pub(crate) files: Vec<ResolvedReport>,
}

/// What became of one of several, or would.
#[derive(Serialize, Debug)]
pub(crate) struct ResolvedReport {
    pub(crate) path: String,
    /// `decided`, `would be decided`, `failed` or `untried`.
    pub(crate) outcome: &'static str,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// As in [`ResolveReport`]; `null` for what is not decided.
    pub(crate) removed: Option<bool>,
    /// Bytes that the file has now.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) origin: Option<OriginReport>,
}

impl ResolveReport {
    /// What became of the file that was named as `path`.
    pub(crate) fn new(path: String, keep: Keep, reply: &ResolveReply) -> Self {
        let (removed, size_bytes) = (reply.removed, reply.size.0);
        let origin = origin(reply.origin.as_ref());
        Self { path, keep: keep_name(keep), removed, size_bytes, origin }
    }
}

impl ResolutionsReport {
    /// Nothing yet.
    pub(crate) fn new(keep: Keep, dry_run: bool) -> Self {
        let keep = keep_name(keep);
        Self { keep, dry_run, decided: 0, failed: 0, untried: 0, files: Vec::new() }
    }
}

impl ResolvedReport {
    /// A file of which no more is known.
    pub(crate) fn new(path: String, outcome: &'static str) -> Self {
        Self { path, outcome, error: None, removed: None, size_bytes: None, origin: None }
    }
}

impl From<ResolveReport> for ResolvedReport {
    fn from(decided: ResolveReport) -> Self {
        let ResolveReport { path, removed, size_bytes, origin, .. } = decided;
        let (removed, size_bytes) = (Some(removed), Some(size_bytes));
        Self { removed, size_bytes, origin, ..Self::new(path, "decided") }
    }
}

fn keep_name(keep: Keep) -> &'static str {
    match keep {
        Keep::Local => "local",
        Keep::Bucket => "bucket",
    }
}
