//! Inodes whose names were removed through this mount while programs still have them open in a way
//! that no server knows of: directories, FIFOs, sockets and device nodes, and whatever is open with
//! `O_PATH` or is a current directory.
//!
//! The server forgets such an inode with its last name. To who has it open it stays what it was, as
//! POSIX wants it: `fstat` shows it without names, and owner, mode and times can be changed; nobody
//! else can ever see that. What is kept here answers only after the server has said that the inode
//! is gone. The kernel says when nobody has it open any more, which for most is at once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::metadata::{Attributes, FileKind, SetTime};
use millrace_types::{ErrorKind, Failure, InodeId, Timestamp};

use super::attributes::Changes;

/// What was last known of inodes that may be gone.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    inodes: Mutex<HashMap<InodeId, Attributes>>,
}

impl Removed {
    /// A name of it was removed, perhaps the last one.
    pub(crate) fn handle_removal(&self, last: Attributes, now: Timestamp) {
        let mut inodes = self.lock();
        if inodes.len() >= INODES_MAX && !inodes.contains_key(&last.inode) {
            // Any one: who has it open is told that it is stale, as after a removal elsewhere.
            if let Some(&other) = inodes.keys().next() {
                inodes.remove(&other);
            }
        }
        inodes.insert(last.inode, Attributes { links: 0, changed: now, ..last });
    }

    /// What `stat` shows in the place of this failure to ask the server.
    ///
    /// # Errors
    /// The failure, unless it says that the inode is gone, and its removal has been seen here.
    pub(crate) fn show(&self, inode: InodeId, failure: Failure) -> Result<Attributes, Failure> {
        match failure.kind {
            ErrorKind::Stale => self.lock().get(&inode).cloned().ok_or(failure),
            _ => Err(failure),
        }
    }

    /// Changes what `stat` shows, in the place of this failure. The kernel has checked the caller's
    /// rights.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn change(
        &self,
        inode: InodeId,
        changes: Changes,
        now: Timestamp,
        failure: Failure,
    ) -> Result<Attributes, Failure> {
        let mut inodes = self.lock();
        let kept = inodes.get_mut(&inode).filter(|_| failure.kind == ErrorKind::Stale);
        // Bytes belong to the server, which keeps files that are open.
        let kept = kept.filter(|_| changes.size.is_none()).ok_or(failure)?;
        let is_given_away = changes.uid.is_some() || changes.gid.is_some();
        if is_given_away && kept.kind == FileKind::Regular {
            let group_executes = kept.mode & 0o010 != 0;
            kept.mode &= if group_executes { 0o1777 } else { 0o3777 };
        }
        let at = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        kept.uid = changes.uid.unwrap_or(kept.uid);
        kept.gid = changes.gid.unwrap_or(kept.gid);
        kept.mode = changes.mode.unwrap_or(kept.mode);
        kept.accessed = changes.accessed.map_or(kept.accessed, at);
        kept.modified = changes.modified.map_or(kept.modified, at);
        kept.changed = now;
        Ok(kept.clone())
    }

    /// The kernel has dropped the inode: nobody has it open.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.lock().remove(&inode);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Attributes>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Far more than hosts have open directories without names; half a megabyte.
const INODES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use millrace_types::ChangeCount;

    use super::*;

    const INODE: InodeId = InodeId(7);

    fn attributes(kind: FileKind) -> Attributes {
        let time = Timestamp(1);
        Attributes {
            inode: INODE,
            kind,
            mode: 0o4755,
            uid: 1000,
            gid: 1000,
            links: 2,
            device: 0,
            size: 0,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            change_count: ChangeCount(1),
        }
    }

    fn gone() -> Failure {
        ErrorKind::Stale.into()
    }

    #[test]
    fn what_is_gone_is_shown_without_names_until_the_kernel_forgets_it() {
        let removed = Removed::default();
        assert!(removed.show(INODE, gone()).is_err(), "nobody has seen its removal");
        removed.handle_removal(attributes(FileKind::Directory), Timestamp(5));
        let shown = removed.show(INODE, gone()).expect("seen");
        assert_eq!((shown.links, shown.changed), (0, Timestamp(5)));
        let other = removed.show(INODE, ErrorKind::Unavailable.into()).expect_err("not gone");
        assert_eq!(other.kind, ErrorKind::Unavailable);
        removed.forget(INODE);
        assert_eq!(removed.show(INODE, gone()).expect_err("forgotten").kind, ErrorKind::Stale);
    }

    #[test]
    fn owner_mode_and_times_change_and_bytes_do_not() {
        let removed = Removed::default();
        removed.handle_removal(attributes(FileKind::Regular), Timestamp(5));
        let change = |changes| removed.change(INODE, changes, Timestamp(9), gone());
        let changes = Changes {
            uid: Some(0),
            accessed: Some(SetTime::At(Timestamp(3))),
            modified: Some(SetTime::Now),
            ..Changes::default()
        };
        let shown = change(changes).expect("seen");
        assert_eq!((shown.uid, shown.gid, shown.mode), (0, 1000, 0o755));
        let times = (shown.accessed, shown.modified, shown.changed);
        assert_eq!(times, (Timestamp(3), Timestamp(9), Timestamp(9)));
        let shown = change(Changes { mode: Some(0o600), ..Changes::default() }).expect("seen");
        assert_eq!((shown.mode, shown.uid), (0o600, 0));
        assert!(change(Changes { size: Some(1), ..Changes::default() }).is_err());
    }

    #[test]
    fn there_are_never_more_than_the_bound() {
        let removed = Removed::default();
        for inode in 0..=INODES_MAX as u64 {
            let kept = Attributes { inode: InodeId(inode), ..attributes(FileKind::Fifo) };
            removed.handle_removal(kept, Timestamp(5));
        }
        assert_eq!(removed.lock().len(), INODES_MAX);
        assert!(removed.show(InodeId(INODES_MAX as u64), gone()).is_ok(), "the newest stays");
    }
}
