//! Telling the metadata server again, or at last, of what is open.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::{TryStreamExt as _, stream};
use millrace_protocol::{
    metadata::{Open, OpenMode},
    session::Operation,
};
use millrace_types::{Failure, SessionId};

use crate::fs::{
    FileSystem,
    handle::{FileHandle, Known, Told},
};

/// A request that tells the server of an open, however often and in whatever session it is sent.
#[derive(Debug)]
pub(super) struct Telling {
    session: AtomicU64,
    incarnation: u64,
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
    /// A request is about to be sent that tells the server of an open.
    pub(super) fn telling(&self) -> Telling {
        let Told { session, incarnation } = self.told_now();
        Telling { session: AtomicU64::new(session.0), incarnation }
    }

    /// What an open would be that was told of at this moment.
    pub(super) fn told_now(&self) -> Told {
        let incarnation = *self.cluster.incarnation().borrow();
        Told { session: self.cluster.session(), incarnation }
    }

    /// Opens again, in a new session, what was open in one that ended.
    pub(crate) async fn reopen_all(&self) {
        self.reopen_some(self.handles.all()).await;
    }

    /// Tells a metadata server that was restarted what is open for reading here: it keeps that in
    /// memory only, and would otherwise free files without names after a lease.
    pub(crate) async fn declare_reads(&self) {
        let mut handles = self.handles.all();
        handles.retain(|(_, handle)| handle.mode == OpenMode::Read);
        self.reopen_some(handles).await;
    }

    async fn reopen_some(&self, handles: Vec<(u64, Arc<FileHandle>)>) {
        if let Err(failure) = self.reopen(handles).await {
            tracing::warn!(%failure, "the server does not know of all that is open");
        }
    }

    /// Tells the server of those handles of which it does not know. When this returns it knows of
    /// them all, except of files that are gone.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](millrace_types::ErrorKind::Unavailable) when it does not answer:
    /// then it may not know of some.
    pub(super) async fn reopen(&self, handles: Vec<(u64, Arc<FileHandle>)>) -> Result<(), Failure> {
        let all = stream::iter(handles.into_iter().map(Ok));
        all.try_for_each_concurrent(REOPENS_AT_ONCE, async |(number, handle)| {
            self.reopen_one(number, &handle).await
        })
        .await
    }

    async fn reopen_one(&self, number: u64, handle: &FileHandle) -> Result<(), Failure> {
        let file = &handle.file;
        let mut known = handle.known.lock().await;
        if !known.is_due(handle.mode, self.told_now()) {
            return Ok(());
        }
        let (note, telling) = (self.names.note(), self.telling());
        let request = |operation| Open {
            caller: handle.caller.clone(),
            operation: telling.by(operation),
            inode: file.inode,
            mode: handle.mode,
            truncate: false,
            reopen: true,
        };
        let answer = self.cluster.change(request).await;
        let reopened = answer.and_then(|reply| file.state().accept_reopened(reply, note));
        if let Err(failure) = reopened {
            if failure.kind.is_transient() {
                return Err(failure);
            }
            tracing::warn!(inode = %file.inode, %failure, "cannot open a file again");
        }
        *known = Known::Server(telling.told());
        self.quiet.remove(file.inode, number);
        Ok(())
    }
}

/// Files that are opened again at the same time.
const REOPENS_AT_ONCE: usize = 16;
