//! Names that are asked for and are not there: whoever looks for several in a directory, or makes
//! files there, is answered from the list of its names.
//!
//! Each such name is a question otherwise, under a lease too: that one name is absent says nothing
//! of the next one.

use std::{
    fmt,
    time::{Duration, Instant},
};

use millrace_types::InodeId;
use quick_cache::sync::Cache;

/// Directories in which absent names were asked for lately.
pub(crate) struct AbsentNames {
    asked: Cache<InodeId, Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Questions that came one soon after the other.
    times: u32,
    last: Instant,
    /// When its names may be fetched again.
    again: Option<Instant>,
}

impl Default for AbsentNames {
    fn default() -> Self {
        Self { asked: Cache::new(DIRECTORIES_MAX) }
    }
}

impl fmt::Debug for AbsentNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbsentNames").field("directories", &self.asked.len()).finish()
    }
}

impl AbsentNames {
    /// A name of the directory was asked for that is not there. Tells whether all of its names are
    /// worth a question now.
    pub(crate) fn handle_absent(&self, directory: InodeId, now: Instant) -> bool {
        let asked = self.asked.get(&directory);
        let mut asked = asked.unwrap_or(Asked { times: 0, last: now, again: None });
        let is_soon = now.duration_since(asked.last) < MOMENT;
        asked.times = if is_soon { asked.times + 1 } else { 1 };
        asked.last = now;
        let is_worth_it = asked.times >= TIMES_MIN && asked.again.is_none_or(|again| again <= now);
        if is_worth_it {
            // Whatever comes of it: others need not ask meanwhile.
            asked.again = Some(now + PAUSE);
        }
        self.asked.insert(directory, asked);
        is_worth_it
    }

    /// Its names were asked for; `is_whole` where they were few enough for one answer.
    pub(crate) fn handle_listed(&self, directory: InodeId, is_whole: bool, now: Instant) {
        if let Some(mut asked) = self.asked.get(&directory)
            && !is_whole
        {
            asked.again = Some(now + TOO_LARGE_PAUSE);
            self.asked.insert(directory, asked);
        }
    }
}

/// After so many questions in a row the next ones are expected to pay for the list.
const TIMES_MIN: u32 = 4;

/// Two questions within this time are in a row.
const MOMENT: Duration = Duration::from_millis(500);

/// A list that is taken back at once is not fetched all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// A directory that is too large will mostly stay so.
const TOO_LARGE_PAUSE: Duration = Duration::from_secs(60);

/// Directories that are remembered.
const DIRECTORIES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    #[test]
    fn names_are_fetched_after_several_questions_in_a_row_and_not_all_the_time() {
        let (absent, began) = (AbsentNames::default(), Instant::now());
        let ask = |at| absent.handle_absent(DIRECTORY, began + Duration::from_millis(at));
        assert_eq!([ask(0), ask(400), ask(800)], [false; 3]);
        assert_eq!([ask(1400), ask(1410), ask(1420)], [false; 3], "that was another row");
        assert!(ask(1430));
        assert!(!ask(1440), "they were just fetched");
        assert!(!absent.handle_absent(InodeId(8), began + Duration::from_millis(1450)));
        assert_eq!([ask(1900), ask(2300)], [false; 2]);
        assert!(ask(2500), "what was fetched is taken back");
        absent.handle_listed(DIRECTORY, false, began + Duration::from_secs(3));
        assert!((3000..62_000).step_by(400).all(|at| !ask(at)), "it is too large");
    }
}
