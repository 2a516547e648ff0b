//! One of the two file systems: does what it is told, and says what a program would have seen.

use std::{
    collections::BTreeMap,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat,
        Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fallocate,
        fchmod, fstat, fsync, ftruncate, getxattr, linkat, listxattr, mkdirat, mkfifoat, open,
        readlinkat, removexattr, renameat_with, setxattr, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use super::operation::{How, Operation, Place, SLOTS, Step, Time, Who};

/// What a program would have seen.
pub(super) type Seen = Result<String, Errno>;

/// A directory of the file system, by each of the paths that lead to it, and what is open in it.
pub(super) struct Side {
    roots: Vec<PathBuf>,
    open: [Option<OwnedFd>; SLOTS],
}

impl Side {
    /// A side with nothing open.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, open: Default::default() }
    }

    /// Does one step.
    pub(super) fn perform(&mut self, step: &Step) -> Seen {
        let root = self.roots[step.through % self.roots.len()].clone();
        let _role = Role::take(if matches!(step.operation, Operation::Punch(..)) {
            Who::Root
        } else {
            step.who
        });
        match &step.operation {
            operation @ (Operation::Open(..)
            | Operation::Close(..)
            | Operation::WriteAt(..)
            | Operation::Append(..)
            | Operation::ReadAt(..)
            | Operation::Truncate(..)
            | Operation::Punch(..)
            | Operation::Sync(..)
            | Operation::StatOpen(..)
            | Operation::ChangeModeOpen(..)) => self.perform_on_open(&root, operation),
            operation => perform_on_path(&root, operation),
        }
    }

    fn perform_on_open(&mut self, root: &Path, operation: &Operation) -> Seen {
        match operation {
            Operation::Open(slot, place, how, mode) => {
                let flags = flags(*how);
                let opened = open(path(root, place), flags, Mode::from_raw_mode(*mode))?;
                self.open[*slot] = Some(opened);
                Ok("opened".to_owned())
            }
            Operation::Close(slot) => {
                self.open[*slot] = None;
                Ok("closed".to_owned())
            }
            Operation::WriteAt(slot, at, length, byte) => {
                let file = self.file(*slot)?;
                done(file.write_all_at(&bytes(*length, *byte), *at).map_err(errno))
            }
            Operation::Append(slot, length, byte) => {
                let file = self.file(*slot)?;
                let end = file.metadata().map_err(errno)?.len();
                done(file.write_all_at(&bytes(*length, *byte), end).map_err(errno))
            }
            Operation::ReadAt(slot, at, length) => {
                let mut read = vec![0; *length];
                let count = self.file(*slot)?.read_at(&mut read, *at).map_err(errno)?;
                Ok(digest(&read[..count]))
            }
            Operation::Truncate(slot, size) => done(ftruncate(self.open(*slot)?, *size)),
            Operation::Punch(slot, at, length) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                done(fallocate(self.open(*slot)?, flags, *at, *length))
            }
            Operation::Sync(slot) => done(fsync(self.open(*slot)?)),
            Operation::StatOpen(slot) => Ok(described(&fstat(self.open(*slot)?)?)),
            Operation::ChangeModeOpen(slot, mode) => {
                done(fchmod(self.open(*slot)?, Mode::from_raw_mode(*mode)))
            }
            other => unreachable!("{other:?} is no operation on an open file"),
        }
    }

    fn open(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn file(&self, slot: usize) -> Result<File, Errno> {
        self.open(slot)?.try_clone().map(File::from).map_err(errno)
    }

    /// Closes everything, and tells all there is below each path that leads here.
    pub(super) fn everything(&mut self) -> Result<Vec<BTreeMap<String, String>>, Errno> {
        self.open = Default::default();
        self.roots.iter().map(|root| below(root)).collect()
    }
}

fn perform_on_path(root: &Path, operation: &Operation) -> Seen {
    let at = |place: &Place| path(root, place);
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    match operation {
        Operation::MakeDirectory(place, mode) => {
            done(mkdirat(CWD, at(place), Mode::from_raw_mode(*mode)))
        }
        Operation::MakeFifo(place, mode) => {
            done(mkfifoat(CWD, at(place), Mode::from_raw_mode(*mode)))
        }
        Operation::Symlink(target, place) => done(symlinkat(target.as_str(), CWD, at(place))),
        Operation::Link(old, new) => done(linkat(CWD, at(old), CWD, at(new), AtFlags::empty())),
        Operation::Unlink(place) => done(unlinkat(CWD, at(place), AtFlags::empty())),
        Operation::RemoveDirectory(place) => done(unlinkat(CWD, at(place), AtFlags::REMOVEDIR)),
        Operation::Rename(old, new, flags) => {
            let flags = RenameFlags::from_bits_retain(*flags);
            done(renameat_with(CWD, at(old), CWD, at(new), flags))
        }
        Operation::Stat(place) => Ok(described(&statat(CWD, at(place), no_follow)?)),
        Operation::ReadLink(place) => Ok(format!("{:?}", readlinkat(CWD, at(place), Vec::new())?)),
        Operation::List(place) => list(&at(place)).map(|names| format!("{names:?}")),
        Operation::ChangeMode(place, mode) => {
            done(chmodat(CWD, at(place), Mode::from_raw_mode(*mode), AtFlags::empty()))
        }
        Operation::ChangeOwner(place, user, group) => {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            done(chownat(CWD, at(place), user, group, no_follow))
        }
        Operation::SetTimes(place, read, written) => set_times(&at(place), *read, *written),
        Operation::TruncatePath(place, size) => {
            // Not truncate(2): the same checks, and the offset is never waited for on a FIFO.
            let opened = open(at(place), OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())?;
            done(ftruncate(opened, *size))
        }
        operation => perform_on_contents(root, operation),
    }
}

fn perform_on_contents(root: &Path, operation: &Operation) -> Seen {
    let at = |place: &Place| path(root, place);
    let mode = Mode::from_raw_mode(0o666);
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK;
    match operation {
        Operation::WriteFile(place, offset, length, byte) => {
            let file = File::from(open(at(place), write, mode)?);
            done(file.write_all_at(&bytes(*length, *byte), *offset).map_err(errno))
        }
        Operation::AppendFile(place, length, byte) => {
            let file = open(at(place), write | OFlags::APPEND, mode)?;
            let written = rustix::io::write(&file, &bytes(*length, *byte))?;
            Ok(format!("{written} bytes"))
        }
        Operation::ReadFile(place) => read_all(&at(place)).map(|bytes| digest(&bytes)),
        Operation::SetAttribute(place, name, length, mode) => {
            let flags = XattrFlags::from_bits_retain(u32::from(*mode));
            done(setxattr(at(place), attribute(*name), &bytes(*length, *name), flags))
        }
        Operation::GetAttribute(place, name) => {
            let mut value = vec![0; 8192];
            let length = getxattr(at(place), attribute(*name), &mut value)?;
            Ok(digest(&value[..length]))
        }
        Operation::RemoveAttribute(place, name) => done(removexattr(at(place), attribute(*name))),
        Operation::ListAttributes(place) => {
            let mut list = vec![0; 4096];
            let length = listxattr(at(place), &mut list)?;
            let text = String::from_utf8_lossy(&list[..length]).into_owned();
            let mut names: Vec<_> = text.split('\0').filter(|name| !name.is_empty()).collect();
            names.sort_unstable();
            Ok(format!("{names:?}"))
        }
        other => unreachable!("{other:?} is no operation on a path"),
    }
}

/// Sets times and looks at once, before anything else moves them. Those of now are not compared.
fn set_times(path: &Path, read: Time, written: Time) -> Seen {
    let spec = |time| match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Time::Kept => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Time::At(seconds, nanoseconds) => {
            Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) }
        }
    };
    let times = Timestamps { last_access: spec(read), last_modification: spec(written) };
    // Before: walking to a place through a symbolic link reads that, which may be what is at it.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    let stat = fstat(&file)?;
    let shown = |time, seconds: i64, nanoseconds: u64| match time {
        Time::At(..) => format!("{seconds}.{nanoseconds:09}"),
        Time::Now | Time::Kept => String::new(),
    };
    let read = shown(read, stat.st_atime, stat.st_atime_nsec);
    Ok(format!("{read} {}", shown(written, stat.st_mtime, stat.st_mtime_nsec)))
}

fn path(root: &Path, place: &Place) -> PathBuf {
    // `join` keeps a slash at the end, which means something.
    root.join(&place.0)
}

fn flags(how: How) -> OFlags {
    let access = match (how.read, how.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let chosen = [
        (how.create, OFlags::CREATE),
        (how.exclusive, OFlags::EXCL),
        (how.truncate, OFlags::TRUNC),
        (how.append, OFlags::APPEND),
        (how.directory, OFlags::DIRECTORY),
        (how.no_follow, OFlags::NOFOLLOW),
        // Nobody waits for the other end of a FIFO.
        (true, OFlags::NONBLOCK),
    ];
    chosen.into_iter().filter(|(on, _)| *on).fold(access, |all, (_, flag)| all | flag)
}

fn attribute(number: u8) -> String {
    format!("user.attribute-{number}")
}

/// Bytes that tell their own place.
fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|place| (place % 251).to_le_bytes()[0] ^ seed).collect()
}

fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{} bytes, {:016x}", bytes.len(), hasher.finish())
}

fn done(result: Result<(), Errno>) -> Seen {
    result.map(|()| "done".to_owned())
}

fn errno(error: std::io::Error) -> Errno {
    match Errno::from_io_error(&error) {
        Some(errno) => errno,
        None => panic!("an error of the system has a number: {error}"),
    }
}

/// Sizes of directories are each file system's own; all else is POSIX.
fn described(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mode = stat.st_mode & 0o7777;
    let size = if kind == FileType::Directory { 0 } else { stat.st_size };
    let (user, group, links) = (stat.st_uid, stat.st_gid, stat.st_nlink);
    format!("{kind:?} {mode:04o}, {links} links, {user}:{group}, {size} bytes")
}

fn list(path: &Path) -> Result<BTreeMap<String, String>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut names = BTreeMap::new();
    for entry in Dir::new(open(path, flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = format!("{:?}", entry.file_type());
        assert!(names.insert(name, kind).is_none(), "a name appears once in a listing");
    }
    Ok(names)
}

fn read_all(path: &Path) -> Result<Vec<u8>, Errno> {
    let file = File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?);
    let mut all = vec![0; 2 << 20];
    let mut filled = 0;
    loop {
        match rustix::io::read(&file, &mut all[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    all.truncate(filled);
    Ok(all)
}

/// Everything below a directory: its place, attributes, and contents.
fn below(root: &Path) -> Result<BTreeMap<String, String>, Errno> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![String::new()];
    while let Some(directory) = waiting.pop() {
        for name in list(&root.join(&directory))?.into_keys() {
            if name == "." || name == ".." {
                continue;
            }
            let place = format!("{directory}{name}");
            let full = root.join(&place);
            let stat = statat(CWD, &full, AtFlags::SYMLINK_NOFOLLOW)?;
            let more = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    waiting.push(format!("{place}/"));
                    String::new()
                }
                FileType::RegularFile => digest(&read_all(&full)?),
                FileType::Symlink => format!("{:?}", readlinkat(CWD, &full, Vec::new())?),
                _ => String::new(),
            };
            all.insert(place, format!("{}; {more}", described(&stat)));
        }
    }
    Ok(all)
}

/// Whose rights this thread has, until it is dropped.
struct Role(Who);

impl Role {
    fn take(who: Who) -> Self {
        let (user, groups): (u32, &[u32]) = match who {
            Who::Root => return Self(who),
            Who::Owner => (1000, &[]),
            Who::Member => (1001, &[1000]),
            Who::Stranger => (1002, &[]),
        };
        let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&groups).expect("the tests run as root");
        set_thread_res_gid(None, group, None).expect("the tests run as root");
        set_thread_res_uid(None, user, None).expect("the tests run as root");
        Self(who)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if self.0 != Who::Root {
            set_thread_res_uid(None, Uid::ROOT, None).expect("the saved user is root");
            set_thread_res_gid(None, Gid::ROOT, None).expect("the saved group is root");
            set_thread_groups(&[Gid::ROOT]).expect("this thread is root's again");
        }
    }
}
