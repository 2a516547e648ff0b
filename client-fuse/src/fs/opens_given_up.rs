//! Opens that have no handle here and may be counted by the metadata server.
//!
//! A program whose open is not answered for as long as the mount has patience gets an error. The
//! server may have executed the open all the same and have kept back its answer, or may execute it
//! yet. Nobody would ever close it: the file would count as being written for as long as the
//! session lasts, so that no other host keeps its attributes, nothing exports it and its bytes
//! never make room. So the mount asks on, under the number of the open, for something that no
//! program would notice; by the answer it knows what there is to close.

use millrace_protocol::{
    Request,
    metadata::{Close, CloseUnwritten, Create, CreateUnnamed, InodeReply, NewNode, Open, OpenMode},
    session::{Caller, Operation},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use crate::{cluster::Unmade, fs::FileSystem};

impl FileSystem {
    /// Has an open that was given up taken back when the server can be reached; tells why it was.
    /// `ask` is one of [`opened_before`], [`made_before`] and [`unnamed_before`].
    pub(super) fn take_back<R>(
        &self,
        unmade: Unmade,
        mode: OpenMode,
        ask: impl Fn(Operation) -> R + Send + Sync + 'static,
    ) -> Failure
    where
        R: Request<Reply = InodeReply> + Send + Sync + 'static,
    {
        let Unmade { failure, unsettled } = unmade;
        let Some(unsettled) = unsettled else { return failure };
        self.spawn(|this| async move {
            let session = unsettled.session();
            match this.cluster.settle_change(unsettled, ask).await {
                Ok(opened) => {
                    this.close_unhandled(session, opened.attributes.inode, mode).await;
                }
                // It was not executed, and will not be.
                Err(failure) => tracing::debug!(%failure, "an open that was given up counts not"),
            }
        });
        failure
    }

    /// The server hears that an open is over of which nothing is counted here.
    pub(super) async fn close_unhandled(&self, session: SessionId, inode: InodeId, mode: OpenMode) {
        if mode == OpenMode::Write {
            let request = |operation| CloseUnwritten { operation, inodes: vec![inode] };
            match self.change_in(session, request, Some(inode)).await {
                // It is from before it could hear that nothing was written.
                Err(failure) if failure.kind == ErrorKind::NotSupported => {}
                closed => return tell_unclosed(inode, closed.err()),
            }
        }
        let request = |operation| Close { operation, inode, mode };
        let closed = self.change_in(session, request, Some(inode)).await;
        tell_unclosed(inode, closed.err());
    }
}

fn tell_unclosed(inode: InodeId, failure: Option<Failure>) {
    // The server closes it when the session ends.
    if let Some(failure) = failure.filter(|failure| failure.kind != ErrorKind::SessionGone) {
        tracing::warn!(%inode, %failure, "cannot tell the server of the close of a refused open");
    }
}

/// Opens the file, if the open that was given up has not; cuts nothing that may be newer.
pub(super) fn opened_before(
    caller: &Caller,
    inode: InodeId,
    mode: OpenMode,
) -> impl Fn(Operation) -> Open + Send + Sync + 'static {
    let caller = caller.clone();
    move |operation| Open {
        caller: caller.clone(),
        operation,
        inode,
        mode,
        truncate: false,
        reopen: true,
    }
}

/// Shows what was made and opened by a name, and makes nothing.
pub(super) fn made_before(
    caller: &Caller,
    name: &FileName,
) -> impl Fn(Operation) -> Create + Send + Sync + 'static {
    let (caller, name) = (caller.clone(), name.clone());
    move |operation| Create {
        caller: caller.clone(),
        operation,
        parent: NOWHERE,
        name: name.clone(),
        node: NewNode::Regular,
        mode: 0,
        open: true,
        exclusive: true,
    }
}

/// Shows what was made without a name, and makes nothing.
pub(super) fn unnamed_before(
    caller: &Caller,
) -> impl Fn(Operation) -> CreateUnnamed + Send + Sync + 'static {
    let caller = caller.clone();
    move |operation| CreateUnnamed {
        caller: caller.clone(),
        operation,
        directory: NOWHERE,
        mode: 0,
        umask: 0,
        nameable: false,
    }
}

/// A directory that never is: a file that was not made when its program gave up must not appear
/// later, where another one may hold the name for free. The server takes the number for answered
/// with the next request, so that the open that was given up is refused as well.
const NOWHERE: InodeId = InodeId(0);
