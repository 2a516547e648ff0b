//! flock and fcntl: locks that hold over all hosts.
//!
//! The metadata server decides. What it has answered is kept here ([`held`]), because a server that
//! was restarted has to be told, and so has a program that has lost its locks with the session.
//! Waits are watched together ([`waits`]); closes that are under way are waited for ([`closing`]).
//!
//! A lock makes shared files coherent, as on NFS: before a lock for writing is given up, what was
//! written is stored and committed; before a lock is said to be taken, the file's attributes, what
//! was fetched of it and the kernel's pages are renewed, if it has changed since they were.
//!
//! Whoever does not want to wait any more is let go at once, whatever the server does. What was
//! asked for is then given up behind its back: a wait is cancelled, and a lock that was granted all
//! the same becomes again what it was before.
//!
//! The right to append is a lock too, of the mount instead of its programs ([`appends`]).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_protocol::{
    lock::{Lock, LockConflict, LockSpace},
    session::Held,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, SessionId};
use tokio_util::sync::CancellationToken;

use crate::fs::{FileSystem, file::File, handle::FileHandle};
use appends::Appends;
use held::{Asker, Asking, Before, HeldLocks, Turn};
use waits::{Wait, Waits};

pub(crate) use held::Key;

mod appends;
mod closing;
mod held;
mod waits;

/// The locks of one mount.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Arc<HeldLocks>,
    waits: Waits,
    appends: Appends,
    /// Programs that may wait, if that is limited.
    waits_max: OnceLock<usize>,
}

impl Locks {
    /// Lets no more than so many programs wait; the others are told ENOLCK. For a channel in which
    /// requests that wait take the places of others, unlocking included.
    pub(crate) fn limit_waits(&self, most: usize) {
        assert!(self.waits_max.set(most).is_ok(), "a mount has one channel");
    }

    /// Whether ranges of the file were locked here.
    pub(crate) fn has_ranges(&self, inode: InodeId) -> bool {
        self.held.has_ranges(inode)
    }

    /// Whether anybody here has locks on the file, or asks for some.
    pub(crate) fn concern(&self, inode: InodeId) -> bool {
        self.held.concern(inode)
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.held.forget(inode);
    }
}

/// Whether somebody still wants the lock that is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interest {
    /// The program shall not be kept waiting any longer.
    hurry: CancellationToken,
    /// It has been told that it does not have the lock.
    gone: Arc<AtomicBool>,
}

impl Interest {
    /// The program does not want to wait any longer; it takes what is decided already.
    pub(crate) fn hurry(&self) {
        self.hurry.cancel();
    }

    /// The program has been told that it does not have the lock.
    pub(crate) fn give_up(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl FileSystem {
    /// `F_GETLK`: a lock of somebody else that is in the way.
    ///
    /// # Errors
    /// What the server answers; [`ErrorKind::SessionGone`] when locks of this open file are lost.
    pub(crate) async fn test_lock(
        &self,
        handle: &FileHandle,
        lock: Lock,
    ) -> Result<Option<LockConflict>, Failure> {
        handle.check_locks()?;
        self.settle(lock.inode).await?;
        // Whoever holds nothing is nobody to the server.
        let owner = self.locks.held.present(Asker::of(&lock));
        let lock = owner.map_or(Lock { owner: 0, ..lock }, |owner| owner.names(lock));
        let has_others = self.locks.held.has_others(Key::of(&lock));
        let found = self.cluster.test_lock(lock).await?;
        if found.is_none() || !has_others {
            return Ok(found);
        }
        self.closes_end(Key::of(&lock)).await;
        self.cluster.test_lock(lock).await
    }

    /// Takes, changes or gives back a lock through the open file `number`; waits for it with
    /// `wait`, for as long as `interest` lasts. Must run to its end.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`], [`ErrorKind::Deadlock`], [`ErrorKind::NoLocks`]; what else the server
    /// answers; [`ErrorKind::Cancelled`] when nobody wants it any more; [`ErrorKind::SessionGone`]
    /// when locks of this open file are lost.
    pub(crate) async fn set_lock(
        &self,
        (number, handle): (u64, Arc<FileHandle>),
        lock: Lock,
        wait: bool,
        interest: &Interest,
    ) -> Result<(), Failure> {
        handle.check_locks()?;
        if lock.kind.is_none() {
            if let Some(owner) = self.locks.held.present(Asker::of(&lock)) {
                self.unlock(owner.names(lock)).await?;
            }
            return handle.check_locks();
        }
        self.settle(lock.inode).await?;
        // Where the server knows of none that is open, it takes the session's locks for over.
        self.tell_open(number, &handle).await?;
        let asker = Asker::of(&lock);
        loop {
            let owner = self.locks.held.asking(asker, number, self.cluster.session());
            let lock = owner.key().names(lock);
            let has_others = !wait && self.locks.held.has_others(owner.key());
            let asked = self.ask_for(&owner, (number, &handle), lock, wait, interest).await;
            match asked {
                Err(failure) if failure.kind == ErrorKind::Locked && has_others => {
                    self.closes_end(owner.key()).await;
                    self.ask_for(&owner, (number, &handle), lock, wait, interest).await?;
                }
                asked => asked?,
            }
            if self.locks.held.present(asker) == Some(owner.key()) || interest.is_gone() {
                return Ok(());
            }
            // It has left that one meanwhile, by closing another descriptor of the file.
            self.unlock(Lock { kind: None, ..lock }).await?;
        }
    }

    /// As [`Self::set_lock`], as one owner.
    async fn ask_for(
        &self,
        owner: &Asking,
        (number, handle): (u64, &FileHandle),
        lock: Lock,
        wait: bool,
        interest: &Interest,
    ) -> Result<(), Failure> {
        let waiting = wait.then(|| self.begin_wait());
        loop {
            let session = self.cluster.session();
            let through = (number, handle);
            let outcome = self.try_lock(owner, through, lock, waiting.as_ref(), interest).await;
            match outcome {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(failure) if failure.kind == ErrorKind::SessionGone => {
                    self.lose_ended(owner, self.cluster.session());
                    handle.check_locks()?;
                    continue;
                }
                Err(failure) => {
                    if let Some(wait) = &waiting
                        && (failure.kind == ErrorKind::Cancelled || !is_answer(&failure))
                    {
                        self.cancel_wait(session, wait.number());
                    }
                    return Err(failure);
                }
            }
            let wait = waiting.as_ref().expect("only a wait is queued");
            if self.locks.waits_max.get().is_some_and(|&most| self.locks.waits.len() > most) {
                self.cancel_wait(session, wait.number());
                let words = "so many programs wait for locks that others would not be heard";
                return Err(Failure::new(ErrorKind::NoLocks, words));
            }
            tokio::select! {
                () = wait.told() => {}
                () = interest.hurry.cancelled() => {
                    self.cancel_wait(session, wait.number());
                    return Err(ErrorKind::Cancelled.into());
                }
            }
        }
    }

    /// One exchange, and what belongs to a lock that is granted. `false`: it is queued.
    async fn try_lock(
        &self,
        owner: &Asking,
        (number, handle): (u64, &FileHandle),
        lock: Lock,
        wait: Option<&Wait<'_>>,
        interest: &Interest,
    ) -> Result<bool, Failure> {
        if owner.gives_up_writing(lock.range, lock.kind) {
            self.store_before_unlock(lock.inode).await;
        }
        let turn = owner.turn().await;
        if interest.hurry.is_cancelled() {
            return Err(ErrorKind::Cancelled.into());
        }
        let session = self.cluster.session();
        self.lose_ended(owner, session);
        handle.check_locks()?;
        let before = owner.within(lock.range);
        let waiting = wait.map_or(0, Wait::number);
        let answer = self.cluster.set_lock(session, lock, waiting).await;
        let granted = match answer {
            Ok(reply) if reply.granted => reply.change_count,
            Ok(_) => {
                lose_converted(owner, session, lock);
                if let Some(wait) = wait {
                    wait.goes_on();
                }
                return Ok(false);
            }
            Err(failure) if is_answer(&failure) => {
                if failure.kind != ErrorKind::SessionGone {
                    lose_converted(owner, session, lock);
                }
                return Err(failure);
            }
            // It may have been granted, and nobody is told.
            Err(failure) => {
                self.restore_later(owner, turn, session, before);
                return Err(failure);
            }
        };
        owner.record(session, &lock);
        // Another descriptor of the open file may have been closed while this waited.
        owner.handle_asked(number);
        // It may have ended before that was recorded, and its locks be given up already.
        if self.lose_ended(owner, self.cluster.session()) {
            return Err(ErrorKind::SessionGone.into());
        }
        let renewed = tokio::select! {
            biased;
            renewed = self.renew(&handle.file, granted) => renewed,
            () = interest.hurry.cancelled() => Err(ErrorKind::Cancelled.into()),
        };
        let kept = if interest.is_gone() { Err(ErrorKind::Cancelled.into()) } else { renewed };
        if kept.is_err() {
            self.restore_later(owner, turn, session, before);
        }
        kept.map(|()| true)
    }

    /// Gives a lock back, or part of it.
    async fn unlock(&self, lock: Lock) -> Result<(), Failure> {
        let Some(owner) = self.locks.held.find(Key::of(&lock)) else { return Ok(()) };
        if owner.gives_up_writing(lock.range, None) {
            self.store_before_unlock(lock.inode).await;
        }
        let turn = owner.turn().await;
        let session = self.cluster.session();
        self.lose_ended(&owner, session);
        let before = owner.within(lock.range);
        // At once, so that it is not declared any more, whatever becomes of the exchange.
        owner.record(session, &lock);
        match self.cluster.set_lock(session, lock, 0).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.kind == ErrorKind::SessionGone => Ok(()),
            Err(failure) if failure.kind == ErrorKind::NoLocks => {
                for (range, kind) in before {
                    owner.record(session, &Lock { range, kind, ..lock });
                }
                Err(failure)
            }
            Err(failure) => {
                self.restore_later(&owner, turn, session, vec![(lock.range, None)]);
                Err(failure)
            }
        }
    }

    /// As whom a process holds ranges of the file, or asks for some.
    pub(crate) fn process_locks(&self, inode: InodeId, owner: u64) -> Option<Key> {
        self.locks.held.present(Asker::of_process(inode, owner))
    }

    /// A process is let go that closes a descriptor, by which ends what it holds of the file as
    /// `key`: to be called before the kernel hears that, which then names others like it.
    pub(crate) fn leave_process_locks(&self, inode: InodeId, owner: u64, key: Key) {
        self.locks.held.leave(Asker::of_process(inode, owner), key);
    }

    /// An open file is closed for good.
    pub(crate) fn leave_locks_through(&self, handle: u64) {
        self.locks.held.leave_through(handle);
    }

    /// The process `owner` closes a descriptor of the open file `handle`: what it holds of the file
    /// as `key` ends. If programs were killed in writes to it that go on, a little later: not
    /// before those have ended, for which nobody waits who could not be killed any more.
    pub(crate) async fn end_process_locks(
        &self,
        handle: u64,
        inode: InodeId,
        owner: u64,
        key: Key,
    ) {
        if self.orphans.is_empty(inode) {
            return self.end_locks_of(key, handle).await;
        }
        self.leave_process_locks(inode, owner, key);
        self.spawn(move |this| async move {
            this.orphans.earlier(inode).await;
            this.end_locks_of(key, handle).await;
        });
    }

    async fn end_locks_of(&self, key: Key, handle: u64) {
        self.end_locks(key).await;
        if let Some(owner) = self.locks.held.find(key) {
            owner.handle_closed(handle);
        }
    }

    /// The end of an open file: the locks that were taken through it end.
    pub(crate) async fn end_locks_through(&self, handle: u64) {
        for key in self.locks.held.through(handle) {
            self.end_locks(key).await;
        }
    }

    async fn end_locks(&self, key: Key) {
        if let Err(failure) = self.unlock(key.nothing()).await {
            tracing::warn!(?key, %failure, "unlocking goes on in the background");
        }
    }

    /// After a restart of the metadata server: tells it what is held here, and goes on until that
    /// is heard. Tells whether the server has taken it.
    pub(crate) async fn declare_locks(&self) -> bool {
        loop {
            match self.cluster.declare(|session| self.locks.held.declared(session)).await {
                Ok(lost) => {
                    self.handle_lost(lost);
                    return true;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "cannot declare the locks");
                    if is_answer(&failure) {
                        return false;
                    }
                }
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The session has ended: what was held under it is lost, and programs are told when they use
    /// the open files that they held it through.
    pub(crate) fn lose_locks(&self) {
        let (handles, inodes) = self.locks.held.lose_all_but(self.cluster.session());
        for inode in &inodes {
            tracing::error!(%inode, "locks are lost with the session");
        }
        self.lose_locks_of(handles.into_iter());
    }

    /// The same for one owner, whose turn it is, in case that nobody has seen to it yet: `session`
    /// is the present one. Tells whether it had anything to lose.
    fn lose_ended(&self, owner: &Asking, session: SessionId) -> bool {
        let lost = owner.lose_all_but(session);
        let had_some = !lost.is_empty();
        if had_some {
            tracing::error!(key = ?owner.key(), "locks are lost with the session");
            self.lose_locks_of(lost.into_iter());
        }
        had_some
    }

    fn handle_lost(&self, lost: Vec<Held>) {
        for Held::Lock(lock) in lost {
            tracing::error!(inode = %lock.inode, "a lock is lost: somebody else has it");
            if let Some(owner) = self.locks.held.find(Key::of(&lock)) {
                self.lose_locks_of(owner.lose(lock.range).into_iter());
            }
            if lock.space == LockSpace::Append
                && let Some(file) = self.files.find(lock.inode)
            {
                let words = "the right to append was lost before the writes were stored";
                file.state().record_given_up();
                self.fail_buffered(&file, words);
            }
        }
    }

    /// Lets nothing more be read or written through these open files; the kernel's pages are
    /// dropped, so that it asks.
    fn lose_locks_of(&self, handles: impl Iterator<Item = u64>) {
        for number in handles {
            let Ok(handle) = self.handles.find(number) else { continue };
            handle.lose_locks();
            let inode = handle.file.inode;
            self.spawn(|this| async move { this.pages.drop_all(inode).await });
        }
    }

    /// Stores and commits what was written, so that the next one to lock it sees it. A failure is
    /// reported by a later write, fsync or close, as for all writes.
    async fn store_before_unlock(&self, inode: InodeId) {
        let Some(file) = self.files.find(inode) else { return };
        self.flush_file(&file).await;
        if let Err(failure) = self.commit(&file, false).await {
            tracing::warn!(%inode, %failure, "cannot commit what was written under a lock");
            file.state().record_failure(failure);
        }
    }

    /// Renews what is known of a file that is at `count` by now, and was at another when the
    /// kernel's pages were known to be good.
    async fn renew(&self, file: &Arc<File>, count: ChangeCount) -> Result<(), Failure> {
        if file.state().pages_count == count {
            return Ok(());
        }
        self.refresh(file).await?;
        let shown = file.state().attributes.change_count;
        // Reads hold their pages until they are answered.
        self.reads.earlier(file.inode).await;
        self.pages.drop_all(file.inode).await;
        let mut state = file.state();
        state.pages_count = state.pages_count.max(shown);
        Ok(())
    }

    /// A wait, and somebody who watches over all of them.
    fn begin_wait(&self) -> Wait<'_> {
        let (wait, unwatched) = self.locks.waits.begin();
        if unwatched {
            self.spawn(|this| async move { this.watch_waits().await });
        }
        wait
    }

    async fn watch_waits(&self) {
        while let Some(known) = self.locks.waits.known() {
            let session = self.cluster.session();
            match self.cluster.await_locks(session, known).await {
                Ok(reply) => {
                    for number in self.locks.waits.handle_ended(&reply.ended) {
                        self.cancel_wait(session, number);
                    }
                }
                Err(failure) => {
                    tracing::debug!(%failure, "no news of waits for locks");
                    tokio::time::sleep(WATCH_PAUSE).await;
                    self.locks.waits.handle_doubt();
                }
            }
        }
    }

    /// Ends a wait behind its program's back.
    fn cancel_wait(&self, session: SessionId, number: u64) {
        self.spawn(|this| async move {
            while let Err(failure) = this.cluster.cancel_lock(session, number).await {
                if is_answer(&failure) {
                    break;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }

    /// Gives an owner back what it held before, behind its program's back: less than it may have
    /// now, so that nobody is in the way.
    fn restore_later(&self, owner: &Asking, turn: Turn, session: SessionId, before: Before) {
        let owner = owner.clone();
        self.spawn(|this| async move {
            // Until then nothing else of this owner is on its way.
            let _turn = turn;
            for (range, kind) in before {
                let lock = Lock { range, kind, ..owner.key().nothing() };
                owner.record(session, &lock);
                while let Err(failure) = this.cluster.set_lock(session, lock, 0).await {
                    if is_answer(&failure) {
                        break;
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        });
    }
}

/// Under flock another kind than the one that is held costs that one, whatever comes of it.
fn lose_converted(owner: &Asking, session: SessionId, lock: Lock) {
    let same = owner.within(lock.range).iter().all(|(_, held)| *held == lock.kind);
    if lock.space == LockSpace::Flock && !same {
        owner.record(session, &Lock { kind: None, ..lock });
    }
}

/// Whether the failure is the server's word about the lock: it is certain what is held.
fn is_answer(failure: &Failure) -> bool {
    !failure.kind.is_transient()
}

/// Between attempts of what has to be heard however long it takes.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// After a request for news that failed, before all who wait ask for themselves.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
