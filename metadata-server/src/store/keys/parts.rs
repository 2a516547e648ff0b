//! What keys say that were read.

use millrace_types::{LinkId, PoolId};

/// The bytes of `key` behind `prefix`; empty when it is another one.
#[must_use]
pub fn after<'a>(key: &'a [u8], prefix: &[u8]) -> &'a [u8] {
    key.strip_prefix(prefix).unwrap_or_default()
}

/// The number at `offset` of a key; `None` in a key that is too short.
#[must_use]
pub fn number_at(key: &[u8], offset: usize) -> Option<u64> {
    let bytes = key.get(offset..offset.checked_add(8)?)?;
    bytes.try_into().ok().map(u64::from_be_bytes)
}

/// The link of a key of [`link`](super::link()); `None` in a key that is too short.
#[must_use]
pub fn link_of(key: &[u8]) -> Option<LinkId> {
    Some(LinkId(u32::from_be_bytes(key.get(1..5)?.try_into().ok()?)))
}

/// The pool of a key of [`pool`](super::pool()) or [`group`](super::group()); `None` in a key that
/// is too short.
#[must_use]
pub fn pool_of(key: &[u8]) -> Option<PoolId> {
    Some(PoolId(u16::from_be_bytes(key.get(1..3)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use millrace_types::InodeId;

    use super::{
        super::{cookie, entries, entry, inode},
        *,
    };

    #[test]
    fn keys_order_as_their_numbers_do() {
        assert!(inode(InodeId(255)) < inode(InodeId(256)));
        assert!(cookie(InodeId(1), u64::MAX) < cookie(InodeId(2), 0));
        assert!(entry(InodeId(7), b"\xff\xff").starts_with(&entries(InodeId(7))));
        assert_eq!(number_at(&cookie(InodeId(3), 9), 9), Some(9));
        assert_eq!(number_at(b"C", 1), None);
    }
}
