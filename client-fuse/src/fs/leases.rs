//! Listening for what other mounts change, and what this one keeps between requests.

use std::time::Duration;

use futures::future::join;
use millrace_protocol::{
    Request,
    lease::{
        AwaitNews, AwaitRecalls, EntriesPage, FindName, FoundName, ListEntries, ListFrom, MakeName,
        News, Recall, Recalls, RemoveName, ShowInode,
    },
    metadata::{Attributes, Coverage, Create, CreateMasked, FileKind, InodeReply, Remove},
    session::{Caller, Operation},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use crate::{
    cache::names::{Changing, Lease, stamps::Note},
    cluster::{Indexed, Unmade},
    fs::{FileSystem, access_times::Shows, handle::Told},
};

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
            self.ahead_contents.handle_server();
            let begun = async {
                self.declare_delegations(session, incarnation).await?;
                self.give_back(&[Recall::Everything], &[]).await
            };
            let failure = match begun.await {
                Ok(()) => {
                    self.untold.handle_listening(Told { session, incarnation });
                    self.hear(session, incarnation).await
                }
                Err(failure) => failure,
            };
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
        let mut request = AwaitNews { session, incarnation, acknowledged: 0 };
        let mut is_old_server = false;
        loop {
            // In this order: what is changed from here meanwhile may be newer than what is shown.
            let asked = self.names.note();
            match self.next_news(&request, &mut is_old_server).await {
                Ok(news) => {
                    let News { through, mut recalls, shown } = self.with_reads(news);
                    for recall in &recalls {
                        self.names.forget(recall);
                    }
                    let mut same = Vec::new();
                    for attributes in shown {
                        let inode = attributes.inode;
                        if self.names.show(attributes, asked) {
                            recalls.push(Recall::Attributes(inode));
                        } else {
                            same.push(inode);
                        }
                    }
                    let ended = tokio::select! {
                        biased;
                        ended = self.end_delegations(&recalls) => ended,
                        // It waits there until all have declared, as this mount has to.
                        failure = self.other_life(incarnation) => Err(failure),
                    };
                    if let Err(failure) = ended {
                        return failure;
                    }
                    if let Err(failure) = self.give_back(&recalls, &same).await {
                        return failure;
                    }
                    // Whatever is answered from now on was asked of the server after this.
                    request.acknowledged = through;
                }
                Err(failure) => return failure,
            }
        }
    }

    /// Listens for news; of a server that has none, for recalls.
    async fn next_news(
        &self,
        request: &AwaitNews,
        is_old_server: &mut bool,
    ) -> Result<News, Failure> {
        if !*is_old_server {
            match self.cluster.await_lease_news(request).await {
                Err(failure) if failure.kind == ErrorKind::NotSupported => *is_old_server = true,
                answer => return answer,
            }
        }
        let AwaitNews { session, incarnation, acknowledged } = *request;
        let request = AwaitRecalls { session, incarnation, acknowledged };
        let Recalls { through, recalls } = self.cluster.await_recalls(&request).await?;
        Ok(News { through, recalls, shown: Vec::new() })
    }

    /// Returns when another life of the server than this has begun.
    pub(super) async fn other_life(&self, incarnation: u64) -> Failure {
        let mut present = self.cluster.incarnation();
        // It lasts as long as the cluster.
        drop(present.wait_for(|present| *present != incarnation).await);
        Failure::new(ErrorKind::Unavailable, "the metadata server was restarted")
    }

    /// Returns when the kernel has nothing left of what is taken back, and the server knows of all
    /// that is open under it; and nothing of what directories showed before. All of it must have
    /// stopped to count here before.
    async fn give_back(&self, recalls: &[Recall], shown: &[InodeId]) -> Result<(), Failure> {
        join(self.kernel.take_back_with(recalls, shown), self.tell_opens(recalls)).await.1
    }

    /// What a change of this mount concerns is known to the server from here on: files that were
    /// made here, and opens.
    async fn before_change(&self, concerned: &[Recall]) -> Result<(), Failure> {
        self.settle_concerned(concerned).await?;
        self.tell_opens(concerned).await
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
        // In this order: what is made meanwhile is newer than the answer.
        let note = self.names.note();
        self.settle(parent).await?;
        let request =
            |session| FindName { caller: caller.clone(), session, parent, name: name.clone() };
        let FoundName { found, coverage, lease } = self.ask_as_session(request).await?;
        let found = found.map(|reply| self.with_reads(reply));
        let inode = found.as_ref().map(|reply| reply.attributes.inode);
        let covered = match inode {
            Some(_) => coverage != Coverage::None,
            None => coverage == Coverage::Directory,
        };
        self.names.keep_name((parent, name.clone()), inode, covered.then_some(note));
        if let Some(reply) = &found {
            self.keep(&reply.attributes, lease, note);
            self.keep_content(reply, lease, note);
        }
        Ok(found)
    }

    /// Fetches an inode from the server, and keeps what is covered; tells by what.
    pub(super) async fn show_inode(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> Result<(InodeReply, Option<Lease>), Failure> {
        // In this order: what is made in a directory meanwhile is newer than the answer.
        let note = self.names.note();
        self.settle(inode).await?;
        let request = |session| ShowInode { caller: caller.clone(), session, inode };
        let shown = self.ask_about(inode, request).await?;
        let reply = self.with_reads(shown.reply);
        self.keep(&reply.attributes, shown.lease, note);
        Ok((reply, shown.lease.map(|key| Lease::of(key, note))))
    }

    /// Fetches a page of a directory, and keeps what is covered.
    pub(super) async fn list_entries(
        &self,
        request: impl Fn(SessionId) -> ListEntries,
    ) -> Result<EntriesPage, Failure> {
        let ListEntries { inode: directory, from, .. } = request(SessionId(0));
        // In this order: what is made meanwhile is newer than the answer.
        let note = self.names.note();
        self.settle(directory).await?;
        let (page, bare) = self.ask_page(request).await?;
        let page = self.with_reads(page);
        let covered = page.coverage != Coverage::None;
        for (nth, at) in page.entries.iter().enumerate() {
            let (name, inode) = (at.entry.name.clone(), at.entry.attributes.inode);
            self.names.keep_name((directory, name), Some(inode), covered.then_some(note));
            if let Some(key) = at.lease {
                let (attributes, is_bare) = (at.entry.attributes.clone(), bare.get(nth));
                self.names.keep_listed(attributes, Lease::of(key, note), is_bare == Some(&true));
            }
        }
        if let Some(attributes) = &page.directory {
            self.keep(attributes, Some(directory), note);
        }
        if page.coverage == Coverage::Directory && from == ListFrom::Cookie(0) && page.last {
            let names = page.entries.iter().map(|at| &at.entry.name);
            self.names.keep_whole(directory, names, note);
        }
        Ok(page)
    }

    /// Makes a change of this mount to `names`, with what they lead to, and to the attributes of
    /// `inodes`; forgets all that, also where it failed, since some of it may have happened.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn change<R>(
        &self,
        make: impl Fn(Operation) -> R,
        names: &[(InodeId, &FileName)],
        inodes: impl IntoIterator<Item = InodeId>,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed + Shows> + Sync,
    {
        self.change_during(self.changing(names, inodes), make).await
    }

    /// As [`Self::change`], of what has begun to change.
    pub(super) async fn change_during<R>(
        &self,
        changing: Changing<'_>,
        make: impl Fn(Operation) -> R,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed + Shows> + Sync,
    {
        Ok(self.change_or_leave(changing, make).await?)
    }

    /// As [`Self::change_during`], of what must not stay with the server when it is given up.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn change_or_leave<R>(
        &self,
        changing: Changing<'_>,
        make: impl Fn(Operation) -> R,
    ) -> Result<R::Reply, Unmade>
    where
        R: Request<Reply: Indexed + Shows> + Sync,
    {
        self.before_change(changing.concerned()).await?;
        let result = self.cluster.change(make).await;
        if let Ok((_, logged)) = &result {
            self.record_unsynced(*logged, changing.concerned(), None);
        }
        drop(changing);
        self.end_change(result.map(|(reply, _)| reply)).await
    }

    /// As [`Self::change_or_leave`], of an open that cuts nothing: whoever syncs the inode misses
    /// nothing where it is lost. Its attributes are `changed` by one for writing.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn change_opens<R>(
        &self,
        make: impl Fn(Operation) -> R,
        inode: InodeId,
        changed: Option<InodeId>,
    ) -> Result<R::Reply, Unmade>
    where
        R: Request<Reply: Indexed + Shows> + Sync,
    {
        let changing = self.changing(&[], changed);
        self.before_change(changing.concerned()).await?;
        let result = self.cluster.change(make).await;
        drop(changing);
        if let Err(unmade) = &result
            && unmade.failure.kind == ErrorKind::Stale
        {
            self.handle_gone(inode);
            return result.map(|(reply, _)| reply);
        }
        self.end_change(result.map(|(reply, _)| reply)).await
    }

    /// As [`Self::change`], of the attributes of `inodes`, in `session` alone and however long the
    /// server is away: what it must hear of for as long as that lasts, and no program waits for.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change_in`].
    pub(super) async fn change_in<R>(
        &self,
        session: SessionId,
        make: impl Fn(Operation) -> R,
        inodes: impl IntoIterator<Item = InodeId>,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed + Shows> + Sync,
    {
        let changing = self.changing(&[], inodes);
        // What is refused of a file is told to its programs, and is no reason to keep this back.
        while let Err(failure) = self.before_change(changing.concerned()).await {
            if !failure.kind.is_transient() || self.cluster.session() != session {
                break;
            }
            tokio::time::sleep(CHANGE_PAUSE).await;
        }
        let result = self.cluster.change_in(session, make).await;
        drop(changing);
        Ok(self.end_change(result.map_err(Unmade::from)).await?)
    }

    async fn end_change<A: Shows>(&self, result: Result<A, Unmade>) -> Result<A, Unmade> {
        match result {
            Ok(answer) => Ok(self.with_reads(answer)),
            Err(unmade) => {
                self.handle_unmade(&unmade.failure).await;
                Err(unmade)
            }
        }
    }

    /// Makes an inode and its name, and keeps what the server shows of both; the attributes of the
    /// inode are the caller's to keep, under the lease that is returned.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn make_name(
        &self,
        create: impl Fn(Operation) -> Create,
        (parent, name): (InodeId, &FileName),
        umask: u16,
    ) -> Result<(InodeReply, Option<Lease>), Unmade> {
        let names = [(parent, name)];
        let changing = self.changing(&names, None);
        let note = changing.note();
        let request =
            |operation| MakeName { make: CreateMasked { create: create(operation), umask } };
        self.before_change(changing.concerned()).await?;
        let (made, logged) = match self.cluster.change(request).await {
            Ok((made, logged)) => (self.with_reads(made), logged),
            Err(unmade) => {
                drop(changing);
                self.handle_unmade(&unmade.failure).await;
                return Err(unmade);
            }
        };
        let inode = made.reply.attributes.inode;
        self.record_unsynced(logged, changing.concerned(), Some(inode));
        // It may have been there already.
        let lease = self.names.changed(inode, made.lease, note);
        if made.coverage == Coverage::None {
            drop(changing);
            self.names.keep_name((parent, name.clone()), Some(inode), None);
        } else {
            changing.end_known((parent, name.clone()), Some(inode), made.directory);
            if made.reply.attributes.kind == FileKind::Regular {
                self.note_made(parent);
            }
        }
        if made.empty {
            self.names.keep_whole(inode, [], note);
        }
        Ok((made.reply, lease))
    }

    /// Removes a name, and keeps what the server shows of that.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::change`].
    pub(super) async fn remove_name(
        &self,
        remove: impl Fn(Operation) -> Remove,
        (parent, name): (InodeId, &FileName),
    ) -> Result<(), Failure> {
        let names = [(parent, name)];
        let last = self.names.last_seen(parent, name);
        let changing = self.changing(&names, None);
        let request = |operation| RemoveName { remove: remove(operation) };
        self.before_change(changing.concerned()).await?;
        match self.cluster.change(request).await {
            Ok((removed, logged)) => {
                let removed = self.with_reads(removed);
                self.record_unsynced(logged, changing.concerned(), None);
                changing.end_known((parent, name.clone()), None, removed.directory);
                self.handle_removal(last);
                Ok(())
            }
            Err(Unmade { failure, .. }) => {
                drop(changing);
                self.handle_unmade(&failure).await;
                Err(failure)
            }
        }
    }

    /// What this mount has removed may be open here in a way that the server does not know of.
    pub(super) fn handle_removal(&self, last: Option<Attributes>) {
        if let Some(last) = last {
            self.removed.handle_removal(last, self.cluster.now());
        }
    }

    /// Nothing counts any more of what a change concerns, neither here nor, of attributes, in the
    /// kernel. It keeps names for itself: it holds their directories while they change.
    pub(super) fn changing<'a>(
        &'a self,
        names: &'a [(InodeId, &'a FileName)],
        inodes: impl IntoIterator<Item = InodeId>,
    ) -> Changing<'a> {
        let changing = self.names.changing(names, inodes);
        for inode in changing.inodes() {
            self.kernel.drop_attributes(inode);
        }
        changing
    }

    /// Forgets what a change may yet do of which nobody knows whether it was made; the kernel has
    /// forgotten it too when this returns.
    pub(super) async fn handle_unmade(&self, failure: &Failure) {
        match failure.kind {
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded => self.names.suspend(),
            // What was known of some inode is wrong. The kernel begins anew and asks for every name
            // on the way, whatever it may keep. That attempt is its last one, and must not wait:
            // who has replaced a file may do so again meanwhile.
            ErrorKind::Stale => return self.names.forget_all(),
            // Nothing is executed for it any more.
            ErrorKind::SessionGone => self.names.forget_all(),
            _ => return,
        }
        self.kernel.take_back(&[Recall::Everything]).await;
    }

    /// An inode is gone. If that is known here, as it is where its last name was removed while it
    /// was asked for, all else stands.
    fn handle_gone(&self, inode: InodeId) {
        if self.names.attributes(inode).is_some() {
            self.names.forget_all();
        }
    }

    /// Asks in the name of the session; of another one if that has ended.
    pub(super) async fn ask_as_session<R: Request + Sync>(
        &self,
        request: impl Fn(SessionId) -> R,
    ) -> Result<R::Reply, Failure> {
        let answer = self.ask_in_session(request).await;
        answer.inspect_err(|failure| {
            if failure.kind == ErrorKind::Stale {
                self.names.forget_all();
            }
        })
    }

    /// The same about one inode.
    pub(super) async fn ask_about<R: Request + Sync>(
        &self,
        inode: InodeId,
        request: impl Fn(SessionId) -> R,
    ) -> Result<R::Reply, Failure> {
        let answer = self.ask_in_session(request).await;
        answer.inspect_err(|failure| {
            if failure.kind == ErrorKind::Stale {
                self.handle_gone(inode);
            }
        })
    }

    async fn ask_in_session<R: Request + Sync>(
        &self,
        request: impl Fn(SessionId) -> R,
    ) -> Result<R::Reply, Failure> {
        for _ in 0..SESSIONS_MAX {
            match self.cluster.ask(&request(self.cluster.session())).await {
                Err(failure) if failure.kind == ErrorKind::SessionGone => {}
                answer => return answer,
            }
        }
        Err(ErrorKind::SessionGone.into())
    }

    fn keep(&self, attributes: &Attributes, lease: Option<InodeId>, note: Note) {
        if let Some(key) = lease {
            self.names.keep_attributes(attributes.clone(), Lease::of(key, note));
        }
    }
}

/// Before it listens again: the server that was lost may be back at once.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// Between attempts to have the server know what must be known before a change.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// How many sessions one question outlives.
const SESSIONS_MAX: usize = 4;
