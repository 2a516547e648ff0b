//! The bytes of a snapshot: a head, blocks of pairs in key order, a tail. All numbers are
//! little-endian; whatever is wrong is found by a checksum or a rule below.
//!
//! | offset | bytes | head            | meaning                                              |
//! |-------:|------:|-----------------|------------------------------------------------------|
//! |      0 |     4 | magic           | `MRSN`                                               |
//! |      4 |     4 | checksum        | crc32c of bytes 8..40                                |
//! |      8 |     8 | index           | of the log: every record up to it is seen, none else |
//! |     16 |    16 | cluster id      | a file of another cluster is refused                 |
//! |     32 |     2 | version         | [`VERSION`]                                          |
//! |     34 |     6 | zero            | reserved                                             |
//!
//! | offset | bytes | block           | meaning                                              |
//! |-------:|------:|-----------------|------------------------------------------------------|
//! |      0 |     4 | magic           | `MRSB`                                               |
//! |      4 |     4 | checksum        | crc32c of everything behind it                       |
//! |      8 |     8 | number          | of the block, from 0, dense                          |
//! |     16 |     4 | pairs           | at least 1                                           |
//! |     20 |     4 | body length     | bytes, at most [`BODY_LEN_MAX`]                      |
//! |     24 |     n | body            | the pairs back to back                               |
//!
//! | offset | bytes | pair            | meaning                                              |
//! |-------:|------:|-----------------|------------------------------------------------------|
//! |      0 |     2 | key length      | bytes, at least 1                                    |
//! |      2 |     4 | value length    | bytes                                                |
//! |      6 |     n | key, value      | each key is greater than the one before, block or no |
//!
//! | offset | bytes | tail            | meaning                                              |
//! |-------:|------:|-----------------|------------------------------------------------------|
//! |      0 |     4 | magic           | `MRSE`; the file ends behind the tail                |
//! |      4 |     4 | checksum        | crc32c of bytes 8..40                                |
//! |      8 |     8 | index           | as in the head                                       |
//! |     16 |     8 | blocks          | how many                                             |
//! |     24 |     8 | pairs           | how many in all of them                              |
//! |     32 |     4 | sum             | crc32c of the blocks' checksums, in their order      |
//! |     36 |     4 | zero            | reserved                                             |

use std::io::{self, Read};

use millrace_types::{ClusterId, Crc32c, LogIndex};

use crate::store::Pair;

/// The only version there is.
pub const VERSION: u16 = 1;

/// Bytes of head and tail.
pub const FRAME_LEN: usize = 40;

/// Bytes in front of a block's body.
pub const BLOCK_HEAD_LEN: usize = 24;

/// The largest body: what a run gathers at once, and behind it one pair of the largest command.
pub const BODY_LEN_MAX: usize = 8 << 20;

const HEAD_MAGIC: [u8; 4] = *b"MRSN";
const BLOCK_MAGIC: [u8; 4] = *b"MRSB";
const TAIL_MAGIC: [u8; 4] = *b"MRSE";
const PAIR_HEAD_LEN: usize = 6;

/// Why bytes are no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// They cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// They are damaged, or cut off.
    #[error("it is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the part begins that is not right.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A later program wrote them.
    #[error("it has format version {0}, which this program does not know")]
    Version(u16),
    /// It belongs to somebody else.
    #[error("it belongs to another cluster, {0}")]
    OtherCluster(ClusterId),
    /// It is sound, and its name says something else.
    #[error("it is of index {0}, and its name says another")]
    OtherIndex(LogIndex),
}

/// Pairs that the format has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a snapshot cannot hold {what}, of {bytes} bytes")]
pub struct TooLong {
    what: &'static str,
    bytes: usize,
}

/// Makes the bytes of one snapshot, a part at a time.
#[derive(Debug)]
pub struct Encoder {
    index: LogIndex,
    blocks: u64,
    pairs: u64,
    sum: Crc32c,
}

impl Encoder {
    /// The encoder, and the bytes of the head.
    #[must_use]
    pub fn begin(index: LogIndex, cluster: ClusterId) -> (Self, Vec<u8>) {
        let mut head = frame(HEAD_MAGIC, index);
        head[16..32].copy_from_slice(&cluster.0);
        head[32..34].copy_from_slice(&VERSION.to_le_bytes());
        sign(&mut head);
        (Self { index, blocks: 0, pairs: 0, sum: Crc32c::EMPTY }, head)
    }

    /// The next block.
    ///
    /// # Errors
    /// When a key or all of them together are too long. The snapshot comes to nothing then.
    ///
    /// # Panics
    /// Without pairs: who gathers them sees to it.
    pub fn block(&mut self, pairs: &[Pair]) -> Result<Vec<u8>, TooLong> {
        assert!(!pairs.is_empty(), "a block holds something");
        let body_len: usize = pairs.iter().map(pair_len).sum();
        if body_len > BODY_LEN_MAX {
            return Err(TooLong { what: "a block", bytes: body_len });
        }
        let mut bytes = vec![0; BLOCK_HEAD_LEN];
        for (key, value) in pairs {
            let key_len = u16::try_from(key.len())
                .map_err(|_| TooLong { what: "a key", bytes: key.len() })?;
            let value_len = u32::try_from(value.len()).expect("bounded by the body's length");
            bytes.extend_from_slice(&key_len.to_le_bytes());
            bytes.extend_from_slice(&value_len.to_le_bytes());
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        let number = |len: usize| u32::try_from(len).expect("bounded by the body's length");
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[8..16].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[16..20].copy_from_slice(&number(pairs.len()).to_le_bytes());
        bytes[20..24].copy_from_slice(&number(body_len).to_le_bytes());
        let checksum = sign(&mut bytes);
        self.sum = self.sum.append(&checksum.0.to_le_bytes());
        self.blocks += 1;
        self.pairs += pairs.len() as u64;
        Ok(bytes)
    }

    /// The tail behind the blocks so far.
    #[must_use]
    pub fn end(&self) -> Vec<u8> {
        let mut tail = frame(TAIL_MAGIC, self.index);
        tail[16..24].copy_from_slice(&self.blocks.to_le_bytes());
        tail[24..32].copy_from_slice(&self.pairs.to_le_bytes());
        tail[32..36].copy_from_slice(&self.sum.0.to_le_bytes());
        sign(&mut tail);
        tail
    }
}

/// How many bytes a pair takes in a block.
#[must_use]
pub fn pair_len((key, value): &Pair) -> usize {
    PAIR_HEAD_LEN + key.len() + value.len()
}

/// Reads a snapshot, a block at a time. What it has given is right as far as it goes; that it is
/// all, only the end says.
#[derive(Debug)]
pub struct Decoder<R> {
    source: R,
    offset: u64,
    index: LogIndex,
    cluster: ClusterId,
    blocks: u64,
    pairs: u64,
    sum: Crc32c,
    last_key: Vec<u8>,
    ended: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// [`Flaw`].
    pub fn begin(source: R) -> Result<Self, Flaw> {
        let mut decoder = Self {
            source,
            offset: 0,
            index: LogIndex(0),
            cluster: ClusterId([0; 16]),
            blocks: 0,
            pairs: 0,
            sum: Crc32c::EMPTY,
            last_key: Vec::new(),
            ended: false,
        };
        let mut head = [0; FRAME_LEN];
        decoder.fill(&mut head, "its head is cut off")?;
        if head[..4] != HEAD_MAGIC {
            return Err(decoder.damaged("it does not begin as a snapshot does"));
        }
        if !is_signed(&head) {
            return Err(decoder.damaged("the head does not match its checksum"));
        }
        let version = u16::from_le_bytes([head[32], head[33]]);
        if version != VERSION {
            return Err(Flaw::Version(version));
        }
        decoder.index = LogIndex(u64_at(&head, 8));
        decoder.cluster.0.copy_from_slice(&head[16..32]);
        decoder.offset = FRAME_LEN as u64;
        Ok(decoder)
    }

    /// Of which index of the log it is.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// Whose it is.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The next pairs, in key order; none at the end of a snapshot that was whole.
    ///
    /// # Errors
    /// [`Flaw`].
    pub fn next_pairs(&mut self) -> Result<Option<Vec<Pair>>, Flaw> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; BLOCK_HEAD_LEN];
        self.fill(&mut head, "it is cut off")?;
        if head[..4] == TAIL_MAGIC {
            return self.end(&head).map(|()| None);
        }
        if head[..4] != BLOCK_MAGIC {
            return Err(self.damaged("no block begins here"));
        }
        let body_len = usize_at(&head, 20);
        if body_len > BODY_LEN_MAX {
            return Err(self.damaged("the block is longer than any"));
        }
        let mut body = vec![0; body_len];
        self.fill(&mut body, "the block is cut off")?;
        let checksum = Crc32c(u32_at(&head, 4));
        if Crc32c::of(&head[8..]).append(&body) != checksum {
            return Err(self.damaged("the block does not match its checksum"));
        }
        if u64_at(&head, 8) != self.blocks {
            return Err(self.damaged("another block belongs here"));
        }
        let count = usize_at(&head, 16);
        let pairs = self.pairs_of(&body, count)?;
        self.sum = self.sum.append(&checksum.0.to_le_bytes());
        self.blocks += 1;
        self.pairs += count as u64;
        self.offset += (BLOCK_HEAD_LEN + body_len) as u64;
        Ok(Some(pairs))
    }

    fn pairs_of(&mut self, body: &[u8], count: usize) -> Result<Vec<Pair>, Flaw> {
        let wrong = || self.damaged("the block's pairs do not fill it");
        let mut pairs = Vec::with_capacity(count.min(body.len() / PAIR_HEAD_LEN));
        let mut rest = body;
        while let Some((head, behind)) = rest.split_first_chunk::<PAIR_HEAD_LEN>() {
            let key_len = usize::from(u16::from_le_bytes([head[0], head[1]]));
            let (key, behind) = behind.split_at_checked(key_len).ok_or_else(wrong)?;
            let (value, behind) = behind.split_at_checked(usize_at(head, 2)).ok_or_else(wrong)?;
            pairs.push((key.to_vec(), value.to_vec()));
            rest = behind;
        }
        if !rest.is_empty() || count == 0 || pairs.len() != count {
            return Err(wrong());
        }
        let keys = pairs.iter().map(|(key, _)| key.as_slice());
        if !std::iter::once(self.last_key.as_slice()).chain(keys).is_sorted_by(|a, b| a < b) {
            return Err(self.damaged("the keys are out of order"));
        }
        self.last_key.clone_from(&pairs[count - 1].0);
        Ok(pairs)
    }

    /// Checks the tail, whose first bytes were read already.
    fn end(&mut self, begun: &[u8; BLOCK_HEAD_LEN]) -> Result<(), Flaw> {
        let mut tail = [0; FRAME_LEN];
        tail[..BLOCK_HEAD_LEN].copy_from_slice(begun);
        self.fill(&mut tail[BLOCK_HEAD_LEN..], "its tail is cut off")?;
        if !is_signed(&tail) {
            return Err(self.damaged("the tail does not match its checksum"));
        }
        let found = (u64_at(&tail, 8), u64_at(&tail, 16), u64_at(&tail, 24), u32_at(&tail, 32));
        if found != (self.index.0, self.blocks, self.pairs, self.sum.0) {
            return Err(self.damaged("the tail is of another snapshot, or blocks are missing"));
        }
        if self.source.read(&mut [0])? > 0 {
            return Err(self.damaged("something stands behind the tail"));
        }
        self.ended = true;
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8], cut_off: &'static str) -> Result<(), Flaw> {
        match self.source.read_exact(buffer) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(cut_off))
            }
            read => Ok(read?),
        }
    }

    fn damaged(&self, what: &'static str) -> Flaw {
        Flaw::Damaged { offset: self.offset, what }
    }
}

fn frame(magic: [u8; 4], index: LogIndex) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_LEN];
    bytes[..4].copy_from_slice(&magic);
    bytes[8..16].copy_from_slice(&index.0.to_le_bytes());
    bytes
}

/// Puts the checksum of what stands behind it at byte 4.
fn sign(bytes: &mut [u8]) -> Crc32c {
    let checksum = Crc32c::of(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    checksum
}

fn is_signed(bytes: &[u8]) -> bool {
    Crc32c(u32_at(bytes, 4)) == Crc32c::of(&bytes[8..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn usize_at(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u32_at(bytes, at)).expect("32 bits fit in a length")
}

#[cfg(test)]
mod tests;
