//! Telling the metadata server again, or at last, of what is open.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::{StreamExt as _, stream};
use millrace_protocol::{
    metadata::{Open, OpenMode},
    session::Operation,
};
use millrace_types::{ErrorKind, Failure, SessionId};
use tokio::sync::oneshot;

use crate::fs::{
    FileSystem,
    all_told::OnItsWay,
    file::File,
    handle::{FileHandle, Known, Told},
};

/// A request that tells the server of an open, however often and in whatever session it is sent.
#[derive(Debug)]
pub(super) struct Telling {
    session: AtomicU64,
    incarnation: u64,
    /// Of an open that the server keeps in memory only.
    _on_its_way: Option<OnItsWay>,
}

impl Telling {
    /// It is sent with this operation.
    pub(super) fn by(&self, operation: Operation) -> Operation {
        self.session.store(operation.session.0, Ordering::Relaxed);
        operation
    }

    /// What was told by the operation that was sent last.
    pub(super) fn told(&self) -> Told {
        let session = SessionId(self.session.load(Ordering::Relaxed));
        Told { session, incarnation: self.incarnation }
    }
}

impl FileSystem {
    /// A request is about to be sent that tells the server of an open. To be held until there is a
    /// handle.
    pub(super) fn telling(&self, mode: OpenMode) -> Telling {
        let (now, on_its_way) = match mode {
            OpenMode::Read => {
                let (now, on_its_way) = self.untold.begin(|| self.told_now());
                (now, Some(on_its_way))
            }
            OpenMode::Write => (self.told_now(), None),
        };
        let Told { session, incarnation } = now;
        Telling { session: AtomicU64::new(session.0), incarnation, _on_its_way: on_its_way }
    }

    /// What an open would be that was told of at this moment.
    pub(super) fn told_now(&self) -> Told {
        let incarnation = *self.cluster.incarnation().borrow();
        Told { session: self.cluster.session(), incarnation }
    }

    /// Opens again, in a new session, what was open in one that ended. Goes on in the background.
    pub(crate) fn reopen_all(&self) {
        self.reopen_some(self.handles.all());
    }

    /// Tells a metadata server that was restarted what is open for reading here: it keeps that in
    /// memory only, and would otherwise free files without names after three leases. Goes on in
    /// the background.
    pub(crate) fn declare_reads(&self) {
        self.reopen_some(self.open_for_reading());
    }

    /// Returns when the server has been told of all that is open for reading now.
    pub(super) async fn tell_open_reads(&self) {
        let all = stream::iter(self.open_for_reading())
            .for_each_concurrent(REOPENS_AT_ONCE, async |one| self.tell_again(one).await);
        all.await;
    }

    fn open_for_reading(&self) -> Vec<(u64, Arc<FileHandle>)> {
        let mut handles = self.handles.all();
        handles.retain(|(_, handle)| handle.mode == OpenMode::Read);
        handles
    }

    fn reopen_some(&self, handles: Vec<(u64, Arc<FileHandle>)>) {
        if handles.is_empty() {
            return;
        }
        self.spawn(|this| async move {
            let all = stream::iter(handles).for_each_concurrent(REOPENS_AT_ONCE, async |one| {
                // One that takes long goes on, and does not keep the others waiting.
                let told = this.cluster.wait_patiently(this.tell_again(one)).await;
                if let Err(failure) = told {
                    tracing::warn!(%failure, "the server does not know yet of all that is open");
                }
            });
            all.await;
        });
    }

    /// Tells the server of those handles of which it does not know. When this returns it knows of
    /// them all, except of files that are gone.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when it does not answer for as long as the mount has patience:
    /// then it may not know of some. Those that were begun with go on.
    pub(super) async fn reopen(&self, handles: Vec<(u64, Arc<FileHandle>)>) -> Result<(), Failure> {
        let all = stream::iter(handles)
            .for_each_concurrent(REOPENS_AT_ONCE, async |one| self.tell_again(one).await);
        self.cluster.wait_patiently(all).await
    }

    /// A write or a change of a file was refused. What the server gives to a session that took the
    /// place of one that ended is a right to read only, until it has heard that the file is open
    /// for writing here: when this returns it has, and may be asked anew. Tells whether it had not
    /// before.
    ///
    /// # Errors
    /// As [`Self::reopen`].
    pub(super) async fn tell_writers(&self, file: &File) -> Result<bool, Failure> {
        let mut writers = self.handles.all();
        writers.retain(|(_, handle)| {
            handle.mode == OpenMode::Write && std::ptr::eq(Arc::as_ptr(&handle.file), file)
        });
        let now = self.told_now();
        let is_told = |handle: &FileHandle| {
            let known = handle.known.try_lock();
            known.is_ok_and(|known| !known.is_due(OpenMode::Write, now))
        };
        let had_untold = !writers.iter().all(|(_, handle)| is_told(handle));
        self.reopen(writers).await?;
        Ok(had_untold)
    }

    /// Returns when the server has been told of a handle. That goes on by itself, whoever waits for
    /// it: if it were begun anew, the server could count the open twice.
    async fn tell_again(&self, (number, handle): (u64, Arc<FileHandle>)) {
        // Another one may be at it for long: whoever gives up meanwhile leaves nothing behind.
        let known = *handle.known.lock().await;
        if !known.is_due(handle.mode, self.told_now()) {
            return;
        }
        let (told, heard) = oneshot::channel::<()>();
        self.spawn(|this| async move {
            this.reopen_one(number, &handle).await;
            drop(told);
        });
        drop(heard.await);
    }

    async fn reopen_one(&self, number: u64, handle: &FileHandle) {
        let file = &handle.file;
        let mut known = handle.known.lock().await;
        loop {
            let now = self.told_now();
            if !known.is_due(handle.mode, now) {
                return;
            }
            let note = self.names.note();
            let request = |operation| Open {
                caller: handle.caller.clone(),
                operation,
                inode: file.inode,
                mode: handle.mode,
                truncate: false,
                reopen: true,
            };
            let answer = tokio::select! {
                biased;
                // It would count in the next life, and is told there by who waits for that.
                _ = self.other_life(now.incarnation), if handle.mode == OpenMode::Read => continue,
                answer = self.cluster.change_in(now.session, request) => answer,
            };
            if let Err(failure) = &answer
                && failure.kind == ErrorKind::SessionGone
                && self.cluster.session() != now.session
            {
                // What was opened in that one is closed.
                continue;
            }
            let accept = |reply| file.state().accept_reopened(reply, note, now.session);
            let reopened = answer.and_then(accept);
            if let Err(failure) = reopened {
                tracing::warn!(inode = %file.inode, %failure, "cannot open a file again");
            }
            *known = Known::Server(now);
            self.quiet.remove(file.inode, number);
            return;
        }
    }
}

/// Files that are opened again at the same time.
const REOPENS_AT_ONCE: usize = 16;
