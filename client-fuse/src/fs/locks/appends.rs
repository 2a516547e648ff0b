//! O_APPEND over hosts: each append goes to the end, wherever others have moved it.
//!
//! One mount at a time has the right to append to a file, a lock at the metadata server. It is kept
//! from one append to the next, so that a log that one host writes costs one request, and given up
//! when another mount waits for it: after everything that was written here has been stored and
//! committed, so that the other one sees where the end is. The right goes round in the order in
//! which mounts have asked, and with the last close of the file, or the session.
//!
//! A file's `sizing` is held while the right is taken, used, and given up: whoever appends has it
//! until its bytes are in the buffer.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::lock::{Lock, WANTED_MAX};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, LockKind, LockRange};

use super::{RETRY_PAUSE, WATCH_PAUSE, held::Key, is_answer};
use crate::fs::{FileSystem, file::File, handle::FileHandle};

/// What the mount hears of others who want to append.
#[derive(Debug, Default)]
pub(super) struct Appends {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody asks the server who wants to append.
    watched: bool,
    /// The right to append to these is being given up.
    leaving: BTreeSet<InodeId>,
}

impl Appends {
    /// Whether nobody watches yet, which the caller has to see to.
    fn begin_watching(&self) -> bool {
        !std::mem::replace(&mut self.lock().watched, true)
    }

    /// What the watcher knows; `None` when nothing is held any more, and it may go.
    fn known(&self, is_any_held: impl FnOnce() -> bool) -> Option<Vec<InodeId>> {
        let mut state = self.lock();
        if state.leaving.is_empty() && !is_any_held() {
            state.watched = false;
            return None;
        }
        Some(state.leaving.iter().copied().take(WANTED_MAX).collect())
    }

    /// Whether the right to append to this file has to be given up now, and is not yet.
    fn begin_leaving(&self, inode: InodeId) -> bool {
        self.lock().leaving.insert(inode)
    }

    fn end_leaving(&self, inode: InodeId) {
        self.lock().leaving.remove(&inode);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state whole, so that a panic elsewhere cannot have torn it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem {
    /// Sees to it that nobody else appends to the file, and that its end is known. The caller holds
    /// the file's `sizing`, and goes on holding it until its bytes are in the buffer.
    ///
    /// # Errors
    /// What the server answers, [`ErrorKind::NoLocks`] among it.
    pub(crate) async fn begin_append(&self, handle: &FileHandle) -> Result<(), Failure> {
        let file = &handle.file;
        if self.may_append(file) {
            // Others may still truncate it, or write past its end.
            if self.attributes_kept(&handle.caller, file.inode).is_some() {
                return Ok(());
            }
        } else {
            let count = self.take_append(file).await?;
            if count == file.state().attributes.change_count {
                return Ok(());
            }
        }
        // What another host has cut or replaced ends where the server says, and not where the last
        // write from here did.
        if !self.names.content_stands(file.inode, file.state().viewed) {
            return self.refresh(file).await;
        }
        self.attributes(handle.caller.clone(), file.inode).await.map(drop)
    }

    /// Whether nobody else appends to the file, as [`Self::begin_append`] has seen to: the session
    /// may have ended since, or even while that waited for the file's end.
    pub(crate) fn may_append(&self, file: &File) -> bool {
        let owner = self.locks.held.find(Key::of_append(file.inode));
        owner.is_some_and(|owner| owner.holds_under(self.cluster.session()))
    }

    /// Waits for the right to append; returns the change count that the file has by then.
    async fn take_append(&self, file: &File) -> Result<ChangeCount, Failure> {
        self.settle_file(file).await?;
        let key = Key::of_append(file.inode);
        let lock = Lock { kind: Some(LockKind::Write), process: 0, ..key.nothing() };
        let owner = self.locks.held.asking_here(key, self.cluster.session());
        let mut waiting = None;
        loop {
            let turn = owner.turn().await;
            let session = self.cluster.session();
            let number = waiting.as_ref().map_or(0, super::Wait::number);
            match self.cluster.set_lock(session, lock, number).await {
                Ok(reply) if reply.granted => {
                    owner.record(session, &lock);
                    if self.locks.appends.begin_watching() {
                        self.spawn(|this| async move { this.watch_appends().await });
                    }
                    return Ok(reply.change_count);
                }
                Ok(_) => waiting.as_ref().expect("only a wait is queued").goes_on(),
                Err(failure) if failure.kind == ErrorKind::Locked && waiting.is_none() => {
                    waiting = Some(self.begin_wait());
                    continue;
                }
                Err(failure) if failure.kind == ErrorKind::SessionGone => {
                    if self.cluster.session() == session {
                        return Err(failure);
                    }
                    continue;
                }
                Err(failure) => {
                    if let Some(wait) = &waiting {
                        self.cancel_wait(session, wait.number());
                    }
                    if !is_answer(&failure) {
                        // It may have been granted, and nobody is told.
                        self.restore_later(&owner, turn, session, vec![(LockRange::WHOLE, None)]);
                    }
                    return Err(failure);
                }
            }
            drop(turn);
            if let Some(wait) = &waiting {
                wait.told().await;
            }
        }
    }

    /// The last handle of the file is about to be closed: gives up the right to append. The close
    /// alone would not do: at the server the file may have been opened here again before it, and
    /// nobody would be left to hear that others wait.
    pub(crate) async fn end_append(&self, file: &File) {
        let last = {
            let mut state = file.state();
            state.closing += 1;
            state.read_opens + state.write_opens == state.closing
        };
        if last {
            self.end_locks(Key::of_append(file.inode)).await;
        }
    }

    /// Hears who wants to append, for as long as the mount may somewhere.
    async fn watch_appends(&self) {
        while let Some(known) = self.locks.appends.known(|| self.locks.held.has_appends()) {
            match self.cluster.await_appends(self.cluster.session(), known).await {
                Ok(reply) => {
                    for inode in reply.wanted {
                        if self.locks.appends.begin_leaving(inode) {
                            self.spawn(|this| async move { this.leave_append(inode).await });
                        }
                    }
                }
                Err(failure) => {
                    tracing::debug!(%failure, "no news of others who append");
                    tokio::time::sleep(WATCH_PAUSE).await;
                }
            }
        }
    }

    /// Gives up the right to append to a file, so that another mount has it.
    async fn leave_append(&self, inode: InodeId) {
        let file = self.files.find(inode);
        let _sizing = match &file {
            Some(file) => Some(file.sizing.lock().await),
            None => None,
        };
        self.store_before_unlock(inode).await;
        let key = Key::of_append(inode);
        let owner = self.locks.held.asking_here(key, self.cluster.session());
        let turn = owner.turn().await;
        let session = self.cluster.session();
        // Closed and opened again meanwhile: somebody may have taken it anew. Then the server tells
        // again that it is wanted.
        let is_same = is_same(file.as_ref(), self.files.find(inode).as_ref());
        if is_same || !owner.holds_under(session) {
            owner.record(session, &key.nothing());
            if let Err(failure) = self.cluster.set_lock(session, key.nothing(), 0).await
                && !is_answer(&failure)
            {
                tracing::warn!(%inode, %failure, "others wait to append: it is tried again");
                self.restore_later(&owner, turn, session, vec![(LockRange::WHOLE, None)]);
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        self.locks.appends.end_leaving(inode);
    }
}

fn is_same(before: Option<&Arc<File>>, now: Option<&Arc<File>>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => Arc::ptr_eq(before, now),
        (before, now) => before.is_none() && now.is_none(),
    }
}
