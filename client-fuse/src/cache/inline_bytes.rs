//! Bytes of small files that came along with what opens them.
//!
//! Whoever opens a file for the first time takes its bytes along, and the kernel has them once they
//! are read. From then on they stay as long as nobody else needs the room, for the day on which the
//! kernel has forgotten them: those that were read are forgotten first, and among themselves, and
//! among those that nobody has read yet, the oldest.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::capability::Signed;
use millrace_types::InodeId;

/// The bytes of one mount.
#[derive(Debug, Default)]
pub(crate) struct InlineBytes {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<InodeId, Kept>,
    /// The same in the order in which they are forgotten.
    turns: BTreeMap<Turn, InodeId>,
    youngest: u64,
    bytes: u64,
}

/// When a file is forgotten: later than all that are less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Turn {
    Read(u64),
    Unread(u64),
}

#[derive(Debug)]
struct Kept {
    turn: Turn,
    /// The seal of the capability that came with them: of another one they may be others.
    mac: [u8; 32],
    bytes: Vec<u8>,
}

impl InlineBytes {
    /// Keeps the bytes of a file that came with this capability, until [`Self::fit`].
    pub(crate) fn keep(&self, inode: InodeId, capability: &Signed, bytes: Vec<u8>) {
        let mut table = self.lock();
        table.forget(inode);
        let turn = Turn::Unread(table.next());
        table.insert(inode, Kept { turn, mac: capability.mac, bytes });
    }

    /// Forgets files until the others take at most `bytes_max`.
    pub(crate) fn fit(&self, bytes_max: u64) {
        let mut table = self.lock();
        while table.bytes > bytes_max
            && let Some((_, &first)) = table.turns.first_key_value()
        {
            table.forget(first);
        }
    }

    /// The bytes of a file, if they came with this capability, are still here, and nobody has taken
    /// or found them yet.
    pub(crate) fn take(&self, inode: InodeId, capability: &Signed) -> Option<Vec<u8>> {
        self.lock().read(inode, capability, |turn| matches!(turn, Turn::Unread(_)))
    }

    /// The same, whoever has read them before.
    pub(crate) fn find(&self, inode: InodeId, capability: &Signed) -> Option<Vec<u8>> {
        self.lock().read(inode, capability, |_| true)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn read(
        &mut self,
        inode: InodeId,
        capability: &Signed,
        is_wanted: impl FnOnce(Turn) -> bool,
    ) -> Option<Vec<u8>> {
        let kept = self.files.get(&inode)?;
        if kept.mac != capability.mac || !is_wanted(kept.turn) {
            return None;
        }
        let kept = self.forget(inode)?;
        let bytes = kept.bytes.clone();
        let turn = Turn::Read(self.next());
        self.insert(inode, Kept { turn, ..kept });
        Some(bytes)
    }

    fn next(&mut self) -> u64 {
        self.youngest += 1;
        self.youngest
    }

    fn insert(&mut self, inode: InodeId, kept: Kept) {
        self.bytes += cost(&kept.bytes);
        self.turns.insert(kept.turn, inode);
        self.files.insert(inode, kept);
    }

    fn forget(&mut self, inode: InodeId) -> Option<Kept> {
        let kept = self.files.remove(&inode)?;
        self.turns.remove(&kept.turn);
        self.bytes -= cost(&kept.bytes);
        Some(kept)
    }
}

/// What a file takes: its bytes, an entry of either table, and an allocation.
fn cost(bytes: &[u8]) -> u64 {
    let entries = 2 * size_of::<Kept>() + size_of::<(Turn, InodeId)>();
    (bytes.len() + entries) as u64
}

#[cfg(test)]
mod tests {
    use millrace_types::KeyId;

    use super::*;

    const ROOM: u64 = 64 << 10;

    fn capability(number: u8) -> Signed {
        Signed { key: KeyId(1), body: Vec::new(), mac: [number; 32] }
    }

    fn keep(all: &InlineBytes, inode: u64) {
        all.keep(InodeId(inode), &capability(1), vec![7; 4096]);
        all.fit(ROOM);
        assert!(all.lock().bytes <= ROOM);
    }

    fn found(all: &InlineBytes, inodes: std::ops::Range<u64>) -> Vec<u64> {
        let is_there = |inode: &u64| all.find(InodeId(*inode), &capability(1)).is_some();
        inodes.filter(is_there).collect()
    }

    #[test]
    fn what_came_last_stays_and_what_came_first_is_forgotten() {
        let all = InlineBytes::default();
        for inode in 0..100 {
            keep(&all, inode);
        }
        let kept = found(&all, 0..100);
        assert!((14..=16).contains(&kept.len()), "{kept:?}");
        assert_eq!(kept, (100 - kept.len() as u64..100).collect::<Vec<_>>());
        all.fit(0);
        let table = all.lock();
        assert_eq!((table.bytes, table.files.len(), table.turns.len()), (0, 0, 0));
    }

    #[test]
    fn what_was_read_makes_room_for_what_was_not() {
        let all = InlineBytes::default();
        (0..4).for_each(|inode| keep(&all, inode));
        // As a walk in the order of the page does: a page comes, and what it has is taken.
        for page in 1..20_u64 {
            let inodes = page * 10..(page + 1) * 10;
            inodes.clone().for_each(|inode| keep(&all, inode));
            for inode in inodes {
                let taken = all.take(InodeId(inode), &capability(1));
                assert_eq!(taken.as_deref(), Some(&[7; 4096][..]), "{inode}");
            }
        }
        assert_eq!(found(&all, 0..4), (0..4).collect::<Vec<_>>(), "nobody has read them");
        let rest = found(&all, 10..200);
        assert!((10..=12).contains(&rest.len()), "{rest:?}");
        assert_eq!(rest, (200 - rest.len() as u64..200).collect::<Vec<_>>(), "there was room");
    }

    #[test]
    fn bytes_are_taken_once_and_found_from_then_on() {
        let all = InlineBytes::default();
        keep(&all, 8);
        assert!(all.take(InodeId(8), &capability(1)).is_some());
        assert_eq!(all.take(InodeId(8), &capability(1)), None);
        assert!(all.find(InodeId(8), &capability(1)).is_some());
        assert!(all.find(InodeId(8), &capability(1)).is_some());
        keep(&all, 8);
        assert!(all.take(InodeId(8), &capability(1)).is_some(), "they have come again");
    }

    #[test]
    fn bytes_are_those_of_the_capability_that_they_came_with() {
        let all = InlineBytes::default();
        all.keep(InodeId(8), &capability(1), b"first".to_vec());
        all.keep(InodeId(8), &capability(2), b"second".to_vec());
        assert_eq!(all.take(InodeId(8), &capability(3)), None);
        assert_eq!(all.find(InodeId(8), &capability(1)), None);
        assert_eq!(all.take(InodeId(8), &capability(2)).as_deref(), Some(&b"second"[..]));
    }

    #[test]
    fn what_is_larger_than_all_is_not_kept() {
        let all = InlineBytes::default();
        all.keep(InodeId(8), &capability(1), vec![7; 2_000]);
        all.fit(1_000);
        assert_eq!(all.take(InodeId(8), &capability(1)), None);
        all.keep(InodeId(9), &capability(1), vec![7; 200]);
        all.fit(1_000);
        assert!(all.take(InodeId(9), &capability(1)).is_some());
    }
}
