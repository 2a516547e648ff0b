//! How many files are asked for when one is opened that was looked up and of which nothing is kept
//! that lets this mount read it.
//!
//! Whoever reads a directory through opens file after file, in whatever order. Each that is asked
//! for brings others that lie behind it, as many as were worth it before: what was opened without
//! asking earns more of them than what had to be asked for. So a walk over a directory asks for few
//! large pages soon, in random order too; and where what is brought is not opened, or forgotten
//! before, pages stay small.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_protocol::lease::CONTENTS_MAX;
use millrace_types::InodeId;

/// Directories in which files were opened lately.
#[derive(Debug, Default)]
pub(crate) struct AheadContents {
    /// Files that may be asked for, by directory.
    credits: Mutex<HashMap<InodeId, u32>>,
    unsupported: AtomicBool,
}

impl AheadContents {
    /// A file of the directory must be asked for: with how many, itself included. `None`: the
    /// server does not know how to answer.
    pub(crate) fn handle_miss(&self, directory: InodeId) -> Option<u32> {
        if self.unsupported.load(Ordering::Relaxed) {
            return None;
        }
        let mut credits = self.lock();
        if credits.len() >= DIRECTORIES_MAX && !credits.contains_key(&directory) {
            // Whoever goes on there begins anew, with small pages.
            credits.clear();
        }
        let credit = credits.entry(directory).or_default();
        *credit += EARNED_BY_MISS;
        let wanted = (*credit).min(CONTENTS_MAX);
        *credit -= wanted;
        Some(wanted)
    }

    /// A file of the directory was opened without asking.
    pub(crate) fn handle_hit(&self, directory: InodeId) {
        if let Some(credit) = self.lock().get_mut(&directory) {
            *credit = (*credit + EARNED_BY_HIT).min(CREDIT_MAX);
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

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, u32>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.credits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file more in a page costs some thirtieth of a request of its own: a miss with eight of them a
/// quarter more than without.
const EARNED_BY_MISS: u32 = 8;

/// What a hit has saved.
const EARNED_BY_HIT: u32 = 32;

/// Two of the largest pages.
const CREDIT_MAX: u32 = 2 * CONTENTS_MAX;

/// Directories that are remembered: 64 KiB.
const DIRECTORIES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    /// Opens files of a directory of `files` in this order; how many were asked for, and in how
    /// many requests.
    fn walk(files: u64, order: impl Iterator<Item = u64>) -> (u64, u64) {
        let (ahead, mut kept) = (AheadContents::default(), BTreeSet::new());
        let (mut fetched, mut requests) = (0, 0);
        for file in order {
            if kept.contains(&file) {
                ahead.handle_hit(DIRECTORY);
                continue;
            }
            let wanted = u64::from(ahead.handle_miss(DIRECTORY).expect("supported"));
            let page = file..(file + wanted).min(files);
            fetched += page.end - page.start;
            kept.extend(page);
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
        let (fetched, requests) = walk(4_001, 0..4_001);
        assert_eq!(fetched, 4_001);
        assert!(requests <= 8, "{requests}");
    }

    #[test]
    fn a_walk_in_any_order_asks_for_a_tenth_of_what_it_opens() {
        let (fetched, requests) = walk(4_001, jumping(4_001));
        assert!(requests <= 400, "{requests}");
        // Those that are asked for again cost together a tenth of what asking for each would.
        assert!(fetched <= 4 * 4_001, "{fetched}");
    }

    #[test]
    fn who_opens_little_brings_little() {
        let (fetched, requests) = walk(1_000_000, (0..20).map(|nth| nth * 50_000));
        assert_eq!((fetched, requests), (160, 20));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_a_server_without_it_is_not_asked() {
        let ahead = AheadContents::default();
        for directory in 0..2 * DIRECTORIES_MAX as u64 {
            assert_eq!(ahead.handle_miss(InodeId(directory)), Some(EARNED_BY_MISS));
        }
        assert!(ahead.lock().len() <= DIRECTORIES_MAX);
        ahead.handle_unsupported();
        assert_eq!(ahead.handle_miss(DIRECTORY), None);
        ahead.handle_server();
        assert!(ahead.handle_miss(DIRECTORY).is_some());
    }
}
