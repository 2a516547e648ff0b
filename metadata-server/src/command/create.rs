//! Commands that make an inode otherwise than [`Create`] does.

use millrace_protocol::session::Caller;
use millrace_types::{InodeId, Layout, SessionId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use super::Create;

/// Makes an inode and its name, in a directory that may have a default access control list: that
/// stands in the umask's place.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CreateMasked {
    /// What to make, with the mode that the program asked for.
    pub create: Create,
    /// The permissions that the program's umask takes away.
    pub umask: u16,
}

/// Makes a file without a name and opens it for writing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CreateUnnamed {
    /// For whom.
    pub caller: Caller,
    /// The directory that it would be in.
    pub directory: InodeId,
    /// The id of the new inode.
    pub inode: InodeId,
    /// Where its layout begins.
    pub seed: u32,
    /// Permission bits.
    pub mode: u16,
    /// The permissions that the program's umask takes away.
    pub umask: u16,
    /// Who has it open.
    pub session: SessionId,
    /// Whether it may get a name.
    pub nameable: bool,
}

/// Makes a file of which its maker has told nobody before, with what the targets have of it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Publish {
    /// What to make: a file that is open for writing, under a name that must not exist.
    pub create: Create,
    /// Where its bytes are: as it was when its maker began to write them.
    pub layout: Layout,
    /// When it was made; never later than the command.
    pub made_at: Timestamp,
    /// One past its last byte.
    pub end: u64,
    /// When the last of them was written, if any was.
    pub written_at: Option<Timestamp>,
}
