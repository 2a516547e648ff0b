//! Tells the metadata server of objects that a fetch found changed or gone.
//!
//! Whoever meets such an object notes its content here and goes on: noting takes one short lock.
//! A task of its own sends what was noted, in batches, over the connection that carries the
//! heartbeats. Bounded and deduplicated; what does not fit is forgotten, because the next fetch of
//! the same content finds the same.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::{
    cluster::{CHANGED_CONTENTS_MAX, ReportChanged},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ChunkKey, ErrorKind, Failure};
use tokio::sync::Notify;

/// Contents that are remembered, waiting or told: 80 bytes each, 1.5 MiB at most with the tables.
const REMEMBERED_MAX: usize = 16 * 1024;

/// A content is told of again after this time: the server may have been restarted, or have found
/// the bucket away.
const AGAIN: Duration = Duration::from_secs(1);

/// How long one report may take, and the pause after one that failed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// The contents that were noted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    noted: Mutex<Noted>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Noted {
    waiting: VecDeque<ContentName>,
    /// Those that wait, and when the others were told.
    known: HashMap<ContentName, Known>,
}

#[derive(Clone, Copy, Debug)]
enum Known {
    Waiting,
    Told(Instant),
}

impl Known {
    /// Whether there is no need to tell now.
    fn is_enough(self, now: Instant) -> bool {
        match self {
            Self::Waiting => true,
            Self::Told(when) => now.duration_since(when) < AGAIN,
        }
    }
}

impl Changed {
    /// Notes the content of a chunk if `outcome` says that its object changed.
    pub(crate) fn note<T>(&self, key: ChunkKey, outcome: &Result<T, Failure>) {
        if matches!(outcome, Err(failure) if failure.kind == ErrorKind::ObjectChanged) {
            let content = ContentName { inode: key.inode, generation: key.generation };
            self.insert(content, Instant::now());
        }
    }

    fn insert(&self, content: ContentName, now: Instant) {
        let mut noted = self.lock();
        if noted.known.len() >= REMEMBERED_MAX {
            noted.known.retain(|_, known| known.is_enough(now));
        }
        let enough = noted.known.get(&content).is_some_and(|known| known.is_enough(now));
        if enough || noted.known.len() >= REMEMBERED_MAX {
            return;
        }
        noted.known.insert(content, Known::Waiting);
        noted.waiting.push_back(content);
        drop(noted);
        self.inner.news.notify_one();
    }

    fn take(&self, now: Instant) -> Vec<ContentName> {
        let mut noted = self.lock();
        let count = noted.waiting.len().min(CHANGED_CONTENTS_MAX);
        let taken: Vec<_> = noted.waiting.drain(..count).collect();
        for content in &taken {
            noted.known.insert(*content, Known::Told(now));
        }
        taken
    }

    fn put_back(&self, contents: Vec<ContentName>) {
        let mut noted = self.lock();
        for content in contents.into_iter().rev() {
            if !matches!(noted.known.insert(content, Known::Waiting), Some(Known::Waiting)) {
                noted.waiting.push_front(content);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.inner.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is noted, until it is dropped.
    pub(crate) async fn report(self, metadata: Peer) {
        loop {
            let contents = self.take(Instant::now());
            if contents.is_empty() {
                self.inner.news.notified().await;
                continue;
            }
            let request = ReportChanged { contents };
            match metadata.call(&request, CallOptions::control(PATIENCE)).await {
                Ok(_) => {
                    tracing::info!(
                        contents = request.contents.len(),
                        "objects are not the recorded version any more: told the metadata server"
                    );
                }
                Err(failure) if failure.kind.is_transient() => {
                    tracing::debug!(%failure, "changed objects cannot be told of now");
                    self.put_back(request.contents);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "the metadata server refuses to hear of changes");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ContentGeneration, InodeId};

    use super::*;

    fn content(inode: u64) -> ContentName {
        ContentName { inode: InodeId(inode), generation: ContentGeneration(1) }
    }

    #[test]
    fn a_content_is_told_once_however_many_readers_meet_it_and_again_after_a_while() {
        let (changed, start) = (Changed::default(), Instant::now());
        for _ in 0..100 {
            changed.insert(content(1), start);
        }
        changed.insert(content(2), start);
        assert_eq!(changed.take(start), [content(1), content(2)]);
        changed.insert(content(1), start + AGAIN / 2);
        assert!(changed.take(start).is_empty(), "just told");
        changed.insert(content(1), start + AGAIN);
        assert_eq!(changed.take(start), [content(1)]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_old_names_make_room() {
        let (changed, start) = (Changed::default(), Instant::now());
        let count = u64::try_from(REMEMBERED_MAX).unwrap();
        for inode in 0..count + 100 {
            changed.insert(content(inode), start);
        }
        let mut taken = 0;
        loop {
            let batch = changed.take(start);
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= CHANGED_CONTENTS_MAX);
            taken += batch.len();
        }
        assert_eq!(taken, REMEMBERED_MAX);
        changed.insert(content(count + 1), start + AGAIN);
        assert_eq!(changed.take(start), [content(count + 1)]);
    }

    #[test]
    fn a_report_that_failed_comes_first_the_next_time() {
        let (changed, start) = (Changed::default(), Instant::now());
        changed.insert(content(1), start);
        let failed = changed.take(start);
        changed.insert(content(2), start);
        changed.put_back(failed);
        assert_eq!(changed.take(start), [content(1), content(2)]);
    }
}
