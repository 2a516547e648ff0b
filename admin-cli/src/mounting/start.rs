//! Starts the daemon of a mount, and waits until the kernel lists the mount and the daemon answers.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::time::{sleep, timeout};

use crate::{
    connection::Connection,
    dev::{log::Log, process},
    mountinfo::{self, Mount},
    mounting::options::{MountOptions, Source},
    programs,
};

/// Everything that a mount's daemon is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its settings, where there is a file.
    pub(crate) config: Option<PathBuf>,
    /// The metadata servers and the path, instead of those in the settings.
    pub(crate) source: Option<Source>,
    /// The identity, instead of that in the settings.
    pub(crate) identity: Option<PathBuf>,
    /// Words of `-o`.
    pub(crate) options: Vec<String>,
    /// The directory.
    pub(crate) mountpoint: PathBuf,
    /// Where its log goes.
    pub(crate) log: PathBuf,
}

impl Request {
    /// Joins what the command line says with `config` and `log`, unless its options name others:
    /// `log` is not asked then.
    ///
    /// # Errors
    /// When the mount point is no directory; those of `log`.
    pub(crate) fn new(
        options: MountOptions,
        source: Option<Source>,
        mountpoint: &Path,
        config: Option<PathBuf>,
        log: impl FnOnce() -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            config: options.config.or(config),
            source,
            identity: options.identity,
            options: options.daemon,
            mountpoint: directory(mountpoint)?,
            log: options.log.map_or_else(log, Ok)?,
        })
    }

    /// The daemon's arguments.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: &std::ffi::OsStr| {
            arguments.push(name.into());
            arguments.push(value.to_owned());
        };
        if let Some(config) = &self.config {
            add("--config", config.as_os_str());
        }
        if let Some(identity) = &self.identity {
            add("--identity", identity.as_os_str());
        }
        let mut options = self.options.clone();
        if let Some(source) = &self.source {
            let servers: Vec<_> = source.servers.iter().map(ToString::to_string).collect();
            add("--metadata", servers.join(",").as_ref());
            add("--source", source.text.as_ref());
            // The root is the default, which for a restricted client is its subtree.
            if source.path != "/" {
                options.push(format!("path={}", source.path));
            }
        }
        add("--mountpoint", self.mountpoint.as_os_str());
        if !options.is_empty() {
            add("-o", options.join(",").as_ref());
        }
        arguments
    }
}

/// Starts the daemon and waits until it serves.
///
/// # Errors
/// When something is mounted there already, or the daemon ends or does not get ready; the message
/// holds the daemon's own words.
pub(crate) async fn start(request: &Request) -> anyhow::Result<Mount> {
    if let Some(mount) = listed(&request.mountpoint)?
        && mount.is_millrace()
    {
        bail!(
            "{} is a Millrace mount already; `millrace umount` ends it",
            request.mountpoint.display()
        );
    }
    let mut command = Command::new(programs::find(programs::FUSE)?);
    // For an automount the kernel lets the process group through that is about to mount, and keeps
    // everybody else waiting for the mount: until it is made the daemon stays in the group.
    command.args(request.arguments()).arg("--own-session");
    let log = Log::at_end(&request.log);
    let mut child = process::spawn_beside(command, &request.log)?;
    match serves(&request.mountpoint, &mut child, &log).await {
        Ok(mount) => Ok(mount),
        Err(error) => {
            // It has ended, or must not go on behind a failed command.
            drop(child.kill());
            drop(child.wait());
            Err(error)
        }
    }
}

/// Waits until `child` serves a mount at `mountpoint`.
///
/// # Errors
/// When it ends before, or is not ready after [`PATIENCE`].
pub(crate) async fn serves(
    mountpoint: &Path,
    child: &mut Child,
    log: &Log,
) -> anyhow::Result<Mount> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().context("cannot ask for the daemon's end")? {
            bail!("mounting {} failed ({status}); {}", mountpoint.display(), log.last_words());
        }
        if let Some(mount) = listed(mountpoint)?
            && mount.is_millrace()
            && let Ok(true) = timeout(ANSWER_MAX, answers(&mount, child.id())).await
        {
            return Ok(mount);
        }
        if Instant::now() > deadline {
            bail!(
                "{} is not mounted after {} s; {}",
                mountpoint.display(),
                PATIENCE.as_secs(),
                log.last_words()
            );
        }
        sleep(POLL).await;
    }
}

/// Whether the process `pid` answers for the mount: the entry is not one that a dead daemon left.
pub(crate) async fn answers(mount: &Mount, pid: u32) -> bool {
    let described = Connection::to_mount(mount).describe().await;
    described.is_ok_and(|described| described.process == pid)
}

fn listed(mountpoint: &Path) -> anyhow::Result<Option<Mount>> {
    let mounts = mountinfo::mounts().context("cannot read /proc/self/mountinfo")?;
    Ok(mounts.into_iter().rfind(|mount| mount.mountpoint == mountpoint))
}

/// The mount point as the kernel will list it.
fn directory(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let missing = || {
        format!(
            "cannot mount on {}; it has to be a directory that can be reached (a dead mount there \
             is removed with `millrace umount --lazy`)",
            mountpoint.display()
        )
    };
    let path = mountpoint.canonicalize().with_context(missing)?;
    if !path.is_dir() {
        bail!(missing());
    }
    Ok(path)
}

/// Connecting (a few seconds at worst), opening a session and mounting; then a person gets nervous.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// A daemon tells at once what it serves. Who does not may be one that is gone and was stopped: its
/// socket is the one that is found until the new daemon has made its own.
const ANSWER_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins_over_the_settings_file() {
        let directory = tempfile::tempdir().unwrap();
        let mountpoint = directory.path().canonicalize().unwrap();
        let options = MountOptions::parse(&["ro,identity=/i.pem,log=/l".into()]).unwrap();
        let source = Source::parse("meta-1,meta-2:/train").unwrap();
        let config = Some(PathBuf::from("/c.toml"));
        let log = || -> anyhow::Result<PathBuf> { bail!("the options name one") };
        let request = Request::new(options, Some(source), &mountpoint, config, log).unwrap();
        assert_eq!(request.log, Path::new("/l"));
        let arguments: Vec<_> = request
            .arguments()
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect();
        let mountpoint = mountpoint.to_str().unwrap();
        assert_eq!(
            arguments,
            [
                "--config",
                "/c.toml",
                "--identity",
                "/i.pem",
                "--metadata",
                "meta-1:7440,meta-2:7440",
                "--source",
                "meta-1,meta-2:/train",
                "--mountpoint",
                mountpoint,
                "-o",
                "ro,path=/train",
            ]
        );
    }

    #[test]
    fn a_mount_point_that_is_no_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bad in [file.path(), Path::new("/no/such")] {
            let error = directory(bad).unwrap_err();
            assert!(format!("{error:#}").contains("directory"), "{error:#}");
        }
    }
}
