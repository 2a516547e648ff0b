//! Names that are asked for one after the other: whoever walks a directory is answered from pages
//! of it.
//!
//! The second question about a directory within a moment asks for a page that begins with that
//! name. Where the next one goes on behind it, pages grow; where it does not, they stay small, so
//! that a walk in random order pays little for what it does not want.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::metadata::DIRECTORY_PAGE_MAX;
use millrace_types::InodeId;

/// Directories in which names were asked for lately.
#[derive(Debug, Default)]
pub(crate) struct LookAhead {
    walks: Mutex<HashMap<InodeId, Walk>>,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    asked: Instant,
    /// Entries of the next page.
    window: u32,
    /// Position of the last entry that was fetched; 0 for none.
    last: u64,
}

impl LookAhead {
    /// A name of the directory must be asked for: with so many entries, if not alone.
    pub(crate) fn handle_miss(&self, directory: InodeId, now: Instant) -> Option<u32> {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        if walks.len() >= WALKS_MAX && !walks.contains_key(&directory) {
            walks.retain(|_, walk| now.duration_since(walk.asked) < MOMENT);
            if walks.len() >= WALKS_MAX {
                return None;
            }
        }
        match walks.get_mut(&directory) {
            Some(walk) if now.duration_since(walk.asked) < MOMENT => {
                walk.asked = now;
                Some(walk.window)
            }
            _ => {
                walks.insert(directory, Walk { asked: now, window: WINDOW_MIN, last: 0 });
                None
            }
        }
    }

    /// A name was not there: who makes names asks first, and walks nowhere.
    pub(crate) fn handle_absent(&self, directory: InodeId) {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner).remove(&directory);
    }

    /// A page came, from the first of these positions to the last.
    pub(crate) fn handle_page(&self, directory: InodeId, first: u64, last: u64) {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(walk) = walks.get_mut(&directory) else { return };
        // Positions are left out where names were removed.
        let follows = walk.last != 0 && first > walk.last && first - walk.last <= GAP_MAX;
        walk.window =
            if follows { (walk.window * GROWTH).min(DIRECTORY_PAGE_MAX) } else { WINDOW_MIN };
        walk.last = last;
    }
}

/// Two questions within this time are one walk.
const MOMENT: Duration = Duration::from_millis(100);

/// Entries of a page until it is known that the walk follows the directory's order: 2 KiB.
const WINDOW_MIN: u32 = 16;

/// By how much pages grow: 16, 128, 1,024.
const GROWTH: u32 = 8;

/// How far behind a page the next question may be.
const GAP_MAX: u64 = 16;

/// Directories that are walked at a time.
const WALKS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    #[test]
    fn a_walk_in_order_gets_growing_pages_and_another_gets_small_ones() {
        let (ahead, began) = (LookAhead::default(), Instant::now());
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(0)), None);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(10)), Some(16));
        ahead.handle_page(DIRECTORY, 2, 17);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(20)), Some(16));
        ahead.handle_page(DIRECTORY, 18, 33);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(30)), Some(128));
        ahead.handle_page(DIRECTORY, 34, 161);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(40)), Some(1024));
        ahead.handle_page(DIRECTORY, 5, 21);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(50)), Some(16), "it jumped");
        assert_eq!(ahead.handle_miss(DIRECTORY, at(500)), None, "the walk was over");
        ahead.handle_absent(DIRECTORY);
        assert_eq!(ahead.handle_miss(DIRECTORY, at(501)), None);
    }

    #[test]
    fn walks_are_bounded() {
        let (ahead, now) = (LookAhead::default(), Instant::now());
        for directory in 0..2 * WALKS_MAX as u64 {
            assert_eq!(ahead.handle_miss(InodeId(directory), now), None);
        }
        assert!(ahead.walks.lock().unwrap().len() <= WALKS_MAX);
    }
}
