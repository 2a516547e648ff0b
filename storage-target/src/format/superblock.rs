//! Who a target is, and where its parts lie: one page of 4,096 bytes, in two copies at pages 0 and
//! 32.
//!
//! | offset | bytes | field           | meaning                                                  |
//! |-------:|------:|-----------------|----------------------------------------------------------|
//! |      0 |     8 | magic           | `MRTARGET`                                               |
//! |      8 |     4 | checksum        | crc32c of bytes 12..4096                                 |
//! |     12 |     4 | version         | of the whole target's format: 2                          |
//! |     16 |    16 | cluster         | a disk of another cluster is refused                     |
//! |     32 |     8 | target          | survives moves between hosts                             |
//! |     40 |     4 | page bytes      | 4,096                                                    |
//! |     44 |     4 | block bytes     | 65,536                                                   |
//! |     48 |     8 | capacity        | pages of the space, at most                              |
//! |     56 |     4 | section bytes   | 524,288                                                  |
//! |     60 |     4 | region pages    | 8,192                                                    |
//! |     64 |     8 | own page        | 0 or 32                                                  |
//! |     72 |     8 | writes          | raised by each change; the higher of two copies counts   |
//! |     80 |     8 | roots           | first of the four pages of index roots                   |
//! |     88 |     8 | journal         | first page of the ring                                   |
//! |     96 |     8 | journal pages   |                                                          |
//! |    104 |     8 | regions         | first page of the first region                           |
//! |    112 |     8 | losses          | how often the journal failed: a part of the loss count   |
//! |    120 |  3976 | zero            |                                                          |
//!
//! Magic, checksum, version, cluster and target stand where version 1 has them, so that each
//! program refuses the other's disk by name. Copy B is written and synced after copy A has been, so
//! that one of them is whole at every moment.

use millrace_types::{BLOCK_SIZE, ClusterId, Crc32c, TargetId};

use super::{
    FormatError,
    extent::PAGE_NUMBER_END,
    fields::{Put, Reader},
    free_map::REGION_PAGES,
    root::ROOT_SLOTS,
    section::SECTION_SIZE,
    units::PAGE_SIZE,
};

/// Bytes of a copy.
pub const SUPERBLOCK_LEN: usize = 4096;

/// The version of the format.
pub const FORMAT_VERSION: u32 = 2;

/// The pages of the two copies.
pub const COPIES: [u64; 2] = [0, 32];

/// Pages of the smallest ring: 16 MiB.
pub const JOURNAL_PAGES_MIN: u64 = 4096;

/// Pages of the largest ring: 64 MiB, of which a start replays a half at most.
pub const JOURNAL_PAGES_MAX: u64 = 16_384;

/// The first page of the roots, on a new disk.
pub const ROOTS: u64 = 16;
/// The first page of the journal, likewise.
pub const JOURNAL: u64 = 256;

/// What the superblock of any version begins with.
pub const MAGIC: &[u8; 8] = b"MRTARGET";
const WHAT: &str = "the superblock";
const FIELDS_LEN: usize = 120;

/// Who a target is, and where its parts lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its id.
    pub target: TargetId,
    /// Raised by each change.
    pub writes: u64,
    /// How often the journal failed, which the journal itself could not record.
    pub losses: u64,
    /// Where its parts lie.
    pub layout: Layout,
}

/// Where the parts of a target lie, in pages of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Pages of the space, at most.
    pub capacity: u64,
    /// The first of the four pages of index roots.
    pub roots: u64,
    /// The first page of the journal's ring.
    pub journal: u64,
    /// Pages of the ring.
    pub journal_pages: u64,
    /// The first page of the first region.
    pub regions: u64,
}

impl Layout {
    /// The layout of a new target: a ring of 1/64 of the capacity within its bounds. `None` when
    /// there is no room for one region behind it.
    #[must_use]
    pub fn new(capacity: u64) -> Option<Self> {
        let journal_pages = (capacity / 64).clamp(JOURNAL_PAGES_MIN, JOURNAL_PAGES_MAX);
        let regions = JOURNAL + journal_pages;
        let layout = Self { capacity, roots: ROOTS, journal: JOURNAL, journal_pages, regions };
        layout.is_possible().then_some(layout)
    }

    /// The same with more room for regions behind those that there are; `None` when that is too
    /// little for another one, or more than can be named.
    #[must_use]
    pub fn raised(&self, capacity: u64) -> Option<Self> {
        let raised = Self { capacity, ..*self };
        let larger = capacity > self.capacity
            && raised.is_possible()
            && raised.region_count() > self.region_count();
        larger.then_some(raised)
    }

    /// One past the last page of so many regions.
    #[must_use]
    pub fn end_of(&self, regions: u32) -> u64 {
        self.regions + u64::from(regions) * u64::from(REGION_PAGES)
    }

    /// How many whole regions lie before a page, of those that there are at most.
    #[must_use]
    pub fn regions_before(&self, page: u64) -> u32 {
        let whole = page.saturating_sub(self.regions) / u64::from(REGION_PAGES);
        u32::try_from(whole).unwrap_or(u32::MAX).min(self.region_count())
    }

    /// How many regions there are at most: whole ones.
    #[must_use]
    pub fn region_count(&self) -> u32 {
        u32::try_from((self.capacity - self.regions) / u64::from(REGION_PAGES)).expect("checked")
    }

    /// Pages that belong to no region: superblocks, roots, ring, and what is left at the end.
    #[must_use]
    pub fn fixed_pages(&self) -> u64 {
        self.capacity - u64::from(self.region_count()) * u64::from(REGION_PAGES)
    }

    /// The pages of the smallest target.
    #[must_use]
    pub const fn capacity_min() -> u64 {
        JOURNAL + JOURNAL_PAGES_MIN + REGION_PAGES as u64
    }

    /// Whether the parts follow each other, are apart from the superblocks, and have room for a
    /// region. Numbers of regions have 32 bits: 128 PiB.
    fn is_possible(&self) -> bool {
        let Self { capacity, roots, journal, journal_pages, regions } = *self;
        let ascending = capacity < PAGE_NUMBER_END
            && roots > COPIES[0]
            && roots.saturating_add(ROOT_SLOTS) <= COPIES[1]
            && journal > COPIES[1]
            && journal_pages > 0
            && journal.checked_add(journal_pages).is_some_and(|end| end <= regions)
            && regions < capacity;
        let count = capacity.saturating_sub(regions) / u64::from(REGION_PAGES);
        ascending && (1..=u64::from(u32::MAX)).contains(&count)
    }
}

/// Why a superblock is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// The bytes are damaged, or something else.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The target has format version 1.
    #[error(
        "this target has format version 1 of a development version; copy its data out with that \
         version, or empty the directory to begin with a blank target"
    )]
    Version1,
    /// The disk belongs to another cluster.
    #[error(
        "this target belongs to cluster {found}, not to {expected}; if that is meant, empty it \
         first"
    )]
    OtherCluster {
        /// The cluster in the superblock.
        found: ClusterId,
        /// The cluster of this daemon.
        expected: ClusterId,
    },
    /// The disk is another target.
    #[error("this is target {found}, not {expected}; attach the right disk")]
    OtherTarget {
        /// The target in the superblock.
        found: TargetId,
        /// The target that the settings name.
        expected: TargetId,
    },
}

/// The superblock that counts, and what is wrong with the copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The copy with the higher count of writes.
    pub superblock: Superblock,
    /// The copies (0, 1) to be written anew: damaged or older.
    pub stale: Vec<usize>,
}

impl Superblock {
    /// The bytes of a copy (0 or 1).
    ///
    /// # Panics
    /// When there is no such copy, or the layout is impossible.
    #[must_use]
    pub fn encode(&self, copy: usize) -> Vec<u8> {
        let layout = self.layout;
        assert!(layout.is_possible(), "the parts of a target are apart: {layout:?}");
        let mut bytes = Vec::with_capacity(SUPERBLOCK_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(FORMAT_VERSION);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.target.0);
        bytes.put_u32(PAGE_SIZE);
        bytes.put_u32(u32::try_from(BLOCK_SIZE).expect("64 KiB"));
        bytes.put_u64(layout.capacity);
        bytes.put_u32(SECTION_SIZE);
        bytes.put_u32(REGION_PAGES);
        bytes.put_u64(COPIES[copy]);
        bytes.put_u64(self.writes);
        bytes.put_u64(layout.roots);
        bytes.put_u64(layout.journal);
        bytes.put_u64(layout.journal_pages);
        bytes.put_u64(layout.regions);
        bytes.put_u64(self.losses);
        bytes.resize(SUPERBLOCK_LEN, 0);
        let checksum = Crc32c::of(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a copy (0 or 1).
    ///
    /// # Errors
    /// [`SuperblockError::Format`], [`SuperblockError::Version1`].
    pub fn decode(bytes: &[u8], copy: usize) -> Result<Self, SuperblockError> {
        let bytes = bytes.get(..SUPERBLOCK_LEN).ok_or(FormatError::Truncated(WHAT))?;
        let mut reader = Reader::new(&bytes[..FIELDS_LEN], WHAT);
        if reader.array()? != *MAGIC {
            return Err(FormatError::Magic(WHAT).into());
        }
        if Crc32c(reader.u32()?) != Crc32c::of(&bytes[12..]) {
            return Err(FormatError::Checksum(WHAT).into());
        }
        match reader.u32()? {
            FORMAT_VERSION => {}
            1 => return Err(SuperblockError::Version1),
            found => {
                let known = FORMAT_VERSION;
                return Err(FormatError::Version { what: WHAT, found, known }.into());
            }
        }
        let cluster = ClusterId(reader.array()?);
        let target = TargetId(reader.array()?);
        if reader.u32()? != PAGE_SIZE || u64::from(reader.u32()?) != BLOCK_SIZE {
            return Err(reader.impossible("page or block size").into());
        }
        let capacity = reader.u64()?;
        if reader.u32()? != SECTION_SIZE || reader.u32()? != REGION_PAGES {
            return Err(reader.impossible("section or region size").into());
        }
        if COPIES.get(copy) != Some(&reader.u64()?) {
            return Err(reader.impossible("page number: it belongs elsewhere").into());
        }
        let writes = reader.u64()?;
        let layout = Layout {
            capacity,
            roots: reader.u64()?,
            journal: reader.u64()?,
            journal_pages: reader.u64()?,
            regions: reader.u64()?,
        };
        if !layout.is_possible() {
            return Err(reader.impossible("layout").into());
        }
        let losses = reader.u64()?;
        Ok(Self { cluster, target, writes, losses, layout })
    }

    /// The one that counts of two copies, as they were read.
    ///
    /// # Errors
    /// That of copy A, when neither can be read.
    pub fn newest(copies: [&[u8]; 2]) -> Result<Newest, SuperblockError> {
        let decoded = [0, 1].map(|copy| Self::decode(copies[copy], copy));
        // A disk of another version has no second copy worth a look.
        let newest = match &decoded {
            [Ok(one), Ok(other)] if other.writes > one.writes => other.clone(),
            [Ok(one), _] | [Err(_), Ok(one)] => one.clone(),
            [Err(error), Err(_)] => return Err(error.clone()),
        };
        let is_stale = |copy: &usize| decoded[*copy].as_ref() != Ok(&newest);
        Ok(Newest { stale: [0, 1].into_iter().filter(is_stale).collect(), superblock: newest })
    }

    /// Whether it is the disk of this cluster and, if one is expected, of this target.
    ///
    /// # Errors
    /// [`SuperblockError::OtherCluster`], [`SuperblockError::OtherTarget`].
    pub fn check(
        &self,
        cluster: ClusterId,
        target: Option<TargetId>,
    ) -> Result<(), SuperblockError> {
        if self.cluster != cluster {
            let found = self.cluster;
            return Err(SuperblockError::OtherCluster { found, expected: cluster });
        }
        match target {
            Some(expected) if expected != self.target => {
                Err(SuperblockError::OtherTarget { found: self.target, expected })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLUSTER: ClusterId = ClusterId([0xC1; 16]);
    const TARGET: TargetId = TargetId([0x7A; 8]);

    fn sample() -> Superblock {
        let layout = Layout::new(1 << 20).unwrap();
        Superblock { cluster: CLUSTER, target: TARGET, writes: 3, losses: 5, layout }
    }

    fn resign(bytes: &mut [u8]) {
        let checksum = Crc32c::of(&bytes[12..]).0.to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
    }

    #[test]
    fn the_bytes_never_change() {
        let bytes = sample().encode(1);
        let number = |low: u64| low.to_le_bytes();
        let mut expected = b"MRTARGET".to_vec();
        expected.extend_from_slice(&bytes[8..12]);
        expected.extend_from_slice(&[2, 0, 0, 0]);
        expected.extend_from_slice(&[0xC1; 16]);
        expected.extend_from_slice(&[0x7A; 8]);
        expected.extend_from_slice(&[0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 0x10, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0, 0, 8, 0, 0, 0x20, 0, 0]);
        for field in [32, 3, 16, 256, 16_384, 16_640, 5] {
            expected.extend_from_slice(&number(field));
        }
        assert_eq!(bytes[..FIELDS_LEN], expected);
        assert_eq!(Crc32c(u32::from_le_bytes(*bytes[8..].first_chunk().unwrap())), GOLDEN);
        assert_eq!(bytes.len(), SUPERBLOCK_LEN);
        assert_eq!(Superblock::decode(&bytes, 1), Ok(sample()));
    }

    /// The checksum of the sample's copy B.
    const GOLDEN: Crc32c = Crc32c(0x56bc_ef66);

    #[test]
    fn damage_and_the_place_of_the_other_copy_are_refused() {
        let good = sample().encode(0);
        for at in 0..SUPERBLOCK_LEN {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Superblock::decode(&bad, 0).is_err(), "byte {at}");
        }
        assert!(Superblock::decode(&good, 1).is_err());
        assert!(Superblock::decode(&good[..4095], 0).is_err());
    }

    #[test]
    fn another_cluster_target_or_version_is_refused_by_name() {
        let other = ClusterId([0xC2; 16]);
        let error = sample().check(other, None).unwrap_err();
        assert_eq!(error, SuperblockError::OtherCluster { found: CLUSTER, expected: other });
        assert!(error.to_string().contains(&CLUSTER.to_string()), "{error}");
        assert!(error.to_string().contains(&other.to_string()), "{error}");
        let other = TargetId([1; 8]);
        let error = sample().check(CLUSTER, Some(other)).unwrap_err();
        assert_eq!(error, SuperblockError::OtherTarget { found: TARGET, expected: other });
        assert!(error.to_string().contains(&TARGET.to_string()), "{error}");
        assert_eq!(sample().check(CLUSTER, Some(TARGET)), Ok(()));
        assert_eq!(sample().check(CLUSTER, None), Ok(()));

        let mut old = sample().encode(0);
        old[12] = 1;
        resign(&mut old);
        let error = Superblock::decode(&old, 0).unwrap_err();
        assert_eq!(error, SuperblockError::Version1);
        assert!(error.to_string().contains("version 1"), "{error}");
        let mut later = sample().encode(0);
        later[12] = 3;
        resign(&mut later);
        let error = Superblock::decode(&later, 0).unwrap_err();
        assert!(error.to_string().contains("upgrade"), "{error}");
    }

    #[test]
    fn the_newer_copy_counts_and_the_other_one_is_to_be_written_again() {
        let newer = Superblock { writes: 4, ..sample() };
        let both = Superblock::newest([&sample().encode(0), &sample().encode(1)]).unwrap();
        assert_eq!((both.superblock, both.stale), (sample(), vec![]));
        let cut = Superblock::newest([&newer.encode(0), &sample().encode(1)]).unwrap();
        assert_eq!((cut.superblock, cut.stale), (newer.clone(), vec![1]));
        let rot = Superblock::newest([&[0; SUPERBLOCK_LEN], &newer.encode(1)]).unwrap();
        assert_eq!((rot.superblock, rot.stale), (newer.clone(), vec![0]));
        let stale = Superblock::newest([&sample().encode(0), &newer.encode(1)]).unwrap();
        assert_eq!((stale.superblock, stale.stale), (newer, vec![0]));
        assert!(Superblock::newest([&[0; SUPERBLOCK_LEN], &[0; 9]]).is_err());
    }

    #[test]
    fn a_layout_fits_its_disk() {
        assert_eq!(Layout::new(256 + 4096 + 8191), None);
        assert_eq!(Layout::capacity_min(), 256 + 4096 + 8192);
        let least = Layout::new(256 + 4096 + 8192).unwrap();
        assert_eq!((least.region_count(), least.fixed_pages()), (1, 256 + 4096));
        let large = Layout::new(4 << 28).unwrap();
        assert_eq!(large.journal_pages, JOURNAL_PAGES_MAX);
        let regions = u64::from(large.region_count()) * u64::from(REGION_PAGES);
        assert_eq!(large.fixed_pages() + regions, large.capacity);
    }

    #[test]
    fn a_layout_grows_by_whole_regions_and_never_shrinks() {
        let layout = Layout::new(256 + 4096 + 8192).unwrap();
        assert_eq!(layout.raised(layout.capacity + 8191), None);
        assert_eq!(layout.raised(layout.capacity - 1), None);
        let raised = layout.raised(layout.capacity + 8192).unwrap();
        assert_eq!((raised.region_count(), raised.regions), (2, layout.regions));
        assert_eq!((raised.regions_before(raised.end_of(1)), raised.regions_before(0)), (1, 0));
        assert_eq!(raised.regions_before(raised.end_of(1) - 1), 0);
        assert_eq!(raised.regions_before(u64::MAX), 2);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            noise in prop::collection::vec((12_usize..FIELDS_LEN, any::<u8>()), 0..12),
        ) {
            let mut bytes = sample().encode(0);
            for (at, byte) in noise {
                bytes[at] = byte;
            }
            resign(&mut bytes);
            if let Ok(superblock) = Superblock::decode(&bytes, 0) {
                prop_assert!(superblock.layout.region_count() > 0);
                prop_assert_eq!(superblock.encode(0), bytes);
            }
        }
    }
}
