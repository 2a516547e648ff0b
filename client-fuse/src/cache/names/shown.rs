//! What directories show while other hosts make names there.
//!
//! The server shows such a directory again in place of taking back what is known of it. That may
//! cross a change of this mount, whose answer shows it too; the change count says which of the two
//! is newer.

use std::sync::PoisonError;

use millrace_protocol::{lease::Recall, metadata::Attributes};
use millrace_types::InodeId;

use super::{Kept, Lease, Names, Since, stamps::Note};

impl Names {
    /// Another host has made names in a directory, which shows this now. `asked` is from before the
    /// question that was answered with it. What was known does not count any more.
    pub(crate) fn show(&self, attributes: Attributes, asked: Note) {
        let directory = attributes.inode;
        let what = Recall::Attributes(directory);
        let _alone = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.counting(directory);
        // Where a change from here has ended since then, and nothing is kept that it has shown,
        // nobody knows which of the two is older.
        let is_oldest = self.stamps.last(&what) > asked && known.is_none();
        self.stamps.raise(&what);
        if is_oldest {
            return;
        }
        let newest = newer(known, attributes);
        let since = Since { own: self.stamps.note(), lease: asked };
        self.attributes
            .insert(directory, Kept { attributes: newest, lease: Lease { key: directory, since } });
    }

    /// A change from here has ended that began at `since`, and shows this of a directory: that is
    /// kept, or what was shown meanwhile and is newer, unless it was taken back.
    pub(super) fn end_shown(&self, directory: InodeId, since: Note, shows: Option<&Attributes>) {
        let what = Recall::Attributes(directory);
        let _alone = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        let meanwhile = self.counting(directory);
        let ended = self.stamps.end_known(&what, since);
        let Some(shows) = shows else { return };
        let (attributes, lease) = match (ended, meanwhile) {
            (Some(own), _) => {
                (shows.clone(), Lease { key: directory, since: Since { own, lease: since } })
            }
            (None, Some(kept)) => {
                let since = Since { own: self.stamps.note(), ..kept.lease.since };
                (newer(Some(kept), shows.clone()), Lease { key: directory, since })
            }
            (None, None) => return,
        };
        self.attributes.insert(directory, Kept { attributes, lease });
    }

    /// The attributes of a directory that a change of this mount which is under way may have made
    /// old, and nothing else.
    fn counting(&self, directory: InodeId) -> Option<Kept> {
        let kept = self.attributes.get(&directory)?;
        let Since { own, lease } = kept.lease.since;
        let counts = self.stamps.last(&Recall::Attributes(directory)) <= own
            && self.stamps.stands(&Recall::Lease(kept.lease.key), lease);
        counts.then_some(kept)
    }

    /// What was kept of an inode after `note`: it was so at a moment since then, whatever changes
    /// now.
    pub(crate) fn shown_since(&self, inode: InodeId, note: Note) -> Option<Attributes> {
        let kept = self.attributes.get(&inode)?;
        let is_newer = kept.lease.since.own > note;
        (is_newer && self.counting(inode).is_some()).then_some(kept.attributes)
    }

    /// Whether a change of this mount to the inode is under way.
    pub(crate) fn is_changing(&self, inode: InodeId) -> bool {
        self.stamps.is_changing(&Recall::Attributes(inode))
    }

    /// Returns when a change of this mount has ended. One that ends after this was called is never
    /// missed.
    pub(crate) fn next_end(&self) -> tokio::sync::futures::Notified<'_> {
        self.ended.notified()
    }
}

fn newer(known: Option<Kept>, shown: Attributes) -> Attributes {
    match known {
        Some(Kept { attributes, .. }) if attributes.change_count > shown.change_count => attributes,
        _ => shown,
    }
}
