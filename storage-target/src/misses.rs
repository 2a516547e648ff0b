//! Tells the metadata server which reads had to wait for a bucket, so that more can be fetched
//! before it is asked for.
//!
//! Only a matter of speed: what cannot be told is forgotten.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::{
    ahead::{MISSES_MAX, Miss, ReportMisses},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ChunkIndex, ChunkKey, ErrorKind, Failure, LinkId};

use crate::{noted::Noted, view::ChunkView};

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
    /// Links whose bucket did not answer the last read that asked it. What is fetched ahead there
    /// would wait for it too, in turns that files of other links could have.
    silent: Arc<Mutex<HashSet<LinkId>>>,
}

impl Default for Misses {
    fn default() -> Self {
        Self { noted: Noted::new(REMEMBERED_MAX, AGAIN), silent: Arc::default() }
    }
}

impl Misses {
    /// A reader begins to wait for bytes of a chunk: what else is wanted need not begin after that,
    /// unless the bucket is one that says nothing.
    pub(crate) fn begin(&self, view: &ChunkView) {
        if let Some(origin) = &view.origin
            && !self.silent().contains(&origin.link)
        {
            self.note(view.key);
        }
    }

    /// Its wait has ended, with the bytes or without.
    pub(crate) fn end(&self, view: &ChunkView, failure: Option<&Failure>) {
        let Some(origin) = &view.origin else { return };
        match failure.map(|failure| failure.kind) {
            Some(ErrorKind::BucketUnavailable | ErrorKind::BucketDenied) => {
                self.silent().insert(origin.link);
            }
            Some(_) => {}
            None => {
                if self.silent().remove(&origin.link) {
                    self.note(view.key);
                }
            }
        }
    }

    fn silent(&self) -> MutexGuard<'_, HashSet<LinkId>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, key: ChunkKey) {
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use millrace_protocol::capability::{Content, Origin};
    use millrace_types::{
        ChunkSize, ContentGeneration, InodeId, Layout, PoolId, Timestamp, WriteEpoch,
    };

    use super::*;

    fn chunk(link: u32, inode: u64) -> ChunkView {
        let content = Content {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(0),
            layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
            origin: Some(Origin {
                link: LinkId(link),
                key: "object".to_owned(),
                size: 1000,
                tag: "\"tag\"".to_owned(),
                modified: Timestamp(0),
            }),
            origin_length: 1000,
            sparse: false,
        };
        ChunkView::new(&content, ChunkIndex(0))
    }

    #[test]
    fn who_waits_for_a_bucket_that_said_nothing_counts_when_it_answers_again() {
        let misses = Misses::default();
        let is_news = || misses.noted().now_or_never().is_some();
        misses.begin(&chunk(1, 1));
        assert!(is_news(), "nothing is known of the bucket");
        misses.end(&chunk(1, 1), Some(&ErrorKind::ObjectChanged.into()));
        misses.begin(&chunk(1, 2));
        assert!(is_news(), "it has answered");
        // Files of their own: each is told of once a second.
        for (kind, inode) in [(ErrorKind::BucketUnavailable, 10), (ErrorKind::BucketDenied, 20)] {
            misses.end(&chunk(1, 2), Some(&kind.into()));
            misses.begin(&chunk(1, inode));
            assert!(!is_news(), "{kind:?}");
            misses.begin(&chunk(2, inode));
            assert!(is_news(), "another bucket has nothing to do with it");
            misses.end(&chunk(1, inode + 1), None);
            assert!(is_news(), "it answers again");
            misses.begin(&chunk(1, inode + 2));
            assert!(is_news(), "and is asked as before");
        }
    }
}
