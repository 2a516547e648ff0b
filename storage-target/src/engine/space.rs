//! Getting room for new bytes, and giving it back when they are not needed after all.

use std::sync::Arc;

use super::{EngineError, Shared, allocator::Extent, barrier};
use crate::{
    disk::Piece,
    engine::page_checksum::PAGE,
    format::chunk::{BLOCK_PAGES, PAGE_SIZE},
};

/// The data file grows by a sixteenth of its capacity, within these bounds (in pages): small enough
/// for a laptop's disk, large enough that growing is rare.
const GROWTH_PAGES_MIN: u64 = 1024;
const GROWTH_PAGES_MAX: u64 = 65_536;

/// Pages that no index entry points to yet; given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    shared: Arc<Shared>,
    extents: Vec<Extent>,
}

impl Reservation {
    /// The transfer of a buffer that begins with the first page reserved.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut at = 0;
        self.extents
            .iter()
            .map(|extent| {
                let len = usize::try_from(extent.pages).expect("at most one buffer") * PAGE;
                let range = at..at + len;
                at += len;
                Piece { offset: extent.first * u64::from(PAGE_SIZE), range }
            })
            .collect()
    }

    /// Where each block of the reservation begins, and how many blocks from there on adjoin.
    pub(super) fn block_runs(&self) -> impl Iterator<Item = (u64, u16)> + '_ {
        self.extents.iter().map(|extent| {
            let blocks = extent.pages.div_ceil(u64::from(BLOCK_PAGES));
            (extent.first, u16::try_from(blocks).expect("at most one buffer"))
        })
    }

    /// The pages now belong to the index, except for those of `unused` (an extent of block numbers
    /// within the reservation is not needed here: whole reservations only).
    pub(super) fn keep(mut self) {
        self.extents.clear();
    }

    /// Keeps only the blocks whose number within the reservation satisfies `wanted`.
    pub(super) fn keep_blocks(mut self, wanted: impl Fn(u16) -> bool) {
        let mut unused = Vec::new();
        let mut number = 0;
        for extent in &self.extents {
            let mut at = 0;
            while at < extent.pages {
                let pages = u64::from(BLOCK_PAGES).min(extent.pages - at);
                if !wanted(number) {
                    unused.push(Extent { first: extent.first + at, pages });
                }
                at += pages;
                number += 1;
            }
        }
        self.extents = unused;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.extents.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        for extent in self.extents.drain(..) {
            state.allocator.give_back(extent);
        }
    }
}

/// Reserves `pages` pages, growing the data file or waiting for a barrier to free some.
///
/// # Errors
/// [`EngineError::NoSpace`].
pub(super) async fn reserve(shared: &Arc<Shared>, pages: u64) -> Result<Reservation, EngineError> {
    if let Some(reservation) = try_reserve(shared, pages) {
        return Ok(reservation);
    }
    let _turn = shared.growth.lock().await;
    loop {
        if let Some(reservation) = try_reserve(shared, pages) {
            return Ok(reservation);
        }
        let (total, capacity, quarantined) = {
            let state = shared.state();
            let allocator = &state.allocator;
            (allocator.total(), allocator.capacity(), allocator.quarantined())
        };
        let room = capacity - total;
        if room >= pages.min(u64::from(BLOCK_PAGES)) && grow(shared, total, room, pages).await? {
            continue;
        }
        if quarantined == 0 {
            return Err(EngineError::NoSpace);
        }
        let barrier_shared = Arc::clone(shared);
        run_blocking(move || barrier::run(&barrier_shared, false).map(drop)).await?;
        if let Some(reservation) = try_reserve(shared, pages) {
            return Ok(reservation);
        }
        return Err(EngineError::NoSpace);
    }
}

fn try_reserve(shared: &Arc<Shared>, pages: u64) -> Option<Reservation> {
    let extents = shared.state().allocator.allocate(pages)?;
    Some(Reservation { shared: Arc::clone(shared), extents })
}

/// Grows the data file by a step, or by just enough; returns whether it did.
async fn grow(
    shared: &Arc<Shared>,
    total: u64,
    room: u64,
    pages: u64,
) -> Result<bool, EngineError> {
    let step = ((total + room) / 16).clamp(GROWTH_PAGES_MIN, GROWTH_PAGES_MAX).max(pages);
    for added in [step.min(room), pages.min(room)] {
        let task_shared = Arc::clone(shared);
        let page = u64::from(PAGE_SIZE);
        let grown = run_blocking(move || {
            Ok(task_shared.data.grow(total * page, (total + added) * page)?)
        });
        match grown.await {
            Ok(()) => {
                shared.state().allocator.grow(total + added);
                return Ok(true);
            }
            Err(EngineError::NoSpace) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

async fn run_blocking(
    work: impl FnOnce() -> Result<(), EngineError> + Send + 'static,
) -> Result<(), EngineError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(EngineError::Stopped))
}
