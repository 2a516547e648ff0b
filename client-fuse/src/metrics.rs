//! What the mount counts.

use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability};
use prometheus_client::metrics::counter::Counter;

/// The whole names of everything that a mount exports, for who compares the documents with it.
#[must_use]
pub fn exported_names() -> Vec<String> {
    let mut metrics = Metrics::new();
    drop(ClientMetrics::new(&mut metrics));
    metrics.names().to_vec()
}

/// Counters of one mount. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientMetrics {
    /// Reads that were answered without waiting.
    pub(crate) read_ready: Counter,
    /// Opens for reading of which the server was not asked.
    pub(crate) opens_kept: Counter,
    /// Files that were made here before the server heard of them.
    pub(crate) creates_delegated: Counter,
    /// Bytes fetched from targets.
    pub(crate) fetched: Counter,
    /// Bytes that programs wrote.
    pub(crate) written: Counter,
    /// Writes that had to wait for memory.
    pub(crate) write_stalls: Counter,
    /// Attempts that failed and were made again.
    pub(crate) retries: Counter,
}

impl ClientMetrics {
    /// Counters that `metrics` shows.
    pub(crate) fn new(metrics: &mut Metrics) -> Self {
        let mut counter = |name, help, unit| {
            let stability = Stability::Experimental;
            let description = Description { name, help, unit, stability };
            metrics.register(description, Counter::default())
        };
        Self {
            read_ready: counter(
                "mount_reads_ready",
                "Reads answered from memory without waiting",
                MetricUnit::Count,
            ),
            opens_kept: counter(
                "mount_opens_kept",
                "Opens for reading answered from what a lease covers",
                MetricUnit::Count,
            ),
            creates_delegated: counter(
                "mount_creates_delegated",
                "Files made under a delegation, of which the server heard later",
                MetricUnit::Count,
            ),
            fetched: counter("mount_fetched", "Bytes fetched from targets", MetricUnit::Bytes),
            written: counter("mount_written", "Bytes that programs wrote", MetricUnit::Bytes),
            write_stalls: counter(
                "mount_write_stalls",
                "Writes that waited for the memory budget",
                MetricUnit::Count,
            ),
            retries: counter(
                "mount_retries",
                "Requests to servers that failed and were sent again",
                MetricUnit::Count,
            ),
        }
    }
}
