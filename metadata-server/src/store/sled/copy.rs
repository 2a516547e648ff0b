//! The copy of a batch: its changes one after the other, each a key and a value with their lengths.
//!
//! It never leaves the store, whose engine checks its bytes, and a store of another version of the
//! program is read as far as it goes: nothing here is a format that others read.

/// One change: a key, and what it is set to, or that it is removed.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// The copy of these changes; nothing if it would be longer than `max` bytes.
pub(super) fn encode<'a>(changes: impl Iterator<Item = Change<'a>>, max: usize) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    for (key, value) in changes {
        let lens = [len(key)?, value.map_or(Some(REMOVED), len)?];
        copy.extend(lens.iter().flat_map(|len| len.to_le_bytes()));
        copy.extend_from_slice(key);
        copy.extend_from_slice(value.unwrap_or_default());
        if copy.len() > max {
            return None;
        }
    }
    Some(copy)
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
        let copy = encode(changes.into_iter(), 2000).unwrap();
        let decoded: Option<Vec<_>> = decode(&copy).collect();
        assert_eq!(decoded.unwrap(), changes);
        assert_eq!(encode(changes.into_iter(), copy.len() - 1), None);
        assert_eq!(decode(&[]).count(), 0);
        for end in 1..copy.len() {
            let cut: Vec<_> = decode(&copy[..end]).collect();
            let whole = cut.iter().flatten().count();
            assert!(cut.len() <= whole + 1, "a cut ends it");
            assert!(cut.iter().flatten().eq(changes[..whole].iter()));
        }
    }
}
