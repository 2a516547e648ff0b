//! What lets this mount read files that it has looked up, kept under the leases of their
//! directories: with it a file is opened for reading without asking.
//!
//! Owns what is kept, bounded by bytes. Whether it still counts is for
//! [`super::names::Names::stands`] to say, which knows what was taken back.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use millrace_protocol::capability::Signed;
use millrace_types::{InodeId, KeyId};
use quick_cache::{Weighter, sync::Cache};

use super::names::Lease;

/// The capabilities of one mount.
#[derive(Debug)]
pub(crate) struct Contents {
    kept: Cache<InodeId, KeptContent, Weight>,
    /// The newest key of which targets have said that it is retired.
    retired: AtomicU32,
}

/// What lets the session read one file, and what covers it.
#[derive(Clone, Debug)]
pub(crate) struct KeptContent {
    /// What the targets want to see; names the content.
    pub(crate) capability: Signed,
    /// The bytes, where they live in the inode.
    pub(crate) inline: Option<Arc<[u8]>>,
    /// The lease.
    pub(crate) lease: Lease,
}

#[derive(Clone, Debug)]
struct Weight;

impl Contents {
    /// Keeps at most about `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / BYTES_TYPICAL).unwrap_or(usize::MAX).max(1);
        let kept = Cache::with_weighter(entries, bytes, Weight);
        Self { kept, retired: AtomicU32::new(0) }
    }

    /// Keeps what lets this mount read a file under the lease on its directory. That of a file with
    /// a lease of its own is not kept: it may have names that are not known here.
    pub(crate) fn keep(&self, inode: InodeId, content: KeptContent) {
        if content.lease.key() != inode {
            self.kept.insert(inode, content);
        }
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
        let inline = content.inline.as_ref().map_or(0, |bytes| bytes.len());
        ENTRY_BYTES + (content.capability.body.len() + inline) as u64
    }
}

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

    fn content(key: u32, lease: InodeId) -> KeptContent {
        let capability = Signed { key: KeyId(key), body: vec![0; 300], mac: [0; 32] };
        let lease = Lease::of(lease, Names::new(1 << 20, false).note());
        KeptContent { capability, inline: None, lease }
    }

    #[test]
    fn what_a_retired_key_has_signed_is_not_kept() {
        let contents = Contents::new(1 << 20);
        contents.keep(InodeId(8), content(3, DIRECTORY));
        contents.keep(InodeId(9), content(4, DIRECTORY));
        assert!(contents.find(InodeId(8)).is_some());
        contents.handle_retired(KeyId(3));
        contents.handle_retired(KeyId(2));
        assert!(contents.find(InodeId(8)).is_none());
        assert!(contents.find(InodeId(9)).is_some());
        contents.keep(InodeId(8), content(4, DIRECTORY));
        assert!(contents.find(InodeId(8)).is_some(), "signed again");
    }

    #[test]
    fn a_file_with_a_lease_of_its_own_is_asked_for_each_time() {
        let contents = Contents::new(1 << 20);
        contents.keep(InodeId(8), content(3, InodeId(8)));
        assert!(contents.find(InodeId(8)).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_by_bytes() {
        let contents = Contents::new(100_000);
        for inode in 0..10_000 {
            contents.keep(InodeId(100 + inode), content(3, DIRECTORY));
        }
        assert!(contents.kept.weight() <= 100_000);
        assert!(contents.kept.len() > 100);
    }
}
