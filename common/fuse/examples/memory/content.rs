//! What is in a file: blocks, and holes between them.

use std::{collections::BTreeMap, ops::Range};

/// The bytes of a file.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// In units of 512 bytes.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.len() as u64 * (BLOCK / 512)
    }

    /// Cuts it off, or lets it grow with a hole.
    pub(crate) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.clear(size..self.size);
        }
        self.size = size;
    }

    /// Lets it grow to `size`, if it is shorter.
    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Makes a hole.
    pub(crate) fn clear(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size);
        // Without walking through what is a hole already: a file may be 8 EiB long.
        let numbers: Vec<u64> = if range.start < end {
            self.blocks
                .range(range.start / BLOCK..=(end - 1) / BLOCK)
                .map(|(key, _)| *key)
                .collect()
        } else {
            Vec::new()
        };
        for number in numbers {
            let start = number * BLOCK;
            let from = place(range.start.max(start) - start);
            let to = place(end.min(start + BLOCK) - start);
            if to - from == place(BLOCK) {
                self.blocks.remove(&number);
            } else if let Some(block) = self.blocks.get_mut(&number) {
                block[from..to].fill(0);
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (number, from) = (at / BLOCK, place(at % BLOCK));
            let len = rest.len().min(place(BLOCK) - from);
            let block = self.blocks.entry(number).or_insert_with(|| ZEROS.to_vec().into());
            block[from..from + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            at += len as u64;
        }
        self.grow(at);
    }

    /// The parts of a range, up to the end of the file. They lie where they are, and holes are
    /// parts of one block of zeros.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Vec<&[u8]> {
        let end = offset.saturating_add(len).min(self.size);
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end {
            let (number, from) = (at / BLOCK, place(at % BLOCK));
            let to = place(BLOCK.min(end - number * BLOCK));
            let block: &[u8] = self.blocks.get(&number).map_or(&ZEROS, |block| block);
            parts.push(&block[from..to]);
            at = number * BLOCK + to as u64;
        }
        parts
    }

    /// Where there is data from `offset` on; `None` beyond the last.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let (number, _) = self.blocks.range(offset / BLOCK..).next()?;
        Some(offset.max(number * BLOCK)).filter(|found| *found < self.size)
    }

    /// Where there is a hole from `offset` on, which the end of the file is too.
    pub(crate) fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut number = offset / BLOCK;
        if !self.blocks.contains_key(&number) {
            return Some(offset);
        }
        while self.blocks.contains_key(&number) {
            number += 1;
        }
        Some(self.size.min(number * BLOCK))
    }
}

/// A place in a block.
fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("no more than a block")
}

const BLOCK: u64 = 64 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
