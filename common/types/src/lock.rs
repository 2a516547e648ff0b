//! Locks of programs on files: their kinds, their ranges, and what one owner holds of one file.

use std::{collections::BTreeMap, iter};

use rkyv::{Archive, Deserialize, Serialize};

use crate::ErrorKind;

/// What a lock keeps others from.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LockKind {
    /// Others may read along (`F_RDLCK`, `LOCK_SH`).
    Read = 1,
    /// Nobody else may have a lock (`F_WRLCK`, `LOCK_EX`).
    Write = 2,
}

impl LockKind {
    /// Whether two owners cannot have these at the same time.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

/// Bytes that a lock is on, both ends included.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; [`Self::END`] is the end of the file, wherever that is.
    pub last: u64,
}

impl LockRange {
    /// The largest offset of a file, 2^63-1.
    pub const END: u64 = i64::MAX.unsigned_abs();

    /// Every byte.
    pub const WHOLE: Self = Self { start: 0, last: Self::END };

    /// Checks a range that somebody else has made.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it ends before it begins, or behind [`Self::END`].
    pub fn checked(self) -> Result<Self, ErrorKind> {
        let sound = self.start <= self.last && self.last <= Self::END;
        sound.then_some(self).ok_or(ErrorKind::InvalidArgument)
    }

    /// Whether a byte lies in both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// What lies in both, if anything does.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let common = Self { start: self.start.max(other.start), last: self.last.min(other.last) };
        self.overlaps(other).then_some(common)
    }
}

/// What one owner holds of one file: pieces that do not overlap; those that touch are of different
/// kinds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldRanges {
    reads: Pieces,
    writes: Pieces,
}

impl HeldRanges {
    /// Holds `range` as `kind` from now on, or not at all; what lay there before is cut or split.
    pub fn set(&mut self, range: LockRange, kind: Option<LockKind>) {
        self.reads.cut(range);
        self.writes.cut(range);
        match kind {
            None => {}
            Some(LockKind::Read) => self.reads.add(range),
            Some(LockKind::Write) => self.writes.add(range),
        }
    }

    /// The pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = (LockRange, LockKind)> + '_ {
        self.overlapping(LockRange::WHOLE)
    }

    /// The pieces that have a byte of `range`, in order.
    pub fn overlapping(
        &self,
        range: LockRange,
    ) -> impl Iterator<Item = (LockRange, LockKind)> + '_ {
        let reads = self.reads.overlapping(range).map(|piece| (piece, LockKind::Read));
        let writes = self.writes.overlapping(range).map(|piece| (piece, LockKind::Write));
        let (mut reads, mut writes) = (reads.peekable(), writes.peekable());
        iter::from_fn(move || match (reads.peek(), writes.peek()) {
            (Some((read, _)), Some((write, _))) if write.start < read.start => writes.next(),
            (None, _) => writes.next(),
            _ => reads.next(),
        })
    }

    /// The first piece that nobody else may have `kind` of `range` beside. Looks at no others.
    #[must_use]
    pub fn in_the_way(&self, range: LockRange, kind: LockKind) -> Option<(LockRange, LockKind)> {
        let write = self.writes.overlapping(range).next().map(|piece| (piece, LockKind::Write));
        let read = self.reads.overlapping(range).next().filter(|_| kind == LockKind::Write);
        let read = read.map(|piece| (piece, LockKind::Read));
        write.into_iter().chain(read).min_by_key(|(piece, _)| piece.start)
    }

    /// Whether all of `range` is held as `kind` or more.
    #[must_use]
    pub fn covers(&self, range: LockRange, kind: LockKind) -> bool {
        self.within(range).iter().all(|(_, held)| held.is_some_and(|held| held >= kind))
    }

    /// `range` cut where what is held of it changes, with what that is, in order.
    #[must_use]
    pub fn within(&self, range: LockRange) -> Vec<(LockRange, Option<LockKind>)> {
        let mut cut = Vec::new();
        let mut next = range.start;
        for (piece, kind) in self.overlapping(range) {
            let Some(piece) = piece.common(range) else { continue };
            if next < piece.start {
                cut.push((LockRange { start: next, last: piece.start - 1 }, None));
            }
            cut.push((piece, Some(kind)));
            next = piece.last + 1;
        }
        if next <= range.last {
            cut.push((LockRange { start: next, last: range.last }, None));
        }
        cut
    }

    /// Whether `range` lies within one piece that goes on at both sides.
    #[must_use]
    pub fn splits(&self, range: LockRange) -> bool {
        let around = self.overlapping(range).next();
        around.is_some_and(|(piece, _)| piece.start < range.start && range.last < piece.last)
    }

    /// How many pieces there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reads.0.len() + self.writes.0.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Pieces of one kind: the last byte of each by its first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Pieces(BTreeMap<u64, u64>);

impl Pieces {
    /// Leaves nothing of `range`.
    fn cut(&mut self, range: LockRange) {
        let cut: Vec<_> = self.overlapping(range).collect();
        for piece in cut {
            self.0.remove(&piece.start);
            if piece.start < range.start {
                self.0.insert(piece.start, range.start - 1);
            }
            if piece.last > range.last {
                self.0.insert(range.last + 1, piece.last);
            }
        }
    }

    /// Adds `range`, of which there is nothing yet, to what it touches.
    fn add(&mut self, range: LockRange) {
        let LockRange { mut start, mut last } = range;
        if let Some((&before, &end)) = self.0.range(..start).next_back()
            && end + 1 == start
        {
            start = before;
        }
        if let Some(end) = self.0.remove(&(last + 1)) {
            last = end;
        }
        self.0.insert(start, last);
    }

    /// Those that have a byte of `range`, in order.
    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = LockRange> + '_ {
        let before = self.0.range(..range.start).next_back();
        let first = before.filter(|&(_, &last)| last >= range.start).map(|(&start, _)| start);
        let pieces = self.0.range(first.unwrap_or(range.start)..=range.last);
        pieces.map(|(&start, &last)| LockRange { start, last })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// So many bytes that ranges meet often; the last stands for all up to the largest offset.
    const BYTES: usize = 24;

    fn range(start: usize, last: usize) -> LockRange {
        let offset = |byte: usize| if byte == BYTES - 1 { LockRange::END } else { byte as u64 };
        LockRange { start: start as u64, last: offset(last) }
    }

    fn kinds() -> impl Strategy<Value = Option<LockKind>> {
        prop_oneof![Just(None), Just(Some(LockKind::Read)), Just(Some(LockKind::Write))]
    }

    proptest! {
        #[test]
        fn pieces_are_what_a_map_of_bytes_says(
            steps in prop::collection::vec((0..BYTES, 0..BYTES, kinds()), 0..40),
            look in (0..BYTES, 0..BYTES),
        ) {
            let mut held = HeldRanges::default();
            let mut bytes = [None; BYTES];
            for (one, other, kind) in steps {
                let (start, last) = (one.min(other), one.max(other));
                held.set(range(start, last), kind);
                bytes[start..=last].fill(kind);
            }
            let at = |byte: usize| {
                held.iter().find(|(piece, _)| piece.overlaps(range(byte, byte)))
            };
            for (byte, kind) in bytes.iter().enumerate() {
                prop_assert_eq!(at(byte).map(|(_, kind)| kind), *kind, "byte {}", byte);
            }
            let changes = (0..BYTES).filter(|&byte| {
                bytes[byte].is_some() && (byte == 0 || bytes[byte - 1] != bytes[byte])
            });
            prop_assert_eq!(held.len(), changes.count(), "neighbours of one kind are one piece");
            let (start, last) = (look.0.min(look.1), look.0.max(look.1));
            let seen = &bytes[start..=last];
            for kind in [LockKind::Read, LockKind::Write] {
                let covers = seen.iter().all(|held| held.is_some_and(|held| held >= kind));
                prop_assert_eq!(held.covers(range(start, last), kind), covers);
                let free = seen.iter().flatten().all(|held| !held.excludes(kind));
                prop_assert_eq!(held.in_the_way(range(start, last), kind).is_none(), free);
            }
            let mut rebuilt = HeldRanges::default();
            let mut next = range(start, last).start;
            for (piece, kind) in held.within(range(start, last)) {
                prop_assert_eq!(piece.start, next, "nothing is left out");
                next = piece.last.wrapping_add(1);
                rebuilt.set(piece, kind);
            }
            prop_assert_eq!(next, range(start, last).last + 1);
            for (byte, kind) in (start..).zip(seen) {
                let piece = rebuilt.iter().find(|(piece, _)| piece.overlaps(range(byte, byte)));
                prop_assert_eq!(piece.map(|(_, kind)| kind), *kind);
            }
        }
    }

    #[test]
    fn a_range_ends_at_the_largest_offset_and_not_before_it_begins() {
        assert_eq!(LockRange::WHOLE.checked(), Ok(LockRange::WHOLE));
        let behind = LockRange { start: 0, last: LockRange::END + 1 };
        assert_eq!(behind.checked(), Err(ErrorKind::InvalidArgument));
        assert!(LockRange { start: 5, last: 4 }.checked().is_err());
    }
}
