//! Names that are asked for one after the other: whoever walks a directory is answered from pages
//! of it.
//!
//! The second question about a directory within a moment asks for a page that begins with that
//! name. Where the next one goes on behind it, pages grow; where it does not, they stay small, so
//! that a walk in random order pays little for what it does not want. Who asks for the same name
//! again walks nowhere: it is on the way to something that no lease covers. And where a page came
//! of which nothing may be kept, names are asked for alone for a while: programs that work below a
//! directory which other hosts change all the time ask for their ways through it by turns.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::metadata::DIRECTORY_PAGE_MAX;
use millrace_types::{FileName, InodeId};

/// Directories in which names were asked for lately.
#[derive(Debug, Default)]
pub(crate) struct LookAhead {
    walks: Mutex<HashMap<InodeId, Walk>>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    asked: Instant,
    /// The name that was asked for, hashed.
    name: u64,
    /// Entries of the next page.
    window: u32,
    /// Position of the last entry that was fetched; 0 for none.
    last: u64,
    /// Nothing could be kept of the last page, which came then.
    barren: Option<Instant>,
}

impl LookAhead {
    /// A name of the directory must be asked for: with so many entries, if not alone.
    pub(crate) fn handle_miss(
        &self,
        directory: InodeId,
        name: &FileName,
        now: Instant,
    ) -> Option<u32> {
        let name = self.hasher.hash_one(name);
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        if walks.len() >= WALKS_MAX && !walks.contains_key(&directory) {
            walks.retain(|_, walk| now.duration_since(walk.asked) < MOMENT);
            if walks.len() >= WALKS_MAX {
                return None;
            }
        }
        match walks.get_mut(&directory) {
            Some(walk) if walk.name == name => {
                walk.asked = now;
                None
            }
            Some(walk) if walk.barren.is_some_and(|came| now.duration_since(came) < BARREN) => {
                (walk.asked, walk.name) = (now, name);
                None
            }
            Some(walk) if now.duration_since(walk.asked) < MOMENT => {
                (walk.asked, walk.name) = (now, name);
                Some(walk.window)
            }
            _ => {
                let walk = Walk { asked: now, name, window: WINDOW_MIN, last: 0, barren: None };
                walks.insert(directory, walk);
                None
            }
        }
    }

    /// A name was not there: who makes names asks first, and walks nowhere.
    pub(crate) fn handle_absent(&self, directory: InodeId) {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner).remove(&directory);
    }

    /// A page came of which nothing may be kept.
    pub(crate) fn handle_barren(&self, directory: InodeId, now: Instant) {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(walk) = walks.get_mut(&directory) {
            walk.barren = Some(now);
        }
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
        walk.barren = None;
    }
}

/// Two questions within this time are one walk.
const MOMENT: Duration = Duration::from_millis(100);

/// How long no page is asked for after one of which nothing could be kept: the least for which the
/// metadata server leaves a directory alone that others change.
const BARREN: Duration = Duration::from_millis(500);

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

    fn name(text: &str) -> FileName {
        FileName::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_walk_in_order_gets_growing_pages_and_another_gets_small_ones() {
        let (ahead, began) = (LookAhead::default(), Instant::now());
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("a"), at(0)), None);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("b"), at(10)), Some(16));
        ahead.handle_page(DIRECTORY, 2, 17);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("c"), at(20)), Some(16));
        ahead.handle_page(DIRECTORY, 18, 33);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("d"), at(30)), Some(128));
        ahead.handle_page(DIRECTORY, 34, 161);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("e"), at(40)), Some(1024));
        ahead.handle_page(DIRECTORY, 5, 21);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("f"), at(50)), Some(16), "it jumped");
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("g"), at(500)), None, "the walk was over");
        ahead.handle_absent(DIRECTORY);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("h"), at(501)), None);
    }

    #[test]
    fn the_same_name_again_is_no_walk() {
        let (ahead, began) = (LookAhead::default(), Instant::now());
        let ask = |text, milliseconds| {
            ahead.handle_miss(DIRECTORY, &name(text), began + Duration::from_millis(milliseconds))
        };
        assert_eq!([ask("a", 0), ask("a", 1), ask("a", 2)], [None; 3]);
        assert_eq!(ask("b", 3), Some(16));
        assert_eq!(ask("b", 4), None);
    }

    #[test]
    fn where_nothing_may_be_kept_no_page_is_asked_for_again_at_once() {
        let (ahead, began) = (LookAhead::default(), Instant::now());
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("a"), at(0)), None);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("b"), at(1)), Some(16));
        ahead.handle_barren(DIRECTORY, at(2));
        for moment in 0..9 {
            let asked = if moment % 2 == 0 { "a" } else { "b" };
            assert_eq!(ahead.handle_miss(DIRECTORY, &name(asked), at(3 + 60 * moment)), None);
        }
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("b"), at(503)), Some(16), "after a while");
        ahead.handle_page(DIRECTORY, 2, 17);
        assert_eq!(ahead.handle_miss(DIRECTORY, &name("c"), at(504)), Some(16));
    }

    #[test]
    fn walks_are_bounded() {
        let (ahead, now) = (LookAhead::default(), Instant::now());
        for directory in 0..2 * WALKS_MAX as u64 {
            assert_eq!(ahead.handle_miss(InodeId(directory), &name("a"), now), None);
        }
        assert!(ahead.walks.lock().unwrap().len() <= WALKS_MAX);
    }
}
