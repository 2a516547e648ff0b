//! Facts about a target as a whole: values of the index, under the key `06` and their number (1).
//!
//! | number | fact             | value                                                         |
//! |-------:|------------------|---------------------------------------------------------------|
//! |      1 | loss count       | 8: raised when acknowledged writes may be gone                |
//! |      2 | totals           | clean pages 8, written pages 8: of all section records        |
//! |      3 | highest inode    | 8: that ever had a section or a mark here                     |
//! |      4 | scrub            | pass 8 (from 1), begun 8, ended 8 (of the newest pass that is |
//! |        |                  | done; times in nanoseconds since 1970), pages checked 8,      |
//! |        |                  | findings 8 (both in this pass), then where it goes on:        |
//! |        |                  | nothing at the start, or the 18 bytes of a section's key. A   |
//! |        |                  | pass is under way when `ended` is before `begun`              |
//! |      5 | features         | 8: a bit for each optional part of the format in use; an      |
//! |        |                  | unknown one is refused; none is known                         |
//! |      6 | journal position | 20: where replay begins (`batch`)                             |
//! |      7 | log seen         | run of the metadata server 8, index 8: the newest point of    |
//! |        |                  | its command log that the target was told                      |
//! |      8 | losses seen      | 8: the losses in the superblock that the engine began with. A |
//! |        |                  | superblock with more says that the journal has failed since   |
//!
//! Numbers are never used again. Totals, highest inode and journal position are of the same moment
//! as the records in the same checkpoint; replay goes on from there. Losses seen are in every
//! checkpoint, and in no record; targets that were made before there was such a fact get it with
//! their next checkpoint.

use millrace_protocol::cluster::LogPoint;
use millrace_types::{InodeId, LogIndex, Timestamp};

use super::{
    FormatError,
    batch::Position,
    fields::{Put, Reader},
    section::SectionKey,
};

const WHAT: &str = "a fact";

/// One fact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// Raised when acknowledged writes may be gone.
    LossCount(u64),
    /// What all section records use.
    Totals(StateTotals),
    /// The highest inode that ever had a section or a mark here.
    HighestInode(InodeId),
    /// How far the scrub is.
    Scrub(ScrubProgress),
    /// Optional parts of the format in use, a bit each.
    Features(u64),
    /// Where replay of the journal begins.
    JournalPosition(Position),
    /// The newest point of the cluster's command log that the target was told.
    LogSeen(LogPoint),
    /// The losses in the superblock that the engine began with.
    LossesSeen(u64),
}

/// Names a fact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum FactNumber {
    /// [`Fact::LossCount`].
    LossCount = 1,
    /// [`Fact::Totals`].
    Totals = 2,
    /// [`Fact::HighestInode`].
    HighestInode = 3,
    /// [`Fact::Scrub`].
    Scrub = 4,
    /// [`Fact::Features`].
    Features = 5,
    /// [`Fact::JournalPosition`].
    JournalPosition = 6,
    /// [`Fact::LogSeen`].
    LogSeen = 7,
    /// [`Fact::LossesSeen`].
    LossesSeen = 8,
}

/// Pages that section records name, by the state of their blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateTotals {
    /// The bucket's bytes.
    pub clean_pages: u64,
    /// Bytes that somebody wrote.
    pub written_pages: u64,
}

/// How far the scrub is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubProgress {
    /// Which pass it is, from 1; 0 when there has been none.
    pub pass: u64,
    /// When the pass began; of pass 0, when the target was first opened.
    pub begun: Timestamp,
    /// When the newest pass that is done ended. Before `begun`: the pass is under way.
    pub ended: Timestamp,
    /// Pages checked in this pass.
    pub pages: u64,
    /// Bad blocks found in this pass.
    pub findings: u64,
    /// The section with which it goes on; `None` at the start.
    pub cursor: Option<SectionKey>,
}

impl ScrubProgress {
    /// Whether a pass has begun and not ended.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.ended < self.begun
    }
}

impl FactNumber {
    /// Reads the number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::LossCount,
            2 => Self::Totals,
            3 => Self::HighestInode,
            4 => Self::Scrub,
            5 => Self::Features,
            6 => Self::JournalPosition,
            7 => Self::LogSeen,
            8 => Self::LossesSeen,
            _ => return None,
        })
    }
}

impl Fact {
    /// Which fact it is.
    #[must_use]
    pub fn number(&self) -> FactNumber {
        match self {
            Self::LossCount(_) => FactNumber::LossCount,
            Self::Totals(_) => FactNumber::Totals,
            Self::HighestInode(_) => FactNumber::HighestInode,
            Self::Scrub(_) => FactNumber::Scrub,
            Self::Features(_) => FactNumber::Features,
            Self::JournalPosition(_) => FactNumber::JournalPosition,
            Self::LogSeen(_) => FactNumber::LogSeen,
            Self::LossesSeen(_) => FactNumber::LossesSeen,
        }
    }

    /// The bytes of the value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::LossCount(number) | Self::Features(number) | Self::LossesSeen(number) => {
                bytes.put_u64(*number);
            }
            Self::Totals(totals) => {
                bytes.put_u64(totals.clean_pages);
                bytes.put_u64(totals.written_pages);
            }
            Self::HighestInode(inode) => bytes.put_u64(inode.0),
            Self::Scrub(progress) => {
                bytes.put_u64(progress.pass);
                bytes.extend_from_slice(&progress.begun.0.to_le_bytes());
                bytes.extend_from_slice(&progress.ended.0.to_le_bytes());
                bytes.put_u64(progress.pages);
                bytes.put_u64(progress.findings);
                if let Some(cursor) = progress.cursor {
                    cursor.put(&mut bytes);
                }
            }
            Self::JournalPosition(position) => return position.encode(),
            Self::LogSeen(point) => {
                bytes.put_u64(point.incarnation);
                bytes.put_u64(point.index.0);
            }
        }
        bytes
    }

    /// Reads the value of the fact with this number.
    ///
    /// # Errors
    /// [`FormatError`] when no program writes these bytes for that fact.
    pub fn decode(number: FactNumber, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let fact = match number {
            FactNumber::LossCount => Self::LossCount(reader.u64()?),
            FactNumber::Totals => {
                let (clean_pages, written_pages) = (reader.u64()?, reader.u64()?);
                // Far beyond any disk; the bound keeps sums from wrapping.
                if clean_pages >= 1 << 48 || written_pages >= 1 << 48 {
                    return Err(reader.impossible("total"));
                }
                Self::Totals(StateTotals { clean_pages, written_pages })
            }
            FactNumber::HighestInode => Self::HighestInode(InodeId(reader.u64()?)),
            FactNumber::Scrub => {
                let mut progress = ScrubProgress {
                    pass: reader.u64()?,
                    begun: Timestamp(i64::from_le_bytes(reader.array()?)),
                    ended: Timestamp(i64::from_le_bytes(reader.array()?)),
                    pages: reader.u64()?,
                    findings: reader.u64()?,
                    cursor: None,
                };
                if bytes.len() > SCRUB_LEN {
                    progress.cursor = Some(SectionKey::take(&mut reader)?);
                }
                Self::Scrub(progress)
            }
            FactNumber::Features => Self::Features(reader.u64()?),
            FactNumber::JournalPosition => {
                return Position::decode(bytes).map(Self::JournalPosition);
            }
            FactNumber::LogSeen => Self::LogSeen(LogPoint {
                incarnation: reader.u64()?,
                index: LogIndex(reader.u64()?),
            }),
            FactNumber::LossesSeen => Self::LossesSeen(reader.u64()?),
        };
        reader.finish()?;
        Ok(fact)
    }
}

/// Bytes of a scrub's progress in front of its cursor.
const SCRUB_LEN: usize = 40;

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, Crc32c};

    use super::*;

    fn samples() -> Vec<(Fact, Vec<u8>)> {
        let number = |low: u8| [low, 0, 0, 0, 0, 0, 0, 0];
        let chunk = ChunkKey {
            inode: InodeId(0x0102),
            generation: ContentGeneration(3),
            index: ChunkIndex(4),
            copy: CopyIndex(5),
        };
        let mut progress = ScrubProgress {
            pass: 1,
            begun: Timestamp(2),
            ended: Timestamp(-1),
            pages: 4,
            findings: 5,
            cursor: None,
        };
        let mut scrub = [number(1), number(2), [0xFF; 8], number(4), number(5)].concat();
        let start = (Fact::Scrub(progress), scrub.clone());
        progress.cursor = Some(SectionKey { chunk, section: 6 });
        scrub.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4, 5, 6]);
        let position = Position { page: 1, sequence: 2, previous: Crc32c(3) };
        vec![
            (Fact::LossCount(7), number(7).to_vec()),
            (
                Fact::Totals(StateTotals { clean_pages: 1, written_pages: 2 }),
                [number(1), number(2)].concat(),
            ),
            (Fact::HighestInode(InodeId(9)), number(9).to_vec()),
            start,
            (Fact::Scrub(progress), scrub),
            (Fact::Features(1), number(1).to_vec()),
            (Fact::JournalPosition(position), [&number(1)[..], &number(2), &[3, 0, 0, 0]].concat()),
            (
                Fact::LogSeen(LogPoint { incarnation: 5, index: LogIndex(6) }),
                [number(5), number(6)].concat(),
            ),
            (Fact::LossesSeen(8), number(8).to_vec()),
        ]
    }

    #[test]
    fn the_bytes_never_change() {
        for (fact, bytes) in samples() {
            assert_eq!(fact.encode(), bytes, "{fact:?}");
            assert_eq!(FactNumber::from_byte(fact.number() as u8), Some(fact.number()));
            assert_eq!(Fact::decode(fact.number(), &bytes), Ok(fact));
        }
        let numbers: Vec<u8> = (0..=255).filter(|&n| FactNumber::from_byte(n).is_some()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn other_lengths_and_impossible_values_are_refused() {
        for (fact, bytes) in samples() {
            for len in (0..bytes.len()).filter(|&len| len != SCRUB_LEN) {
                assert!(Fact::decode(fact.number(), &bytes[..len]).is_err(), "{fact:?} {len}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(Fact::decode(fact.number(), &longer).is_err(), "{fact:?}");
        }
        assert!(Fact::decode(FactNumber::Totals, &[0xFF; 16]).is_err());
        let (_, mut scrub) = samples().remove(4);
        scrub[57] = 128;
        assert!(Fact::decode(FactNumber::Scrub, &scrub).is_err(), "a section past the chunk");
    }
}
