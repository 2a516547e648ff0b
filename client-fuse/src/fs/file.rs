//! One file that is open on this mount, whatever the number of its handles.
//!
//! Owns the mount's view of the file: attributes, content and capability as the server last told
//! them, what was fetched ahead, what was written and not yet stored, and what the server does not
//! know yet (a larger end, a newer time). All of it is behind one lock that is held for moments
//! only, never over a request.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{
    capability::{Capability, Content, Rights, Signed},
    codec,
    metadata::{Attributes, InodeReply},
    session::Caller,
};
use millrace_types::{
    ChangeCount, ContentGeneration, ErrorKind, Failure, InodeId, SessionId, TargetId, Timestamp,
    WriteEpoch,
};
use tokio::sync::Notify;

use crate::{
    cache::{
        budget::Permit,
        names::{Lease, stamps::Note},
        pieces::Pieces,
        write_buffer::WriteBuffer,
    },
    fs::{
        attributes::Privileges, delegations::Unpublished, durable::Durable, file::stored::Stored,
        inline::InInode, older_opens::Paged,
    },
    prefetch::window::Streams,
};

mod copied;
pub(crate) mod resize;
mod stored;
#[cfg(test)]
pub(crate) mod tests;

/// What lets this mount reach the bytes of one content: never changes, is replaced as a whole.
#[derive(Debug)]
pub(crate) struct Access {
    /// The content, checked.
    pub(crate) content: Content,
    /// What the targets want to see.
    pub(crate) capability: Signed,
    /// What it allows.
    pub(crate) rights: Rights,
    /// Whom.
    pub(super) session: SessionId,
}

/// A file that is open here.
#[derive(Debug)]
pub(crate) struct File {
    /// Which.
    pub(crate) inode: InodeId,
    state: Mutex<State>,
    /// Held while the size is decided: appends, truncation, the mark before a hole. First in the
    /// order of locks; `commit` is second, `state` third.
    pub(crate) sizing: tokio::sync::Mutex<()>,
    /// Held while a commit is on its way, so that a later one never overtakes it.
    pub(crate) commit: Arc<tokio::sync::Mutex<()>>,
    /// Held while targets are asked to make durable what they have acknowledged, so that nobody
    /// takes for durable what another one has asked for.
    pub(crate) syncing: tokio::sync::Mutex<()>,
    /// Held by the upkeep that flushes the file, so that the next round leaves it alone.
    pub(crate) upkeep: tokio::sync::Mutex<()>,
    /// Told whenever a slot of the buffer has landed.
    pub(crate) landed: Notify,
}

/// The view of an open file.
#[derive(Debug)]
pub(crate) struct State {
    /// As the server told them, with this mount's own writes on top.
    pub(crate) attributes: Attributes,
    /// What covers `attributes`: while that stands, nobody else has changed them.
    pub(crate) lease: Option<Lease>,
    /// The way to the bytes; `None` where the caller has no right to them.
    pub(crate) access: Option<Arc<Access>>,
    /// Of which content and epoch `access` is, or was before a repeated open.
    version: Option<(ContentGeneration, WriteEpoch)>,
    /// The content as the server last told it. Newer than that of `access` after an answer without
    /// a capability, as to a stat.
    pub(crate) content: Option<Content>,
    /// When the newest answer was asked for that has shown, at least, what `content` says.
    pub(crate) viewed: Note,
    /// The bytes, where they live in the inode.
    pub(crate) inline: Option<InInode>,
    /// Fetched and not yet handed out.
    pub(crate) pieces: Pieces,
    /// The sequential streams.
    pub(crate) streams: Streams,
    /// Written and not yet acknowledged.
    pub(crate) buffer: WriteBuffer,
    /// The memory that `buffer` takes.
    pub(crate) permit: Option<Permit>,
    /// What targets have acknowledged and the server does not know yet.
    pub(crate) stored: Stored,
    /// How many of these acknowledgements the server has been told of.
    pub(crate) committed: u64,
    /// The time of the last write, until the server knows of it.
    pub(crate) written_at: Option<Timestamp>,
    /// Who opened it last: for whom its view is fetched again.
    pub(crate) caller: Caller,
    /// One past the largest byte written here, while the server may not know of it.
    pub(crate) own_end: u64,
    /// Whether what is buffered may lie behind a hole that the server has not been told of. Says
    /// nothing of a content that is known to have holes.
    undeclared: bool,
    /// The size as the server has told it last.
    told: resize::Told,
    /// Where bytes behind that begin that no target has taken, after a failure that a program hears
    /// of: what was stored behind them has a hole before it.
    unstored: Option<u64>,
    /// Targets have taken bytes that were given up, of which the server has not heard.
    pub(super) gave_up: bool,
    /// What of the file survives a loss of power.
    pub(crate) durable: Durable,
    /// Failures of writes that were acknowledged to their program, newest; and how many there were.
    pub(crate) failure: Option<Failure>,
    /// How many failures there were. A handle that has seen fewer has one to report.
    pub(crate) failures: u64,
    /// How many of them were losses of what a target had acknowledged.
    pub(crate) losses: u64,
    /// Counts landings, so that a read can tell whether buffered bytes left while it fetched.
    pub(crate) landings: u64,
    /// The kernel's pages are of this count or newer, unless only this mount has changed the file
    /// since.
    pub(crate) pages_count: ChangeCount,
    /// Whether those can grow old.
    pub(crate) paged: Paged,
    /// Whether handles may be open on different versions of the object, until the last is closed.
    pub(crate) versions: bool,
    /// Of those who write without the right to keep them.
    pub(crate) privileges: Privileges,
    /// The server does not know of the file: what it must hear.
    pub(crate) unpublished: Option<Unpublished>,
    /// Handles that are open for reading only.
    pub(crate) read_opens: u32,
    /// Handles that are open for writing.
    pub(crate) write_opens: u32,
    /// Those of all these that are being closed.
    pub(crate) closing: u32,
}

impl File {
    /// A file as the server's answer to an open, which was asked for at `viewed`, shows it.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the answer is impossible, and the kind for what is no file.
    pub(crate) fn new(reply: InodeReply, viewed: Note) -> Result<Self, Failure> {
        let inode = reply.attributes.inode;
        let slot_size = slot_size(reply.regular_content()?)?;
        let mut state = State {
            attributes: reply.attributes.clone(),
            lease: None,
            access: None,
            version: None,
            content: None,
            viewed,
            inline: None,
            pieces: Pieces::default(),
            streams: Streams::default(),
            buffer: WriteBuffer::new(slot_size),
            permit: None,
            stored: Stored::default(),
            committed: 0,
            written_at: None,
            caller: Caller::ROOT,
            own_end: 0,
            undeclared: false,
            told: resize::Told::default(),
            unstored: None,
            gave_up: false,
            durable: Durable::default(),
            failure: None,
            failures: 0,
            losses: 0,
            landings: 0,
            // An open drops them, or has seen that they are of this count.
            pages_count: reply.attributes.change_count,
            paged: Paged::default(),
            versions: false,
            privileges: Privileges::default(),
            unpublished: None,
            read_opens: 0,
            write_opens: 0,
            closing: 0,
        };
        state.accept(reply)?;
        Ok(Self {
            inode,
            state: Mutex::new(state),
            sizing: tokio::sync::Mutex::new(()),
            commit: Arc::default(),
            syncing: tokio::sync::Mutex::new(()),
            upkeep: tokio::sync::Mutex::new(()),
            landed: Notify::new(),
        })
    }

    /// The view. Never held over an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it is held is a defect; going on with what is there loses nothing more
        // than giving up all files would.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the bytes.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] when the server gave none.
    pub(crate) fn access(&self) -> Result<Arc<Access>, Failure> {
        let access = self.state().access.clone();
        access.ok_or_else(|| Failure::new(ErrorKind::PermissionDenied, "no right to the content"))
    }
}

impl State {
    /// Takes over what the server says, unless it is older than what is known, and keeps what this
    /// mount has written on top.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the answer is impossible.
    pub(crate) fn accept(&mut self, reply: InodeReply) -> Result<(), Failure> {
        if reply.attributes.change_count < self.attributes.change_count {
            return Ok(());
        }
        let changed = reply.attributes.change_count != self.attributes.change_count;
        let content = match reply.content {
            Some(content) => Some(content.checked().map_err(Failure::from)?),
            None => None,
        };
        if changed {
            // Most often somebody else's change; after one's own a little is fetched again.
            self.pieces.clear();
            self.streams.handle_invalidation();
        }
        let is_whole = reply.capability.is_some();
        if let (Some(content), Some(capability)) = (&content, reply.capability) {
            let fresh = Access::new(content.clone(), capability)?;
            self.replace_access(fresh, reply.attributes.size);
        }
        // The bytes in an inode are of one content and epoch; an answer without a capability does
        // not have them.
        let version = |content: &Content| (content.generation, content.write_epoch);
        let is_other = content.as_ref().map(version) != self.content.as_ref().map(version);
        if is_other || is_whole {
            let held = self.inline.take().filter(|_| !is_other);
            self.inline = reply.inline.map(|bytes| InInode::new(bytes, &reply.attributes, held));
        }
        self.content = content;
        if reply.attributes.size == 0 || self.inline.is_some() {
            self.durable.record_whole(reply.attributes.change_count);
        }
        // What is here behind the old end, or on its way, may still fail.
        let held = self.buffer.first_behind(self.told.end);
        self.told.handle_size(reply.attributes.size, held);
        self.attributes = reply.attributes;
        // Of two answers that overtook each other, this may be the older one.
        self.lease = None;
        self.show_own_writes();
        Ok(())
    }

    /// As [`Self::accept`], of an answer that is covered by a lease, or not.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub(crate) fn accept_under(
        &mut self,
        reply: InodeReply,
        lease: Option<Lease>,
    ) -> Result<(), Failure> {
        let shown = reply.attributes.change_count;
        self.accept(reply)?;
        self.cover(shown, lease);
        Ok(())
    }

    /// An answer that showed the file at `shown` was covered by this lease.
    pub(crate) fn cover(&mut self, shown: ChangeCount, lease: Option<Lease>) {
        // An older answer was not taken over.
        if shown >= self.attributes.change_count {
            self.lease = lease;
        }
    }

    /// As [`Self::accept`], of an answer that was asked for at `viewed` to see the content. What is
    /// known stays if it is newer than the answer: then it is of a later moment all the more.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub(crate) fn accept_viewed(&mut self, reply: InodeReply, viewed: Note) -> Result<(), Failure> {
        self.accept(reply)?;
        self.viewed = self.viewed.max(viewed);
        Ok(())
    }

    /// Takes over the answer to a repeated open in `session`, whatever was known before, unless it
    /// was overtaken on its way by an answer that was asked for later in the same one.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub(crate) fn accept_reopened(
        &mut self,
        reply: InodeReply,
        viewed: Note,
        session: SessionId,
    ) -> Result<(), Failure> {
        let is_older = reply.attributes.change_count < self.attributes.change_count;
        // What an ended one has shown may count higher, and so keep all later answers out.
        if is_older && viewed < self.viewed && self.session() == Some(session) {
            return Ok(());
        }
        let held = self.access.take();
        self.attributes.change_count = ChangeCount(0);
        self.durable.forget_counts();
        let was_elsewhere = matches!(self.inline, Some(InInode::Elsewhere(_)));
        self.accept_viewed(reply, viewed)?;
        if let (Some(held), Some(fresh)) = (&held, &self.access)
            && self.write_opens > 0
            && fresh.is_weaker_than(held)
        {
            self.access = Some(Arc::clone(held));
        }
        // The metadata of an older day was put back: what is stored from here on counts again.
        if self.version.is_some_and(|version| version < self.stored.version) {
            self.stored = Stored { version: Default::default(), end: 0, ..self.stored };
        }
        // Thousands of files may be opened again at once, of which nobody wants the bytes.
        if was_elsewhere && let Some(inline) = &mut self.inline {
            *inline = InInode::Elsewhere(inline.len());
        }
        // It may be the answer that shows first that the file has followed its bucket.
        self.versions |= match (&held, &self.content) {
            (Some(held), Some(shown)) => are_other_versions(&held.content, shown),
            _ => false,
        };
        Ok(())
    }

    /// Records that a program wrote `range` at `now`; the bytes are in the buffer.
    pub(crate) fn record_write(&mut self, range: &Range<u64>, now: Timestamp) {
        self.pieces.invalidate(range);
        // The end that its program has seen may have been another one.
        self.undeclared |= range.start > self.attributes.size;
        self.buffer.record_growth(range, self.attributes.size);
        self.own_end = self.own_end.max(range.end);
        self.written_at = Some(now);
        self.show_own_writes();
    }

    /// Records that `target` has acknowledged `range`, written under `access`.
    pub(crate) fn record_stored(
        &mut self,
        range: &Range<u64>,
        access: &Access,
        target: TargetId,
        loss_count: u64,
    ) {
        self.record_zeroed(range, access, target, loss_count);
        // Otherwise it went to a content that another host has cut or replaced meanwhile, and
        // counts as written before.
        if self.stored.version == access.version() {
            self.stored.end = self.stored.end.max(range.end);
        }
    }

    /// As [`Self::record_stored`], of zeros within the size that the server knows: when that was
    /// cut meanwhile, they are no reason for it to grow.
    pub(crate) fn record_zeroed(
        &mut self,
        range: &Range<u64>,
        access: &Access,
        target: TargetId,
        loss_count: u64,
    ) {
        self.pieces.invalidate(range);
        let version = access.version();
        if self.stored.version < version {
            self.stored.version = version;
            self.stored.end = 0;
        }
        self.stored.acknowledgements += 1;
        self.durable.record_stored(target, loss_count);
    }

    /// Records that the server knows of the first `acknowledgements` of them.
    pub(crate) fn record_commit(&mut self, acknowledgements: u64) {
        self.committed = self.committed.max(acknowledgements);
        if !self.is_dirty() {
            self.written_at = None;
            self.own_end = 0;
        }
    }

    /// The server has these bytes in the inode. What was written meanwhile stays to be stored.
    pub(crate) fn handle_inline(&mut self, bytes: &[u8]) {
        let end = self.buffer.end();
        let is_all = !self.buffer.has_flights()
            && u64::try_from(bytes.len()) == Ok(end)
            && self.buffer.read_covered(&(0..end)).is_some_and(|written| written == bytes);
        if is_all {
            let freed = self.buffer.cut(0);
            self.release_memory(freed);
            self.landings += 1;
        }
    }

    /// Records that a commit of this mount's writes, made at the count `before`, was answered by
    /// what the state shows now. If it alone has changed the file, the kernel's pages are as good
    /// as they were.
    pub(crate) fn record_own_change(&mut self, before: ChangeCount) {
        let after = self.attributes.change_count;
        if self.pages_count == before && after == before.next() {
            self.pages_count = after;
        }
    }

    /// Forgets the writes that the server does not know of: their content is replaced.
    pub(crate) fn forget_writes(&mut self) {
        self.committed = self.stored.acknowledgements;
        self.stored.end = 0;
        self.own_end = 0;
        self.written_at = None;
    }

    /// Records a failure that must be reported to whoever writes, syncs or closes next.
    pub(crate) fn record_failure(&mut self, failure: Failure) {
        self.failures += 1;
        self.failure = Some(failure);
    }

    /// Records that a target has lost what it had acknowledged: a failure, also for everybody who
    /// waits for that target meanwhile.
    pub(crate) fn record_loss(&mut self, failure: Failure) {
        self.losses += 1;
        self.record_failure(failure);
    }

    /// The failure of who has begun to wait when there were so many losses, if there are more now.
    pub(crate) fn lost_since(&self, losses: u64) -> Option<Failure> {
        let words = "a target lost writes that it had acknowledged";
        (self.losses > losses).then(|| Failure::new(ErrorKind::Lost, words))
    }

    /// Whether the last failure was of the same kind: it has been logged.
    pub(crate) fn has_failed_like(&self, failure: &Failure) -> bool {
        self.failure.as_ref().is_some_and(|last| last.kind == failure.kind)
    }

    /// Whether the server has shown another content, or epoch, than the one that this mount has the
    /// way to.
    pub(crate) fn is_access_old(&self) -> bool {
        let (Some(access), Some(content)) = (&self.access, &self.content) else { return false };
        access.version() != (content.generation, content.write_epoch)
    }

    /// Whether the server knows that the content may have holes.
    pub(crate) fn is_sparse(&self) -> bool {
        self.access.as_ref().is_some_and(|access| access.content.sparse)
    }

    /// Whether something is buffered that may lie behind a hole of which the server does not know:
    /// it must before that is stored.
    pub(crate) fn has_undeclared_hole(&self) -> bool {
        self.undeclared && !self.is_sparse()
    }

    /// Records that a write of this range has failed for good.
    pub(crate) fn record_unstored(&mut self, range: &Range<u64>) {
        if range.end > self.told.end {
            let start = range.start.max(self.told.end);
            self.unstored = Some(self.unstored.map_or(start, |known| known.min(start)));
        }
    }

    /// What was written is about to be given up: of what targets have of it the server hears that
    /// it may be a hole, so that a truncation has another content take its place.
    pub(crate) fn record_given_up(&mut self) {
        self.gave_up |= self.needs_commit();
    }

    /// Nothing more is to be said of what was not stored.
    pub(crate) fn forget_unstored(&mut self) {
        (self.unstored, self.gave_up) = (None, false);
    }

    /// Whether what was stored lies behind bytes that were not, or was given up, of which the
    /// server does not know: it must before it hears of the size.
    pub(crate) fn has_unstored_hole(&self) -> bool {
        let is_behind = self.unstored.is_some_and(|start| start < self.stored.end);
        (is_behind || self.gave_up) && !self.is_sparse()
    }

    /// Whether the server may have the bytes in the inode, and has not answered.
    pub(crate) fn is_inline_unknown(&self) -> bool {
        self.unpublished.as_ref().is_some_and(|unpublished| unpublished.was_sent_inline)
    }

    /// Whether the server must still be told of an acknowledged write.
    pub(crate) fn needs_commit(&self) -> bool {
        self.stored.acknowledgements > self.committed || self.has_unstored_hole()
    }

    /// Whether bytes wait in memory or the server must be told something.
    pub(crate) fn is_dirty(&self) -> bool {
        self.buffer.held_bytes() > 0 || self.needs_commit() || self.unpublished.is_some()
    }

    /// Gives memory back for `bytes` that left the buffer.
    pub(crate) fn release_memory(&mut self, bytes: u64) {
        let Some(permit) = &mut self.permit else {
            assert_eq!(bytes, 0, "what is buffered was taken from the budget");
            return;
        };
        permit.shrink(bytes);
        if permit.bytes() == 0 {
            self.permit = None;
        }
    }

    /// Takes the way to a content of `size` bytes. Of another one than before it is known what has
    /// not been sent yet, and nothing that was: that went to the one before.
    fn replace_access(&mut self, fresh: Access, size: u64) {
        // From the inode the bytes went to the targets, and nothing else has changed.
        let is_spilled = self.version.is_some_and(|(held, _)| held == fresh.content.generation)
            && self.inline.as_ref().is_some_and(|inline| inline.len() <= size);
        let held = self.version.replace(fresh.version());
        if held.is_some_and(|held| held != fresh.version()) && !is_spilled {
            self.own_end = self.buffer.end();
            self.undeclared = self.buffer.leaves_hole(size);
            self.forget_unstored();
            self.buffer.renew_growth(size);
        }
        let held = self.access.as_ref();
        self.versions |= held.is_some_and(|held| are_other_versions(&held.content, &fresh.content));
        let weaker = self.access.as_ref().is_some_and(|held| fresh.is_weaker_than(held));
        // An open for reading must not take away what an open for writing was given.
        if !(weaker && self.write_opens > 0) {
            self.access = Some(Arc::new(fresh));
        }
    }

    fn show_own_writes(&mut self) {
        self.attributes.size = self.attributes.size.max(self.own_end);
        if let Some(written_at) = self.written_at {
            self.attributes.modified = self.attributes.modified.max(written_at);
            self.attributes.changed = self.attributes.changed.max(written_at);
        }
    }
}

impl Access {
    fn new(content: Content, capability: Signed) -> Result<Self, Failure> {
        let statement: Capability = codec::decode(&capability.body)
            .map_err(|_| Failure::new(ErrorKind::Protocol, "a capability cannot be read"))?;
        Ok(Self { content, capability, rights: statement.rights, session: statement.session })
    }

    /// Whether it lets the mount do less than another way to the same content that is as good.
    fn is_weaker_than(&self, other: &Self) -> bool {
        other.content == self.content
            && other.rights == Rights::ReadWrite
            && self.rights == Rights::Read
            && other.capability.key == self.capability.key
            && other.session == self.session
    }

    /// The content and epoch that writes are made under.
    pub(crate) fn version(&self) -> (ContentGeneration, WriteEpoch) {
        (self.content.generation, self.content.write_epoch)
    }
}

/// Whether these are contents of two versions of an object. A truncation keeps the object, and an
/// export the content.
pub(crate) fn are_other_versions(one: &Content, other: &Content) -> bool {
    let (Some(one_origin), Some(other_origin)) = (&one.origin, &other.origin) else { return false };
    one.generation != other.generation && one_origin.tag != other_origin.tag
}

/// A slot of the write buffer is one transfer, or one chunk where chunks are smaller.
fn slot_size(content: &Content) -> Result<u64, Failure> {
    let layout = content.layout.checked().map_err(|_| Failure::from(ErrorKind::Protocol))?;
    let transfer = u64::from(millrace_protocol::storage::TRANSFER_LEN_MAX);
    Ok(layout.chunk_size().bytes().min(transfer))
}
