//! What the kernel is told without having asked. Each blocks, so that none is sent by a thread that
//! has a request to answer.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use millrace_fuse_server::{Errno, Notifier};
use millrace_types::{FileName, InodeId};

use super::{answer::number, places::Place};
use crate::fs::kernel_names::Way;

/// Drops all pages that the kernel holds of an inode of the mount whose root is `root`. Blocks
/// behind reads of them that are not answered.
pub(crate) fn drop_pages(notifier: &Notifier, inode: InodeId, root: InodeId) {
    let whole = 0..i64::MAX.unsigned_abs();
    if let Err(error) = settled(notifier.inval_data(number(inode, root), whole)) {
        tracing::warn!(%inode, %error, "the kernel keeps pages that are old");
    }
}

/// Drops what the kernel holds of a name. Blocks behind what changes that directory.
pub(crate) fn drop_place(notifier: &Notifier, (parent, name): &Place, root: InodeId) {
    let name = OsStr::from_bytes(name.as_bytes());
    if let Err(error) = settled(notifier.inval_entry(number(*parent, root), name)) {
        tracing::warn!(%parent, %error, "the kernel keeps a name that is old");
    }
}

/// The way to what the kernel may keep of the names of a mount.
pub(crate) struct NamesWay {
    /// Tells it.
    pub(crate) notifier: Notifier,
    /// The directory that is mounted.
    pub(crate) root: InodeId,
    /// The kernel can have a name expire.
    pub(crate) expires: bool,
}

impl Way for NamesWay {
    fn drop_attributes(&self, inode: InodeId) -> bool {
        let answer = self.notifier.inval_attributes(number(inode, self.root));
        if let Err(error) = settled(answer) {
            tracing::warn!(%inode, %error, "the kernel keeps attributes that are old");
        }
        answer != Err(Errno::NOENT)
    }

    fn drop_name(&self, directory: InodeId, name: &FileName) {
        drop_place(&self.notifier, &(directory, name.clone()), self.root);
    }

    fn expires(&self) -> bool {
        self.expires
    }

    fn expire_name(&self, directory: InodeId, name: &FileName) {
        let os_name = OsStr::from_bytes(name.as_bytes());
        let answer = self.notifier.expire_entry(number(directory, self.root), os_name);
        if let Err(error) = settled(answer) {
            tracing::warn!(%directory, %error, "the kernel keeps a name longer than it should");
        }
    }
}

/// It may have nothing of the kind, or the mount has ended.
fn settled(answer: Result<(), Errno>) -> Result<(), Errno> {
    match answer {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NOTCONN) => Ok(()),
        answer => answer,
    }
}
