//! Files that this mount makes by itself, and how the server hears of them.
//!
//! ```text
//!   open ─▶ the file is here ─▶ write ─▶ close: bytes to the targets ─▶ publish: name and size
//!                                └─ whatever else concerns it, or 50 ms ─▶ publish
//! ```
//!
//! Files that are published while a message is on its way go together with the next one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use millrace_protocol::{
    delegation::{NewFile, PUBLISHED_BYTES_MAX, PUBLISHED_MAX},
    lease::{MadeName, Recall},
    metadata::{Attributes, Coverage, FileKind, InodeReply, OpenMode},
    session::{Caller, Operation},
};
use millrace_types::{ChangeCount, ErrorKind, Failure, FileName, InodeId, LogIndex, Timestamp};
use tokio::sync::oneshot;

use crate::{
    cache::names::Lease,
    cluster::Logged,
    fs::{
        FileSystem,
        delegations::{Given, Unpublished},
        file::File,
        handle::Known,
        inline::{Bytes, inline_bytes},
        kernel_names::{Keep, Shown},
        names::NewMode,
        open::{Opened, View},
    },
};

/// Files that wait for the next message.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A message is on its way.
    is_sending: bool,
}

#[derive(Debug)]
struct Waiting {
    file: NewFile,
    answer: oneshot::Sender<Result<(MadeName, Logged), Failure>>,
}

impl Publisher {
    /// Takes one more; tells whether its caller sends it, with all that come meanwhile.
    fn put(&self, waiting: Waiting) -> bool {
        let mut queue = self.lock();
        queue.waiting.push(waiting);
        !std::mem::replace(&mut queue.is_sending, true)
    }

    /// What goes with the next message: files of one session. Nothing ends the sending.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        let session = queue.waiting.first().map(|first| first.file.operation.session);
        let is_next = |waiting: &&Waiting| Some(waiting.file.operation.session) == session;
        let mut room = PUBLISHED_BYTES_MAX;
        let fits = |waiting: &&Waiting| {
            // One file fits however large it is, because it is the first.
            let had_room = room > 0;
            room = room.saturating_sub(waiting.file.inline.as_ref().map_or(0, Vec::len));
            had_room
        };
        let next = queue.waiting.iter().take(PUBLISHED_MAX).take_while(is_next);
        let count = next.take_while(fits).count();
        queue.is_sending = count > 0;
        queue.waiting.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each step leaves the queue whole, so that a panic elsewhere cannot have torn it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that stays open is published so long after it was made, so that others see it.
const PUBLISH_AFTER: Duration = Duration::from_millis(50);

/// Files that are published at the same time, beyond what one message holds.
const FILES_AT_ONCE: usize = 256;

impl FileSystem {
    /// Makes a file that has no name here, and that nobody else can make, without asking anybody;
    /// nothing where the server must be asked.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] at the limit of handles.
    pub(crate) fn create_here(
        &self,
        caller: &Caller,
        (parent, name): (InodeId, &FileName),
        new: NewMode,
        flags: i32,
    ) -> Option<Result<(Shown, Opened), Failure>> {
        let mode = new.mode & !new.umask;
        // Of the close of an open for reading nobody hears; an append needs the right to, of which
        // the server must know; and which other bits stay depends on the caller's groups.
        let only_reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let is_plain = !only_reads && flags & libc::O_APPEND == 0 && mode & !0o1777 == 0;
        if !is_plain || !self.may_answer(caller) {
            return None;
        }
        let making = self.delegations.making();
        if self.names.find(parent, name) != Some(None) {
            return None;
        }
        let given = self.take_given(caller, parent)?;
        let (told, made_at) = (given.told, self.cluster.now());
        let inline_bytes_max = given.inline_bytes_max;
        let reply = as_shown(given, caller, mode, made_at);
        let inode = reply.attributes.inode;
        let unpublished = Unpublished {
            parent,
            name: name.clone(),
            mode,
            caller: caller.clone(),
            made_at,
            since: Instant::now(),
            session: told.session,
            was_sent: false,
            inline_bytes_max,
            was_sent_inline: false,
        };
        let names = [(parent, name)];
        let changing = self.changing(&names, None);
        let (viewed, since) = (self.names.note(), changing.note());
        let lease = self.names.changed(inode, Some(parent), since);
        let view = View { reply, viewed, whole: None, lease };
        let known = Known::Server(told);
        let begun = self.begin_handle(caller.clone(), view, OpenMode::Write, flags, known);
        let (opened, attributes) = match begun {
            Ok(begun) => begun,
            Err(failure) => return Some(Err(failure)),
        };
        let handle = self.handles.find(opened.handle).ok()?;
        // In this order: whoever publishes it takes it out again.
        if self.delegations.insert(parent, Arc::clone(&handle.file)) {
            self.spawn(|this| async move { this.publish_old().await });
        }
        handle.file.state().unpublished = Some(unpublished);
        drop(making);
        changing.end_known((parent, name.clone()), Some(inode), None);
        self.metrics.creates_delegated.inc();
        let attributes_for = self.keep_new(inode, lease.as_ref());
        let keep = Keep { attributes: attributes_for, ..Keep::default() };
        Some(Ok((Shown { attributes, keep }, opened)))
    }

    /// Returns when the server knows of an inode, or of everything in a directory.
    ///
    /// # Errors
    /// What it answers about the inode itself; [`ErrorKind::Unavailable`] after the mount's
    /// patience. What it refuses in a directory is reported to whoever closes that.
    pub(crate) async fn settle(&self, inode: InodeId) -> Result<(), Failure> {
        if self.delegations.is_settled() {
            return Ok(());
        }
        if let Some(file) = self.files.find(inode) {
            self.settle_file(&file).await?;
        }
        self.settle_all(self.delegations.unpublished(Some(inode))).await
    }

    /// Tries to tell the server of these files, of each whatever becomes of the others.
    ///
    /// # Errors
    /// One that it does not know of, nor has refused.
    pub(super) async fn settle_all(&self, files: Vec<Arc<File>>) -> Result<(), Failure> {
        let settle = async |file: Arc<File>| {
            let settled = self.settle_file(&file).await;
            if file.state().unpublished.is_some() { settled } else { Ok(()) }
        };
        let all: Vec<_> =
            stream::iter(files).map(settle).buffer_unordered(FILES_AT_ONCE).collect().await;
        all.into_iter().collect()
    }

    /// Returns when the server knows of a file.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub(super) async fn settle_file(&self, file: &File) -> Result<(), Failure> {
        if file.state().unpublished.is_none() {
            return Ok(());
        }
        let _one_at_a_time = file.commit.lock().await;
        self.publish(file, Bytes::AtTargets).await
    }

    /// Whether the server does not know of a file that is open here.
    pub(crate) fn is_unpublished(&self, inode: InodeId) -> bool {
        !self.delegations.is_settled()
            && self.files.find(inode).is_some_and(|file| file.state().unpublished.is_some())
    }

    /// Tells the server of a file, with what the targets have acknowledged of it, or with all that
    /// was written. To be called with its `commit` held; does nothing where the server knows of it.
    ///
    /// # Errors
    /// As [`Self::settle`]. Where the server refuses the file, it is lost: whatever is done with it
    /// from then on fails.
    pub(super) async fn publish(&self, file: &File, bytes: Bytes) -> Result<(), Failure> {
        let Some((unpublished, request, acknowledgements)) = as_new_file(file, bytes) else {
            return Ok(());
        };
        let (parent, name) = (unpublished.parent, unpublished.name);
        let note = self.names.note();
        let (answer, answered) = oneshot::channel();
        if self.publisher.put(Waiting { file: request, answer })
            && let Some(this) = self.this.upgrade()
        {
            // By itself, since whoever waits for a file may be dropped; here, since another thread
            // would have to be woken.
            tokio::spawn(async move { this.send_all().await });
        }
        let made = answered.await.unwrap_or_else(|_| Err(ErrorKind::Internal.into()));
        match made {
            Ok((made, logged)) => {
                let made = self.with_reads(made);
                let concerned = [Recall::Attributes(parent)];
                self.record_unsynced(logged, &concerned, Some(file.inode));
                let directory = made.directory;
                let lease = made.lease.map(|key| Lease::of(key, note));
                let mut state = file.state();
                state.unpublished = None;
                if let Some(inline) = &made.reply.inline {
                    state.handle_inline(inline);
                }
                state.record_commit(acknowledgements);
                state.durable.record_untold();
                let accepted = state.accept_under(made.reply, lease);
                drop(state);
                let count = directory.as_ref().map(|directory| directory.change_count);
                let is_last = self.delegations.handle_published(parent, file.inode, count);
                if let Some(directory) = directory.filter(|_| is_last)
                    && let Some(lease) = self.names.changed(parent, Some(parent), note)
                {
                    self.names.keep_attributes(directory, lease);
                }
                accepted
            }
            Err(failure) if !is_refusal(failure.kind) => Err(failure),
            Err(failure) => {
                if failure.kind == ErrorKind::KeyRetired {
                    self.delegations.end(None);
                }
                self.give_up(file, failure.clone());
                self.names.forget(&Recall::Name(parent, name.clone()));
                self.kernel.take_back(&[Recall::Name(parent, name)]).await;
                Err(failure)
            }
        }
    }

    /// A file that is not published never will be.
    fn give_up(&self, file: &File, failure: Failure) {
        let mut state = file.state();
        let Some(unpublished) = state.unpublished.take() else { return };
        tracing::error!(inode = %file.inode, %failure, "a file that was made here is lost");
        state.record_failure(failure);
        let bytes = state.buffer.cut(0);
        state.release_memory(bytes);
        state.forget_writes();
        drop(state);
        self.drop_unstored(file);
        self.delegations.remove(unpublished.parent, file.inode);
    }

    /// Gives up what was made in sessions that have ended.
    pub(super) fn lose_unpublished(&self) {
        let session = self.cluster.session();
        for file in self.delegations.unpublished(None) {
            let is_lost = file.state().unpublished.as_ref().is_some_and(|of| of.session != session);
            if is_lost {
                let words = "the session ended before the server heard of the file";
                self.give_up(&file, Failure::new(ErrorKind::SessionGone, words));
            }
        }
    }

    /// Ends the last open of a file: what is not published by then is given up.
    pub(super) async fn settle_last(&self, file: &Arc<File>) {
        let settled = async {
            self.publish_inline(file).await?;
            self.settle_file(file).await
        };
        if let Err(failure) = settled.await {
            self.give_up(file, failure.clone());
            // The server may make it yet.
            self.handle_unmade(&failure).await;
        } else if file.state().is_dirty() {
            // A publication that failed before has kept the bytes here.
            self.flush_file(file).await;
            if let Err(failure) = self.commit(file, false).await {
                tracing::warn!(inode = %file.inode, %failure, "cannot commit a size");
            }
        }
    }

    /// Sends messages until nobody waits.
    async fn send_all(&self) {
        loop {
            let next = self.publisher.next();
            if next.is_empty() {
                return;
            }
            self.send(next).await;
        }
    }

    async fn send(&self, next: Vec<Waiting>) {
        let Some(first) = next.first() else { return };
        let session = first.file.operation.session;
        let (files, answers): (Vec<_>, Vec<_>) =
            next.into_iter().map(|waiting| (waiting.file, waiting.answer)).unzip();
        let made = self.cluster.publish(session, &files).await;
        for (answer, made) in answers.into_iter().zip(made) {
            // Whoever wanted to know may have gone.
            drop(answer.send(made));
        }
    }

    /// Publishes what stays open, until there is nothing to publish.
    async fn publish_old(&self) {
        loop {
            tokio::time::sleep(PUBLISH_AFTER).await;
            let mut old = self.delegations.unpublished(None);
            old.retain(|file| {
                let state = file.state();
                let since = state.unpublished.as_ref().map(|unpublished| unpublished.since);
                since.is_some_and(|since| since.elapsed() >= PUBLISH_AFTER)
            });
            stream::iter(old)
                .for_each_concurrent(FILES_AT_ONCE, async |file| {
                    if let Err(failure) = self.settle_file(&file).await {
                        tracing::warn!(inode = %file.inode, %failure, "cannot publish a file");
                    }
                })
                .await;
            if self.delegations.is_settled() && self.delegations.end_watch() {
                return;
            }
        }
    }
}

/// Whether the server will never make a file that it has answered so. What may be mended there, or
/// was made although the answer failed, is tried again.
fn is_refusal(kind: ErrorKind) -> bool {
    let may_be_mended = matches!(kind, ErrorKind::Disk | ErrorKind::Internal | ErrorKind::Protocol);
    !kind.is_transient() && !may_be_mended
}

/// What the server would show of a new file.
fn as_shown(given: Given, caller: &Caller, mode: u16, made_at: Timestamp) -> InodeReply {
    let Given { directory, content, capability, .. } = given;
    let attributes = Attributes {
        inode: content.inode,
        kind: FileKind::Regular,
        mode,
        uid: caller.uid,
        gid: if directory.mode & SETGID == 0 { caller.gid } else { directory.gid },
        links: 1,
        device: 0,
        size: 0,
        accessed: made_at,
        modified: made_at,
        changed: made_at,
        born: made_at,
        change_count: ChangeCount(1),
    };
    InodeReply {
        attributes,
        content: Some(content),
        capability: Some(capability),
        symlink: None,
        inline: None,
        coverage: Coverage::None,
        index: LogIndex(0),
    }
}

/// What the server must hear of a file, if it does not know of it; and how many acknowledgements of
/// targets it knows of when it has answered.
fn as_new_file(file: &File, bytes: Bytes) -> Option<(Unpublished, NewFile, u64)> {
    let mut state = file.state();
    let access = state.access.clone()?;
    let inline = (bytes == Bytes::InInode).then(|| inline_bytes(&state)).flatten();
    let unpublished = state.unpublished.as_mut()?;
    let was_sent = std::mem::replace(&mut unpublished.was_sent, true);
    unpublished.was_sent_inline |= inline.is_some();
    let unpublished = unpublished.clone();
    if !was_sent {
        // Until now nobody else can have set a mode.
        state.privileges.take_due();
    }
    // Numbered when it is sent.
    let operation = Operation { session: unpublished.session, sequence: 0, lowest_pending: 0 };
    // While something is on its way, what the targets have may have gaps: a commit tells the rest.
    let is_here = state.buffer.held_bytes() > 0 || state.buffer.has_flights();
    let is_whole = !is_here && !state.has_unstored_hole();
    let (end, told) = match &inline {
        Some(bytes) => (bytes.len() as u64, state.committed),
        None if is_whole => (state.stored.end, state.stored.acknowledgements),
        None => (0, state.committed),
    };
    let is_told = inline.is_some() || (is_whole && told > 0);
    let written_at = state.written_at.filter(|_| is_told);
    let request = NewFile {
        operation,
        caller: unpublished.caller.clone(),
        parent: unpublished.parent,
        name: unpublished.name.clone(),
        mode: unpublished.mode,
        made_at: unpublished.made_at,
        content: access.capability.clone(),
        end,
        written_at,
        inline,
    };
    // What was sent before may have been less: a commit tells the rest again.
    let known = if was_sent { state.committed } else { told };
    Some((unpublished, request, known))
}

/// Of a directory: what is made in it gets its group.
const SETGID: u16 = 0o2000;

#[cfg(test)]
mod tests {
    use millrace_protocol::capability::Signed;
    use millrace_types::{KeyId, SessionId, TargetId};

    use super::*;
    use crate::{cache::budget::Budget, fs::file::tests::file};

    fn waiting(session: u64, end: u64) -> Waiting {
        let operation = Operation { session: SessionId(session), sequence: 0, lowest_pending: 0 };
        let file = NewFile {
            operation,
            caller: Caller::ROOT,
            parent: InodeId(1),
            name: FileName::parse(b"name").expect("a name"),
            mode: 0o644,
            made_at: Timestamp(0),
            content: Signed { key: KeyId(1), body: Vec::new(), mac: [0; 32] },
            end,
            written_at: None,
            inline: None,
        };
        Waiting { file, answer: oneshot::channel().0 }
    }

    fn next(publisher: &Publisher) -> Vec<u64> {
        publisher.next().iter().map(|waiting| waiting.file.end).collect()
    }

    fn unpublished() -> Unpublished {
        Unpublished {
            parent: InodeId(1),
            name: FileName::parse(b"name").expect("a name"),
            mode: 0o644,
            caller: Caller::ROOT,
            made_at: Timestamp(0),
            since: Instant::now(),
            session: SessionId(1),
            was_sent: false,
            inline_bytes_max: 16,
            was_sent_inline: false,
        }
    }

    #[test]
    fn what_is_sent_again_leaves_the_rest_to_a_commit() {
        let file = file(20);
        file.state().unpublished = Some(unpublished());
        let write = |range| {
            let access = file.access().expect("it was opened");
            file.state().record_stored(&range, &access, TargetId([1; 8]), 0);
        };
        write(0..10);
        let (_, request, known) =
            as_new_file(&file, Bytes::AtTargets).expect("it is not published");
        assert_eq!((request.end, known), (10, 1));
        // Of whose answer nobody heard: the server may have made the file with ten bytes.
        write(10..30);
        let (_, request, known) =
            as_new_file(&file, Bytes::AtTargets).expect("it is not published");
        assert_eq!((request.end, known), (30, 0));
        let mut state = file.state();
        state.unpublished = None;
        state.record_commit(known);
        assert!(state.needs_commit());
    }

    #[test]
    fn small_files_are_sent_with_their_bytes_and_stay_here_as_they_were_changed_meanwhile() {
        let now = Timestamp(5);
        let whole = |file: &File, bytes| as_new_file(file, bytes).expect("not published").1;
        let written = |bytes: &[u8]| {
            let file = file(0);
            let mut state = file.state();
            state.unpublished = Some(unpublished());
            state.buffer.insert(0, bytes);
            state.permit = Budget::new(1000).try_take(bytes.len() as u64);
            state.record_write(&(0..bytes.len() as u64), now);
            drop(state);
            file
        };
        let file = written(b"0123456789");
        let request = whole(&file, Bytes::AtTargets);
        assert_eq!((request.inline, request.end, request.written_at), (None, 0, None));
        let request = whole(&file, Bytes::InInode);
        let sent = request.inline.clone().expect("it is small");
        assert_eq!((&sent[..], request.end), (&b"0123456789"[..], 10));
        assert_eq!(request.written_at, Some(now));
        assert!(file.state().unpublished.as_ref().is_some_and(|of| of.was_sent_inline));

        // Written on while the message was on its way: all of it stays to be stored.
        file.state().buffer.insert(3, b"x");
        file.state().handle_inline(&sent);
        assert_eq!(file.state().buffer.read_covered(&(0..10)).as_deref(), Some(&b"012x456789"[..]));
        let unchanged = written(b"0123456789");
        unchanged.state().handle_inline(&sent);
        assert_eq!(unchanged.state().buffer.held_bytes(), 0);

        // Too large, with a hole, or partly at a target.
        assert_eq!(whole(&written(&[1; 17]), Bytes::InInode).inline, None);
        let gap = written(b"0");
        gap.state().buffer.insert(5, b"5");
        gap.state().record_write(&(5..6), now);
        assert_eq!(whole(&gap, Bytes::InInode).inline, None);
        let stored = written(b"0123456789");
        let access = stored.access().expect("it was opened");
        stored.state().record_stored(&(0..3), &access, TargetId([1; 8]), 0);
        assert_eq!(whole(&stored, Bytes::InInode).inline, None);
    }

    #[test]
    fn a_message_has_so_many_bytes_and_always_one_file() {
        let publisher = Publisher::default();
        let with = |end, len| {
            let mut waiting = waiting(1, end);
            waiting.file.inline = Some(vec![0; len]);
            waiting
        };
        publisher.put(with(1, PUBLISHED_BYTES_MAX * 2));
        publisher.put(with(2, PUBLISHED_BYTES_MAX / 2));
        publisher.put(with(3, PUBLISHED_BYTES_MAX / 4));
        publisher.put(with(4, PUBLISHED_BYTES_MAX / 2));
        publisher.put(with(5, 1));
        assert_eq!(next(&publisher), [1]);
        assert_eq!(next(&publisher), [2, 3, 4]);
        assert_eq!(next(&publisher), [5]);
    }

    #[test]
    fn who_comes_while_a_message_is_on_its_way_goes_with_the_next() {
        let publisher = Publisher::default();
        assert!(publisher.put(waiting(1, 1)), "nobody sends");
        assert_eq!(next(&publisher), [1]);
        assert!(!publisher.put(waiting(1, 2)));
        assert!(!publisher.put(waiting(1, 3)));
        assert_eq!(next(&publisher), [2, 3]);
        assert!(next(&publisher).is_empty());
        assert!(publisher.put(waiting(1, 4)), "nobody sends any more");
    }

    #[test]
    fn a_message_is_of_one_session_and_holds_so_many() {
        let publisher = Publisher::default();
        let most = u64::try_from(PUBLISHED_MAX).expect("a few");
        for end in 0..=most {
            publisher.put(waiting(1, end));
        }
        publisher.put(waiting(2, 100));
        assert_eq!(next(&publisher).len(), PUBLISHED_MAX);
        assert_eq!(next(&publisher), [most]);
        assert_eq!(next(&publisher), [100]);
        assert!(next(&publisher).is_empty());
    }
}
