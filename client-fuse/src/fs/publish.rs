//! Files that this mount makes by itself, and how the server hears of them.
//!
//! ```text
//!   open ─▶ the file is here ─▶ write ─▶ close: bytes to the targets ─▶ publish: name and size
//!                                └─ whatever else concerns it, or 50 ms ─▶ publish
//! ```
//!
//! Files that are published while a message is on its way go together with the next one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use millrace_protocol::{
    delegation::NewFile,
    lease::{MadeName, Recall},
    metadata::{Attributes, Coverage, FileKind, InodeReply, OpenMode},
    session::Caller,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, FileName, InodeId, LogIndex, Timestamp};
use tokio::sync::oneshot;

use crate::{
    cache::names::{Lease, stamps::Note},
    cluster::Logged,
    fs::{
        FileSystem,
        delegations::{Given, Unpublished},
        file::File,
        handle::Known,
        inline::Bytes,
        kernel_names::{Keep, Shown},
        names::NewMode,
        open::{Opened, View},
    },
};

pub(crate) mod close;
mod new_file;
mod publisher;
mod sender;

use new_file::as_new_file;
pub(super) use publisher::Publisher;
use publisher::{Published, Waiter, Waiting};
use sender::Sender;

/// A file that stays open is published so long after it was made, so that others see it.
const PUBLISH_AFTER: Duration = Duration::from_millis(50);

/// Files that are published at the same time, beyond what one message holds.
const FILES_AT_ONCE: usize = 256;

/// A file of which the server is told.
#[derive(Debug)]
struct Telling {
    /// Where it was made, and under which name.
    parent: InodeId,
    name: FileName,
    /// How many acknowledgements of targets the server knows of when it has answered.
    acknowledgements: u64,
    /// When it was told.
    note: Note,
}

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
        let Some((told, request)) = self.begin_telling(file, bytes) else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { file: request, waiter: Waiter::Task(answer) };
        if self.publisher.put(waiting)
            && let Some(this) = self.this.upgrade()
        {
            // By itself, since whoever waits for a file may be dropped; here, since another thread
            // would have to be woken.
            tokio::spawn(Sender::new(this).run());
        }
        let made = answered.await.unwrap_or_else(|_| Err(ErrorKind::Internal.into()));
        self.handle_published(file, told, made).await
    }

    /// What the server is to hear of a file that it does not know of, with what is told of it. To
    /// be called with its `commit` held, until the answer is dealt with.
    fn begin_telling(&self, file: &File, bytes: Bytes) -> Option<(Telling, NewFile)> {
        let (unpublished, request, acknowledgements) = as_new_file(file, bytes)?;
        let (parent, name) = (unpublished.parent, unpublished.name);
        Some((Telling { parent, name, acknowledgements, note: self.names.note() }, request))
    }

    /// The server has made a file, or has not.
    ///
    /// # Errors
    /// As [`Self::publish`].
    async fn handle_published(
        &self,
        file: &File,
        told: Telling,
        made: Published,
    ) -> Result<(), Failure> {
        let failure = match made {
            Ok(made) => return self.handle_made_here(file, told, made),
            Err(failure) => failure,
        };
        if !is_refusal(failure.kind) {
            return Err(failure);
        }
        if failure.kind == ErrorKind::KeyRetired {
            self.delegations.end(None);
        }
        self.give_up(file, failure.clone());
        let Telling { parent, name, .. } = told;
        self.names.forget(&Recall::Name(parent, name.clone()));
        self.kernel.take_back(&[Recall::Name(parent, name)]).await;
        Err(failure)
    }

    /// The server has made a file that was made here.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for an answer that cannot be.
    fn handle_made_here(
        &self,
        file: &File,
        told: Telling,
        (made, logged): (MadeName, Logged),
    ) -> Result<(), Failure> {
        let Telling { parent, acknowledgements, note, .. } = told;
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

    /// Publishes what stays open, until there is nothing to publish.
    async fn publish_old(&self) {
        loop {
            tokio::time::sleep(PUBLISH_AFTER / 2).await;
            let mut old = self.delegations.unpublished(None);
            old.retain(|file| {
                let state = file.state();
                let since = state.unpublished.as_ref().map(|unpublished| unpublished.since);
                // By the next look it would be too old.
                since.is_some_and(|since| since.elapsed() >= PUBLISH_AFTER / 2)
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

/// Of a directory: what is made in it gets its group.
const SETGID: u16 = 0o2000;
