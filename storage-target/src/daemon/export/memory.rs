//! Memory for uploads.
//!
//! Whoever waits for more than there is has what becomes free before all who come after it. So
//! those of the usual length, and parts that are sent while they are read, have some beside it that
//! nobody else waits for, each link a half of it: a bucket that is away leaves the other half to
//! others, also while a large upload waits.

use std::sync::Arc;

use millrace_types::LinkId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shares::Shares;

/// The usual length of an upload: a chunk of the default size.
pub(super) const USUAL_LEN: u32 = 8 * 1024 * 1024;

/// The largest part or object that is gathered: a chunk of the largest size.
pub(super) const UPLOAD_LEN_MAX: u32 = 64 * 1024 * 1024;

/// Bytes of uploads of any length: one of the largest, or eight of the usual length.
const BYTES_MAX: u32 = UPLOAD_LEN_MAX;

/// Of these, what one link may hold, but for one upload that is larger.
const LINK_BYTES_MAX: u32 = BYTES_MAX - USUAL_LEN;

/// Bytes beside them, of uploads of at most the usual length: one for each of two links.
const BESIDE_BYTES_MAX: u32 = 2 * USUAL_LEN;

/// What all uploads may have.
#[derive(Debug)]
pub(in crate::daemon) struct Memory {
    any: Part,
    beside: Part,
}

/// Some of it.
#[derive(Debug)]
struct Part {
    links: Shares<LinkId>,
    bytes: Arc<Semaphore>,
}

/// Memory for one upload.
#[derive(Debug)]
pub(super) struct Held {
    _share: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Memory {
    pub(super) fn new() -> Self {
        let any = Part::new(BYTES_MAX, LINK_BYTES_MAX);
        Self { any, beside: Part::new(BESIDE_BYTES_MAX, USUAL_LEN) }
    }

    /// Waits for memory for an upload to the bucket of a link, of [`UPLOAD_LEN_MAX`] at most. May
    /// be dropped at its await.
    pub(super) async fn take(&self, link: LinkId, len: u32) -> Held {
        if len > USUAL_LEN {
            return self.any.take(link, len).await;
        }
        tokio::select! {
            biased;
            held = self.any.take(link, len) => held,
            held = self.beside.take(link, len) => held,
        }
    }

    /// Bytes that nobody holds.
    #[cfg(test)]
    pub(in crate::daemon) fn free_bytes(&self) -> usize {
        self.any.bytes.available_permits() + self.beside.bytes.available_permits()
    }
}

impl Part {
    fn new(bytes: u32, each: u32) -> Self {
        Self { links: Shares::new(each), bytes: Arc::new(Semaphore::new(bytes as usize)) }
    }

    async fn take(&self, link: LinkId, len: u32) -> Held {
        // First: who waits for its share must not stand before others that wait for memory.
        let share = self.links.take(link, len).await;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(len).await;
        Held { _share: share, _bytes: bytes.expect("the memory is never closed") }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn take_all(memory: &Memory, link: u32, len: u32) -> Vec<Held> {
        std::iter::from_fn(|| memory.take(LinkId(link), len).now_or_never()).collect()
    }

    #[test]
    fn a_link_has_all_but_one_upload_of_the_usual_length() {
        let memory = Memory::new();
        let usual = take_all(&memory, 1, USUAL_LEN);
        assert_eq!((usual.len(), take_all(&memory, 2, USUAL_LEN).len()), (8, 2));
        drop(usual);
        let largest = take_all(&memory, 1, UPLOAD_LEN_MAX);
        assert_eq!((largest.len(), take_all(&memory, 2, USUAL_LEN).len()), (1, 1));
    }

    #[test]
    fn an_upload_that_waits_for_much_leaves_small_ones_of_others_their_place() {
        for len in [USUAL_LEN, 1 << 20] {
            let memory = Memory::new();
            let stopped = take_all(&memory, 1, len);
            let mut large = Box::pin(memory.take(LinkId(2), 2 * USUAL_LEN));
            assert!(large.as_mut().now_or_never().is_none());
            for _ in 0..100 {
                assert!(memory.take(LinkId(3), USUAL_LEN).now_or_never().is_some());
                assert!(memory.take(LinkId(2), 1).now_or_never().is_some());
            }
            drop(stopped);
            assert!(large.now_or_never().is_some());
        }
    }
}
