//! One page, by what it is.

use bytes::Bytes;
use millrace_types::Crc32c;

use super::{Dump, DumpError, entries, roots};
use crate::{
    format::{
        batch::{BATCH_LEN_MAX, Batch},
        node::{Node, Reference},
        section::{Section, SectionKey},
        superblock::COPIES,
        table::Entry,
    },
    image::{PAGE, Tree, Words, area, byte_in_chunk, checksum},
};

impl Dump<'_> {
    pub(super) fn page(&mut self, page: u64) -> Result<(), DumpError> {
        let layout = self.superblock.layout;
        let bytes = match self.source.pages_at(page, 1) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(writeln!(self.out, "page {page}: {error}")?),
        };
        let zero = if bytes.iter().all(|&byte| byte == 0) { ", all zeros" } else { "" };
        let found = checksum(Crc32c::of(&bytes));
        let area = area(&layout, page);
        writeln!(self.out, "page {page}: in {area}, checksum of its bytes {found}{zero}")?;
        if let Some(copy) = COPIES.iter().position(|&copy| copy == page) {
            return self.superblock_line(copy);
        }
        let root = roots(self.source, &self.superblock).into_iter().find(|(at, _)| *at == page);
        if let Some((_, root)) = root {
            return self.root_line(page, root);
        }
        let ring = layout.journal..layout.journal + layout.journal_pages;
        if ring.contains(&page) {
            return self.batch_at(page, ring.end);
        }
        if let Some(node) = self.node(page, &bytes) {
            return self.node_lines(page, &node);
        }
        self.users(page, &bytes)
    }

    fn batch_at(&mut self, page: u64, ring_end: u64) -> Result<(), DumpError> {
        let longest = ((BATCH_LEN_MAX / PAGE) as u64).min(ring_end - page);
        let count = usize::try_from(longest).unwrap_or(1);
        let bytes = self.source.pages_at(page, count).unwrap_or_default();
        match Batch::decode(&bytes, self.superblock.target, page) {
            Ok(batch) => self.batch(&batch),
            Err(error) => Ok(writeln!(self.out, "batch page {page}: {error}")?),
        }
    }

    /// The node that a page says to be.
    fn node(&self, page: u64, bytes: &Bytes) -> Option<Node> {
        let checksum = Crc32c(u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?));
        let level = *bytes.get(32)?;
        let reference = Reference { page, checksum };
        Node::decode(bytes.clone(), self.superblock.target, reference, level).ok()
    }

    fn node_lines(&mut self, page: u64, node: &Node) -> Result<(), DumpError> {
        let (level, generation, count) = (node.level(), node.generation(), node.count());
        writeln!(
            self.out,
            "node page {page}: level {level} generation {generation} entries {count}"
        )?;
        for at in 0..count {
            match level {
                0 => writeln!(self.out, "{}", entries::line(node.key(at), &node.value(at)))?,
                _ => {
                    let child = node.child(at);
                    let (to, sum) = (child.page, checksum(child.checksum));
                    writeln!(
                        self.out,
                        "child page {to} checksum {sum} from {}",
                        Words(node.key(at))
                    )?;
                }
            }
        }
        Ok(())
    }

    /// The sections of the checkpoint that name a page of data.
    fn users(&mut self, page: u64, bytes: &[u8]) -> Result<(), DumpError> {
        let Some(root) = &self.root else { return Err(DumpError::NoRoot) };
        let tree = Tree { source: self.source, target: self.superblock.target, root };
        let mut lines = Vec::new();
        tree.walk(|found| {
            let Ok(leaf) = found else { return };
            for at in 0..leaf.node.count() {
                let entry = Entry::decode(leaf.node.key(at), &leaf.node.value(at));
                if let Ok(Entry::Section(key, section)) = entry {
                    lines.extend(use_of(key, &section, page, bytes));
                }
            }
        });
        if lines.is_empty() {
            lines.push(format!("page {page}: no section of the checkpoint names it"));
        }
        for line in lines {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }
}

/// How a section uses a page, if it does.
fn use_of(key: SectionKey, section: &Section, page: u64, bytes: &[u8]) -> Option<String> {
    let (within, stored) = section.stored_pages().find(|(_, stored)| stored.page == page)?;
    let first = byte_in_chunk(key.section, within);
    let last = first + PAGE as u64 - 1;
    let sound = if Crc32c::of(bytes) == stored.checksum { "matches" } else { "differs" };
    let expected = checksum(stored.checksum);
    let key = Words(key);
    Some(format!(
        "page {page}: {key}, bytes {first} to {last} of the chunk, checksum {expected} {sound}"
    ))
}
