//! The memory of entries, which the kernel writes requests to and reads answers from.
//!
//! Who has the [`Entry`] may use its memory, and nobody else: there is one for each place, it
//! cannot be copied, and while the kernel may write the [ring](super::ring) keeps it. So nothing
//! outside this file needs to know that there are pointers.

#![expect(unsafe_code, reason = "memory that is shared with the kernel has no other form")]

use std::{fmt, io::IoSlice, ptr::NonNull, slice, sync::Arc};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

use crate::{
    protocol::{
        header::ReplyHeader,
        ring::{ENTRY_OFFSET, HEAD_LEN, RingEntry},
    },
    wire::Wire as _,
};

/// `count` entries with payloads of `payload_len` bytes. The memory is not there before it is used.
///
/// # Errors
/// When there are no addresses for it.
pub(super) fn entries(count: u16, payload_len: usize) -> Result<Vec<Entry>, Errno> {
    let heads_len = (usize::from(count) * HEAD_STRIDE).next_multiple_of(PAGE);
    let payload_stride = payload_len.next_multiple_of(PAGE);
    let payloads_len = usize::from(count).checked_mul(payload_stride).ok_or(Errno::NOMEM)?;
    let len = heads_len.checked_add(payloads_len).ok_or(Errno::NOMEM)?;
    let mapping = Arc::new(Mapping::new(len)?);
    let entries = (0..count).map(|index| {
        let head = usize::from(index) * HEAD_STRIDE;
        let payload = heads_len + usize::from(index) * payload_stride;
        // SAFETY: `head` and `payload` lie within the `len` bytes of the mapping.
        let head = unsafe { mapping.start.add(head) };
        // SAFETY: as above.
        let payload = unsafe { mapping.start.add(payload) };
        Entry { index, head, payload, payload_len, _mapping: Arc::clone(&mapping) }
    });
    Ok(entries.collect())
}

/// The right to use the memory of one entry.
pub(super) struct Entry {
    index: u16,
    head: NonNull<u8>,
    payload: NonNull<u8>,
    payload_len: usize,
    /// What `head` and `payload` point into.
    _mapping: Arc<Mapping>,
}

// SAFETY: the memory belongs to no thread, and no two entries share any of it.
unsafe impl Send for Entry {}

impl Entry {
    /// Its number in its queue.
    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// What the kernel is told of it: where head and payload are.
    pub(super) fn addresses(&self) -> [libc::iovec; 2] {
        let head = libc::iovec { iov_base: self.head.as_ptr().cast(), iov_len: HEAD_LEN };
        let payload = self.payload.as_ptr().cast();
        [head, libc::iovec { iov_base: payload, iov_len: self.payload_len }]
    }

    /// The head of the request that is in it.
    pub(super) fn head(&self) -> &[u8; HEAD_LEN] {
        // SAFETY: it points to as many bytes of a mapping that lives as long as the entry, which
        // nobody writes to while there is a reference to the entry. They were zeros at first.
        unsafe { self.head.cast().as_ref() }
    }

    /// The first `len` bytes of the payload; fewer when it is shorter.
    pub(super) fn payload(&self, len: usize) -> &[u8] {
        // SAFETY: as for the head; `payload_len` bytes are there.
        unsafe { slice::from_raw_parts(self.payload.as_ptr(), len.min(self.payload_len)) }
    }

    /// Puts an answer into it: a header, and a body in parts.
    ///
    /// # Errors
    /// EINVAL when the body is too long, or the header is none. Nothing is changed.
    pub(super) fn put_answer(&mut self, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), Errno> {
        let body_len: usize = body.iter().map(|part| part.len()).sum();
        if header.len() != ReplyHeader::LEN || body_len > self.payload_len {
            return Err(Errno::INVAL);
        }
        let mut rest = self.payload_mut();
        for part in body {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        let payload_len = u32::try_from(body_len).map_err(|_| Errno::INVAL)?;
        let head = self.head_mut();
        let entry = RingEntry::get(&head[ENTRY_OFFSET..]).unwrap_or_default();
        head[..header.len()].copy_from_slice(header);
        RingEntry { flags: 0, payload_len, ..entry }.put(&mut head[ENTRY_OFFSET..]);
        Ok(())
    }

    fn head_mut(&mut self) -> &mut [u8; HEAD_LEN] {
        // SAFETY: as for reading; the reference to the entry is the only one.
        unsafe { self.head.cast().as_mut() }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for reading; the reference to the entry is the only one.
        unsafe { slice::from_raw_parts_mut(self.payload.as_ptr(), self.payload_len) }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.index)
    }
}

/// Anonymous memory, given back with the last entry in it.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is only an address; what is there is reached through entries.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: where the kernel likes, so that nothing else is there.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, access, flags | MapFlags::NORESERVE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the entries that pointed there are gone. The kernel writes for entries of open
        // rings only, and a ring is closed before its entries go.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::error!(%error, "the memory of a ring cannot be given back");
        }
    }
}

/// Heads begin on lines of the cache of their own.
const HEAD_STRIDE: usize = HEAD_LEN.next_multiple_of(64);
/// Payloads begin on pages, so that the data of a WRITE does.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_share_no_memory() {
        let mut entries = entries(3, 10_000).unwrap();
        for entry in &mut entries {
            assert_eq!(entry.payload.as_ptr().align_offset(PAGE), 0);
            let index = u8::try_from(entry.index).unwrap();
            entry.head_mut().fill(index + 1);
            entry.payload_mut().fill(index + 101);
        }
        for entry in &entries {
            let index = u8::try_from(entry.index()).unwrap();
            assert!(entry.head().iter().all(|byte| *byte == index + 1));
            assert!(entry.payload(usize::MAX).iter().all(|byte| *byte == index + 101));
            assert_eq!(entry.payload(usize::MAX).len(), 10_000);
        }
        let last = entries.pop().unwrap();
        drop(entries);
        assert_eq!(last.payload(1), [103], "memory lives as long as an entry");
    }

    #[test]
    fn an_answer_is_header_and_payload() {
        let mut entry = entries(1, 8192).unwrap().remove(0);
        let sent = RingEntry { flags: 7, commit_id: 42, payload_len: 5 };
        sent.put(&mut entry.head_mut()[ENTRY_OFFSET..]);
        let header = ReplyHeader { len: 22, error: 0, unique: 42 }.encode();
        let body = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"def")];
        entry.put_answer(&header, &body).unwrap();
        assert_eq!(entry.head()[..16], header);
        assert_eq!(entry.payload(6), b"abcdef");
        let said = RingEntry::get(&entry.head()[ENTRY_OFFSET..]).unwrap();
        assert_eq!(said, RingEntry { flags: 0, commit_id: 42, payload_len: 6 });
        let long = vec![0; 8193];
        assert_eq!(entry.put_answer(&header, &[IoSlice::new(&long)]), Err(Errno::INVAL));
        assert_eq!(entry.put_answer(&header[1..], &[]), Err(Errno::INVAL));
        assert_eq!(entry.payload(6), b"abcdef");
    }
}
