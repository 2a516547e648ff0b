//! Where a mount's daemon listens for people's commands: a rule that both sides know.
//!
//! The place follows from the mount alone, as the kernel's table shows it to everybody: its device
//! number and the user who made it. So a command finds the daemon without asking the mount, which
//! may hang, and without sharing settings or an environment with it.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// The places of one mount's socket, the one to prefer first. A daemon takes the first where it can
/// listen: a user who is not root usually gets the second, and without a login session the third.
///
/// `device` is the mount's number, major and minor; `user` whoever mounted it.
#[must_use]
pub fn places(device: (u32, u32), user: u32) -> [PathBuf; 3] {
    let name = format!("mount-{}-{}.sock", device.0, device.1);
    directories(user).map(|directory| directory.join(&name))
}

/// The directories of [`places`], in the same order.
#[must_use]
pub fn directories(user: u32) -> [PathBuf; 3] {
    [
        PathBuf::from("/run/millrace"),
        PathBuf::from(format!("/run/user/{user}/millrace")),
        PathBuf::from(format!("/tmp/millrace-{user}")),
    ]
}

/// Makes the directory of a place for `user`, the effective user of this process, unless it is
/// there. Its parent is never made: `/run/user/UID` belongs to the login session.
///
/// # Errors
/// When it cannot be made, or when others could replace what lies in it.
pub fn make_directory(directory: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(directory)?;
    let owned = found.is_dir() && [0, user].contains(&found.uid());
    // Sticky directories let nobody remove what belongs to others.
    let guarded = found.mode() & 0o022 == 0 || found.mode() & 0o1000 != 0;
    if owned && guarded {
        return Ok(());
    }
    let words = format!("{} can be changed by other users", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, words))
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn the_places_follow_from_the_mount_alone() {
        let places = places((0, 52), 1000);
        assert_eq!(places[0], Path::new("/run/millrace/mount-0-52.sock"));
        assert_eq!(places[1], Path::new("/run/user/1000/millrace/mount-0-52.sock"));
        assert_eq!(places[2], Path::new("/tmp/millrace-1000/mount-0-52.sock"));
    }

    #[test]
    fn a_directory_that_others_can_change_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("millrace");
        let user = std::fs::metadata(parent.path()).unwrap().uid();
        make_directory(&directory, user).unwrap();
        make_directory(&directory, user).unwrap();
        std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(make_directory(&directory, user).is_err());
        std::fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
        make_directory(&directory, user).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(make_directory(&link, user).is_err(), "a link leads elsewhere tomorrow");
        assert!(make_directory(&parent.path().join("a/b"), user).is_err(), "no parent is made");
    }
}
