//! What lets this mount read files that it has looked up, kept under the leases of their
//! directories: with it a file is opened for reading without asking.
//!
//! Bytes that live in inodes come along and are kept beside that, where it leaves room
//! ([`InlineBytes`]).
//!
//! Owns what is kept, bounded by bytes. Whether it still counts is for
//! [`super::names::Names::stands`] to say, which knows what was taken back.

use std::sync::atomic::{AtomicU32, Ordering};

use millrace_protocol::capability::Signed;
use millrace_types::{InodeId, KeyId};
use quick_cache::{Weighter, sync::Cache};

use super::{inline_bytes::InlineBytes, names::Lease};

/// The capabilities of one mount.
#[derive(Debug)]
pub(crate) struct Contents {
    kept: Cache<InodeId, KeptContent, Weight>,
    /// The bytes of small files that live in their inodes.
    pub(crate) inline: InlineBytes,
    /// What both may take.
    bytes_max: u64,
    /// The newest key of which targets have said that it is retired.
    retired: AtomicU32,
}

/// What lets the session read one file, and what covers it.
#[derive(Clone, Debug)]
pub(crate) struct KeptContent {
    /// What the targets want to see; names the content.
    pub(crate) capability: Signed,
    /// Its bytes live in the inode, and none is at a target.
    pub(crate) is_inline: bool,
    /// The lease.
    pub(crate) lease: Lease,
}

#[derive(Clone, Debug)]
struct Weight;

impl Contents {
    /// Keeps at most about `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let kept = bytes - bytes / INLINE_SHARE;
        let entries = usize::try_from(kept / BYTES_TYPICAL).unwrap_or(usize::MAX).max(1);
        Self {
            kept: Cache::with_weighter(entries, kept, Weight),
            inline: InlineBytes::default(),
            bytes_max: bytes,
            retired: AtomicU32::new(0),
        }
    }

    /// Keeps what lets this mount read a file under the lease on its directory, with its bytes
    /// where they live in the inode. That of a file with a lease of its own is not kept: it may
    /// have names that are not known here.
    pub(crate) fn keep(
        &self,
        inode: InodeId,
        capability: Signed,
        inline: Option<Vec<u8>>,
        lease: Lease,
    ) {
        if lease.key() == inode {
            return;
        }
        let is_inline = inline.is_some();
        if let Some(bytes) = inline {
            self.inline.keep(inode, &capability, bytes);
        }
        self.kept.insert(inode, KeptContent { capability, is_inline, lease });
        self.inline.fit(self.bytes_max.saturating_sub(self.kept.weight()));
    }

    /// What is kept of a file.
    pub(crate) fn find(&self, inode: InodeId) -> Option<KeptContent> {
        let kept = self.kept.get(&inode)?;
        (kept.capability.key.0 > self.retired.load(Ordering::Relaxed)).then_some(kept)
    }

    /// Targets accept nothing any more that was signed with this key, or one before it.
    pub(crate) fn handle_retired(&self, key: KeyId) {
        self.retired.fetch_max(key.0, Ordering::Relaxed);
    }
}

impl Weighter<InodeId, KeptContent> for Weight {
    fn weight(&self, _: &InodeId, content: &KeptContent) -> u64 {
        ENTRY_BYTES + content.capability.body.len() as u64
    }
}

/// At least an eighth is left for bytes of small files: some pages of them, for walks that are
/// under way.
const INLINE_SHARE: u64 = 8;

/// What an entry costs beside the bytes of its capability: the map, the queue of the cache, two
/// allocations and the entry itself.
const ENTRY_BYTES: u64 = 128 + size_of::<KeptContent>() as u64;

/// Of a file that was imported under a key of 60 bytes.
const BYTES_TYPICAL: u64 = 512;

#[cfg(test)]
mod tests {
    use crate::cache::names::Names;

    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    fn keep(contents: &Contents, inode: u64, key: u32, inline: Option<&[u8]>, lease: InodeId) {
        let lease = Lease::of(lease, Names::new(1 << 20, false).note());
        contents.keep(InodeId(inode), capability(key), inline.map(<[u8]>::to_vec), lease);
    }

    fn capability(key: u32) -> Signed {
        let mac = [u8::try_from(key).unwrap(); 32];
        Signed { key: KeyId(key), body: vec![0; 300], mac }
    }

    #[test]
    fn what_a_retired_key_has_signed_is_not_kept() {
        let contents = Contents::new(1 << 20);
        keep(&contents, 8, 3, None, DIRECTORY);
        keep(&contents, 9, 4, None, DIRECTORY);
        assert!(contents.find(InodeId(8)).is_some());
        contents.handle_retired(KeyId(3));
        contents.handle_retired(KeyId(2));
        assert!(contents.find(InodeId(8)).is_none());
        assert!(contents.find(InodeId(9)).is_some());
        keep(&contents, 8, 4, None, DIRECTORY);
        assert!(contents.find(InodeId(8)).is_some(), "signed again");
    }

    #[test]
    fn a_file_with_a_lease_of_its_own_is_asked_for_each_time() {
        let contents = Contents::new(1 << 20);
        keep(&contents, 8, 3, None, InodeId(8));
        assert!(contents.find(InodeId(8)).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_by_bytes() {
        let contents = Contents::new(100_000);
        for inode in 0..10_000 {
            keep(&contents, 100 + inode, 3, Some(&[7; 1000]), DIRECTORY);
        }
        assert!(contents.kept.weight() <= 100_000 - 100_000 / INLINE_SHARE);
        assert!(contents.kept.len() > 100);
    }

    #[test]
    fn bytes_have_the_room_that_what_opens_files_leaves_and_an_eighth_in_any_case() {
        let contents = Contents::new(8 << 20);
        let with_bytes = || {
            let bytes = |&inode: &u64| contents.inline.find(InodeId(inode), &capability(3));
            (100..1_100).filter(|inode| bytes(inode).is_some()).count()
        };
        for inode in 100..1_100 {
            keep(&contents, inode, 3, Some(&[7; 4096]), DIRECTORY);
        }
        assert_eq!(with_bytes(), 1_000);
        for inode in 1_100..20_000 {
            keep(&contents, inode, 3, None, DIRECTORY);
        }
        let left = with_bytes();
        assert!((200..256).contains(&left), "{left} of a mebibyte");
        let opens = (100..20_000).filter(|inode| contents.find(InodeId(*inode)).is_some()).count();
        assert!(opens > 10_000, "{opens}");
    }

    #[test]
    fn what_went_to_the_targets_is_known_to_be_there() {
        let contents = Contents::new(1 << 20);
        keep(&contents, 8, 3, Some(b"small"), DIRECTORY);
        assert!(contents.find(InodeId(8)).unwrap().is_inline);
        keep(&contents, 8, 4, None, DIRECTORY);
        let kept = contents.find(InodeId(8)).unwrap();
        assert!(!kept.is_inline);
        assert_eq!(contents.inline.find(InodeId(8), &kept.capability), None);
    }
}
