//! The mount point: what is there before, what is tuned after mounting, and how it is given back.

use std::{
    ffi::CString,
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::Command,
};

use fuser::{MountOption, Session, SessionACL};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
};

use crate::{fuse::Adapter, settings::MountSettings};

/// The name that the kernel shows behind `fuse.`.
const SUBTYPE: &str = "millrace";

/// The root of a mount is a directory.
const ROOT_MODE: u32 = libc::S_IFDIR;

/// Makes sure that the directory can be mounted on: what an earlier daemon left when it was killed
/// is taken away.
///
/// # Errors
/// When there is no such directory, or the dead mount cannot be taken away.
pub(crate) fn prepare(mountpoint: &Path) -> io::Result<PathBuf> {
    match fs::metadata(mountpoint) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            tracing::warn!(
                mountpoint = %mountpoint.display(),
                "replaces the mount of a daemon that has died"
            );
            detach(mountpoint)?;
        }
        Err(error) => return Err(error),
        Ok(found) if !found.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
        Ok(_) => {}
    }
    mountpoint.canonicalize()
}

/// Mounts `adapter` and agrees with the kernel on the terms; `source` is shown in mount tables.
///
/// As root the mount is made here and not by fuser, which would unmount at its end whatever lies on
/// the mount point by then, even another daemon's mount.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn mount(
    adapter: Adapter,
    mountpoint: &Path,
    settings: &MountSettings,
    source: &str,
) -> io::Result<Session<Adapter>> {
    let config = options(settings, source);
    if !rustix::process::geteuid().is_root() {
        return Session::new(adapter, mountpoint, &config);
    }
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let mut data = format!(
        "fd={},rootmode={ROOT_MODE:o},user_id=0,group_id=0,default_permissions,subtype={SUBTYPE}",
        device.as_raw_fd()
    );
    if config.acl == SessionACL::All {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(source, mountpoint, "fuse", flags(settings), Some(data.as_c_str()))?;
    let acl = config.acl;
    Session::from_fd(adapter, device.into(), acl, config).inspect_err(|_| {
        if let Err(error) = detach(mountpoint) {
            tracing::warn!(%error, "cannot take a failed mount away");
        }
    })
}

/// What the kernel's mount flags say.
fn flags(settings: &MountSettings) -> MountFlags {
    [
        (settings.read_only, MountFlags::RDONLY),
        (!settings.suid, MountFlags::NOSUID),
        (!settings.dev, MountFlags::NODEV),
        (!settings.exec, MountFlags::NOEXEC),
    ]
    .into_iter()
    .filter(|(wanted, _)| *wanted)
    // Times of reading are not kept by the kernel: the server is told of them lazily, or not at
    // all.
    .fold(MountFlags::NOATIME, |flags, (_, flag)| flags | flag)
}

/// The same for fuser.
fn options(settings: &MountSettings, source: &str) -> fuser::Config {
    let pick = |on: bool, yes: MountOption, no: MountOption| if on { yes } else { no };
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName(source.to_owned()),
        // Passed to the kernel as it is: fuser's own option for it only reaches fusermount.
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
        // The kernel checks mode, owner and groups for data; the server checks names again.
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        pick(settings.read_only, MountOption::RO, MountOption::RW),
        pick(settings.suid, MountOption::Suid, MountOption::NoSuid),
        pick(settings.dev, MountOption::Dev, MountOption::NoDev),
        pick(settings.exec, MountOption::Exec, MountOption::NoExec),
    ];
    let root = rustix::process::geteuid().is_root();
    let everybody = settings.allow_other.unwrap_or(root);
    config.acl = if everybody { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(settings.threads.map_or_else(threads, usize::from));
    config.clone_fd = true;
    config
}

/// The device number of the mount: major and minor.
///
/// # Errors
/// When the mount point cannot be looked at.
pub(crate) fn device(mountpoint: &Path) -> io::Result<(u32, u32)> {
    // Without asking the daemon, which is this process.
    let flags = AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, mountpoint, flags, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Raises the kernel's read-ahead for the mount, which no FUSE option does. Without it a scan gets
/// a fifth of the speed, so that failing is worth a line in the log.
pub(crate) fn raise_read_ahead((major, minor): (u32, u32)) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&path, READ_AHEAD_KIB.to_string()) {
        tracing::info!(path, %error, "cannot raise the kernel's read-ahead; scans are slower");
    }
}

/// Unmounts; when the mount is in use, takes it out of sight, and it ends with its last user.
///
/// # Errors
/// When neither is possible.
pub(crate) fn unmount(mountpoint: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::empty()) {
        // Somebody was faster.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => {
            tracing::warn!(
                mountpoint = %mountpoint.display(),
                "the mount is in use; it is detached, and ends when it is not used any more"
            );
            detach(mountpoint)
        }
        Err(Errno::PERM) => fusermount(mountpoint),
        Err(error) => Err(error.into()),
    }
}

fn detach(mountpoint: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount(mountpoint),
        Err(error) => Err(error.into()),
    }
}

/// The setuid helper of libfuse, for users who are not root.
fn fusermount(mountpoint: &Path) -> io::Result<()> {
    let status = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(mountpoint).status()?;
    if status.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// More than four threads wait for each other's locks without reading faster.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

/// Measured: 128 KiB (the default) 574 MiB/s buffered and 123 MiB/s through a mapping; 8 MiB
/// 3,150 and 2,690 MiB/s.
const READ_AHEAD_KIB: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_settings_reach_the_kernel() {
        let settings = MountSettings { read_only: true, exec: false, ..MountSettings::default() };
        let config = options(&settings, "c:/");
        assert!(flags(&settings).contains(MountFlags::RDONLY | MountFlags::NOEXEC));
        for wanted in [MountOption::RO, MountOption::NoExec, MountOption::NoSuid] {
            assert!(config.mount_options.contains(&wanted), "{wanted:?}");
        }
        let subtype = MountOption::CUSTOM("subtype=millrace".to_owned());
        assert!(config.mount_options.contains(&subtype));
    }

    #[test]
    fn only_a_directory_can_be_mounted_on() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(prepare(directory.path()).is_ok());
        let file = directory.path().join("file");
        fs::write(&file, "").expect("a file");
        assert_eq!(prepare(&file).map_err(|e| e.kind()), Err(io::ErrorKind::NotADirectory));
        let missing = directory.path().join("missing");
        assert_eq!(prepare(&missing).map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }
}
