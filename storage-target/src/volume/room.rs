//! Getting pages from the space: maps that it misses are brought, the disk grows, and what is in
//! quarantine is freed by making durable what gave it up.

use std::{ops::Range, sync::Arc};

use millrace_types::ByteLen;

use super::{EngineError, Growth, Shared, commit::unreadable, open::bytes, run};
use crate::{
    disk::{AlignedBuffer, DiskError, Piece},
    format::{
        extent::Extent,
        free_map::{REGION_PAGES, RegionMap},
        table::TableKey,
    },
    page_checksum::PAGE,
    space::{Purpose, Refusal, Reservation, Space, Spot, Totals, kept_back},
};

/// Free pages below which a region is made ready: as many as many writers take in the time that
/// it needs.
const PREPARED_PAGES: u64 = REGION_PAGES as u64 / 2;

/// Zeros written at a time.
const ZEROS_LEN: usize = 1 << 20;

const _: () = assert!((REGION_PAGES as usize * PAGE).is_multiple_of(ZEROS_LEN));

impl Shared {
    /// Reserves pages. If there are too few the disk grows, and then a sync frees some.
    ///
    /// # Errors
    /// [`EngineError::NoSpace`]; failures of disk, index and journal.
    pub(super) async fn reserve(
        &self,
        pages: u64,
        purpose: Purpose,
    ) -> Result<Reservation, EngineError> {
        let mut reservation = self.promise(pages, purpose).await?;
        self.place(&mut reservation).await?;
        Ok(reservation)
    }

    /// Reserves pages for new bytes of a chunk, behind those that it has got before.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) async fn reserve_at(&self, spot: &Spot) -> Result<Reservation, EngineError> {
        // Small writes go anywhere before the disk grows for them.
        if !spot.is_shared && self.space.is_cramped(spot) {
            self.grow_while(|space| space.is_cramped(spot)).await?;
        }
        let pages = u64::from(spot.pages.end - spot.pages.start);
        let mut reservation = self.promise(pages, Purpose::Store).await?;
        loop {
            match reservation.place_at(spot) {
                Ok(_) => return Ok(reservation),
                Err(Refusal::Needs(region)) => self.bring_map(region).await?,
                // What is promised can be placed; another answer would be a defect.
                Err(Refusal::Full) => return Err(EngineError::NoSpace),
            }
        }
    }

    /// Has pages promised; they are given out later.
    async fn promise(&self, pages: u64, purpose: Purpose) -> Result<Reservation, EngineError> {
        if let Ok(reservation) = self.space.reserve(pages, purpose) {
            return Ok(reservation);
        }
        self.grow(pages, purpose).await?;
        if let Ok(reservation) = self.space.reserve(pages, purpose) {
            return Ok(reservation);
        }
        // Where nothing is left in quarantine another may have freed it since.
        if self.space.totals().quarantined > 0 {
            self.settle().await?;
        }
        self.space.reserve(pages, purpose).map_err(|_| EngineError::NoSpace)
    }

    /// Takes regions from what lies under the disk until a promise of so many pages can be given,
    /// or no more can be had.
    ///
    /// # Errors
    /// [`EngineError::Disk`] when the disk fails; that it is full is none.
    pub(super) async fn grow(&self, pages: u64, purpose: Purpose) -> Result<(), EngineError> {
        // In vain nothing is taken.
        let is_wanted =
            |space: &Space| (1..=space.totals().growable).contains(&space.missing(pages, purpose));
        self.grow_while(is_wanted).await
    }

    async fn grow_while(&self, is_wanted: impl Fn(&Space) -> bool) -> Result<(), EngineError> {
        let Some(growth) = &self.growth else { return Ok(()) };
        let _turn = self.growth_turn.lock().await;
        self.look_for_room();
        // Others may have grown meanwhile.
        while self.space.totals().growable > 0 && is_wanted(&self.space) {
            if self.take_region(growth).await?.is_none() {
                return Ok(());
            }
            self.space.grow(1);
        }
        Ok(())
    }

    /// Takes a region from what lies under the disk; returns its first byte and its end. `None`
    /// when there is no more. The caller has the turn, and says so to the space.
    async fn take_region(&self, growth: &Growth) -> Result<Option<Range<u64>>, EngineError> {
        if !self.disk.takes_changes() {
            // Others may have the place by now.
            return Err(DiskError::Stopped.into());
        }
        let regions = self.space.regions();
        let layout = &self.superblock.layout;
        let [from, to] = [regions, regions + 1].map(|end| layout.end_of(end) * PAGE as u64);
        // One that was taken, and given to nobody because the runtime ended.
        let len = growth.backing.len_bytes().unwrap_or(from);
        if len >= to {
            return Ok(Some(from..to));
        }
        match Arc::clone(&growth.backing).grow(from.max(len), to).await {
            Ok(()) => Ok(Some(from..to)),
            Err(DiskError::NoSpace) => {
                self.space.set_growable(0);
                tracing::warn!(target = %self.target, "the file system under the target is full");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a region ready for small durable writes when little is left of those there are: takes
    /// it and writes zeros to it, beside them. The first write to space that a file system has only
    /// allocated makes the next sync dear, because that must record that the extent is written.
    /// Who writes much at a time, or needs no sync, is better off without.
    pub(super) fn prepare_room(&self) {
        if self.growth.is_some() && self.is_room_short() {
            self.room_due.notify_one();
        }
    }

    fn is_room_short(&self) -> bool {
        let is_short = self.space.missing(PREPARED_PAGES, Purpose::Store) > 0;
        is_short && self.space.totals().growable > 0
    }

    /// Makes regions ready whenever it is asked for. May be dropped at its await.
    pub(super) async fn prepare_regions(self: Arc<Self>) {
        loop {
            self.room_due.notified().await;
            let worker = Arc::clone(&self);
            // In a task of its own, which keeps the turn until a growth that has begun is over.
            let prepared = run(async move { worker.prepare_region().await });
            if let Err(error) = prepared.await {
                tracing::warn!(target = %self.target, %error, "no region could be prepared");
            }
        }
    }

    pub(super) async fn prepare_region(&self) -> Result<(), EngineError> {
        let Some(growth) = &self.growth else { return Ok(()) };
        if !self.is_room_short() {
            return Ok(());
        }
        let mut zeros = self.pool.acquire(ZEROS_LEN).await;
        zeros.as_mut_slice().fill(0);
        let zeros = Arc::new(zeros);
        let _turn = self.growth_turn.lock().await;
        self.look_for_room();
        if !self.is_room_short() {
            return Ok(());
        }
        let Some(region) = self.take_region(growth).await? else { return Ok(()) };
        let written = self.write_zeros(region, &zeros).await;
        // The region is as good without.
        self.space.grow(1);
        match written {
            // What the sync should have covered beside the zeros is not durable.
            Err(error) if self.disk.has_failed_sync() => {
                drop(zeros);
                Err(self.failed(error.into()).await)
            }
            written => Ok(written?),
        }
    }

    async fn write_zeros(
        &self,
        bytes: Range<u64>,
        zeros: &Arc<AlignedBuffer>,
    ) -> Result<(), DiskError> {
        for offset in bytes.step_by(ZEROS_LEN) {
            let piece = Piece { offset, range: 0..ZEROS_LEN };
            self.disk.write(vec![piece], Arc::clone(zeros)).await?;
        }
        self.disk.sync().await
    }

    /// Looks how much more can be taken from what lies under the disk.
    pub(super) fn look_for_room(&self) {
        let Some(growth) = &self.growth else { return };
        let room = growth.backing.room_bytes().unwrap_or_else(|error| {
            tracing::warn!(target = %self.target, %error, "the room under the target is unknown");
            0
        });
        let room = room / (u64::from(REGION_PAGES) * PAGE as u64);
        let bound = self.superblock.layout.regions_before(growth.capacity);
        let left = bound.saturating_sub(self.space.regions());
        self.space.set_growable(left.min(u32::try_from(room).unwrap_or(u32::MAX)));
    }

    /// Capacity, what is used, and what is free, in bytes.
    pub(super) fn figures(&self, space: &Totals) -> (ByteLen, ByteLen, ByteLen) {
        let layout = &self.superblock.layout;
        let bound = self.growth.as_ref().map_or(u64::MAX, |growth| growth.capacity);
        let regions = layout.regions_before(bound).max(self.space.regions());
        let all = u64::from(regions) * u64::from(REGION_PAGES);
        let capacity = all - kept_back(all);
        let used = space.index + space.clean + space.written + space.reserved;
        let free = space.available().min(capacity.saturating_sub(used));
        (bytes(capacity), bytes(used.min(capacity)), bytes(free))
    }

    /// Reserves pages of those that are free now, for the index. A checkpoint needs them, so this
    /// waits for none.
    pub(super) async fn reserve_for_index(&self, pages: u64) -> Result<Reservation, EngineError> {
        let reserved = self.space.reserve(pages, Purpose::Index);
        let mut reservation = reserved.map_err(|_| EngineError::NoSpace)?;
        self.place(&mut reservation).await?;
        Ok(reservation)
    }

    /// Gives out what is promised.
    pub(super) async fn place(&self, reservation: &mut Reservation) -> Result<(), EngineError> {
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
