//! The bytes of one record of the command log.
//!
//! | offset | bytes | field           | meaning                                                |
//! |-------:|------:|-----------------|--------------------------------------------------------|
//! |      0 |     4 | magic           | `MRLR`: where a search for later records stops         |
//! |      4 |     4 | header checksum | of bytes 8..40: the header is trusted first            |
//! |      8 |     8 | index           | position in the log, from 1, dense                     |
//! |     16 |     8 | synced index    | what was synced when this record was written           |
//! |     24 |     4 | body length     | bytes, at most [`BODY_LEN_MAX`]                        |
//! |     28 |     4 | body checksum   | of the body                                            |
//! |     32 |     2 | version         | [`VERSION`]                                            |
//! |     34 |     6 | zero            | reserved                                               |
//! |     40 |     n | body            | an encoded command                                     |
//!
//! All numbers are little-endian. Checksums are crc32c that begin with the [`Secret`] of the
//! segment. The synced index tells a torn tail from damage: a bad record is a torn tail unless a
//! later good record says that it had been synced.

use millrace_types::{Crc32c, LogIndex};

use super::secret::Secret;

/// Bytes in front of the body.
pub const HEADER_LEN: usize = 40;

/// The largest body: a batch of imported entries is the largest command and stays far below.
pub const BODY_LEN_MAX: usize = 4 << 20;

/// The only version there is.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"MRLR";

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Position in the log.
    pub index: LogIndex,
    /// What was synced when the record was written.
    pub synced: LogIndex,
    /// Bytes of the body.
    pub body_len: usize,
    /// Checksum of the body.
    pub body_checksum: Crc32c,
}

/// The bytes of a whole record.
///
/// # Panics
/// When the body is larger than [`BODY_LEN_MAX`], which the writer has checked.
#[must_use]
pub fn encode(index: LogIndex, synced: LogIndex, body: &[u8], secret: Secret) -> Vec<u8> {
    assert!(body.len() <= BODY_LEN_MAX, "the writer bounds a body");
    let body_len = u32::try_from(body.len()).expect("4 MiB fit in 32 bits");
    let mut bytes = vec![0; HEADER_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&index.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&synced.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&body_len.to_le_bytes());
    bytes[28..32].copy_from_slice(&secret.of_body(body).0.to_le_bytes());
    bytes[32..34].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = secret.of_header(&bytes[8..HEADER_LEN]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Reads the record at the start of `bytes`, with its body.
///
/// # Errors
/// [`Flaw`] when there is no whole, undamaged record of this version.
pub fn decode(bytes: &[u8], secret: Secret) -> Result<(Header, &[u8]), Flaw> {
    let header = decode_header(bytes, secret)?;
    Ok((header, body(bytes, &header, secret)?))
}

/// Bytes of the record at the start of `bytes`, if its header is undamaged; of the body, any part
/// may be missing.
#[must_use]
pub fn len(bytes: &[u8], secret: Secret) -> Option<usize> {
    decode_header(bytes, secret).ok().map(|header| HEADER_LEN + header.body_len)
}

/// Where the next undamaged record begins in `bytes`, and its header, of those which `is_possible`
/// takes for one that can be so far in them.
#[must_use]
pub fn find(
    bytes: &[u8],
    secret: Secret,
    is_possible: impl Fn(usize, &Header) -> bool,
) -> Option<(usize, Header)> {
    let starts = bytes.windows(MAGIC.len()).enumerate();
    starts.filter(|(_, window)| *window == MAGIC).find_map(|(at, _)| {
        let header = decode_header(&bytes[at..], secret).ok()?;
        let found = is_possible(at, &header) && body(&bytes[at..], &header, secret).is_ok();
        found.then_some((at, header))
    })
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// They end too early.
    #[error("the record is cut short")]
    Short,
    /// The header does not match its checksum.
    #[error("no record header, or one that does not match its checksum")]
    Header,
    /// A later program wrote it.
    #[error("the record has format version {0}, which this program does not know")]
    Version(u16),
    /// The body does not match its checksum.
    #[error("the record does not match its checksum")]
    Body,
}

fn decode_header(bytes: &[u8], secret: Secret) -> Result<Header, Flaw> {
    let header: &[u8; HEADER_LEN] =
        bytes.get(..HEADER_LEN).and_then(|bytes| bytes.try_into().ok()).ok_or(Flaw::Short)?;
    let checksum = Crc32c(u32_at(header, 4));
    if header[..4] != MAGIC || checksum != secret.of_header(&header[8..]) {
        return Err(Flaw::Header);
    }
    let version = u16::from_le_bytes([header[32], header[33]]);
    if version != VERSION {
        return Err(Flaw::Version(version));
    }
    let body_len = usize::try_from(u32_at(header, 24)).map_err(|_| Flaw::Header)?;
    if body_len > BODY_LEN_MAX {
        return Err(Flaw::Header);
    }
    Ok(Header {
        index: LogIndex(u64_at(header, 8)),
        synced: LogIndex(u64_at(header, 16)),
        body_len,
        body_checksum: Crc32c(u32_at(header, 28)),
    })
}

/// The body of the record at the start of `bytes`.
fn body<'a>(bytes: &'a [u8], header: &Header, secret: Secret) -> Result<&'a [u8], Flaw> {
    let end = HEADER_LEN + header.body_len;
    let body = bytes.get(HEADER_LEN..end).ok_or(Flaw::Short)?;
    if secret.of_body(body) == header.body_checksum { Ok(body) } else { Err(Flaw::Body) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes 1 to 8.
    const SECRET: u64 = 0x0807_0605_0403_0201;

    fn secret() -> Secret {
        Secret::from_bytes(SECRET.to_le_bytes())
    }

    #[test]
    fn a_record_reads_back_and_has_these_bytes_for_ever() {
        for (secret, golden) in [(Secret::NONE, GOLDEN_PLAIN), (secret(), GOLDEN)] {
            let bytes = encode(LogIndex(7), LogIndex(5), b"command", secret);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            let (header, body) = decode(&bytes, secret).unwrap();
            assert_eq!((header.index, header.synced), (LogIndex(7), LogIndex(5)));
            assert_eq!(body, b"command");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = encode(LogIndex(1), LogIndex(0), b"some command", secret());
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at], secret()).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad, secret()).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_record_without_the_secret_is_none_even_where_one_half_of_it_was_guessed() {
        let mut halves = secret().to_bytes();
        halves[4..].fill(0);
        let half = Secret::from_bytes(halves);
        for (other, flaw) in [(Secret::NONE, Flaw::Header), (half, Flaw::Body)] {
            for body in [&b""[..], b"command"] {
                let bytes = encode(LogIndex(7), LogIndex(5), body, other);
                assert_eq!(decode(&bytes, secret()), Err(flaw));
            }
        }
    }

    #[test]
    fn the_search_finds_the_next_whole_record_that_is_possible() {
        let mut bytes = b"garbage MRLR garbage".to_vec();
        bytes.extend(encode(LogIndex(8), LogIndex(7), b"impossible", secret()));
        let start = bytes.len();
        bytes.extend(encode(LogIndex(9), LogIndex(8), b"body", secret()));
        let is_ninth = |at: usize, header: &Header| at <= start && header.index == LogIndex(9);
        let (at, header) = find(&bytes, secret(), is_ninth).unwrap();
        assert_eq!((at, header.index), (start, LogIndex(9)));
        assert!(find(&bytes[..start + 20], secret(), is_ninth).is_none());
        assert_eq!(len(&bytes[start..start + HEADER_LEN], secret()), Some(HEADER_LEN + 4));
        assert_eq!(len(&bytes, secret()), None);
    }

    /// In a segment of version 1.
    const GOLDEN_PLAIN: &str = concat!(
        "4d524c522ce9e0510700000000000000050000000000000007000000d1de79650100000000000000",
        "636f6d6d616e64",
    );
    const GOLDEN: &str = concat!(
        "4d524c52495e51140700000000000000050000000000000007000000decdd19f0100000000000000",
        "636f6d6d616e64",
    );
}
