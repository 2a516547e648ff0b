//! Ends of opens for writing, of which the metadata server hears together.
//!
//! Who makes many files, one after the other, would otherwise send a message for each of them with
//! nothing in it but that it is closed. A file that is closed by itself is told of at once; where
//! others were closed a moment ago, those that follow are gathered for a few milliseconds.
//!
//! What a close promises does not wait for this: size and content have been told before. Until the
//! server has heard, the open counts as one: the file's attributes are not kept by other mounts, it
//! is not exported and not dropped for room, and what has no name any more stays. So it is told
//! however long the server is away. When the session ends the server closes everything.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::metadata::{CLOSES_MAX, Close, CloseFiles, CloseUnwritten, OpenMode};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};
use tokio::sync::Notify;

use crate::fs::{
    FileSystem,
    file::File,
    handle::{FileHandle, Told as OpenTold},
};

/// Opens for writing that have ended here.
#[derive(Debug, Default)]
pub(super) struct Closes {
    queue: Mutex<Queue>,
    /// There are enough for one message, or nobody wants to wait any more.
    is_full: Notify,
    /// A message was answered, or there is nothing more to tell.
    answered: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Closing>,
    /// Somebody gathers them.
    is_gathering: bool,
    /// Messages that are not answered.
    messages: usize,
    /// When some were last taken to be told of.
    taken: Option<Instant>,
    /// The server is from before it could hear of several at once.
    is_old: bool,
    /// The server is from before it could hear that nothing was written.
    ignores_unwritten: bool,
}

/// An open for writing that has ended.
#[derive(Debug)]
pub(super) struct Closing {
    /// The file, which counts it as open and closing until the server has heard.
    pub(super) file: Arc<File>,
    /// The session in which the server was told of the open.
    pub(super) session: SessionId,
    /// Whether anybody wrote through it.
    was_written: bool,
}

/// What the one who gathers finds.
#[derive(Debug)]
enum Next {
    /// These are told of together.
    Message(Vec<Closing>),
    /// As many messages as there may be are not answered.
    Wait,
    /// There are none: whoever puts the next one gathers.
    Nothing,
}

impl Closes {
    /// Takes one more; tells whether its caller must see to it that they are gathered.
    fn put(&self, closing: Closing) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(closing);
        if queue.waiting.len() >= CLOSES_MAX {
            self.is_full.notify_one();
        }
        !std::mem::replace(&mut queue.is_gathering, true)
    }

    /// How long to wait for others, if some were told of just now.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let queue = self.lock();
        let is_full = queue.waiting.len() >= queue.most();
        let since = now.saturating_duration_since(queue.taken?);
        (!is_full && since < BURST_GAP).then_some(GATHER)
    }

    fn next(&self, now: Instant) -> Next {
        let mut queue = self.lock();
        if queue.waiting.is_empty() {
            queue.is_gathering = false;
            return Next::Nothing;
        }
        if queue.messages >= MESSAGES_MAX {
            return Next::Wait;
        }
        let count = queue.waiting.len().min(queue.most());
        queue.messages += 1;
        queue.taken = Some(now);
        Next::Message(queue.waiting.drain(..count).collect())
    }

    /// A message was answered, or never will be.
    fn handle_answer(&self) {
        self.lock().messages -= 1;
        self.answered.notify_waiters();
    }

    /// The server has not understood several at once.
    fn handle_old_server(&self) {
        self.lock().is_old = true;
    }

    /// The server was restarted: it may be a newer program.
    pub(super) fn handle_restart(&self) {
        let mut queue = self.lock();
        (queue.is_old, queue.ignores_unwritten) = (false, false);
    }

    fn is_old(&self) -> bool {
        self.lock().is_old
    }

    /// Takes those out that the server shall hear of as not written.
    fn take_unwritten(&self, ended: &mut Vec<Closing>) -> Vec<Closing> {
        let is_told = !self.lock().ignores_unwritten;
        ended.extract_if(.., |closing| is_told && !closing.was_written).collect()
    }

    /// Whether everything was told.
    fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.waiting.is_empty() && queue.messages == 0
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each step leaves the queue whole, so that a panic elsewhere cannot have torn it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closing {
    /// The end of an open for writing of which the server was told in this session.
    pub(super) fn new(handle: &FileHandle, session: SessionId) -> Self {
        let was_written = handle.writers.are_any();
        Self { file: Arc::clone(&handle.file), session, was_written }
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

/// Messages that are on their way at the same time: one may have to wait at the server, for another
/// host that keeps attributes of what it removes.
const MESSAGES_MAX: usize = 8;

impl FileSystem {
    /// The server hears soon that this open is over.
    pub(super) fn close_write(&self, closing: Closing) {
        if self.closes.put(closing) {
            self.spawn(|this| async move { this.gather_closes().await });
        }
    }

    /// Returns when the server has heard of all that have ended. May be dropped at its await.
    pub(crate) async fn tell_closes(&self) {
        loop {
            let answered = self.closes.answered.notified();
            if self.closes.is_idle() {
                return;
            }
            self.closes.is_full.notify_one();
            answered.await;
        }
    }

    /// Has all be told of that have ended, until there are none.
    async fn gather_closes(&self) {
        loop {
            if let Some(pause) = self.closes.pause(Instant::now()) {
                drop(tokio::time::timeout(pause, self.closes.is_full.notified()).await);
            }
            let answered = self.closes.answered.notified();
            match self.closes.next(Instant::now()) {
                Next::Message(ended) => {
                    self.spawn(|this| async move { this.tell_ended(ended).await });
                }
                Next::Wait => answered.await,
                Next::Nothing => return,
            }
        }
    }

    async fn tell_ended(&self, mut ended: Vec<Closing>) {
        let told = Told { closes: &self.closes };
        // Those of a session before this one are over with it.
        let session = self.cluster.session();
        let unwritten = self.closes.take_unwritten(&mut ended);
        let untold = (self.tell_unwritten(session, &unwritten), self.tell_written(session, &ended));
        tokio::join!(untold.0, untold.1);
        for closing in ended.iter().chain(&unwritten) {
            self.files.handle_closed(&closing.file, OpenMode::Write);
        }
        drop(told);
    }

    async fn tell_unwritten(&self, session: SessionId, ended: &[Closing]) {
        let Some(first) = ended.first() else { return };
        let request = |operation| CloseUnwritten { inodes: of_session(ended, session), operation };
        match self.change_in(session, request, inodes_of(ended)).await {
            Ok(_) => {}
            Err(failure) if failure.kind == ErrorKind::NotSupported => {
                self.closes.lock().ignores_unwritten = true;
                self.tell_written(session, ended).await;
            }
            Err(failure) => tell_unclosed(&first.file, &failure),
        }
    }

    /// Tells of files that were written, or of all to a server that knows no difference.
    async fn tell_written(&self, session: SessionId, ended: &[Closing]) {
        let Some(first) = ended.first() else { return };
        if self.closes.is_old() {
            return self.tell_old_server(session, ended).await;
        }
        let request = |operation| CloseFiles { inodes: of_session(ended, session), operation };
        match self.change_in(session, request, inodes_of(ended)).await {
            Ok(_) => {}
            Err(failure) if failure.kind == ErrorKind::NotSupported => {
                self.closes.handle_old_server();
                self.tell_old_server(session, ended).await;
            }
            Err(failure) => tell_unclosed(&first.file, &failure),
        }
    }

    async fn tell_old_server(&self, session: SessionId, ended: &[Closing]) {
        for Closing { file, .. } in ended.iter().filter(|closing| closing.session == session) {
            let inode = file.inode;
            let request = |operation| Close { operation, inode, mode: OpenMode::Write };
            if let Err(failure) = self.change_in(session, request, Some(inode)).await {
                tell_unclosed(file, &failure);
            }
        }
    }

    /// The server hears that this open for reading is over, if it knows of it yet: another life of
    /// it does not, or has been told since by those that are open still.
    pub(super) async fn tell_read_closed(&self, file: &File, told: OpenTold) {
        let inode = file.inode;
        if told.session != self.cluster.session() {
            // It is over with its session, and what this one has shown counts.
            return self.files.handle_closed(file, OpenMode::Read);
        }
        let request = |operation| Close { operation, inode, mode: OpenMode::Read };
        tokio::select! {
            biased;
            _ = self.other_life(told.incarnation) => {}
            answer = self.change_in(told.session, request, None) => {
                if let Err(failure) = answer {
                    tell_unclosed(file, &failure);
                }
            }
        }
        self.files.handle_closed(file, OpenMode::Read);
    }
}

/// A message is on its way, until this is dropped.
struct Told<'a> {
    closes: &'a Closes,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.closes.handle_answer();
    }
}

/// The files whose attributes a close changes: once nobody writes them any more, others may keep
/// these, and change them.
fn inodes_of(ended: &[Closing]) -> Vec<InodeId> {
    ended.iter().map(|closing| closing.file.inode).collect()
}

/// The files of which the server counts the opens in this session: those of one that has ended are
/// over.
fn of_session(ended: &[Closing], session: SessionId) -> Vec<InodeId> {
    let told = ended.iter().filter(|closing| closing.session == session);
    told.map(|closing| closing.file.inode).collect()
}

/// Logs that the server does not know of the end of an open of this file, and perhaps of others.
fn tell_unclosed(file: &File, failure: &Failure) {
    // The server closes it when the session ends.
    if failure.kind == ErrorKind::SessionGone {
        return;
    }
    tracing::warn!(inode = %file.inode, %failure, "cannot tell the server of a close");
}

#[cfg(test)]
mod tests {
    use millrace_protocol::session::Caller;

    use super::*;
    use crate::fs::handle::{HandleOptions, Known};

    const SESSION: SessionId = SessionId(1);

    fn closing(inode: u64) -> Closing {
        Closing::new(&handle(inode), SESSION)
    }

    fn handle(inode: u64) -> FileHandle {
        let (file, options) = (crate::fs::file::tests::file(inode), HandleOptions::default());
        FileHandle::new(file, OpenMode::Write, Caller::ROOT, options, Known::Nobody)
    }

    fn written((inode, is_written): (u64, bool)) -> Closing {
        let handle = handle(inode);
        if is_written {
            handle.writers.record(0);
        }
        Closing::new(&handle, SESSION)
    }

    fn inodes(next: Next) -> Vec<u64> {
        match next {
            Next::Message(closings) => {
                closings.iter().map(|closing| closing.file.inode.0).collect()
            }
            Next::Wait | Next::Nothing => Vec::new(),
        }
    }

    #[test]
    fn a_close_by_itself_waits_for_nothing_and_those_after_it_are_gathered() {
        let closes = Closes::default();
        let start = Instant::now();
        assert!(closes.put(closing(1)), "somebody must tell of it");
        assert_eq!(closes.pause(start), None);
        assert_eq!(inodes(closes.next(start)), [1]);
        assert!(!closes.put(closing(2)), "whoever gathers the first gathers this one");
        assert!(!closes.put(closing(3)));
        assert_eq!(closes.pause(start + BURST_GAP / 2), Some(GATHER));
        assert_eq!(inodes(closes.next(start)), [2, 3]);
        assert!(matches!(closes.next(start), Next::Nothing));
        assert!(closes.put(closing(4)), "nobody gathers any more");
        assert_eq!(closes.pause(start + BURST_GAP), None);
    }

    #[test]
    fn what_fills_a_message_waits_no_longer_and_the_rest_goes_with_the_next() {
        let closes = Closes::default();
        let now = Instant::now();
        closes.put(closing(0));
        closes.next(now);
        for inode in 0..=CLOSES_MAX as u64 {
            closes.put(closing(inode));
        }
        assert_eq!(closes.pause(now), None);
        assert_eq!(inodes(closes.next(now)).len(), CLOSES_MAX);
        assert_eq!(closes.pause(now), Some(GATHER));
        assert_eq!(inodes(closes.next(now)), [CLOSES_MAX as u64]);
    }

    #[test]
    fn there_are_so_many_messages_at_a_time_and_all_is_told_when_they_are_answered() {
        let closes = Closes::default();
        let now = Instant::now();
        assert!(closes.is_idle());
        for inode in 0..MESSAGES_MAX as u64 {
            closes.put(closing(inode));
            assert_eq!(inodes(closes.next(now)), [inode]);
        }
        closes.put(closing(100));
        assert!(matches!(closes.next(now), Next::Wait));
        closes.handle_answer();
        assert_eq!(inodes(closes.next(now)), [100]);
        for _ in 0..MESSAGES_MAX {
            assert!(!closes.is_idle());
            closes.handle_answer();
        }
        assert!(closes.is_idle());
    }

    #[test]
    fn an_old_server_hears_of_one_at_a_time() {
        let closes = Closes::default();
        let now = Instant::now();
        closes.handle_old_server();
        closes.put(closing(1));
        closes.put(closing(2));
        assert_eq!(inodes(closes.next(now)), [1]);
        assert_eq!(closes.pause(now), None);
        assert_eq!(inodes(closes.next(now)), [2]);
    }

    #[test]
    fn what_was_not_written_is_told_apart_unless_the_server_knows_no_difference() {
        let closes = Closes::default();
        let ended = || [(1, true), (2, false), (3, true)].map(written).into_iter().collect();
        let inodes = |ended: &[Closing]| ended.iter().map(|one| one.file.inode.0).collect();
        let mut some: Vec<_> = ended();
        let unwritten: Vec<u64> = inodes(&closes.take_unwritten(&mut some));
        assert_eq!((unwritten, inodes(&some)), (vec![2], vec![1, 3]));
        closes.lock().ignores_unwritten = true;
        assert!(closes.take_unwritten(&mut ended()).is_empty());
        closes.handle_restart();
        assert_eq!(closes.take_unwritten(&mut ended()).len(), 1);
    }

    #[test]
    fn opens_of_a_session_that_has_ended_are_not_closed_in_the_next() {
        let mut ended = vec![closing(1), closing(2)];
        ended[0].session = SessionId(2);
        assert_eq!(of_session(&ended, SESSION), [InodeId(2)]);
    }
}
