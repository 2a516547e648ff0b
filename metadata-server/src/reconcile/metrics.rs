//! What checks count.

use millrace_protocol::fsck::{FsckReport, NamespaceReport};
use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use super::standing::{Found, Standing};

/// What stands of the last checks, and sums since the process began.
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
    /// A check has come to its end, since when this stands.
    pub(super) fn ended(
        &self,
        report: &FsckReport,
        namespace: &NamespaceReport,
        standing: &Standing,
    ) {
        let set = |gauge: &Gauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let sum = |of: fn(&Found) -> u64| -> u64 { standing.found().map(of).sum() };
        set(&self.orphans, sum(|found| found.orphans.contents));
        set(&self.orphan_bytes, sum(|found| found.orphans.bytes.0));
        set(&self.missing_chunks, sum(|found| found.missing.chunks));
        set(&self.unchecked_targets, standing.unchecked() as u64);
        set(&self.held_back_targets, standing.held_back() as u64);
        set(&self.flaws, standing.flaws());
        self.freed_bytes.inc_by(report.queued.bytes.0);
        // Otherwise it has looked at some targets alone.
        if namespace.run == report.run {
            self.ended.set(report.ended.map_or(0, millrace_types::Timestamp::seconds));
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
            "Contents on targets that no file has, as the last check of each target found",
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
            "Chunks that files lack on their targets, as the last check of each target found",
            MetricUnit::Count,
            &self.missing_chunks,
        );
        gauge(
            "metadata_fsck_unchecked_targets",
            "Targets that their last check could not look at, or not to the end",
            MetricUnit::Count,
            &self.unchecked_targets,
        );
        gauge(
            "metadata_fsck_held_back_targets",
            "Targets of which their last check freed nothing, because it would have been too much",
            MetricUnit::Count,
            &self.held_back_targets,
        );
        gauge(
            "metadata_fsck_ended",
            "When the last check of all targets ended, since 1970; 0: none has",
            MetricUnit::Seconds,
            &self.ended,
        );
        gauge(
            "metadata_fsck_flaws",
            "Where the namespace does not agree with itself, as the last check of it left it",
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
