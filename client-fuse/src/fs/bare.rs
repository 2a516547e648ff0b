//! Inodes that have no extended attributes, of which this mount says so without the server.
//!
//! Where access control lists or `security.*` are offered, the kernel asks for one of these before
//! much that it does with a file, and `ls -l` asks for each file that it lists; most have none.
//! There pages of directories bring which of their entries have any. That none are there is kept
//! with what the entry shows, under the same lease: who sets one changes what is shown.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_protocol::{
    lease::{EntriesPage, ListEntries, ListEntriesBare, MarkedPage},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use super::bucket_xattrs::is_of_bucket;
use crate::fs::FileSystem;

/// How pages are asked for.
#[derive(Debug, Default)]
pub(super) struct BarePages {
    /// The server is from before it could tell which entries have extended attributes.
    is_old: AtomicBool,
}

impl BarePages {
    /// The server was restarted: it may be a newer program.
    pub(super) fn handle_restart(&self) {
        self.is_old.store(false, Ordering::Relaxed);
    }
}

impl FileSystem {
    /// Whether an inode has no extended attributes, if that may be told this caller from here.
    /// Those of its bucket are not counted: nobody stores them.
    pub(crate) fn is_bare(&self, caller: &Caller, inode: InodeId) -> bool {
        self.may_answer(caller) && self.names.is_bare(inode)
    }

    /// Whether an inode has not this extended attribute, likewise. The kernel has checked whether
    /// the caller may read it.
    pub(crate) fn lacks_xattr(&self, caller: &Caller, inode: InodeId, name: &[u8]) -> bool {
        may_be_stored(name) && self.is_bare(caller, inode)
    }

    /// Asks for a page of a directory. Tells of its entries which are known to have no extended
    /// attributes, in their order; nothing where that is known of none.
    ///
    /// # Errors
    /// What the server answers.
    pub(super) async fn ask_page(
        &self,
        request: impl Fn(SessionId) -> ListEntries,
    ) -> Result<(EntriesPage, Vec<bool>), Failure> {
        if self.offered.is_any() && !self.bare_pages.is_old.load(Ordering::Relaxed) {
            let marked = |session| ListEntriesBare { list: request(session) };
            match self.ask_as_session(marked).await {
                Ok(MarkedPage { page, with_xattrs }) => {
                    let bare = all_but(page.entries.len(), &with_xattrs);
                    return Ok((page, bare));
                }
                Err(failure) if failure.kind == ErrorKind::NotSupported => {
                    self.bare_pages.is_old.store(true, Ordering::Relaxed);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok((self.ask_as_session(request).await?, Vec::new()))
    }
}

/// Whether the server may store an attribute with this name. It refuses others, which is not the
/// same as to have none.
fn may_be_stored(name: &[u8]) -> bool {
    let is_list = LISTS.contains(&name);
    (is_list || NAMESPACES.iter().any(|prefix| name.starts_with(prefix))) && !is_of_bucket(name)
}

/// `count` times `true`, but for these places.
fn all_but(count: usize, places: &[u32]) -> Vec<bool> {
    let mut all = vec![true; count];
    for place in places {
        if let Ok(place) = usize::try_from(*place)
            && let Some(at) = all.get_mut(place)
        {
            *at = false;
        }
    }
    all
}

/// Access control lists.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// How the names of all others begin.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_or_computed_is_not_told_to_be_absent() {
        for stored in ["user.comment", "security.capability", "trusted.a"] {
            assert!(may_be_stored(stored.as_bytes()), "{stored}");
        }
        assert!(LISTS.iter().all(|name| may_be_stored(name)));
        let others =
            ["user.millrace.state", "system.posix_acl_other", "system.nfs4_acl", "nothing"];
        for other in others {
            assert!(!may_be_stored(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn entries_are_bare_that_are_not_named() {
        assert_eq!(all_but(3, &[]), [true, true, true]);
        assert_eq!(all_but(3, &[0, 2]), [false, true, false]);
        assert_eq!(all_but(1, &[0, 7]), [false], "there is no such entry");
    }
}
