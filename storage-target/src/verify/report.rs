//! What a check has to say: one sentence for each thing, with its place.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// How bad it is.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, and as it may be: a stop in the middle leaves such things, and the next start
    /// settles them.
    Note,
    /// Something is not as a program has left it.
    Damage,
}

/// What it is about.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A copy of the superblock.
    Superblock,
    /// A copy of an index root.
    Root,
    /// A node of the index.
    Node,
    /// An entry of the index.
    Entry,
    /// Pages that a section names and that are not its own.
    Pages,
    /// The free map of a region.
    FreeMap,
    /// The summary of a region.
    Summary,
    /// A fact about the whole target.
    Fact,
    /// A batch of the journal, or its chain.
    Journal,
    /// A record of the journal.
    Record,
    /// A page of data.
    Data,
    /// The file or device as a whole.
    File,
    /// A block that the daemon has found bad.
    Finding,
    /// The lost mark of a placement group.
    Lost,
}

/// One sentence about one thing.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: Kind,
    /// The page of the target where it is, if it is in one place.
    pub page: Option<u64>,
    /// What is wrong.
    pub text: String,
    /// What to do, or what the next start does.
    pub remedy: &'static str,
}

/// Who hears of a check.
pub trait Observer: Sync {
    /// Something is to be said.
    fn remark(&self, remark: &Remark);

    /// So many pages of data were checked, of so many that are expected.
    fn progress(&self, checked: u64, expected: u64) {
        let _ = (checked, expected);
    }
}

/// Passes remarks on and counts them.
pub(super) struct Report<'a> {
    observer: &'a dyn Observer,
    notes: AtomicU64,
    damages: AtomicU64,
}

impl<'a> Report<'a> {
    pub(super) fn new(observer: &'a dyn Observer) -> Self {
        Self { observer, notes: AtomicU64::new(0), damages: AtomicU64::new(0) }
    }

    pub(super) fn damage(
        &self,
        kind: Kind,
        page: impl Into<Option<u64>>,
        text: String,
        remedy: &'static str,
    ) {
        self.remark(Severity::Damage, kind, page.into(), text, remedy);
    }

    pub(super) fn note(
        &self,
        kind: Kind,
        page: impl Into<Option<u64>>,
        text: String,
        remedy: &'static str,
    ) {
        self.remark(Severity::Note, kind, page.into(), text, remedy);
    }

    pub(super) fn remark(
        &self,
        severity: Severity,
        kind: Kind,
        page: Option<u64>,
        text: String,
        remedy: &'static str,
    ) {
        let count = if severity == Severity::Note { &self.notes } else { &self.damages };
        count.fetch_add(1, Ordering::Relaxed);
        self.observer.remark(&Remark { severity, kind, page, text, remedy });
    }

    pub(super) fn progress(&self, checked: u64, expected: u64) {
        self.observer.progress(checked, expected);
    }

    /// Notes and damages so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.notes.load(Ordering::Relaxed), self.damages.load(Ordering::Relaxed))
    }
}
