//! The kernel's values to ours and back.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use millrace_protocol::metadata::{Attributes, FileKind, NewNode, RenameMode, SetTime};
use millrace_types::{ErrorKind, Failure, FileName, Timestamp};

/// The error number of a failure.
pub(super) fn errno(failure: &Failure) -> Errno {
    Errno::from_i32(failure.kind.errno())
}

/// A name as the kernel gives it.
pub(super) fn file_name(name: &OsStr) -> Result<FileName, Failure> {
    FileName::parse(name.as_bytes()).map_err(Failure::from)
}

/// Attributes as the kernel takes them, under the node number `ino`.
pub(super) fn file_attr(attributes: &Attributes, ino: INodeNo) -> FileAttr {
    FileAttr {
        ino,
        size: attributes.size,
        blocks: attributes.size.div_ceil(STAT_BLOCK_SIZE),
        atime: system_time(attributes.accessed),
        mtime: system_time(attributes.modified),
        ctime: system_time(attributes.changed),
        crtime: system_time(attributes.born),
        kind: file_type(attributes.kind),
        perm: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: PREFERRED_IO_SIZE,
        flags: 0,
    }
}

/// A kind as the kernel takes it.
pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
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
pub(super) fn permissions(mode: u32, umask: u32) -> u16 {
    u16::try_from(mode & !umask & 0o7777).expect("twelve bits")
}

/// What a rename does to an existing target.
pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, Failure> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(ErrorKind::InvalidArgument.into())
    }
}

/// A time to set.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp(nanoseconds(since)),
        Err(before) => Timestamp(nanoseconds(before.duration()).saturating_neg()),
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn system_time(time: Timestamp) -> SystemTime {
    let distance = Duration::from_nanos(time.0.unsigned_abs());
    let shifted = if time.0 >= 0 {
        UNIX_EPOCH.checked_add(distance)
    } else {
        UNIX_EPOCH.checked_sub(distance)
    };
    shifted.unwrap_or(UNIX_EPOCH)
}

/// `st_blocks` counts these.
const STAT_BLOCK_SIZE: u64 = 512;

/// `st_blksize`: programs that copy in this unit (`cp`, `cat`) send whole transfers.
const PREFERRED_IO_SIZE: u32 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there_and_back_also_before_1970() {
        for nanos in [0, 1, -1, 1_500_000_000_123_456_789, -86_400_000_000_001] {
            assert_eq!(timestamp(system_time(Timestamp(nanos))), Timestamp(nanos));
        }
    }

    #[test]
    fn a_mode_without_a_type_makes_a_file_and_an_unknown_type_is_refused() {
        assert_eq!(new_node(0o644, 0), Ok(NewNode::Regular));
        assert_eq!(new_node(libc::S_IFCHR | 0o600, 5), Ok(NewNode::CharDevice(5)));
        assert!(new_node(libc::S_IFDIR | 0o755, 0).is_err());
        assert_eq!(permissions(libc::S_IFREG | 0o4777, 0o022), 0o4755);
    }
}
