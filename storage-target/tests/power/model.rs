//! What the target must hold: plain bytes for each block, and for what is not yet promised every
//! version that may be found after a loss of power. Knows nothing of the engine.
//!
//! # What it allows, and which sentence allows it
//! - After a kill: everything acknowledged, and the request under way done or not. ("All records
//!   are there; one that is torn at the end was never acknowledged.")
//! - After a loss of power: of each block the version last promised by a sync, or any later one,
//!   whole. ("Each one is kept only if every page that it names matches its checksum; otherwise the
//!   older version stands.") A later version of a block may contain bytes of an earlier one that
//!   was lost elsewhere: it was made from it, and is what readers saw.
//! - The blocks of one write, fill, release or export are all of them old or all of them new.
//!   ("A write is there as a whole or not at all.") Those of a zeroing or of a trim under way are
//!   so each for itself; both are repeated by whoever asked until they are acknowledged.
//! - What was acknowledged before a sync that failed stays in doubt until it is replaced: a later
//!   sync promises nothing about it, and the loss count says so.
//! - A page with a flipped bit is an error for ever, and only that page of its version.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use anyhow::{Result, bail, ensure};

use super::subject::{Chunk, Found};

pub(crate) const PAGE: usize = 4096;
pub(crate) const BLOCK: usize = 64 * 1024;
/// Blocks of a chunk.
pub(crate) const BLOCKS: usize = 4;
pub(crate) const CHUNK: usize = BLOCKS * BLOCK;
/// Chunks of a file.
pub(crate) const CHUNKS: usize = 2;
pub(crate) const FILES: usize = 3;

/// Where a block's bytes come from. Whether zeros are stored or only noted is the engine's affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Absent,
    /// The bucket has them too.
    Clean,
    Own,
}

/// A block of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) chunk: usize,
    pub(crate) block: usize,
}

/// What a block holds, or may hold.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) state: State,
    /// All of the block's bytes; none if it is absent.
    pub(crate) bytes: Arc<[u8]>,
    /// Pages in which a bit was flipped.
    pub(crate) rot: u16,
    /// The change that made it; 0 for what was promised.
    event: u64,
}

impl Version {
    fn absent() -> Self {
        Self { state: State::Absent, bytes: Arc::new([]), rot: 0, event: 0 }
    }

    fn is(&self, found: &Found) -> bool {
        if self.state != found.state || self.rot != found.rot {
            return false;
        }
        if self.rot == 0 {
            return *self.bytes == *found.bytes;
        }
        let pages = self.bytes.chunks(PAGE).zip(found.bytes.chunks(PAGE));
        (0..).zip(pages).all(|(at, (own, found))| self.rot >> at & 1 == 1 || own == found)
    }

    /// The bytes, also of an absent block.
    fn all_bytes(&self) -> Vec<u8> {
        match self.state {
            State::Absent => vec![0; BLOCK],
            State::Clean | State::Own => self.bytes.to_vec(),
        }
    }
}

/// What a request does when it is carried out.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Whether it is there as a whole or not at all.
    whole: bool,
    blocks: Vec<(Place, Version)>,
}

/// How a run of the engine ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Kill,
    Cut,
}

#[derive(Clone, Debug)]
struct File {
    generation: u32,
    epoch: u32,
    backed: [usize; CHUNKS],
}

/// The model.
#[derive(Debug)]
pub(crate) struct Model {
    /// Of each block all versions from the one promised last on, oldest first.
    histories: BTreeMap<Place, Vec<Version>>,
    files: Vec<File>,
    /// Changes that are there as a whole or not at all, with their blocks.
    whole: BTreeMap<u64, Vec<Place>>,
    events: u64,
    /// The changes that were under way when the run ended, each of blocks of its own.
    under_way: BTreeSet<u64>,
    /// Changes up to this one are in doubt.
    doubtful: u64,
}

impl Model {
    /// An empty target; of each chunk so many bytes are in the bucket.
    pub(crate) fn new(backed: [[usize; CHUNKS]; FILES]) -> Self {
        let mut histories = BTreeMap::new();
        for file in 0..FILES {
            for chunk in 0..CHUNKS {
                for block in 0..BLOCKS {
                    histories.insert(Place { file, chunk, block }, vec![Version::absent()]);
                }
            }
        }
        let files = backed.map(|backed| File { generation: 1, epoch: 0, backed }).to_vec();
        let whole = BTreeMap::new();
        let under_way = BTreeSet::new();
        Self { histories, files, whole, events: 0, under_way, doubtful: 0 }
    }

    /// How the chunk must be asked for.
    pub(crate) fn chunk(&self, file: usize, index: usize) -> Chunk {
        let File { generation, epoch, backed } = &self.files[file];
        let backed = backed[index];
        Chunk { inode: file as u64 + 1, generation: *generation, index, epoch: *epoch, backed }
    }

    /// What a block holds now.
    pub(crate) fn now(&self, place: Place) -> &Version {
        self.histories[&place].last().expect("never empty")
    }

    /// Whether only one version of the block may be found.
    pub(crate) fn is_certain(&self, place: Place) -> bool {
        self.histories[&place].len() == 1
    }

    /// One past the last byte of the chunk that is not absent.
    pub(crate) fn end_of(&self, file: usize, chunk: usize) -> usize {
        let present =
            |block: &usize| self.now(Place { file, chunk, block: *block }).state != State::Absent;
        (0..BLOCKS).rev().find(present).map_or(0, |block| {
            let bytes = &self.now(Place { file, chunk, block }).bytes;
            block * BLOCK + bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)
        })
    }

    /// The blocks that `range` of a chunk touches, each with the part of it.
    fn parts(
        file: usize,
        chunk: usize,
        range: &Range<usize>,
    ) -> impl Iterator<Item = (Place, Range<usize>)> + use<> {
        let range = range.clone();
        (range.start / BLOCK..=(range.end - 1) / BLOCK).map(move |block| {
            let start = range.start.max(block * BLOCK) - block * BLOCK;
            let end = range.end.min((block + 1) * BLOCK) - block * BLOCK;
            (Place { file, chunk, block }, start..end)
        })
    }

    /// Bytes of a block that the bucket backs.
    pub(crate) fn backed(&self, place: Place) -> usize {
        let backed = self.files[place.file].backed[place.chunk];
        backed.saturating_sub(place.block * BLOCK).min(BLOCK)
    }

    pub(crate) fn write(&self, file: usize, chunk: usize, at: usize, bytes: &[u8]) -> Change {
        let range = at..at + bytes.len();
        let mut rest = bytes;
        let blocks = Self::parts(file, chunk, &range).map(|(place, part)| {
            let old = self.now(place);
            let mut all = old.all_bytes();
            let (own, more) = rest.split_at(part.len());
            rest = more;
            all[part.clone()].copy_from_slice(own);
            (place, Version { rot: rot_beside(old.rot, &part), ..stored(State::Own, all) })
        });
        Change { whole: true, blocks: blocks.collect() }
    }

    pub(crate) fn zero(&self, file: usize, chunk: usize, range: &Range<usize>) -> Change {
        let mut blocks = Vec::new();
        for (place, part) in Self::parts(file, chunk, range) {
            let old = self.now(place);
            // A part of an absent block that nothing backs stays a hole.
            if old.state == State::Absent && part.len() < BLOCK && self.backed(place) == 0 {
                continue;
            }
            let mut all = old.all_bytes();
            all[part.clone()].fill(0);
            let rot = rot_beside(old.rot, &part);
            blocks.push((place, Version { rot, ..stored(State::Own, all) }));
        }
        Change { whole: false, blocks }
    }

    /// The bucket's `bytes` arrive for blocks from `block` on.
    pub(crate) fn fill(&self, file: usize, chunk: usize, block: usize, bytes: &[u8]) -> Change {
        let blocks = (block..).zip(bytes.chunks(BLOCK)).filter_map(|(block, bytes)| {
            let place = Place { file, chunk, block };
            let mut all = bytes.to_vec();
            all.resize(BLOCK, 0);
            let absent = self.now(place).state == State::Absent;
            absent.then(|| (place, stored(State::Clean, all)))
        });
        Change { whole: true, blocks: blocks.collect() }
    }

    /// Clean blocks of the chunk, or the one of them that is named, are dropped.
    pub(crate) fn drop_clean(&self, file: usize, chunk: usize, only: Option<usize>) -> Change {
        let blocks = (0..BLOCKS)
            .filter(|&block| only.is_none_or(|only| only == block))
            .map(|block| Place { file, chunk, block })
            .filter(|&place| self.now(place).state == State::Clean)
            .map(|place| (place, Version::absent()));
        Change { whole: true, blocks: blocks.collect() }
    }

    /// The scrub drops the clean blocks that are damaged.
    pub(crate) fn scrub(&self) -> Change {
        let blocks = places()
            .filter(|&place| self.now(place).state == State::Clean && self.now(place).rot != 0)
            .map(|place| (place, Version::absent()));
        Change { whole: false, blocks: blocks.collect() }
    }

    /// Blocks of the chunk become clean and keep their bytes, and their damage.
    pub(crate) fn export(
        &self,
        file: usize,
        chunk: usize,
        blocks: impl Iterator<Item = usize>,
    ) -> Change {
        let blocks = blocks.map(|block| {
            let place = Place { file, chunk, block };
            (place, Version { state: State::Clean, ..self.now(place).clone() })
        });
        Change { whole: true, blocks: blocks.collect() }
    }

    /// The file will shrink to `size`: the requests for it have the next epoch.
    pub(crate) fn begin_trim(&mut self, file: usize, size: usize) {
        let known = &mut self.files[file];
        known.epoch += 1;
        for (chunk, backed) in known.backed.iter_mut().enumerate() {
            *backed = (*backed).min(size.saturating_sub(chunk * CHUNK));
        }
    }

    pub(crate) fn trim(&self, file: usize, size: usize) -> Change {
        let mut blocks = Vec::new();
        for place in places_of(file) {
            let start = place.chunk * CHUNK + place.block * BLOCK;
            let kept = size.saturating_sub(start).min(BLOCK);
            let old = self.now(place);
            if old.state == State::Absent || kept == BLOCK {
                continue;
            }
            let new = if kept == 0 {
                Version::absent()
            } else {
                let mut all = old.all_bytes();
                if all[kept..].iter().all(|&byte| byte == 0) && old.rot == 0 {
                    continue;
                }
                all[kept..].fill(0);
                // The page within which the file is cut stays bad.
                let gone = kept.next_multiple_of(PAGE)..BLOCK;
                Version { rot: rot_beside(old.rot, &gone), ..stored(old.state, all) }
            };
            blocks.push((place, new));
        }
        Change { whole: false, blocks }
    }

    /// The content goes.
    pub(crate) fn reclaim(&self, file: usize) -> Change {
        let present = |&place: &Place| self.now(place).state != State::Absent;
        let gone = places_of(file).filter(present).map(|place| (place, Version::absent()));
        Change { whole: false, blocks: gone.collect() }
    }

    /// After a reclaim that was acknowledged: the file has new content.
    pub(crate) fn begin_content(&mut self, file: usize, backed: [usize; CHUNKS]) {
        let generation = self.files[file].generation + 1;
        self.files[file] = File { generation, epoch: 0, backed };
    }

    /// The change was acknowledged.
    pub(crate) fn acknowledge(&mut self, change: Change) {
        self.events += 1;
        let Change { whole, blocks } = change;
        if whole {
            self.whole.insert(self.events, blocks.iter().map(|&(place, _)| place).collect());
        }
        for (place, version) in blocks {
            let version = Version { event: self.events, ..version };
            self.histories.get_mut(&place).expect("every place is known").push(version);
        }
    }

    /// A change that is not one whole ended early: each of its blocks is as it was or as it should
    /// be.
    pub(crate) fn acknowledge_in_part(&mut self, change: &Change, found: &[Found]) -> Result<()> {
        let done = |(place, version): &&(Place, Version)| version.is(&found[place.block]);
        let blocks = change.blocks.iter().filter(done).cloned().collect();
        self.acknowledge(Change { whole: false, blocks });
        for (place, _) in &change.blocks {
            self.check(*place, &found[place.block])?;
        }
        Ok(())
    }

    /// The run ended while the change was under way.
    pub(crate) fn interrupt(&mut self, change: Change) {
        self.acknowledge(change);
        self.under_way.insert(self.events);
    }

    /// Everything acknowledged is durable, but for what is in doubt.
    pub(crate) fn promise(&mut self) {
        self.promise_through(self.events);
    }

    /// The change that was acknowledged last.
    pub(crate) fn newest(&self) -> u64 {
        self.events
    }

    /// Everything acknowledged up to a change is durable, but for what is in doubt.
    pub(crate) fn promise_through(&mut self, through: u64) {
        for versions in self.histories.values_mut() {
            let promised = versions.iter().rposition(|version| version.event <= through);
            if let Some(at) = promised.filter(|&at| versions[at].event > self.doubtful) {
                versions.drain(..at);
            }
        }
        if self.doubtful == 0 {
            self.whole.retain(|&event, _| event > through);
        }
    }

    /// The change that was acknowledged last is durable, whatever others are.
    pub(crate) fn promise_newest(&mut self) {
        for versions in self.histories.values_mut() {
            if versions.last().is_some_and(|last| last.event == self.events) {
                versions.drain(..versions.len() - 1);
            }
        }
    }

    /// A sync failed: what was acknowledged before it may or may not survive a loss of power.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = self.events;
    }

    /// A bit of the block's page was flipped on the disk.
    pub(crate) fn flip(&mut self, place: Place, page: usize) {
        let versions = self.histories.get_mut(&place).expect("every place is known");
        versions.last_mut().expect("never empty").rot |= 1 << page;
    }

    /// Whether what is found is what the block holds now.
    pub(crate) fn check(&self, place: Place, found: &Found) -> Result<()> {
        let now = self.now(place);
        if now.is(found) {
            return Ok(());
        }
        bail!("{place:?} is not what was written: {}", difference(now, found));
    }

    /// Whether what was found in a chunk while a change of it was under way is how it was before,
    /// or how it is afterwards, and no mix of the two.
    pub(crate) fn check_beside(
        &self,
        file: usize,
        chunk: usize,
        change: &Change,
        found: &[Found],
    ) -> Result<()> {
        let mut has_new = None;
        for (block, found) in found.iter().enumerate() {
            let place = Place { file, chunk, block };
            let new = change.blocks.iter().find(|(changed, _)| *changed == place);
            let is_old = self.now(place).is(found);
            let is_new = new.is_some_and(|(_, version)| version.is(found));
            if !is_old && !is_new {
                self.check(place, found)?;
            }
            if is_old != is_new && new.is_some() {
                ensure!(*has_new.get_or_insert(is_new) == is_new, "{place:?} is of another moment");
            }
        }
        Ok(())
    }

    /// After a recovery: each block must be one of those allowed, which it then is. Returns whether
    /// something acknowledged was lost.
    pub(crate) fn settle(
        &mut self,
        ending: Ending,
        found: &BTreeMap<Place, Found>,
    ) -> Result<bool> {
        let under_way = std::mem::take(&mut self.under_way);
        let mut matching = BTreeMap::new();
        let mut lost = false;
        for (&place, versions) in &self.histories {
            let acknowledged = versions.len()
                - 1
                - usize::from(versions.last().is_some_and(|last| under_way.contains(&last.event)));
            let first = if ending == Ending::Kill { acknowledged } else { 0 };
            let found = &found[&place];
            let all: Vec<usize> =
                (first..versions.len()).filter(|&at| versions[at].is(found)).collect();
            let Some(&newest) = all.last() else {
                let which = versions.iter().position(|version| version.is(found));
                bail!(
                    "after {ending:?}, {place:?} is no version that is allowed; of {} versions it \
                     is {which:?}; {}",
                    versions.len(),
                    difference(&versions[acknowledged], found)
                );
            };
            lost |= newest < acknowledged;
            matching.insert(place, all);
        }
        self.check_whole(&matching)?;
        for (place, versions) in &mut self.histories {
            let newest = *matching[place].last().expect("checked");
            versions.truncate(newest + 1);
            if ending == Ending::Cut {
                versions.drain(..newest);
            }
        }
        if ending == Ending::Cut {
            self.whole.clear();
            self.doubtful = 0;
        }
        Ok(lost)
    }

    /// Changes that are there as a whole or not at all must be.
    fn check_whole(&self, matching: &BTreeMap<Place, Vec<usize>>) -> Result<()> {
        for (event, places) in &self.whole {
            let (mut kept, mut gone) = (BTreeSet::new(), BTreeSet::new());
            for place in places {
                let versions = &self.histories[place];
                let Some(own) = versions.iter().position(|version| version.event == *event) else {
                    continue;
                };
                let matches = &matching[place];
                if matches.iter().all(|&at| at == own) {
                    kept.insert(*place);
                } else if matches.iter().all(|&at| at < own) {
                    gone.insert(*place);
                }
            }
            ensure!(
                kept.is_empty() || gone.is_empty(),
                "change {event} is there in part: {kept:?} is new and {gone:?} is old"
            );
        }
        Ok(())
    }
}

/// All blocks.
pub(crate) fn places() -> impl Iterator<Item = Place> {
    (0..FILES).flat_map(places_of)
}

/// The blocks of a file.
fn places_of(file: usize) -> impl Iterator<Item = Place> {
    let chunk = (0..CHUNKS).flat_map(|chunk| (0..BLOCKS).map(move |block| (chunk, block)));
    chunk.map(move |(chunk, block)| Place { file, chunk, block })
}

/// The damage in pages of a block that a change of `part` does not touch: an engine may leave
/// these pages where they are.
fn rot_beside(rot: u16, part: &Range<usize>) -> u16 {
    let touched = |page: usize| part.start < (page + 1) * PAGE && part.end > page * PAGE;
    (0..BLOCK / PAGE).filter(|&page| touched(page)).fold(rot, |rot, page| rot & !(1 << page))
}

fn stored(state: State, bytes: Vec<u8>) -> Version {
    assert_eq!(bytes.len(), BLOCK, "versions have all bytes of their block");
    Version { state, bytes: bytes.into(), rot: 0, event: 0 }
}

fn difference(expected: &Version, found: &Found) -> String {
    let pages = expected.bytes.chunks(PAGE).zip(found.bytes.chunks(PAGE));
    let page = pages.clone().position(|(expected, found)| expected != found);
    format!(
        "expected {:?} with damage {:#x}, found {:?} with damage {:#x}; {} pages differ from \
         page {page:?} on",
        expected.state,
        expected.rot,
        found.state,
        found.rot,
        pages.filter(|(expected, found)| expected != found).count()
    )
}
