//! A kernel that does less than it was asked for, as it may: for tests of the two engines.
//!
//! Unlike [`super::faulty`] it works below an engine, which has to go on where the kernel stopped.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::ALIGNMENT;

/// Whether and which calls are cut. Clones count the same calls.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    /// `None`: none is.
    calls: Option<Arc<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    asked: AtomicU64,
    told: AtomicU64,
    short: AtomicU64,
    failed: AtomicU64,
}

impl Cuts {
    /// Every second transfer of several pages moves only some of them, and every third call that
    /// could have ended well ends with `EINTR` or `EAGAIN`.
    #[must_use]
    pub fn many() -> Self {
        Self { calls: Some(Arc::default()) }
    }

    /// Calls that moved less than all, and calls that failed for nothing.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let read = |count: fn(&Calls) -> &AtomicU64| {
            self.calls.as_ref().map_or(0, |calls| count(calls).load(Ordering::Relaxed))
        };
        (read(|calls| &calls.short), read(|calls| &calls.failed))
    }

    /// How many of `len` bytes the kernel is asked for: whole pages, at least one.
    pub(super) fn part(&self, len: usize) -> usize {
        let Some(calls) = &self.calls else { return len };
        let nth = calls.asked.fetch_add(1, Ordering::Relaxed);
        if !nth.is_multiple_of(2) || len <= ALIGNMENT {
            return len;
        }
        calls.short.fetch_add(1, Ordering::Relaxed);
        (len / 2 / ALIGNMENT).max(1) * ALIGNMENT
    }

    /// How many of `count` parts that go to the disk at once the kernel is asked for.
    pub(super) fn parts(&self, count: usize) -> usize {
        self.part(count * ALIGNMENT) / ALIGNMENT
    }

    /// What the engine is told of a call that has ended so: a count, or the negative of an error.
    pub(super) fn told(&self, result: i32) -> i32 {
        let Some(calls) = &self.calls else { return result };
        let nth = calls.told.fetch_add(1, Ordering::Relaxed);
        if !nth.is_multiple_of(3) || result < 0 {
            return result;
        }
        calls.failed.fetch_add(1, Ordering::Relaxed);
        if nth.is_multiple_of(2) { -libc::EINTR } else { -libc::EAGAIN }
    }

    /// The same of a call of the standard library.
    pub(super) fn told_of(&self, result: io::Result<usize>) -> io::Result<usize> {
        let done = result?;
        match self.told(0) {
            0 => Ok(done),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
