//! Getting pages from the space: maps that it misses are brought, and what is in quarantine is
//! freed by making durable what gave it up.

use super::{Shared, commit::unreadable};
use crate::{
    disk::Piece,
    engine::{EngineError, page_checksum::PAGE},
    format::{extent::Extent, free_map::RegionMap, table::TableKey},
    space::{Purpose, Refusal, Reservation},
};

impl Shared {
    /// Reserves pages, waiting for a sync to free some if there are too few.
    ///
    /// # Errors
    /// [`EngineError::NoSpace`]; failures of index and journal.
    pub(super) async fn reserve(
        &self,
        pages: u64,
        purpose: Purpose,
    ) -> Result<Reservation, EngineError> {
        let mut reservation = match self.space.reserve(pages, purpose) {
            Ok(reservation) => reservation,
            Err(_) if self.space.totals().quarantined > 0 => {
                self.settle().await?;
                self.space.reserve(pages, purpose).map_err(|_| EngineError::NoSpace)?
            }
            Err(_) => return Err(EngineError::NoSpace),
        };
        self.place(&mut reservation).await?;
        Ok(reservation)
    }

    /// Reserves pages of those that are free now, for the index. A checkpoint needs them, so this
    /// waits for none.
    pub(super) async fn reserve_for_index(&self, pages: u64) -> Result<Reservation, EngineError> {
        let reserved = self.space.reserve(pages, Purpose::Index);
        let mut reservation = reserved.map_err(|_| EngineError::NoSpace)?;
        self.place(&mut reservation).await?;
        Ok(reservation)
    }

    async fn place(&self, reservation: &mut Reservation) -> Result<(), EngineError> {
        let pages = reservation.promised();
        loop {
            let Err(refusal) = reservation.place(pages) else { return Ok(()) };
            match refusal {
                Refusal::Needs(region) => self.bring_map(region).await?,
                // What is promised can be placed; another answer would be a defect.
                Refusal::Full => return Err(EngineError::NoSpace),
            }
        }
    }

    /// Brings the map of a region into memory.
    pub(super) async fn bring_map(&self, region: u32) -> Result<(), EngineError> {
        // Maps are dropped under the same turn, so that what is read here is the newest.
        let _turn = self.map_turn.lock().await;
        let value = self.index.get(&TableKey::FreeMap(region).encode()).await?;
        let map = value.map(|value| RegionMap::decode(&value)).transpose().map_err(unreadable)?;
        self.space.bring(region, map).map_err(unreadable)
    }
}

/// The transfer of a buffer that begins with the first page of some extents.
pub(super) fn pieces_of(extents: &[Extent]) -> Vec<Piece> {
    let mut at = 0;
    extents
        .iter()
        .map(|extent| {
            let len = usize::try_from(extent.pages).expect("at most one buffer") * PAGE;
            let range = at..at + len;
            at += len;
            Piece { offset: extent.first * PAGE as u64, range }
        })
        .collect()
}
