//! Whether the namespace agrees with itself: pure questions to a store, each about a few records.
//!
//! The store holds most things twice, so that either way round is a short look: an entry names an
//! inode, and the inode names its entry; a directory counts its entries; an open is in two tables.
//! Every command keeps both in step. Where they are not, a program or a disk has made a mistake
//! that no checksum shows, and replaying the log repeats it.
//!
//! # Why there are no false alarms
//! A question is asked in one turn of the engine: everything that it reads shows one index of the
//! log, and commands run in the same thread, each as a whole. What a question calls a flaw is one
//! at that index; nothing else has to be looked at again later. Two questions need more records
//! than one turn may read: how many names a large directory has, and how many inodes there are. A
//! [`Census`](census::Census) counts these over many turns, and follows every command that changes
//! what it has counted already; when it comes to the end, its count is that of the index then.
//!
//! # Repairs
//! A [`Flaw`] that can be repaired safely names a command. `apply` asks the same question again and
//! changes what it then finds, so that a command that comes late or twice changes nothing, and a
//! replay gives the same tree. Safe means: nothing that anybody can still reach goes away. What
//! leads nowhere is removed; what nothing leads to is named in `/lost+found`; counts become what is
//! there.
//!
//! The order of the passes matters for repairs alone: names before inodes, since a name that is
//! removed or noted changes what its inode has; an inode before the names in it are counted; the
//! counts of the file system last. So one check with repairs leaves nothing for the next.
//!
//! Modules: [`entry`] (a name), [`inode`] (an inode and its names), [`cycle`] (the way up),
//! [`leftover`] (what belongs to others), [`census`] (counting over many turns).

use millrace_protocol::fsck::FlawKind;
use millrace_types::{FileName, InodeId};

use crate::{
    command::Repair,
    store::{StoreError, View, records::FileSystem},
};

pub mod census;
pub mod cycle;
pub mod entry;
pub mod inode;
pub mod leftover;

/// Something that is wrong at this index of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// What kind of thing.
    pub kind: FlawKind,
    /// The inode that it is about; 0 where it is about none.
    pub inode: InodeId,
    /// The name that it is about, and the directory of that.
    pub place: Option<(InodeId, FileName)>,
    /// One sentence.
    pub text: String,
    /// The command that repairs it, where that is safe. One may repair several.
    pub repair: Option<Repair>,
}

/// What is wrong with the record at `key`, whichever table it is in. Tables that say nothing of
/// names are always right.
///
/// # Errors
/// When the store fails, or a record does not decode.
pub fn flaws(view: &dyn View, key: &[u8], value: &[u8]) -> Result<Vec<Flaw>, StoreError> {
    match key.first() {
        Some(b'D') => entry::flaws(view, key, value),
        Some(b'I') => inode::flaws(view, key, value),
        _ => Ok(leftover::flaw(view, key, value)?.into_iter().collect()),
    }
}

/// Where the file system's counts are others than what there is; a count that is not known is
/// right.
#[must_use]
pub fn totals(
    said: &FileSystem,
    inodes: Option<u64>,
    reclaim_entries: Option<u64>,
) -> Option<Flaw> {
    let right_inodes = inodes.unwrap_or(said.inodes);
    let right_entries = reclaim_entries.unwrap_or(said.reclaim_entries);
    if (said.inodes, said.reclaim_entries) == (right_inodes, right_entries) {
        return None;
    }
    let text = format!(
        "the file system counts {} inodes and {} contents to free, and has {right_inodes} and \
         {right_entries}",
        said.inodes, said.reclaim_entries
    );
    let repair = Repair::Totals { inodes: right_inodes, reclaim_entries: right_entries };
    Some(Flaw {
        kind: FlawKind::WrongCount,
        inode: InodeId(0),
        place: None,
        text,
        repair: Some(repair),
    })
}
