//! Which files the loss of a target damages.

use std::collections::BTreeSet;

use millrace_types::{GroupId, Layout, PoolId};

use super::{FileBody, ObjectState};

/// Groups that only one target served.
pub type Groups = BTreeSet<(PoolId, GroupId)>;

/// Whether a chunk of the first `size` bytes of a file lies in one of some groups.
#[must_use]
pub fn touches(layout: &Layout, size: u64, groups: &Groups) -> bool {
    let chunks = size.div_ceil(layout.chunk_size().bytes());
    let used = layout.groups().take(usize::try_from(chunks).unwrap_or(usize::MAX));
    let pool = layout.pool();
    used.into_iter().any(|group| groups.contains(&(pool, group)))
}

/// Whether some of a file of `size` bytes may have been in these groups and nowhere else; `written`
/// says whether somebody has it open for writing.
///
/// Errs on the side of loss: nobody can ask the target what it held. Of a file that is being
/// written it may have acknowledged more than has been committed, which the next writes would make
/// zeros of, so that its size is no bound.
#[must_use]
pub fn is_damaged(file: &FileBody, size: u64, groups: &Groups, written: bool) -> bool {
    let is_saved = match file.state {
        ObjectState::Clean | ObjectState::Exported | ObjectState::Lost => true,
        ObjectState::Local | ObjectState::Dirty | ObjectState::Conflict => false,
    };
    let size = if written { u64::MAX } else { size };
    !is_saved && file.inline.is_none() && touches(&file.layout, size, groups)
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkSize, ContentGeneration, MIB, WriteEpoch};

    use super::*;

    fn layout() -> Layout {
        Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 4, 0).unwrap()
    }

    fn file(state: ObjectState, sparse: bool) -> FileBody {
        FileBody {
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout: layout(),
            origin: None,
            origin_length: 0,
            sparse,
            inline: None,
            state,
        }
    }

    /// The group of one of the first four chunks.
    fn group_of_chunk(chunk: usize) -> Groups {
        [(PoolId(0), layout().groups().nth(chunk).unwrap())].into()
    }

    #[test]
    fn what_is_only_here_and_reaches_the_groups_is_damaged() {
        let is_damaged = |state, size, chunk| {
            is_damaged(&file(state, false), size, &group_of_chunk(chunk), false)
        };
        assert!(is_damaged(ObjectState::Local, 1, 0));
        assert!(is_damaged(ObjectState::Dirty, 8 * MIB + 1, 1));
        assert!(is_damaged(ObjectState::Conflict, 1 << 40, 3));
        assert!(!is_damaged(ObjectState::Local, 0, 0), "it has no byte");
        assert!(!is_damaged(ObjectState::Local, 8 * MIB, 1), "it ends before");
        assert!(!is_damaged(ObjectState::Clean, 1 << 40, 0), "the bucket has it");
        assert!(!is_damaged(ObjectState::Exported, 1 << 40, 0), "the bucket has it");
    }

    #[test]
    fn what_a_writer_has_not_committed_may_be_lost() {
        for sparse in [false, true] {
            let file = file(ObjectState::Local, sparse);
            assert!(is_damaged(&file, 1, &group_of_chunk(2), true));
            assert!(!is_damaged(&file, 1, &group_of_chunk(2), false));
        }
    }
}
