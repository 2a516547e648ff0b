//! What hydration counts: how files followed their buckets.

use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use prometheus_client::metrics::counter::Counter;

use crate::command::Observation;

/// Counters since the process began. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FollowCounts {
    /// Contents that targets found changed.
    pub(super) reported: Counter,
    /// Reports that were dropped because too many wait.
    pub(super) dropped: Counter,
    /// Directories that were listed again because their listing was old.
    pub(super) refreshes: Counter,
    followed: Counter,
    removed: Counter,
    conflicts: Counter,
    resolved: Counter,
    sent_files: Counter,
    sent_bytes: Counter,
    sent_failures: Counter,
    missed: Counter,
    ahead_files: Counter,
    ahead_bytes: Counter,
}

impl FollowCounts {
    /// Counts what an observation led to.
    pub(super) fn observed(&self, observation: Observation) {
        match observation {
            Observation::Known => {}
            Observation::Followed => drop(self.followed.inc()),
            Observation::Removed => drop(self.removed.inc()),
            Observation::Conflict => drop(self.conflicts.inc()),
            Observation::Kept => drop(self.resolved.inc()),
        }
    }

    /// Counts what a listing found changed.
    pub(super) fn imported(&self, followed: u32, conflicts: u32) {
        self.followed.inc_by(followed.into());
        self.conflicts.inc_by(conflicts.into());
    }

    /// A file went to its bucket by itself.
    pub(super) fn sent_by_itself(&self, bytes: u64) {
        self.sent_files.inc();
        self.sent_bytes.inc_by(bytes);
    }

    /// Readers had to wait for their bucket.
    pub(super) fn missed(&self, count: usize) {
        self.missed.inc_by(count as u64);
    }

    /// Something was fetched before anybody asked for it.
    pub(super) fn fetched_ahead(&self, bytes: u64) {
        self.ahead_files.inc();
        self.ahead_bytes.inc_by(bytes);
    }

    /// A file could not.
    pub(super) fn failed_by_itself(&self) {
        self.sent_failures.inc();
    }

    /// Registers all of them.
    pub(super) fn register(&self, metrics: &mut Metrics) {
        let mut counter = |name, help, counter: &Counter| {
            let (unit, stability) = (MetricUnit::Count, Stability::Experimental);
            drop(metrics.register(Description { name, help, unit, stability }, counter.clone()));
        };
        counter(
            "metadata_bucket_changes_reported",
            "Contents of which a target found that their object changed or is gone",
            &self.reported,
        );
        counter(
            "metadata_bucket_changes_dropped",
            "Such reports that were dropped because too many were waiting",
            &self.dropped,
        );
        counter(
            "metadata_bucket_refreshes",
            "Directories listed again because their listing was older than the link allows",
            &self.refreshes,
        );
        counter(
            "metadata_bucket_files_followed",
            "Files that took the new content of their object",
            &self.followed,
        );
        counter(
            "metadata_bucket_files_removed",
            "Files that went away because their object did",
            &self.removed,
        );
        counter(
            "metadata_bucket_conflicts",
            "Files that were found changed here and in their bucket",
            &self.conflicts,
        );
        counter(
            "metadata_bucket_conflicts_kept",
            "Conflicts that were decided for what was written here",
            &self.resolved,
        );
        counter(
            "metadata_auto_export_files",
            "Files that links sent to their buckets by themselves",
            &self.sent_files,
        );
        counter("metadata_auto_export_bytes", "Bytes of these files", &self.sent_bytes);
        counter(
            "metadata_auto_export_failures",
            "Times that such a file could not be sent",
            &self.sent_failures,
        );
        counter(
            "metadata_ahead_misses",
            "Chunks that readers had to wait for while their bucket was asked",
            &self.missed,
        );
        counter(
            "metadata_ahead_files",
            "Files, or parts of large ones, fetched before anybody asked for them",
            &self.ahead_files,
        );
        counter("metadata_ahead_bytes", "Bytes of these", &self.ahead_bytes);
    }
}
