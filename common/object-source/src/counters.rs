//! What a bucket was asked, counted where requests leave the process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::tally;

/// The kinds of requests that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// Listing.
    List,
    /// HEAD.
    Head,
    /// GET of bytes.
    Get,
    /// PUT of a whole object.
    Put,
    /// PUT of one part.
    Part,
    /// Begin, list, complete and abort of uploads, and DELETE.
    Upload,
    /// Credentials and the like.
    Other,
}

impl RequestClass {
    /// Every class, in the order of a table.
    pub const ALL: [Self; 7] =
        [Self::List, Self::Head, Self::Get, Self::Put, Self::Part, Self::Upload, Self::Other];

    /// The label in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Head => "head",
            Self::Get => "get",
            Self::Put => "put",
            Self::Part => "part",
            Self::Upload => "upload",
            Self::Other => "other",
        }
    }
}

/// Counters of one bucket, since the process began. Retries count as requests of their own.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; RequestClass::ALL.len()],
    failures: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
}

impl Counters {
    /// Requests of one class.
    pub fn requests(&self, class: RequestClass) -> u64 {
        self.requests[class as usize].load(Ordering::Relaxed)
    }

    /// Requests by class, in the order of [`RequestClass::ALL`].
    pub fn by_class(&self) -> [u64; RequestClass::ALL.len()] {
        RequestClass::ALL.map(|class| self.requests(class))
    }

    /// Requests of all classes.
    pub fn requests_total(&self) -> u64 {
        RequestClass::ALL.iter().map(|&class| self.requests(class)).sum()
    }

    /// Requests that got no answer or one with a status of 400 or more.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Bytes of objects that arrived.
    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Bytes of objects that were sent, repeated ones included.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, class: RequestClass) {
        self.add(|counters| counters.requests[class as usize].fetch_add(1, Ordering::Relaxed));
    }

    pub(crate) fn fail(&self) {
        self.add(|counters| counters.failures.fetch_add(1, Ordering::Relaxed));
    }

    pub(crate) fn receive(&self, bytes: usize) {
        self.add(|counters| counters.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed));
    }

    pub(crate) fn send(&self, bytes: u64) {
        self.add(|counters| counters.bytes_sent.fetch_add(bytes, Ordering::Relaxed));
    }

    /// Counts, here and for the work that this task does.
    fn add(&self, count: impl Fn(&Self) -> u64) {
        count(self);
        tally::note(|counters| {
            count(counters);
        });
    }

    /// Adds what another process counted for the same work.
    pub fn merge(
        &self,
        by_class: [u64; RequestClass::ALL.len()],
        failures: u64,
        bytes: (u64, u64),
    ) {
        for (own, other) in self.requests.iter().zip(by_class) {
            own.fetch_add(other, Ordering::Relaxed);
        }
        self.failures.fetch_add(failures, Ordering::Relaxed);
        let (received, sent) = bytes;
        self.bytes_received.fetch_add(received, Ordering::Relaxed);
        self.bytes_sent.fetch_add(sent, Ordering::Relaxed);
    }
}
