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
    metadata::{Close, CloseFiles, CloseUnwritten, CreateUnnamed, InodeReply, Open, OpenMode},
    session::{Caller, Operation},
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use crate::{
    cluster::{Unmade, Unsettled},
    fs::FileSystem,
};

impl FileSystem {
    /// Has an open that was given up taken back when the server can be reached; tells why it was.
    /// `ask` is [`opened_before`] or [`written_before`].
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
            match this.find_out(unsettled, mode, ask).await {
                Ok(opened) => {
                    this.close_unhandled(session, opened.attributes.inode, mode).await;
                }
                Err(failure) => tracing::debug!(%failure, "an open that was given up counts not"),
            }
        });
        failure
    }

    /// What an open that was given up has opened. If it has not, it does not any more.
    async fn find_out<R>(
        &self,
        mut unsettled: Unsettled,
        mode: OpenMode,
        ask: impl Fn(Operation) -> R,
    ) -> Result<InodeReply, Failure>
    where
        R: Request<Reply = InodeReply> + Sync,
    {
        let answer = self.cluster.settle_change(&mut unsettled, &ask).await;
        if answer.is_ok() || mode == OpenMode::Read {
            return answer;
        }
        // What is executed under its number instead; or it has been meanwhile, and is shown now.
        let nothing = |operation| CloseFiles { operation, inodes: Vec::new() };
        self.cluster.settle_change(&mut unsettled, nothing).await?;
        self.cluster.settle_change(&mut unsettled, ask).await
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

/// Opens the file for reading, if the open that was given up has not.
pub(super) fn opened_before(
    caller: &Caller,
    inode: InodeId,
) -> impl Fn(Operation) -> Open + Send + Sync + 'static {
    let caller = caller.clone();
    move |operation| Open {
        caller: caller.clone(),
        operation,
        inode,
        mode: OpenMode::Read,
        truncate: false,
        reopen: true,
    }
}

/// Shows what was opened for writing, whether it was made for that or not; opens and makes nothing.
/// It is answered at once, where another open would wait for what the given up one waits for: a
/// target that is away, or a session that has to end.
pub(super) fn written_before(
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

/// A directory that never is: what was not made when its program gave up must not appear later,
/// where another one may hold the name for free.
const NOWHERE: InodeId = InodeId(0);
