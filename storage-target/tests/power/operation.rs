//! What may happen to a target.

use std::ops::Range;

use millrace_runtime::Random;
use millrace_storage_target::disk::simulated::Flush;

use super::{
    beside::Beside,
    chance::below,
    model::{BLOCK, BLOCKS, CHUNK, CHUNKS, FILES, PAGE, Place},
};

/// One step of a run.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Write {
        file: usize,
        chunk: usize,
        range: Range<usize>,
    },
    /// Behind the last byte of a chunk that is not zero.
    Append {
        file: usize,
        chunk: usize,
        len: usize,
    },
    Zero {
        file: usize,
        chunk: usize,
        range: Range<usize>,
    },
    /// Blocks arrive from the bucket.
    Fill {
        file: usize,
        chunk: usize,
        block: usize,
        blocks: usize,
    },
    /// The clean blocks of a chunk are dropped.
    Release {
        file: usize,
        chunk: usize,
    },
    DropClean {
        file: usize,
        chunk: usize,
        block: usize,
    },
    /// The bucket has got what the chunk holds.
    Export {
        file: usize,
        chunk: usize,
    },
    Trim {
        file: usize,
        size: usize,
    },
    /// The content is given up; the file has new one from then on.
    Reclaim {
        file: usize,
    },
    /// A write of somebody who has missed a trim or a reclaim.
    Stale {
        file: usize,
        chunk: usize,
    },
    /// Several things at once, while a checkpoint is written.
    Beside(Beside),
    Sync,
    /// A sync, and writes of pages that come while it is under way.
    SyncBeside {
        file: usize,
        chunk: usize,
        pages: Vec<usize>,
    },
    /// A sync that the disk refuses.
    FailSync,
    /// A write that the disk refuses.
    FailWrite {
        file: usize,
        chunk: usize,
        os_error: i32,
    },
    /// Everything in a chunk is compared.
    Look {
        file: usize,
        chunk: usize,
    },
    /// The scrub looks at everything.
    Scrub,
    /// A bit on the disk flips.
    Flip {
        place: Place,
        page: usize,
        bit: usize,
    },
    Kill,
    Cut,
    /// A kill or a cut in the middle of something that is yet to come.
    Order,
    /// An end in order, and a start.
    Close,
}

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Whether the power is cut and processes are killed.
    pub(crate) cuts: bool,
    /// Whether syncs of the data do what they say.
    pub(crate) data_flush: Flush,
    /// Whether syncs of everything else do.
    pub(crate) file_flush: Flush,
}

impl Operation {
    /// Any operation.
    pub(crate) fn random(random: &Random, weights: &Weights) -> Self {
        let (file, chunk) = (below(random, FILES), below(random, CHUNKS));
        let block = below(random, BLOCKS);
        match random.within(0..if weights.cuts { 100 } else { 84 }) {
            0..20 => Self::Write { file, chunk, range: random_range(random) },
            20..26 => Self::Beside(Beside::random(random)),
            26..32 => Self::Append { file, chunk, len: 1 + below(random, 3 * PAGE) },
            32..38 => Self::Zero { file, chunk, range: random_range(random) },
            38..47 => {
                let blocks = 1 + below(random, BLOCKS - block);
                Self::Fill { file, chunk, block, blocks }
            }
            47..49 => Self::Release { file, chunk },
            49..51 => Self::DropClean { file, chunk, block },
            51..54 => Self::Export { file, chunk },
            54 => Self::Scrub,
            55..58 => Self::Trim { file, size: random_size(random) },
            58..60 => Self::Reclaim { file },
            60..62 => Self::Stale { file, chunk },
            62..71 => Self::Sync,
            71..74 => {
                let count = 1 + below(random, 3);
                let pages = (0..count).map(|_| below(random, CHUNK / PAGE)).collect();
                Self::SyncBeside { file, chunk, pages }
            }
            74..75 => Self::FailWrite { file, chunk, os_error: [5, 28][below(random, 2)] },
            75..82 => Self::Look { file, chunk },
            82..84 => {
                let place = Place { file, chunk, block };
                let (page, bit) = (below(random, BLOCK / PAGE), below(random, PAGE * 8));
                Self::Flip { place, page, bit }
            }
            84..85 => Self::FailSync,
            85..88 => Self::Kill,
            88..91 => Self::Cut,
            91..98 => Self::Order,
            _ => Self::Close,
        }
    }
}

/// Part of a chunk: blocks, pages, or anything.
pub(super) fn random_range(random: &Random) -> Range<usize> {
    let unit = [BLOCK, PAGE, 512, 1][below(random, 4)];
    let longest = [CHUNK, 2 * BLOCK, 5 * PAGE][below(random, 3)];
    let start = below(random, CHUNK / unit) * unit;
    let len = (1 + below(random, longest.div_ceil(unit))) * unit;
    start..CHUNK.min(start + len)
}

/// Sizes at all kinds of borders.
fn random_size(random: &Random) -> usize {
    let unit = [CHUNK, BLOCK, PAGE, 1][below(random, 4)];
    below(random, CHUNKS * CHUNK / unit) * unit
}
