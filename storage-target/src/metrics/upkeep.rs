//! What disks, journals and scrubs do.

use millrace_protocol::upkeep::TargetDetail;
use millrace_service::metrics::{MetricUnit, Metrics};
use prometheus_client::metrics::gauge::Gauge;

use super::describe;
use crate::{disk::DiskMeter, journal::JournalMeter};

/// The figures of all targets' disks, journals and scrubs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct UpkeepMetrics {
    pub(crate) disk: DiskMeter,
    pub(crate) journal: JournalMeter,
    journal_used_bytes: Gauge,
    checksum_failures: Gauge,
    scrub_read_bytes: Gauge,
    scrub_checked_bytes: Gauge,
    scrub_total_bytes: Gauge,
    scrub_findings: Gauge,
    scrub_dropped_blocks: Gauge,
    scrub_gathered_bytes: Gauge,
    scrubs_under_way: Gauge,
}

impl UpkeepMetrics {
    /// Registers everything.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        use MetricUnit::{Bytes, Count};
        let mut gauge =
            |name, help, unit| metrics.register(describe(name, help, unit), Gauge::default());
        let journal_used_bytes =
            gauge("target_journal_used", "Bytes of the journals that a start would read", Bytes);
        let checksum_failures =
            gauge("target_checksum_failures", "Wrong checksums met since the start", Count);
        let scrub_read_bytes =
            gauge("target_scrub_read", "Bytes that scrubs have read since the start", Bytes);
        let scrub_checked_bytes =
            gauge("target_scrub_checked", "Bytes checked in the present passes", Bytes);
        let scrub_total_bytes = gauge("target_scrub_total", "Bytes that a pass checks", Bytes);
        let scrub_findings =
            gauge("target_scrub_findings", "Damaged blocks met in the present passes", Count);
        let scrub_dropped_blocks = gauge(
            "target_scrub_dropped_blocks",
            "Damaged blocks dropped because a bucket has them, since the start",
            Count,
        );
        let scrub_gathered_bytes = gauge(
            "target_scrub_gathered",
            "Bytes written anew to bring scattered sections together, since the start",
            Bytes,
        );
        let scrubs_under_way = gauge("target_scrubs_under_way", "Passes under way", Count);
        Self {
            disk: register_disk(metrics),
            journal: register_journal(metrics),
            journal_used_bytes,
            checksum_failures,
            scrub_read_bytes,
            scrub_checked_bytes,
            scrub_total_bytes,
            scrub_findings,
            scrub_dropped_blocks,
            scrub_gathered_bytes,
            scrubs_under_way,
        }
    }

    /// Shows what all targets tell of themselves.
    pub(crate) fn set(&self, targets: &[TargetDetail]) {
        let sum = |gauge: &Gauge, figure: fn(&TargetDetail) -> u64| {
            let sum: u64 = targets.iter().map(figure).sum();
            gauge.set(i64::try_from(sum).unwrap_or(i64::MAX));
        };
        sum(&self.journal_used_bytes, |one| one.journal_used.0);
        sum(&self.checksum_failures, |one| one.checksum_failures);
        sum(&self.scrub_read_bytes, |one| one.scrub.read.0);
        sum(&self.scrub_checked_bytes, |one| one.scrub.checked.0);
        sum(&self.scrub_total_bytes, |one| one.scrub.total.0);
        sum(&self.scrub_findings, |one| one.scrub.findings);
        sum(&self.scrub_dropped_blocks, |one| one.scrub.dropped_blocks);
        sum(&self.scrub_gathered_bytes, |one| one.scrub.gathered.0);
        sum(&self.scrubs_under_way, |one| u64::from(one.scrub.under_way));
    }
}

fn register_disk(metrics: &mut Metrics) -> DiskMeter {
    use MetricUnit::{Bytes, Count, Seconds};
    let meter = DiskMeter::default();
    let latency = "From handing a request to the disk to its end, by operation";
    metrics.register(describe("target_disk_latency", latency, Seconds), meter.latencies.clone());
    let moved = "Bytes read from and written to disks, by operation";
    metrics.register(describe("target_disk_transferred", moved, Bytes), meter.bytes.clone());
    let depth = "Requests to disks that wait or are under way";
    metrics.register(describe("target_disk_queue", depth, Count), meter.depth.clone());
    meter
}

fn register_journal(metrics: &mut Metrics) -> JournalMeter {
    use MetricUnit::{Bytes, Count, Seconds};
    let meter = JournalMeter::default();
    let flushes = describe("target_journal_flushes", "Flushes of the journals", Count);
    metrics.register(flushes, meter.flushes.clone());
    let group = "Records that one flush made durable";
    metrics.register(describe("target_journal_group", group, Count), meter.flush_records.clone());
    let batch = "Records of one write to the journals";
    metrics.register(describe("target_journal_batch", batch, Count), meter.batch_records.clone());
    let bytes = "Bytes written to the journals";
    metrics.register(describe("target_journal_written", bytes, Bytes), meter.bytes.clone());
    let phases = "What flushes of the journals wait for, by phase: write, data, sync";
    metrics.register(describe("target_journal_phase", phases, Seconds), meter.phases.clone());
    meter
}

#[cfg(test)]
mod tests {
    use crate::metrics::Counters;

    use super::*;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut metrics = Metrics::new();
        let counters = Counters::register(&mut metrics);
        counters.upkeep.set(&[]);
    }
}
