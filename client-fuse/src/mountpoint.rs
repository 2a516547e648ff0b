//! How the file system is mounted, what is tuned afterwards, and how the mount is given back.

use std::{io, num::NonZero};

use millrace_fuse_server::{self as fuse_server, Errno, MountOptions, Mountpoint, SessionOptions};

use crate::{
    fuse::init,
    settings::{Channel, MountSettings},
};

/// What the kernel's mount is like; `source` is shown in mount tables.
pub(crate) fn mount_options(settings: &MountSettings, source: &str) -> MountOptions {
    let root = rustix::process::geteuid().is_root();
    MountOptions {
        subtype: SUBTYPE.to_owned(),
        read_only: settings.read_only,
        suid: settings.suid,
        dev: settings.dev,
        exec: settings.exec,
        // For who looks: the kernel itself keeps no times of access of such a mount.
        no_atime: settings.noatime,
        no_dir_atime: settings.nodiratime,
        // The kernel checks mode, owner and groups for data; the server checks names again.
        default_permissions: true,
        allow_other: settings.allow_other.unwrap_or(root),
        ..MountOptions::new(source)
    }
}

/// How requests are taken from the kernel.
pub(crate) fn session_options(settings: &MountSettings) -> SessionOptions {
    let readers = settings.threads.map_or_else(threads, usize::from);
    SessionOptions {
        wishes: init::wishes(settings.local_locks, settings.acl),
        channel: match settings.channel {
            Channel::Auto => fuse_server::Channel::Auto,
            Channel::Dev => fuse_server::Channel::Device,
            Channel::Uring => fuse_server::Channel::Uring,
        },
        readers: NonZero::new(readers),
        ..SessionOptions::default()
    }
}

/// Raises the kernel's read-ahead for the mount, which no FUSE option does. Without it a scan gets
/// a fifth of the speed, so that failing is worth a line in the log.
pub(crate) fn raise_read_ahead(mountpoint: &Mountpoint) {
    if let Err(error) = mountpoint.raise_read_ahead(READ_AHEAD_KIB) {
        tracing::info!(%error, "cannot raise the kernel's read-ahead; scans are slower");
    }
}

/// Unmounts; when the mount is in use, takes it out of sight, and it ends with its last user.
///
/// # Errors
/// When neither is possible.
pub(crate) fn unmount(mountpoint: &Mountpoint) -> io::Result<()> {
    match mountpoint.unmount() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            tracing::warn!(
                mountpoint = %mountpoint.path().display(),
                "the mount is in use; it is detached, and ends when it is not used any more"
            );
            mountpoint.detach()
        }
        // The helper that unmounts for users does not say why it refuses.
        Err(_) if !rustix::process::geteuid().is_root() => mountpoint.detach(),
        outcome => outcome,
    }
}

/// More than four threads wait for each other's locks without reading faster.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

/// The name that the kernel shows behind `fuse.`.
const SUBTYPE: &str = "millrace";

/// Measured: 128 KiB (the default) 574 MiB/s buffered and 123 MiB/s through a mapping; 8 MiB
/// 3,150 and 2,690 MiB/s.
const READ_AHEAD_KIB: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_mount() {
        let settings = MountSettings {
            read_only: true,
            noatime: true,
            exec: false,
            allow_other: Some(false),
            threads: Some(7),
            ..MountSettings::default()
        };
        let options = mount_options(&settings, "c:/");
        assert_eq!((options.source.as_str(), options.subtype.as_str()), ("c:/", "millrace"));
        assert!(options.read_only && options.default_permissions);
        assert!(options.no_atime && !options.no_dir_atime);
        assert!(!options.exec && !options.suid && !options.dev && !options.allow_other);
        assert_eq!(session_options(&settings).readers, NonZero::new(7));
    }
}
