//! The entries of the index against each other: what sections use, against free maps, summaries
//! and totals; first as of the checkpoint, then with the journal's records over it.

use std::collections::BTreeMap;

use millrace_types::InodeId;

use super::{
    data::Data,
    owned::{Owned, difference},
    replay::{Applied, Replay, Unknown},
    report::{Kind, Report},
};
use crate::{
    format::{
        extent::{Extent, page_count},
        fact::{Fact, FactNumber, StateTotals},
        finding::{BlockKey, Fault, Finding},
        free_map::{RegionMap, SUMMARY_GROUP, Summary},
        key::Key,
        root::RootRecord,
        section::{Section, SectionKey},
        superblock::Superblock,
        table::Entry,
    },
    image::{Damaged, Leaf, Tree, Words, area, checksum},
};

/// Wrong runs of pages kept for naming their owners.
const KEPT_MAX: usize = 256;

pub(super) const REWRITE: &str = "the daemon may refuse to start or write over data: copy out what \
                                  can be read, then begin anew with a blank target";
const COUNTS: &str = "the figures of this target are wrong; copy out what can be read, then begin \
                      anew with a blank target";
const LEAKED: &str = "the space cannot be used until the target is made anew; nothing is lost";

/// What the sections of one moment use.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) sections: u64,
    pub(super) totals: StateTotals,
    pub(super) inode_max: InodeId,
}

impl Sum {
    fn add(&mut self, key: SectionKey, section: &Section) {
        let (clean, written) = section.pages_by_state();
        self.sections += 1;
        self.totals.clean_pages += clean;
        self.totals.written_pages += written;
        self.inode_max = self.inode_max.max(key.chunk.inode);
    }
}

/// The entries seen so far.
pub(super) struct Contents<'a> {
    pub(super) report: &'a Report<'a>,
    pub(super) superblock: &'a Superblock,
    pub(super) root: &'a RootRecord,
    tree: Tree<'a>,
    pub(super) replay: &'a Replay,
    /// `None`: data is not read.
    pub(super) data: Option<Data<'a>>,
    pub(super) owned: Owned,
    /// As of the checkpoint.
    recorded: Sum,
    /// With the records over it.
    pub(super) present: Sum,
    facts: BTreeMap<u8, Fact>,
    maps: BTreeMap<u32, Summary>,
    groups: BTreeMap<u32, ()>,
    /// Whether entries may be missing: counts then prove nothing.
    pub(super) broken: bool,
    /// Pages that a section names although they are somebody else's.
    pub(super) twice: Vec<(SectionKey, Extent)>,
    /// Pages that are in use and free in the maps.
    pub(super) free_although_used: Vec<Extent>,
}

impl<'a> Contents<'a> {
    pub(super) fn new(
        report: &'a Report<'a>,
        superblock: &'a Superblock,
        tree: Tree<'a>,
        replay: &'a Replay,
        data: Option<Data<'a>>,
    ) -> Self {
        let root = tree.root;
        let mut owned = Owned::new(superblock.layout);
        for segment in &root.segments {
            owned.take(Extent { first: segment.first, pages: u64::from(segment.pages) });
        }
        Self {
            report,
            superblock,
            root,
            tree,
            replay,
            data,
            owned,
            recorded: Sum::default(),
            present: Sum::default(),
            facts: BTreeMap::new(),
            maps: BTreeMap::new(),
            groups: BTreeMap::new(),
            broken: false,
            twice: Vec::new(),
            free_although_used: Vec::new(),
        }
    }

    /// Takes a leaf of the tree, or what is damaged of it.
    pub(super) fn visit(&mut self, found: Result<Leaf, Damaged>) {
        let Leaf { page, node } = match found {
            Ok(leaf) => leaf,
            Err(damaged) => return self.lose(&damaged),
        };
        for at in 0..node.count() {
            let (key, value) = (node.key(at), node.value(at));
            let entry = match Entry::decode(key, &value) {
                Ok(entry) => entry,
                Err(error) => {
                    let text =
                        format!("the entry {} is none that a program writes: {error}", Words(key));
                    self.report.damage(Kind::Entry, page, text, REWRITE);
                    self.broken = true;
                    continue;
                }
            };
            self.record(page, &entry);
            let is_changed =
                Key::new(key).is_some_and(|key| self.replay.entries.contains_key(&key));
            if !is_changed {
                self.present(entry);
            }
        }
    }

    /// Takes what the records have put.
    pub(super) fn visit_replayed(&mut self) {
        for (key, value) in &self.replay.entries {
            let Some(value) = value else { continue };
            match Entry::decode(key.as_slice(), value) {
                Ok(entry) => self.present(entry),
                Err(error) => {
                    let name = Words(key.as_slice());
                    let text = format!("a record's entry {name} is none that is written: {error}");
                    self.report.damage(Kind::Record, None, text, REWRITE);
                }
            }
        }
    }

    fn lose(&mut self, damaged: &Damaged) {
        self.broken = true;
        let due = &damaged.due;
        let from = match due.low.is_empty() {
            true => "the first entry".to_owned(),
            false => Words(&due.low[..]).to_string(),
        };
        let until = due
            .high
            .as_ref()
            .map_or_else(|| "the end of the index".to_owned(), |high| Words(&high[..]).to_string());
        let (what, remedy) = match due.level {
            0 => (
                "a leaf",
                "reads of what it names fail with EIO, the rest of the target is served; copy out \
                 what can be read, then begin anew with a blank target",
            ),
            _ => (
                "an inner node",
                "the daemon refuses to start: begin anew with a blank target, clean data is \
                 fetched again",
            ),
        };
        let reason = &damaged.reason;
        let text = format!("{what} of the index is damaged: {reason}; it held {from} to {until}");
        self.report.damage(Kind::Node, due.reference.page, text, remedy);
    }

    /// An entry as of the checkpoint.
    fn record(&mut self, leaf: u64, entry: &Entry) {
        match entry {
            Entry::Section(key, section) => self.record_section(leaf, *key, section),
            Entry::Mark(inode, _) => {
                self.recorded.inode_max = self.recorded.inode_max.max(*inode);
            }
            Entry::FreeMap(region, map) => self.compare_map(leaf, *region, map),
            Entry::Summaries(group, summaries) => self.compare_summaries(leaf, *group, summaries),
            Entry::Fact(fact) => {
                self.facts.insert(fact.number() as u8, fact.clone());
            }
            Entry::Finding(..) | Entry::Lost(..) => {}
        }
    }

    fn record_section(&mut self, leaf: u64, key: SectionKey, section: &Section) {
        self.recorded.add(key, section);
        let name = Words(key);
        if section.is_blank() {
            let text = format!("{name} has a record, and nothing in it is present");
            self.report.damage(Kind::Entry, leaf, text, COUNTS);
        }
        if section.sequence > self.root.through {
            let text = format!(
                "{name} says that record {} changed it last, but the index contains records up to \
                 {} only",
                section.sequence, self.root.through
            );
            self.report.damage(Kind::Entry, leaf, text, REWRITE);
        }
        for extent in section.extents() {
            if !self.owned.contains(extent) {
                let area = area(&self.superblock.layout, extent.first);
                let text = format!("{name} names {}, which lies in {area}", Words(extent));
                self.report.damage(Kind::Pages, extent.first, text, REWRITE);
                continue;
            }
            for twice in self.owned.take(extent) {
                self.twice.push((key, twice));
            }
        }
    }

    fn compare_map(&mut self, leaf: u64, region: u32, map: &RegionMap) {
        if region >= self.superblock.layout.region_count() {
            let text = format!("there is a free map of region {region}, which does not exist");
            self.report.damage(Kind::FreeMap, leaf, text, REWRITE);
            return;
        }
        let summary = Summary::of(map, crate::format::free_map::Class::Small);
        self.maps.insert(region, summary);
        let (used, first) = (self.owned.map(region), self.owned.first_page(region));
        if !self.broken {
            for extent in difference(map, &used, first) {
                let text = format!(
                    "the free map of region {region} marks {} as in use, and nothing uses them",
                    Words(extent)
                );
                self.report.damage(Kind::FreeMap, extent.first, text, LEAKED);
            }
        }
        self.note_free(difference(&used, map, first));
    }

    /// What is in use and free in a map, unless the index has got it: that the next start notes.
    fn note_free(&mut self, extents: Vec<Extent>) {
        for extent in extents {
            let in_segment = |segment: &crate::format::root::Segment| {
                segment.first <= extent.first && extent.end() <= segment.end()
            };
            if !self.root.segments.iter().any(in_segment) {
                self.free_although_used.push(extent);
            }
        }
    }

    fn compare_summaries(&mut self, leaf: u64, group: u32, summaries: &[Summary]) {
        self.groups.insert(group, ());
        let first = u64::from(group) * u64::from(SUMMARY_GROUP);
        let count = u64::from(self.superblock.layout.region_count());
        for at in 0..u64::from(SUMMARY_GROUP) {
            let within = usize::try_from(at).expect("below 256");
            let stored = summaries.get(within).copied().unwrap_or(Summary::EMPTY);
            let region = first + at;
            if region >= count {
                if stored != Summary::EMPTY {
                    let text = format!("region {region} has a summary, and does not exist");
                    self.report.damage(Kind::Summary, leaf, text, REWRITE);
                }
                continue;
            }
            let region = u32::try_from(region).expect("below the count");
            let derived = self.maps.get(&region).copied().unwrap_or(Summary::EMPTY);
            let same = (stored.free, stored.longest) == (derived.free, derived.longest);
            if !same && !self.broken {
                let text = format!(
                    "the summary of region {region} says {} free pages, {} in one run; its free \
                     map has {}, {} in one run",
                    stored.free, stored.longest, derived.free, derived.longest
                );
                self.report.damage(Kind::Summary, leaf, text, REWRITE);
            }
        }
    }

    /// An entry as the next start finds it.
    fn present(&mut self, entry: Entry) {
        match entry {
            Entry::Section(key, section) => {
                self.present.add(key, &section);
                if let Some(data) = &mut self.data {
                    data.push(key, section);
                }
            }
            Entry::Finding(key, finding) => self.tell_finding(key, &finding),
            Entry::Lost(group, mark) => {
                let text = format!(
                    "placement group {} came back without its data: what is absent of inodes \
                     below {} is lost",
                    group.0, mark.below.0
                );
                let remedy = "reads of it fail with EIO; `millrace fsck start` tells the files";
                self.report.note(Kind::Lost, None, text, remedy);
            }
            Entry::Mark(..) | Entry::FreeMap(..) | Entry::Summaries(..) | Entry::Fact(..) => {}
        }
    }

    /// What the daemon has found. A stop may have come between what replaced the page and the
    /// record that the finding is no more.
    fn tell_finding(&self, key: BlockKey, finding: &Finding) {
        let name = Words(key);
        let what = match finding.fault {
            Fault::Checksum { seen } => {
                let (seen, expected) = (checksum(seen), checksum(finding.expected));
                format!(
                    "{name} was found bad by the daemon: its checksum was {seen}, not {expected}"
                )
            }
            Fault::Unreadable => {
                format!("{name} was found bad by the daemon: the disk could not read it")
            }
            Fault::Index => {
                format!("the daemon has found a node of the index damaged that held {name}")
            }
        };
        let stored = |section: Option<Section>| section.and_then(|it| it.page(finding.within));
        let stands = match self.replay.section(&self.tree, key.section).map(stored) {
            Ok(stored) => stored.is_some_and(|stored| {
                (stored.page, stored.checksum) == (finding.page, finding.expected)
            }),
            Err(Unknown) => true,
        };
        if stands || finding.fault == Fault::Index {
            let remedy = "listed until the block is overwritten, released or removed";
            self.report.damage(Kind::Finding, finding.page, what, remedy);
        } else {
            let text = format!("{what}; the page has been replaced since");
            self.report.note(Kind::Finding, finding.page, text, "the next start forgets it");
        }
    }

    /// What can be said when all entries of the checkpoint have been seen.
    pub(super) fn compare_recorded(&mut self) {
        let without_map: Vec<u32> =
            self.owned.regions().filter(|region| !self.maps.contains_key(region)).collect();
        for region in without_map {
            let first = self.owned.first_page(region);
            if !self.broken {
                self.note_free(difference(&self.owned.map(region), &RegionMap::default(), first));
            }
        }
        if self.broken {
            let text = "a part of the index cannot be read: free maps, summaries and totals were \
                        not compared with what sections use";
            let remedy = "the damage above comes first";
            self.report.note(Kind::FreeMap, None, text.to_owned(), remedy);
            return;
        }
        let in_use = |(region, map): (&u32, &Summary)| {
            let seen = self.groups.contains_key(&(region / SUMMARY_GROUP));
            (!seen && map.free < Summary::EMPTY.free).then_some(*region)
        };
        for region in self.maps.iter().filter_map(in_use) {
            let text = format!("region {region} has a free map, and its group has no summaries");
            self.report.damage(Kind::Summary, None, text, REWRITE);
        }
        self.compare_facts();
    }

    fn compare_facts(&self) {
        let totals = match self.facts.get(&(FactNumber::Totals as u8)) {
            Some(Fact::Totals(totals)) => *totals,
            _ => StateTotals::default(),
        };
        let derived = self.recorded.totals;
        if totals != derived {
            let text = format!(
                "the totals say {} clean and {} written pages; the sections have {} and {}",
                totals.clean_pages,
                totals.written_pages,
                derived.clean_pages,
                derived.written_pages
            );
            self.report.damage(Kind::Fact, None, text, COUNTS);
        }
        let highest = match self.facts.get(&(FactNumber::HighestInode as u8)) {
            Some(Fact::HighestInode(inode)) => *inode,
            _ => InodeId::default(),
        };
        if highest < self.recorded.inode_max {
            let text = format!(
                "the highest inode is said to be {}, and {} is here",
                highest.0, self.recorded.inode_max.0
            );
            self.report.damage(Kind::Fact, None, text, COUNTS);
        }
        if let Some(Fact::Features(features)) = self.facts.get(&(FactNumber::Features as u8))
            && *features != 0
        {
            let text = format!("parts of the format are in use that are not known: {features:x}");
            let remedy = "check it with the version of the program that wrote it";
            self.report.damage(Kind::Fact, None, text, remedy);
        }
        let counts = (self.root.nodes, self.root.entries);
        let index_pages: u64 =
            self.root.segments.iter().map(|segment| u64::from(segment.pages)).sum();
        if counts.0 > index_pages {
            let text = format!("the index has {} nodes in {index_pages} pages", counts.0);
            self.report.damage(Kind::Root, None, text, REWRITE);
        }
    }

    /// The records' pages, one record after the other, and what the sections then have.
    pub(super) fn compare_replayed(&mut self) {
        let mut expected = self.recorded.totals;
        let replay = self.replay;
        for Applied { sequence, page, effects } in &replay.applied {
            for &extent in &effects.given_up {
                let free = self.flip(extent, Owned::give);
                self.complain(*sequence, *page, "gives up", &free);
            }
            for &extent in &effects.taken {
                let used = self.flip(extent, Owned::take);
                self.complain(*sequence, *page, "takes", &used);
            }
            let StateTotals { clean_pages, written_pages } = &mut expected;
            *clean_pages = clean_pages.wrapping_add_signed(effects.clean_pages_more);
            *written_pages = written_pages.wrapping_add_signed(effects.written_pages_more);
        }
        let derived = self.present.totals;
        if self.broken {
            return;
        }
        if expected != derived {
            let text = format!(
                "with the journal's records there should be {} clean and {} written pages; the \
                 sections have {} and {}",
                expected.clean_pages,
                expected.written_pages,
                derived.clean_pages,
                derived.written_pages
            );
            self.report.damage(Kind::Record, None, text, COUNTS);
        }
        let index: u64 = self.root.segments.iter().map(|segment| u64::from(segment.pages)).sum();
        let (used, named) =
            (self.owned.pages(), derived.clean_pages + derived.written_pages + index);
        // Any other damage explains a difference.
        if used != named && self.report.counts().1 == 0 {
            let text = format!(
                "with the journal's records {used} pages should be in use; sections and index \
                 name {named}"
            );
            self.report.damage(Kind::Record, None, text, COUNTS);
        }
    }

    /// Does something with the pages of a record; returns those of which it is not possible.
    fn flip(
        &mut self,
        extent: Extent,
        flip: impl FnOnce(&mut Owned, Extent) -> Vec<Extent>,
    ) -> Vec<Extent> {
        match self.owned.contains(extent) {
            true => flip(&mut self.owned, extent),
            false => vec![extent],
        }
    }

    fn complain(&self, sequence: u64, page: u64, verb: &str, extents: &[Extent]) {
        for &extent in extents.iter().filter(|_| !self.broken) {
            let text = format!("record {sequence} {verb} {}, and cannot", Words(extent));
            self.report.damage(Kind::Record, page, text, REWRITE);
        }
    }

    /// Whether more wrong runs of pages are worth naming one by one.
    pub(super) fn kept<T>(wrong: &[T]) -> &[T] {
        &wrong[..KEPT_MAX.min(wrong.len())]
    }

    /// Pages of runs that are beyond the bound.
    pub(super) fn beyond(wrong: &[Extent]) -> u64 {
        page_count(&wrong[KEPT_MAX.min(wrong.len())..])
    }
}
