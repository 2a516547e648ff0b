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

use super::mount::unmount_with_helper;

/// Makes sure that `path` can be mounted on: a mount whose server has died is taken away.
///
/// # Errors
/// When there is no such directory, or the dead mount cannot be taken away.
pub(super) fn prepare(path: &Path) -> io::Result<PathBuf> {
    // One may lie on another, from several crashes.
    for _ in 0..DEAD_MOUNTS_MAX {
        // The kernel may still believe what a dead server has said: so it has to ask.
        match rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE) {
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

/// Major and minor number of what is mounted there, without asking its server.
///
/// # Errors
/// When it cannot be looked at.
pub(super) fn device(path: &Path) -> io::Result<(u32, u32)> {
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
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
