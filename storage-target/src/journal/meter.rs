//! How many records share a write, and how many a flush.

use prometheus_client::metrics::{counter::Counter, histogram::Histogram};

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
}

impl Default for JournalMeter {
    fn default() -> Self {
        Self {
            flushes: Counter::default(),
            flush_records: count_histogram(),
            batch_records: count_histogram(),
            bytes: Counter::default(),
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
}
