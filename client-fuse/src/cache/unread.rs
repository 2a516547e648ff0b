//! Bytes of small files that came along with what opens them, until somebody reads them.
//!
//! The oldest are forgotten first. Whoever opens a file takes its bytes along: once they are read,
//! the kernel has them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::capability::Signed;
use millrace_types::InodeId;

/// The bytes of one mount, bounded.
#[derive(Debug)]
pub(crate) struct Unread {
    bytes_max: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<InodeId, Unseen>,
    /// The same by age.
    by_age: BTreeMap<u64, InodeId>,
    youngest: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Unseen {
    age: u64,
    /// The seal of the capability that came with them: of another one they may be others.
    mac: [u8; 32],
    bytes: Vec<u8>,
}

impl Unread {
    /// Keeps at most `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, table: Mutex::default() }
    }

    /// Keeps the bytes of a file that came with this capability.
    pub(crate) fn keep(&self, inode: InodeId, capability: &Signed, bytes: Vec<u8>) {
        let mut table = self.lock();
        table.forget(inode);
        table.youngest += 1;
        table.bytes += cost(&bytes);
        let age = table.youngest;
        table.by_age.insert(age, inode);
        table.files.insert(inode, Unseen { age, mac: capability.mac, bytes });
        while table.bytes > self.bytes_max
            && let Some((_, oldest)) = table.by_age.first_key_value()
        {
            let oldest = *oldest;
            table.forget(oldest);
        }
    }

    /// The bytes of a file, if they came with this capability and are still here; from then on they
    /// are not.
    pub(crate) fn take(&self, inode: InodeId, capability: &Signed) -> Option<Vec<u8>> {
        let mut table = self.lock();
        let is_it = table.files.get(&inode).is_some_and(|unseen| unseen.mac == capability.mac);
        is_it.then(|| table.forget(inode)).flatten().map(|unseen| unseen.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn forget(&mut self, inode: InodeId) -> Option<Unseen> {
        let unseen = self.files.remove(&inode)?;
        self.by_age.remove(&unseen.age);
        self.bytes -= cost(&unseen.bytes);
        Some(unseen)
    }
}

/// What a file takes: its bytes, an entry of either table, and an allocation.
fn cost(bytes: &[u8]) -> u64 {
    let entries = 2 * size_of::<Unseen>() + size_of::<(u64, InodeId)>();
    (bytes.len() + entries) as u64
}

#[cfg(test)]
mod tests {
    use millrace_types::KeyId;

    use super::*;

    fn capability(number: u8) -> Signed {
        Signed { key: KeyId(1), body: Vec::new(), mac: [number; 32] }
    }

    #[test]
    fn what_came_last_is_there_until_it_is_taken_and_what_came_first_is_forgotten() {
        let unread = Unread::new(64 << 10);
        for inode in 0..1_000 {
            unread.keep(InodeId(inode), &capability(1), vec![7; 4096]);
            // As a walk in the order of the page does, one behind.
            if let Some(before) = inode.checked_sub(1) {
                let taken = unread.take(InodeId(before), &capability(1));
                assert_eq!(taken.as_deref(), Some(&[7; 4096][..]), "{before}");
                assert_eq!(unread.take(InodeId(before), &capability(1)), None);
            }
        }
        for inode in 2_000..2_100 {
            unread.keep(InodeId(inode), &capability(1), vec![7; 4096]);
            assert!(unread.lock().bytes <= 64 << 10);
        }
        let kept = |inode| unread.take(InodeId(inode), &capability(1)).is_some();
        let kept: Vec<_> = (2_000..2_100).filter(|&inode| kept(inode)).collect();
        assert!(kept.len() >= 14, "{kept:?}");
        assert_eq!(kept, (2_100 - kept.len() as u64..2_100).collect::<Vec<_>>());
        let table = unread.lock();
        assert_eq!((table.bytes, table.files.len(), table.by_age.len()), (0, 0, 0));
    }

    #[test]
    fn bytes_are_those_of_the_capability_that_they_came_with() {
        let unread = Unread::new(64 << 10);
        unread.keep(InodeId(8), &capability(1), b"first".to_vec());
        unread.keep(InodeId(8), &capability(2), b"second".to_vec());
        assert_eq!(unread.take(InodeId(8), &capability(2)).as_deref(), Some(&b"second"[..]));
        unread.keep(InodeId(8), &capability(2), b"second".to_vec());
        assert_eq!(unread.take(InodeId(8), &capability(3)), None);
        assert!(unread.take(InodeId(8), &capability(2)).is_some(), "they are still there");
    }

    #[test]
    fn what_is_larger_than_all_is_not_kept() {
        let unread = Unread::new(1_000);
        unread.keep(InodeId(8), &capability(1), vec![7; 2_000]);
        assert_eq!(unread.take(InodeId(8), &capability(1)), None);
        unread.keep(InodeId(9), &capability(1), vec![7; 200]);
        assert!(unread.take(InodeId(9), &capability(1)).is_some());
    }
}
