//! Objects that targets found changed: each is looked at once, and its file follows the bucket.
//!
//! A report only names a content; what became of the object is asked for here. Reports may be
//! repeated and may be lost: a fetch that meets the change again reports it again. So the queue is
//! bounded, forgets what does not fit, and holds nothing over a restart.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_protocol::target::ContentName;
use millrace_types::Failure;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    environment::Environment,
    import::{Importer, Object},
};

/// Contents that wait. With 24 bytes each, less than 4 MiB with their table.
const WAITING_MAX: usize = 65_536;

/// Objects that are looked at at the same time.
const LOOKS_MAX: usize = 16;

/// The queue and who works it off.
#[derive(Debug)]
pub(super) struct Changed<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    queue: Mutex<Queue>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<ContentName>,
    /// Those that wait and those that are being looked at.
    known: HashSet<ContentName>,
}

impl<E: Environment> Changed<E> {
    pub(super) fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        Self { environment, importer, queue: Mutex::default(), news: Notify::new() }
    }

    /// Takes a report. Never waits.
    pub(super) fn note(&self, contents: &[ContentName]) {
        let counts = &self.importer.counts;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for &content in contents {
            counts.reported.inc();
            if queue.known.contains(&content) {
                continue;
            }
            if queue.known.len() >= WAITING_MAX {
                counts.dropped.inc();
                continue;
            }
            queue.known.insert(content);
            queue.waiting.push_back(content);
        }
        drop(queue);
        self.news.notify_one();
    }

    /// Works the queue off until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let work = async {
            let mut looks = FuturesUnordered::new();
            loop {
                while looks.len() < LOOKS_MAX
                    && let Some(content) = self.next()
                {
                    looks.push(async move {
                        if let Err(failure) = self.look(content).await {
                            tracing::warn!(inode = %content.inode, %failure,
                                "an object that changed cannot be looked at now");
                        }
                        content
                    });
                }
                tokio::select! {
                    Some(content) = looks.next(), if !looks.is_empty() => self.done(&content),
                    () = self.news.notified(), if looks.len() < LOOKS_MAX => {}
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn look(&self, content: ContentName) -> Result<(), Failure> {
        let inode = content.inode;
        let query = self.environment.read(move |view| Object::of(view, inode));
        let Some(object) = query.await? else { return Ok(()) };
        // Of another content nothing was said.
        if object.generation != content.generation {
            return Ok(());
        }
        self.importer.observe(&object).await.map(drop)
    }

    fn next(&self) -> Option<ContentName> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    fn done(&self, content: &ContentName) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).known.remove(content);
    }
}
