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
    }
}
