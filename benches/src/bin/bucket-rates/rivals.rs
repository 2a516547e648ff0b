//! Other mounts of the same bucket, with the caching that they have by themselves.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    mount::UnmountFlags,
};

/// A program that mounts buckets.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rival {
    /// Debian's `s3fs`.
    S3fs,
    /// Debian's `rclone`, with `--vfs-cache-mode full`.
    Rclone,
}

impl Rival {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3fs => "s3fs",
            Self::Rclone => "rclone",
        }
    }

    /// Whether the program is there.
    pub(crate) fn is_installed(self) -> bool {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).any(|place| place.join(self.name()).is_file())
    }

    /// The program in the foreground, with nothing cached yet.
    fn command(self, at: &Place<'_>, mountpoint: &Path, cache: &Path) -> Command {
        let Place { endpoint, bucket, prefix, .. } = at;
        let mut command = Command::new(self.name());
        match self {
            Self::S3fs => {
                command.arg(format!("{bucket}:/{prefix}")).arg(mountpoint).arg("-f");
                command.arg("-o").arg(format!("url={endpoint},use_path_request_style,ro"));
                for (theirs, ours) in [
                    ("AWSACCESSKEYID", "AWS_ACCESS_KEY_ID"),
                    ("AWSSECRETACCESSKEY", "AWS_SECRET_ACCESS_KEY"),
                ] {
                    command.env(theirs, env::var_os(ours).unwrap_or_default());
                }
            }
            Self::Rclone => {
                command.arg("mount").arg(format!(":s3:{bucket}/{prefix}")).arg(mountpoint);
                command.args(["--read-only", "--vfs-cache-mode", "full", "--config", ""]);
                command.args(["--s3-env-auth", "--s3-provider", "Other"]);
                command.args(["--s3-endpoint", endpoint]).arg("--cache-dir").arg(cache);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// What is mounted.
pub(crate) struct Place<'a> {
    /// Address of the S3 server.
    pub(crate) endpoint: &'a str,
    /// The bucket.
    pub(crate) bucket: &'a str,
    /// The prefix in it, without slashes at its ends.
    pub(crate) prefix: String,
    /// An empty directory for the mount and what it caches.
    pub(crate) directory: PathBuf,
}

/// A mount. When it is dropped it is gone, with what it cached.
pub(crate) struct Mounted {
    process: Child,
    directory: PathBuf,
    /// Where it is.
    pub(crate) mountpoint: PathBuf,
}

impl Mounted {
    /// Starts the program and waits for its mount.
    pub(crate) fn start(rival: Rival, at: &Place<'_>) -> Result<Self> {
        let (mountpoint, cache) = (at.directory.join("mount"), at.directory.join("cache"));
        fs::create_dir_all(&mountpoint)?;
        fs::create_dir_all(&cache)?;
        let before = device(&mountpoint)?;
        let process = rival.command(at, &mountpoint, &cache).spawn()?;
        let mut mounted = Self { process, directory: at.directory.clone(), mountpoint };
        let begun = Instant::now();
        while device(&mounted.mountpoint)? == before {
            let ended = mounted.process.try_wait()?;
            ensure!(ended.is_none(), "{} ended: {ended:?}", rival.name());
            ensure!(begun.elapsed() < PATIENCE, "{} does not mount", rival.name());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(mounted)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH).ok();
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir_all(&self.directory).ok();
    }
}

/// What is mounted there, without asking its server.
fn device(path: &Path) -> Result<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Mounting asks the bucket a few things.
const PATIENCE: Duration = Duration::from_secs(30);
