//! The memory of entries, which the kernel writes requests to and reads answers from.
//!
//! Who has the [`Entry`] may use its memory, and nobody else: there is one for each place, it
//! cannot be copied, and while the kernel may write the [ring](super::ring) keeps it. So nothing
//! outside this file needs to know that there are pointers.

#![expect(unsafe_code, reason = "memory that is shared with the kernel has no other form")]

use std::{
    fmt,
    io::{self, IoSlice},
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::{
    io::Errno,
    mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap},
};

use crate::{
    channel::buffer::GivenAway,
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

    /// Gives the payload away with its memory: other memory, with anything in it, is put in its
    /// place, because the kernel knows the payload by its address.
    ///
    /// # Errors
    /// When too much has been given away, or there is no other memory. Nothing is changed.
    pub(super) fn give_payload_away(
        &mut self,
        len: usize,
        spares: &Arc<Spares>,
    ) -> Result<Taken, Errno> {
        let spare = spares.take()?;
        match self.exchange(spare) {
            Ok(memory) => Ok(Taken {
                len: len.min(memory.len),
                memory: Some(memory),
                spares: Arc::clone(spares),
            }),
            Err((error, spare)) => {
                spares.give_back(spare);
                Err(error)
            }
        }
    }

    fn exchange(&mut self, spare: Mapping) -> Result<Mapping, (Errno, Mapping)> {
        let (place, len) = (self.payload.as_ptr().cast(), spare.len);
        assert_eq!(len, self.payload_len.next_multiple_of(PAGE), "one spare is as long as another");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: as many bytes from there on are this entry's. They stay mapped, as zeros, and
        // what was in them is somewhere else. (rustix leaves out the last argument, which counts.)
        let moved =
            unsafe { libc::mremap(place, len, len, flags, ptr::null_mut::<libc::c_void>()) };
        let moved = match NonNull::new(moved.cast()) {
            Some(start) if moved != libc::MAP_FAILED => Mapping { start, len },
            _ => {
                let error = Errno::from_io_error(&io::Error::last_os_error());
                return Err((error.unwrap_or(Errno::NOMEM), spare));
            }
        };
        // What it describes is not there any more.
        let spare = ManuallyDrop::new(spare);
        let start = spare.start.as_ptr().cast();
        // SAFETY: nobody refers to the spare, which was nobody's, nor to the zeros that it
        // replaces.
        let placed = unsafe { mremap_fixed(start, len, len, MremapFlags::MAYMOVE, place) };
        if let Err(error) = placed {
            // What is there now may be nothing, or soon something else that the kernel would write
            // to.
            tracing::error!(%error, "the memory of a ring is not where it was; aborting");
            std::process::abort();
        }
        Ok(moved)
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

/// Anonymous memory, given back when it is dropped.
#[derive(Debug)]
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
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags | MapFlags::NORESERVE) }?;
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

/// Memory for payloads in place of what was given away. What comes back is used again.
#[derive(Debug)]
pub(super) struct Spares {
    len: usize,
    spare: Mutex<Vec<Mapping>>,
    given_away: AtomicUsize,
}

impl Spares {
    /// For payloads of that many bytes.
    pub(super) fn new(payload_len: usize) -> Arc<Self> {
        let (spare, given_away) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { len: payload_len.next_multiple_of(PAGE), spare, given_away })
    }

    fn take(&self) -> Result<Mapping, Errno> {
        if self.given_away.fetch_add(1, Ordering::Relaxed) >= GIVEN_AWAY_MAX {
            self.given_away.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::NOBUFS);
        }
        let spare = self.spare().pop();
        spare.map_or_else(|| Mapping::new(self.len), Ok).inspect_err(|_| {
            self.given_away.fetch_sub(1, Ordering::Relaxed);
        })
    }

    fn give_back(&self, memory: Mapping) {
        self.given_away.fetch_sub(1, Ordering::Relaxed);
        let mut spare = self.spare();
        if spare.len() < SPARES_MAX {
            spare.push(memory);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Mapping>> {
        // It is whole between any two statements.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A payload that was given away.
pub(super) struct Taken {
    /// `None` only while it is dropped.
    memory: Option<Mapping>,
    len: usize,
    spares: Arc<Spares>,
}

impl GivenAway for Taken {
    fn bytes(&self) -> &[u8] {
        let Some(memory) = &self.memory else { return &[] };
        // SAFETY: the mapping is this one's alone, nobody writes to it, and it is not shorter.
        unsafe { slice::from_raw_parts(memory.start.as_ptr(), self.len) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.spares.give_back(memory);
        }
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Taken({})", self.len)
    }
}

/// Heads begin on lines of the cache of their own.
const HEAD_STRIDE: usize = HEAD_LEN.next_multiple_of(64);
/// Payloads begin on pages, so that the data of a WRITE does.
const PAGE: usize = 4096;
/// Payloads that are away at once. Each is a mapping of its own, of which a process has some
/// 65,000.
const GIVEN_AWAY_MAX: usize = 1024;
/// Those that came back and are kept. What is new has to be filled with zeros, which takes longer
/// than to copy a payload.
const SPARES_MAX: usize = 16;

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
    fn a_payload_that_is_given_away_stays_as_it_is_and_another_is_in_its_place() {
        let mut entries = entries(3, 10_000).unwrap();
        let spares = Spares::new(10_000);
        let place = entries[1].payload(1).as_ptr();
        let mut taken = Vec::new();
        for round in 1..=5 {
            for (entry, byte) in entries.iter_mut().zip([100, 150, 200]) {
                entry.payload_mut().fill(byte + round);
            }
            taken.push(entries[1].give_payload_away(10_000, &spares).unwrap());
            assert_eq!(entries[1].payload(1).as_ptr(), place, "where the kernel looks");
        }
        entries[1].payload_mut().fill(0);
        for (taken, byte) in taken.iter().zip(151..) {
            assert_eq!(taken.bytes().len(), 10_000);
            assert!(taken.bytes().iter().all(|found| *found == byte));
        }
        for (entry, byte) in [(&entries[0], 105), (&entries[2], 205)] {
            assert!(entry.payload(usize::MAX).iter().all(|found| *found == byte));
        }
        let kept = taken.swap_remove(0);
        drop((taken, entries));
        assert_eq!(spares.spare().len(), 4);
        assert_eq!(kept.bytes()[9_999], 151, "it does not need the ring");
        drop((spares, kept));
    }

    #[test]
    fn what_is_given_away_has_a_limit() {
        let mut entry = entries(1, 4096).unwrap().remove(0);
        let spares = Spares::new(4096);
        let mut give = || entry.give_payload_away(1, &spares);
        let mut taken: Vec<_> = (0..GIVEN_AWAY_MAX).map(|_| give().unwrap()).collect();
        assert_eq!(give().unwrap_err(), Errno::NOBUFS);
        taken.pop();
        taken.push(give().unwrap());
        drop(taken);
        assert_eq!(spares.spare().len(), SPARES_MAX);
        assert_eq!(spares.given_away.load(Ordering::Relaxed), 0);
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
