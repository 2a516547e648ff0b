//! What every page of a target is used for.

/// Pages of a target by use. The parts together are the capacity, at every moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// All pages.
    pub capacity: u64,
    /// Superblocks, roots, the journal's ring, and what is left behind the last whole region.
    pub fixed: u64,
    /// Not taken from the file system yet.
    pub ungrown: u64,
    /// Of those, how many can be taken now: no setting and no full file system is in the way.
    pub growable: u64,
    /// Free, and promised to nobody.
    pub free: u64,
    /// Promised to or held by changes that are under way.
    pub reserved: u64,
    /// Given up, and not to be used again yet.
    pub quarantined: u64,
    /// Nodes of the index.
    pub index: u64,
    /// Bytes of the bucket.
    pub clean: u64,
    /// Bytes that somebody wrote.
    pub written: u64,
    /// Of the free pages, those that serve only what frees space, and the index, once everything
    /// that can be taken has been.
    pub kept_back: u64,
}

impl Totals {
    /// What a client's write can still use, once what is in quarantine is free and the file has
    /// grown.
    #[must_use]
    pub fn available(&self) -> u64 {
        (self.free + self.growable + self.quarantined).saturating_sub(self.kept_back)
    }

    /// # Panics
    /// When a page is counted twice or not at all.
    pub(super) fn check(&self) {
        let Self { fixed, ungrown, free, reserved, quarantined, index, clean, written, .. } = *self;
        let sum = fixed + ungrown + free + reserved + quarantined + index + clean + written;
        assert_eq!(sum, self.capacity, "every page is counted once: {self:?}");
    }
}

/// How many of so many pages are kept back from clients' writes: 1/64, 8 MiB at least, so that a
/// full target can always be emptied.
#[must_use]
pub fn kept_back(pages: u64) -> u64 {
    (pages / 64).max(2048)
}
