//! Which page of a directory is asked for next, so that many are on their way at a time.
//!
//! A bucket hands a listing out a page after the other, each asked for with what the last one said.
//! What it also takes is a name to begin behind. So a directory of many names is cut into ranges of
//! names that are listed beside each other. Nobody knows the names beforehand: a range is cut in
//! the middle between the last name that it has shown and its end, in the bytes that names have
//! shown so far. Where nothing lies behind the cut, that has cost one request, the range ends there
//! from then on, and the next cut is nearer. So cuts find where names are, however they are
//! distributed.
//!
//! ```text
//!   one range        |aaab......................................................>
//!   nothing behind   |aaab...................x
//!   cut              |aaab......|axm.........x
//!   cut              |aabz.|abm.|axn...|ayj..x
//! ```
//!
//! Of each page only what lies in its range counts, so that each name is found once whatever was
//! guessed. What a directory `b` is to a cut `b-c` is up to the server: S3 has `b/` behind it, as a
//! key, SeaweedFS before it, as a name. So it counts on both sides, and the second time not. A
//! bucket whose pages are not in the order of names, or begin elsewhere than they were asked to, is
//! listed once more from the beginning without cuts.
//!
//! Asks nobody: who lists takes [`Ranges::next`] and hands in each page.

use std::collections::{BTreeSet, HashSet};

use millrace_object_source::{Continuation, Entry, EntryKind, LeftOut, Page};

/// The most ranges of one directory that are listed at a time.
const RANGES_MAX: usize = 8;

/// Full pages that a directory shows for each range that it is cut into: what cuts in empty places
/// cost is a part of what the pages cost.
const PAGES_PER_RANGE: usize = 2;

/// Pages that a range must have left, as far as its last page tells how close names lie, for a cut
/// to be worth the request that it may cost.
const PAGES_LEFT: f64 = 4.0;

/// Cuts behind which nothing lay, after which a directory is cut no more; and of how many pages it
/// has one more. Names with a long beginning in common take some fifty.
const MISSES_MAX: usize = 64;
const PAGES_PER_MISS: usize = 4;

/// A listing of one directory.
#[derive(Debug)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
    next_id: u64,
    /// Full pages so far.
    pages: usize,
    /// Cuts behind which nothing lay.
    misses: usize,
    alphabet: Alphabet,
    cuts: BTreeSet<Vec<u8>>,
    /// Directories that some cut has on both of its sides, and that came.
    on_edges: HashSet<Vec<u8>>,
    /// Where pages began on which nothing was: to see whether the bucket goes in a ring.
    empty: HashSet<Continuation>,
    /// Whether the bucket can be asked from the middle on, as far as its pages have shown.
    may_cut: bool,
    /// Where pages began, if the bucket's order is its own: to see whether it goes in a ring.
    cursors: Option<HashSet<Continuation>>,
}

/// Names that are listed one page after the other: greater than `at`, up to `until`.
#[derive(Debug)]
struct Range {
    id: u64,
    /// Everything up to here is read, or belongs to other ranges.
    at: Vec<u8>,
    /// The end; without one, the end of the directory.
    until: Option<Vec<u8>>,
    /// Where the next page begins.
    next: Option<Continuation>,
    /// Whether a page is on its way.
    is_asked: bool,
    /// Whether it has shown that there is more than it has read, and where, since it was last cut.
    may_cut: bool,
    /// Pages that it has left, as far as its last page tells how close names lie.
    pages_left: f64,
    /// The first key of that page.
    shown: Vec<u8>,
}

/// A page to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    /// What its page is handed in with.
    pub(super) range: u64,
    /// Where it begins.
    pub(super) after: Option<Continuation>,
}

/// What a page is that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// What is left of it is in its range.
    Counts,
    /// It is, and everything is listed once more from the beginning: nothing counts that came.
    BeginsAgain,
}

/// The bucket begins again and again where it began before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoEnd;

impl Ranges {
    /// Everything in the directory. With `may_cut` the bucket takes names to begin behind.
    pub(super) fn new(may_cut: bool) -> Self {
        let mut ranges = Self {
            ranges: Vec::new(),
            next_id: 0,
            pages: 0,
            misses: 0,
            alphabet: Alphabet::default(),
            cuts: BTreeSet::new(),
            on_edges: HashSet::new(),
            empty: HashSet::new(),
            may_cut,
            cursors: None,
        };
        ranges.add(Vec::new(), None, None);
        ranges
    }

    /// The next page to ask for, if one more may be on its way.
    pub(super) fn next(&mut self) -> Option<Ask> {
        let waits = |range: &&mut Range| !range.is_asked;
        if let Some(range) = self.ranges.iter_mut().find(waits) {
            range.is_asked = true;
            return Some(Ask { range: range.id, after: range.next.clone() });
        }
        let most = RANGES_MAX.min(1 + self.pages / PAGES_PER_RANGE);
        let misses_max = MISSES_MAX + self.pages / PAGES_PER_MISS;
        while self.may_cut && self.ranges.len() < most && self.misses < misses_max {
            let cuttable = self.ranges.iter_mut().filter(|range| range.may_cut);
            let range =
                cuttable.max_by(|one, other| one.pages_left.total_cmp(&other.pages_left))?;
            if range.pages_left < PAGES_LEFT {
                return None;
            }
            range.may_cut = false;
            let Some(cut) = self.alphabet.between(&range.at, range.until.as_deref()) else {
                continue;
            };
            let until = range.until.replace(cut.clone().into_bytes());
            self.cuts.insert(cut.clone().into_bytes());
            range.pages_left = self.alphabet.pages(&range.shown, &range.at, range.until.as_deref());
            let after = Some(Continuation::behind(&cut));
            let range = self.add(cut.into_bytes(), until, after.clone());
            self.ranges.last_mut().expect("it was added").is_asked = true;
            return Some(Ask { range, after });
        }
        None
    }

    /// Takes the page that was asked for, less what does not belong to its range.
    ///
    /// # Errors
    /// The listing cannot be ended.
    pub(super) fn handle(
        &mut self,
        range: u64,
        prefix: &str,
        page: &mut Page,
    ) -> Result<Handed, NoEnd> {
        let Some(at) = self.ranges.iter().position(|known| known.id == range) else {
            // Of before the listing began once more, which shows it again.
            *page = Page::default();
            return Ok(Handed::Counts);
        };
        // Some servers say the same twice.
        page.entries.dedup();
        self.alphabet.learn(&page.entries);
        if self.cursors.is_some() {
            return self.handle_in_any_order(at, page);
        }
        let (first, last) = ends(page, prefix);
        let range = &mut self.ranges[at];
        let goes_back = first.as_ref().is_some_and(|first| *first < range.at);
        let stands = page.next.is_some() && last.as_ref().is_some_and(|last| *last <= range.at);
        if goes_back || stands {
            self.begin_again();
            return Ok(Handed::BeginsAgain);
        }
        // Where it ends goes by names, so that nothing is lost whichever order the server has.
        let last_name = last_name(page, prefix);
        let belongs = |key: &[u8]| {
            let name = name_of(key);
            let is_behind = key > range.at.as_slice() || (key.is_empty() && range.at.is_empty());
            is_behind && range.until.as_deref().is_none_or(|until| name <= until)
        };
        page.entries.retain(|entry| {
            let key = key_of(entry);
            let is_on_edge = self.cuts.range(name_of(&key).to_vec()..key.clone()).next().is_some();
            belongs(&key) && !(is_on_edge && is_directory(&key) && !self.on_edges.insert(key))
        });
        let named = page.left_out.len();
        page.left_out.retain(|out| belongs(below(out, prefix)));
        page.skipped -= (named - page.left_out.len()) as u64;
        let is_over = range.until.as_ref().is_some_and(|until| last_name.as_ref() >= Some(until));
        let is_empty = page.entries.is_empty() && page.left_out.is_empty();
        let next = page.next.take().filter(|_| !is_over);
        let is_first = range.next.as_ref().is_some_and(|next| next.name_text().is_some());
        if next.is_none() {
            let ended = self.ranges.swap_remove(at);
            if is_empty && is_first {
                self.missed(&ended);
            }
            return Ok(Handed::Counts);
        }
        if last.is_none()
            && let Some(next) = &next
            && !self.empty.insert(next.clone())
        {
            return Err(NoEnd);
        }
        (range.next, range.is_asked) = (next, false);
        if let (Some(first), Some(last)) = (first, last) {
            (range.shown, range.at, range.may_cut) = (first, last, true);
            range.pages_left = self.alphabet.pages(&range.shown, &range.at, range.until.as_deref());
        }
        self.pages += 1;
        Ok(Handed::Counts)
    }

    /// Whether all pages have been handed in.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Nothing lies behind a cut: the range before it may be cut again, nearer.
    fn missed(&mut self, ended: &Range) {
        self.misses += 1;
        for range in &mut self.ranges {
            if range.until.as_ref() == Some(&ended.at) {
                range.may_cut = range.next.is_some();
            }
        }
    }

    /// The bucket's order is its own: everything is listed as it gives it.
    fn begin_again(&mut self) {
        self.ranges.clear();
        self.may_cut = false;
        self.cursors = Some(HashSet::new());
        self.add(Vec::new(), None, None);
    }

    fn handle_in_any_order(&mut self, at: usize, page: &mut Page) -> Result<Handed, NoEnd> {
        let range = &mut self.ranges[at];
        (range.next, range.is_asked) = (page.next.take(), false);
        let cursors = self.cursors.get_or_insert_default();
        match &range.next {
            Some(next) if !cursors.insert(next.clone()) => return Err(NoEnd),
            Some(_) => {}
            None => drop(self.ranges.swap_remove(at)),
        }
        Ok(Handed::Counts)
    }

    fn add(&mut self, at: Vec<u8>, until: Option<Vec<u8>>, next: Option<Continuation>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.ranges.push(Range {
            id,
            at,
            until,
            next,
            is_asked: false,
            may_cut: false,
            pages_left: 0.0,
            shown: Vec::new(),
        });
        id
    }
}

/// Bytes that names have shown, for guesses between two names.
#[derive(Debug, Default)]
struct Alphabet {
    seen: u128,
}

/// How many bytes behind what two names have in common are looked at for their middle. The value of
/// so many symbols fits into 64 bits.
const WINDOW: u32 = 8;

/// One name of so many is looked at, and those at the ends of a page.
const SAMPLE: usize = 16;

impl Alphabet {
    fn learn(&mut self, entries: &[Entry]) {
        let ends = entries.iter().step_by(SAMPLE).chain(entries.last());
        for byte in ends.flat_map(|entry| entry.name.as_bytes()) {
            match byte {
                b'0'..=b'9' => self.add(b'0'..=b'9'),
                byte if byte.is_ascii() && !byte.is_ascii_control() => self.add(*byte..=*byte),
                _ => {}
            }
        }
    }

    fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.seen |= 1 << byte;
        }
    }

    /// The symbols, and the highest that there can be, which stands for all that is no ASCII.
    fn symbols(&self) -> Vec<u8> {
        let seen = |byte: &u8| self.seen >> *byte & 1 == 1 && *byte != b'/';
        (b' '..b'~').filter(seen).chain([b'~']).collect()
    }

    /// How many pages there are from `at` to an end, if names lie as close there as on a page that
    /// begins with `shown` and ends with `at`.
    fn pages(&self, shown: &[u8], at: &[u8], until: Option<&[u8]>) -> f64 {
        let Some(until) = until else { return f64::INFINITY };
        let symbols = self.symbols();
        let shared = common(shown, until);
        let [first, last, end] =
            [shown, at, until].map(|name| value(&symbols, name, shared) as f64);
        if last > first { (end - last) / (last - first) } else { f64::INFINITY }
    }

    /// A name about in the middle between two, if the symbols allow any. Without an end, between
    /// one and the highest of all.
    fn between(&self, at: &[u8], until: Option<&[u8]>) -> Option<String> {
        let symbols = self.symbols();
        let mut shared = common(at, until.unwrap_or_default());
        while at.get(shared).is_some_and(|byte| byte & 0xc0 == 0x80) {
            shared -= 1;
        }
        let base = symbols.len() as u64 + 1;
        let low = value(&symbols, at, shared);
        let high = match until {
            Some(until) => value(&symbols, until, shared),
            None => base.pow(WINDOW) - 1,
        };
        let mut middle = low + high.checked_sub(low)? / 2;
        let mut digits = Vec::with_capacity(WINDOW as usize);
        for _ in 0..WINDOW {
            digits.push(middle % base);
            middle /= base;
        }
        let digits = digits.into_iter().rev().take_while(|digit| *digit > 0);
        let symbols =
            digits.filter_map(|digit| symbols.get(usize::try_from(digit).ok()? - 1).copied());
        let cut: Vec<u8> = at[..shared].iter().copied().chain(symbols).collect();
        let is_between = cut.as_slice() > at && until.is_none_or(|until| cut.as_slice() < until);
        String::from_utf8(cut).ok().filter(|_| is_between)
    }
}

/// What the bytes of a name from `from` on are as a number, whose digits are symbols.
fn value(symbols: &[u8], name: &[u8], from: usize) -> u64 {
    let base = symbols.len() as u64 + 1;
    (0..WINDOW as usize).fold(0, |sum, nth| {
        let rank = name.get(from + nth).map_or(0, |byte| rank(symbols, *byte));
        sum * base + rank
    })
}

/// The place of a byte among the symbols, from one on: that of the next lower one, if it is none.
fn rank(symbols: &[u8], byte: u8) -> u64 {
    (symbols.partition_point(|symbol| *symbol <= byte) as u64).max(1)
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn is_directory(key: &[u8]) -> bool {
    key.ends_with(b"/")
}

/// A key of a directory's page as the name that it has there.
fn name_of(key: &[u8]) -> &[u8] {
    key.strip_suffix(b"/").unwrap_or(key)
}

/// The greatest name of a page, whatever order that has.
fn last_name(page: &Page, prefix: &str) -> Option<Vec<u8>> {
    let names = page.entries.iter().map(|entry| entry.name.as_bytes());
    let out = page.left_out.iter().map(|out| name_of(below(out, prefix)));
    names.chain(out).max().map(<[u8]>::to_vec)
}

/// What a bucket orders by: the key below the directory's prefix.
fn key_of(entry: &Entry) -> Vec<u8> {
    let mut key = entry.name.as_bytes().to_vec();
    if entry.kind == EntryKind::Directory {
        key.push(b'/');
    }
    key
}

/// Nothing, of the directory's own mark.
fn below<'a>(out: &'a LeftOut, prefix: &str) -> &'a [u8] {
    out.key.strip_prefix(prefix).unwrap_or(&out.key).as_bytes()
}

/// The least and the greatest key of a page, but for the directory's own mark: that comes before
/// all names and says nothing of where they lie.
fn ends(page: &Page, prefix: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    // Both lists are in order.
    let entries = [page.entries.first(), page.entries.last()].map(|entry| entry.map(key_of));
    let [first, last] = entries;
    let mut out = page.left_out.iter().map(|out| below(out, prefix)).filter(|key| !key.is_empty());
    let out_first = out.next();
    let [out_first, out_last] = [out_first, out.next_back().or(out_first)];
    let [out_first, out_last] = [out_first, out_last].map(|key| key.map(<[u8]>::to_vec));
    (first.into_iter().chain(out_first).min(), last.max(out_last))
}

#[cfg(test)]
mod tests;
