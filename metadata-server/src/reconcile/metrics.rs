//! What checks count.

use millrace_protocol::fsck::{FsckReport, NamespaceReport};
use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use super::itself::flaws_left;

/// Figures of the last check that ended, and sums since the process began.
#[derive(Debug, Clone, Default)]
pub(super) struct FsckMetrics {
    orphans: Gauge,
    orphan_bytes: Gauge,
    missing_chunks: Gauge,
    unchecked_targets: Gauge,
    held_back_targets: Gauge,
    ended: Gauge,
    flaws: Gauge,
    freed_bytes: Counter,
    repaired: Counter,
}

impl FsckMetrics {
    /// A check has come to its end.
    pub(super) fn ended(&self, report: &FsckReport, namespace: &NamespaceReport) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let unchecked = report.targets.iter().filter(|target| target.not_checked.is_some());
        self.orphans.set(gauge(report.orphans.contents));
        self.orphan_bytes.set(gauge(report.orphans.bytes.0));
        self.missing_chunks.set(gauge(report.missing.chunks));
        self.unchecked_targets.set(gauge(unchecked.count() as u64));
        let held_back = report.targets.iter().filter(|target| target.held_back.is_some());
        self.held_back_targets.set(gauge(held_back.count() as u64));
        self.ended.set(report.ended.map_or(0, millrace_types::Timestamp::seconds));
        self.freed_bytes.inc_by(report.queued.bytes.0);
        self.flaws.set(gauge(flaws_left(namespace)));
        if namespace.run == report.run {
            self.repaired.inc_by(namespace.flaws.iter().map(|count| count.repaired).sum());
        }
    }

    /// Registers all of them.
    pub(super) fn register(&self, metrics: &mut Metrics) {
        let stability = Stability::Experimental;
        let mut gauge = |name, help, unit, gauge: &Gauge| {
            let description = Description { name, help, unit, stability };
            drop(metrics.register(description, gauge.clone()));
        };
        gauge(
            "metadata_fsck_orphans",
            "Contents on targets that no file has, as the last check found",
            MetricUnit::Count,
            &self.orphans,
        );
        gauge(
            "metadata_fsck_orphan",
            "Space of these contents",
            MetricUnit::Bytes,
            &self.orphan_bytes,
        );
        gauge(
            "metadata_fsck_missing_chunks",
            "Chunks that files lack on their targets, as the last check found",
            MetricUnit::Count,
            &self.missing_chunks,
        );
        gauge(
            "metadata_fsck_unchecked_targets",
            "Targets that the last check could not look at, or not to the end",
            MetricUnit::Count,
            &self.unchecked_targets,
        );
        gauge(
            "metadata_fsck_held_back_targets",
            "Targets of which the last check freed nothing, because it would have been too much",
            MetricUnit::Count,
            &self.held_back_targets,
        );
        gauge(
            "metadata_fsck_ended",
            "When the last check ended, since 1970; 0: none has",
            MetricUnit::Seconds,
            &self.ended,
        );
        gauge(
            "metadata_fsck_flaws",
            "Where the namespace does not agree with itself, as the last check left it",
            MetricUnit::Count,
            &self.flaws,
        );
        let description = Description {
            name: "metadata_fsck_repaired",
            help: "Flaws of the namespace that checks repaired",
            unit: MetricUnit::Count,
            stability,
        };
        drop(metrics.register(description, self.repaired.clone()));
        let description = Description {
            name: "metadata_fsck_freed",
            help: "Space of orphans that checks queued for freeing",
            unit: MetricUnit::Bytes,
            stability,
        };
        drop(metrics.register(description, self.freed_bytes.clone()));
    }
}
