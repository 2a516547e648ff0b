//! Ends of opens for writing, of which the metadata server hears together.
//!
//! Who makes many files, one after the other, would otherwise send a message for each of them with
//! nothing in it but that it is closed. A file that is closed by itself is told of at once; where
//! others were closed a moment ago, those that follow are gathered for a few milliseconds.
//!
//! What a close promises does not wait for this: size and content have been told before. Until the
//! server has heard, the open counts as one: the file's attributes are not kept by other mounts,
//! and what has no name any more stays. When the session ends the server closes everything.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::{
    metadata::{CLOSES_MAX, Close, CloseFiles, OpenMode},
    session::Operation,
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};
use tokio::sync::Notify;

use crate::fs::{FileSystem, file::File};

/// Opens for writing that have ended here.
#[derive(Debug, Default)]
pub(super) struct Closes {
    queue: Mutex<Queue>,
    /// There are enough for one message.
    is_full: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Closing>,
    /// Somebody tells of them.
    is_served: bool,
    /// When some were last taken to be told of.
    taken: Option<Instant>,
    /// The server is from before it could hear of several at once.
    is_old: bool,
}

/// An open for writing that has ended.
#[derive(Debug)]
pub(super) struct Closing {
    /// The file, which counts it as open and closing until the server has heard.
    pub(super) file: Arc<File>,
    /// The session in which the server was told of the open.
    pub(super) session: SessionId,
}

impl Closes {
    /// Takes one more; tells whether its caller must see to it that they are told of.
    fn put(&self, closing: Closing) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(closing);
        if queue.waiting.len() >= CLOSES_MAX {
            self.is_full.notify_one();
        }
        !std::mem::replace(&mut queue.is_served, true)
    }

    /// How long to wait for others, if some were told of just now.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let queue = self.lock();
        let is_full = queue.waiting.len() >= queue.most();
        let since = now.saturating_duration_since(queue.taken?);
        (!is_full && since < BURST_GAP).then_some(GATHER)
    }

    /// The next ones to be told of together; nothing when there are none, which ends the service.
    fn take(&self, now: Instant) -> Vec<Closing> {
        let mut queue = self.lock();
        let count = queue.waiting.len().min(queue.most());
        if count == 0 {
            queue.is_served = false;
            return Vec::new();
        }
        queue.taken = Some(now);
        queue.waiting.drain(..count).collect()
    }

    /// The server has not understood several at once.
    fn handle_old_server(&self) {
        self.lock().is_old = true;
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each step leaves the queue whole, so that a panic elsewhere cannot have torn it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn most(&self) -> usize {
        if self.is_old { 1 } else { CLOSES_MAX }
    }
}

/// Closes less than this apart belong together: 60 a second, which cost nothing to tell of one by
/// one.
const BURST_GAP: Duration = Duration::from_millis(16);

/// How long they wait for each other: some ten files of one thread that makes them, for which
/// another host's export or `stat` would have to look again.
const GATHER: Duration = Duration::from_millis(4);

impl FileSystem {
    /// The server hears soon that this open is over.
    pub(super) fn close_write(&self, closing: Closing) {
        if self.closes.put(closing) {
            self.spawn(|this| async move { this.tell_closes().await });
        }
    }

    /// Tells of all that have ended, until there are none.
    async fn tell_closes(&self) {
        loop {
            if let Some(pause) = self.closes.pause(Instant::now()) {
                drop(tokio::time::timeout(pause, self.closes.is_full.notified()).await);
            }
            let ended = self.closes.take(Instant::now());
            if ended.is_empty() {
                return;
            }
            let session = self.cluster.session();
            let (known, over): (Vec<_>, Vec<_>) =
                ended.into_iter().partition(|closing| closing.session == session);
            self.tell_closed(&known).await;
            for closing in known.into_iter().chain(over) {
                self.files.handle_closed(&closing.file, OpenMode::Write);
            }
        }
    }

    async fn tell_closed(&self, ended: &[Closing]) {
        let Some(first) = ended.first() else { return };
        // Once nobody writes them any more, others may keep their attributes, and change them.
        let changed: Vec<_> = ended.iter().map(|closing| closing.file.inode).collect();
        if ended.len() == 1 {
            let inode = first.file.inode;
            let request = |operation| Close { operation, inode, mode: OpenMode::Write };
            if let Err(failure) = self.change(request, &[], changed).await {
                tell_unclosed(&first.file, &failure);
            }
            return;
        }
        let request = |operation: Operation| CloseFiles {
            inodes: of_session(ended, operation.session),
            operation,
        };
        match self.change(request, &[], changed).await {
            Ok(_) => {}
            Err(failure) if failure.kind == ErrorKind::NotSupported => {
                self.closes.handle_old_server();
                for closing in ended {
                    Box::pin(self.tell_closed(std::slice::from_ref(closing))).await;
                }
            }
            Err(failure) => tell_unclosed(&first.file, &failure),
        }
    }
}

/// The files of which the server counts the opens in this session: those of one that has ended are
/// over.
fn of_session(ended: &[Closing], session: SessionId) -> Vec<InodeId> {
    let told = ended.iter().filter(|closing| closing.session == session);
    told.map(|closing| closing.file.inode).collect()
}

/// Logs that the server does not know of the end of an open of this file, and perhaps of others.
pub(super) fn tell_unclosed(file: &File, failure: &Failure) {
    // The server closes it when the session ends.
    tracing::warn!(inode = %file.inode, %failure, "cannot tell the server of a close");
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn closing(inode: u64) -> Closing {
        Closing { file: crate::fs::file::tests::file(inode), session: SESSION }
    }

    fn inodes(closings: &[Closing]) -> Vec<u64> {
        closings.iter().map(|closing| closing.file.inode.0).collect()
    }

    #[test]
    fn a_close_by_itself_waits_for_nothing_and_those_after_it_are_gathered() {
        let closes = Closes::default();
        let start = Instant::now();
        assert!(closes.put(closing(1)), "somebody must tell of it");
        assert_eq!(closes.pause(start), None);
        assert_eq!(inodes(&closes.take(start)), [1]);
        assert!(!closes.put(closing(2)), "whoever tells of the first tells of this one");
        assert!(!closes.put(closing(3)));
        assert_eq!(closes.pause(start + BURST_GAP / 2), Some(GATHER));
        assert_eq!(inodes(&closes.take(start)), [2, 3]);
        assert!(closes.take(start).is_empty());
        assert!(closes.put(closing(4)), "nobody tells any more");
        assert_eq!(closes.pause(start + BURST_GAP), None);
    }

    #[test]
    fn what_fills_a_message_waits_no_longer_and_the_rest_goes_with_the_next() {
        let closes = Closes::default();
        let now = Instant::now();
        closes.put(closing(0));
        closes.take(now);
        for inode in 0..=CLOSES_MAX as u64 {
            closes.put(closing(inode));
        }
        assert_eq!(closes.pause(now), None);
        assert_eq!(closes.take(now).len(), CLOSES_MAX);
        assert_eq!(closes.pause(now), Some(GATHER));
        assert_eq!(inodes(&closes.take(now)), [CLOSES_MAX as u64]);
    }

    #[test]
    fn an_old_server_hears_of_one_at_a_time() {
        let closes = Closes::default();
        let now = Instant::now();
        closes.handle_old_server();
        closes.put(closing(1));
        closes.put(closing(2));
        assert_eq!(inodes(&closes.take(now)), [1]);
        assert_eq!(closes.pause(now), None);
        assert_eq!(inodes(&closes.take(now)), [2]);
    }

    #[test]
    fn opens_of_a_session_that_has_ended_are_not_closed_in_the_next() {
        let mut ended = vec![closing(1), closing(2)];
        ended[0].session = SessionId(2);
        assert_eq!(of_session(&ended, SESSION), [InodeId(2)]);
    }
}
