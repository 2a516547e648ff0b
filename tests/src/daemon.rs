//! The processes of a cluster, found by a file that their command line names.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::wait_for;

/// A process whose command line names a file below a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Daemon {
    /// The folder below the cluster's directory that is its own: `metadata`, `target-0`, `mount-0`.
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

impl Daemon {
    /// Kills it as a crash would (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// When it may not be signalled or does not go.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        wait_for(&format!("the end of {}", self.name), || (!self.is_alive()).then_some(()))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it may not be signalled; a process that is gone already is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("no such id")?;
        match kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("signalling {}", self.name)),
        }
    }

    /// Stops it (SIGSTOP) until the answer is dropped: a server that is there and says nothing.
    ///
    /// # Errors
    /// When it may not be signalled.
    pub fn pause(&self) -> Result<Paused> {
        self.signal(Signal::STOP)?;
        let paused = Paused(self.clone());
        // Until then it may still answer.
        wait_for(&format!("{} to stand still", self.name), || self.stands_still().then_some(()))?;
        Ok(paused)
    }

    /// Whether all threads of the process are stopped; one that is gone does nothing either.
    fn stands_still(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        threads.into_iter().flatten().flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| {
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            })
        })
    }

    /// Whether the process is there and not merely waiting to be reaped.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
    }

    /// The most memory that it has had resident, in bytes.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resident_bytes_max(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line
            .and_then(|line| line.trim().strip_suffix("kB"))
            .context("no VmHWM line")?
            .trim()
            .parse()?;
        Ok(kib * 1024)
    }
}

/// A stopped process. Dropping this lets it go on.
#[derive(Debug)]
pub struct Paused(Daemon);

impl Drop for Paused {
    fn drop(&mut self) {
        drop(self.0.signal(Signal::CONT));
    }
}

/// The processes whose command line names a file below `directory`, in the order of their names.
#[must_use]
pub fn daemons_of(directory: &Path) -> Vec<Daemon> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<_> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter_map(|pid| Some(Daemon { name: folder_named_by(pid, directory)?, pid }))
        .collect();
    found.sort();
    found
}

/// The folder below `directory` of a daemon's settings file, which only a daemon's command line
/// names: `millrace dev up --dir D` names the directory and no file in it.
fn folder_named_by(pid: u32, directory: &Path) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.split(|byte| *byte == 0).find_map(|argument| {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(argument));
        let below = path.strip_prefix(directory).ok()?;
        let folder = below.parent()?.components().next()?;
        (path.extension()? == "toml").then(|| folder.as_os_str().to_string_lossy().into_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_daemon_is_found_by_the_file_it_names_and_gone_after_kill() {
        let directory = tempfile::tempdir().unwrap();
        let settings = directory.path().join("target-0/target.toml");
        let mut child = Command::new("sh")
            .args(["-c", "read line", "sh"])
            .arg(&settings)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let found = wait_for("the daemon", || daemons_of(directory.path()).pop()).unwrap();
        assert_eq!((found.name.as_str(), found.pid), ("target-0", child.id()));
        found.kill().unwrap();
        child.wait().unwrap();
        assert!(daemons_of(directory.path()).is_empty());
    }
}
