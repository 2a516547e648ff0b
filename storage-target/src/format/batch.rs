//! A batch of journal records in the ring: whole pages of 4,096 bytes, written with one request.
//!
//! | offset | bytes | field          | meaning                                                    |
//! |-------:|------:|----------------|------------------------------------------------------------|
//! |      0 |     4 | magic          | `MRJB`                                                     |
//! |      4 |     4 | checksum       | crc32c of bytes 8..length                                  |
//! |      8 |     8 | target         | as in the superblock                                       |
//! |     16 |     8 | page           | where this batch lies                                      |
//! |     24 |     8 | first sequence | of its first record; the others follow one by one          |
//! |     32 |     8 | committed      | the newest record that was durable when this was written   |
//! |     40 |    16 | boot id        | of the kernel that ran and the disk's attachment: `BootId` |
//! |     56 |     4 | previous       | the checksum of the batch before                           |
//! |     60 |     4 | count          | of records; at least 1                                     |
//! |     64 |     4 | length         | of header and records, 72 to 262,144                       |
//! |     68 |     4 | zero           |                                                            |
//! |     72 |       | records        | each a length (4) and that many bytes                      |
//! |        |       | zero           | to the end of the page                                     |
//!
//! A batch follows another one if it begins with the next sequence *and* names its checksum. The
//! second condition matters after a loss of power: batches 10 and 11 were being written, 11 arrived
//! and 10 did not; the next run writes another 10, and the old 11 must not follow that one.
//!
//! A batch never wraps around: where it does not fit before the ring's end, it begins at the
//! ring's start.

use bytes::Bytes;
use millrace_types::{Crc32c, TargetId};

use super::{
    FormatError,
    fields::{Put, Reader},
    units::PAGE_SIZE,
};

/// Bytes in front of the records.
pub const BATCH_HEADER_LEN: usize = 72;

/// Bytes of the longest batch.
pub const BATCH_LEN_MAX: usize = 256 * 1024;

/// Bytes of the longest record: half a batch.
pub const RECORD_LEN_MAX: usize = 128 * 1024;

const MAGIC: &[u8; 4] = b"MRJB";
const WHAT: &str = "a journal batch";
const POSITION: &str = "a journal position";

/// Bytes of a [`Position`].
pub const POSITION_LEN: usize = 20;

/// Where a journal goes on: what the next batch must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Where it begins, unless it does not fit there.
    pub page: u64,
    /// Its first record.
    pub sequence: u64,
    /// The checksum of the batch before.
    pub previous: Crc32c,
}

impl Position {
    /// The bytes: page 8, sequence 8, previous 4.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(POSITION_LEN);
        bytes.put_u64(self.page);
        bytes.put_u64(self.sequence);
        bytes.put_u32(self.previous.0);
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`FormatError`] when their length is another.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, POSITION);
        let position =
            Self { page: reader.u64()?, sequence: reader.u64()?, previous: Crc32c(reader.u32()?) };
        reader.finish()?;
        Ok(position)
    }
}

/// Names one boot of a machine and one attachment of its disk: it tells a killed process from a
/// machine that lost its memory, or a disk that was away. With the same one everything that was
/// written is there, synced or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub [u8; 16]);

/// What a batch says beside its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Whose journal it is.
    pub target: TargetId,
    /// Where the batch lies, which record it begins with, and what it follows.
    pub position: Position,
    /// The newest record that was durable when it was written.
    pub committed: u64,
    /// Under which it was written.
    pub boot: BootId,
}

/// A batch that has been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// What it says beside its records.
    pub header: BatchHeader,
    /// The records, in order.
    pub records: Vec<Bytes>,
    /// What the batch after it names as `previous`.
    pub checksum: Crc32c,
    /// Pages that it takes.
    pub pages: u64,
}

/// What records of these lengths take of the ring, in bytes and without the rounding to pages.
#[must_use]
pub fn batch_len(record_lens: impl IntoIterator<Item = usize>) -> usize {
    BATCH_HEADER_LEN + record_lens.into_iter().map(|len| len + 4).sum::<usize>()
}

/// The bytes of a batch, whole pages, and its checksum.
///
/// # Panics
/// When there is no record, or one is too long, or all together are.
#[must_use]
pub fn encode_batch(header: &BatchHeader, records: &[Bytes]) -> (Vec<u8>, Crc32c) {
    assert!(!records.is_empty(), "a batch has records");
    let len = batch_len(records.iter().map(Bytes::len));
    assert!(len <= BATCH_LEN_MAX, "a batch keeps within its bound");
    let page = usize::try_from(PAGE_SIZE).expect("4 KiB");
    let mut bytes = Vec::with_capacity(len.next_multiple_of(page));
    bytes.extend_from_slice(MAGIC);
    bytes.put_u32(0);
    bytes.extend_from_slice(&header.target.0);
    bytes.put_u64(header.position.page);
    bytes.put_u64(header.position.sequence);
    bytes.put_u64(header.committed);
    bytes.extend_from_slice(&header.boot.0);
    bytes.put_u32(header.position.previous.0);
    bytes.put_u32(u32::try_from(records.len()).expect("within the bound"));
    bytes.put_u32(u32::try_from(len).expect("within the bound"));
    bytes.put_u32(0);
    for record in records {
        assert!(record.len() <= RECORD_LEN_MAX, "a record keeps within its bound");
        bytes.put_u32(u32::try_from(record.len()).expect("within the bound"));
        bytes.extend_from_slice(record);
    }
    let checksum = Crc32c::of(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    bytes.resize(len.next_multiple_of(page), 0);
    (bytes, checksum)
}

/// How long the batch is that may begin with these bytes, before anything of it is checked but the
/// magic number and its bounds; `None` when there is none. Needs [`BATCH_HEADER_LEN`] bytes.
#[must_use]
pub fn claimed_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..BATCH_HEADER_LEN)?;
    let len = usize::try_from(u32::from_le_bytes(*header[64..].first_chunk()?)).ok()?;
    let sound = header.starts_with(MAGIC) && (BATCH_HEADER_LEN + 4..=BATCH_LEN_MAX).contains(&len);
    sound.then_some(len)
}

impl Batch {
    /// Reads the batch that begins with these bytes, at `page` of the disk.
    ///
    /// # Errors
    /// [`FormatError`] when there is no whole, sound batch.
    pub fn decode(bytes: &Bytes, target: TargetId, page: u64) -> Result<Self, FormatError> {
        let len = claimed_len(bytes).ok_or(FormatError::Magic(WHAT))?;
        if bytes.len() < len {
            return Err(FormatError::Truncated(WHAT));
        }
        let bytes = bytes.slice(..len);
        let mut reader = Reader::new(&bytes[4..BATCH_HEADER_LEN], WHAT);
        let checksum = Crc32c(reader.u32()?);
        if checksum != Crc32c::of(&bytes[8..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        if TargetId(reader.array()?) != target {
            return Err(reader.impossible("target"));
        }
        if reader.u64()? != page {
            return Err(reader.impossible("page number: it belongs elsewhere"));
        }
        let (sequence, committed) = (reader.u64()?, reader.u64()?);
        let boot = BootId(reader.array()?);
        let previous = Crc32c(reader.u32()?);
        let count = reader.u32()?;
        // Numbers beyond 2^63 are never reached; the bound keeps sums from wrapping.
        if count == 0 || sequence >= 1 << 63 || committed >= sequence {
            return Err(reader.impossible("count or sequence"));
        }
        let mut records = Vec::new();
        let mut at = BATCH_HEADER_LEN;
        for _ in 0..count {
            let head = bytes.get(at..).and_then(|rest| rest.first_chunk());
            let head = head.ok_or(FormatError::Truncated(WHAT))?;
            let record_len = usize::try_from(u32::from_le_bytes(*head)).expect("32 bits fit");
            let end = at + 4 + record_len;
            if record_len > RECORD_LEN_MAX || end > len {
                return Err(FormatError::Truncated(WHAT));
            }
            records.push(bytes.slice(at + 4..end));
            at = end;
        }
        if at != len {
            return Err(FormatError::Impossible { what: WHAT, field: "length" });
        }
        let position = Position { page, sequence, previous };
        let header = BatchHeader { target, position, committed, boot };
        let pages = (len as u64).div_ceil(u64::from(PAGE_SIZE));
        Ok(Self { header, records, checksum, pages })
    }

    /// The sequence after its last record.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.header.position.sequence + self.records.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TARGET: TargetId = TargetId([7; 8]);

    fn header() -> BatchHeader {
        let position = Position { page: 300, sequence: 5, previous: Crc32c(0xA1B2_C3D4) };
        BatchHeader { target: TARGET, position, committed: 4, boot: BootId([9; 16]) }
    }

    fn records() -> Vec<Bytes> {
        vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"z")]
    }

    #[test]
    fn the_bytes_never_change() {
        let (bytes, checksum) = encode_batch(&header(), &records());
        let mut expected = b"MRJB".to_vec();
        expected.extend_from_slice(&checksum.0.to_le_bytes());
        expected.extend_from_slice(&[7; 8]);
        expected.extend_from_slice(&[44, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[9; 16]);
        expected.extend_from_slice(&[0xD4, 0xC3, 0xB2, 0xA1, 3, 0, 0, 0, 88, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[3, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 1, 0, 0, 0, b'z']);
        assert_eq!(checksum, Crc32c(0x29d9_f7a3));
        assert_eq!(bytes[..88], expected);
        assert_eq!(bytes.len(), 4096);
        let batch = Batch::decode(&Bytes::from(bytes), TARGET, 300).unwrap();
        assert_eq!((batch.header.clone(), batch.records.clone()), (header(), records()));
        assert_eq!((batch.checksum, batch.pages, batch.next_sequence()), (checksum, 1, 8));
        let position = [44, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1];
        assert_eq!(header().position.encode(), position);
        assert_eq!(Position::decode(&position), Ok(header().position));
        assert!(Position::decode(&position[1..]).is_err());
    }

    #[test]
    fn damage_and_other_places_are_found() {
        let (bytes, _) = encode_batch(&header(), &records());
        assert!(Batch::decode(&Bytes::from(bytes.clone()), TARGET, 301).is_err());
        assert!(Batch::decode(&Bytes::from(bytes.clone()), TargetId([1; 8]), 300).is_err());
        for at in 0..88 {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert!(Batch::decode(&Bytes::from(bad), TARGET, 300).is_err(), "byte {at}");
            let cut = Bytes::copy_from_slice(&bytes[..at]);
            assert!(Batch::decode(&cut, TARGET, 300).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            noise in prop::collection::vec((8_usize..100, any::<u8>()), 0..12),
        ) {
            let (mut bytes, _) = encode_batch(&header(), &records());
            for (at, byte) in noise {
                bytes[at] = byte;
            }
            let len = claimed_len(&bytes).unwrap_or(88).min(bytes.len());
            let checksum = Crc32c::of(&bytes[8..len]).0.to_le_bytes();
            bytes[4..8].copy_from_slice(&checksum);
            if let Ok(batch) = Batch::decode(&Bytes::from(bytes), TARGET, 300) {
                prop_assert!(batch.next_sequence() > batch.header.committed);
            }
        }
    }
}
