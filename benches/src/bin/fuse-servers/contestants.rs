//! The servers: each a process of its own, started for a round and gone with its mount.

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    mount::UnmountFlags,
};

/// Who serves.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This repository's crate on /dev/fuse.
    Dev,
    /// The same with readers that always sleep between requests, as those of the others do.
    Asleep,
    /// This repository's crate over io_uring.
    Uring,
    /// The crate fuser.
    Fuser,
    /// libfuse on /dev/fuse.
    Libfuse,
    /// libfuse over io_uring.
    LibfuseUring,
}

/// libfuse's program.
pub(crate) struct Built {
    program: PathBuf,
    /// Whether its libfuse knows io_uring.
    pub(crate) ring: bool,
}

impl Kind {
    /// What libfuse's program is told; `None` for the other servers.
    pub(crate) fn libfuse_channel(self) -> Option<&'static str> {
        match self {
            Self::Libfuse => Some("dev"),
            Self::LibfuseUring => Some("uring"),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Asleep => "asleep",
            Self::Uring => "uring",
            Self::Fuser => "fuser",
            Self::Libfuse => "libfuse",
            Self::LibfuseUring => "libfuse-uring",
        }
    }
}

/// What a server is told.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Serving {
    /// Where it mounts.
    pub(crate) mountpoint: PathBuf,
    /// Small files of each kind.
    pub(crate) files: usize,
    /// MiB of each large file.
    pub(crate) mib: usize,
    /// Threads that read requests.
    pub(crate) readers: NonZero<usize>,
}

/// A server that has mounted. When it is dropped it is gone, and its mount.
pub(crate) struct Server {
    process: Child,
    mountpoint: PathBuf,
}

impl Server {
    /// Starts a server and waits for its mount.
    pub(crate) fn start(kind: Kind, serving: &Serving, built: Option<&Built>) -> Result<Self> {
        let mut command = match (kind.libfuse_channel(), built) {
            (Some(_), Some(built)) => Command::new(&built.program),
            (Some(_), None) => bail!("libfuse's program is not built"),
            (None, _) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["serve", kind.name()]);
                command
            }
        };
        command.arg(&serving.mountpoint).arg(serving.files.to_string());
        command.arg(serving.mib.to_string()).arg(serving.readers.to_string());
        command.args(kind.libfuse_channel());
        let before = device(&serving.mountpoint)?;
        let process = command.stdin(Stdio::null()).spawn().context("start a server")?;
        let mut server = Self { process, mountpoint: serving.mountpoint.clone() };
        let started = Instant::now();
        while device(&serving.mountpoint)? == before {
            let ended = server.process.try_wait()?;
            ensure!(ended.is_none(), "{}: ended: {ended:?}", kind.name());
            ensure!(started.elapsed() < PATIENCE, "{}: does not mount", kind.name());
            thread::sleep(Duration::from_millis(2));
        }
        server.raise_read_ahead()?;
        Ok(server)
    }

    /// The same for all: INIT cannot do it.
    fn raise_read_ahead(&self) -> Result<()> {
        let (major, minor) = device(&self.mountpoint)?;
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(&setting, READ_AHEAD_KIB).with_context(|| setting)
    }

    /// Unmounts, and waits until the process has ended.
    pub(crate) fn stop(mut self) -> Result<()> {
        rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()).context("unmount")?;
        let status = self.process.wait()?;
        ensure!(status.success(), "a server ended: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH).ok();
            self.process.kill().ok();
            self.process.wait().ok();
        }
    }
}

/// What is mounted there, without asking its server.
fn device(path: &Path) -> Result<(u32, u32)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Compiles libfuse's program into `directory`, with the libfuse that pkg-config finds. `None`
/// without a compiler or libfuse.
pub(crate) fn compile(directory: &Path) -> Result<Option<Built>> {
    let Some(flags) = pkg_config(&["--cflags", "--libs"]) else { return Ok(None) };
    let (source, program) = (directory.join("memory.c"), directory.join("memory"));
    fs::write(&source, include_str!("memory.c"))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-pthread"]).arg(&source).arg("-o").arg(&program);
    compiler.args(flags.split_whitespace());
    if let Some(libraries) = pkg_config(&["--variable=libdir"]) {
        compiler.arg(format!("-Wl,-rpath,{}", libraries.trim()));
    }
    let status = compiler.status().context("run cc")?;
    ensure!(status.success(), "cc: {status}");
    let ring = pkg_config(&["--atleast-version=3.18"]).is_some();
    Ok(Some(Built { program, ring }))
}

/// What pkg-config says about libfuse; `None` where it says no.
fn pkg_config(arguments: &[&str]) -> Option<String> {
    let said = Command::new("pkg-config").args(arguments).arg("fuse3").output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).into_owned())
}

const READ_AHEAD_KIB: &str = "8192";
/// Filling the files takes a second or so.
const PATIENCE: Duration = Duration::from_secs(30);
