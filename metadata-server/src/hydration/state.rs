//! How files stand against their bucket, from what the inode says and what the targets hold.
//!
//! For reports, and for which files a job by state looks at: what may be dropped or sent is decided
//! by other rules.

use millrace_protocol::{
    admin::{FileState, StateSum},
    target::Present,
};
use millrace_types::ByteLen;

use crate::namespace::{FileBody, ObjectState};

/// One file's state, and how many of its bytes are here.
#[must_use]
pub fn of_file(size: u64, body: &FileBody, present: &Present) -> (FileState, u64) {
    let here = bytes_here(size, body, present);
    let all = here >= size;
    let state = match body.state {
        ObjectState::Conflict => FileState::Conflict,
        ObjectState::Lost => FileState::Lost,
        ObjectState::Local | ObjectState::Dirty => FileState::Dirty,
        ObjectState::Exported if all => FileState::Exported,
        ObjectState::Clean if all => FileState::Hydrated,
        ObjectState::Exported | ObjectState::Clean if here == 0 => FileState::Released,
        ObjectState::Exported | ObjectState::Clean => FileState::Partial,
    };
    (state, here)
}

/// The state of a file, where it does not depend on what the targets hold.
#[must_use]
pub fn known(size: u64, body: &FileBody) -> Option<FileState> {
    let stands = matches!(body.state, ObjectState::Exported | ObjectState::Clean);
    let is_open = stands && size > 0 && is_asked_for(body);
    (!is_open).then(|| of_file(size, body, &Present::default()).0)
}

/// Whether only the targets know how much of a file is here.
#[must_use]
pub fn is_asked_for(body: &FileBody) -> bool {
    let is_at_targets = body.inline.is_none();
    is_at_targets && (body.origin_length > 0 || body.state == ObjectState::Lost)
}

/// Bytes that a read gets without asking the bucket: stored ones, zeros, and holes.
fn bytes_here(size: u64, body: &FileBody, present: &Present) -> u64 {
    if body.inline.is_some() {
        return size;
    }
    let stored = present.clean.0.saturating_add(present.written.0).saturating_add(present.zero.0);
    if body.state == ObjectState::Lost {
        // It has no holes any more: what is not stored is what was lost.
        return stored.min(size);
    }
    // Past what the object backs, absent bytes are holes; they do not come from the bucket.
    let unbacked = size.saturating_sub(body.origin_length);
    if body.origin_length == 0 { size } else { stored.max(unbacked).min(size) }
}

/// Adds what one target says to what others said.
pub fn add(total: &mut Present, part: &Present) {
    let sum = |total: &mut ByteLen, part: ByteLen| total.0 = total.0.saturating_add(part.0);
    sum(&mut total.clean, part.clean);
    sum(&mut total.written, part.written);
    sum(&mut total.zero, part.zero);
    total.end = total.end.max(part.end);
}

/// Files and bytes in each state, below a directory.
#[derive(Debug, Default)]
pub struct Sums {
    files: [u64; FileState::ALL.len()],
    bytes: [u64; FileState::ALL.len()],
    /// Files and bytes of which nobody knows in which state they are.
    unknown: (u64, u64),
    here: u64,
}

impl Sums {
    /// Counts one file.
    pub fn count(&mut self, state: FileState, size: u64, here: u64) {
        let at = FileState::ALL.iter().position(|&known| known == state);
        let at = at.expect("every state is in the list of all");
        self.files[at] += 1;
        self.bytes[at] = self.bytes[at].saturating_add(size);
        self.here = self.here.saturating_add(here);
    }

    /// Counts one file whose state depends on what a target holds that does not tell; at least
    /// `here` bytes of it are here.
    pub fn count_unknown(&mut self, size: u64, here: u64) {
        let (files, bytes) = self.unknown;
        self.unknown = (files + 1, bytes.saturating_add(size));
        self.here = self.here.saturating_add(here);
    }

    /// Files of which nobody knows in which state they are, and their bytes.
    #[must_use]
    pub fn unknown(&self) -> (u64, ByteLen) {
        (self.unknown.0, ByteLen(self.unknown.1))
    }

    /// The state that all files share, if it is known that they do.
    #[must_use]
    pub fn shared(&self) -> Option<FileState> {
        if self.unknown.0 > 0 {
            return None;
        }
        let mut present =
            FileState::ALL.into_iter().zip(self.files).filter(|(_, files)| *files > 0);
        let (state, _) = present.next()?;
        present.next().is_none().then_some(state)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn size(&self) -> ByteLen {
        ByteLen(self.bytes.iter().fold(self.unknown.1, |sum, &bytes| sum.saturating_add(bytes)))
    }

    /// Bytes that are here.
    #[must_use]
    pub fn here(&self) -> ByteLen {
        ByteLen(self.here)
    }

    /// The states that occur, in the order of a table.
    #[must_use]
    pub fn to_vec(&self) -> Vec<StateSum> {
        FileState::ALL
            .into_iter()
            .zip(self.files.into_iter().zip(self.bytes))
            .filter(|(_, (files, _))| *files > 0)
            .map(|(state, (files, bytes))| StateSum { state, files, size: ByteLen(bytes) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkSize, ContentGeneration, Layout, PoolId, WriteEpoch};

    use super::*;

    fn body(state: ObjectState, origin_length: u64) -> FileBody {
        FileBody {
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
            origin: None,
            origin_length,
            sparse: false,
            inline: None,
            state,
        }
    }

    fn clean(bytes: u64) -> Present {
        Present { clean: ByteLen(bytes), ..Present::default() }
    }

    #[test]
    fn an_imported_file_goes_from_released_over_partial_to_hydrated() {
        let full = body(ObjectState::Clean, 100);
        assert_eq!(of_file(100, &full, &clean(0)), (FileState::Released, 0));
        assert_eq!(of_file(100, &full, &clean(60)), (FileState::Partial, 60));
        assert_eq!(of_file(100, &full, &clean(100)), (FileState::Hydrated, 100));
        let empty = body(ObjectState::Clean, 0);
        assert_eq!(of_file(0, &empty, &clean(0)), (FileState::Hydrated, 0));
    }

    #[test]
    fn a_written_file_is_dirty_however_much_is_here() {
        assert_eq!(of_file(10, &body(ObjectState::Local, 0), &clean(0)).0, FileState::Dirty);
        assert_eq!(of_file(10, &body(ObjectState::Dirty, 10), &clean(4)), (FileState::Dirty, 4));
        assert_eq!(of_file(10, &body(ObjectState::Conflict, 10), &clean(4)).0, FileState::Conflict);
    }

    #[test]
    fn an_exported_file_can_be_released_again() {
        let exported = body(ObjectState::Exported, 10);
        assert_eq!(of_file(10, &exported, &clean(10)).0, FileState::Exported);
        assert_eq!(of_file(10, &exported, &clean(5)).0, FileState::Partial);
        assert_eq!(of_file(10, &exported, &clean(0)).0, FileState::Released);
    }

    #[test]
    fn a_state_is_known_where_it_does_not_depend_on_what_is_here() {
        for (state, expected) in [
            (ObjectState::Local, Some(FileState::Dirty)),
            (ObjectState::Dirty, Some(FileState::Dirty)),
            (ObjectState::Conflict, Some(FileState::Conflict)),
            (ObjectState::Lost, Some(FileState::Lost)),
            (ObjectState::Exported, None),
            (ObjectState::Clean, None),
        ] {
            assert_eq!(known(10, &body(state, 10)), expected, "{state:?}");
        }
        assert_eq!(known(10, &body(ObjectState::Clean, 0)), Some(FileState::Hydrated), "holes");
        assert_eq!(known(0, &body(ObjectState::Exported, 10)), Some(FileState::Exported));
        let lives_here = FileBody { inline: Some(vec![7; 10]), ..body(ObjectState::Clean, 10) };
        assert_eq!(known(10, &lives_here), Some(FileState::Hydrated));
    }

    #[test]
    fn of_a_lost_file_that_is_here_which_the_targets_have() {
        let lost = body(ObjectState::Lost, 0);
        assert!(is_asked_for(&lost) && is_asked_for(&body(ObjectState::Clean, 1)));
        assert!(!is_asked_for(&body(ObjectState::Local, 0)), "all of it is here");
        let left = Present { written: ByteLen(6), zero: ByteLen(2), ..clean(1) };
        assert_eq!(of_file(100, &lost, &left), (FileState::Lost, 9));
        assert_eq!(of_file(100, &lost, &clean(0)), (FileState::Lost, 0));
    }

    #[test]
    fn a_directory_has_a_state_of_its_own_only_when_all_files_share_it() {
        let mut sums = Sums::default();
        assert_eq!(sums.shared(), None);
        sums.count(FileState::Hydrated, 10, 10);
        sums.count(FileState::Hydrated, 20, 20);
        assert_eq!(sums.shared(), Some(FileState::Hydrated));
        sums.count(FileState::Partial, 10, 3);
        assert_eq!(sums.shared(), None);
        assert_eq!((sums.size(), sums.here()), (ByteLen(40), ByteLen(33)));
        let files: Vec<_> = sums.to_vec().iter().map(|sum| (sum.state, sum.files)).collect();
        assert_eq!(files, [(FileState::Partial, 1), (FileState::Hydrated, 2)]);
    }

    #[test]
    fn a_file_of_unknown_state_is_in_no_sum_and_nothing_is_shared_with_it() {
        let mut sums = Sums::default();
        sums.count(FileState::Hydrated, 10, 10);
        sums.count_unknown(20, 5);
        assert_eq!((sums.shared(), sums.unknown()), (None, (1, ByteLen(20))));
        assert_eq!((sums.size(), sums.here()), (ByteLen(30), ByteLen(15)));
        assert_eq!(sums.to_vec().len(), 1);
    }
}
