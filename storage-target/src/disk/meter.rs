//! What a disk is asked, how long it takes, and how much waits for it.

use std::time::{Duration, Instant};

use millrace_service::metrics::latency_histogram;
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};

use super::Operation;

type Labels = Vec<(&'static str, &'static str)>;

/// Latencies by operation.
pub type Latencies = Family<Labels, Histogram, fn() -> Histogram>;

/// The figures of disks. Clones count on the same ones.
#[derive(Clone, Debug)]
pub struct DiskMeter {
    /// From handing a request to the disk until it is done, in seconds.
    pub latencies: Latencies,
    /// Bytes read and written.
    pub bytes: Family<Labels, Counter>,
    /// Requests that wait for their turn or are under way.
    pub depth: Gauge,
    /// The same figures by operation, found without a look-up.
    by_operation: [(Histogram, Counter); 3],
}

impl Default for DiskMeter {
    fn default() -> Self {
        let latencies = Latencies::new_with_constructor(latency_histogram as fn() -> Histogram);
        let bytes: Family<Labels, Counter> = Family::default();
        let by_operation = [Operation::Read, Operation::Write, Operation::Sync].map(|operation| {
            let labels = vec![("operation", operation.verb())];
            let latency = latencies.get_or_create(&labels).clone();
            let counter = bytes.get_or_create(&labels).clone();
            (latency, counter)
        });
        Self { latencies, bytes, depth: Gauge::default(), by_operation }
    }
}

/// A request that counts as under way until it is dropped.
#[derive(Debug)]
pub(super) struct Metered {
    meter: Option<DiskMeter>,
    operation: Operation,
    handed_over: Option<Instant>,
}

impl Metered {
    pub(super) fn new(meter: Option<&DiskMeter>, operation: Operation) -> Self {
        if let Some(meter) = meter {
            meter.depth.inc();
        }
        Self { meter: meter.cloned(), operation, handed_over: None }
    }

    /// Its turn has come.
    pub(super) fn hand_over(&mut self) {
        self.handed_over = self.meter.as_ref().map(|_| Instant::now());
    }

    /// It is done, and has moved so many bytes.
    pub(super) fn complete(&mut self, bytes: usize) {
        let (Some(meter), Some(start)) = (&self.meter, self.handed_over.take()) else { return };
        meter.observe(self.operation, start.elapsed(), bytes);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        if let Some(meter) = &self.meter {
            meter.depth.dec();
        }
    }
}

impl DiskMeter {
    fn observe(&self, operation: Operation, took: Duration, bytes: usize) {
        let (latency, moved) = match operation {
            Operation::Read => &self.by_operation[0],
            Operation::Write => &self.by_operation[1],
            Operation::Sync => &self.by_operation[2],
        };
        latency.observe(took.as_secs_f64());
        moved.inc_by(bytes as u64);
    }
}
