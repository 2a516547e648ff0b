//! What the mount does, without FUSE: every operation takes plain values and answers with plain
//! values or a [`Failure`].
//!
//! Owns the open files and directories of one mount and the order of what happens to them. It holds
//! nothing durable: names belong to the metadata server, bytes to the targets. Names and attributes
//! are answered here from what leases cover, which the kernel may keep for a moment, and files are
//! opened for reading so; otherwise the server is asked. Bytes that a program writes stay here
//! until they are flushed, at latest at `close`.
//!
//! Modules, in reading order: [`mod@file`] and [`files`] (the view of open files), `durable`,
//! `unsynced`, [`handles`] and [`handle`], [`writers`], [`kept_pages`], [`kernel_pages`],
//! [`kernel_names`], [`pending`], [`changed_objects`], [`open`], [`delegations`], `publish`,
//! `closes`, `opens_given_up`, `reopen`, `quiet_opens`, `all_told`, `ahead_contents`, [`leases`],
//! [`look_ahead`], `absent_names`, [`names`], [`attributes`], [`read`], [`mod@write`], [`flush`],
//! [`locks`], `older_opens`, [`allocate`], [`seek`], [`mod@copy`], [`readdir`], [`removed`],
//! [`xattr`], `bare`, `bucket_xattrs`, [`statfs`], [`mod@access_times`], [`upkeep`].

use std::{
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use millrace_protocol::metadata::{Attributes, GetInode, InodeReply};
use millrace_types::{Failure, InodeId};

use crate::{
    cache::{access_times::AccessTimes, budget::Budget, contents::Contents, names::Names},
    cluster::Cluster,
    fs::{
        absent_names::AbsentNames, ahead_contents::AheadContents, all_told::Untold,
        bare::BarePages, changed_objects::ChangedObjects, closes::Closes, delegations::Delegations,
        file::File, files::Files, handle::FileHandle, handles::Handles, kept_pages::KeptPages,
        kernel_names::KernelNames, kernel_pages::KernelPages, locks::Locks, look_ahead::LookAhead,
        pending::Pending, publish::Publisher, quiet_opens::QuietOpens, readdir::DirectoryHandle,
        removed::Removed, unsynced::Unsynced, xattr::Offered,
    },
    metrics::ClientMetrics,
    settings::MountSettings,
};

mod absent_names;
pub(crate) mod access_times;
mod ahead_contents;
mod all_told;
pub(crate) mod allocate;
pub(crate) mod attributes;
mod bare;
mod bucket_xattrs;
pub(crate) mod changed_objects;
mod closes;
pub(crate) mod copy;
pub(crate) mod delegations;
mod durable;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod flush;
pub(crate) mod handle;
pub(crate) mod handles;
mod inline;
pub(crate) mod kept_pages;
pub(crate) mod kernel_names;
pub(crate) mod kernel_pages;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod look_ahead;
pub(crate) mod names;
mod older_opens;
pub(crate) mod open;
mod opens_given_up;
pub(crate) mod pending;
pub(crate) mod publish;
mod quiet_opens;
pub(crate) mod read;
pub(crate) mod readdir;
pub(crate) mod removed;
mod reopen;
pub(crate) mod seek;
pub(crate) mod statfs;
mod unsynced;
pub(crate) mod upkeep;
pub(crate) mod write;
pub(crate) mod writers;
pub(crate) mod xattr;

/// The file system of one mount.
#[derive(Debug)]
pub(crate) struct FileSystem {
    /// The servers.
    pub(crate) cluster: Arc<Cluster>,
    /// Counters and histograms.
    pub(crate) metrics: ClientMetrics,
    files: Files,
    handles: Handles<FileHandle>,
    /// Those of which the server does not know.
    quiet: QuietOpens,
    /// What it was not told of in its present life.
    untold: Untold,
    /// Opens for writing that have ended, of which it is yet to hear.
    closes: Closes,
    /// Directories in which files are made here, and those that it is yet to hear of.
    delegations: Delegations,
    /// Whether it asks for them.
    delegates: bool,
    publisher: Publisher,
    directories: Handles<DirectoryHandle>,
    /// What was changed here and may not survive a loss of power of the metadata server.
    unsynced: Unsynced,
    kept: KeptPages,
    /// The session in which programs write.
    writing: AtomicU64,
    /// What programs here have locked.
    pub(crate) locks: Locks,
    /// The way to the pages that the kernel holds.
    pub(crate) pages: KernelPages,
    /// Names and attributes that the kernel may keep, and the way to them.
    pub(crate) kernel: KernelNames,
    /// Names and attributes under leases.
    names: Names,
    /// What lets this mount read files, under leases too.
    contents: Contents,
    ahead_contents: AheadContents,
    /// What was removed here and programs here may have open.
    removed: Removed,
    ahead: LookAhead,
    absent: AbsentNames,
    bare_pages: BarePages,
    /// What was read and the server does not know yet.
    access_times: AccessTimes,
    /// The kernel's reads that wait for bytes.
    pub(crate) reads: Arc<Pending>,
    /// Writes, holes, copies and truncations that go on without their programs.
    pub(crate) orphans: Arc<Pending>,
    changed: ChangedObjects,
    /// Extended attributes that are offered.
    pub(crate) offered: Offered,
    budget: Budget,
    /// Where work that nobody waits for is done.
    runtime: tokio::runtime::Handle,
    /// Itself, for that work.
    this: Weak<Self>,
}

impl FileSystem {
    /// The file system of `cluster`, with `budget_bytes` for read-ahead and write-behind together,
    /// and `names` and `contents` for what leases cover, which offers what `settings` say.
    /// Background work runs on `runtime`.
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        metrics: ClientMetrics,
        budget_bytes: u64,
        (names, contents): (Names, Contents),
        settings: &MountSettings,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let access_times = AccessTimes::new(settings.followed_access_times(), cluster.now());
        let writing = AtomicU64::new(cluster.session().0);
        Arc::new_cyclic(|this| Self {
            cluster,
            metrics,
            files: Files::default(),
            handles: Handles::new(),
            quiet: QuietOpens::default(),
            untold: Untold::default(),
            closes: Closes::default(),
            delegations: Delegations::default(),
            delegates: settings.delegations,
            publisher: Publisher::default(),
            directories: Handles::new(),
            unsynced: Unsynced::default(),
            kept: KeptPages::default(),
            writing,
            locks: Locks::default(),
            pages: KernelPages::default(),
            kernel: KernelNames::default(),
            names,
            contents,
            ahead_contents: AheadContents::default(),
            removed: Removed::default(),
            ahead: LookAhead::default(),
            absent: AbsentNames::default(),
            bare_pages: BarePages::default(),
            access_times,
            reads: Arc::default(),
            orphans: Arc::default(),
            changed: ChangedObjects::default(),
            offered: Offered::by(settings),
            budget: Budget::new(budget_bytes),
            runtime,
            this: Weak::clone(this),
        })
    }

    /// What the handle of an open file stands for.
    ///
    /// # Errors
    /// [`millrace_types::ErrorKind::Stale`] when it is not open.
    pub(crate) fn handle(&self, number: u64) -> Result<Arc<FileHandle>, Failure> {
        self.handles.find(number)
    }

    /// The kernel has forgotten an inode; one that is open, only another mention of it.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.kept.forget(inode);
        self.removed.forget(inode);
        if self.files.find(inode).is_none() {
            self.locks.forget(inode);
        }
    }

    /// Does `work` on its own, as long as the mount is there.
    fn spawn<F>(&self, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(this) = self.this.upgrade() {
            self.runtime.spawn(work(this));
        }
    }

    /// The attributes of an answer as programs here shall see them: with what was written here and
    /// the server does not know yet.
    fn present(&self, reply: InodeReply) -> Result<Attributes, Failure> {
        let Some(file) = self.files.find(reply.attributes.inode) else {
            return Ok(reply.attributes);
        };
        let mut state = file.state();
        state.accept(reply)?;
        Ok(state.attributes.clone())
    }

    /// Fetches an open file's view afresh: its content, epoch or key is old.
    async fn refresh(&self, file: &File) -> Result<(), Failure> {
        self.refresh_shown(file).await.map(drop)
    }

    /// The same; tells whether the answer had a right to the content in it.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    async fn refresh_shown(&self, file: &File) -> Result<bool, Failure> {
        self.settle_file(file).await?;
        let caller = file.state().caller.clone();
        let note = self.names.note();
        let request = |session| GetInode {
            caller: caller.clone(),
            session: Some(session),
            inode: file.inode,
        };
        let reply = self.with_reads(self.ask_as_session(request).await?);
        let has_right = reply.capability.is_some();
        file.state().accept_viewed(reply, note)?;
        Ok(has_right)
    }
}

/// How often an operation fetches a file's view afresh before it gives up: each time means that the
/// file was truncated, replaced or re-keyed once more in between.
const REFRESHES_MAX: u32 = 16;

/// The pause before the second and later of these, so that a server that is behind can catch up.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
