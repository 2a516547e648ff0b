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
    /// question that was answered with it. What was known does not count any more. Tells whether
    /// anything but names may have changed.
    pub(crate) fn show(&self, attributes: Attributes, asked: Note) -> bool {
        let directory = attributes.inode;
        let what = Recall::Attributes(directory);
        let _alone = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        // In this order: what is taken back after the first is seen by who raises it.
        let before = self.stamps.last(&what);
        let known = self.counting(directory, before);
        let raised = self.stamps.raise_known(&what, before);
        let rights = |shown: &Attributes| (shown.mode, shown.uid, shown.gid);
        let is_other =
            known.as_ref().is_none_or(|kept| rights(&kept.attributes) != rights(&attributes));
        // Where a change from here has ended since then, and nothing is kept that it has shown,
        // nobody knows which of the two is older.
        let is_oldest = before > asked && known.is_none();
        if let Some(own) = raised.filter(|_| !is_oldest) {
            let lease = Lease { key: directory, since: Since { own, lease: asked } };
            let attributes = newer(known, attributes);
            self.attributes.insert(directory, Kept { attributes, lease, is_bare: false });
        }
        is_other
    }

    /// A change from here has ended that began at `since`, and shows this of a directory: that is
    /// kept, or what was shown meanwhile and is newer, unless it was taken back.
    pub(super) fn end_shown(&self, directory: InodeId, since: Note, shows: Option<&Attributes>) {
        let what = Recall::Attributes(directory);
        let _alone = self.shows.lock().unwrap_or_else(PoisonError::into_inner);
        // In this order: what is taken back after the first is seen by who raises it.
        let before = self.stamps.last(&what);
        let meanwhile = self.counting(directory, before);
        let raised = self.stamps.end_known(&what, before);
        let (Some(own), Some(shows)) = (raised, shows) else { return };
        let lease = match (&meanwhile, before > since) {
            (_, false) => since,
            (Some(kept), true) => kept.lease.since.lease,
            // It was taken back, or changed from here by another.
            (None, true) => return,
        };
        let attributes = newer(meanwhile, shows.clone());
        let lease = Lease { key: directory, since: Since { own, lease } };
        self.attributes.insert(directory, Kept { attributes, lease, is_bare: false });
    }

    /// The attributes of a directory, taken back or changed last at `last`, if nothing but a change
    /// of this mount that is under way may have made them old.
    fn counting(&self, directory: InodeId, last: Note) -> Option<Kept> {
        let kept = self.attributes.get(&directory)?;
        let Since { own, lease } = kept.lease.since;
        let counts = last <= own && self.stamps.stands(&Recall::Lease(kept.lease.key), lease);
        counts.then_some(kept)
    }

    /// What was kept of an inode after `note`: it was so at a moment since then, whatever changes
    /// now.
    pub(crate) fn shown_since(&self, inode: InodeId, note: Note) -> Option<Attributes> {
        let last = self.stamps.last(&Recall::Attributes(inode));
        let kept = self.counting(inode, last)?;
        (kept.lease.since.own > note).then_some(kept.attributes)
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
