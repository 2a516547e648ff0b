//! All names of a directory, as they were at a moment.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use millrace_types::FileName;

use super::stamps::Note;

/// What the cache has.
pub(super) type Known = Arc<Whole>;

/// Which names a directory had. Not what they led to, and not the names themselves: two may share a
/// number, so that one which is not there is asked for; never the other way round.
#[derive(Debug)]
pub(super) struct Whole {
    /// In order.
    numbers: Box<[u64]>,
    /// From before the question that was answered with them.
    pub(super) note: Note,
}

impl Whole {
    /// These names and no others.
    pub(super) fn new<'a>(names: impl IntoIterator<Item = &'a FileName>, note: Note) -> Self {
        let mut numbers: Vec<_> = names.into_iter().map(number).collect();
        numbers.sort_unstable();
        Self { numbers: numbers.into(), note }
    }

    /// Whether the name may have been there.
    pub(super) fn has(&self, name: &FileName) -> bool {
        self.numbers.binary_search(&number(name)).is_ok()
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.numbers)) as u64
    }
}

fn number(name: &FileName) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.as_bytes().hash(&mut hasher);
    hasher.finish()
}
