//! `millrace-target verify`: everything on a target's disk against everything else, without the
//! daemon. Reads only; nothing is repaired.
//!
//! In this order: both superblocks; the four roots; the journal from its position, whose records
//! are laid over the newest checkpoint; every node of the index from the top, and every entry in
//! it; the pages that sections use against free maps, summaries and totals, first as of the
//! checkpoint and then with the records; every page of data against its checksum.
//!
//! What a stop in the middle may leave (a batch that was cut off, an older copy of a root, records
//! that were not durable) is a *note*; what it cannot leave is *damage*. A single flipped bit is
//! always damage, also where a write may have been cut off: its checksum gives it away.
//!
//! Memory: 1 KiB for each region in use (512 MiB for 16 TiB), the records of the journal that no
//! checkpoint has, and 64 MiB of data being read.
//!
//! Modules, in the order of the work: `superblocks`, `roots`, `journal`, `replay`, `contents`
//! (entries), `owned` (pages in use), `owners`, `data`; beside them `flipped` and [`report`].

use std::io;

use serde::Serialize;

use crate::{
    format::{
        batch::BootId,
        batch::Position,
        change::Change,
        fact::{Fact, FactNumber},
        root::RootRecord,
        superblock::{Superblock, SuperblockError},
        table::TableKey,
    },
    image::{Image, PageSource, Tree},
    volume::{boot_id, with_attachment},
};

pub mod command;
mod contents;
mod data;
mod flipped;
pub(crate) mod journal;
mod owned;
mod owners;
mod replay;
pub mod report;
mod roots;
mod superblocks;

use contents::Contents;
use data::Data;
use journal::Numbered;
use replay::{Replay, Replaying};
use report::{Kind, Observer, Report};
use roots::Roots;

/// What to check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Leaves the pages of data out.
    pub quick: bool,
    /// This boot of the machine and attachment of the disk. Records written under another one,
    /// without an end in order, may have lost their data with the machine's memory or the disk's.
    pub boot: Option<BootId>,
}

/// Why nothing can be checked.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// No copy of the superblock can be read from there.
    #[error("there is no target: too short for a superblock, or the disk cannot read it")]
    Short,
    /// Nothing was ever written there.
    #[error("there is no target: it is blank")]
    Blank,
    /// Something else lies there.
    #[error("there is no target: neither copy of the superblock begins with its magic number")]
    Foreign,
    /// Both copies are refused.
    #[error("neither copy of the superblock can be used: {0}")]
    Superblock(SuperblockError),
}

/// What was looked at, and how much of it is wrong.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Whose disk it is.
    pub target: String,
    /// Its cluster.
    pub cluster: String,
    /// The checkpoint that counts; 0: none can be read.
    pub generation: u64,
    /// The newest record that it contains.
    pub through: u64,
    /// The newest record in the journal.
    pub newest_record: u64,
    /// Records that the checkpoint does not contain.
    pub replayed_records: u64,
    /// Of these, records that were not known to be durable.
    pub pending_records: u64,
    /// Whether the daemon ended in order.
    pub ended_in_order: bool,
    /// Nodes of the index.
    pub nodes: u64,
    /// Entries of the index.
    pub entries: u64,
    /// Sections, with the records.
    pub sections: u64,
    /// Pages of the bucket's bytes.
    pub clean_pages: u64,
    /// Pages that somebody wrote.
    pub written_pages: u64,
    /// Pages of data that were read; none with `--quick`.
    pub checked_pages: u64,
    /// What is worth knowing.
    pub notes: u64,
    /// What is wrong.
    pub damages: u64,
}

impl Summary {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damages == 0
    }
}

/// Checks a target; `observer` hears of each thing as it is found.
///
/// # Errors
/// [`Unreadable`] when it cannot even be told whose disk it is.
pub fn verify(
    source: &dyn PageSource,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Summary, Unreadable> {
    let report = Report::new(observer);
    let superblock = superblocks::check(source, &report)?;
    let mut summary = Summary {
        target: superblock.target.to_string(),
        cluster: superblock.cluster.to_string(),
        ..Summary::default()
    };
    check_length(source, &superblock, &report);
    let roots = Roots::read(source, &superblock);
    match &roots.newest {
        None => roots.report(true, &report),
        Some(root) => {
            let check = Check { source, options, report: &report, superblock: &superblock, root };
            check.run(&roots, &mut summary);
        }
    }
    (summary.notes, summary.damages) = report.counts();
    Ok(summary)
}

/// A device or image file is as long as the target.
fn check_length(source: &dyn PageSource, superblock: &Superblock, report: &Report<'_>) {
    let (found, due) = (source.pages(), superblock.layout.capacity);
    if found < due && !source.may_grow() {
        let text = format!("it has {found} pages, and the target {due}: it was cut off");
        let remedy = "restore its length, or bring back the disk that the target was made on";
        report.damage(Kind::File, found, text, remedy);
    }
}

/// A check with everything that it needs.
struct Check<'a> {
    source: &'a dyn PageSource,
    options: &'a Options,
    report: &'a Report<'a>,
    superblock: &'a Superblock,
    root: &'a RootRecord,
}

impl Check<'_> {
    fn tree(&self) -> Tree<'_> {
        Tree { source: self.source, target: self.superblock.target, root: self.root }
    }

    fn run(&self, roots: &Roots, summary: &mut Summary) {
        let (generation, through) = (self.root.generation, self.root.through);
        (summary.generation, summary.through) = (generation, through);
        let (replay, is_known) = self.replay(roots, summary);
        let data = (!self.options.quick).then(|| {
            let expected = self.expected_pages();
            Data::new(self.source, self.report, expected)
        });
        let mut contents = Contents::new(self.report, self.superblock, self.tree(), &replay, data);
        let tree = self.tree();
        (summary.nodes, summary.entries) = tree.walk(|found| contents.visit(found));
        let counts = (self.root.nodes, self.root.entries);
        if !contents.broken && counts != (summary.nodes, summary.entries) {
            let text = format!(
                "the root says {} nodes and {} entries, and there are {} and {}",
                counts.0, counts.1, summary.nodes, summary.entries
            );
            self.report.damage(Kind::Root, None, text, contents::REWRITE);
        }
        contents.visit_replayed();
        contents.compare_recorded();
        owners::report(&tree, &contents, self.report);
        contents.broken |= !is_known;
        contents.compare_replayed();
        self.check_end(&contents);
        summary.sections = contents.present.sections;
        summary.clean_pages = contents.present.totals.clean_pages;
        summary.written_pages = contents.present.totals.written_pages;
        summary.checked_pages = contents.data.map_or(0, Data::finish);
    }

    /// The records after the checkpoint, laid over it; and whether all of them are known.
    fn replay(&self, roots: &Roots, summary: &mut Summary) -> (Replay, bool) {
        let through = self.root.through;
        let Some(start) = self.journal_position() else {
            roots.report(false, self.report);
            return (Replay::default(), false);
        };
        let mut records: Vec<Numbered> = Vec::new();
        let mut last = None;
        let found = journal::read(self.source, self.superblock, start, self.report, |record| {
            last = Some(record.bytes.clone());
            if record.sequence > through {
                records.push(record);
            }
        });
        let in_order =
            last.is_some_and(|last| Change::decode(&last).is_ok_and(|last| last == Change::Stop));
        roots.report(in_order, self.report);
        if found.end.sequence <= through {
            let text = format!(
                "the journal ends before record {}, although the index contains records up to \
                 {through}",
                found.end.sequence
            );
            self.report.damage(Kind::Journal, found.end.page, text, contents::REWRITE);
        }
        let same_boot = found.boot.map_or(through == 0, |boot| Some(boot) == self.options.boot);
        let lossy = self.has_failed() || (!in_order && !same_boot);
        let pending = records.iter().filter(|record| record.sequence >= found.committed_end);
        summary.pending_records = pending.count() as u64;
        summary.replayed_records = records.len() as u64;
        summary.newest_record = found.end.sequence.saturating_sub(1);
        summary.ended_in_order = in_order;
        if summary.pending_records > 0 && !in_order {
            let text = format!(
                "records {} to {} are pending: written, and not known to be durable",
                found.committed_end.max(through + 1),
                summary.newest_record
            );
            let remedy = "the next start takes them, after a loss of power or a failure of the \
                          journal only those whose data is there";
            self.report.note(Kind::Journal, None, text, remedy);
        }
        let replaying = Replaying {
            source: self.source,
            tree: self.tree(),
            report: self.report,
            lossy,
            committed_end: found.committed_end,
        };
        (replaying.apply(&records), true)
    }

    /// Whether the journal has failed since the newest checkpoint.
    fn has_failed(&self) -> bool {
        let number = FactNumber::LossesSeen;
        let value = self.tree().get(TableKey::Fact(number).encode().as_slice());
        match value.ok().flatten().map(|value| Fact::decode(number, &value)) {
            Some(Ok(Fact::LossesSeen(losses))) => self.superblock.losses > losses,
            // Earlier programs did not write it down.
            _ => false,
        }
    }

    /// Where the journal begins; `None` when the index cannot tell, or it is no place.
    fn journal_position(&self) -> Option<Position> {
        let layout = self.superblock.layout;
        let number = FactNumber::JournalPosition;
        let value = match self.tree().get(TableKey::Fact(number).encode().as_slice()) {
            Ok(value) => value,
            Err(damaged) => {
                let page = damaged.due.reference.page;
                let text = "the place where the journal begins cannot be read, so its records \
                            were not checked";
                let remedy = "the damage of the index comes first";
                self.report.note(Kind::Journal, page, text.to_owned(), remedy);
                return None;
            }
        };
        let first =
            Position { page: layout.journal, sequence: 1, previous: millrace_types::Crc32c::EMPTY };
        let Some(value) = value else { return Some(first) };
        // What cannot be decoded is reported with its leaf.
        let Ok(Fact::JournalPosition(position)) = Fact::decode(number, &value) else { return None };
        let ring = layout.journal..layout.journal + layout.journal_pages;
        if ring.contains(&position.page) && position.sequence <= self.root.through + 1 {
            return Some(position);
        }
        let text = format!(
            "the journal is said to begin at page {} with record {}, which is no place of its ring \
             or leaves records out",
            position.page, position.sequence
        );
        self.report.damage(Kind::Fact, None, text, contents::REWRITE);
        None
    }

    /// Pages of data by the totals; for progress alone.
    fn expected_pages(&self) -> u64 {
        let number = FactNumber::Totals;
        let value = self.tree().get(TableKey::Fact(number).encode().as_slice());
        match value.ok().flatten().map(|value| Fact::decode(number, &value)) {
            Some(Ok(Fact::Totals(totals))) => totals.clean_pages + totals.written_pages,
            _ => 0,
        }
    }

    /// Nothing in use may lie behind the end of the file.
    fn check_end(&self, contents: &Contents<'_>) {
        let end = self.source.pages();
        let regions = self.superblock.layout.regions;
        let (pages, first) = contents.owned.used_from(end);
        let text = match first {
            _ if end < regions => format!("it ends at page {end}, before the regions begin"),
            Some(first) => format!(
                "it ends at page {end}, and {pages} pages that are in use lie behind, from page \
                 {first} on: it was cut off"
            ),
            None => return,
        };
        let remedy = "restore its length; what lay behind is lost, reads of it fail with EIO";
        self.report.damage(Kind::File, end, text, remedy);
    }
}

/// The boot of this machine and the attachment of an image's disk, as far as the system tells them.
///
/// # Errors
/// What the system says.
pub fn this_boot(image: &Image) -> io::Result<BootId> {
    Ok(with_attachment(boot_id()?, image.attachment()))
}
