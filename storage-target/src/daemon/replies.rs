//! Bytes that were read, until their reader has them: buffers of the pool, which a reader that does
//! not take its answers keeps for as long as the network lets it.
//!
//! A session has a half of the pool at a time, and another third for reads with which the reader
//! goes on sequentially; beyond that its reads wait before they take any buffer. By default that is
//! 75 reads of 1 MiB and 50. A mount has 64 in flight, and 48 that nobody waits for yet, to all
//! targets together: so neither kind stands before the other, whatever it waits for.
//!
//! A read of a disk that hangs, which its reader has given up, counts for as long as the disk has
//! its buffer: who asks again and again takes no more than its share. What all of them together may
//! wait for at one disk is bounded where the buffers come from.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millrace_types::SessionId;

use crate::{
    disk::{ALIGNMENT, BufferPool, Charge},
    shares::Shares,
};

/// The answers of a daemon that are on their way.
#[derive(Debug)]
pub(super) struct Replies {
    /// In pages.
    random: Shares<SessionId>,
    sequential: Shares<SessionId>,
}

/// The right to one answer.
#[derive(Debug)]
pub(super) struct ReplyRoom {
    share: Charge,
}

impl Replies {
    /// For answers out of a pool with so many bytes.
    pub(super) fn new(pool_bytes: usize) -> Self {
        let part = |count| {
            let pages = u32::try_from(pool_bytes / count / ALIGNMENT).unwrap_or(u32::MAX >> 4);
            Shares::new(pages)
        };
        Self { random: part(2), sequential: part(3) }
    }

    /// Waits until a session may have these bytes of a chunk, 1 MiB at most. May be dropped at its
    /// await.
    pub(super) async fn room(
        &self,
        session: SessionId,
        range: &Range<u32>,
        sequential: bool,
    ) -> ReplyRoom {
        let (start, end) = (range.start as usize, range.end as usize);
        let len = end.next_multiple_of(ALIGNMENT) - start / ALIGNMENT * ALIGNMENT;
        let pages = u32::try_from(BufferPool::size_for(len) / ALIGNMENT).expect("one buffer");
        let shares = if sequential { &self.sequential } else { &self.random };
        ReplyRoom { share: Arc::new(shares.take(session, pages).await) }
    }
}

impl ReplyRoom {
    /// What buffers count against that a disk has for the answer.
    pub(super) fn charge(&self) -> &Charge {
        &self.share
    }

    /// Counts until nobody has any of the bytes.
    pub(super) fn hold(self, body: Vec<Bytes>) -> Vec<Bytes> {
        let held = |bytes| Bytes::from_owner(Held { bytes, _share: Arc::clone(&self.share) });
        body.into_iter().map(held).collect()
    }
}

struct Held {
    bytes: Bytes,
    _share: Charge,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::disk::buffer::BUFFER_SIZE_MAX;

    const MIB: u32 = 1 << 20;

    #[test]
    fn answers_count_until_the_last_of_their_bytes_is_gone() {
        let replies = Replies::new(8 * BUFFER_SIZE_MAX);
        let room = |session, range| replies.room(SessionId(session), &range, false).now_or_never();
        let mut held: Vec<_> = std::iter::from_fn(|| room(1, 0..MIB)).collect();
        assert_eq!(held.len(), 4, "half of the pool");
        assert!(room(1, 5..6).is_none());
        assert!(room(2, 5..MIB + 5).is_some(), "another session");
        let body = held.pop().unwrap().hold(vec![Bytes::from_static(b"mill"), Bytes::new()]);
        assert_eq!(body.concat(), b"mill");
        let part = body[0].slice(1..2);
        drop(body);
        assert!(room(1, 0..MIB).is_none(), "a part is still on its way");
        drop(part);
        assert!(room(1, 0..MIB).is_some());
    }

    #[test]
    fn by_default_all_that_a_mount_sends_has_room_and_each_kind_its_own() {
        let replies = Replies::new(160 << 20);
        let of = |sequential| {
            let room = || replies.room(SessionId(1), &(5..MIB + 5), sequential).now_or_never();
            std::iter::from_fn(room).collect::<Vec<_>>()
        };
        let ahead = of(true);
        assert_eq!(ahead.len(), 50, "a mount has 48");
        let others = of(false);
        assert_eq!(others.len(), 75, "a mount has 64");
        drop(others);
        assert!(of(true).is_empty());
        drop(ahead);
        assert_eq!(of(true).len(), 50);
    }
}
