//! Tells the metadata server which reads had to wait for a bucket, so that more can be fetched
//! before it is asked for.
//!
//! Only a matter of speed: what cannot be told is forgotten.

use std::time::{Duration, Instant};

use millrace_protocol::{
    ahead::{MISSES_MAX, Miss, ReportMisses},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ChunkIndex, ChunkKey, ErrorKind};

use crate::noted::Noted;

/// Misses that are remembered, waiting or told: 80 bytes each, 1.5 MiB at most with the tables.
const REMEMBERED_MAX: usize = 16 * 1024;

/// A chunk is told of again after this time: it may have been dropped, or be read on and on.
const AGAIN: Duration = Duration::from_secs(1);

/// How long misses are gathered for one report: a fraction of what one of them costs, which is the
/// 10 ms and more to the first byte of a bucket.
const GATHER: Duration = Duration::from_millis(5);

/// How long one report may take, and the pause after one that failed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// The pause after a server said that it does not know such reports: it may be upgraded.
const PAUSE_UNKNOWN: Duration = Duration::from_secs(60);

/// The misses that were noted. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Misses {
    noted: Noted<Miss>,
}

impl Default for Misses {
    fn default() -> Self {
        Self { noted: Noted::new(REMEMBERED_MAX, AGAIN) }
    }
}

impl Misses {
    /// A reader had to wait for bytes of a chunk.
    pub(crate) fn note(&self, key: ChunkKey) {
        let content = ContentName { inode: key.inode, generation: key.generation };
        self.noted.insert(Miss { content, chunk: ChunkIndex(key.index.0) }, Instant::now());
    }

    /// Waits until a reader had to wait.
    #[cfg(test)]
    pub(crate) async fn noted(&self) {
        self.noted.news().await;
    }

    /// Sends what is noted, until it is dropped.
    pub(crate) async fn report(self, metadata: Peer) {
        loop {
            self.noted.news().await;
            tokio::time::sleep(GATHER).await;
            loop {
                let misses = self.noted.take(MISSES_MAX, Instant::now());
                if misses.is_empty() {
                    break;
                }
                let request = ReportMisses { misses };
                let Err(failure) = metadata.call(&request, CallOptions::control(PATIENCE)).await
                else {
                    continue;
                };
                tracing::debug!(%failure, "nobody hears of reads that waited for a bucket");
                let unknown = failure.kind == ErrorKind::NotSupported;
                tokio::time::sleep(if unknown { PAUSE_UNKNOWN } else { PAUSE }).await;
            }
        }
    }
}
