//! A cluster of real processes on loopback, started through `millrace dev up`.
//!
//! Dropping it unmounts, stops every process and removes the directory, whatever state the test
//! left them in.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    bucket::Bucket,
    daemon::{Daemon, daemons_of},
    program::{PATIENCE, Said, binaries, finish, run, wait_for},
};

/// How a test wants its cluster.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Number of storage targets.
    pub targets: u16,
    /// How much each target holds at most, such as `64MiB`.
    pub capacity: Option<String>,
    /// Variables in the environment of the daemons, such as credentials.
    pub environment: Vec<(String, String)>,
    /// A file with named credentials.
    pub credentials: Option<PathBuf>,
}

impl Default for Wish {
    fn default() -> Self {
        Self { targets: 2, capacity: None, environment: Vec::new(), credentials: None }
    }
}

impl Wish {
    /// Gives the daemons what they need to reach this bucket.
    #[must_use]
    pub fn with_bucket(mut self, bucket: &Bucket) -> Self {
        self.environment.extend(bucket.environment());
        self
    }
}

/// How many requests of a connection go past the network. Of tests in `tests/cluster` none: there
/// the daemons stand for those of several hosts. `MILLRACE_TEST_SAME_HOST_STREAMS` says otherwise.
fn same_host_streams() -> String {
    let program = env::current_exe().unwrap_or_default();
    let is_cluster =
        program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"cluster-"));
    let by_default = if is_cluster { "0" } else { "64" };
    env::var("MILLRACE_TEST_SAME_HOST_STREAMS").unwrap_or_else(|_| by_default.to_owned())
}

/// A running cluster with one mount.
#[derive(Debug)]
pub struct Cluster {
    // Removed last, when nothing lives in it any more.
    directory: tempfile::TempDir,
    wish: Wish,
}

impl Cluster {
    /// Starts a cluster as `wish` says and mounts it.
    ///
    /// # Errors
    /// Whatever `millrace dev up` says.
    pub fn start(wish: Wish) -> Result<Self> {
        let cluster = Self::prepare(wish)?;
        cluster.up().context("starting a cluster")?;
        Ok(cluster)
    }

    /// A cluster that is not started yet: [`Self::up`] does.
    ///
    /// # Errors
    /// When there is no directory for it.
    pub fn prepare(wish: Wish) -> Result<Self> {
        Ok(Self { directory: working_directory("cluster-")?, wish })
    }

    /// Where its state is.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Its first mount.
    #[must_use]
    pub fn mount(&self) -> PathBuf {
        self.mount_named("mount")
    }

    /// Another mount point, not mounted by itself.
    #[must_use]
    pub fn mount_named(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A directory for a test's own files, on the local disk.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch(&self) -> Result<PathBuf> {
        let path = self.directory.path().join("scratch");
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Starts whatever is not running, and waits until the cluster is healthy.
    ///
    /// # Errors
    /// Whatever `millrace dev up` says.
    pub fn up(&self) -> Result<()> {
        self.bring_up(|| self.try_up())
    }

    /// Starts whatever is not running; also a cluster that serves is an error where it is not
    /// healthy.
    ///
    /// # Errors
    /// Whatever `millrace dev up` says.
    pub fn up_once(&self) -> Result<()> {
        self.try_up()?.ok().map(drop)
    }

    fn try_up(&self) -> Result<Said> {
        let targets = self.wish.targets.to_string();
        let mount = self.mount();
        let mount = mount.to_str().context("a temporary path is text")?;
        let mut arguments = vec!["dev", "up", "--targets", &targets, "--mount", mount];
        if let Some(capacity) = &self.wish.capacity {
            arguments.extend(["--capacity", capacity]);
        }
        let credentials = self.wish.credentials.as_deref().map(Path::display);
        let credentials = credentials.map(|path| path.to_string());
        if let Some(file) = &credentials {
            arguments.extend(["--credentials", file]);
        }
        self.cli(&arguments)
    }

    /// Repeats a `dev up` while all runs and only the cluster's health is not good yet: one late
    /// heartbeat makes a target offline for a moment. What has ended is not started once more.
    fn bring_up(&self, try_up: impl Fn() -> Result<Said>) -> Result<()> {
        let mut said = try_up()?;
        let running = self.daemons();
        let deadline = Instant::now() + PATIENCE;
        while !said.succeeded() && is_unwell(&said) && Instant::now() < deadline {
            said = try_up()?;
            ensure!(self.daemons() == running, "a daemon has ended meanwhile: {said}");
        }
        said.ok().map(drop)
    }

    /// Mounts once more, at `mountpoint`, with a client daemon of its own.
    ///
    /// # Errors
    /// Whatever `millrace dev up` says.
    pub fn mount_also(&self, mountpoint: &Path) -> Result<()> {
        let mount = mountpoint.to_str().context("a temporary path is text")?;
        self.bring_up(|| self.cli(&["dev", "up", "--mount", mount]))
    }

    /// Mounts as an operator does, with `millrace mount`: another identity, other options. The
    /// daemon is then named `name`, as its mount point is.
    ///
    /// # Errors
    /// When it cannot be tried; what the program says and how it ends is in the answer.
    pub fn mount_as(&self, name: &str, identity: &Path, options: &str) -> Result<Said> {
        let folder = self.dir().join(name);
        let (mountpoint, settings) = (self.mount_named(name), folder.join("mount.toml"));
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(&mountpoint)?;
        let (server, identity) = (self.address("metadata")?, identity.display());
        let cluster = format!("[cluster]\nservers = ['{server}']\nidentity = '{identity}'\n");
        fs::write(&settings, cluster)?;
        let (settings, log) = (settings.display(), folder.join("daemon.log"));
        let mut all = format!("config={settings},log={}", log.display());
        if !options.is_empty() {
            all.push(',');
            all.push_str(options);
        }
        let mut command = Command::new(binaries().join("millrace"));
        command.args(["mount", "-o", &all]).arg(mountpoint);
        finish(&mut command, PATIENCE)
    }

    /// Issues an identity of this cluster in the test's own directory.
    ///
    /// # Errors
    /// Whatever `millrace cluster invite` says.
    pub fn invite(&self, role: &str, more: &[&str]) -> Result<PathBuf> {
        let kept = self.scratch()?.join(format!("{role}-{}.pem", more.concat().replace('/', "_")));
        let out = kept.to_str().context("a temporary path is text")?;
        let mut arguments = vec!["cluster", "invite", "--role", role, "--out", out];
        arguments.extend(more);
        self.cli(&arguments)?.ok()?;
        Ok(kept)
    }

    /// The cluster's id.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn id(&self) -> Result<String> {
        let status = self.json(&["status"])?;
        status["cluster"].as_str().map(str::to_owned).context("status names the cluster")
    }

    /// Waits for a line in a daemon's log that has all of `words`.
    ///
    /// # Errors
    /// When it does not come.
    pub fn wait_for_log(&self, name: &str, words: &[&str]) -> Result<()> {
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        wait_for(&format!("a line with {words:?} in the log of {name}"), || {
            self.log(name).lines().any(has).then_some(())
        })
    }

    /// Runs `millrace --dir DIR ARGUMENTS` with the cluster's environment.
    ///
    /// # Errors
    /// When it cannot be run; what it says and how it ends is in the answer.
    pub fn cli(&self, arguments: &[&str]) -> Result<Said> {
        let mut command = Command::new(binaries().join("millrace"));
        command.arg("--dir").arg(self.dir()).args(arguments);
        command.env("MILLRACE_NETWORK__SAME_HOST_STREAMS", same_host_streams());
        command.envs(self.wish.environment.iter().cloned());
        finish(&mut command, PATIENCE)
    }

    /// Runs a command that lists, and parses its JSON.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let text = self.cli(&all)?.ok()?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// Every daemon that runs.
    #[must_use]
    pub fn daemons(&self) -> Vec<Daemon> {
        daemons_of(&self.dir())
    }

    /// The daemon of this name, such as `metadata`, `target-1` or `mount-0`.
    ///
    /// # Errors
    /// When it does not run.
    pub fn daemon(&self, name: &str) -> Result<Daemon> {
        let found = self.daemons().into_iter().find(|daemon| daemon.name == name);
        found.with_context(|| format!("{name} does not run"))
    }

    /// Kills a daemon as a crash would and starts it again.
    ///
    /// # Errors
    /// When it does not run, or does not start.
    pub fn crash(&self, name: &str) -> Result<()> {
        self.daemon(name)?.kill()?;
        self.up()
    }

    /// What a daemon has logged, over all its starts.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name).join("daemon.log")).unwrap_or_default()
    }

    /// The address that a daemon listens on, from `dev status`.
    ///
    /// # Errors
    /// When there is no such daemon.
    pub fn address(&self, name: &str) -> Result<String> {
        let status = self.json(&["dev", "status"])?;
        let daemons = status["daemons"].as_array().context("daemons is a list")?;
        let daemon = daemons.iter().find(|daemon| daemon["name"] == name);
        let address = daemon.and_then(|daemon| daemon["address"].as_str());
        address.map(str::to_owned).with_context(|| format!("no address of {name}: {status}"))
    }

    fn take_down(&self) {
        // The orderly way first: it is also what users do. Whatever is left is then forced.
        drop(self.cli(&["dev", "down"]));
        for daemon in self.daemons() {
            drop(daemon.signal(Signal::KILL));
        }
        drop(wait_for("the end of the cluster", || self.daemons().is_empty().then_some(())));
        for mountpoint in mounts_below(self.directory.path()) {
            drop(run("umount", &[&"--lazy", &mountpoint]));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for daemon in ["metadata", "target-0", "target-1", "mount-0", "mount-1"] {
                let log = self.log(daemon);
                let lines: Vec<_> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(30)..].join("\n");
                eprint_log(daemon, &tail);
            }
        }
        self.take_down();
    }
}

/// Whether `dev up` says that everything runs, and that the cluster is not healthy.
fn is_unwell(said: &Said) -> bool {
    let is_told = [": degraded", ": unreachable"].iter().any(|health| said.stdout.contains(health));
    is_told && !said.stdout.contains("stopped")
}

#[expect(clippy::print_stderr, reason = "what the daemons logged, shown when a test fails")]
fn eprint_log(daemon: &str, tail: &str) {
    if !tail.is_empty() {
        eprintln!("---- end of the log of {daemon}\n{tail}");
    }
}

/// A new directory below `MILLRACE_TEST_DIR`, or below the system's place for temporary files.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn working_directory(prefix: &str) -> Result<tempfile::TempDir> {
    let parent = env::var_os("MILLRACE_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from);
    fs::create_dir_all(&parent)?;
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&parent)?;
    // Programs of other users than root's get through to the mounts.
    for folder in [parent.as_path(), made.path()] {
        let mode = fs::metadata(folder)?.permissions().mode();
        if mode & 0o011 != 0o011 {
            fs::set_permissions(folder, Permissions::from_mode(mode | 0o011))?;
        }
    }
    Ok(made)
}

/// The mount points at or below a directory, innermost first.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let fields = table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut found: Vec<_> =
        fields.map(PathBuf::from).filter(|path| path.starts_with(directory)).collect();
    found.reverse();
    found
}
