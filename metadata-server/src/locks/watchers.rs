//! Requests that wait for news: one of each session.

use std::collections::HashMap;

use millrace_types::SessionId;
use tokio::sync::oneshot;

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    waiting: HashMap<SessionId, oneshot::Sender<()>>,
}

/// What is new for a session.
#[derive(Debug)]
pub enum News<T> {
    /// These, of which the session has not said that it knows.
    Now(Vec<T>),
    /// None yet; fires when there may be.
    Later(oneshot::Receiver<()>),
}

impl Watchers {
    /// What is new, or somebody who waits for it, in the place of whoever did before.
    pub(super) fn news<T>(&mut self, session: SessionId, new: Vec<T>) -> News<T> {
        if !new.is_empty() {
            return News::Now(new);
        }
        let (watcher, news) = oneshot::channel();
        self.waiting.insert(session, watcher);
        News::Later(news)
    }

    /// Something is new for the session.
    pub(super) fn wake(&mut self, session: SessionId) {
        if let Some(watcher) = self.waiting.remove(&session) {
            // If it has gone away, the next one looks by itself.
            let heard = watcher.send(()).is_ok();
            tracing::trace!(%session, heard, "there is news of locks");
        }
    }

    /// The session has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }
}
