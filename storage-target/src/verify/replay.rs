//! The journal's records over the newest checkpoint: what the next start would find.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millrace_types::{ChunkSize, Crc32c, InodeId};

use super::{
    flipped::flipped,
    journal::Numbered,
    report::{Kind, Report, Severity},
};
use crate::{
    format::{
        change::{Change, Effects, Removal, SectionsChange, effects},
        key::Key,
        section::{Section, SectionKey, StoredPage},
        table::TableKey,
    },
    image::{PAGE, PageSource, Tree},
};

const IMPOSSIBLE: &str = "the daemon refuses to start on it: begin anew with a blank target, clean \
                          data is fetched again";

/// What a record does to the space.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) sequence: u64,
    pub(super) page: u64,
    pub(super) effects: Effects,
}

/// The records' outcome. In memory it takes what the records take: at most the ring.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// What the records have put, or removed (`None`).
    pub(super) entries: BTreeMap<Key, Option<Bytes>>,
    /// Their effects on the space, in order.
    pub(super) applied: Vec<Applied>,
    /// Pending records whose data is not there.
    pub(super) dropped: u64,
    /// Inodes of which a record was dropped.
    incomplete: BTreeSet<InodeId>,
    /// Sections of which a record was dropped that changed others with them.
    torn: BTreeSet<SectionKey>,
}

/// The index is damaged there, which its own check says.
pub(super) struct Unknown;

/// What the records are held against.
pub(super) struct Replaying<'a> {
    pub(super) source: &'a dyn PageSource,
    pub(super) tree: Tree<'a>,
    pub(super) report: &'a Report<'a>,
    /// Whether the machine may have lost its memory: then records that nobody knows to be durable
    /// count only if their data is there. Otherwise only those that were written beside it, and all
    /// after the first one that does not count.
    pub(super) lossy: bool,
    /// Every record below is durable.
    pub(super) committed_end: u64,
}

impl Replaying<'_> {
    /// Applies records in order.
    pub(super) fn apply(&self, records: &[Numbered]) -> Replay {
        let mut replay = Replay::default();
        for record in records {
            let Numbered { sequence, page, ref bytes } = *record;
            let change = match Change::decode(bytes) {
                Ok(change) => change,
                Err(error) => {
                    let text = format!("record {sequence} is none that a program writes: {error}");
                    self.report.damage(Kind::Record, page, text, IMPOSSIBLE);
                    continue;
                }
            };
            let is_doubtful = self.lossy || change.is_beside() || replay.dropped > 0;
            let pending = is_doubtful && sequence >= self.committed_end;
            let believed = match pending {
                true => self.believed(&replay, sequence, &change),
                false => Some(change.clone()),
            };
            match believed {
                Some(change) => replay.put(sequence, page, &change),
                None => replay.leave_out(&change),
            }
        }
        if replay.dropped > 0 {
            let text = format!(
                "{} records that were not durable have lost their data; the older versions stand",
                replay.dropped
            );
            let remedy = match self.lossy {
                true => {
                    "the next start leaves them out and raises the loss count; clients send again \
                     what they still hold"
                }
                false => "the next start leaves them out; nobody has been told of them",
            };
            self.report.note(Kind::Record, None, text, remedy);
        }
        replay
    }

    /// A pending change against the version that stands; `None` when its data is not there.
    fn believed(&self, replay: &Replay, sequence: u64, change: &Change) -> Option<Change> {
        match change {
            Change::Sections(change) => {
                if change.sections().iter().any(|(key, _)| replay.torn.contains(key)) {
                    return None;
                }
                let held = self.held(replay, change)?;
                let all = held.new_pages().all(|stored| self.matches(sequence, stored));
                all.then_some(Change::Sections(held))
            }
            Change::Remove(removal) => self.held_removal(replay, removal).map(Change::Remove),
            Change::Mark(inode, _) if replay.incomplete.contains(inode) => None,
            Change::Mended(key) if replay.incomplete.contains(&key.section.chunk.inode) => None,
            other => Some(other.clone()),
        }
    }

    /// New records of sections over the versions that stand; `None` when these cannot be read. They
    /// need not be as long as no record of the inode was dropped: then it is what was written.
    fn held(&self, replay: &Replay, change: &SectionsChange) -> Option<SectionsChange> {
        if replay.are_whole(change.sections().iter().map(|(key, _)| key)) {
            return Some(change.clone());
        }
        let mut held = SectionsChange::new(change.session, change.number);
        for (key, new) in change.sections() {
            let old = replay.section(&self.tree, *key).ok()?;
            let new = new.clone().unwrap_or_else(|| Section::blank(ChunkSize::DEFAULT));
            held.put(*key, old.as_ref(), new);
        }
        Some(held)
    }

    /// The same of a removal.
    fn held_removal(&self, replay: &Replay, removal: &Removal) -> Option<Removal> {
        if replay.are_whole(removal.sections()) {
            return Some(removal.clone());
        }
        let mut held = Removal::default();
        for key in removal.sections() {
            if let Some(section) = replay.section(&self.tree, *key).ok()?
                && !held.push(*key, &section)
            {
                return None;
            }
        }
        Some(held)
    }

    fn matches(&self, sequence: u64, stored: StoredPage) -> bool {
        let mut bytes = vec![0; PAGE];
        if self.source.read(stored.page, &mut bytes).is_err() {
            return false;
        }
        if Crc32c::of(&bytes) == stored.checksum {
            return true;
        }
        if let Some(flip) = flipped(&bytes, stored.checksum) {
            let text = format!(
                "a page of record {sequence}, which was not known to be durable, is damaged: {flip}"
            );
            let remedy = "the next start takes it for a write that was cut off, and leaves the \
                          record out";
            self.report.remark(Severity::Damage, Kind::Data, Some(stored.page), text, remedy);
        }
        false
    }
}

impl Replay {
    /// A section as it stands, if that can be told.
    pub(super) fn section(
        &self,
        tree: &Tree<'_>,
        key: SectionKey,
    ) -> Result<Option<Section>, Unknown> {
        let name = TableKey::Section(key).encode();
        let value = match self.entries.get(&name) {
            Some(value) => value.clone(),
            None => tree.get(name.as_slice()).map_err(|_| Unknown)?,
        };
        let decode = |value: Bytes| Section::decode(&value, key.section).map_err(|_| Unknown);
        value.map(decode).transpose()
    }

    /// Whether no record of the inodes of these sections was dropped.
    fn are_whole<'k>(&self, sections: impl IntoIterator<Item = &'k SectionKey>) -> bool {
        !sections.into_iter().any(|key| self.incomplete.contains(&key.chunk.inode))
    }

    fn put(&mut self, sequence: u64, page: u64, change: &Change) {
        if let Change::Remove(removal) = change {
            // What comes after it begins anew.
            self.torn.retain(|key| !removal.sections().contains(key));
        }
        let effects = effects(change);
        for (key, value) in &effects.entries {
            self.entries.insert(*key, value.clone());
        }
        let effects = Effects { entries: Vec::new(), ..effects };
        self.applied.push(Applied { sequence, page, effects });
    }

    fn leave_out(&mut self, change: &Change) {
        self.dropped += 1;
        match change {
            Change::Remove(removal) => {
                self.incomplete.extend(removal.sections().iter().map(|key| key.chunk.inode));
            }
            other => self.incomplete.extend(effects(other).inode),
        }
        if let Change::Sections(change) = change
            && change.sections().len() > 1
        {
            self.torn.extend(change.sections().iter().map(|(key, _)| *key));
        }
    }
}
