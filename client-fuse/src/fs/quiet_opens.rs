//! Opens for reading that the metadata server has not been told of.
//!
//! A file whose content is kept under a lease is opened without asking, and closed without telling.
//! The server need not know: it takes the attributes of an inode back before somebody changes it,
//! removes its name or cuts it off from its bucket. Before this mount acknowledges that, or changes
//! such a file itself, it tells the server of the opens that are concerned ([`QuietOpens::find`]);
//! from then on they are opens like others.
//!
//! Whoever opens a file so is entered here first, and looks then whether the lease still stands.
//! Whoever takes it back makes it stand no more first, and looks then who is entered. So one of the
//! two always sees the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{
    capability::{Capability, Signed},
    codec,
    lease::{Recall, ShowContents, ShownContent},
    metadata::{Coverage, InodeReply, OpenMode},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId, LogIndex};

use crate::{
    cache::{
        contents::KeptContent,
        inline_bytes::InlineBytes,
        names::{Lease, stamps::Note},
    },
    fs::{
        FileSystem,
        file::File,
        handle::{FileHandle, Known},
        open::{Opened, View},
    },
};

/// What is open so, by the key of the lease and by inode.
#[derive(Debug, Default)]
pub(crate) struct QuietOpens {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<(InodeId, u64), Quiet>,
    by_key: BTreeSet<(InodeId, InodeId, u64)>,
}

#[derive(Debug)]
struct Quiet {
    key: InodeId,
    handle: Arc<FileHandle>,
}

impl QuietOpens {
    /// A handle with this number is open under the lease with this key.
    fn insert(&self, key: InodeId, number: u64, handle: Arc<FileHandle>) {
        let inode = handle.file.inode;
        let mut table = self.lock();
        table.open.insert((inode, number), Quiet { key, handle });
        table.by_key.insert((key, inode, number));
    }

    /// Whether further opens have to be told of: before changes and restarts, all of them are.
    fn is_full(&self) -> bool {
        self.lock().open.len() >= QUIET_MAX
    }

    /// The handle is closed, or the server knows of it.
    pub(crate) fn remove(&self, inode: InodeId, number: u64) {
        let mut table = self.lock();
        if let Some(Quiet { key, .. }) = table.open.remove(&(inode, number)) {
            table.by_key.remove(&(key, inode, number));
        }
    }

    /// What the server must hear of before this is given back. A name is always taken back with the
    /// attributes of what it leads to.
    fn find(&self, recall: &Recall) -> Vec<(u64, Arc<FileHandle>)> {
        let table = self.lock();
        if table.open.is_empty() {
            return Vec::new();
        }
        let entry =
            |(&(_, number), quiet): (&(InodeId, u64), &Quiet)| (number, Arc::clone(&quiet.handle));
        match recall {
            Recall::Name(..) => Vec::new(),
            Recall::Attributes(inode) => table.open.range(handles_of(*inode)).map(entry).collect(),
            Recall::Lease(key) => {
                let all = (*key, InodeId(0), 0)..=(*key, InodeId(u64::MAX), u64::MAX);
                let under = table.by_key.range(all);
                let under = under.filter_map(|&(_, inode, number)| {
                    table.open.get_key_value(&(inode, number)).map(entry)
                });
                under.collect()
            }
            Recall::Everything => table.open.iter().map(entry).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one mount has open so at most: told of in some seconds.
const QUIET_MAX: usize = 1 << 16;

fn handles_of(inode: InodeId) -> RangeInclusive<(InodeId, u64)> {
    (inode, 0)..=(inode, u64::MAX)
}

impl FileSystem {
    /// Opens a file for reading from what is kept of it; nothing where the server must be asked.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] at the limit of handles.
    pub(crate) fn open_kept(
        &self,
        caller: &Caller,
        inode: InodeId,
        flags: i32,
    ) -> Option<Result<Opened, Failure>> {
        let only_reads = flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_TRUNC == 0;
        if !only_reads || !self.may_answer(caller) || self.changed.is_met(inode) {
            return None;
        }
        if self.is_unpublished(inode) {
            return None;
        }
        // The server takes all locks of the session on a file for over when it knows of no open of
        // it any more.
        if self.locks.concern(inode) || self.quiet.is_full() {
            return None;
        }
        // What is written here is shown by the server as it comes, and may be read so too.
        if self.files.find(inode).is_some_and(|file| file.state().write_opens > 0) {
            return None;
        }
        let (reply, lease) = self.content_kept(inode, InlineBytes::take)?;
        // What was brought for nothing earns nothing.
        let is_forgotten = is_forgotten(&reply);
        let view = View { reply, viewed: lease.note(), whole: None, lease: Some(lease) };
        let known = Known::Nobody;
        let opened = match self.begin_handle(caller.clone(), view, OpenMode::Read, flags, known) {
            Ok((opened, _)) => opened,
            Err(failure) => return Some(Err(failure)),
        };
        let number = opened.handle;
        if let Ok(handle) = self.handles.find(number) {
            self.quiet.insert(lease.key(), number, handle);
        }
        if self.may_answer(caller) && self.names.stands(inode, &lease) {
            if !is_forgotten {
                self.ahead_contents.handle_hit(lease.key());
            }
            self.metrics.opens_kept.inc();
            return Some(Ok(opened));
        }
        // It was taken back meanwhile: the server is asked, and told of that open alone. The kernel
        // hears nothing of this one.
        self.kept.forget(inode);
        if !self.release_kept(number) {
            self.spawn(|this| async move { this.abandon(number).await });
        }
        None
    }

    /// Closes a handle of which nobody has to be told; `false` where somebody has to.
    pub(crate) fn release_kept(&self, number: u64) -> bool {
        let Ok(handle) = self.handles.find(number) else { return false };
        self.handle_returned(&handle);
        let inode = handle.file.inode;
        if handle.mode != OpenMode::Read || self.locks.concern(inode) {
            return false;
        }
        match handle.known.try_lock() {
            Ok(mut known) if *known == Known::Nobody => *known = Known::Closed,
            _ => return false,
        }
        self.quiet.remove(inode, number);
        if self.handles.remove(number).is_some() {
            self.files.handle_close(&handle.file, handle.mode);
        }
        true
    }

    /// Asks for what lets this mount read a file that it has looked up, and files beside it; tells
    /// whether there was an answer to be kept.
    pub(super) async fn fetch_contents(&self, caller: &Caller, inode: InodeId) -> bool {
        if !self.may_answer(caller) {
            return false;
        }
        let Some((_, asked)) = self.names.attributes(inode) else { return false };
        let Some(wanted) = self.ahead_contents.handle_miss(asked.key()) else { return false };
        let (note, entries_max) = (self.names.note(), wanted.entries);
        let request =
            |session| ShowContents { caller: caller.clone(), session, inode, entries_max };
        match self.ask_about(inode, request).await {
            Ok(shown) => {
                let shown = self.with_reads(shown);
                let lease = Lease::of(shown.directory, note);
                let bytes = shown.contents.iter().map(entry_bytes).sum();
                let files = shown.contents.len();
                self.ahead_contents.handle_page(asked.key(), wanted, files, bytes);
                // The one that was asked for comes first: it is the last to be forgotten.
                for content in shown.contents.into_iter().rev() {
                    let inode = content.attributes.inode;
                    self.names.keep_attributes(content.attributes, lease);
                    self.contents.keep(inode, content.capability, content.inline, lease);
                }
                true
            }
            Err(failure) => {
                self.ahead_contents.handle_page(asked.key(), wanted, 0, 0);
                // A server from before there was this; or one that answers the open no better.
                if failure.kind == ErrorKind::NotSupported {
                    self.ahead_contents.handle_unsupported();
                }
                false
            }
        }
    }

    /// Brings the bytes of a file that is open for reading and lives in its inode, with those of
    /// files beside it, which may be read next. Does nothing where they are not shown so.
    pub(super) async fn bring_contents(&self, file: &File) {
        // They may have come along with another one's.
        if self.use_contents(file) {
            return;
        }
        let caller = file.state().caller.clone();
        if self.fetch_contents(&caller, file.inode).await {
            self.use_contents(file);
        }
    }

    /// Takes over what is kept of a file, if its bytes are; tells whether they were.
    fn use_contents(&self, file: &File) -> bool {
        let Some((reply, lease)) = self.content_kept(file.inode, InlineBytes::find) else {
            return false;
        };
        let mut state = file.state();
        if is_forgotten(&reply) || state.write_opens > 0 {
            return false;
        }
        let shown = reply.attributes.change_count;
        let accepted = state.accept_viewed(reply, lease.note());
        state.cover(shown, Some(lease));
        accepted.is_ok()
    }

    /// What an open would show, where leases cover it, with the bytes that are looked for so.
    fn content_kept(&self, inode: InodeId, look: LookFor) -> Option<(InodeReply, Lease)> {
        let KeptContent { capability, is_inline, lease } = self.contents.find(inode)?;
        if !self.names.stands(inode, &lease) {
            return None;
        }
        let (attributes, _) = self.names.attributes(inode)?;
        let statement: Capability = codec::decode(&capability.body).ok()?;
        // None stands for bytes that are not here: a file without any has none there.
        let bytes = || look(&self.contents.inline, inode, &capability).unwrap_or_default();
        let inline = is_inline.then(bytes);
        let reply = InodeReply {
            attributes,
            content: Some(statement.content),
            capability: Some(capability),
            symlink: None,
            inline,
            coverage: Coverage::None,
            index: LogIndex(0),
        };
        Some((reply, lease))
    }

    /// Returns when the server knows of every open that is concerned by what is taken back, or by a
    /// change of this mount. All of it must have stopped to count here before.
    ///
    /// # Errors
    /// As [`Self::reopen`].
    pub(super) async fn tell_opens(&self, recalls: &[Recall]) -> Result<(), Failure> {
        let concerned: Vec<_> = recalls.iter().flat_map(|recall| self.quiet.find(recall)).collect();
        match concerned.is_empty() {
            true => Ok(()),
            false => self.reopen(concerned).await,
        }
    }

    /// Returns when the server knows that this handle is open.
    ///
    /// # Errors
    /// As [`Self::reopen`].
    pub(super) async fn tell_open(
        &self,
        number: u64,
        handle: &Arc<FileHandle>,
    ) -> Result<(), Failure> {
        match *self.cluster.wait_patiently(handle.known.lock()).await? {
            Known::Nobody => {}
            Known::Server(_) | Known::Closed => return Ok(()),
        }
        self.reopen(vec![(number, Arc::clone(handle))]).await
    }

    /// Keeps what lets this mount read a file, where a lease covers it.
    pub(super) fn keep_content(&self, reply: &InodeReply, lease: Option<InodeId>, note: Note) {
        if let (Some(capability), Some(key)) = (&reply.capability, lease) {
            let (inode, lease) = (reply.attributes.inode, Lease::of(key, note));
            self.contents.keep(inode, capability.clone(), reply.inline.clone(), lease);
        }
    }
}

/// How bytes are looked for that live in an inode: by who opens a file, or by who reads it.
type LookFor = fn(&InlineBytes, InodeId, &Signed) -> Option<Vec<u8>>;

/// Whether a file lives in its inode and its bytes are not here, or were read before.
fn is_forgotten(kept: &InodeReply) -> bool {
    kept.inline.as_ref().is_some_and(Vec::is_empty)
}

/// What a file takes of a page, beside its attributes.
fn entry_bytes(content: &ShownContent) -> usize {
    content.capability.body.len() + content.inline.as_ref().map_or(0, Vec::len)
}
