//! The files that are open on this mount, by inode.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{metadata::InodeReply, metadata::OpenMode};
use millrace_types::{Failure, InodeId};

use crate::{cache::names::stamps::Note, fs::file::File};

/// Open files. An inode is here exactly while handles of it are open.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: Mutex<HashMap<InodeId, Arc<File>>>,
}

impl Files {
    /// Counts one more handle of the inode that the server's answer to an open shows, which was
    /// asked for at `viewed`.
    ///
    /// # Errors
    /// As [`File::new`] and [`crate::fs::file::State::accept`].
    pub(crate) fn handle_open(
        &self,
        reply: InodeReply,
        viewed: Note,
        mode: OpenMode,
    ) -> Result<Arc<File>, Failure> {
        let mut open = self.lock();
        let inode = reply.attributes.inode;
        let file = match open.get(&inode) {
            Some(file) => {
                file.state().accept_viewed(reply, viewed)?;
                Arc::clone(file)
            }
            None => {
                let file = Arc::new(File::new(reply, viewed)?);
                open.insert(inode, Arc::clone(&file));
                file
            }
        };
        let mut state = file.state();
        match mode {
            OpenMode::Read => state.read_opens += 1,
            OpenMode::Write => state.write_opens += 1,
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
            open.remove(&file.inode);
        }
    }

    /// The file, if it is open here.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<File>> {
        self.lock().get(&inode).cloned()
    }

    /// Every open file.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Arc<File>>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
