//! How many files are asked for when one is opened that was looked up and of which nothing is kept
//! that lets this mount read it.
//!
//! Whoever reads a directory through opens file after file, in whatever order. Each that is asked
//! for brings others that lie behind it, as many as were worth it before: what was opened without
//! asking earns more of them than what had to be asked for. So a walk over a directory asks for few
//! large pages soon, in random order too; and where what is brought is not opened, or forgotten
//! before, pages stay small. All of this is counted in bytes: a small file that comes with what is
//! in it costs as much as thirty others.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_protocol::{lease::CONTENTS_MAX, metadata::INLINE_BYTES_MAX};
use millrace_types::InodeId;

/// Directories in which files were opened lately.
#[derive(Debug, Default)]
pub(crate) struct AheadContents {
    walks: Mutex<Walks>,
    unsupported: AtomicBool,
}

#[derive(Debug, Default)]
struct Walks {
    by_directory: HashMap<InodeId, Walk>,
    /// What a file of the last page took, of whichever directory.
    entry_bytes: i64,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Bytes that may be asked for ahead; less than none where more came than was thought.
    credit: i64,
    /// What a file of the directory takes of a page.
    entry_bytes: i64,
}

/// What is to be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Files, with the one that is opened.
    pub(crate) entries: u32,
    /// What the others are thought to take.
    charged: i64,
}

impl AheadContents {
    /// A file of the directory must be asked for: with how many others. `None`: the server does not
    /// know how to answer.
    pub(crate) fn handle_miss(&self, directory: InodeId) -> Option<Wanted> {
        if self.unsupported.load(Ordering::Relaxed) {
            return None;
        }
        let mut walks = self.lock();
        let Walks { by_directory, entry_bytes } = &mut *walks;
        let entry_bytes = (*entry_bytes).max(ENTRY_BYTES);
        if by_directory.len() >= DIRECTORIES_MAX && !by_directory.contains_key(&directory) {
            // Whoever goes on there begins anew, with small pages.
            by_directory.clear();
        }
        // Enough for one other, so that what follows can show itself.
        let begins = Walk { credit: 0.max(entry_bytes - EARNED_BY_MISS), entry_bytes };
        let walk = by_directory.entry(directory).or_insert(begins);
        walk.credit += EARNED_BY_MISS;
        let others = u32::try_from(walk.credit / walk.entry_bytes).unwrap_or(0);
        let others = others.min(CONTENTS_MAX - 1);
        let charged = i64::from(others) * walk.entry_bytes;
        walk.credit -= charged;
        Some(Wanted { entries: 1 + others, charged })
    }

    /// What was wanted came: so many files, which took so many bytes of the page; none where it did
    /// not come.
    pub(crate) fn handle_page(
        &self,
        directory: InodeId,
        wanted: Wanted,
        files: usize,
        taken: usize,
    ) {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let mut walks = self.lock();
        if let Some(each) = taken.checked_div(files) {
            walks.entry_bytes = number(each).max(ENTRY_BYTES);
        }
        let each = walks.entry_bytes;
        let others = number(files.saturating_sub(1)).saturating_mul(each);
        if let Some(walk) = walks.by_directory.get_mut(&directory) {
            if files > 0 {
                walk.entry_bytes = each;
            }
            walk.credit = (walk.credit + wanted.charged - others).min(CREDIT_MAX);
        }
    }

    /// A file of the directory was opened without asking.
    pub(crate) fn handle_hit(&self, directory: InodeId) {
        if let Some(walk) = self.lock().by_directory.get_mut(&directory) {
            walk.credit = (walk.credit + EARNED_BY_HIT).min(CREDIT_MAX);
        }
    }

    /// The server does not know the request.
    pub(crate) fn handle_unsupported(&self) {
        self.unsupported.store(true, Ordering::Relaxed);
    }

    /// It may be another server by now.
    pub(crate) fn handle_server(&self) {
        self.unsupported.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Walks> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a file takes of a page whose bytes are at the targets: its attributes and a capability.
const ENTRY_BYTES: i64 = 512;

/// A file more in a page costs some thirtieth of a request of its own: a miss with seven others a
/// quarter more than without.
const EARNED_BY_MISS: i64 = 7 * ENTRY_BYTES;

/// What a hit has saved: enough that pages grow whose files bring the most bytes that they can.
const EARNED_BY_HIT: i64 = 2 * INLINE_BYTES_MAX as i64;

/// Two of the largest pages.
const CREDIT_MAX: i64 = 2 * CONTENTS_MAX as i64 * ENTRY_BYTES;

/// Directories that are remembered: some 200 KiB.
const DIRECTORIES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    /// Opens files of directories of `files` in this order, each of which takes `bytes` of a page;
    /// the newest `kept_max` are kept. How many were asked for, and in how many requests.
    fn walk(
        files: u64,
        bytes: u64,
        kept_max: usize,
        order: impl Iterator<Item = u64>,
    ) -> (u64, u64) {
        let ahead = AheadContents::default();
        let (mut kept, mut by_age) = (BTreeSet::new(), VecDeque::new());
        let (mut fetched, mut requests) = (0, 0);
        for file in order {
            let directory = InodeId(file / files);
            if kept.contains(&file) {
                ahead.handle_hit(directory);
                continue;
            }
            let wanted = ahead.handle_miss(directory).expect("supported");
            // As many as an answer has room for.
            let room = (512 * 1024 / bytes).max(1);
            let len = u64::from(wanted.entries).min(room).min(files - file % files);
            let taken = usize::try_from(bytes * len).unwrap();
            ahead.handle_page(directory, wanted, usize::try_from(len).unwrap(), taken);
            by_age.extend((file..file + len).filter(|&file| kept.insert(file)));
            for forgotten in by_age.drain(..by_age.len().saturating_sub(kept_max)) {
                kept.remove(&forgotten);
            }
            fetched += len;
            requests += 1;
        }
        (fetched, requests)
    }

    /// Every number below a prime, in an order that jumps.
    fn jumping(prime: u64) -> impl Iterator<Item = u64> {
        (0..prime).map(move |nth| nth * 1_327 % prime)
    }

    #[test]
    fn a_walk_in_order_asks_for_few_large_pages() {
        for (bytes, requests_max) in [(400, 8), (4_500, 60), (16_800, 180)] {
            let (fetched, requests) = walk(4_001, bytes, 4_001, 0..4_001);
            assert_eq!(fetched, 4_001);
            assert!(requests <= requests_max, "{bytes}: {requests}");
        }
    }

    #[test]
    fn a_walk_in_any_order_asks_for_a_tenth_of_what_it_opens() {
        let (fetched, requests) = walk(4_001, 400, 4_001, jumping(4_001));
        assert!(requests <= 400, "{requests}");
        // Those that are asked for again cost together a tenth of what asking for each would.
        assert!(fetched <= 4 * 4_001, "{fetched}");
    }

    #[test]
    fn who_opens_little_brings_little() {
        let (fetched, requests) = walk(1_000_000, 400, 160, (0..20).map(|nth| nth * 50_000));
        assert_eq!((fetched, requests), (160, 20));
    }

    #[test]
    fn bytes_of_small_files_are_not_brought_where_they_are_forgotten_before_they_are_read() {
        // A fortieth of the directory is kept.
        for (bytes, fetched_max) in [(4_500, 8_000), (16_800, 5_200)] {
            let (fetched, _) = walk(4_001, bytes, 100, jumping(4_001));
            assert!(fetched <= fetched_max, "{bytes}: {fetched}");
        }
        // More directories than are remembered.
        let many = 10 * DIRECTORIES_MAX as u64;
        let order = || jumping(40_009).map(|nth| nth % many * 1_000 + nth % 7);
        let (fetched, requests) = walk(1_000, 16_800, 100, order());
        assert!(fetched <= 2 * requests + 10, "{fetched} in {requests}");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_a_server_without_it_is_not_asked() {
        let ahead = AheadContents::default();
        for directory in 0..2 * DIRECTORIES_MAX as u64 {
            assert_eq!(ahead.handle_miss(InodeId(directory)).map(|wanted| wanted.entries), Some(8));
        }
        assert!(ahead.lock().by_directory.len() <= DIRECTORIES_MAX);
        ahead.handle_unsupported();
        assert_eq!(ahead.handle_miss(DIRECTORY), None);
        ahead.handle_server();
        assert!(ahead.handle_miss(DIRECTORY).is_some());
    }
}
