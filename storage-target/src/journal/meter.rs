//! How many records share a write, how many a flush, and what a flush waits for.

use std::time::Instant;

use millrace_service::metrics::latency_histogram;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

type Labels = Vec<(&'static str, &'static str)>;

/// Durations by phase.
pub(super) type Phases = Family<Labels, Histogram, fn() -> Histogram>;

/// What making records durable consists of, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The batch is written.
    Write,
    /// The data that its records name is not there yet.
    Data,
    /// The disk syncs.
    Sync,
}

/// The figures of journals. Clones count on the same ones.
#[derive(Clone, Debug)]
pub struct JournalMeter {
    /// Flushes of the disk.
    pub flushes: Counter,
    /// Records that one flush made durable.
    pub flush_records: Histogram,
    /// Records of one write.
    pub batch_records: Histogram,
    /// Bytes written to the ring, with what fills pages.
    pub bytes: Counter,
    /// How long the phases of a flush take, in seconds: `write`, `data`, `sync`.
    pub phases: Phases,
    /// The same, found without a look-up.
    by_phase: [Histogram; 3],
}

impl Default for JournalMeter {
    fn default() -> Self {
        let phases = Phases::new_with_constructor(latency_histogram as fn() -> Histogram);
        let by_phase = ["write", "data", "sync"]
            .map(|phase| phases.get_or_create(&vec![("phase", phase)]).clone());
        Self {
            flushes: Counter::default(),
            flush_records: count_histogram(),
            batch_records: count_histogram(),
            bytes: Counter::default(),
            phases,
            by_phase,
        }
    }
}

/// 1, 2, 4 and so on up to 4,096.
fn count_histogram() -> Histogram {
    Histogram::new((0..13).map(|power| f64::from(1 << power)))
}

impl JournalMeter {
    pub(super) fn written(&self, records: usize, bytes: usize) {
        self.batch_records.observe(f64::from(u32::try_from(records).unwrap_or(u32::MAX)));
        self.bytes.inc_by(bytes as u64);
    }

    pub(super) fn flushed(&self, records: u64) {
        self.flushes.inc();
        self.flush_records.observe(f64::from(u32::try_from(records).unwrap_or(u32::MAX)));
    }

    pub(super) async fn timed<T>(&self, phase: Phase, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        let histogram = match phase {
            Phase::Write => &self.by_phase[0],
            Phase::Data => &self.by_phase[1],
            Phase::Sync => &self.by_phase[2],
        };
        histogram.observe(started.elapsed().as_secs_f64());
        done
    }
}
