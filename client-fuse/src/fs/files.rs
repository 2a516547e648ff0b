//! The files that are open on this mount, by inode.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{metadata::InodeReply, metadata::OpenMode};
use millrace_types::{Failure, InodeId};

use crate::{
    cache::names::stamps::Note,
    fs::{
        durable::{LeftBehind, Whole},
        file::File,
    },
};

/// Open files. An inode is here exactly while handles of it are open.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: Mutex<HashMap<InodeId, Arc<File>>>,
    /// What is not durable of files that are not open any more. Locked after `open`.
    left: Mutex<LeftBehind>,
}

impl Files {
    /// Counts one more handle of the inode that the server's answer to an open shows, which was
    /// asked for at `viewed`, when `whole` was what [`Self::whole`] says.
    ///
    /// # Errors
    /// As [`File::new`] and [`crate::fs::file::State::accept`].
    pub(crate) fn handle_open(
        &self,
        reply: InodeReply,
        viewed: Note,
        whole: Option<Whole>,
        mode: OpenMode,
    ) -> Result<Arc<File>, Failure> {
        let mut open = self.lock();
        let (inode, shown) = (reply.attributes.inode, reply.attributes.change_count);
        let file = match open.get(&inode) {
            Some(file) => {
                file.state().accept_viewed(reply, viewed)?;
                Arc::clone(file)
            }
            None => {
                let file = Arc::new(File::new(reply, viewed)?);
                if let Some(left) = self.left().take(inode) {
                    let mut state = file.state();
                    let session = state.session();
                    state.durable.adopt(left, session);
                }
                open.insert(inode, Arc::clone(&file));
                file
            }
        };
        let mut state = file.state();
        match mode {
            OpenMode::Read => state.read_opens += 1,
            OpenMode::Write => {
                state.write_opens += 1;
                // Nobody but this open has changed it since.
                if state.pages_count.next() == shown {
                    state.pages_count = shown;
                }
                // The open itself is a change.
                state.durable.handle_own_change(whole, shown);
            }
        }
        drop(state);
        Ok(file)
    }

    /// Counts one handle less of which the closing had begun, as [`State::closing`] counts it.
    ///
    /// [`State::closing`]: crate::fs::file::State::closing
    pub(crate) fn handle_closed(&self, file: &File, mode: OpenMode) {
        self.count_less(file, mode, 1);
    }

    /// Counts one handle less; the last one takes the file out.
    pub(crate) fn handle_close(&self, file: &File, mode: OpenMode) {
        self.count_less(file, mode, 0);
    }

    fn count_less(&self, file: &File, mode: OpenMode, closing: u32) {
        let mut open = self.lock();
        let mut state = file.state();
        state.closing -= closing;
        let opens = match mode {
            OpenMode::Read => &mut state.read_opens,
            OpenMode::Write => &mut state.write_opens,
        };
        *opens = opens.checked_sub(1).expect("a handle is closed once");
        if state.read_opens == 0 && state.write_opens == 0 {
            if let Some(left) = state.leave() {
                self.left().put(file.inode, left);
            }
            open.remove(&file.inode);
        }
    }

    /// The metadata of an older day may have been put back: the session has ended, or the server
    /// has lost the end of its log.
    pub(crate) fn forget_counts(&self) {
        self.left().forget_counts();
    }

    /// The file, if it is open here.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<File>> {
        self.lock().get(&inode).cloned()
    }

    /// Every open file.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.lock().values().cloned().collect()
    }

    /// What is known of the bytes of a file, before it is changed from here.
    pub(crate) fn whole(&self, inode: InodeId) -> Option<Whole> {
        match self.find(inode) {
            Some(file) => file.state().durable.whole(),
            None => self.left().whole(inode),
        }
    }

    fn left(&self) -> MutexGuard<'_, LeftBehind> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Arc<File>>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
