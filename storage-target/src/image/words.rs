//! How the offline tools call things: stable words that can be searched for.

use std::fmt;

use millrace_types::{BlockState, GroupId};

use super::PAGE;
use crate::format::{
    extent::Extent,
    fact::FactNumber,
    finding::BlockKey,
    root::ROOT_SLOTS,
    section::{SECTION_SIZE, SectionKey},
    superblock::{COPIES, Layout},
    table::TableKey,
};

/// A section in words.
pub(crate) struct Words<T>(pub(crate) T);

impl fmt::Display for Words<SectionKey> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SectionKey { chunk, section } = self.0;
        let millrace_types::ChunkKey { inode, generation, index, copy } = chunk;
        let (inode, generation, index, copy) = (inode.0, generation.0, index.0, copy.0);
        write!(
            f,
            "inode {inode} generation {generation} chunk {index} copy {copy} section {section}"
        )
    }
}

impl fmt::Display for Words<BlockKey> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} block {}", Words(self.0.section), self.0.block)
    }
}

impl fmt::Display for Words<FactNumber> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            FactNumber::LossCount => "loss count",
            FactNumber::Totals => "totals",
            FactNumber::HighestInode => "highest inode",
            FactNumber::Scrub => "scrub",
            FactNumber::Features => "features",
            FactNumber::JournalPosition => "journal position",
            FactNumber::LogSeen => "log seen",
            FactNumber::LossesSeen => "losses seen",
        })
    }
}

impl fmt::Display for Words<TableKey> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TableKey::Section(key) => write!(f, "section: {}", Words(key)),
            TableKey::Mark(inode) => write!(f, "mark: inode {}", inode.0),
            TableKey::FreeMap(region) => write!(f, "free map: region {region}"),
            TableKey::Summaries(group) => write!(f, "summaries: group {group}"),
            TableKey::Finding(key) => write!(f, "finding: {}", Words(key)),
            TableKey::Fact(number) => write!(f, "fact: {}", Words(number)),
            TableKey::Lost(GroupId(group)) => write!(f, "lost mark: group {group}"),
        }
    }
}

/// A key of the index, whatever it is.
impl fmt::Display for Words<&[u8]> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TableKey::decode(self.0) {
            Ok(key) => write!(f, "{}", Words(key)),
            Err(_) => {
                f.write_str("key ")?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl fmt::Display for Words<BlockState> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            BlockState::Absent => "absent",
            BlockState::Clean => "clean",
            BlockState::Written => "written",
            BlockState::Zero => "zero",
        })
    }
}

/// `page 7` or `pages 7 to 9`.
impl fmt::Display for Words<Extent> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Extent { first, pages: 1 } => write!(f, "page {first}"),
            extent => write!(f, "pages {} to {}", extent.first, extent.end().saturating_sub(1)),
        }
    }
}

/// The first byte of a page of a section, counted in its chunk.
pub(crate) fn byte_in_chunk(section: u8, page: u8) -> u64 {
    u64::from(section) * u64::from(SECTION_SIZE) + u64::from(page) * PAGE as u64
}

/// A checksum as the tools print it.
pub(crate) fn checksum(checksum: millrace_types::Crc32c) -> String {
    format!("{:08x}", checksum.0)
}

/// What a page belongs to by the layout alone.
pub(crate) fn area(layout: &Layout, page: u64) -> &'static str {
    let regions_end = layout.capacity - (layout.capacity - layout.regions) % REGION;
    if COPIES.contains(&page) {
        "the superblock"
    } else if (layout.roots..layout.roots + ROOT_SLOTS).contains(&page) {
        "the index roots"
    } else if (layout.journal..layout.journal + layout.journal_pages).contains(&page) {
        "the journal"
    } else if page < layout.regions {
        "no part of the target"
    } else if page < regions_end {
        "the regions"
    } else {
        "what lies behind the last region"
    }
}

const REGION: u64 = crate::format::free_map::REGION_PAGES as u64;
