//! In which directories files are fetched before anybody asks, and how many. No I/O, no clock.
//!
//! One read that waited says nothing of the next. Several in one directory make it likely that the
//! rest is wanted too, in whatever order: so the more of its files were waited for, the more of the
//! others are fetched, until all of them are there. What is fetched is never more than so many
//! times what was waited for.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use millrace_types::{InodeId, LinkId};
use tokio::time::Instant;

/// Files that are fetched for each one that was waited for, at most. Of a directory that somebody
/// reads a thirtieth of at random, the rest comes along; a reader who takes a handful of files out
/// of millions has some hundred fetched.
const FACTOR_MAX: u64 = 32;

/// The first misses that say something.
const MISSES_MIN: u64 = 2;

/// Misses that are further apart have nothing to do with each other.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// After the last file of a directory was fetched, misses of who was waiting already still come.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// Directories that are followed: 400 bytes each.
const DIRECTORIES_MAX: usize = 16_384;

/// How often old ones are looked for when there is no room.
const SWEEP: Duration = Duration::from_secs(1);

/// Files that count once, however often they are waited for. A file of several chunks is one.
const REMEMBERED: usize = 32;

/// The directories with reads that had to wait.
#[derive(Debug, Default)]
pub(super) struct Demand {
    directories: HashMap<InodeId, Directory>,
    /// Those of which more may be fetched, each once.
    turns: VecDeque<InodeId>,
    /// When old ones were looked for.
    swept: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Directory {
    link: LinkId,
    /// The last files that were waited for.
    files: VecDeque<InodeId>,
    misses: u64,
    last: Instant,
    /// Behind the last entry that was looked at.
    cookie: u64,
    /// Files that were fetched since `misses` began to count.
    fetched: u64,
    has_turn: bool,
    /// When the last entry was looked at.
    ended: Option<Instant>,
}

/// What is to be fetched next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) directory: InodeId,
    pub(super) link: LinkId,
    /// From behind this entry on.
    pub(super) cookie: u64,
    /// So many files at most.
    pub(super) files: u64,
}

impl Directory {
    fn left(&self) -> u64 {
        let allowed = match self.misses {
            0..MISSES_MIN => 0,
            misses => misses.saturating_mul(misses.min(FACTOR_MAX)),
        };
        allowed.saturating_sub(self.fetched)
    }
}

impl Demand {
    /// A reader had to wait for a file of a directory.
    pub(super) fn miss(&mut self, directory: InodeId, link: LinkId, file: InodeId, now: Instant) {
        let is_old = |one: &Directory| now.duration_since(one.last) > FORGOTTEN;
        if self.directories.len() >= DIRECTORIES_MAX && !self.directories.contains_key(&directory) {
            if self.swept.is_some_and(|swept| now.duration_since(swept) < SWEEP) {
                return;
            }
            self.swept = Some(now);
            self.directories.retain(|_, one| !is_old(one));
            let Self { directories, turns, .. } = self;
            turns.retain(|turn| directories.contains_key(turn));
            if directories.len() >= DIRECTORIES_MAX {
                return;
            }
        }
        let fresh = Directory {
            link,
            files: VecDeque::new(),
            misses: 0,
            last: now,
            cookie: 0,
            fetched: 0,
            has_turn: false,
            ended: None,
        };
        let one = self.directories.entry(directory).or_insert_with(|| fresh.clone());
        match one.ended {
            Some(ended) if now.duration_since(ended) < STRAGGLERS => return,
            // From the first entry on again: what was there has been dropped, or is new.
            Some(_) => *one = Directory { has_turn: one.has_turn, ..fresh },
            None if is_old(one) => {
                (one.misses, one.fetched) = (0, 0);
                one.files.clear();
            }
            None => {}
        }
        one.last = now;
        if one.files.contains(&file) {
            return;
        }
        one.files.push_back(file);
        if one.files.len() > REMEMBERED {
            one.files.pop_front();
        }
        one.misses += 1;
        if one.left() > 0 && !one.has_turn {
            one.has_turn = true;
            self.turns.push_back(directory);
        }
    }

    /// The directory whose turn it is. It has no other before [`Self::took`].
    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            let directory = self.turns.pop_front()?;
            let Some(one) = self.directories.get_mut(&directory) else { continue };
            one.has_turn = false;
            if one.left() > 0 && one.ended.is_none() {
                let Directory { link, cookie, .. } = *one;
                return Some(Step { directory, link, cookie, files: one.left() });
            }
        }
    }

    /// So many files of a step are being fetched, and `cookie` was the last entry looked at; `None`
    /// where there are no more.
    pub(super) fn took(&mut self, step: Step, files: u64, cookie: Option<u64>, now: Instant) {
        let Some(one) = self.directories.get_mut(&step.directory) else { return };
        one.fetched += files;
        match cookie {
            Some(cookie) => one.cookie = cookie,
            None => one.ended = Some(now),
        }
        if one.left() > 0 && one.ended.is_none() && !one.has_turn {
            one.has_turn = true;
            self.turns.push_back(step.directory);
        }
    }

    /// Nothing more of it for now.
    pub(super) fn forget(&mut self, directory: InodeId) {
        self.directories.remove(&directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: InodeId = InodeId(7);
    const THERE: InodeId = InodeId(8);
    const LINK: LinkId = LinkId(1);

    /// So many files, other ones each time.
    fn misses(demand: &mut Demand, directory: InodeId, count: u64, now: Instant) {
        let known = demand.directories.get(&directory).map_or(0, |one| one.misses);
        let files = (known..known + count).map(|n| InodeId(1_000_000 + n));
        files.for_each(|file| demand.miss(directory, LINK, file, now));
    }

    #[test]
    fn one_read_says_nothing_and_more_of_them_more_and_more() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        misses(&mut demand, HERE, 1, now);
        assert_eq!(demand.next(), None);
        // Of one file as often as of its chunks.
        (0..100).for_each(|_| demand.miss(HERE, LINK, InodeId(1_000_000), now));
        assert_eq!(demand.next(), None);
        misses(&mut demand, HERE, 1, now);
        let step = demand.next().unwrap();
        assert_eq!(step, Step { directory: HERE, link: LINK, cookie: 0, files: 4 });
        demand.took(step, 4, Some(40), now);
        assert_eq!(demand.next(), None, "so much and no more");
        misses(&mut demand, HERE, 98, now);
        let step = demand.next().unwrap();
        assert_eq!((step.cookie, step.files), (40, 100 * 32 - 4));
        assert_eq!(demand.next(), None, "one at a time");
    }

    #[test]
    fn directories_take_turns_and_an_old_one_begins_anew() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        misses(&mut demand, HERE, 4, now);
        misses(&mut demand, THERE, 4, now);
        for directory in [HERE, THERE, HERE, THERE] {
            let step = demand.next().unwrap();
            assert_eq!(step.directory, directory);
            demand.took(step, 2, Some(step.cookie + 2), now);
        }
        let later = now + FORGOTTEN + Duration::from_secs(1);
        demand.forget(THERE);
        assert_eq!(demand.next().unwrap().directory, HERE);
        misses(&mut demand, HERE, 1, later);
        assert_eq!(demand.next(), None, "what was long ago does not count");
        misses(&mut demand, HERE, 1, later);
        let step = demand.next().unwrap();
        assert_eq!((step.cookie, step.files), (4, 4), "but it goes on where it was");
    }

    #[test]
    fn a_directory_that_came_to_its_end_waits_for_stragglers_and_then_begins_at_its_first_entry() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        misses(&mut demand, HERE, 10, now);
        let step = demand.next().unwrap();
        demand.took(step, 50, None, now);
        misses(&mut demand, HERE, 10, now + STRAGGLERS / 2);
        assert_eq!(demand.next(), None);
        misses(&mut demand, HERE, 2, now + STRAGGLERS);
        let step = demand.next().unwrap();
        assert_eq!((step.cookie, step.files), (0, 4));
    }

    #[test]
    fn what_is_followed_is_bounded_and_old_directories_make_room() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        let count = DIRECTORIES_MAX as u64;
        for id in 0..count + 10 {
            misses(&mut demand, InodeId(id), 2, now);
        }
        assert_eq!(
            (demand.directories.len(), demand.turns.len()),
            (DIRECTORIES_MAX, DIRECTORIES_MAX)
        );
        let later = now + FORGOTTEN * 2;
        misses(&mut demand, InodeId(count + 10), 2, later);
        assert_eq!(demand.next().unwrap().directory, InodeId(count + 10));
        assert_eq!((demand.next(), demand.directories.len()), (None, 1));
    }
}
