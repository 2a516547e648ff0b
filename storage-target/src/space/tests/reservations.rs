//! Promises, the part that is kept back, and what is wrong on a disk.

use super::super::{
    Extent, Layout, Purpose, REGION_PAGES, Refusal, RegionMap, ReplayError, Space, StoredSummaries,
};
use crate::format::{
    change::Effects,
    fact::StateTotals,
    free_map::{Class, Summary, encode_summaries},
};

const REGION: u64 = REGION_PAGES as u64;

fn layout(regions: u64) -> Layout {
    Layout::new(256 + 4096 + regions * REGION).expect("room for regions")
}

fn taken(extents: &[Extent]) -> Effects {
    let pages: u64 = extents.iter().map(|extent| extent.pages).sum();
    Effects {
        taken: extents.to_vec(),
        written_pages_more: i64::try_from(pages).unwrap(),
        ..Effects::default()
    }
}

fn given_up(extents: &[Extent]) -> Effects {
    let Effects { taken, written_pages_more, .. } = taken(extents);
    Effects { given_up: taken, written_pages_more: -written_pages_more, ..Effects::default() }
}

#[test]
fn a_full_target_refuses_before_anything_changes_and_can_be_emptied() {
    let space = Space::new(layout(2), 2);
    let kept = space.totals().kept_back;
    assert_eq!(kept, 2048, "8 MiB at least");
    let mut all = space.reserve(2 * REGION - kept, Purpose::Store).unwrap();
    let extents = all.place(2 * REGION - kept).unwrap().to_vec();
    space.commit(1, &taken(&extents));
    drop(all);
    let before = space.totals();
    assert_eq!(space.reserve(1, Purpose::Store).unwrap_err(), Refusal::Full);
    assert_eq!(space.totals(), before);
    // The end of a truncated block is written anew, although nothing is left for writers.
    let mut end = space.reserve(1, Purpose::Free).unwrap();
    end.place(1).unwrap();
    assert_eq!(space.reserve(kept / 2, Purpose::Free).unwrap_err(), Refusal::Full);
    let nodes = space.reserve(kept - 1, Purpose::Index).unwrap();
    drop((end, nodes));
    space.commit(2, &given_up(&extents));
    assert_eq!(space.totals().available(), before.quarantined + extents[0].pages);
    assert_eq!(space.reserve(1, Purpose::Store).unwrap_err(), Refusal::Full, "not yet");
    assert_eq!(space.release(2), Ok(0));
    assert_eq!(space.release(3), Ok(extents[0].pages));
    assert!(space.reserve(2 * REGION - kept, Purpose::Store).is_ok());
}

#[test]
fn what_no_record_has_taken_comes_back_and_what_one_has_taken_does_not() {
    let space = Space::new(layout(1), 1);
    let mut reservation = space.reserve(100, Purpose::Store).unwrap();
    let first = reservation.place(30).unwrap().to_vec();
    reservation.place(20).unwrap();
    assert_eq!((space.totals().reserved, reservation.promised()), (100, 50));
    let part = [Extent { pages: 10, ..first[0] }];
    space.commit(7, &taken(&part));
    assert_eq!((space.totals().reserved, space.totals().written), (90, 10));
    // The pages go their way, and somebody else gets them, while the first one is still there.
    space.commit(8, &given_up(&part));
    space.release(9).unwrap();
    let mut other = space.reserve(10, Purpose::Store).unwrap();
    other.place(10).unwrap();
    drop(reservation);
    assert_eq!((space.totals().reserved, space.totals().free), (10, REGION - 10));
    drop(other);
    assert_eq!(space.totals().free, REGION);
}

#[test]
fn a_target_that_grows_has_all_its_pages_from_the_start() {
    let space = Space::new(layout(3), 1);
    let totals = space.totals();
    assert_eq!((totals.free, totals.ungrown), (REGION, 2 * REGION));
    assert_eq!(totals.available(), 3 * REGION - totals.kept_back);
    assert_eq!(space.reserve(REGION, Purpose::Store).unwrap_err(), Refusal::Full);
    space.grow(2);
    assert_eq!((space.totals().free, space.regions()), (3 * REGION, 3));
}

#[test]
fn records_that_are_not_of_this_disks_history_are_refused() {
    let space = Space::new(layout(1), 1);
    let first = layout(1).regions;
    let extent = |at, pages| Extent { first: first + at, pages };
    let refused = |effects: &Effects| match space.replay(5, effects) {
        Err(ReplayError::Impossible { .. }) => space.totals(),
        other => panic!("{other:?}"),
    };
    space.replay(4, &taken(&[extent(10, 10)])).unwrap();
    let before = space.totals();
    assert_eq!(refused(&taken(&[extent(19, 2)])), before, "taken twice");
    assert_eq!(refused(&given_up(&[extent(19, 2)])), before, "given up and free");
    assert_eq!(refused(&taken(&[extent(REGION - 1, 2)])), before, "beyond the regions");
    assert_eq!(refused(&taken(&[Extent { first: 3, pages: 1 }])), before, "before the regions");
    let more = Effects { clean_pages_more: -1, ..Effects::default() };
    assert_eq!(refused(&more), before, "less than nothing");
    space.replay(5, &given_up(&[extent(10, 5)])).unwrap();
    assert_eq!(refused(&given_up(&[extent(14, 1)])), space.totals(), "given up twice");
    // Given up, released and taken again, as the journal has it.
    space.replay(6, &taken(&[extent(12, 3)])).unwrap();
    assert_eq!((space.totals().quarantined, space.totals().written), (2, 8));
    assert_eq!(space.release(6), Ok(2), "not those that were taken again");
}

#[test]
fn a_map_that_contradicts_its_summary_is_refused() {
    let summary = Summary { free: 8000, longest: 8000, class: Class::Small };
    let mut summaries = StoredSummaries::default();
    summaries.add(0, &encode_summaries(&[summary]).unwrap()).unwrap();
    assert!(summaries.add(0, &encode_summaries(&[summary]).unwrap()).is_err(), "twice");
    let totals = StateTotals { clean_pages: 0, written_pages: 192 };
    let space = Space::restore(layout(1), 1, summaries, totals).unwrap();
    let mut reservation = space.reserve(5, Purpose::Store).unwrap();
    assert_eq!(reservation.place(5).unwrap_err(), Refusal::Needs(0));
    assert!(space.bring(0, None).is_err(), "no map");
    let mut map = RegionMap::default();
    map.take(0..191);
    assert!(space.bring(0, Some(map.clone())).is_err(), "one page is missing");
    assert!(space.bring(9, None).is_err(), "no such region");
    map.take(191..192);
    space.bring(0, Some(map)).unwrap();
    assert_eq!(reservation.place(5).unwrap()[0].first, layout(1).regions + 192);
}

#[test]
fn summaries_and_totals_that_contradict_each_other_or_the_disk_are_refused() {
    let full = Summary { free: 0, longest: 0, class: Class::Large };
    let stored = |count: usize| {
        let mut summaries = StoredSummaries::default();
        summaries.add(0, &encode_summaries(&vec![full; count]).unwrap()).unwrap();
        summaries
    };
    let totals = |written_pages| StateTotals { clean_pages: 0, written_pages };
    assert!(Space::restore(layout(2), 1, stored(2), totals(0)).is_err(), "it has not grown");
    assert!(Space::restore(layout(2), 2, stored(1), totals(REGION + 1)).is_err());
    let space = Space::restore(layout(2), 2, stored(1), totals(REGION - 10)).unwrap();
    assert_eq!(space.totals().index, 10, "what no section uses, the index does");
}
