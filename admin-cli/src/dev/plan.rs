//! What a dev cluster consists of: `D/dev.toml`. The ports that it has when it serves for the first
//! time are kept, so that mounts and settings outside D stay right over restarts.

use std::{
    collections::BTreeSet,
    fs::{File, Permissions},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    ops::Range,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use millrace_runtime::Random;
use millrace_types::ByteLen;
use rustix::{
    fs::{Mode, OFlags, open},
    process::geteuid,
};
use serde::{Deserialize, Serialize};

use crate::dev::process::settings_files;

/// The daemons of a dev cluster and where they listen.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// UDP port of the metadata server.
    pub(crate) metadata_port: u16,
    /// UDP port of each target's daemon, by number.
    pub(crate) target_ports: Vec<u16>,
    /// Whether it has never served: nobody knows its ports yet. Left out of the file once it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) never_served: bool,
    /// The most bytes of each target; what the disk has free when it was never said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) capacity: Option<ByteLen>,
    /// The file with named keys of buckets, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
    /// Where `dev up --mount` has mounted, or does at this moment; forgotten by `dev down`.
    #[serde(default)]
    pub(crate) mounts: Vec<MountPlan>,
}

/// One mount of a dev cluster.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountPlan {
    /// Its number, as in the daemon's directory.
    pub(crate) number: u16,
    /// Where.
    pub(crate) mountpoint: PathBuf,
    /// Options, as for `millrace mount -o`.
    #[serde(default)]
    pub(crate) options: String,
}

impl Plan {
    /// Reads the plan of `dir`; nothing when there is none yet.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let plan =
            toml::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(plan))
    }

    /// Reads the plan of a directory that must have one.
    ///
    /// # Errors
    /// As [`Self::read`], and when there is none.
    pub(crate) fn existing(dir: &Path) -> anyhow::Result<Self> {
        match Self::read(dir)? {
            Some(plan) => Ok(plan),
            None => bail!(
                "{} holds no dev cluster; `millrace dev up --dir {0}` makes one",
                dir.display()
            ),
        }
    }

    /// Chooses free ports for a new cluster of `targets` targets.
    ///
    /// # Errors
    /// When the system gives no ports.
    pub(crate) fn new(targets: u16) -> anyhow::Result<Self> {
        let mut plan = Self {
            metadata_port: free_port(&ports_of_running())?,
            target_ports: Vec::new(),
            never_served: true,
            capacity: None,
            credentials: None,
            mounts: Vec::new(),
        };
        plan.grow(targets)?;
        Ok(plan)
    }

    /// Adds targets until there are `targets`.
    ///
    /// # Errors
    /// When there are more already, or the system gives no ports.
    pub(crate) fn grow(&mut self, targets: u16) -> anyhow::Result<()> {
        let wanted = usize::from(targets);
        if wanted < self.target_ports.len() {
            bail!(
                "the cluster has {} targets, and none can be taken away with the data on it; leave \
                 --targets out to start all of them",
                self.target_ports.len()
            );
        }
        let mut taken = ports_of_running();
        taken.extend(self.ports());
        while self.target_ports.len() < wanted {
            let port = free_port(&taken)?;
            taken.push(port);
            self.target_ports.push(port);
        }
        Ok(())
    }

    /// Chooses other ports for all servers, none of which may run.
    ///
    /// # Errors
    /// When the system gives no ports.
    pub(crate) fn change_ports(&mut self) -> anyhow::Result<()> {
        let mut taken = ports_of_running();
        taken.extend(self.ports());
        for port in self.target_ports.iter_mut().chain([&mut self.metadata_port]) {
            *port = free_port(&taken)?;
            taken.push(*port);
        }
        Ok(())
    }

    /// Adds a mount, or gives the one at this mount point its new options.
    pub(crate) fn mount(&mut self, mountpoint: PathBuf, options: Option<String>) {
        let known = self.mounts.iter_mut().find(|mount| mount.mountpoint == mountpoint);
        if let Some(mount) = known {
            if let Some(options) = options {
                mount.options = options;
            }
            return;
        }
        let taken = |number: &u16| self.mounts.iter().any(|mount| mount.number == *number);
        let number =
            (0..=u16::MAX).find(|number| !taken(number)).expect("nobody mounts 65,536 times");
        self.mounts.push(MountPlan { number, mountpoint, options: options.unwrap_or_default() });
    }

    /// Takes away the mount at this mount point.
    pub(crate) fn forget(&mut self, mountpoint: &Path) {
        self.mounts.retain(|mount| mount.mountpoint != mountpoint);
    }

    /// Writes the plan so that a crash leaves the old or the new one.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub(crate) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let text = toml::to_string(self).context("cannot write the plan")?;
        replace(&dir.join(FILE), text.as_bytes())
    }

    fn ports(&self) -> Vec<u16> {
        let targets = self.target_ports.iter().copied();
        targets.chain([self.metadata_port]).collect()
    }
}

/// Replaces a file as a whole, durably.
///
/// # Errors
/// When its directory cannot be written to.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(path.parent().unwrap_or_else(|| Path::new("/")))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The ports of clusters of which a daemon runs. Another one of theirs may be down for a moment, or
/// about to be started, and its port looks free.
fn ports_of_running() -> Vec<u16> {
    let is_ours = |file: &&PathBuf| {
        let ours = ["metadata.toml", "target.toml", "mount.toml"];
        // A relative one belongs to the directory of that process, and `dev up` names none.
        file.is_absolute()
            && file.file_name().is_some_and(|name| ours.iter().any(|own| name == *own))
    };
    let files = settings_files();
    // `D/target-0/target.toml`
    let roots = files.iter().filter(is_ours).filter_map(|file| file.parent()?.parent());
    let roots: BTreeSet<&Path> = roots.collect();
    roots.into_iter().filter_map(believed).flat_map(|plan| plan.ports()).collect()
}

/// The plan in a directory that some command line names; nothing where it is not to be believed.
///
/// Anybody may run a process with any command line: it could name a file that never ends, a FIFO
/// that is never written, a link to a file of the kernel's that is waited for, or a plan that has
/// all ports.
fn believed(root: &Path) -> Option<Plan> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(root.join(FILE).as_path(), flags, Mode::empty()).ok()?);
    let found = file.metadata().ok()?;
    let is_trusted = found.uid() == 0 || found.uid() == geteuid().as_raw();
    if !found.is_file() || !is_trusted || found.len() > PLAN_BYTES_MAX {
        return None;
    }
    let mut text = String::new();
    file.take(PLAN_BYTES_MAX).read_to_string(&mut text).ok()?;
    toml::from_str(&text).ok()
}

/// A UDP port of loopback that nobody has now, and that the system gives to nobody who asks for any
/// port: a client could have got it by the time that its daemon starts again.
fn free_port(taken: &[u16]) -> anyhow::Result<u16> {
    let random = Random::system();
    for _ in 0..PORT_ATTEMPTS {
        let port = u16::try_from(random.within(PORTS)).expect("16 bits");
        if !taken.contains(&port) && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free UDP port on loopback among {} to {}", PORTS.start, PORTS.end - 1)
}

/// Above the ports of services, below those that Linux gives out itself, from 32,768 on unless
/// `net.ipv4.ip_local_port_range` says otherwise.
const PORTS: Range<u64> = 16_384..32_768;

/// With half of all ports in use this finds none once in 2^64 times.
const PORT_ATTEMPTS: u32 = 64;

/// The address of a daemon of a dev cluster.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

const FILE: &str = "dev.toml";

/// Several times what a plan with a thousand mounts takes.
const PLAN_BYTES_MAX: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{chown, symlink},
        process::{Command, Stdio},
    };

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Plan::read(directory.path()).unwrap(), None);
        let mut plan = Plan::new(2).unwrap();
        plan.mount("/mnt/a".into(), Some("ro".into()));
        plan.write(directory.path()).unwrap();
        assert_eq!(Plan::read(directory.path()).unwrap(), Some(plan));
    }

    #[test]
    fn targets_are_added_and_never_taken_away() {
        let mut plan = Plan::new(2).unwrap();
        let before = plan.target_ports.clone();
        plan.grow(3).unwrap();
        assert_eq!(plan.target_ports[..2], before);
        assert_eq!(plan.target_ports.len(), 3);
        let error = plan.grow(1).unwrap_err().to_string();
        assert!(error.contains("3 targets"), "{error}");
    }

    #[test]
    fn changed_ports_are_all_others() {
        let mut plan = Plan::new(3).unwrap();
        let before = plan.ports();
        plan.change_ports().unwrap();
        let after: BTreeSet<_> = plan.ports().into_iter().collect();
        assert_eq!(after.len(), 4);
        assert!(before.iter().all(|port| !after.contains(port)));
    }

    #[test]
    fn ports_of_a_cluster_of_which_one_daemon_runs_are_not_free() {
        let directory = tempfile::tempdir().unwrap();
        let plan = Plan::new(2).unwrap();
        plan.write(directory.path()).unwrap();
        let are_taken = || {
            let taken = ports_of_running();
            plan.ports().iter().all(|port| taken.contains(port))
        };
        assert!(!are_taken());
        let mut daemon = Command::new("sh");
        daemon.args(["-c", "read word", "sh", "--config"]);
        daemon.arg(directory.path().join("target-1/target.toml"));
        let mut daemon = daemon.stdin(Stdio::piped()).spawn().unwrap();
        // In the moment in which it becomes another program it has no arguments.
        while !are_taken() {
            std::thread::yield_now();
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        assert!(!are_taken());
    }

    #[test]
    fn a_plan_is_believed_if_it_is_a_short_regular_file_of_a_trusted_user() {
        let directory = tempfile::tempdir().unwrap();
        let (root, file) = (directory.path(), directory.path().join(FILE));
        assert_eq!(believed(root), None, "there is none");
        let plan = Plan::new(1).unwrap();
        plan.write(root).unwrap();
        assert_eq!(believed(root).as_ref(), Some(&plan));
        let text = std::fs::read_to_string(&file).unwrap();
        let moved = root.join("moved");
        std::fs::rename(&file, &moved).unwrap();
        symlink(&moved, &file).unwrap();
        assert_eq!(believed(root), None, "a link");
        std::fs::remove_file(&file).unwrap();
        mkfifoat(CWD, &file, Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(believed(root), None, "a FIFO that nobody writes to");
        std::fs::remove_file(&file).unwrap();
        let comment = "#".repeat(usize::try_from(PLAN_BYTES_MAX).unwrap());
        std::fs::write(&file, format!("{text}{comment}")).unwrap();
        assert_eq!(believed(root), None, "a long one");
        std::fs::write(&file, "metadata_port = 'x'").unwrap();
        assert_eq!(believed(root), None, "a damaged one");
        std::fs::rename(&moved, &file).unwrap();
        assert_eq!(believed(root), Some(plan));
        // Root of a user namespace has no other user to give it to.
        if geteuid().is_root() && chown(&file, Some(12_345), None).is_ok() {
            assert_eq!(believed(root), None, "one of another user");
        }
    }

    #[test]
    fn a_plan_that_does_not_say_so_is_not_of_a_cluster_that_has_never_served() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, "metadata_port = 16384\ntarget_ports = [16385]\n").unwrap();
        let plan = Plan::existing(directory.path()).unwrap();
        assert!(!plan.never_served);
        plan.write(directory.path()).unwrap();
        assert!(!std::fs::read_to_string(&file).unwrap().contains("never_served"));
        assert!(Plan::new(1).unwrap().never_served);
    }

    #[test]
    fn a_mount_point_keeps_its_number_and_options_until_new_ones_are_given() {
        let mut plan = Plan::new(1).unwrap();
        plan.mount("/mnt/a".into(), Some("ro".into()));
        plan.mount("/mnt/b".into(), None);
        plan.mount("/mnt/a".into(), None);
        assert_eq!(plan.mounts.len(), 2);
        assert_eq!(plan.mounts[0].options, "ro");
        assert_eq!(plan.mounts[1].number, 1);
        plan.forget(Path::new("/mnt/a"));
        plan.mount("/mnt/c".into(), None);
        assert_eq!(plan.mounts[1].number, 0);
    }

    #[test]
    fn a_directory_without_a_plan_says_how_to_make_one() {
        let directory = tempfile::tempdir().unwrap();
        let error = Plan::existing(directory.path()).unwrap_err().to_string();
        assert!(error.contains("dev up"), "{error}");
        std::fs::write(directory.path().join(FILE), "metadata_port = 'x'").unwrap();
        assert!(Plan::read(directory.path()).is_err());
    }

    #[test]
    fn replacing_a_file_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.toml");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
