//! Attributes: GETATTR, SETATTR, ACCESS.

use std::time::Duration;

use crate::wire::{Wire, flag_set, wire_struct};

wire_struct! {
    /// An inode's attributes (`fuse_attr`).
    Attr[88] {
        /// What stat(2) shows as the inode's number; need not be the node id.
        0 => ino: u64,
        /// In bytes.
        8 => size: u64,
        /// In units of 512 bytes.
        16 => blocks: u64,
        /// Last access, in seconds since 1970.
        24 => atime: i64,
        /// Last change of the content.
        32 => mtime: i64,
        /// Last change of content or attributes.
        40 => ctime: i64,
        /// Nanoseconds of `atime`.
        48 => atime_nsec: u32,
        /// Nanoseconds of `mtime`.
        52 => mtime_nsec: u32,
        /// Nanoseconds of `ctime`.
        56 => ctime_nsec: u32,
        /// Type and permissions, as `st_mode` has them.
        60 => mode: u32,
        /// Number of names.
        64 => nlink: u32,
        /// Owner.
        68 => uid: u32,
        /// Group.
        72 => gid: u32,
        /// Of a device, its number as the kernel encodes it in 32 bits.
        76 => rdev: u32,
        /// What is a good size for reads and writes; 0 leaves it to the kernel.
        80 => blksize: u32,
        /// See [`AttrFlags`] (7.32).
        84 => flags: AttrFlags,
    }
}

flag_set! {
    /// What an inode is besides.
    AttrFlags: u32 {
        /// The root of a submount: has a device number of its own (with `SUBMOUNTS`).
        SUBMOUNT = 0,
        /// Its content is mapped directly (virtiofs only).
        DAX = 1,
    }
}

wire_struct! {
    /// Asks for attributes (`fuse_getattr_in`).
    GetAttr[16] {
        /// See [`GetAttrFlags`].
        0 => flags: GetAttrFlags,
        /// The open file that is asked through, if the flag says so.
        8 => handle: u64,
    }
}

flag_set! {
    /// How attributes are asked for.
    GetAttrFlags: u32 {
        /// The handle is valid.
        HANDLE = 0,
    }
}

wire_struct! {
    /// Answers GETATTR and SETATTR (`fuse_attr_out`).
    AttrReply[104] {
        /// For how many seconds the kernel may believe the attributes.
        0 => valid: u64,
        /// And nanoseconds.
        8 => valid_nsec: u32,
        /// The attributes.
        16 => attr: Attr,
    }
}

impl AttrReply {
    /// Attributes that the kernel may believe for `valid`.
    #[must_use]
    pub fn new(attr: Attr, valid: Duration) -> Self {
        Self { valid: valid.as_secs(), valid_nsec: valid.subsec_nanos(), attr }
    }
}

wire_struct! {
    /// Changes attributes: those that `valid` names (`fuse_setattr_in`).
    SetAttr[88] {
        /// Which of the fields count.
        0 => valid: SetAttrFields,
        /// The open file that is changed through.
        8 => handle: u64,
        /// The new size.
        16 => size: u64,
        /// Who locks, for mandatory locks on a range that is cut off.
        24 => lock_owner: u64,
        /// The new time of access.
        32 => atime: i64,
        /// The new time of change of the content.
        40 => mtime: i64,
        /// The new time of change; only with the writeback cache.
        48 => ctime: i64,
        /// Nanoseconds of `atime`.
        56 => atime_nsec: u32,
        /// Nanoseconds of `mtime`.
        60 => mtime_nsec: u32,
        /// Nanoseconds of `ctime`.
        64 => ctime_nsec: u32,
        /// The new permissions (with the type, which does not change).
        68 => mode: u32,
        /// The new owner.
        76 => uid: u32,
        /// The new group.
        80 => gid: u32,
    }
}

flag_set! {
    /// Which attributes are changed, and how.
    SetAttrFields: u32 {
        /// `mode`.
        MODE = 0,
        /// `uid`.
        UID = 1,
        /// `gid`.
        GID = 2,
        /// `size`.
        SIZE = 3,
        /// `atime`, unless it is set to now.
        ATIME = 4,
        /// `mtime`, unless it is set to now.
        MTIME = 5,
        /// `handle` is valid.
        HANDLE = 6,
        /// The time of access becomes now.
        ATIME_NOW = 7,
        /// The time of change of the content becomes now.
        MTIME_NOW = 8,
        /// `lock_owner` is valid.
        LOCK_OWNER = 9,
        /// `ctime`.
        CTIME = 10,
        /// Take set-user-id and set-group-id away (with `HANDLE_KILLPRIV_V2`).
        KILL_SUIDGID = 11,
    }
}

wire_struct! {
    /// Checks permission (`fuse_access_in`); the kernel does it itself with the mount option
    /// `default_permissions`.
    Access[8] {
        /// As access(2) has it: 4 read, 2 write, 1 execute, 0 exists.
        0 => mask: u32,
    }
}

wire_struct! {
    /// Answers LOOKUP and whatever makes a name (`fuse_entry_out`). Each takes one reference, which
    /// FORGET gives back.
    EntryReply[128] {
        /// The inode's id in later requests. 0 is *no such name*, which the kernel may believe for
        /// `entry_valid` too.
        0 => node: u64,
        /// Tells apart inodes that had the same id one after the other.
        8 => generation: u64,
        /// For how many seconds the kernel may believe the name.
        16 => entry_valid: u64,
        /// For how many seconds it may believe the attributes.
        24 => attr_valid: u64,
        /// Nanoseconds of `entry_valid`.
        32 => entry_valid_nsec: u32,
        /// Nanoseconds of `attr_valid`.
        36 => attr_valid_nsec: u32,
        /// The attributes.
        40 => attr: Attr,
    }
}

impl EntryReply {
    /// A name of inode `node`, which the kernel may believe for `valid`, as the attributes.
    #[must_use]
    pub fn new(node: u64, attr: Attr, valid: Duration) -> Self {
        let (seconds, nanoseconds) = (valid.as_secs(), valid.subsec_nanos());
        Self {
            node,
            generation: 0,
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_nsec: nanoseconds,
            attr_valid_nsec: nanoseconds,
            attr,
        }
    }

    /// That there is no such name, which the kernel may believe for `valid`.
    #[must_use]
    pub fn absent(valid: Duration) -> Self {
        Self {
            entry_valid: valid.as_secs(),
            entry_valid_nsec: valid.subsec_nanos(),
            ..Self::default()
        }
    }
}

/// References to one inode that are given back (`fuse_forget_one`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The inode.
    pub node: u64,
    /// How many.
    pub lookups: u64,
}

/// What BATCH_FORGET gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'request> {
    /// Whole entries of 16 bytes.
    entries: &'request [u8],
}

impl<'request> Forgets<'request> {
    /// Reads the body of BATCH_FORGET.
    pub(crate) fn decode(body: &'request [u8]) -> Option<Self> {
        let count = usize::try_from(u32::get(body)?).ok()?;
        let len = count.checked_mul(FORGOTTEN_LEN)?;
        let entries = body.get(FORGETS_HEAD_LEN..)?;
        (entries.len() == len).then_some(Self { entries })
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Forgotten> + use<'request> {
        let (entries, _) = self.entries.as_chunks::<FORGOTTEN_LEN>();
        entries.iter().filter_map(|entry| {
            Some(Forgotten { node: u64::get(entry)?, lookups: u64::get(&entry[8..])? })
        })
    }
}

/// Bytes of one entry of BATCH_FORGET: inode and number.
const FORGOTTEN_LEN: usize = 16;
/// Bytes in front of the entries: their number, and padding.
const FORGETS_HEAD_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_forgets_has_as_many_as_it_says() {
        let mut body = Vec::new();
        body.extend(2_u32.to_ne_bytes());
        body.extend(0_u32.to_ne_bytes());
        for number in [7_u64, 1, 8, u64::MAX] {
            body.extend(number.to_ne_bytes());
        }
        let forgets: Vec<_> = Forgets::decode(&body).unwrap().iter().collect();
        let expected =
            [Forgotten { node: 7, lookups: 1 }, Forgotten { node: 8, lookups: u64::MAX }];
        assert_eq!(forgets, expected);
        assert!(Forgets::decode(&body[..39]).is_none());
        body[0] = 3;
        assert!(Forgets::decode(&body).is_none());
        body[3] = 255;
        assert!(Forgets::decode(&body).is_none());
    }
}
