//! Memory that requests are read into, and that can be handed over.
//!
//! The data of a WRITE begins on a page, so that it can be written with O_DIRECT as it lies. Who
//! wants to keep it takes the whole buffer ([`Payload::into_owned`]), and the reading thread goes
//! on with another: 1 MiB is not copied for being answered later.

use std::{
    fmt, mem,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use super::Origin;
use crate::protocol::{data::Write, header::RequestHeader};

/// Room for one request.
pub struct Buffer {
    memory: Box<[u8]>,
    /// Where requests begin.
    start: usize,
    /// Bytes of the request that is in it.
    len: usize,
}

impl Buffer {
    /// Room for requests of at most `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        // Zeroed by the kernel when it is first touched, and not here.
        let memory = vec![0; capacity + PAGE].into_boxed_slice();
        let aligned = memory.as_ptr().align_offset(PAGE);
        // The data lies WRITE_HEAD behind the start; `usize::MAX` means that nothing is known.
        let start = if aligned < PAGE { (aligned + PAGE - WRITE_HEAD) % PAGE } else { 0 };
        Self { memory, start, len: 0 }
    }

    /// Where to read a request to.
    pub fn room(&mut self) -> &mut [u8] {
        let capacity = self.memory.len() - PAGE;
        &mut self.memory[self.start..][..capacity]
    }

    /// Says how many bytes were read; no more than there is room for.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.memory.len() - PAGE);
    }

    /// The request.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.memory.len() - PAGE;
        f.debug_struct("Buffer").field("capacity", &capacity).field("len", &self.len).finish()
    }
}

/// Where buffers come from. Those that come back are used again, up to a number.
#[derive(Debug)]
pub struct Pool {
    capacity: usize,
    spare_max: usize,
    spare: Mutex<Vec<Buffer>>,
}

impl Pool {
    /// Buffers of `capacity` bytes, of which `spare_max` are kept while nobody uses them.
    #[must_use]
    pub fn new(capacity: usize, spare_max: usize) -> Arc<Self> {
        Arc::new(Self { capacity, spare_max, spare: Mutex::new(Vec::new()) })
    }

    /// A buffer, used before or new.
    #[must_use]
    pub fn take(&self) -> Buffer {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Buffer::new(self.capacity))
    }

    /// Gives a buffer back.
    pub fn give_back(&self, buffer: Buffer) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < self.spare_max {
            spare.push(buffer);
        }
    }
}

/// The end of a request, in memory that the channel needs for others.
pub trait Lent: fmt::Debug {
    /// What is there.
    fn bytes(&self) -> &[u8];

    /// Gives it away with its memory, in exchange for other memory. `None` where copying is
    /// cheaper, or there is none to exchange it for.
    fn give_away(&mut self) -> Option<Box<dyn GivenAway>>;
}

/// Data in memory that a channel has given away, and gets back when it is dropped.
pub trait GivenAway: Send + Sync + fmt::Debug {
    /// The data.
    fn bytes(&self) -> &[u8];
}

/// A request where it was read to: in a buffer, and of a large one the data maybe where the channel
/// has it.
#[derive(Debug)]
pub struct Incoming<'reader> {
    /// Where its answer goes.
    pub origin: Origin,
    buffer: &'reader mut Buffer,
    /// The end of the request, if it is not in the buffer.
    lent: Option<&'reader mut dyn Lent>,
    pool: &'reader Arc<Pool>,
}

impl<'reader> Incoming<'reader> {
    /// The request in `buffer`, which came from `pool`, and in `lent` behind that.
    #[must_use]
    pub fn new(
        origin: Origin,
        buffer: &'reader mut Buffer,
        lent: Option<&'reader mut dyn Lent>,
        pool: &'reader Arc<Pool>,
    ) -> Self {
        Self { origin, buffer, lent, pool }
    }

    /// Its bytes.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 2] {
        [self.buffer.as_bytes(), self.lent.as_ref().map_or(&[], |lent| lent.bytes())]
    }

    /// Its last `len` bytes, all in one of the parts.
    #[must_use]
    pub fn into_payload(self, len: usize) -> Payload<'reader> {
        Payload { incoming: self, len }
    }
}

/// The data of a WRITE, where it was read to.
#[derive(Debug)]
pub struct Payload<'reader> {
    incoming: Incoming<'reader>,
    len: usize,
}

impl Payload<'_> {
    /// The same, to be kept for as long as is needed. What is small is copied; otherwise the
    /// reading thread gets other memory.
    #[must_use]
    pub fn into_owned(self) -> OwnedPayload {
        if self.len <= COPIED_MAX {
            return OwnedPayload(Kept::Copied(Box::from(&*self)));
        }
        let Incoming { buffer, lent, pool, .. } = self.incoming;
        let len = self.len;
        let buffer = match lent {
            None => mem::replace(buffer, pool.take()),
            Some(lent) => {
                if let Some(memory) = lent.give_away() {
                    return OwnedPayload(Kept::GivenAway { memory, len });
                }
                let (mut copy, data) = (pool.take(), tail(lent.bytes(), len));
                copy.room()[WRITE_HEAD..][..data.len()].copy_from_slice(data);
                copy.set_len(WRITE_HEAD + data.len());
                copy
            }
        };
        OwnedPayload(Kept::HandedOver { buffer: Some(buffer), len, pool: Arc::clone(pool) })
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.incoming.lent {
            None => tail(self.incoming.buffer.as_bytes(), self.len),
            Some(lent) => tail(lent.bytes(), self.len),
        }
    }
}

/// The data of a WRITE, which goes back to where it came from when it is dropped.
#[derive(Debug)]
pub struct OwnedPayload(Kept);

#[derive(Debug)]
enum Kept {
    Copied(Box<[u8]>),
    /// The buffer is `None` only while it is dropped.
    HandedOver {
        buffer: Option<Buffer>,
        len: usize,
        pool: Arc<Pool>,
    },
    GivenAway {
        memory: Box<dyn GivenAway>,
        len: usize,
    },
}

impl Deref for OwnedPayload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Copied(bytes) => bytes,
            Kept::HandedOver { buffer, len, .. } => {
                buffer.as_ref().map_or(&[], |buffer| tail(buffer.as_bytes(), *len))
            }
            Kept::GivenAway { memory, len } => tail(memory.bytes(), *len),
        }
    }
}

impl Drop for OwnedPayload {
    fn drop(&mut self) {
        if let Kept::HandedOver { buffer, pool, .. } = &mut self.0
            && let Some(buffer) = buffer.take()
        {
            pool.give_back(buffer);
        }
    }
}

fn tail(bytes: &[u8], len: usize) -> &[u8] {
    &bytes[bytes.len().saturating_sub(len)..]
}

/// What is in front of the data of a WRITE.
pub(crate) const WRITE_HEAD: usize = RequestHeader::LEN + Write::LEN;
/// Alignment of the data of a WRITE.
const PAGE: usize = 4096;
/// Copying this is cheaper than touching another buffer for the first time.
pub(crate) const COPIED_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming<'reader>(
        buffer: &'reader mut Buffer,
        lent: Option<&'reader mut dyn Lent>,
        pool: &'reader Arc<Pool>,
    ) -> Incoming<'reader> {
        Incoming::new(Origin::Descriptor(0), buffer, lent, pool)
    }

    /// Gives nothing away.
    #[derive(Debug)]
    struct Stingy(Vec<u8>);

    impl Lent for Stingy {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn give_away(&mut self) -> Option<Box<dyn GivenAway>> {
            None
        }
    }

    #[test]
    fn the_data_of_a_write_begins_on_a_page() {
        for capacity in [8192, 100_000, 1 << 20] {
            let mut buffer = Buffer::new(capacity);
            assert_eq!(buffer.room().len(), capacity);
            let data = &buffer.room()[WRITE_HEAD..];
            assert_eq!(data.as_ptr().align_offset(PAGE), 0);
        }
    }

    #[test]
    fn a_large_payload_takes_the_buffer_along_and_brings_it_back() {
        let pool = Pool::new(100_000, 2);
        let mut buffer = pool.take();
        buffer.room()[..50_080].fill(7);
        buffer.set_len(50_080);
        let place = buffer.as_bytes().as_ptr();
        let kept = incoming(&mut buffer, None, &pool).into_payload(50_000).into_owned();
        assert_eq!((kept.len(), kept[0]), (50_000, 7));
        assert_ne!(buffer.as_bytes().as_ptr(), place, "the reader has another");
        drop(kept);
        assert_eq!(pool.take().room().as_ptr(), place);
    }

    #[test]
    fn what_is_lent_and_not_given_away_is_copied_to_a_buffer_of_the_pool() {
        let pool = Pool::new(100_000, 2);
        let mut buffer = pool.take();
        let mut lent = Stingy(vec![7; 50_000]);
        let payload = incoming(&mut buffer, Some(&mut lent), &pool).into_payload(49_999);
        assert_eq!((payload.len(), payload[0]), (49_999, 7));
        let kept = payload.into_owned();
        lent.0.fill(0);
        assert_eq!((kept.len(), kept[0], kept[49_998]), (49_999, 7, 7));
        let place = kept.as_ptr();
        assert_eq!(place.align_offset(PAGE), 0);
        drop(kept);
        assert_eq!(pool.take().room()[WRITE_HEAD..].as_ptr(), place);
    }

    #[test]
    fn a_small_payload_is_copied() {
        let pool = Pool::new(100_000, 2);
        let mut buffer = pool.take();
        buffer.room()[..90].fill(7);
        buffer.set_len(90);
        let place = buffer.as_bytes().as_ptr();
        let kept = incoming(&mut buffer, None, &pool).into_payload(10).into_owned();
        buffer.room().fill(0);
        assert_eq!(&*kept, [7; 10]);
        assert_eq!(buffer.as_bytes().as_ptr(), place);
    }
}
