//! The kernel's values to ours and back.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use millrace_fuse_server::{
    Errno,
    protocol::{
        attr::{Attr, SetAttr, SetAttrFields},
        data::Write,
        lock::{FileLock, Lock, LockFlags},
        node::RenameFlags,
        statx::{StatXAttr, StatXTime},
    },
};
use millrace_protocol::{
    lock::{self, LockConflict, LockSpace},
    metadata::{Attributes, FileKind, NewNode, RenameMode, SetTime},
    storage::TRANSFER_LEN_MAX,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LockKind, LockRange, Timestamp};

use crate::fs::{attributes::Changes, names::NewMode, write::Place};

/// The error number of a failure.
pub(super) fn errno(failure: &Failure) -> Errno {
    Errno::from_raw_os_error(failure.kind.errno())
}

/// A name as the kernel gives it.
pub(super) fn file_name(name: &OsStr) -> Result<FileName, Failure> {
    FileName::parse(name.as_bytes()).map_err(Failure::from)
}

/// Where a write goes. The kernel's own end of the file may be old, so that an append is one by its
/// flag; what comes from the page cache, as of a mapping, has none.
pub(super) fn place(write: &Write) -> Place {
    let appends = write.flags & libc::O_APPEND.cast_unsigned() != 0;
    if appends { Place::End } else { Place::At(write.offset) }
}

/// Whether one write is to be durable when it is answered, whatever its descriptor was opened with
/// (`RWF_DSYNC`, `RWF_SYNC`). The kernel tells that of writes that do not go through its pages;
/// after others it asks for a sync itself.
pub(super) fn syncs(write: &Write) -> bool {
    write.flags & libc::O_DSYNC.cast_unsigned() != 0
}

/// Attributes as the kernel takes them, under the node number `ino`.
pub(super) fn file_attr(attributes: &Attributes, ino: u64) -> Attr {
    let (atime, atime_nsec) = seconds(attributes.accessed);
    let (mtime, mtime_nsec) = seconds(attributes.modified);
    let (ctime, ctime_nsec) = seconds(attributes.changed);
    Attr {
        ino,
        size: attributes.size,
        blocks: attributes.size.div_ceil(STAT_BLOCK_SIZE),
        atime,
        mtime,
        ctime,
        atime_nsec,
        mtime_nsec,
        ctime_nsec,
        mode: file_mode(attributes),
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: TRANSFER_LEN_MAX,
        ..Attr::default()
    }
}

/// The same with what only statx(2) shows: when the inode was made.
pub(super) fn file_statx(attributes: &Attributes, ino: u64) -> StatXAttr {
    let time = |time| {
        let (seconds, nanoseconds) = seconds(time);
        StatXTime { seconds, nanoseconds }
    };
    StatXAttr {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: TRANSFER_LEN_MAX,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: u16::try_from(file_mode(attributes)).expect("a type and twelve bits"),
        ino,
        size: attributes.size,
        blocks: attributes.size.div_ceil(STAT_BLOCK_SIZE),
        atime: time(attributes.accessed),
        btime: time(attributes.born),
        ctime: time(attributes.changed),
        mtime: time(attributes.modified),
        rdev_major: libc::major(attributes.device.into()),
        rdev_minor: libc::minor(attributes.device.into()),
        ..StatXAttr::default()
    }
}

/// Type and permissions, as `st_mode` has them.
fn file_mode(attributes: &Attributes) -> u32 {
    file_type(attributes.kind) | u32::from(attributes.mode)
}

/// A kind as `st_mode` has it.
pub(super) fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// What `mknod` makes.
pub(super) fn new_node(mode: u32, device: u32) -> Result<NewNode, Failure> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(NewNode::Regular),
        libc::S_IFIFO => Ok(NewNode::Fifo),
        libc::S_IFSOCK => Ok(NewNode::Socket),
        libc::S_IFCHR => Ok(NewNode::CharDevice(device)),
        libc::S_IFBLK => Ok(NewNode::BlockDevice(device)),
        _ => Err(ErrorKind::InvalidArgument.into()),
    }
}

/// Permission bits of a mode, less those that the umask takes away.
fn permissions(mode: u32, umask: u32) -> u16 {
    u16::try_from(mode & !umask & 0o7777).expect("twelve bits")
}

/// The mode of what is made. With access control lists the umask stays apart, because a default
/// list may stand in its place.
pub(super) fn new_mode(mode: u32, umask: u32, acl: bool) -> NewMode {
    if acl {
        NewMode { mode: permissions(mode, 0), umask: permissions(umask, !0o777) }
    } else {
        NewMode { mode: permissions(mode, umask), umask: 0 }
    }
}

/// What a rename does to an existing target.
pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, Failure> {
    match flags {
        RenameFlags::EMPTY => Ok(RenameMode::Replace),
        RenameFlags::NO_REPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(ErrorKind::InvalidArgument.into()),
    }
}

/// A lock that is asked for, or given back. One of flock is the open file's, whose number nobody
/// has again; the kernel's name for it goes to others before the close is told.
pub(super) fn file_lock(asked: &Lock, inode: InodeId) -> Result<lock::Lock, Failure> {
    let kind = match asked.lock.kind {
        FileLock::READ => Some(LockKind::Read),
        FileLock::WRITE => Some(LockKind::Write),
        FileLock::UNLOCKED => None,
        _ => return Err(ErrorKind::InvalidArgument.into()),
    };
    let flock = asked.flags.contains(LockFlags::FLOCK);
    let (start, last) = (asked.lock.start, asked.lock.end.min(LockRange::END));
    let (space, range, owner) = match flock {
        true => (LockSpace::Flock, LockRange::WHOLE, asked.handle),
        false => (LockSpace::Range, LockRange { start, last }.checked()?, asked.owner),
    };
    Ok(lock::Lock { inode, space, owner, kind, range, process: asked.lock.pid })
}

/// A lock that is in the way, as the kernel takes it. Processes of other hosts are shown as 0.
pub(super) fn conflicting(conflict: LockConflict) -> FileLock {
    let kind = match conflict.kind {
        LockKind::Read => FileLock::READ,
        LockKind::Write => FileLock::WRITE,
    };
    let LockRange { start, last } = conflict.range;
    FileLock { start, end: last, kind, pid: conflict.process }
}

/// What a SETATTR changes.
pub(super) fn changes(set: &SetAttr) -> Changes {
    let has = |field| set.valid.contains(field);
    let time = |given, now, seconds, nanoseconds| match (has(given), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(timestamp(seconds, nanoseconds))),
        (false, false) => None,
    };
    let (atime, mtime) = (SetAttrFields::ATIME, SetAttrFields::MTIME);
    Changes {
        mode: has(SetAttrFields::MODE).then(|| permissions(set.mode, 0)),
        uid: has(SetAttrFields::UID).then_some(set.uid),
        gid: has(SetAttrFields::GID).then_some(set.gid),
        size: has(SetAttrFields::SIZE).then_some(set.size),
        accessed: time(atime, SetAttrFields::ATIME_NOW, set.atime, set.atime_nsec),
        modified: time(mtime, SetAttrFields::MTIME_NOW, set.mtime, set.mtime_nsec),
    }
}

/// What lies beyond what 64 bits of nanoseconds can say (the years 1677 to 2262) is cut off there.
fn timestamp(seconds: i64, nanoseconds: u32) -> Timestamp {
    let nanos = i128::from(seconds) * i128::from(NANOS) + i128::from(nanoseconds);
    let nearest = if nanos < 0 { i64::MIN } else { i64::MAX };
    Timestamp(i64::try_from(nanos).unwrap_or(nearest))
}

/// Seconds since 1970, and nanoseconds from there on.
fn seconds(time: Timestamp) -> (i64, u32) {
    let nanoseconds = u32::try_from(time.0.rem_euclid(NANOS)).expect("less than a second");
    (time.0.div_euclid(NANOS), nanoseconds)
}

/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;

/// `st_blocks` counts these.
const STAT_BLOCK_SIZE: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there_and_back_also_before_1970() {
        for nanos in [0, 1, -1, 1_500_000_000_123_456_789, -86_400_000_000_001, i64::MIN, i64::MAX]
        {
            let (seconds, nanoseconds) = seconds(Timestamp(nanos));
            assert!(nanoseconds < 1_000_000_000);
            assert_eq!(timestamp(seconds, nanoseconds), Timestamp(nanos));
        }
        assert_eq!(seconds(Timestamp(-1)), (-1, 999_999_999));
        assert_eq!(timestamp(i64::MAX, 0), Timestamp(i64::MAX));
        assert_eq!(timestamp(i64::MIN, 0), Timestamp(i64::MIN));
    }

    #[test]
    fn only_what_is_named_is_changed() {
        let set = SetAttr { mode: 0o100_644, size: 9, mtime: 5, atime: 6, ..SetAttr::default() };
        let only = |valid| changes(&SetAttr { valid, ..set });
        let nothing = only(SetAttrFields::EMPTY);
        assert_eq!(nothing, Changes::default());
        assert_eq!(only(SetAttrFields::MODE), Changes { mode: Some(0o644), ..nothing });
        assert_eq!(only(SetAttrFields::SIZE), Changes { size: Some(9), ..nothing });
        let at = Some(SetTime::At(Timestamp(5_000_000_000)));
        assert_eq!(only(SetAttrFields::MTIME), Changes { modified: at, ..nothing });
        let now = SetAttrFields::ATIME | SetAttrFields::ATIME_NOW;
        assert_eq!(only(now), Changes { accessed: Some(SetTime::Now), ..nothing });
    }

    #[test]
    fn locks_of_flock_are_on_whole_files_and_ranges_end_at_the_largest_offset() {
        let end = i64::MAX.unsigned_abs();
        let range = FileLock { start: 5, end, kind: FileLock::WRITE, pid: 42 };
        let asked = Lock { handle: 1, owner: 77, lock: range, flags: LockFlags::EMPTY };
        let lock = file_lock(&asked, InodeId(3)).expect("sound");
        let expected = LockRange { start: 5, last: LockRange::END };
        assert_eq!((lock.range, lock.kind, lock.owner), (expected, Some(LockKind::Write), 77));
        let conflict = LockConflict { range: expected, kind: LockKind::Write, process: 42 };
        assert_eq!(conflicting(conflict), range);
        let flock = Lock { flags: LockFlags::FLOCK, ..asked };
        let lock = file_lock(&flock, InodeId(3)).expect("sound");
        assert_eq!((lock.range, lock.space), (LockRange::WHOLE, LockSpace::Flock));
        assert_eq!(lock.owner, 1, "the open file's");
        let backwards = FileLock { start: 5, end: 4, ..range };
        assert!(file_lock(&Lock { lock: backwards, ..asked }, InodeId(3)).is_err());
        let unknown = FileLock { kind: 9, ..range };
        assert!(file_lock(&Lock { lock: unknown, ..asked }, InodeId(3)).is_err());
    }

    #[test]
    fn a_mode_without_a_type_makes_a_file_and_an_unknown_type_is_refused() {
        assert_eq!(new_node(0o644, 0), Ok(NewNode::Regular));
        assert_eq!(new_node(libc::S_IFCHR | 0o600, 5), Ok(NewNode::CharDevice(5)));
        assert!(new_node(libc::S_IFDIR | 0o755, 0).is_err());
        let of = |acl| new_mode(libc::S_IFREG | 0o4777, 0o022, acl);
        assert_eq!(of(false), NewMode { mode: 0o4755, umask: 0 });
        assert_eq!(of(true), NewMode { mode: 0o4777, umask: 0o022 });
    }
}
