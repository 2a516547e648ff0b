//! Cuts what is to be fetched into requests: each at most one transfer, within one chunk.

use std::ops::Range;

use millrace_protocol::storage::TRANSFER_LEN_MAX;

/// The requests that cover `range` of a file with chunks of `chunk_size` bytes, in order.
///
/// Requests end at every chunk's end and at whole transfers counted from `phase`. With the phase of
/// the reader (its position modulo one transfer) a request is then exactly what the kernel asks for
/// later, and is answered without being copied together from two.
pub(crate) fn requests(
    range: Range<u64>,
    phase: u64,
    chunk_size: u64,
) -> impl Iterator<Item = Range<u64>> {
    assert!(chunk_size > 0, "a checked layout has chunks");
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let start = at;
        let transfer = u64::from(TRANSFER_LEN_MAX);
        let into = (start + transfer - phase % transfer) % transfer;
        at = (start + transfer - into).min((start / chunk_size + 1) * chunk_size).min(range.end);
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use millrace_types::{KIB, MIB};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_follow_the_readers_phase_and_the_chunks() {
        let half = 512 * KIB;
        let cut: Vec<_> = requests(half..9 * MIB, half, 8 * MIB).collect();
        assert_eq!(cut[0], half..half + MIB);
        assert_eq!(cut[7], 7 * MIB + half..8 * MIB, "a chunk's end always cuts");
        assert_eq!(cut[8], 8 * MIB..8 * MIB + half, "and the phase is kept behind it");
        assert_eq!(cut[9], 8 * MIB + half..9 * MIB);
    }

    proptest! {
        #[test]
        fn requests_cover_the_range_once_in_order_and_within_the_limits(
            start in 0_u64..1 << 40, len in 0_u64..64 * MIB, phase in 0_u64..1 << 40,
            chunk_bits in 16_u32..=26,
        ) {
            let chunk = 1_u64 << chunk_bits;
            let mut at = start;
            for request in requests(start..start + len, phase, chunk) {
                prop_assert_eq!(request.start, at);
                let length = request.end - request.start;
                prop_assert!(length > 0 && length <= u64::from(TRANSFER_LEN_MAX));
                prop_assert_eq!(request.start / chunk, (request.end - 1) / chunk);
                at = request.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }
}
