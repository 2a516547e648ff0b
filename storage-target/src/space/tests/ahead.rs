//! Pages set aside behind what chunks have.

use super::{
    super::{Layout, Purpose, REGION_PAGES, Reservation, Space, Spot, Totals},
    chunk_key,
};
use crate::format::extent::join;

const REGION: u64 = REGION_PAGES as u64;

/// What one request writes: 1 MiB.
const PART: u32 = 256;

/// A chunk of 8 MiB.
const CHUNK: u32 = 2048;

fn space(regions: u32) -> Space {
    let layout = Layout::new(256 + 4096 + u64::from(regions) * REGION).expect("room for regions");
    Space::new(layout, layout.region_count())
}

/// Places part `nth` of a chunk that will probably reach `until`.
fn place(space: &Space, chunk: u64, nth: u32, until: u32) -> Reservation {
    let pages = nth * PART..(nth + 1) * PART;
    let spot = Spot { chunk: chunk_key(chunk), pages, until, is_shared: false };
    let mut reservation = space.reserve(u64::from(PART), Purpose::Store).unwrap();
    reservation.place_at(&spot).unwrap();
    reservation
}

/// In how many runs the parts of a chunk lie.
fn runs(parts: &[Reservation]) -> usize {
    let extents = parts.iter().flat_map(Reservation::extents);
    join(extents.flat_map(|extent| extent.numbers()).collect()).len()
}

#[test]
fn chunks_written_at_the_same_time_lie_in_one_run_each_in_whatever_order_their_parts_come() {
    let space = space(16);
    let mut chunks: Vec<Vec<Reservation>> = (0..8).map(|_| Vec::new()).collect();
    for nth in [1, 0, 2, 5, 3, 4, 7, 6] {
        for (number, parts) in (0..).zip(&mut chunks) {
            parts.push(place(&space, number, nth, CHUNK));
        }
    }
    // The part that came before the first one had no place behind it.
    assert!(chunks.iter().all(|parts| runs(parts) <= 2));
    let in_order: Vec<Reservation> = (0..8).map(|nth| place(&space, 99, nth, CHUNK)).collect();
    assert_eq!(runs(&in_order), 1);
}

#[test]
fn a_chunk_of_64_mib_is_one_run_although_others_are_written_between_its_parts() {
    let space = space(32);
    let last = 16_384;
    let mut parts = Vec::new();
    let mut others = Vec::new();
    for nth in 0..64 {
        parts.push(place(&space, 1, nth, last));
        others.push(place(&space, 2 + u64::from(nth), 0, PART));
    }
    assert_eq!(runs(&parts), 1);
}

#[test]
fn a_file_that_grows_goes_on_behind_its_window_where_nobody_else_is() {
    let space = space(4);
    let parts: Vec<Reservation> =
        (0..16).map(|nth| place(&space, 1, nth, 2 * (nth + 1) * PART)).collect();
    assert_eq!(runs(&parts), 1);
}

#[test]
fn what_is_set_aside_is_free_and_goes_to_who_lacks_pages() {
    let space = space(2);
    let free = space.totals().free;
    let parts: Vec<Reservation> = (0..4).map(|number| place(&space, number, 0, CHUNK)).collect();
    let Totals { free: left, reserved, kept_back, .. } = space.totals();
    assert_eq!((left, reserved), (free - 4 * u64::from(PART), 4 * u64::from(PART)));
    let mut all = space.reserve(left - kept_back, Purpose::Store).unwrap();
    all.place(left - kept_back).unwrap();
    assert_eq!(space.totals().free, kept_back);
    // The windows are gone, and a part goes on without.
    drop(all);
    let second = place(&space, 0, 1, CHUNK);
    drop((parts, second));
    assert_eq!(space.totals().free, free);
}

#[test]
fn an_eighth_of_what_is_free_is_set_aside_at_most() {
    let space = space(8);
    let placed: Vec<Reservation> = (0..20).map(|number| place(&space, number, 0, CHUNK)).collect();
    let free = u32::try_from(space.totals().free).unwrap();
    let wish = |until: u32| Spot { chunk: chunk_key(99), pages: 0..1, until, is_shared: false };
    assert!(!space.is_cramped(&wish(free / 8 * 7)));
    assert!(space.is_cramped(&wish(free)), "but something is");
    drop(placed);
}

/// Places four pages at a time, as small durable writes are.
fn place_small(space: &Space, nth: u32) -> Reservation {
    let pages = 4 * nth..4 * (nth + 1);
    let until = pages.start + 256;
    let mut reservation = space.reserve(4, Purpose::Store).unwrap();
    let spot = Spot { chunk: chunk_key(7), pages, until, is_shared: true };
    reservation.place_at(&spot).unwrap();
    reservation
}

#[test]
fn small_parts_share_runs_and_stay_out_of_the_regions_of_large_things() {
    let space = space(4);
    let large = place(&space, 1, 0, PART);
    let first: Vec<Reservation> = (0..256).map(|nth| place_small(&space, nth)).collect();
    assert_eq!(runs(&first), 1, "window after window in one region");
    let region = |reservation: &Reservation| (reservation.extents()[0].first - 4352) / REGION;
    assert!(first.iter().all(|part| region(part) != region(&large)));
    // Of what is given back every other place is free: no run, but the rest of the region.
    let mut kept = Vec::new();
    for (nth, part) in first.into_iter().enumerate() {
        if nth % 2 == 0 {
            kept.push(part);
        }
    }
    let second: Vec<Reservation> = (256..512).map(|nth| place_small(&space, nth)).collect();
    assert_eq!(runs(&second), 1, "not into the holes as long as there is a run");
    drop((kept, second, large));
}
