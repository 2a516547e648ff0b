//! What the daemon counts.

use millrace_service::metrics::{
    Description, MetricUnit, Metrics, RequestMetricNames, RequestMetrics, Stability,
};
use millrace_types::{ErrorKind, Failure};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::{format::units::PAGE_SIZE, space::Totals};

mod upkeep;

pub(crate) use upkeep::UpkeepMetrics;

/// Names and values of a metric's labels.
type Labels = Vec<(&'static str, &'static str)>;

/// The whole names of everything that a daemon exports, for who compares the documents with it.
#[must_use]
pub fn exported_names() -> Vec<String> {
    let mut metrics = Metrics::new();
    drop(Counters::register(&mut metrics));
    metrics.names().to_vec()
}

/// The daemon's counters. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) copied_bytes: Counter,
    pub(crate) exported_bytes: Counter,
    pub(crate) syncs: Counter,
    pub(crate) corrupt_replies: Counter,
    pub(crate) lost_replies: Counter,
    pub(crate) no_space_replies: Counter,
    pub(crate) requests: RequestMetrics,
    pub(crate) hydrated_bytes: Gauge,
    pub(crate) bucket_fetches: Gauge,
    pub(crate) capacity_bytes: Gauge,
    pub(crate) used_bytes: Gauge,
    space: Family<Labels, Gauge>,
    pub(crate) bad_blocks: Gauge,
    pub(crate) loss_count: Gauge,
    pub(crate) unopened: Gauge,
    pub(crate) failed: Gauge,
    pub(crate) reopened: Gauge,
    pub(crate) buffer_bytes: Gauge,
    pub(crate) reclaimed_bytes: Gauge,
    pub(crate) released_bytes: Gauge,
    pub(crate) upkeep: UpkeepMetrics,
}

impl Counters {
    /// Registers everything.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        use MetricUnit::{Bytes, Count};
        let mut counter =
            |name, help, unit| metrics.register(describe(name, help, unit), Counter::default());
        let read_bytes = counter("target_read", "Bytes that clients and targets have read", Bytes);
        let written_bytes = counter("target_written", "Bytes that clients have written", Bytes);
        let copied_bytes =
            counter("target_copied", "Bytes written with what targets read themselves", Bytes);
        let exported_bytes = counter("target_exported", "Bytes uploaded to buckets", Bytes);
        let syncs = counter("target_syncs", "Sync requests answered", Count);
        let corrupt_replies =
            counter("target_corrupt_replies", "Requests that met a wrong checksum", Count);
        let lost_replies =
            counter("target_lost_replies", "Requests for bytes that are gone", Count);
        let no_space_replies =
            counter("target_no_space_replies", "Requests refused for lack of space", Count);
        let mut gauge =
            |name, help, unit| metrics.register(describe(name, help, unit), Gauge::default());
        let hydrated_bytes = gauge("target_hydrated", "Bytes fetched from buckets", Bytes);
        let bucket_fetches = gauge("target_bucket_fetches", "Ranged GETs sent to buckets", Count);
        let capacity_bytes = gauge("target_capacity", "Bytes that all targets can hold", Bytes);
        let used_bytes = gauge("target_used", "Bytes in use on all targets", Bytes);
        let bad_blocks =
            gauge("target_bad_blocks", "Blocks whose checksum failed, not replaced", Count);
        let loss_count =
            gauge("target_loss_count", "How often unsynced writes may have been lost", Count);
        let unopened =
            gauge("target_unopened", "Targets of the settings that cannot be opened yet", Count);
        let failed = gauge("target_failed", "Targets that take no change at present", Count);
        let reopened =
            gauge("target_reopened", "How often targets were opened again in place", Count);
        let buffer_bytes = gauge("target_buffers", "Bytes of disk buffers in use", Bytes);
        let reclaimed_bytes = gauge("target_reclaimed", "Bytes freed for deleted files", Bytes);
        let released_bytes =
            gauge("target_released", "Bytes dropped to make room, which buckets have too", Bytes);
        let help = "Bytes of all targets' disks, by what they are used for";
        let space = metrics.register(describe("target_space", help, Bytes), Family::default());
        let names = RequestMetricNames {
            duration: "target_request_duration",
            running: "target_requests_running",
        };
        let requests = RequestMetrics::register(metrics, names);
        let upkeep = UpkeepMetrics::register(metrics);
        Self {
            read_bytes,
            written_bytes,
            copied_bytes,
            exported_bytes,
            syncs,
            corrupt_replies,
            lost_replies,
            no_space_replies,
            requests,
            hydrated_bytes,
            bucket_fetches,
            capacity_bytes,
            used_bytes,
            space,
            bad_blocks,
            loss_count,
            unopened,
            failed,
            reopened,
            buffer_bytes,
            reclaimed_bytes,
            released_bytes,
            upkeep,
        }
    }

    /// Shows what all pages of the targets are used for.
    pub(crate) fn set_space<'a>(&self, targets: impl Iterator<Item = &'a Totals>) {
        let mut sums = by_use(&Totals::default());
        for totals in targets {
            for (sum, one) in sums.iter_mut().zip(by_use(totals)) {
                sum.1 += one.1;
            }
        }
        for (name, pages) in sums {
            let bytes = i64::try_from(pages * u64::from(PAGE_SIZE)).unwrap_or(i64::MAX);
            self.space.get_or_create(&vec![("use", name)]).set(bytes);
        }
    }

    /// Counts failures that an operator must know of.
    pub(crate) fn note_failure<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result {
            match failure.kind {
                ErrorKind::Corrupt => drop(self.corrupt_replies.inc()),
                ErrorKind::Lost => drop(self.lost_replies.inc()),
                ErrorKind::NoSpace => {
                    // A full target refuses every write: the log gets the 1st, 2nd, 4th, 8th...
                    let count = self.no_space_replies.inc() + 1;
                    if count.is_power_of_two() {
                        tracing::warn!(%failure, count, "refused for lack of space");
                    }
                }
                _ => {}
            }
        }
        result
    }
}

/// The pages of a target by what they are used for: together all of them.
fn by_use(totals: &Totals) -> [(&'static str, u64); 9] {
    let kept_back = totals.free.min(totals.kept_back);
    [
        ("fixed", totals.fixed),
        ("ungrown", totals.ungrown),
        ("free", totals.free - kept_back),
        ("kept back", kept_back),
        ("reserved", totals.reserved),
        ("quarantined", totals.quarantined),
        ("index", totals.index),
        ("clean", totals.clean),
        ("written", totals.written),
    ]
}

fn describe(name: &'static str, help: &'static str, unit: MetricUnit) -> Description {
    Description { name, help, unit, stability: Stability::Experimental }
}
