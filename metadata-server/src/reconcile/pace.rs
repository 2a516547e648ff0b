//! Keeps a check from being in the way.

use std::time::Duration;

use tokio::time::Instant;

/// So many contents and inodes a second on average.
pub(super) struct Pace {
    a_second: u64,
    free_at: Instant,
}

impl Pace {
    pub(super) fn new(a_second: u64) -> Self {
        Self { a_second: a_second.max(1), free_at: Instant::now() }
    }

    /// Waits as long as this much work may take.
    pub(super) async fn done(&mut self, work: u64) {
        let nanoseconds = work.saturating_mul(1_000_000_000) / self.a_second;
        // Time that was not used is not saved up.
        self.free_at = self.free_at.max(Instant::now()) + Duration::from_nanos(nanoseconds);
        tokio::time::sleep_until(self.free_at).await;
    }
}
