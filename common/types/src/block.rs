//! Blocks: the unit in which a target knows where a chunk's bytes come from.

use rkyv::{Archive, Deserialize, Serialize};

use crate::units::KIB;

/// Bytes of one block. Presence, origin and state are kept per block; checksums per 4 KiB page.
pub const BLOCK_SIZE: u64 = 64 * KIB;

/// Where the bytes of one block come from.
///
/// ```text
///            fill (only when still absent)
///   Absent ───────────────────────────────▶ Clean ──┐ release
///     ▲ │                                     │     │
///     │ └──────────── write ──▶ Written ◀─────┤◀────┘ (back to Absent)
///     │                           │  ▲        │
///     └── (never from here)       ▼  │ write  │ punch
///                                Zero ◀───────┘
/// ```
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum BlockState {
    /// Nothing is stored. Backed by the bucket, a hole, or lost: the capability tells which.
    #[default]
    Absent = 0,
    /// The bucket's bytes at the recorded tag; may be dropped and fetched again.
    Clean = 1,
    /// Bytes that somebody wrote; the only copy until they are exported.
    Written = 2,
    /// Zeros that somebody asked for (punch hole, truncate up); nothing is stored.
    Zero = 3,
}

impl BlockState {
    /// Reads the byte that [`Self`] is stored as.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Absent),
            1 => Some(Self::Clean),
            2 => Some(Self::Written),
            3 => Some(Self::Zero),
            _ => None,
        }
    }

    /// Whether bytes of this block lie on the disk.
    #[must_use]
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Clean | Self::Written)
    }
}
