//! Which files were written, made or renamed, for whoever sends them on to their buckets.
//!
//! The engine notes it after each command, while somebody listens; otherwise that costs one load of
//! an atomic. Nothing here lasts: who listens looks at everything once when it begins. It is
//! bounded too: what does not fit is told as missed, and is found by looking at everything again.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_protocol::metadata::RenameMode;
use millrace_types::{FileName, InodeId};
use tokio::sync::Notify;

use crate::{
    command::{Command, Outcome},
    namespace::tree,
    store::{StoreError, View},
};

/// Inodes that were noted and not taken: 4 MiB with their table.
const NOTED_MAX: usize = 1 << 18;

/// What happened since it was last taken.
#[derive(Debug, Default)]
pub struct Written {
    is_heard: AtomicBool,
    noted: Mutex<Noted>,
    news: Notify,
}

/// Inodes, each once, in no order.
#[derive(Debug, Default)]
pub struct Noted {
    /// Files, links and directories that were made or written, or opened or closed for that.
    pub changed: HashSet<InodeId>,
    /// Those that have another name, with everything below them.
    pub moved: HashSet<InodeId>,
    /// There was more than fits.
    pub missed: bool,
}

impl Written {
    /// Whether anything is noted from now on.
    pub fn listen(&self, is_heard: bool) {
        self.is_heard.store(is_heard, Ordering::Release);
        if !is_heard {
            drop(self.take());
        }
    }

    /// Notes what a command changed that has just been executed; `view` shows it.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn note(
        &self,
        view: &dyn View,
        command: &Command,
        outcome: &Outcome,
    ) -> Result<(), StoreError> {
        if !self.is_heard.load(Ordering::Acquire) {
            return Ok(());
        }
        let changed = match (command, outcome) {
            (
                Command::Create(_)
                | Command::CreateMasked(_)
                | Command::Publish(_)
                | Command::PublishInline(_),
                Outcome::Inode(inode),
            ) => *inode,
            (Command::OpenWrite(open), _) => open.opener.inode,
            (Command::CloseWrite(opener), _) => opener.inode,
            (Command::CloseWrites { inodes, .. } | Command::CloseUnwritten { inodes, .. }, _) => {
                for &inode in inodes {
                    self.put(|noted| &mut noted.changed, inode);
                }
                return Ok(());
            }
            (Command::Commit(commit), _) => commit.inode,
            (Command::SetAttributes(set), _) => set.inode,
            (Command::MakeLink(link), _) => link.inode,
            (Command::ResolveConflict(resolve), _) => resolve.inode,
            (Command::ReopenExport { inode, .. }, _) => *inode,
            // It may have another name, under which it goes from now on.
            (Command::Remove(_), Outcome::Inode(inode)) => *inode,
            (Command::Rename(rename), _) => {
                let back = (rename.source_parent, &rename.source_name);
                let back = (rename.mode == RenameMode::Exchange).then_some(back);
                let places = [Some((rename.target_parent, &rename.target_name)), back];
                for (directory, name) in places.into_iter().flatten() {
                    self.note_moved(view, directory, name)?;
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.put(|noted| &mut noted.changed, changed);
        Ok(())
    }

    fn note_moved(
        &self,
        view: &dyn View,
        directory: InodeId,
        name: &FileName,
    ) -> Result<(), StoreError> {
        if let Some(entry) = tree::entry(view, directory, name)? {
            self.put(|noted| &mut noted.moved, entry.inode);
        }
        Ok(())
    }

    fn put(&self, set: impl FnOnce(&mut Noted) -> &mut HashSet<InodeId>, inode: InodeId) {
        let mut noted = self.lock();
        if noted.changed.len() + noted.moved.len() >= NOTED_MAX {
            noted.missed = true;
        } else {
            set(&mut noted).insert(inode);
        }
        drop(noted);
        self.news.notify_one();
    }

    /// Takes what was noted.
    pub fn take(&self) -> Noted {
        std::mem::take(&mut self.lock())
    }

    /// Waits until there may be something to take. May be dropped at its await.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::SessionId;

    use super::*;
    use crate::{command::Opener, store::memory::MemoryStore};

    fn close(inode: u64) -> Command {
        Command::CloseWrite(Opener { session: SessionId(1), inode: InodeId(inode) })
    }

    #[test]
    fn nothing_is_noted_before_somebody_listens_and_each_file_once() {
        let (written, store) = (Written::default(), MemoryStore::default());
        let note = |inode| written.note(&store, &close(inode), &Outcome::Done).unwrap();
        note(7);
        assert!(written.take().changed.is_empty());
        written.listen(true);
        [7, 8, 7].into_iter().for_each(note);
        let noted = written.take();
        assert_eq!(noted.changed, HashSet::from([InodeId(7), InodeId(8)]));
        assert!(!noted.missed && noted.moved.is_empty());
        note(9);
        written.listen(false);
        assert!(written.take().changed.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_told_as_missed() {
        let (written, store) = (Written::default(), MemoryStore::default());
        written.listen(true);
        for inode in 0..=NOTED_MAX as u64 {
            written.note(&store, &close(inode), &Outcome::Done).unwrap();
        }
        let noted = written.take();
        assert!(noted.missed);
        assert_eq!(noted.changed.len(), NOTED_MAX);
        assert!(!written.take().missed);
    }
}
