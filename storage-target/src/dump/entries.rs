//! Entries of the index, a line each.

use std::io;

use millrace_types::BlockState;

use super::{Dump, DumpError};
use crate::{
    format::{
        fact::{Fact, FactNumber},
        finding::{Fault, Finding},
        free_map::{REGION_PAGES, RegionMap, Summary},
        section::Section,
        table::{Entry, TableKey},
    },
    image::{Words, checksum},
};

/// The tables that say something about an inode, and those about the space.
const INODES: [u8; 3] = [1, 2, 5];
const SPACE: [u8; 2] = [3, 4];

impl Dump<'_> {
    pub(super) fn facts(&mut self) -> Result<(), DumpError> {
        for number in (0..=u8::MAX).filter_map(FactNumber::from_byte) {
            let key = TableKey::Fact(number).encode();
            let line = match self.tree()?.get(key.as_slice()) {
                Ok(Some(value)) => line(key.as_slice(), &value),
                Ok(None) => format!("fact: {}: none", Words(number)),
                Err(damaged) => {
                    let page = damaged.due.reference.page;
                    format!("fact: {}: page {page}: {}", Words(number), damaged.reason)
                }
            };
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    pub(super) fn entries(&mut self, inode: Option<u64>) -> Result<(), DumpError> {
        self.lines(|key| {
            let Some(inode) = inode else { return true };
            let named = key.get(1..9).and_then(|field| field.first_chunk().copied());
            key.first().is_some_and(|table| INODES.contains(table))
                && named == Some(inode.to_be_bytes())
        })
    }

    pub(super) fn regions(&mut self) -> Result<(), DumpError> {
        self.lines(|key| key.first().is_some_and(|table| SPACE.contains(table)))
    }

    pub(super) fn key(&mut self, key: &[u8]) -> Result<(), DumpError> {
        let line = match self.tree()?.get(key) {
            Ok(Some(value)) => line(key, &value),
            Ok(None) => format!("{}: there is no such entry", Words(key)),
            Err(damaged) => {
                format!("node page {}: {}", damaged.due.reference.page, damaged.reason)
            }
        };
        Ok(writeln!(self.out, "{line}")?)
    }

    /// Prints the entries whose keys are wanted, in order, and what is damaged between them.
    fn lines(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<(), DumpError> {
        let root = self.root.as_ref().ok_or(DumpError::NoRoot)?;
        let tree = crate::image::Tree { source: self.source, target: self.superblock.target, root };
        let mut printed: io::Result<()> = Ok(());
        let out = &mut *self.out;
        tree.walk(|found| {
            if printed.is_err() {
                return;
            }
            match found {
                Err(damaged) => {
                    let page = damaged.due.reference.page;
                    printed = writeln!(out, "node page {page}: {}", damaged.reason);
                }
                Ok(leaf) => {
                    let keys = (0..leaf.node.count()).map(|at| (at, leaf.node.key(at)));
                    for (at, key) in keys.filter(|(_, key)| wanted(key)) {
                        printed = writeln!(out, "{}", line(key, &leaf.node.value(at)));
                        if printed.is_err() {
                            break;
                        }
                    }
                }
            }
        });
        Ok(printed?)
    }
}

/// An entry as a line.
pub(super) fn line(key: &[u8], value: &[u8]) -> String {
    let name = Words(key);
    match Entry::decode(key, value) {
        Err(error) => format!("{name}: {error}"),
        Ok(entry) => format!("{name}: {}", in_words(&entry)),
    }
}

fn in_words(entry: &Entry) -> String {
    match entry {
        Entry::Section(_, section) => of_section(section),
        Entry::Mark(_, mark) => {
            format!("generation {} write epoch {}", mark.generation.0, mark.write_epoch.0)
        }
        Entry::FreeMap(_, map) => of_map(map),
        Entry::Summaries(_, summaries) => {
            let summary = |summary: &Summary| {
                format!("{}/{} {:?}", summary.free, summary.longest, summary.class).to_lowercase()
            };
            summaries.iter().map(summary).collect::<Vec<_>>().join(", ")
        }
        Entry::Finding(_, finding) => of_finding(finding),
        Entry::Fact(fact) => of_fact(fact),
        Entry::Lost(_, mark) => format!("inodes below {}", mark.below.0),
    }
}

pub(super) fn of_section(section: &Section) -> String {
    let states: String = section
        .states()
        .iter()
        .map(|state| match state {
            BlockState::Absent => '-',
            BlockState::Clean => 'c',
            BlockState::Written => 'w',
            BlockState::Zero => 'z',
        })
        .collect();
    let mut text = format!(
        "version {}.{} group epoch {} write epoch {} length {} chunk size {} record {} blocks \
         {states} extents",
        section.version.group_epoch.0,
        section.version.counter,
        section.group_epoch.0,
        section.write_epoch.0,
        section.length,
        section.chunk_size.bytes(),
        section.sequence
    );
    let mut stored = section.stored_pages().peekable();
    while let Some((first, place)) = stored.next() {
        let mut pages = 1_u64;
        while stored.next_if(|(_, next)| next.page == place.page + pages).is_some() {
            pages += 1;
        }
        text.push_str(&format!(" {first}+{pages}@{}", place.page));
    }
    text
}

fn of_map(map: &RegionMap) -> String {
    let runs: Vec<String> =
        map.free_runs().map(|run| format!("{}..{}", run.start, run.end)).collect();
    let used = REGION_PAGES - map.free_pages();
    format!("{used} pages in use, {} free: {}", map.free_pages(), runs.join(" "))
}

pub(super) fn of_finding(finding: &Finding) -> String {
    let Finding { time, page, within, expected, fault } = finding;
    let fault = match fault {
        Fault::Checksum { seen } => {
            format!("checksum {} instead of {}", checksum(*seen), checksum(*expected))
        }
        Fault::Unreadable => "unreadable".to_owned(),
        Fault::Index => "a node of the index".to_owned(),
    };
    format!("page {page} (page {within} of the section) at {} ns: {fault}", time.0)
}

pub(super) fn of_fact(fact: &Fact) -> String {
    match fact {
        Fact::LossCount(count) | Fact::LossesSeen(count) => count.to_string(),
        Fact::Totals(totals) => {
            format!("{} clean pages, {} written pages", totals.clean_pages, totals.written_pages)
        }
        Fact::HighestInode(inode) => inode.0.to_string(),
        Fact::Scrub(scrub) => format!(
            "pass {} begun {} ended {} pages {} findings {} next {}",
            scrub.pass,
            scrub.begun.0,
            scrub.ended.0,
            scrub.pages,
            scrub.findings,
            scrub.cursor.map_or_else(|| "the start".to_owned(), |key| Words(key).to_string())
        ),
        Fact::Features(bits) => format!("{bits:x}"),
        Fact::JournalPosition(position) => format!(
            "page {} record {} after {}",
            position.page,
            position.sequence,
            checksum(position.previous)
        ),
        Fact::LogSeen(point) => {
            format!("run {:x} record {}", point.incarnation, point.index.0)
        }
    }
}
