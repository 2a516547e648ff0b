//! Bulk bytes as the list of pieces in which they arrived, so that nobody copies them to join them.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use millrace_types::Crc32c;

/// The raw bytes that follow a message. Cheap to clone.
#[derive(Clone, Default, Debug)]
pub struct Body {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Body {
    /// All bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order; none is empty.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The pieces in order; none is empty.
    #[must_use]
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Appends all pieces of `other`.
    pub fn append(&mut self, other: Self) {
        self.len += other.len;
        self.pieces.extend(other.pieces);
    }

    /// The bytes of `range`, without copying them.
    ///
    /// # Panics
    /// When `range` goes beyond the end, or ends before it begins.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let mut cut = Self::default();
        let mut start = 0;
        for piece in &self.pieces {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                cut.push(piece.slice(from - start..to - start));
            }
            start = end;
        }
        cut
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    /// The bytes in one piece; copies when there are several.
    #[must_use]
    pub fn into_contiguous(mut self) -> Bytes {
        if self.pieces.len() <= 1 {
            return self.pieces.pop().unwrap_or_default();
        }
        let mut joined = BytesMut::with_capacity(self.len);
        for piece in &self.pieces {
            joined.extend_from_slice(piece);
        }
        joined.freeze()
    }

    /// Copies all bytes to the front of `buffer`.
    ///
    /// # Panics
    /// When `buffer` is shorter than the body.
    pub fn copy_to(&self, buffer: &mut [u8]) {
        let mut at = 0;
        for piece in &self.pieces {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }

    /// The checksum of all bytes.
    #[must_use]
    pub fn checksum(&self) -> Crc32c {
        self.pieces.iter().fold(Crc32c::EMPTY, |checksum, piece| checksum.append(piece))
    }
}

impl From<Bytes> for Body {
    fn from(piece: Bytes) -> Self {
        let mut body = Self::default();
        body.push(piece);
        body
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl From<Vec<Bytes>> for Body {
    fn from(pieces: Vec<Bytes>) -> Self {
        pieces.into_iter().collect()
    }
}

impl FromIterator<Bytes> for Body {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut body = Self::default();
        pieces.into_iter().for_each(|piece| body.push(piece));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_in_order_and_empty_ones_vanish() {
        let body = Body::from(vec![
            Bytes::from_static(b"mill"),
            Bytes::new(),
            Bytes::from_static(b"race"),
        ]);
        assert_eq!((body.len(), body.pieces().len()), (8, 2));
        assert_eq!(body.checksum(), Crc32c::of(b"millrace"));
        let mut buffer = [0; 9];
        body.copy_to(&mut buffer);
        assert_eq!(&buffer, b"millrace\0");
        assert_eq!(body.to_vec(), b"millrace");
        assert_eq!(body.into_contiguous(), "millrace");
        assert!(Body::default().into_contiguous().is_empty());
    }

    #[test]
    fn every_slice_has_the_bytes_of_its_range_and_no_empty_piece() {
        let pieces = ["mill", "r", "ace"].map(|piece| Bytes::from_static(piece.as_bytes()));
        let body = Body::from(pieces.to_vec());
        for start in 0..=8 {
            for end in start..=8 {
                let cut = body.slice(start..end);
                assert_eq!(
                    (cut.len(), cut.to_vec()),
                    (end - start, b"millrace"[start..end].into())
                );
                assert!(cut.pieces().iter().all(|piece| !piece.is_empty()));
            }
        }
        let mut twice = body.slice(0..4);
        twice.append(body.slice(4..8));
        assert_eq!(twice.into_contiguous(), "millrace");
    }
}
