//! Telling rot from a write that was cut off: a crc32c finds *which* bit was flipped, if it was
//! only one. A torn write practically never looks like that.

use std::fmt;

use millrace_types::Crc32c;

/// The reversed polynomial of crc32c.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The one bit that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flipped {
    /// A bit of the bytes, counted from the first byte's lowest.
    Bit(usize),
    /// A bit of the checksum.
    Checksum(u32),
}

/// Which bit of `bytes`, or of `expected`, makes the two match when it is flipped.
pub(super) fn flipped(bytes: &[u8], expected: Crc32c) -> Option<Flipped> {
    let difference = Crc32c::of(bytes).0 ^ expected.0;
    if difference.count_ones() == 1 {
        return Some(Flipped::Checksum(difference.trailing_zeros()));
    }
    // What the last bit changes in the checksum, and then each bit before it: the checksum is
    // linear, so nothing else of the bytes matters.
    let mut change = POLYNOMIAL;
    for from_end in 0..bytes.len() * 8 {
        if change == difference {
            let (byte, bit) = (bytes.len() - 1 - from_end / 8, 7 - from_end % 8);
            return Some(Flipped::Bit(byte * 8 + bit));
        }
        change = (change >> 1) ^ if change & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    None
}

impl fmt::Display for Flipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bit(at) => write!(f, "bit {} of byte {} is flipped", at % 8, at / 8),
            Self::Checksum(bit) => write!(f, "bit {bit} of the checksum is flipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_bit_is_found_and_two_are_not() {
        let bytes: Vec<u8> = (0..200_u8).map(|at| at.wrapping_mul(77)).collect();
        let right = Crc32c::of(&bytes);
        assert_eq!(flipped(&bytes, right), None);
        for at in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[at / 8] ^= 1 << (at % 8);
            assert_eq!(flipped(&bad, right), Some(Flipped::Bit(at)));
            bad[(at / 8 + 3) % 200] ^= 1;
            assert_eq!(flipped(&bad, right), None);
        }
        assert_eq!(flipped(&bytes, Crc32c(right.0 ^ 8)), Some(Flipped::Checksum(3)));
        assert_eq!(Flipped::Bit(77).to_string(), "bit 5 of byte 9 is flipped");
    }
}
