//! What is in front of every request and every answer.

use crate::wire::{Wire, wire_struct};

wire_struct! {
    /// In front of every request (`fuse_in_header`).
    RequestHeader[40] {
        /// Length of the whole request, this header included.
        0 => len: u32,
        /// What is asked for: an [`Opcode`].
        4 => opcode: u32,
        /// Names the request in its answer and in an INTERRUPT. Even; an INTERRUPT's own is odd.
        /// The highest bit says that the request is sent again ([`UNIQUE_RESENT`]).
        8 => unique: u64,
        /// The inode that it is about; 1 is the root, 0 is none.
        16 => node: u64,
        /// The caller's file system user id; `u32::MAX` where the kernel asks for itself, or where
        /// an idmapped mount has none.
        24 => uid: u32,
        /// The caller's file system group id, or `u32::MAX`.
        28 => gid: u32,
        /// The caller's process id in the namespace of the server; 0 where it has none there, or
        /// where the kernel asks for itself.
        32 => pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes (7.38).
        36 => extension_units: u16,
    }
}

wire_struct! {
    /// In front of every answer (`fuse_out_header`).
    ReplyHeader[16] {
        /// Length of the whole answer, this header included.
        0 => len: u32,
        /// 0, or a negated errno; of a notification, its code.
        4 => error: i32,
        /// The request's; 0 is a notification.
        8 => unique: u64,
    }
}

/// Set in the unique of a request that NOTIFY_RESEND has made the kernel send again. The answer
/// carries it too.
pub const UNIQUE_RESENT: u64 = 1 << 63;

/// The inode id of a mount's root.
pub const ROOT_NODE: u64 = 1;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// Every opcode that this crate decodes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The opcode of that number, if this crate decodes it.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its number in a header.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                }
            }
        }
    };
}

opcodes! {
    /// Finds a name in a directory, and takes one reference to what it finds.
    Lookup = 1,
    /// Gives references back. Not answered.
    Forget = 2,
    /// Reads attributes.
    GetAttr = 3,
    /// Changes attributes.
    SetAttr = 4,
    /// Reads a symbolic link.
    ReadLink = 5,
    /// Makes a symbolic link.
    SymLink = 6,
    /// Makes a file, FIFO, socket or device.
    MkNod = 8,
    /// Makes a directory.
    MkDir = 9,
    /// Removes a name that is not a directory's.
    Unlink = 10,
    /// Removes an empty directory.
    RmDir = 11,
    /// Moves a name.
    Rename = 12,
    /// Gives an inode another name.
    Link = 13,
    /// Opens a file.
    Open = 14,
    /// Reads a file.
    Read = 15,
    /// Writes a file.
    Write = 16,
    /// Reads what statfs(2) says.
    StatFs = 17,
    /// Ends an open file: its last descriptor and mapping are gone.
    Release = 18,
    /// Makes a file durable.
    FSync = 20,
    /// Sets an extended attribute.
    SetXAttr = 21,
    /// Reads an extended attribute.
    GetXAttr = 22,
    /// Lists extended attributes.
    ListXAttr = 23,
    /// Removes an extended attribute.
    RemoveXAttr = 24,
    /// A descriptor of an open file is closed.
    Flush = 25,
    /// The first request of a session.
    Init = 26,
    /// Opens a directory.
    OpenDir = 27,
    /// Reads a directory.
    ReadDir = 28,
    /// Ends an open directory.
    ReleaseDir = 29,
    /// Makes a directory durable.
    FSyncDir = 30,
    /// Asks who holds a lock.
    GetLk = 31,
    /// Takes or gives back a lock, at once.
    SetLk = 32,
    /// Takes a lock, and waits for it.
    SetLkW = 33,
    /// Checks permission, where the kernel does not.
    Access = 34,
    /// Makes and opens a file.
    Create = 35,
    /// The caller of another request does not want to wait any more.
    Interrupt = 36,
    /// Maps a file's block to a device's (fuseblk only).
    BMap = 37,
    /// The last request of a session (fuseblk only).
    Destroy = 38,
    /// An ioctl on a file.
    IoCtl = 39,
    /// Asks which events an open file has.
    Poll = 40,
    /// Answers NOTIFY_RETRIEVE. Not answered.
    NotifyReply = 41,
    /// Gives references of several inodes back. Not answered.
    BatchForget = 42,
    /// Allocates or frees a range of a file.
    FAllocate = 43,
    /// Reads a directory, and looks up what is in it.
    ReadDirPlus = 44,
    /// Moves a name, with flags.
    Rename2 = 45,
    /// Finds data or a hole.
    LSeek = 46,
    /// Copies a range from file to file.
    CopyFileRange = 47,
    /// Makes a whole file system durable (servers that the kernel trusts only).
    SyncFs = 50,
    /// Makes and opens a file without a name.
    TmpFile = 51,
    /// Reads attributes that stat(2) does not have.
    StatX = 52,
    /// Copies a range, answered with 64 bits.
    CopyFileRange64 = 53,
}

impl Opcode {
    /// Whether the kernel waits for an answer.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        !matches!(self, Self::Forget | Self::BatchForget | Self::NotifyReply | Self::Interrupt)
    }
}

impl RequestHeader {
    /// The header of a whole request: what it says of the length must be so.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let header = Self::get(bytes)?;
        (usize::try_from(header.len) == Ok(bytes.len())).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_their_numbers() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode.number()), Some(*opcode));
        }
        for number in [0, 7, 19, 48, 49, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_number(number), None, "{number}");
        }
    }

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let header = RequestHeader { len: 48, opcode: 1, ..RequestHeader::default() };
        let mut bytes = header.encode().to_vec();
        assert_eq!(RequestHeader::of(&bytes), None);
        bytes.resize(48, 0);
        assert_eq!(RequestHeader::of(&bytes), Some(header));
        bytes.push(0);
        assert_eq!(RequestHeader::of(&bytes), None);
    }
}
