//! What is counted of spills.

use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use prometheus_client::metrics::counter::Counter;

/// Sums since the process began. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct SpillMetrics {
    /// Files whose bytes went to the targets.
    pub(super) files: Counter,
    /// Bytes of them.
    pub(super) bytes: Counter,
    /// Attempts that came to nothing.
    pub(super) failed: Counter,
}

impl SpillMetrics {
    pub(super) fn register(&self, metrics: &mut Metrics) {
        let stability = Stability::Experimental;
        let all = [
            (
                "metadata_spilled_files",
                "Files that lived in their inodes until somebody wrote them again",
                MetricUnit::Count,
                &self.files,
            ),
            (
                "metadata_spilled",
                "Bytes of them, which went to the targets",
                MetricUnit::Bytes,
                &self.bytes,
            ),
            (
                "metadata_spills_failed",
                "Attempts to store such bytes at a target that came to nothing",
                MetricUnit::Count,
                &self.failed,
            ),
        ];
        for (name, help, unit, counter) in all {
            let description = Description { name, help, unit, stability };
            drop(metrics.register(description, counter.clone()));
        }
    }
}
