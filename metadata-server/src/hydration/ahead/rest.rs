//! The rest of chunks and files that were read in part. No I/O.

use std::{
    collections::{HashMap, VecDeque},
    iter,
    time::Duration,
};

use millrace_protocol::{capability::Content, target::Item};
use millrace_types::{ChunkIndex, ContentGeneration, InodeId, LinkId, MapEpoch};
use tokio::time::Instant;

use super::sender::Piece;
use crate::hydration::spread::runs;

/// Files and chunks that wait: 200 bytes each. What comes beyond is read when it is asked for.
const WAITING_MAX: usize = 4096;

/// What was handed out is not put in again before.
const AGAIN: Duration = Duration::from_secs(60);

/// Each file or chunk once, the oldest first.
#[derive(Default)]
pub(super) struct Rest {
    /// The map under which everything that waits was looked up. What was read of a file before a
    /// target was given up may not reach who has its groups now.
    epoch: MapEpoch,
    waiting: VecDeque<Waiting>,
    /// Those that wait, and when the others were put in.
    known: HashMap<Name, Instant>,
}

type Name = (InodeId, ContentGeneration, Option<ChunkIndex>);

struct Waiting {
    link: LinkId,
    name: Name,
    size: u64,
    items: Box<dyn Iterator<Item = Item> + Send>,
}

impl Rest {
    /// Has the rest of a chunk fetched, or of the whole file, as it was when the map had `epoch`.
    /// Of a file that waits already, or did a moment ago, nothing more.
    pub(super) fn put(
        &mut self,
        epoch: MapEpoch,
        link: LinkId,
        content: Content,
        chunk: Option<ChunkIndex>,
        now: Instant,
    ) {
        self.know(epoch);
        let name = (content.inode, content.generation, chunk);
        if self.known.len() >= WAITING_MAX {
            self.known.retain(|_, put| now.duration_since(*put) < AGAIN);
        }
        let again = self.known.get(&name).is_some_and(|put| now.duration_since(*put) < AGAIN);
        if again || self.known.len() >= WAITING_MAX || self.waiting.len() >= WAITING_MAX {
            return;
        }
        self.known.insert(name, now);
        let size = content.origin_length;
        let items: Box<dyn Iterator<Item = Item> + Send> = match chunk {
            None => Box::new(runs(&content, size)),
            Some(first) => Box::new(iter::once(Item { content, first, count: 1 })),
        };
        self.waiting.push_back(Waiting { link, name, size, items });
    }

    /// The next run of the oldest, if the map is still the same.
    pub(super) fn next(&mut self, epoch: MapEpoch) -> Option<Piece> {
        self.know(epoch);
        loop {
            let first = self.waiting.front_mut()?;
            if let Some(item) = first.items.next() {
                let Waiting { link, size, .. } = *first;
                return Some(Piece { link, directory: None, item, size });
            }
            self.waiting.pop_front();
        }
    }

    /// Nothing more of a content for now.
    pub(super) fn forget(&mut self, content: &Content) {
        let is_other =
            |one: &Waiting| (one.name.0, one.name.1) != (content.inode, content.generation);
        self.waiting.retain(is_other);
    }

    fn know(&mut self, epoch: MapEpoch) {
        if self.epoch != epoch {
            *self = Self { epoch, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkSize, Layout, MIB, PoolId, WriteEpoch};

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

    const EPOCH: MapEpoch = MapEpoch(3);
    const LINK: LinkId = LinkId(1);

    #[test]
    fn a_file_comes_in_runs_and_a_chunk_alone_each_once_a_minute() {
        let (mut rest, now) = (Rest::default(), Instant::now());
        let put_all = |rest: &mut Rest, now| {
            rest.put(EPOCH, LINK, content(1, 80 * MIB), None, now);
            rest.put(EPOCH, LINK, content(2, 80 * MIB), Some(ChunkIndex(3)), now);
        };
        let take = |rest: &mut Rest| -> Vec<_> {
            let pieces = iter::from_fn(|| rest.next(EPOCH)).map(|piece| piece.item);
            pieces.map(|item| (item.content.inode.0, item.first.0, item.count)).collect()
        };
        put_all(&mut rest, now);
        put_all(&mut rest, now);
        let expected = [(1, 0, 4), (1, 4, 4), (1, 8, 2), (2, 3, 1)];
        assert_eq!(take(&mut rest), expected);
        put_all(&mut rest, now + AGAIN / 2);
        assert!(take(&mut rest).is_empty());
        put_all(&mut rest, now + AGAIN);
        rest.forget(&content(2, 80 * MIB));
        assert_eq!(take(&mut rest), expected[..3]);
        for inode in 0..WAITING_MAX as u64 + 10 {
            rest.put(EPOCH, LINK, content(inode, 1), None, now + AGAIN * 3);
        }
        assert_eq!((rest.waiting.len(), rest.known.len()), (WAITING_MAX, WAITING_MAX));
    }

    #[test]
    fn what_was_looked_up_under_another_map_is_forgotten() {
        let (mut rest, now) = (Rest::default(), Instant::now());
        rest.put(EPOCH, LINK, content(1, 80 * MIB), None, now);
        assert!(rest.next(EPOCH).is_some());
        assert!(rest.next(MapEpoch(4)).is_none());
        rest.put(MapEpoch(4), LINK, content(1, 80 * MIB), None, now);
        assert!(rest.next(EPOCH).is_none(), "nor is anything mixed");
    }
}
