//! What a target accepts of an inode or of a group: values of the index.
//!
//! | key                        | value                                                        |
//! |----------------------------|--------------------------------------------------------------|
//! | `02` inode 8, big-endian   | generation 4, write epoch 4: the oldest that are accepted    |
//! | `07` group 4, big-endian   | inode 8: the high-water mark below which absent is lost      |

use millrace_types::{ContentGeneration, InodeId, WriteEpoch};

use super::{
    FormatError,
    fields::{Put, Reader},
};

const MARK: &str = "a mark";
const LOST: &str = "a lost mark";

/// The oldest generation and write epoch of an inode that are still accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Mark {
    /// Requests for an older generation are answered `StaleContent`.
    pub generation: ContentGeneration,
    /// Writes of that generation with an older epoch are answered `StaleEpoch`, and so are reads of
    /// what is absent.
    pub write_epoch: WriteEpoch,
}

impl Mark {
    /// The bytes of the value.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8);
        bytes.put_u32(self.generation.0);
        bytes.put_u32(self.write_epoch.0);
        bytes
    }

    /// Reads the value.
    ///
    /// # Errors
    /// [`FormatError`] when its length is another.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, MARK);
        let mark = Self {
            generation: ContentGeneration(reader.u32()?),
            write_epoch: WriteEpoch(reader.u32()?),
        };
        reader.finish()?;
        Ok(mark)
    }
}

/// The target came back without a group's data: what is absent of inodes below is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostMark {
    /// The first inode id that was given out afterwards.
    pub below: InodeId,
}

impl LostMark {
    /// The bytes of the value.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        self.below.0.to_le_bytes().to_vec()
    }

    /// Reads the value.
    ///
    /// # Errors
    /// [`FormatError`] when its length is another.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, LOST);
        let mark = Self { below: InodeId(reader.u64()?) };
        reader.finish()?;
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_never_change() {
        let mark =
            Mark { generation: ContentGeneration(0x0102_0304), write_epoch: WriteEpoch(0x0506) };
        assert_eq!(mark.encode(), [4, 3, 2, 1, 6, 5, 0, 0]);
        assert_eq!(Mark::decode(&mark.encode()), Ok(mark));
        assert!(Mark::decode(&[0; 7]).is_err() && Mark::decode(&[0; 9]).is_err());
        let lost = LostMark { below: InodeId(0x0A0B) };
        assert_eq!(lost.encode(), [0x0B, 0x0A, 0, 0, 0, 0, 0, 0]);
        assert_eq!(LostMark::decode(&lost.encode()), Ok(lost));
        assert!(LostMark::decode(&[0; 7]).is_err() && LostMark::decode(&[0; 9]).is_err());
    }

    #[test]
    fn marks_order_by_generation_and_then_by_epoch() {
        let mark = |generation, epoch| Mark {
            generation: ContentGeneration(generation),
            write_epoch: WriteEpoch(epoch),
        };
        assert!(mark(1, 9) < mark(2, 0) && mark(2, 0) < mark(2, 1));
    }
}
