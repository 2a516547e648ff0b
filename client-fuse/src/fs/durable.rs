//! What of a file survives a loss of power, as far as this mount knows.
//!
//! The bytes of a file are durable when each target that took some of them has been synced since,
//! its size when the metadata server has synced its log. Of what it has written itself this mount
//! knows which targets took it, and how many losses each had by then. Whatever else the file has,
//! from other hosts or from opens that nobody remembers, may be at any target of its layout: those
//! are synced once, and again when the file has been changed by others.

use std::collections::{BTreeMap, HashMap};

use millrace_types::{ChangeCount, InodeId, Layout, SessionId, TargetId};

use crate::fs::file::State;

/// That of one open file.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    /// Targets written to since the last sync, with the loss count that their first answer showed.
    unsynced: BTreeMap<TargetId, u64>,
    /// Those of them of which a sync is on its way.
    syncing: BTreeMap<TargetId, u64>,
    /// Of what is known that every byte is durable, beside what all these took.
    whole: Option<Whole>,
    /// What the server has shown at this count is durable there.
    told: Option<ChangeCount>,
}

/// A file of which every byte is durable, but for what was written here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Whole {
    /// As it was at this count.
    count: ChangeCount,
    /// And after so many changes of this mount that no answer has shown.
    unshown: u64,
}

/// What the next open of a file has to know of those before it.
#[derive(Debug)]
pub(crate) struct Left {
    unsynced: Box<[(TargetId, u64)]>,
    whole: Option<Whole>,
    /// In which session the server has counted so.
    session: Option<SessionId>,
}

/// That of files which nobody has open here; of those that were closed last.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind {
    young: HashMap<InodeId, Left>,
    /// Those before, to be forgotten next.
    old: HashMap<InodeId, Left>,
}

impl Durable {
    /// Records that `target` has acknowledged bytes.
    pub(crate) fn record_stored(&mut self, target: TargetId, loss_count: u64) {
        self.unsynced.entry(target).or_insert(loss_count);
    }

    /// The targets to be synced, with the loss count that each must still have. Of each is to be
    /// said how it went; what was not is in the next answer again. One at a time.
    pub(crate) fn begin_sync(&mut self) -> BTreeMap<TargetId, u64> {
        let mut all = std::mem::take(&mut self.unsynced);
        // Of several counts the oldest says what must still be there.
        all.append(&mut self.syncing);
        self.syncing.clone_from(&all);
        all
    }

    /// A sync of this target has ended; unless it is `done`, it is still to be synced.
    pub(crate) fn end_sync(&mut self, target: TargetId, done: bool) {
        if let Some(expected) = self.syncing.remove(&target)
            && !done
        {
            self.unsynced.insert(target, expected);
        }
    }

    /// Whether every byte that the file had at `count` is known to be durable, but for what was
    /// written here.
    pub(crate) fn is_whole(&self, count: ChangeCount) -> bool {
        self.whole.is_some_and(|whole| whole.count == count)
    }

    /// What [`Self::handle_own_change`] has to know of the moment before the change was sent.
    pub(crate) fn whole(&self) -> Option<Whole> {
        self.whole
    }

    /// Records that it is: all targets were synced, or none had a byte.
    pub(crate) fn record_whole(&mut self, count: ChangeCount) {
        if self.whole.is_none_or(|whole| whole.count < count) {
            self.whole = Some(Whole { count, unshown: 0 });
        }
    }

    /// This mount has changed the file once, which an answer shows at `shown`; `before` was known
    /// when that was sent. If nobody else has changed it since, nobody else has written anything.
    /// Whatever was found out meanwhile may have this change in it already: then it stays.
    pub(crate) fn handle_own_change(&mut self, before: Option<Whole>, shown: ChangeCount) {
        if self.whole == before
            && let Some(Whole { count, unshown }) = before
            && ChangeCount(count.0 + unshown).next() == shown
        {
            self.whole = Some(Whole { count: shown, unshown: 0 });
        }
    }

    /// The same, of a change whose answer shows no count.
    pub(crate) fn handle_unshown_change(&mut self, before: Option<Whole>) {
        if self.whole == before
            && let Some(whole) = &mut self.whole
        {
            whole.unshown += 1;
        }
    }

    /// Whether what the server has shown at `count` is durable there.
    pub(crate) fn is_told(&self, count: ChangeCount) -> bool {
        self.told == Some(count)
    }

    /// Records that it is.
    pub(crate) fn record_told(&mut self, count: ChangeCount) {
        self.told = self.told.max(Some(count));
    }

    /// Something was told that no count shows, and may not be durable.
    pub(crate) fn record_untold(&mut self) {
        self.told = None;
    }

    /// The server may count anew.
    pub(crate) fn forget_counts(&mut self) {
        (self.whole, self.told) = (None, None);
    }

    /// What the next open has to know, if anything, when the last one ends; `has_bytes`: of a file
    /// that has bytes at targets. The counts are those of this session.
    pub(crate) fn leave(&self, has_bytes: bool, session: Option<SessionId>) -> Option<Left> {
        let mut all = self.unsynced.clone();
        all.extend(&self.syncing);
        let whole = self.whole.filter(|_| has_bytes);
        let is_anything = !all.is_empty() || whole.is_some();
        is_anything.then(|| Left { unsynced: all.into_iter().collect(), whole, session })
    }

    /// Takes over what was left by opens before. In another session the server may count anew.
    pub(crate) fn adopt(&mut self, left: Left, session: Option<SessionId>) {
        self.unsynced.extend(left.unsynced);
        let is_same = session.is_some() && left.session == session;
        self.whole = self.whole.max(left.whole.filter(|_| is_same));
    }
}

impl LeftBehind {
    /// Keeps what the last open of a file has left.
    pub(crate) fn put(&mut self, inode: InodeId, left: Left) {
        if self.young.len() >= LEFT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(inode, left);
    }

    /// What was left of a file that is opened again. Of one that was forgotten nothing is known, as
    /// of one that was never open: all its targets are synced, and no loss count is compared.
    pub(crate) fn take(&mut self, inode: InodeId) -> Option<Left> {
        let old = self.old.remove(&inode);
        self.young.remove(&inode).or(old)
    }

    /// What was known of the bytes of a file.
    pub(crate) fn whole(&self, inode: InodeId) -> Option<Whole> {
        self.young.get(&inode).or_else(|| self.old.get(&inode))?.whole
    }

    /// The server may count anew.
    pub(crate) fn forget_counts(&mut self) {
        for left in self.young.values_mut().chain(self.old.values_mut()) {
            left.whole = None;
        }
    }
}

impl State {
    /// The bytes of which this mount does not know whether they are durable, beside those that it
    /// has written: of which layout, up to which size, at which count.
    pub(super) fn others_bytes(&self) -> Option<(Layout, u64, ChangeCount)> {
        let count = self.attributes.change_count;
        let content = self.content.as_ref().filter(|_| !self.durable.is_whole(count))?;
        Some((content.layout, self.attributes.size, count))
    }

    /// What the next open has to know, if anything, when the last one ends.
    pub(super) fn leave(&self) -> Option<Left> {
        let has_bytes = self.attributes.size > 0 && self.inline.is_none();
        self.durable.leave(has_bytes, self.session())
    }

    /// The session in which the way to the bytes was given.
    pub(super) fn session(&self) -> Option<SessionId> {
        self.access.as_ref().map(|access| access.session)
    }
}

/// Files of which it is remembered, twice: some 100 bytes each.
const LEFT_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TargetId = TargetId([1; 8]);
    const TWO: TargetId = TargetId([2; 8]);
    const SESSION: SessionId = SessionId(1);

    fn synced(durable: &mut Durable) -> Vec<(TargetId, u64)> {
        durable.begin_sync().into_iter().collect()
    }

    #[test]
    fn what_was_not_synced_to_its_end_is_synced_again_under_the_oldest_count() {
        let mut durable = Durable::default();
        durable.record_stored(ONE, 3);
        durable.record_stored(TWO, 5);
        durable.record_stored(ONE, 4);
        assert_eq!(synced(&mut durable), [(ONE, 3), (TWO, 5)]);
        // Written while that is on its way: not covered by it.
        durable.record_stored(ONE, 4);
        durable.record_stored(TWO, 6);
        durable.end_sync(ONE, true);
        durable.end_sync(TWO, false);
        assert_eq!(synced(&mut durable), [(ONE, 4), (TWO, 5)]);
        durable.end_sync(TWO, true);
        // Of the other one nobody has heard.
        assert_eq!(synced(&mut durable), [(ONE, 4)]);
        durable.end_sync(ONE, true);
        assert!(synced(&mut durable).is_empty());
    }

    #[test]
    fn only_changes_of_this_mount_leave_a_file_without_bytes_of_others() {
        let mut durable = Durable::default();
        assert!(!durable.is_whole(ChangeCount(1)));
        durable.record_whole(ChangeCount(1));
        durable.handle_own_change(durable.whole(), ChangeCount(2));
        assert!(durable.is_whole(ChangeCount(2)) && !durable.is_whole(ChangeCount(3)));
        durable.handle_own_change(durable.whole(), ChangeCount(4));
        assert!(!durable.is_whole(ChangeCount(4)), "somebody else has changed it as well");
        durable.record_whole(ChangeCount(4));
        durable.record_whole(ChangeCount(3));
        assert!(durable.is_whole(ChangeCount(4)));
        durable.record_told(ChangeCount(4));
        assert!(durable.is_told(ChangeCount(4)) && !durable.is_told(ChangeCount(5)));
        durable.record_untold();
        assert!(!durable.is_told(ChangeCount(4)) && durable.is_whole(ChangeCount(4)));
        durable.forget_counts();
        assert!(!durable.is_whole(ChangeCount(4)));
    }

    #[test]
    fn what_an_answer_shows_that_came_late_is_no_change_of_this_mount_alone() {
        let mut durable = Durable::default();
        durable.record_whole(ChangeCount(1));
        let before = durable.whole();
        // The change was made, and its answer lost; what came of it was seen and synced, and then
        // another host has changed the file.
        durable.record_whole(ChangeCount(2));
        durable.handle_own_change(before, ChangeCount(3));
        assert!(durable.is_whole(ChangeCount(2)) && !durable.is_whole(ChangeCount(3)));
        durable.handle_unshown_change(before);
        durable.handle_own_change(durable.whole(), ChangeCount(3));
        assert!(durable.is_whole(ChangeCount(3)));
    }

    #[test]
    fn changes_that_no_answer_shows_count_with_the_next_that_does() {
        let mut durable = Durable::default();
        durable.handle_unshown_change(durable.whole());
        durable.record_whole(ChangeCount(1));
        durable.handle_unshown_change(durable.whole());
        durable.handle_unshown_change(durable.whole());
        assert!(!durable.is_whole(ChangeCount(3)), "another host may have made one of them");
        durable.handle_own_change(durable.whole(), ChangeCount(4));
        assert!(durable.is_whole(ChangeCount(4)));
        durable.handle_unshown_change(durable.whole());
        durable.handle_own_change(durable.whole(), ChangeCount(7));
        assert!(!durable.is_whole(ChangeCount(7)), "somebody else has changed it as well");
        durable.record_whole(ChangeCount(7));
        durable.handle_own_change(durable.whole(), ChangeCount(8));
        assert!(durable.is_whole(ChangeCount(8)));
    }

    #[test]
    fn the_next_open_knows_what_is_not_synced_and_whether_that_is_all() {
        let mut durable = Durable::default();
        let leave = |durable: &Durable, has_bytes| durable.leave(has_bytes, Some(SESSION));
        assert!(leave(&durable, true).is_none(), "it was only read");
        durable.record_whole(ChangeCount(7));
        assert!(leave(&durable, false).is_none(), "it has nothing that could be synced");
        durable.record_stored(ONE, 3);
        durable.begin_sync();
        durable.record_stored(ONE, 4);
        durable.record_stored(TWO, 5);
        let mut next = Durable::default();
        next.adopt(leave(&durable, true).expect("there is something"), Some(SESSION));
        assert_eq!(synced(&mut next), [(ONE, 3), (TWO, 5)]);
        assert!(next.is_whole(ChangeCount(7)) && !next.is_told(ChangeCount(7)));
        // In another session the server may count anew.
        for session in [Some(SessionId(2)), None] {
            let mut next = Durable::default();
            next.adopt(leave(&durable, true).expect("there is something"), session);
            assert_eq!(synced(&mut next), [(ONE, 3), (TWO, 5)]);
            assert!(!next.is_whole(ChangeCount(7)));
        }
    }

    #[test]
    fn what_was_closed_last_is_remembered_and_no_more_than_so_much() {
        let mut left = LeftBehind::default();
        let mut durable = Durable::default();
        durable.record_stored(ONE, 3);
        durable.record_whole(ChangeCount(7));
        let most = u64::try_from(LEFT_MAX).expect("some thousands");
        for inode in 0..3 * most {
            let of = durable.leave(true, Some(SESSION)).expect("there is something");
            left.put(InodeId(inode), of);
            assert!(left.young.len() + left.old.len() <= 2 * LEFT_MAX);
        }
        assert!(left.take(InodeId(0)).is_none() && left.take(InodeId(most)).is_some());
        assert!(left.take(InodeId(most)).is_none(), "it is open");
        assert_eq!(left.whole(InodeId(3 * most - 1)), durable.whole());
        left.forget_counts();
        let last = left.take(InodeId(3 * most - 1)).expect("it was closed last");
        assert_eq!((&last.unsynced[..], last.whole), (&[(ONE, 3)][..], None));
    }
}
