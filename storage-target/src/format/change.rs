//! What a record of the journal's ring says: each is one change of the index and of the space.
//!
//! | byte 0 | name     | the rest                                                             |
//! |-------:|----------|----------------------------------------------------------------------|
//! |      1 | sections | session 8, write number 8, clean pages more 4 (signed), extents      |
//! |        |          | taken, extents given up, count 2, then each section: its key 18,     |
//! |        |          | length of its value 2 (0: the section is gone), its value            |
//! |      2 | remove   | clean pages less 4, extents given up, count 2, keys of sections (18) |
//! |      3 | mark     | inode 8, generation 4, write epoch 4                                 |
//! |      4 | fact     | its number 1, its value                                              |
//! |      5 | finding  | section's key 18, block 1, the finding 24                            |
//! |      6 | mended   | section's key 18, block 1: what was found there is no more           |
//! |      7 | lost     | placement group 4, inode 8                                           |
//! |      8 | stop     | nothing: the daemon ended in order; nothing follows until the next   |
//! |        |          | start                                                                |
//! |      9 | beside   | as sections; the data was being written beside the record            |
//!
//! Extents are a count (4) and 8 bytes each (`extent`). Keys are big-endian, as in the index. Kinds
//! are never used again. The batch around a record has its checksum.
//!
//! A record carries *results*: whole values, and every page whose owner changes. So replay reads
//! nothing else, and pages by state are exact without looking at what was there before:
//! written pages more = taken - given up - clean pages more.

use bytes::Bytes;
use millrace_types::{GroupId, InodeId, SessionId, WriteNumber};

use super::{
    FormatError,
    batch::RECORD_LEN_MAX,
    extent::{EXTENT_LEN, Extent, encoded_count, join, page_count, put_extents, take_extents},
    fact::{Fact, FactNumber},
    fields::{Put, Reader},
    finding::{BlockKey, Finding},
    key::Key,
    mark::{LostMark, Mark},
    section::{SECTION_LEN_MAX, SECTION_PAGES, Section, SectionKey, StoredPage},
    table::{Entry, TableKey},
};

#[cfg(test)]
mod tests;

/// Sections that a removal names at most.
pub const REMOVAL_SECTIONS_MAX: usize = 512;

/// Sections that one change can hold, whatever they look like.
pub const CHANGE_SECTIONS_MAX: usize = 32;

const WHAT: &str = "a journal record";
const KEY_LEN: usize = 18;

// Each section with its worst value, all its pages taken one by one and as many given up.
const _: () = assert!(
    64 + CHANGE_SECTIONS_MAX * (KEY_LEN + 2 + SECTION_LEN_MAX + 2 * 8 * SECTION_PAGES as usize)
        <= RECORD_LEN_MAX
);

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Sections have new records.
    Sections(SectionsChange),
    /// Sections are gone.
    Remove(Removal),
    /// Older generations and write epochs of an inode are refused from now on.
    Mark(InodeId, Mark),
    /// A fact is another.
    Fact(Fact),
    /// A block was found bad.
    Finding(BlockKey, Finding),
    /// A finding is no more: its block was replaced, dropped or read well again.
    Mended(BlockKey),
    /// A group's data is gone.
    Lost(GroupId, LostMark),
    /// The daemon ended in order.
    Stop,
}

/// Sections have new records, all at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionsChange {
    /// The session that wrote; 0 for fills and everything else that is no client's write.
    pub session: SessionId,
    /// Its write number; 0 likewise.
    pub number: WriteNumber,
    /// Whether the data was still being written when the record was: then also a kill may have
    /// left the one without the other.
    pub is_beside: bool,
    sections: Vec<(SectionKey, Option<Section>)>,
    taken: Vec<Extent>,
    given_up: Vec<Extent>,
    clean_pages_more: i32,
}

impl SectionsChange {
    /// A change of nothing yet.
    #[must_use]
    pub fn new(session: SessionId, number: WriteNumber) -> Self {
        Self {
            session,
            number,
            is_beside: false,
            sections: Vec::new(),
            taken: Vec::new(),
            given_up: Vec::new(),
            clean_pages_more: 0,
        }
    }

    /// Adds a section: what it was (`None`: not there) and what it is from now on. One that is
    /// blank is removed. What is taken and given up follows from the two.
    ///
    /// # Panics
    /// When there are [`CHANGE_SECTIONS_MAX`] already.
    pub fn put(&mut self, key: SectionKey, old: Option<&Section>, new: Section) {
        assert!(self.sections.len() < CHANGE_SECTIONS_MAX, "a change fits a record");
        let clean = |section: &Section| i32::try_from(section.pages_by_state().0).expect("a few");
        let (before, after) = unlike(old, &new);
        let without = |pages: &[u64], others: &[u64]| {
            let left = pages.iter().filter(|page| others.binary_search(page).is_err());
            join(left.copied().collect())
        };
        self.taken.extend(without(&after, &before));
        self.given_up.extend(without(&before, &after));
        self.clean_pages_more += clean(&new) - old.map_or(0, clean);
        self.sections.push((key, (!new.is_blank()).then_some(new)));
    }

    /// The sections, and what they are from now on; `None`: gone.
    #[must_use]
    pub fn sections(&self) -> &[(SectionKey, Option<Section>)] {
        &self.sections
    }

    /// Pages that sections use from now on.
    #[must_use]
    pub fn taken(&self) -> &[Extent] {
        &self.taken
    }

    /// Pages that none uses any more.
    #[must_use]
    pub fn given_up(&self) -> &[Extent] {
        &self.given_up
    }

    /// The pages taken, with their checksums: after a loss of power a record that was not known to
    /// be durable is believed only if all of them match.
    pub fn new_pages(&self) -> impl Iterator<Item = StoredPage> + '_ {
        let is_new = |stored: &StoredPage| {
            self.taken.iter().any(|extent| extent.numbers().contains(&stored.page))
        };
        let sections = self.sections.iter().filter_map(|(_, section)| section.as_ref());
        sections.flat_map(Section::stored_pages).map(|(_, stored)| stored).filter(is_new)
    }
}

/// The pages of the disk, in order, that an older and a newer version of a section do not both have
/// in the same place of the section: most changes leave most pages where they are.
fn unlike(old: Option<&Section>, new: &Section) -> (Vec<u64>, Vec<u64>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (olds, news) = new.changed_places(old);
    let mut olds = olds.peekable();
    for (at, page) in news {
        while let Some((_, gone)) = olds.next_if(|&(older_at, _)| older_at < at) {
            before.push(gone);
        }
        match olds.next_if(|&(older_at, _)| older_at == at) {
            Some((_, older)) if older == page => {}
            Some((_, older)) => {
                before.push(older);
                after.push(page);
            }
            None => after.push(page),
        }
    }
    before.extend(olds.map(|(_, gone)| gone));
    before.sort_unstable();
    after.sort_unstable();
    (before, after)
}

/// Sections are gone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removal {
    sections: Vec<SectionKey>,
    given_up: Vec<Extent>,
    clean_pages_less: u32,
}

impl Removal {
    /// Adds a section; returns false and adds nothing when the record is full.
    #[must_use]
    pub fn push(&mut self, key: SectionKey, section: &Section) -> bool {
        let extents = section.extents();
        let count = encoded_count(&self.given_up) + extents.len();
        let len = 16 + EXTENT_LEN * count + KEY_LEN * (self.sections.len() + 1);
        if self.sections.len() == REMOVAL_SECTIONS_MAX || len > RECORD_LEN_MAX {
            return false;
        }
        self.sections.push(key);
        for extent in extents {
            match self.given_up.last_mut() {
                Some(last) if last.end() == extent.first => last.pages += extent.pages,
                _ => self.given_up.push(extent),
            }
        }
        let (clean, _) = section.pages_by_state();
        self.clean_pages_less += u32::try_from(clean).expect("at most 128");
        true
    }

    /// Whether it names no section.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    /// The sections.
    #[must_use]
    pub fn sections(&self) -> &[SectionKey] {
        &self.sections
    }

    /// Pages that none uses any more.
    #[must_use]
    pub fn given_up(&self) -> &[Extent] {
        &self.given_up
    }
}

/// What a change does to the index and to the space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Values to put, and keys to remove (`None`), in this order.
    pub entries: Vec<(Key, Option<Bytes>)>,
    /// Pages that are in use from now on.
    pub taken: Vec<Extent>,
    /// Pages that are not in use any more.
    pub given_up: Vec<Extent>,
    /// How many more pages of clean blocks there are.
    pub clean_pages_more: i64,
    /// How many more pages of written blocks there are.
    pub written_pages_more: i64,
    /// An inode that has sections or a mark here.
    pub inode: Option<InodeId>,
}

/// What a change does. The same at a write and at replay, so that the two can never disagree.
#[must_use]
pub fn effects(change: &Change) -> Effects {
    let mut effects = Effects::default();
    let mut put = |entry: Entry| {
        let (key, value) = entry.encode();
        effects.entries.push((key, Some(value)));
    };
    match change {
        Change::Sections(change) => return effects_of_sections(change),
        Change::Remove(removal) => return effects_of_removal(removal),
        Change::Mark(inode, mark) => {
            put(Entry::Mark(*inode, *mark));
            effects.inode = Some(*inode);
        }
        Change::Fact(fact) => put(Entry::Fact(fact.clone())),
        Change::Finding(key, finding) => put(Entry::Finding(*key, *finding)),
        Change::Mended(key) => effects.entries.push((TableKey::Finding(*key).encode(), None)),
        Change::Lost(group, mark) => put(Entry::Lost(*group, *mark)),
        Change::Stop => {}
    }
    effects
}

fn effects_of_sections(change: &SectionsChange) -> Effects {
    let mut entries = Vec::with_capacity(change.sections.len());
    for (key, section) in &change.sections {
        let value = section.as_ref().map(|section| section.encode(key.section).into());
        entries.push((TableKey::Section(*key).encode(), value));
    }
    let clean = i64::from(change.clean_pages_more);
    let more = signed(page_count(&change.taken)) - signed(page_count(&change.given_up));
    Effects {
        entries,
        taken: change.taken.clone(),
        given_up: change.given_up.clone(),
        clean_pages_more: clean,
        written_pages_more: more - clean,
        inode: change.sections.iter().map(|(key, _)| key.chunk.inode).max(),
    }
}

fn effects_of_removal(removal: &Removal) -> Effects {
    let gone = |key: &SectionKey| (TableKey::Section(*key).encode(), None);
    let clean = i64::from(removal.clean_pages_less);
    Effects {
        entries: removal.sections.iter().map(gone).collect(),
        taken: Vec::new(),
        given_up: removal.given_up.clone(),
        clean_pages_more: -clean,
        written_pages_more: clean - signed(page_count(&removal.given_up)),
        inode: None,
    }
}

fn signed(pages: u64) -> i64 {
    i64::try_from(pages).expect("pages of a record")
}

impl Change {
    /// Whether its data was still being written when the record was.
    #[must_use]
    pub fn is_beside(&self) -> bool {
        matches!(self, Self::Sections(change) if change.is_beside)
    }

    /// The bytes of the record.
    ///
    /// # Panics
    /// When a section is impossible.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_with(&effects(self))
    }

    /// The same, for who has the effects of this very change: what it puts into the index stands in
    /// the record as well.
    #[must_use]
    pub fn encode_with(&self, effects: &Effects) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Self::Sections(change) => bytes = change.encode(&effects.entries),
            Self::Remove(removal) => removal.encode(&mut bytes),
            Self::Mark(inode, mark) => {
                bytes.put_u8(3);
                bytes.put_u64(inode.0);
                bytes.extend(mark.encode());
            }
            Self::Fact(fact) => {
                bytes.put_u8(4);
                bytes.put_u8(fact.number() as u8);
                bytes.extend(fact.encode());
            }
            Self::Finding(key, finding) => {
                bytes.put_u8(5);
                key.put(&mut bytes);
                bytes.extend(finding.encode());
            }
            Self::Mended(key) => {
                bytes.put_u8(6);
                key.put(&mut bytes);
            }
            Self::Lost(group, mark) => {
                bytes.put_u8(7);
                bytes.put_u32(group.0);
                bytes.extend(mark.encode());
            }
            Self::Stop => bytes.put_u8(8),
        }
        assert!(bytes.len() <= RECORD_LEN_MAX, "a record keeps within its bound");
        bytes.into()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`FormatError`] when no program writes these bytes. That no bit is flipped is for the batch
    /// around them to say.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let kind = reader.u8()?;
        let change = match kind {
            1 => Self::Sections(SectionsChange::decode(&mut reader)?),
            2 => Self::Remove(Removal::decode(&mut reader)?),
            3 => Self::Mark(InodeId(reader.u64()?), Mark::decode(&reader.array::<8>()?)?),
            4 => {
                let number = FactNumber::from_byte(reader.u8()?);
                let number = number.ok_or_else(|| reader.impossible("number of a fact"))?;
                return Fact::decode(number, &bytes[2..]).map(Self::Fact);
            }
            5 => {
                let key = BlockKey::take(&mut reader)?;
                Self::Finding(key, Finding::decode(&reader.array::<24>()?, key.block)?)
            }
            6 => Self::Mended(BlockKey::take(&mut reader)?),
            7 => Self::Lost(GroupId(reader.u32()?), LostMark::decode(&reader.array::<8>()?)?),
            8 => Self::Stop,
            9 => {
                let change = SectionsChange::decode(&mut reader)?;
                Self::Sections(SectionsChange { is_beside: true, ..change })
            }
            _ => return Err(reader.impossible("kind")),
        };
        reader.finish()?;
        Ok(change)
    }
}

impl SectionsChange {
    /// `entries` are those of its effects: one for each section.
    fn encode(&self, entries: &[(Key, Option<Bytes>)]) -> Vec<u8> {
        let extents = encoded_count(&self.taken) + encoded_count(&self.given_up);
        let len_of = |(_, value): &(Key, Option<Bytes>)| value.as_ref().map_or(0, Bytes::len);
        let values: usize = entries.iter().map(|entry| KEY_LEN + 2 + len_of(entry)).sum();
        let len = 1 + 8 + 8 + 4 + 4 + 4 + EXTENT_LEN * extents + 2 + values;
        let mut bytes = Vec::with_capacity(len);
        bytes.put_u8(if self.is_beside { 9 } else { 1 });
        bytes.put_u64(self.session.0);
        bytes.put_u64(self.number.0);
        bytes.put_bytes(&self.clean_pages_more.to_le_bytes());
        put_extents(&mut bytes, &self.taken);
        put_extents(&mut bytes, &self.given_up);
        bytes.put_u16(u16::try_from(self.sections.len()).expect("a few"));
        assert_eq!(entries.len(), self.sections.len(), "an entry for each section");
        for ((key, _), (_, value)) in self.sections.iter().zip(entries) {
            key.put(&mut bytes);
            let value = value.as_deref().unwrap_or_default();
            bytes.put_u16(u16::try_from(value.len()).expect("at most 1,920"));
            bytes.put_bytes(value);
        }
        debug_assert!(bytes.len() == len, "as long as was said");
        bytes
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let mut change = Self::new(SessionId(reader.u64()?), WriteNumber(reader.u64()?));
        change.clean_pages_more = i32::from_le_bytes(reader.array()?);
        change.taken = take_extents(reader)?;
        change.given_up = take_extents(reader)?;
        for _ in 0..reader.u16()? {
            let key = SectionKey::take(reader)?;
            let len = usize::from(reader.u16()?);
            let section = match len {
                0 => None,
                _ => Some(Section::decode(reader.slice(len)?, key.section)?),
            };
            change.sections.push((key, section));
        }
        Ok(change)
    }
}

impl Removal {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.put_u8(2);
        bytes.put_u32(self.clean_pages_less);
        put_extents(bytes, &self.given_up);
        bytes.put_u16(u16::try_from(self.sections.len()).expect("at most 512"));
        self.sections.iter().for_each(|key| key.put(bytes));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let clean_pages_less = reader.u32()?;
        let given_up = take_extents(reader)?;
        let mut sections = Vec::new();
        for _ in 0..reader.u16()? {
            sections.push(SectionKey::take(reader)?);
        }
        Ok(Self { sections, given_up, clean_pages_less })
    }
}
