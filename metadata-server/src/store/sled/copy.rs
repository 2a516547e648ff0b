//! The copy of a batch: its changes one after the other, each a key and a value with their lengths,
//! cut into pieces. Each piece begins with the number of the batch and how many there are of it.
//!
//! It never leaves the store, whose engine checks its bytes, and a store of another version of the
//! program is read as far as it goes: nothing here is a format that others read.

/// One change: a key, and what it is set to, or that it is removed.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// The copy of these changes; nothing if one of them has 4 GiB or more.
pub(super) fn encode<'a>(changes: impl Iterator<Item = Change<'a>>) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    for (key, value) in changes {
        let lens = [len(key)?, value.map_or(Some(REMOVED), len)?];
        copy.extend(lens.iter().flat_map(|len| len.to_le_bytes()));
        copy.extend_from_slice(key);
        copy.extend_from_slice(value.unwrap_or_default());
    }
    Some(copy)
}

/// What a piece begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The number of the batch.
    pub(super) number: u64,
    /// How many pieces it has.
    pub(super) pieces: u32,
}

impl Head {
    /// The piece with these bytes.
    pub(super) fn with(self, bytes: &[u8]) -> Vec<u8> {
        [&self.number.to_le_bytes()[..], &self.pieces.to_le_bytes(), bytes].concat()
    }

    /// The head and the bytes of a piece, unless it is damaged.
    pub(super) fn split(piece: &[u8]) -> Option<(Self, &[u8])> {
        let (&number, bytes) = piece.split_first_chunk()?;
        let (&pieces, bytes) = bytes.split_first_chunk()?;
        let (number, pieces) = (u64::from_le_bytes(number), u32::from_le_bytes(pieces));
        Some((Self { number, pieces }, bytes))
    }
}

/// The changes of a copy; `None` where it is cut off, which ends them.
pub(super) fn decode(copy: &[u8]) -> impl Iterator<Item = Option<Change<'_>>> {
    let mut rest = Some(copy);
    std::iter::from_fn(move || {
        let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
        let taken = take(bytes);
        rest = taken.map(|(_, rest)| rest);
        Some(taken.map(|(change, _)| change))
    })
}

fn take(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let (&key, bytes) = bytes.split_first_chunk()?;
    let (&value, bytes) = bytes.split_first_chunk()?;
    let (key, bytes) = bytes.split_at_checked(usize::try_from(u32::from_le_bytes(key)).ok()?)?;
    match u32::from_le_bytes(value) {
        REMOVED => Some(((key, None), bytes)),
        len => {
            let (value, bytes) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
            Some(((key, Some(value)), bytes))
        }
    }
}

fn len(bytes: &[u8]) -> Option<u32> {
    u32::try_from(bytes.len()).ok().filter(|len| *len != REMOVED)
}

/// In the place of a length: the key is removed.
const REMOVED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_changes_of_the_batch() {
        let changes: [Change<'_>; 4] = [
            (b"a", Some(b"1")),
            (b"", Some(b"")),
            (b"gone", None),
            (&[0xff; 300], Some(&[0; 999])),
        ];
        let copy = encode(changes.into_iter()).unwrap();
        let decoded: Option<Vec<_>> = decode(&copy).collect();
        assert_eq!(decoded.unwrap(), changes);
        assert_eq!(decode(&[]).count(), 0);
        for end in 1..copy.len() {
            let cut: Vec<_> = decode(&copy[..end]).collect();
            let whole = cut.iter().flatten().count();
            assert!(cut.len() <= whole + 1, "a cut ends it");
            assert!(cut.iter().flatten().eq(changes[..whole].iter()));
        }
    }

    #[test]
    fn a_piece_is_its_head_and_its_bytes() {
        let head = Head { number: 7, pieces: 3 };
        assert_eq!(Head::split(&head.with(b"bytes")), Some((head, &b"bytes"[..])));
        assert_eq!(Head::split(&head.with(b"")), Some((head, &b""[..])));
        assert_eq!(Head::split(&head.with(b"")[..11]), None);
    }
}
