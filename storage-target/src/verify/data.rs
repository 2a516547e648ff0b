//! Every page of data against its checksum, many reads at a time.

use std::{io, ops::Range};

use millrace_types::{BlockState, Crc32c};

use super::{
    flipped::{Flipped, flipped},
    report::{Kind, Report},
};
use crate::{
    format::{
        section::{Section, SectionKey, StoredPage},
        units::BLOCK_PAGES,
    },
    image::{PAGE, PageSource, Words, byte_in_chunk, checksum, in_parallel},
};

/// Pages read before the next part of the index is: 64 MiB.
const BATCH_PAGES: usize = 16_384;

/// Bad pages kept, so that swapped ones can be told; beyond that they are reported at once.
const KEPT_MAX: usize = 1024;

/// Pages of data to be read, a bounded number at a time.
pub(super) struct Data<'a> {
    source: &'a dyn PageSource,
    report: &'a Report<'a>,
    /// Pages that sections name, by what the index says; for progress.
    expected: u64,
    due: Vec<(SectionKey, Section)>,
    due_pages: usize,
    checked: u64,
    bad: Vec<Bad>,
}

/// A page that is not what it should be.
struct Bad {
    key: SectionKey,
    within: u8,
    state: BlockState,
    stored: StoredPage,
    found: Found,
}

enum Found {
    Other { seen: Crc32c, is_zero: bool, flip: Option<Flipped> },
    Unreadable(io::Error),
}

impl<'a> Data<'a> {
    pub(super) fn new(source: &'a dyn PageSource, report: &'a Report<'a>, expected: u64) -> Self {
        let (due, bad) = (Vec::new(), Vec::new());
        Self { source, report, expected, due, due_pages: 0, checked: 0, bad }
    }

    /// Has the pages of a section checked, now or later.
    pub(super) fn push(&mut self, key: SectionKey, section: Section) {
        self.due_pages += section.stored_pages().count();
        self.due.push((key, section));
        if self.due_pages >= BATCH_PAGES {
            self.check_due();
        }
    }

    /// Checks what is left; returns how many pages were checked.
    pub(super) fn finish(mut self) -> u64 {
        self.check_due();
        for at in 0..self.bad.len() {
            self.bad[at].report(self.report, &self.bad);
        }
        self.checked
    }

    fn check_due(&mut self) {
        let due = std::mem::take(&mut self.due);
        let found = in_parallel(&due, |(key, section)| check(self.source, *key, section));
        for (checked, bad) in found {
            self.checked += checked;
            self.bad.extend(bad);
        }
        self.due_pages = 0;
        for bad in self.bad.drain(KEPT_MAX.min(self.bad.len())..) {
            bad.report(self.report, &[]);
        }
        self.report.progress(self.checked, self.expected);
    }
}

/// Reads the pages of a section; returns how many there were, and the bad ones. Pages past the end
/// of the file are left to whoever compares its length.
fn check(source: &dyn PageSource, key: SectionKey, section: &Section) -> (u64, Vec<Bad>) {
    let end = source.pages();
    let pages: Vec<(u8, StoredPage)> =
        section.stored_pages().filter(|(_, stored)| stored.page < end).collect();
    let mut bad = Vec::new();
    for run in runs(&pages) {
        let run = &pages[run];
        let mut bytes = vec![0; run.len() * PAGE];
        let read = source.read(run[0].1.page, &mut bytes);
        for (at, &(within, stored)) in run.iter().enumerate() {
            let page = &mut bytes[at * PAGE..(at + 1) * PAGE];
            // Of a run that cannot be read, some pages can.
            let again = if read.is_ok() { Ok(()) } else { source.read(stored.page, page) };
            let found = match again {
                Ok(()) if Crc32c::of(page) == stored.checksum => continue,
                Ok(()) => Found::Other {
                    seen: Crc32c::of(page),
                    is_zero: page.iter().all(|&byte| byte == 0),
                    flip: flipped(page, stored.checksum),
                },
                Err(error) => Found::Unreadable(error),
            };
            let state = section.state(within / BLOCK_PAGES);
            bad.push(Bad { key, within, state, stored, found });
        }
    }
    (pages.len() as u64, bad)
}

/// Pages that lie one after the other on the disk.
fn runs(pages: &[(u8, StoredPage)]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, (_, stored)) in pages.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if pages[run.end - 1].1.page + 1 == stored.page => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

impl Bad {
    fn report(&self, report: &Report<'_>, others: &[Self]) {
        let Self { key, within, state, stored, found } = self;
        let what = match found {
            Found::Unreadable(error) => format!("the disk cannot read it: {error}"),
            Found::Other { seen, is_zero, flip } => {
                let expected = checksum(stored.checksum);
                let seen_text = checksum(*seen);
                let source = others.iter().find(|other| other.stored.checksum == *seen);
                let reason = match (flip, source) {
                    (Some(flip), _) => format!(" ({flip})"),
                    (None, _) if *is_zero => " (it is all zeros)".to_owned(),
                    (None, Some(other)) => {
                        format!(" (it holds the bytes that belong to page {})", other.stored.page)
                    }
                    (None, None) => String::new(),
                };
                format!("its checksum is {seen_text}, not {expected}{reason}")
            }
        };
        let first = byte_in_chunk(key.section, *within);
        let last = first + PAGE as u64 - 1;
        let (key, state) = (Words(*key), Words(*state));
        let text = format!("{key}, bytes {first} to {last} of the chunk, {state}: {what}");
        let remedy = match self.state {
            BlockState::Clean => {
                "nothing is lost while the bucket has this version: the next read of the block \
                 fetches it again"
            }
            _ => {
                "reads of it fail with EIO; overwrite or truncate that part of the file, or remove \
                 the file"
            }
        };
        report.damage(Kind::Data, stored.page, text, remedy);
    }
}
