//! open, create and release.

use std::sync::Arc;

use millrace_protocol::{
    metadata::{
        Attributes, Create, CreateUnnamed, FileKind, InodeReply, NewNode, Open, OpenMode,
        SetAttributes,
    },
    session::Caller,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, FileName, InodeId};

use crate::{
    cache::names::{Lease, stamps::Note},
    fs::{
        FileSystem,
        closes::Closing,
        durable::Whole,
        file::{File, resize::Resized},
        handle::{FileHandle, HandleOptions, Known, Told},
        names::NewMode,
        opens_given_up::{opened_before, written_before},
    },
};

/// What an open answers.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The number for later operations.
    pub(crate) handle: u64,
    /// What the kernel may do with its page cache.
    pub(crate) caching: Caching,
    /// Whether every close of a descriptor has to be heard of, also of one for reading: the file
    /// has had locks on ranges, which a process loses with any descriptor of the file.
    pub(crate) hears_closes: bool,
}

/// What the kernel may do with its page cache for one open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caching {
    /// Drop what it has and read anew.
    Fresh,
    /// Keep what it has.
    Keep,
    /// Stay out of the way: every read and write comes here.
    Bypass,
}

/// What an open has shown of its file.
#[derive(Debug)]
pub(super) struct View {
    /// That.
    pub(super) reply: InodeReply,
    /// From when it is.
    pub(super) viewed: Note,
    /// What was known of the file's bytes then.
    pub(super) whole: Option<Whole>,
    /// What covers it.
    pub(super) lease: Option<Lease>,
}

impl FileSystem {
    /// Opens a file with the flags of `open(2)`.
    ///
    /// # Errors
    /// What the server answers, or [`ErrorKind::Busy`] at the limit of handles.
    pub(crate) async fn open(
        &self,
        caller: Caller,
        inode: InodeId,
        flags: i32,
    ) -> Result<Opened, Failure> {
        let truncate = flags & libc::O_TRUNC != 0;
        let for_reading = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let mode = if for_reading && !truncate { OpenMode::Read } else { OpenMode::Write };
        let cut = if truncate { self.files.find(inode) } else { None };
        let sizing = match &cut {
            Some(file) => {
                let sizing = file.sizing.lock().await;
                self.store_cut(file).await?;
                Some(sizing)
            }
            None => None,
        };
        self.settle(inode).await?;
        self.await_news(&caller, inode).await;
        if mode == OpenMode::Read {
            if let Some(opened) = self.open_kept(&caller, inode, flags) {
                return opened;
            }
            if self.fetch_contents(&caller, inode).await
                && let Some(opened) = self.open_kept(&caller, inode, flags)
            {
                return opened;
            }
        }
        let telling = self.telling(mode);
        let request = |operation| Open {
            caller: caller.clone(),
            operation: telling.by(operation),
            inode,
            mode,
            truncate,
            reopen: false,
        };
        let changed = (mode == OpenMode::Write).then_some(inode);
        let (viewed, whole) = (self.names.note(), self.files.whole(inode));
        let opened = match truncate {
            true => self.change_or_leave(self.changing(&[], changed), request).await,
            false => self.change_opens(request, inode, changed).await,
        };
        let reply = opened.map_err(|unmade| match mode {
            OpenMode::Read => self.take_back(unmade, mode, opened_before(&caller, inode)),
            OpenMode::Write => self.take_back(unmade, mode, written_before(&caller)),
        })?;
        let cut_to = Resized::shown_by(&reply);
        let view = View { reply, viewed, whole, lease: None };
        let (opened, _) = self.begin_told(caller, view, mode, flags, telling.told()).await?;
        if truncate && let Some(file) = self.files.find(inode) {
            file.state().record_resize(cut_to);
        }
        drop(sizing);
        Ok(opened)
    }

    /// Stores what was written before the content is replaced, which the server may refuse; to be
    /// called with the file's `sizing` held. It keeps a content that has no byte and that nobody
    /// else writes: what the targets have of it, it must know of.
    ///
    /// # Errors
    /// When the server cannot be reached. What it refuses to know is no reason not to replace it.
    async fn store_cut(&self, file: &Arc<File>) -> Result<(), Failure> {
        self.flush_file(file).await;
        match self.commit(file, false).await {
            Err(failure) if failure.kind.is_transient() => Err(failure),
            Err(_) => {
                file.state().forget_writes();
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Makes a file and opens it; opens the one that exists unless the flags forbid it.
    ///
    /// The kernel asks for it where it has found nothing, and looks at no permission of what is
    /// opened then. The server counts it as an open for writing. So of a file that somebody else
    /// has made meanwhile the kernel is sent back to find it, and to open it as any other: unless
    /// it is opened for writing alone, or the caller may read what is its own.
    ///
    /// # Errors
    /// As [`Self::open`]; [`ErrorKind::Stale`] for the kernel, which then looks again.
    pub(crate) async fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName,
        mode: NewMode,
        flags: i32,
    ) -> Result<(Attributes, Opened), Failure> {
        let exclusive = flags & libc::O_EXCL != 0;
        let access = flags & libc::O_ACCMODE;
        let make = |exclusive| {
            self.create_or_open(caller.clone(), (parent, name.clone()), mode, flags, exclusive)
        };
        if exclusive || access == libc::O_WRONLY {
            return make(exclusive).await;
        }
        for _ in 0..MEETINGS_MAX {
            match make(true).await {
                Err(failure) if failure.kind == ErrorKind::Exists => {}
                made => return made,
            }
            match self.lookup(caller.clone(), parent, name.clone()).await {
                Ok(found) if access == libc::O_RDWR && is_readable_owner(&caller, &found) => {
                    return make(false).await;
                }
                Err(failure) if failure.kind == ErrorKind::NotFound => {}
                found => return Err(found.err().unwrap_or_else(made_meanwhile)),
            }
        }
        Err(made_meanwhile())
    }

    /// Makes a file and opens it for writing, as any that exists already unless that is refused.
    async fn create_or_open(
        &self,
        caller: Caller,
        (parent, name): (InodeId, FileName),
        mode: NewMode,
        flags: i32,
        exclusive: bool,
    ) -> Result<(Attributes, Opened), Failure> {
        let telling = self.telling(OpenMode::Write);
        let request = |operation| Create {
            caller: caller.clone(),
            operation: telling.by(operation),
            parent,
            name: name.clone(),
            node: NewNode::Regular,
            mode: mode.mode,
            open: true,
            exclusive,
        };
        let viewed = self.names.note();
        let made = self.make_name(request, (parent, &name), mode.umask).await;
        let (reply, lease) = made
            .map_err(|unmade| self.take_back(unmade, OpenMode::Write, written_before(&caller)))?;
        if reply.attributes.kind != FileKind::Regular {
            // Nothing was opened.
            return Err(made_meanwhile());
        }
        let inode = reply.attributes.inode;
        let cut = flags & libc::O_TRUNC != 0 && reply.attributes.size > 0;
        let view = View { reply, viewed, whole: None, lease };
        let (caller_of_cut, told) = (caller.clone(), telling.told());
        let (opened, mut attributes) =
            self.begin_told(caller, view, OpenMode::Write, flags, told).await?;
        if cut {
            let emptied = self.truncate(caller_of_cut, inode, 0, true).await;
            match emptied {
                Ok(emptied) => attributes = emptied,
                Err(failure) => {
                    self.abandon(opened.handle).await;
                    return Err(failure);
                }
            }
        }
        Ok((attributes, opened))
    }

    /// Makes a file without a name and opens it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) async fn create_unnamed(
        &self,
        caller: Caller,
        directory: InodeId,
        mode: NewMode,
        flags: i32,
    ) -> Result<(Attributes, Opened), Failure> {
        let nameable = flags & libc::O_EXCL == 0;
        let NewMode { mode, umask } = mode;
        let telling = self.telling(OpenMode::Write);
        let request = |operation| CreateUnnamed {
            caller: caller.clone(),
            operation: telling.by(operation),
            directory,
            mode,
            umask,
            nameable,
        };
        let viewed = self.names.note();
        let made = self.change_or_leave(self.changing(&[], None), request).await;
        let reply = made
            .map_err(|unmade| self.take_back(unmade, OpenMode::Write, written_before(&caller)))?;
        let view = View { reply, viewed, whole: None, lease: None };
        let (opened, attributes) =
            self.begin_told(caller, view, OpenMode::Write, flags, telling.told()).await?;
        Ok((attributes, opened))
    }

    /// Ends an open. What is still buffered is flushed; nobody hears of a failure any more, so it
    /// is logged. The server may hear of its end a little later, and of one for writing does not
    /// while programs that were killed still write to the file. May not be called with the file's
    /// `sizing` held, which these wait for.
    pub(crate) async fn release(&self, number: u64) {
        match self.handles.find(number) {
            // Still a handle for all that concerns those, and what is stored then: a lock that is
            // lost, a new session.
            Ok(handle) if handle.mode == OpenMode::Write => {
                let inode = handle.file.inode;
                self.orphans.earlier(inode).await;
                if let Err(failure) = self.flush(&handle).await {
                    tracing::warn!(%inode, %failure, "writes are lost after the last close");
                }
            }
            _ => {}
        }
        let Some(handle) = self.handles.remove(number) else {
            return;
        };
        let file = &handle.file;
        self.quiet.remove(file.inode, number);
        if handle.mode == OpenMode::Write {
            self.settle_last(file).await;
        }
        self.end_locks_through(number).await;
        self.end_append(file).await;
        // The server may be told of it at this moment: of its end it must hear later.
        if handle.known.try_lock().is_err() {
            return self.spawn(|this| async move { this.end_known(&handle).await });
        }
        self.end_known(&handle).await;
    }

    /// The server hears that an open is over, if it has heard of the open; the file counts one less
    /// then.
    async fn end_known(&self, handle: &FileHandle) {
        let file = &handle.file;
        let known = std::mem::replace(&mut *handle.known.lock().await, Known::Closed);
        match (known, handle.mode) {
            (Known::Server(told), OpenMode::Write) => {
                self.close_write(Closing::new(handle, told.session));
            }
            (Known::Server(told), OpenMode::Read) => {
                let file = Arc::clone(file);
                self.spawn(|this| async move { this.tell_read_closed(&file, told).await });
            }
            (Known::Nobody | Known::Closed, _) => self.files.handle_closed(file, handle.mode),
        }
    }

    /// Ends an open for writing after which nothing is left to be done but to tell of it; `false`
    /// where something is.
    pub(crate) fn release_settled(&self, number: u64) -> bool {
        let Ok(handle) = self.handles.find(number) else { return false };
        let file = &handle.file;
        // In this order: what a program that was killed has written is in the buffer when it ends.
        if handle.mode != OpenMode::Write
            || self.locks.concern(file.inode)
            || !self.orphans.is_empty(file.inode)
            || !self.is_settled(&handle)
        {
            return false;
        }
        let session = match handle.known.try_lock().as_deref_mut() {
            Ok(known) => match *known {
                Known::Server(told) => {
                    *known = Known::Closed;
                    told.session
                }
                Known::Nobody | Known::Closed => return false,
            },
            Err(_) => return false,
        };
        if self.handles.remove(number).is_some() {
            file.state().closing += 1;
            self.close_write(Closing::new(&handle, session));
        }
        true
    }

    /// Ends an open whose answer never reached the kernel, which has not dropped its pages for it.
    pub(crate) async fn abandon(&self, number: u64) {
        if let Ok(handle) = self.handles.find(number) {
            self.kept.forget(handle.file.inode);
            handle.file.state().pages_count = ChangeCount(0);
        }
        self.release(number).await;
    }

    /// Begins a handle of an open that the server was told of in this way, and tells it again if
    /// that was in a session, or a life of the server, that has ended meanwhile.
    async fn begin_told(
        &self,
        caller: Caller,
        view: View,
        mode: OpenMode,
        flags: i32,
        told: Told,
    ) -> Result<(Opened, Attributes), Failure> {
        let known = Known::Server(told);
        let inode = view.reply.attributes.inode;
        let begun = self.begin_handle(caller, view, mode, flags, known);
        let (opened, attributes) = begun.inspect_err(|_| {
            self.spawn(|this| async move { this.close_unhandled(told.session, inode, mode).await });
        })?;
        if known.is_due(mode, self.told_now())
            && let Ok(handle) = self.handles.find(opened.handle)
        {
            let again = self.reopen(vec![(opened.handle, handle)]).await;
            if let Err(failure) = again {
                // Not here, where the file's `sizing` may be held.
                self.spawn(|this| async move { this.abandon(opened.handle).await });
                return Err(failure);
            }
        }
        Ok((opened, attributes))
    }

    pub(super) fn begin_handle(
        &self,
        caller: Caller,
        View { reply, viewed, whole, lease }: View,
        mode: OpenMode,
        flags: i32,
        known: Known,
    ) -> Result<(Opened, Attributes), Failure> {
        let inode = reply.attributes.inode;
        let count = reply.attributes.change_count;
        let is_quiet = known == Known::Nobody;
        let file = self.files.handle_open(reply, viewed, whole, mode)?;
        let (attributes, versions) = {
            let mut state = file.state();
            state.caller = caller.clone();
            state.cover(count, lease);
            (state.attributes.clone(), state.versions)
        };
        let options = HandleOptions::from_flags(flags);
        let handle = Arc::new(FileHandle::new(Arc::clone(&file), mode, caller, options, known));
        let number = self.handles.insert(Arc::clone(&handle)).inspect_err(|_| {
            self.files.handle_close(&file, mode);
        })?;
        // Bytes that are only written need no page cache, which would cost five times the CPU; an
        // append must not pass through it, since the kernel's idea of the end may be old.
        let only_written = flags & libc::O_ACCMODE == libc::O_WRONLY;
        let appends = flags & libc::O_APPEND != 0;
        let renewal = self.kept.handle_open(inode, count);
        if let Some(renewal) = renewal {
            handle.begin_renewal(renewal);
        }
        let caching = if versions {
            // Handles of an older version of the object share the kernel's pages of this inode:
            // the new version stays out of them until those are closed.
            self.kept.forget(inode);
            Caching::Bypass
        } else if only_written || appends || options.direct {
            Caching::Bypass
        } else if renewal.is_none() {
            Caching::Keep
        } else {
            Caching::Fresh
        };
        if caching != Caching::Bypass {
            file.state().paged.handle_open();
        }
        // What is read from the kernel's pages does not come here: the open counts for it.
        let is_read = caching == Caching::Keep && !options.no_atime;
        let is_noted = is_read && self.note_read(&mut file.state().attributes);
        // What an open has shown may be newer than what the kernel has: it asks from here on. One
        // for reading of what was kept shows the same, and whoever changes that has it dropped.
        let is_known = is_quiet && !versions && !is_noted && self.shows_version(inode, count);
        if !is_known {
            self.kernel.drop_attributes(inode);
        }
        let hears_closes = self.locks.has_ranges(inode);
        Ok((Opened { handle: number, caching, hears_closes }, attributes))
    }

    /// Sends one change of attributes for a handle that is open for writing.
    pub(crate) async fn set_attributes(
        &self,
        make: impl Fn(SetAttributes) -> SetAttributes,
        caller: &Caller,
        inode: InodeId,
    ) -> Result<InodeReply, Failure> {
        let request = |operation| {
            make(SetAttributes {
                caller: caller.clone(),
                operation,
                inode,
                mode: None,
                uid: None,
                gid: None,
                size: None,
                accessed: None,
                modified: None,
                make_sparse: false,
                open: false,
            })
        };
        let changed = self.change(request, &[], Some(inode)).await;
        match changed {
            Err(failure) if is_refusal(failure.kind) => {
                // Who has the file open for writing may change more than its mode allows.
                let Some(file) = self.files.find(inode) else { return Err(failure) };
                match self.tell_writers(&file).await? {
                    true => self.change(request, &[], Some(inode)).await,
                    false => Err(failure),
                }
            }
            changed => changed,
        }
    }
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::NotPermitted)
}

/// Whether a file's own bits let its owner read it, and this is the owner: whatever lists say.
fn is_readable_owner(caller: &Caller, found: &Attributes) -> bool {
    found.kind == FileKind::Regular && caller.uid == found.uid && found.mode & 0o400 != 0
}

fn made_meanwhile() -> Failure {
    Failure::new(ErrorKind::Stale, "somebody else has made it meanwhile")
}

/// How often a name may be met that is gone again when it is looked at.
const MEETINGS_MAX: usize = 3;
