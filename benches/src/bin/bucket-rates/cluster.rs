//! A cluster of real daemons with one mount, and what an operator asks of it.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    memory::Memory,
    processes::{MOUNT_CPU, Processes},
};

/// A cluster that runs. When it is dropped it is gone; its data stays in its directory.
pub(crate) struct Cluster {
    millrace: PathBuf,
    directory: PathBuf,
    mountpoint: PathBuf,
    /// How many links were made.
    links: Cell<usize>,
}

/// A directory that is bound to a prefix of the bucket. When it is dropped the link is gone, with
/// what was fetched.
pub(crate) struct Link<'a> {
    cluster: &'a Cluster,
    /// Where it is in the mount.
    pub(crate) path: PathBuf,
}

impl Cluster {
    /// Starts one with all it has below `directory`.
    pub(crate) fn start(millrace: Option<&Path>, directory: &Path, targets: u16) -> Result<Self> {
        let millrace = match millrace {
            Some(millrace) => millrace.to_owned(),
            None => std::env::current_exe()?.with_file_name("millrace"),
        };
        let (mountpoint, directory) = (directory.join("mount"), directory.join("cluster"));
        let cluster = Self { millrace, directory, mountpoint, links: Cell::new(0) };
        let mut up = cluster.command(&["dev", "up"]);
        up.arg("--targets").arg(targets.to_string()).arg("--mount").arg(&cluster.mountpoint);
        answer(up)?;
        Ok(cluster)
    }

    /// Adds its daemons to those whose CPU time and memory is watched.
    pub(crate) fn watch(&self, processes: &mut Processes, memory: &mut Memory) -> Result<()> {
        let status = answer(self.command(&["dev", "status"]))?;
        let daemons = status["daemons"].as_array().context("a status without daemons")?;
        let pids = |role: &str| {
            let of = daemons.iter().filter(|daemon| daemon["role"] == role);
            of.filter_map(|daemon| u32::try_from(daemon["pid"].as_u64()?).ok()).collect::<Vec<_>>()
        };
        memory.add("most memory of the metadata server", pids("metadata"));
        memory.add("most memory of a target", pids("target"));
        processes.add("CPU of the targets", pids("target"));
        processes.add("CPU of the metadata server", pids("metadata"));
        processes.add(MOUNT_CPU, pids("mount"));
        Ok(())
    }

    /// Binds a new directory to the objects at `url`. Each measurement has a link of
    /// its own: its inodes are new, so that neither a target nor the kernel has a byte of them.
    pub(crate) fn link(&self, url: &str, at: &Endpoint<'_>) -> Result<Link<'_>> {
        let path = self.mountpoint.join(format!("link-{}", self.links.get()));
        self.links.set(self.links.get() + 1);
        let mut add = self.command(&["link", "add", url]);
        add.arg(&path).args(["--endpoint", at.endpoint, "--mode", at.mode, "--fetch", at.fetch]);
        answer(add)?;
        Ok(Link { cluster: self, path })
    }

    /// Waits until the contents of links that were removed are gone.
    pub(crate) fn settle(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            // Its exit code says whether all is well; that is not the question here.
            let said = self.command(&["status"]).output().context("run millrace")?;
            let status: Value = serde_json::from_slice(&said.stdout)?;
            if status["reclaim_entries"] == 0 {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "removed contents stay: {status}");
            thread::sleep(LOOK);
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.millrace);
        command.arg("--json").arg("--dir").arg(&self.directory).args(words);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A mount that a reader holds is gone as soon as that lets go.
        self.command(&["dev", "down"]).output().ok();
    }
}

/// Where a link's bucket is, and what may be done there.
pub(crate) struct Endpoint<'a> {
    /// Address of the S3 server.
    pub(crate) endpoint: &'a str,
    /// As for `link add`.
    pub(crate) mode: &'static str,
    /// As well.
    pub(crate) fetch: &'a str,
}

impl Link<'_> {
    /// Runs `hydrate`, `import` or `export` on it until the job has ended, and prints the job.
    pub(crate) fn job(&self, kind: &str) -> Result<Value> {
        let mut command = self.cluster.command(&[kind]);
        command.arg(&self.path).arg("--wait");
        answer(command)
    }

    /// Bytes that the targets have of a file or tree in it.
    pub(crate) fn hydrated_bytes(&self, path: &Path) -> Result<u64> {
        let mut command = self.cluster.command(&["state"]);
        command.arg(path);
        answer(command)?["hydrated_bytes"].as_u64().context("a state without bytes")
    }

    /// Makes sure that nothing of it was fetched yet.
    pub(crate) fn expect_cold(&self) -> Result<()> {
        let bytes = self.hydrated_bytes(&self.path)?;
        ensure!(bytes == 0, "{bytes} bytes of {} are here already", self.path.display());
        Ok(())
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let mut remove = self.cluster.command(&["link", "remove", "--discard"]);
        remove.arg(&self.path).output().ok();
    }
}

/// What a command prints; its words for people when it fails.
fn answer(mut command: Command) -> Result<Value> {
    let said = command.output().with_context(|| format!("run {:?}", command.get_program()))?;
    let words = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "{command:?}: {}: {words}", said.status);
    serde_json::from_slice(&said.stdout).with_context(|| format!("{command:?} prints no JSON"))
}

/// Freeing a few GiB takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
