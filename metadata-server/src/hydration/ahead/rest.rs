//! The rest of chunks and files that were read in part. No I/O.

use std::collections::{HashSet, VecDeque};

use millrace_protocol::{capability::Content, target::Item};
use millrace_types::{ChunkIndex, LinkId};

use super::sender::Piece;
use crate::hydration::spread::runs;

/// Files and chunks that wait: 200 bytes each. What comes beyond is read when it is asked for.
const WAITING_MAX: usize = 4096;

/// Each file or chunk once, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Rest {
    waiting: VecDeque<Waiting>,
    known: HashSet<Name>,
}

type Name = (millrace_types::InodeId, millrace_types::ContentGeneration, Option<ChunkIndex>);

#[derive(Debug)]
struct Waiting {
    name: Name,
    link: LinkId,
    content: Content,
    /// Runs that were handed out.
    runs: usize,
}

impl Rest {
    /// Has the rest of a chunk fetched, or of the whole file. Of a file that waits already nothing
    /// more.
    pub(super) fn put(&mut self, link: LinkId, content: Content, chunk: Option<ChunkIndex>) {
        let name = (content.inode, content.generation, chunk);
        if self.waiting.len() < WAITING_MAX && self.known.insert(name) {
            self.waiting.push_back(Waiting { name, link, content, runs: 0 });
        }
    }

    /// The next run of the oldest, and how many bytes it has at most.
    pub(super) fn next(&mut self) -> Option<Piece> {
        loop {
            let first = self.waiting.front_mut()?;
            let size = first.content.origin_length;
            let item = match first.name.2 {
                None => runs(&first.content, size).nth(first.runs),
                Some(chunk) if first.runs == 0 => {
                    Some(Item { content: first.content.clone(), first: chunk, count: 1 })
                }
                Some(_) => None,
            };
            first.runs += 1;
            if let Some(item) = item {
                return Some(Piece { link: first.link, directory: None, item, size });
            }
            if let Some(done) = self.waiting.pop_front() {
                self.known.remove(&done.name);
            }
        }
    }

    /// Nothing more for now.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkSize, ContentGeneration, InodeId, Layout, MIB, PoolId, WriteEpoch};

    use super::*;

    fn content(inode: u64, size: u64) -> Content {
        Content {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 12, 5).unwrap(),
            origin: None,
            origin_length: size,
            sparse: false,
        }
    }

    #[test]
    fn a_file_comes_in_runs_and_a_chunk_alone_each_once() {
        let mut rest = Rest::default();
        let link = LinkId(1);
        rest.put(link, content(1, 80 * MIB), None);
        rest.put(link, content(1, 80 * MIB), None);
        rest.put(link, content(2, 80 * MIB), Some(ChunkIndex(3)));
        rest.put(link, content(2, 80 * MIB), Some(ChunkIndex(3)));
        let mut taken = Vec::new();
        while let Some(piece) = rest.next() {
            taken.push((piece.item.content.inode.0, piece.item.first.0, piece.item.count));
        }
        assert_eq!(taken, [(1, 0, 4), (1, 4, 4), (1, 8, 2), (2, 3, 1)]);
        assert!(rest.known.is_empty());
        for inode in 0..WAITING_MAX as u64 + 10 {
            rest.put(link, content(inode, 1), None);
        }
        assert_eq!((rest.waiting.len(), rest.known.len()), (WAITING_MAX, WAITING_MAX));
    }
}
