//! Mounting: with mount(2) as root, otherwise with the setuid helper of libfuse.
//!
//! The helper `fusermount3` is called with the mount point and a socket, whose descriptor's number
//! it finds in the environment (`_FUSE_COMMFD`). It opens the device, mounts, and sends its
//! descriptor over the socket. Here the socket is its standard input, so that no descriptor has to
//! be inherited by number and no other child of this process can get it.

use std::{
    ffi::CString,
    fmt::Write as _,
    io::{self, IoSliceMut, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    mount::MountFlags,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};

use crate::channel::device;

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "mount options are switches")]
pub struct MountOptions {
    /// What mount tables show as the device.
    pub source: String,
    /// What they show behind `fuse.` as the type; none if empty.
    pub subtype: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-user-id and set-group-id count. Needs root.
    pub suid: bool,
    /// Devices count. Needs root.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// What mount tables show: that times of access are not kept. (The kernel keeps none of any
    /// FUSE mount, and never sets one by itself.)
    pub no_atime: bool,
    /// The same of those of directories. The helper is not told: not every one knows it.
    pub no_dir_atime: bool,
    /// The kernel checks permissions by mode, owner and group, and asks no ACCESS.
    pub default_permissions: bool,
    /// Other users than the one who mounts may use it. For the helper, `/etc/fuse.conf` must have
    /// `user_allow_other`.
    pub allow_other: bool,
    /// Bytes of one READ at most; 0 leaves it to `max_write`.
    pub max_read: u32,
}

impl MountOptions {
    /// A mount that can be written, with permissions checked by the kernel, for whoever mounts.
    #[must_use]
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            subtype: String::new(),
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            no_atime: false,
            no_dir_atime: false,
            default_permissions: true,
            allow_other: false,
            max_read: 0,
        }
    }

    fn flags(&self) -> MountFlags {
        let all = [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (self.no_atime, MountFlags::NOATIME),
            (self.no_dir_atime, MountFlags::NODIRATIME),
        ];
        let set = all.into_iter().filter_map(|(set, flag)| set.then_some(flag));
        set.collect()
    }

    /// What the file system itself is told.
    fn data(&self, device: i32, root_mode: u32) -> String {
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let mut data = format!(
            "fd={device},rootmode={root_mode:o},user_id={},group_id={}",
            user.as_raw(),
            group.as_raw()
        );
        self.write_common(&mut data);
        data
    }

    /// What the helper is told.
    fn helper_options(&self) -> String {
        let mut options = format!("fsname={}", escaped(&self.source));
        if !self.subtype.is_empty() {
            options.push_str(",subtype=");
            options.push_str(&escaped(&self.subtype));
        }
        let flags = [
            if self.read_only { "ro" } else { "rw" },
            if self.suid { "suid" } else { "nosuid" },
            if self.dev { "dev" } else { "nodev" },
            if self.exec { "exec" } else { "noexec" },
        ];
        for flag in flags {
            options.push(',');
            options.push_str(flag);
        }
        if self.no_atime {
            options.push_str(",noatime");
        }
        self.write_common(&mut options);
        options
    }

    fn write_common(&self, options: &mut String) {
        if self.default_permissions {
            options.push_str(",default_permissions");
        }
        if self.allow_other {
            options.push_str(",allow_other");
        }
        if self.max_read != 0 {
            write!(options, ",max_read={}", self.max_read).expect("a string takes everything");
        }
    }
}

/// Mounts on `mountpoint` and gives the connected device.
///
/// # Errors
/// What the kernel or the helper says.
pub(super) fn mount(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    if rustix::process::geteuid().is_root() {
        mount_as_root(mountpoint, options)
    } else {
        mount_with_helper(mountpoint, options)
    }
}

fn mount_as_root(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device: OwnedFd = device::open()?.into();
    let data = CString::new(options.data(device.as_raw_fd(), DIRECTORY_MODE))?;
    let kind = if options.subtype.is_empty() {
        "fuse".into()
    } else {
        format!("fuse.{}", options.subtype)
    };
    let data = Some(data.as_c_str());
    rustix::mount::mount(options.source.as_str(), mountpoint, kind, options.flags(), data)?;
    Ok(device)
}

/// Mounts as a user, or as root in a way that a user would.
///
/// # Errors
/// When there is no helper; otherwise what it says.
pub(super) fn mount_with_helper(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options.helper_options()).arg("--").arg(mountpoint);
    // It is their standard input.
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut helper = command.spawn().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot run {HELPER}, which mounts for users: {error}"),
        )
    })?;
    // Its end of the socket stays here as long as the command does.
    drop(command);
    let device = receive_descriptor(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    let status = helper.wait()?;
    match device {
        Ok(Some(device)) if status.success() => Ok(device),
        Err(error) if status.success() => Err(error),
        _ => Err(io::Error::other(format!("{HELPER}: {status}: {}", said.trim()))),
    }
}

/// The descriptor that the helper sends; none when it ends without.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags))?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// Unmounts what a user has mounted.
///
/// # Errors
/// When there is no helper, or it says no.
pub(super) fn unmount_with_helper(mountpoint: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    let said = command.stdin(Stdio::null()).output()?;
    if said.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&said.stderr);
    Err(io::Error::other(format!("{HELPER}: {}: {}", said.status, words.trim())))
}

/// As the helper reads options: it divides them at commas.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

const HELPER: &str = "fusermount3";
/// The root of a mount is a directory here.
const DIRECTORY_MODE: u32 = 0o040_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_kernel_and_the_helper() {
        let options = MountOptions {
            subtype: "sub".into(),
            read_only: true,
            exec: false,
            allow_other: true,
            max_read: 65_536,
            ..MountOptions::new("a,b\\c")
        };
        assert_eq!(
            options.flags(),
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
        );
        let data = options.data(7, DIRECTORY_MODE);
        assert!(data.starts_with("fd=7,rootmode=40000,user_id="), "{data}");
        assert!(data.ends_with(",default_permissions,allow_other,max_read=65536"), "{data}");
        assert_eq!(
            options.helper_options(),
            "fsname=a\\,b\\\\c,subtype=sub,ro,nosuid,nodev,noexec,default_permissions,\
             allow_other,max_read=65536"
        );
    }
}
