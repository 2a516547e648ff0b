//! Listening for what other mounts change, and what this one keeps between requests.

use std::time::Duration;

use millrace_protocol::{
    Request,
    lease::{AwaitRecalls, EntriesPage, FindName, FoundName, ListEntries, ShowInode},
    metadata::{Attributes, Coverage, InodeReply},
    session::{Caller, Operation},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use crate::{cache::names::stamps::Note, cluster::Indexed, fs::FileSystem};

impl FileSystem {
    /// Listens for as long as it is polled. May be dropped at any time: what is kept counts only
    /// while the session's ticket does.
    pub(crate) async fn listen(&self) {
        loop {
            // In this order: what is kept after the second comes from this life of the server, or
            // the server refuses the first.
            let incarnation = *self.cluster.incarnation().borrow();
            let session = self.cluster.session();
            self.names.begin(session);
            let failure = self.hear(session, incarnation).await;
            tracing::debug!(%failure, "what was kept of names and attributes is dropped");
            self.names.forget_all();
            if failure.kind == ErrorKind::SessionGone
                && let Err(failure) = self.cluster.replace_session(session).await
            {
                tracing::debug!(%failure, "cannot open another session");
            }
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
    }

    /// Deals with recalls until listening fails.
    async fn hear(&self, session: SessionId, incarnation: u64) -> Failure {
        let mut request = AwaitRecalls { session, incarnation, acknowledged: 0 };
        loop {
            match self.cluster.await_recalls(&request).await {
                Ok(recalls) => {
                    for recall in &recalls.recalls {
                        self.names.forget(recall);
                    }
                    // Whatever is answered from now on was asked of the server after this.
                    request.acknowledged = recalls.through;
                }
                Err(failure) => return failure,
            }
        }
    }

    /// Whether what is kept may answer this caller now.
    pub(super) fn may_answer(&self, caller: &Caller) -> bool {
        self.cluster.is_ticket_valid() && self.names.is_usable(self.cluster.session(), caller.uid)
    }

    /// Finds a name at the server, and keeps what is covered.
    pub(super) async fn find_name(
        &self,
        caller: &Caller,
        parent: InodeId,
        name: &FileName,
    ) -> Result<Option<InodeReply>, Failure> {
        let note = self.names.note();
        let request =
            |session| FindName { caller: caller.clone(), session, parent, name: name.clone() };
        let FoundName { found, coverage, lease } = self.ask_as_session(request).await?;
        let inode = found.as_ref().map(|reply| reply.attributes.inode);
        let covered = match inode {
            Some(_) => coverage != Coverage::None,
            None => coverage == Coverage::Directory,
        };
        self.names.keep_name((parent, name.clone()), inode, covered.then_some(note));
        if let Some(reply) = &found {
            self.keep(&reply.attributes, lease, note);
        }
        Ok(found)
    }

    /// Fetches an inode from the server, and keeps what is covered.
    pub(super) async fn show_inode(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> Result<InodeReply, Failure> {
        let note = self.names.note();
        let request = |session| ShowInode { caller: caller.clone(), session, inode };
        let shown = self.ask_as_session(request).await?;
        self.keep(&shown.reply.attributes, shown.lease, note);
        Ok(shown.reply)
    }

    /// Fetches a page of a directory, and keeps what is covered.
    pub(super) async fn list_entries(
        &self,
        request: impl Fn(SessionId) -> ListEntries,
    ) -> Result<EntriesPage, Failure> {
        let note = self.names.note();
        let directory = request(SessionId(0)).inode;
        let page = self.ask_as_session(request).await?;
        let covered = page.coverage != Coverage::None;
        for at in &page.entries {
            let (name, inode) = (at.entry.name.clone(), at.entry.attributes.inode);
            self.names.keep_name((directory, name), Some(inode), covered.then_some(note));
            self.keep(&at.entry.attributes, at.lease, note);
        }
        if let Some(attributes) = &page.directory {
            self.keep(attributes, Some(directory), note);
        }
        Ok(page)
    }

    /// Makes a change of this mount to `names`, with what they lead to, and to the attributes of
    /// `inode`; forgets all that, also where it failed, since some of it may have happened.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn change<R>(
        &self,
        make: impl Fn(Operation) -> R,
        names: &[(InodeId, &FileName)],
        inode: Option<InodeId>,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed> + Sync,
    {
        let changing = self.names.changing(names, inode);
        let result = self.cluster.change(make).await;
        drop(changing);
        if let Err(failure) = &result {
            match failure.kind {
                // Nobody knows whether it takes place yet.
                ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::SessionGone => {
                    self.names.suspend();
                }
                // What was known of some inode is wrong.
                ErrorKind::Stale => self.names.forget_all(),
                _ => {}
            }
        }
        result
    }

    /// Asks in the name of the session; of another one if that has ended.
    pub(super) async fn ask_as_session<R: Request + Sync>(
        &self,
        request: impl Fn(SessionId) -> R,
    ) -> Result<R::Reply, Failure> {
        for _ in 0..SESSIONS_MAX {
            match self.cluster.ask(&request(self.cluster.session())).await {
                Err(failure) if failure.kind == ErrorKind::SessionGone => {}
                Err(failure) if failure.kind == ErrorKind::Stale => {
                    self.names.forget_all();
                    return Err(failure);
                }
                answer => return answer,
            }
        }
        Err(ErrorKind::SessionGone.into())
    }

    fn keep(&self, attributes: &Attributes, lease: Option<InodeId>, note: Note) {
        if let Some(key) = lease {
            self.names.keep_attributes(attributes.clone(), key, note);
        }
    }
}

/// Before it listens again: the server that was lost may be back at once.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// How many sessions one question outlives.
const SESSIONS_MAX: usize = 4;
