//! Commands that repair the namespace where it does not agree with itself.

use millrace_types::{FileName, InodeId};
use rkyv::{Archive, Deserialize, Serialize};

/// One repair. It looks by itself what is wrong, and changes nothing where nothing is; counts come
/// with the command, and hold at its index.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Repair {
    /// A name: it goes where it leads nowhere, else its inode learns of it.
    Entry { directory: InodeId, name: FileName },
    /// An inode: its counts become what is there; where nothing leads to it, it is named in
    /// [`LOST_FOUND`].
    Inode { inode: InodeId },
    /// A record that belongs to something that is not there, or is there half.
    Leftover { key: Vec<u8> },
    /// A directory has so many names, and so many of them are of directories.
    Counts { directory: InodeId, entries: u64, directories: u32 },
    /// The file system has so many inodes, and so many entries in the queues of targets.
    Totals { inodes: u64, reclaim_entries: u64 },
    /// Makes [`LOST_FOUND`], if there is no such name.
    LostFound { inode: InodeId },
}

/// The directory below the root for what nothing leads to.
pub const LOST_FOUND: &[u8] = b"lost+found";
