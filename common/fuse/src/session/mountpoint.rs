//! The mount point: what is there before, and how it is given back.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, RawMode, StatxFlags},
    io::Errno,
    mount::UnmountFlags,
};

use super::{SessionError, mount::unmount_with_helper};

/// A directory that can be mounted on.
#[derive(Debug)]
pub struct PreparedMountpoint {
    /// Without symbolic links.
    pub(super) path: PathBuf,
}

impl PreparedMountpoint {
    /// Looks at what is at `path`: a mount whose server has died is taken away. One that lives is
    /// asked, and if its server says nothing this waits for it. A signal that ends the process ends
    /// that, and one that is handled does not.
    ///
    /// # Errors
    /// [`SessionError::Mountpoint`] when there is no such directory, or the dead mount cannot be
    /// taken away.
    pub fn new(path: &Path) -> Result<Self, SessionError> {
        match prepare(path) {
            Ok(path) => Ok(Self { path }),
            Err(error) => Err(SessionError::Mountpoint { path: path.to_owned(), error }),
        }
    }
}

fn prepare(path: &Path) -> io::Result<PathBuf> {
    // One may lie on another, from several crashes.
    for _ in 0..DEAD_MOUNTS_MAX {
        // The kernel may still believe what a dead server has said: so it has to ask.
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE) {
            // ECONNABORTED: it was cut off, with `ABORT_ERROR`. ECANCELED: its ring is being taken
            // apart, which goes on for a while after its process has ended.
            Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => {
                tracing::warn!(path = %path.display(), "replaces the mount of a dead server");
                detach(path)?;
            }
            Err(error) => return Err(error.into()),
            Ok(found) => {
                let mode = RawMode::from(found.stx_mode);
                if FileType::from_raw_mode(mode) != FileType::Directory {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                return path.canonicalize();
            }
        }
    }
    Err(io::Error::from(Errno::NOTCONN))
}

/// Major and minor number of what is mounted there, without asking its server, and without having
/// an automount mount.
///
/// # Errors
/// When it cannot be looked at.
pub(super) fn device(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether a mount with this device number is in sight at all, wherever. This looks at no path: a
/// path may belong to an automount that waits for the next mount, and so would who looks at it.
///
/// # Errors
/// When the table of mounts cannot be read.
pub(super) fn is_listed((major, minor): (u32, u32)) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let number = format!("{major}:{minor}");
    // proc(5): the third field of a line.
    let shows = |line: &[u8]| line.split(|&byte| byte == b' ').nth(2) == Some(number.as_bytes());
    Ok(table.split(|&byte| byte == b'\n').any(shows))
}

/// Unmounts; EBUSY when it is in use.
///
/// # Errors
/// When it is in use, or may not be unmounted.
pub(super) fn unmount(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_with_helper(path, false),
        Err(error) => Err(error.into()),
    }
}

/// Takes a mount out of sight; it ends with its last user.
///
/// # Errors
/// When it is none, or may not be unmounted.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_with_helper(path, true),
        Err(error) => Err(error.into()),
    }
}

/// Ends the connection of the mount there, which has that device number, and takes it out of sight:
/// everybody who waits gets ECONNABORTED.
///
/// # Errors
/// When this user may not.
pub(super) fn abort(path: &Path, (_, minor): (u32, u32)) -> io::Result<()> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        // Whoever has mounted may still do it through the control file system, where it is mounted.
        Err(Errno::PERM) => {
            fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")?;
            unmount_with_helper(path, true)
        }
        Err(error) => Err(error.into()),
    }
}

/// More than this many crashes on one mount point are something else.
const DEAD_MOUNTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_listed_by_its_number() {
        let (major, minor) = device(Path::new("/proc")).unwrap();
        assert!(is_listed((major, minor)).unwrap());
        assert!(!is_listed((major, u32::MAX)).unwrap());
        assert!(!is_listed((u32::MAX, minor)).unwrap());
    }
}
