//! What is counted of snapshots.

use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use millrace_types::Timestamp;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

/// Figures of the newest snapshot, and sums since the process began.
#[derive(Debug, Clone, Default)]
pub struct SnapshotMetrics {
    taken: Counter,
    failed: Counter,
    size: Gauge,
    ended: Gauge,
}

impl SnapshotMetrics {
    pub(super) fn taken(&self, len: u64, now: Timestamp) {
        self.taken.inc();
        self.size.set(i64::try_from(len).unwrap_or(i64::MAX));
        self.ended.set(now.seconds());
    }

    pub(super) fn failed(&self) {
        self.failed.inc();
    }

    /// Registers all of them.
    pub fn register(&self, metrics: &mut Metrics) {
        let stability = Stability::Experimental;
        let counters = [
            ("metadata_snapshots_taken", "Snapshots of the store that were taken", &self.taken),
            (
                "metadata_snapshots_failed",
                "Snapshots that came to nothing; the command log grows until one is taken",
                &self.failed,
            ),
        ];
        for (name, help, counter) in counters {
            let description = Description { name, help, unit: MetricUnit::Count, stability };
            drop(metrics.register(description, counter.clone()));
        }
        let gauges = [
            (
                "metadata_snapshot",
                "Size of the newest snapshot of this run",
                MetricUnit::Bytes,
                &self.size,
            ),
            (
                "metadata_snapshot_ended",
                "When it was taken, since 1970; 0: none was in this run",
                MetricUnit::Seconds,
                &self.ended,
            ),
        ];
        for (name, help, unit, gauge) in gauges {
            let description = Description { name, help, unit, stability };
            drop(metrics.register(description, gauge.clone()));
        }
    }
}
