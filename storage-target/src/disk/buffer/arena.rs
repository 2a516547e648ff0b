//! One run of memory that stays where it is.

use std::{
    io,
    ptr::{self, NonNull},
};

/// The size of a huge page, on which the memory begins.
const HUGE_PAGE: usize = 2 * 1024 * 1024;

/// Memory in huge pages where the system has some, zeros at the start. Taken from the system when
/// it is first touched.
#[derive(Debug)]
pub(in crate::disk) struct Arena {
    /// What was mapped: more than is used, because the system maps at any page.
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory; who uses which part of it is decided by the pool.
unsafe impl Send for Arena {}
// SAFETY: as above; nothing here looks at the bytes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len` bytes, rounded up to huge pages.
    pub(super) fn map(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let mapped_len = len + HUGE_PAGE;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the system's choice touches nothing that is there.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), mapped_len, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("a mapping is not at address 0");
        let skipped = mapped.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: less than a huge page is skipped, and one more than `len` was mapped.
        let start = unsafe { mapped.add(skipped) };
        let arena = Self { mapped, mapped_len, start, len };
        // SAFETY: the range lies in the mapping; the advice changes no content.
        let advised = unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        if advised != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "no huge pages for buffers");
        }
        Ok(arena)
    }

    /// Bytes.
    pub(in crate::disk) fn len(&self) -> usize {
        self.len
    }

    /// Where it begins, for the kernel.
    pub(in crate::disk) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// A part of it.
    pub(super) fn part(&self, start: usize, len: usize) -> NonNull<u8> {
        assert!(start + len <= self.len, "a part of the arena");
        // SAFETY: it lies in the mapping.
        unsafe { self.start.add(start) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; every buffer in it, and every engine that knows it, holds it.
        let unmapped = unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
        debug_assert!(unmapped == 0, "a mapping can be given back");
    }
}
