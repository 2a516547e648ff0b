//! Unmounting: the kernel's table first, then the daemon's end.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};

use crate::{
    connection::Connection,
    dev::process::Process,
    mountinfo::{self, Mount},
};

/// The Millrace mount at `mountpoint`, if there is one (also a broken one, whose daemon died) and
/// nothing is mounted over it.
///
/// # Errors
/// When the table of mounts cannot be read.
pub(crate) fn mount_at(mountpoint: &Path) -> anyhow::Result<Option<Mount>> {
    let mounts = mountinfo::mounts().context("cannot read /proc/self/mountinfo")?;
    let topmost = mounts.into_iter().rfind(|mount| mount.mountpoint == mountpoint);
    Ok(topmost.filter(Mount::is_millrace))
}

/// The process that serves the mount; `None` where its daemon has died.
///
/// # Errors
/// When somebody listens and does not say, so that nobody knows.
pub(crate) async fn server(mount: &Mount) -> anyhow::Result<Option<u32>> {
    Connection::server_of(mount).await.with_context(|| {
        format!(
            "another mount may be on {}, and does not say: `millrace umount --lazy` takes it away",
            mount.mountpoint.display()
        )
    })
}

/// Takes the mount away and waits until its daemon has written back what it holds and ended.
///
/// # Errors
/// When files are in use (unless `lazy`), or the caller may not unmount.
pub(crate) async fn end(mount: &Mount, lazy: bool) -> anyhow::Result<()> {
    if lazy {
        return detach(&mount.mountpoint, lazy);
    }
    // Asked before, because afterwards nobody answers. A daemon that died has nothing to wait for.
    let daemon = Connection::to_mount(mount).describe().await.ok();
    let daemon = daemon.and_then(|described| Process::by_id(described.process));
    detach(&mount.mountpoint, lazy)?;
    if let Some(daemon) = daemon
        && !is_elsewhere(mount)?
        && !daemon.wait(DAEMON_PATIENCE)?
    {
        bail!(
            "{} is unmounted, but its daemon (process {}) still writes back after {} s",
            mount.mountpoint.display(),
            daemon.id(),
            DAEMON_PATIENCE.as_secs()
        );
    }
    Ok(())
}

/// Whether the file system is mounted elsewhere too, as by a bind mount: its daemon lives on.
fn is_elsewhere(mount: &Mount) -> anyhow::Result<bool> {
    let mounts = mountinfo::mounts().context("cannot read /proc/self/mountinfo")?;
    let device = |mount: &Mount| (mount.major, mount.minor);
    Ok(mounts.iter().any(|other| other.is_millrace() && device(other) == device(mount)))
}

/// Removes the entry from the kernel's table.
///
/// # Errors
/// As [`end`].
pub(crate) fn detach(mountpoint: &Path, lazy: bool) -> anyhow::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => bail!(
            "{} is in use; end the programs that use it (`fuser -vm {0}` lists them), or detach \
             it with --lazy",
            mountpoint.display()
        ),
        // Only root may; for the user who mounted, FUSE's own helper may too.
        Err(Errno::PERM) => detach_as_user(mountpoint, lazy),
        Err(error) => {
            Err(error).with_context(|| format!("cannot unmount {}", mountpoint.display()))
        }
    }
}

fn detach_as_user(mountpoint: &Path, lazy: bool) -> anyhow::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").stdin(Stdio::null());
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(mountpoint)
        .output()
        .context("only root may unmount without fusermount3 (Debian package fuse3)")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("cannot unmount {}: {}", mountpoint.display(), words.trim());
    }
    Ok(())
}

/// A full write-behind buffer (hundreds of MiB) on a slow network.
const DAEMON_PATIENCE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_mount_has_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(mount_at(directory.path()).unwrap(), None);
        assert_eq!(mount_at(Path::new("/proc")).unwrap(), None, "another type");
    }
}
