//! The allocator through everything that a disk goes through.

use std::collections::BTreeMap;

use millrace_runtime::Random;
use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId};

mod ahead;
mod churn;
mod model;
mod reservations;

use super::{Allocator, Extent, REGION_PAGES, Refusal};

const REGION: u64 = REGION_PAGES as u64;

/// Asks again with the maps that are asked for.
fn allocate(
    allocator: &mut Allocator,
    stored: &BTreeMap<u32, Vec<u8>>,
    pages: u64,
) -> Result<Vec<Extent>, Refusal> {
    loop {
        match allocator.allocate(pages) {
            Err(Refusal::Needs(region)) => bring(allocator, stored, region),
            other => return other,
        }
    }
}

fn free(allocator: &mut Allocator, stored: &BTreeMap<u32, Vec<u8>>, extent: Extent) {
    while let Err(refusal) = allocator.free(extent) {
        let Refusal::Needs(region) = refusal else { panic!("{refusal}") };
        bring(allocator, stored, region);
    }
}

fn bring(allocator: &mut Allocator, stored: &BTreeMap<u32, Vec<u8>>, region: u32) {
    assert!(allocator.bring(region, super::RegionMap::decode(&stored[&region]).unwrap()));
}

/// The key of a chunk, by a number.
fn chunk_key(number: u64) -> ChunkKey {
    ChunkKey {
        inode: InodeId(number),
        generation: ContentGeneration(0),
        index: ChunkIndex(0),
        copy: CopyIndex(0),
    }
}

/// Sizes of what a training cluster stores, in pages: small files, pictures, parts of large files.
fn size(random: &Random) -> u64 {
    match random.within(0..10) {
        0..4 => random.within(1..16),
        4..8 => random.within(16..48),
        _ => random.within(128..2177),
    }
}

#[test]
fn no_page_is_given_out_twice_and_the_counts_are_exact_whatever_is_in_memory() {
    for seed in 0..10 {
        let random = Random::seeded(seed);
        let mut allocator = Allocator::new(0, 8);
        let mut stored: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let mut held: Vec<Extent> = Vec::new();
        let mut used = vec![false; usize::try_from(allocator.total_pages()).unwrap()];
        let range = |extent: &Extent| {
            usize::try_from(extent.first).unwrap()..usize::try_from(extent.end()).unwrap()
        };
        for _ in 0..3000 {
            if random.within(0..100) < 55 {
                let pages = size(&random);
                let free_before = allocator.free_pages();
                match allocate(&mut allocator, &stored, pages) {
                    Ok(extents) => {
                        assert_eq!(extents.iter().map(|extent| extent.pages).sum::<u64>(), pages);
                        for extent in extents {
                            assert!(used[range(&extent)].iter().all(|used| !used), "seed {seed}");
                            used[range(&extent)].fill(true);
                            held.push(extent);
                        }
                    }
                    Err(refusal) => {
                        assert_eq!(refusal, Refusal::Full);
                        assert!(free_before < pages, "every free page can be had");
                        assert_eq!(allocator.free_pages(), free_before);
                    }
                }
            } else if !held.is_empty() {
                let at = random.within(0..held.len() as u64);
                let extent = held.swap_remove(usize::try_from(at).unwrap());
                free(&mut allocator, &stored, extent);
                used[range(&extent)].fill(false);
            }
            if random.within(0..20) == 0 {
                for region in 0..allocator.regions() {
                    if let Some(map) = allocator.map(region) {
                        stored.insert(region, map.encode());
                    }
                }
                allocator.shrink(1, |_| false);
                assert!(allocator.maps() <= 1);
            }
            let count = used.iter().filter(|used| !**used).count() as u64;
            assert_eq!(allocator.free_pages(), count, "seed {seed}");
        }
    }
}

#[test]
fn a_chunk_of_64_mib_is_one_run_and_lengths_keep_apart() {
    let mut allocator = Allocator::new(0, 8);
    let small = allocator.allocate(3).unwrap();
    let chunk = allocator.allocate(2 * REGION).unwrap();
    assert_eq!(chunk.len(), 1, "{chunk:?}");
    let picture = allocator.allocate(30).unwrap();
    let section = allocator.allocate(128).unwrap();
    let regions = [&small, &chunk, &picture, &section].map(|extents| extents[0].first / REGION);
    let mut apart = regions.to_vec();
    apart.dedup();
    assert_eq!(apart.len(), 4, "{regions:?}");
    let again = allocator.allocate(5).unwrap();
    assert_eq!(again[0].first / REGION, regions[0], "the small ones stay together");
}

#[test]
fn empty_neighbours_are_kept_for_what_needs_two() {
    let mut allocator = Allocator::new(100, 6);
    // 1 and 4 are in use: 0 stands alone, 2 and 3 are a pair, 5 stands alone.
    for region in [1, 4] {
        allocator.take(allocator.region(region)).unwrap();
    }
    let single = |allocator: &mut Allocator| allocator.allocate(5000).unwrap()[0].first;
    assert_eq!(single(&mut allocator), allocator.region(0).first);
    assert_eq!(single(&mut allocator), allocator.region(5).first);
    let chunk = allocator.allocate(2 * REGION - 100).unwrap();
    assert_eq!(chunk, [Extent { first: allocator.region(2).first, pages: 2 * REGION - 100 }]);
    assert!(allocator.is_all(true, chunk[0]).unwrap());
}

#[test]
fn chunks_of_64_mib_stay_in_one_piece_as_long_as_there_are_neighbours() {
    let random = Random::seeded(3);
    let mut allocator = Allocator::new(0, 64);
    let mut chunks: Vec<Vec<Extent>> = Vec::new();
    let mut others: Vec<Vec<Extent>> = Vec::new();
    for round in 0..200 {
        // Small and medium ones come and go in between, on an eighth of the disk.
        while others.iter().flatten().map(|extent| extent.pages).sum::<u64>() < 8 * REGION {
            others.push(allocator.allocate(random.within(1..120)).unwrap());
        }
        for _ in 0..others.len() / 2 {
            let at = random.within(0..others.len() as u64);
            let gone = others.swap_remove(usize::try_from(at).unwrap());
            gone.into_iter().for_each(|extent| allocator.free(extent).unwrap());
        }
        while chunks.len() < 20 {
            chunks.push(allocator.allocate(2 * REGION).unwrap());
        }
        let pieces: usize = chunks.iter().map(Vec::len).sum();
        assert_eq!(pieces, chunks.len(), "round {round}");
        for _ in 0..random.within(1..20) {
            let at = random.within(0..chunks.len() as u64);
            let gone = chunks.swap_remove(usize::try_from(at).unwrap());
            gone.into_iter().for_each(|extent| allocator.free(extent).unwrap());
        }
    }
}

#[test]
fn what_a_journal_says_is_taken_and_given_back_over_the_borders_of_regions() {
    let mut allocator = Allocator::new(0, 3);
    let extent = Extent { first: REGION - 10, pages: REGION + 20 };
    allocator.take(extent).unwrap();
    assert_eq!(allocator.free_pages(), 3 * REGION - extent.pages);
    assert_eq!(allocator.is_all(true, extent), Ok(true));
    allocator.free(extent).unwrap();
    assert_eq!(allocator.allocate(3 * REGION).unwrap(), [Extent { first: 0, pages: 3 * REGION }]);
}

/// The disk of the churn below: 4 GiB.
const REGIONS: u32 = 128;

/// Pieces per object of the three classes: how fragmented the disk is.
fn pieces(objects: &[Vec<Extent>], lens: std::ops::Range<u64>) -> f64 {
    let pages = |object: &Vec<Extent>| object.iter().map(|extent| extent.pages).sum::<u64>();
    let of_class: Vec<_> = objects.iter().filter(|object| lens.contains(&pages(object))).collect();
    of_class.iter().map(|object| object.len()).sum::<usize>() as f64 / of_class.len() as f64
}

/// Fills, deletes a random half and refills, ten times; then fills to the last page. Returns the
/// worst pieces per object of the three classes before that.
fn churn(fill_percent: u64) -> [f64; 3] {
    let random = Random::seeded(5);
    let mut allocator = Allocator::new(0, REGIONS);
    let stored = BTreeMap::new();
    let mut objects: Vec<Vec<Extent>> = Vec::new();
    let least_free = allocator.total_pages() * (100 - fill_percent) / 100;
    let mut worst = [0.0; 3];
    for _ in 0..11 {
        loop {
            let pages = size(&random);
            if allocator.free_pages() < least_free + pages {
                break;
            }
            objects.push(allocate(&mut allocator, &stored, pages).unwrap());
        }
        let classes = [1..16, 16..128, 128..4096].map(|lens| pieces(&objects, lens));
        for (worst, found) in worst.iter_mut().zip(classes) {
            *worst = found.max(*worst);
        }
        let half = objects.len() / 2;
        for _ in 0..half {
            let at = random.within(0..objects.len() as u64);
            for extent in objects.swap_remove(usize::try_from(at).unwrap()) {
                free(&mut allocator, &stored, extent);
            }
        }
    }
    while allocator.free_pages() > 0 {
        let pages = size(&random).min(allocator.free_pages());
        objects.push(allocate(&mut allocator, &stored, pages).unwrap());
    }
    let held: u64 = objects.iter().flatten().map(|extent| extent.pages).sum();
    assert_eq!(held, allocator.total_pages(), "whatever is free can be used to the last page");
    worst
}

#[test]
fn churn_costs_no_space_and_keeps_objects_in_one_piece() {
    let [small, medium, large] = churn(90);
    assert!(small < 1.01 && medium < 1.01 && large < 1.01, "{small} {medium} {large}");
    let [small, medium, large] = churn(98);
    assert!(small < 1.05 && medium < 1.1 && large < 2.0, "{small} {medium} {large}");
}
