//! How answers go back to the kernel, and on which thread work that has to wait runs.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::FutureExt as _;
use millrace_fuse_server::{
    Call, Data, Done, Errno, Reply, XAttr,
    protocol::{
        attr::{Attr, AttrReply, EntryReply},
        open::{OpenFlags, OpenReply},
    },
};
use millrace_protocol::{metadata::Attributes, session::Caller};
use millrace_transport::Body;
use millrace_types::{Failure, InodeId};
use tokio_util::sync::CancellationToken;

use crate::{
    caller::caller,
    fs::{
        FileSystem,
        handle::{FileHandle, Occasion},
        kernel_names::Shown,
        locks::{Interest, Key},
        open::{Caching, Opened},
        pending::Pending,
    },
    fuse::{
        Adapter,
        convert::{errno, file_attr},
        interrupt::{LetGo, let_go},
    },
};

/// What is owed for one request, and to whom.
#[derive(Debug)]
pub(super) struct Owed<A> {
    reply: Reply<A>,
    /// The thread that waits.
    thread: u32,
    when: LetGo,
    /// Where it counts while it goes on without its caller.
    orphans: Option<(Arc<Pending>, InodeId)>,
    /// What tells the work that it goes on without its caller.
    told: Option<CancellationToken>,
    /// Whose locks end with it.
    leaves: Option<Leaving>,
}

/// A process that closes a descriptor, by which its locks on the file end.
#[derive(Debug)]
struct Leaving {
    fs: Arc<FileSystem>,
    inode: InodeId,
    owner: u64,
    key: Key,
}

/// Puts what may be large where it stays: as a part of the task that answers it would be moved with
/// that, several times, which takes longer than most of it does.
fn put_aside<F: Future>(work: F) -> Pin<Box<F>> {
    Box::pin(work)
}

fn leave(leaving: Option<Leaving>) {
    if let Some(Leaving { fs, inode, owner, key }) = leaving {
        fs.leave_process_locks(inode, owner, key);
    }
}

impl<A> Owed<A> {
    /// The answer of a request that changes something.
    pub(super) fn new(call: &Call<'_>, reply: Reply<A>) -> Self {
        let when = LetGo::Killed;
        Self { reply, thread: call.pid, when, orphans: None, told: None, leaves: None }
    }

    /// The answer of a request that writes to `inode`. When its caller is let go, it is one of
    /// `orphans` before the kernel hears of that, and so before the file is closed, until it ends.
    pub(super) fn writing(
        call: &Call<'_>,
        reply: Reply<A>,
        orphans: &Arc<Pending>,
        inode: InodeId,
    ) -> Self {
        Self { orphans: Some((Arc::clone(orphans), inode)), ..Self::new(call, reply) }
    }

    /// The same of work that ends soon once its caller is let go: `told` is cancelled then, before
    /// the kernel hears of that.
    pub(super) fn telling(self, told: CancellationToken) -> Self {
        Self { told: Some(told), ..self }
    }

    /// The answer of a request that only looks, or that waits for what happens anyway: who is asked
    /// to end needs not wait for it.
    pub(super) fn interruptible(call: &Call<'_>, reply: Reply<A>) -> Self {
        Self { when: LetGo::AskedToEnd, ..Self::new(call, reply) }
    }

    /// The answer of a close by which ends what the process `owner` holds of the file as `key`.
    /// When its caller is let go, that is not the next process which the kernel calls so.
    pub(super) fn closing(
        call: &Call<'_>,
        reply: Reply<A>,
        fs: &Arc<FileSystem>,
        (inode, owner, key): (InodeId, u64, Key),
    ) -> Self {
        let leaves = Some(Leaving { fs: Arc::clone(fs), inode, owner, key });
        Self { leaves, ..Self::interruptible(call, reply) }
    }

    /// The answer of a request that waits for a lock: any signal that is handled ends that.
    pub(super) fn signalled(call: &Call<'_>, reply: Reply<A>) -> Self {
        Self { when: LetGo::Signalled, ..Self::new(call, reply) }
    }

    /// Answers with what comes of `work`, unless the caller is let go before: then the answer is
    /// EINTR, `work` goes on to its end, and `discard` gets what nobody has.
    pub(super) fn answer<T>(
        self,
        work: impl Future<Output = Result<T, Failure>>,
        send: impl FnOnce(Reply<A>, T),
        discard: impl AsyncFnOnce(T),
    ) -> impl Future<Output = ()> {
        let Self { reply, thread, when, orphans, told, leaves } = self;
        let mut work = put_aside(work);
        async move {
            let outcome = tokio::select! {
                biased;
                outcome = &mut work => Some(outcome),
                () = async { let_go(reply.cancellation(), thread, when).await } => None,
            };
            match outcome {
                Some(Ok(done)) => send(reply, done),
                Some(Err(failure)) => reply.fail(errno(&failure)),
                None => {
                    let orphan = orphans.map(|(all, inode)| all.begin(inode));
                    if let Some(told) = told {
                        told.cancel();
                    }
                    leave(leaves);
                    reply.fail(Errno::INTR);
                    let ended = work.await;
                    // Before what is discarded: the release of a handle waits for it.
                    drop(orphan);
                    if let Ok(done) = ended {
                        discard(done).await;
                    }
                }
            }
        }
    }

    /// Does a part of the work, unless the caller is let go before: then the answer was EINTR, and
    /// nothing is owed when the part has ended.
    pub(super) async fn keep_until(self, part: impl Future<Output = ()>) -> Option<Self> {
        let Self { reply, thread, when, orphans, told, leaves } = self;
        let mut part = put_aside(part);
        let is_over = tokio::select! {
            biased;
            () = &mut part => true,
            () = async { let_go(reply.cancellation(), thread, when).await } => false,
        };
        if is_over {
            return Some(Self { reply, thread, when, orphans, told, leaves });
        }
        leave(leaves);
        reply.fail(Errno::INTR);
        part.await;
        None
    }

    /// Answers with what comes of asking for a lock. A caller that is let go gets what is decided
    /// within moments, otherwise EINTR; `work` learns of both, gives up what it may still get, and
    /// goes on until it has.
    pub(super) async fn answer_lock(
        self,
        interest: Interest,
        work: impl Future<Output = Result<(), Failure>>,
        send: impl FnOnce(Reply<A>),
    ) {
        let Self { reply, thread, when, .. } = self;
        let mut work = put_aside(work);
        let mut outcome = tokio::select! {
            biased;
            outcome = &mut work => Some(outcome),
            () = async { let_go(reply.cancellation(), thread, when).await } => None,
        };
        if outcome.is_none() {
            interest.hurry();
            outcome = tokio::time::timeout(DECIDED_MAX, &mut work).await.ok();
        }
        match outcome {
            Some(Ok(())) => send(reply),
            Some(Err(failure)) => reply.fail(errno(&failure)),
            None => {
                interest.give_up();
                reply.fail(Errno::INTR);
                // It has nothing left to say to anybody.
                drop(work.await);
            }
        }
    }

    /// The same for work that leaves nothing behind that somebody has to have.
    pub(super) fn answer_with<T>(
        self,
        work: impl Future<Output = Result<T, Failure>>,
        send: impl FnOnce(Reply<A>, T),
    ) -> impl Future<Output = ()> {
        self.answer(work, send, async |_| {})
    }
}

impl Owed<Done> {
    /// The answer of what closes or syncs a file, with what is to be told through `handle`; that
    /// stays to be told where the caller is let go before.
    pub(super) fn answer_telling(
        self,
        handle: Arc<FileHandle>,
        on: Occasion,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> impl Future<Output = ()> {
        let work = work.map(Ok);
        self.answer_with(work, move |reply, outcome| tell(reply, &handle, on, outcome))
    }

    /// The same of a close at once, with what came of it.
    pub(super) fn tell_close(self, handle: &FileHandle, outcome: Result<(), Failure>) {
        tell(self.reply, handle, Occasion::Close, outcome);
    }
}

fn tell(reply: Reply<Done>, handle: &FileHandle, on: Occasion, outcome: Result<(), Failure>) {
    match handle.tell(on, outcome) {
        Ok(()) => reply.done(),
        Err(failure) => reply.fail(errno(&failure)),
    }
}

impl Adapter {
    /// The kernel's number of the root is fixed; the directory that is mounted has its own.
    pub(super) fn inode(&self, node: u64) -> InodeId {
        if node == ROOT { self.root } else { InodeId(node) }
    }

    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.requests.spawn_on(work, &self.names);
    }

    pub(super) fn run_on_bytes(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.requests.spawn_on(work, &self.bytes);
    }

    pub(super) fn answer_entry(
        &self,
        owed: Owed<EntryReply>,
        work: impl Future<Output = Result<Shown, Failure>> + Send + 'static,
    ) {
        let root = self.root;
        self.run(
            owed.answer_with(work, move |reply, found| reply.send(&entry_shown(&found, root))),
        );
    }

    pub(super) fn answer_attr(
        &self,
        owed: Owed<AttrReply>,
        work: impl Future<Output = Result<Shown, Failure>> + Send + 'static,
    ) {
        let root = self.root;
        self.run(owed.answer_with(work, move |reply, found| {
            reply.send(&attr_shown(&found, root));
        }));
    }

    pub(super) fn answer_done(
        &self,
        owed: Owed<Done>,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) {
        self.run(owed.answer_with(work, |reply, ()| reply.done()));
    }

    pub(super) fn answer_xattr(
        &self,
        owed: Owed<XAttr>,
        size: u32,
        work: impl Future<Output = Result<Vec<u8>, Failure>> + Send + 'static,
    ) {
        self.run(owed.answer_with(work, move |reply, value| reply.send(size, &value)));
    }
}

/// Answers a read with its pieces as they lie.
pub(super) fn send_body(reply: Reply<Data>, body: Body) {
    if body.pieces().len() > PARTS_MAX {
        return reply.send(&body.into_contiguous());
    }
    let parts: Vec<&[u8]> = body.pieces().iter().map(|piece| &**piece).collect();
    reply.send_parts(&parts);
}

pub(super) fn caller_of(call: &Call<'_>) -> Caller {
    caller(call.uid, call.gid, call.pid)
}

pub(super) fn number(inode: InodeId, root: InodeId) -> u64 {
    if inode == root { ROOT } else { inode.0 }
}

pub(super) fn attr(attributes: &Attributes, root: InodeId) -> Attr {
    file_attr(attributes, number(attributes.inode, root))
}

/// Inode ids are never used twice, so that one generation serves.
pub(super) fn entry(attributes: &Attributes, root: InodeId) -> EntryReply {
    EntryReply::new(number(attributes.inode, root), attr(attributes, root), UNCACHED)
}

/// What the kernel is told of a name that is known here, and may keep of it.
pub(super) fn entry_shown(shown: &Shown, root: InodeId) -> EntryReply {
    let mut reply = entry(&shown.attributes, root);
    (reply.entry_valid, reply.entry_valid_nsec) = valid(shown.keep.name);
    (reply.attr_valid, reply.attr_valid_nsec) = valid(shown.keep.attributes);
    reply
}

/// What the kernel is told of an inode that is known here, and may keep of it.
pub(super) fn attr_shown(shown: &Shown, root: InodeId) -> AttrReply {
    AttrReply::new(attr(&shown.attributes, root), shown.keep.attributes)
}

fn valid(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

/// What the kernel is told of a file that was opened with `flags` of open(2).
pub(super) fn open_reply(opened: &Opened, flags: i32) -> OpenReply {
    let caching = match opened.caching {
        Caching::Fresh => OpenFlags::EMPTY,
        Caching::Keep => OpenFlags::KEEP_CACHE,
        Caching::Bypass => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
    };
    // A reader has nothing to flush at close: one request less.
    let reads = flags & libc::O_ACCMODE == libc::O_RDONLY && !opened.hears_closes;
    let flags = if reads { caching | OpenFlags::NOFLUSH } else { caching };
    OpenReply { handle: opened.handle, flags, ..OpenReply::default() }
}

/// The kernel asks again at the next use.
const UNCACHED: Duration = Duration::ZERO;

/// How long a caller that is let go from a lock is kept for what is decided already: round trips to
/// a server that answers.
const DECIDED_MAX: Duration = Duration::from_millis(300);

/// The kernel's number of the root.
const ROOT: u64 = 1;

/// Symbolic links have no permissions of their own.
pub(super) const SYMLINK_MODE: u16 = 0o777;

/// The longest name, in bytes.
pub(super) const NAME_LEN_MAX: u32 = 255;

const _: () = assert!(NAME_LEN_MAX as usize == millrace_types::name::NAME_LEN_MAX);

/// Parts of one answer: the system takes 1,024, and the header is one. With packets of 1,452 bytes,
/// 1 MiB has 740.
const PARTS_MAX: usize = 1_000;
