//! The mounts of a dev cluster: those that it has, and one that is asked for.
//!
//! Only a mount that stands is kept in the plan: one that cannot be made would be in the way of
//! every `dev up` to come.

use std::{
    path::{Path, PathBuf},
    slice,
};

use anyhow::{Context as _, bail};
use millrace_service::telemetry::in_words;

use crate::{
    arguments::UpArguments,
    commands::umount,
    dev::{daemon::Daemon, directory::Directory, plan::Plan},
    exit::Misuse,
    mounting::{end, options::MountOptions, start},
    watch::say,
};

/// A mount that is asked for, and that can be made as far as that is known before it is tried.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    mountpoint: PathBuf,
    options: Option<String>,
}

impl Wanted {
    /// What the arguments ask for, if anything.
    ///
    /// # Errors
    /// [`Misuse`] for options that no mount takes; when the mount point is no directory and cannot
    /// be made.
    pub(crate) fn of(arguments: &UpArguments) -> anyhow::Result<Option<Self>> {
        let Some(mountpoint) = &arguments.mount else { return Ok(None) };
        if let Some(options) = &arguments.mount_options {
            let parsed = MountOptions::parse(slice::from_ref(options))?;
            if parsed.config.is_some() || parsed.log.is_some() {
                let text = "--mount-options: settings and log of such a mount lie in --dir D; \
                            leave config= and log= out";
                return Err(Misuse(text.to_owned()).into());
            }
        }
        let (mountpoint, options) = (mountpoint_of(mountpoint)?, arguments.mount_options.clone());
        Ok(Some(Self { mountpoint, options }))
    }

    /// Refuses other options than those of a mount that stands.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub(crate) fn check(&self, directory: &Directory, plan: &Plan) -> anyhow::Result<()> {
        let known = plan.mounts.iter().find(|mount| mount.mountpoint == self.mountpoint);
        let (Some(known), Some(options)) = (known, &self.options) else { return Ok(()) };
        let mut daemons = directory.mounts(plan).into_iter();
        let runs = daemons.any(|daemon| self.is(&daemon) && daemon.process().is_some());
        if runs && known.options != *options {
            bail!(
                "{0} is mounted with the options {1:?}; `millrace umount {0}` comes before others",
                self.mountpoint.display(),
                known.options
            );
        }
        Ok(())
    }

    fn is(&self, daemon: &Daemon) -> bool {
        daemon.address == self.mountpoint.display().to_string()
    }
}

/// Mounts what is wanted and what the plan has. With one that is wanted, others that cannot be had
/// again make room for it.
///
/// # Errors
/// When a mount cannot be made; the plan is then as it was.
pub(crate) async fn all(
    directory: &Directory,
    plan: &mut Plan,
    wanted: Option<Wanted>,
) -> anyhow::Result<()> {
    if let Some(wanted) = &wanted {
        one(directory, plan, wanted).await?;
    }
    let is_wanted = |daemon: &Daemon| wanted.as_ref().is_some_and(|wanted| wanted.is(daemon));
    for daemon in directory.mounts(plan).iter().filter(|daemon| !is_wanted(daemon)) {
        let Err(error) = mount(daemon).await else { continue };
        if wanted.is_none() {
            let remedy = "a mount of this cluster cannot be made again (`dev up --mount M` makes \
                          another in its place, `dev down` forgets it)";
            return Err(error).context(remedy);
        }
        if daemon.process().is_some() {
            // `dev down` must still find it.
            say(&format!("{} is not mounted: {}", daemon.address, words(&error)));
            continue;
        }
        say(&format!("{} is no mount of this cluster any more: {}", daemon.address, words(&error)));
        plan.forget(Path::new(&daemon.address));
        plan.write(directory.root())?;
    }
    Ok(())
}

/// Makes the mount that is wanted. It stands in the plan before its daemon starts, so that `dev
/// down` finds that after a crash, and stays there only if it stands.
async fn one(directory: &Directory, plan: &mut Plan, wanted: &Wanted) -> anyhow::Result<()> {
    let before = plan.mounts.clone();
    plan.mount(wanted.mountpoint.clone(), wanted.options.clone());
    plan.write(directory.root())?;
    let daemon = directory.mounts(plan).into_iter().find(|daemon| wanted.is(daemon));
    let daemon = daemon.context("the plan has the mount that was put into it")?;
    let mounted = mount(&daemon).await;
    if mounted.is_err() {
        plan.mounts = before;
        plan.write(directory.root())?;
    }
    mounted
}

async fn mount(daemon: &Daemon) -> anyhow::Result<()> {
    let mountpoint = Path::new(&daemon.address);
    if let Some(process) = daemon.process() {
        if let Some(mount) = end::mount_at(mountpoint)?
            && start::answers(&mount, process.id()).await
        {
            return Ok(());
        }
        // It runs without a mount: it is about to end, or somebody has unmounted it by hand.
        process.stop(daemon.stop_patience())?;
    }
    if let Some(mount) = end::mount_at(mountpoint)? {
        if let Some(process) = end::server(&mount).await? {
            bail!(
                "another mount is on {} (process {process}): `millrace umount` ends it",
                daemon.address
            );
        }
        // Left by a daemon that died: nobody answers there any more.
        end::detach(mountpoint, true)?;
    }
    say(&format!("mounts {}", daemon.address));
    daemon.write_settings()?;
    let mut started = daemon.start()?;
    let served = start::serves(mountpoint, &mut started.child, &started.log).await;
    let Err(error) = served else { return Ok(()) };
    // It has ended, or must not go on behind a failed command.
    drop(started.child.kill());
    drop(started.child.wait());
    daemon.forget();
    if end::mount_at(mountpoint)?.is_some() {
        end::detach(mountpoint, true)?;
    }
    Err(error)
}

/// The mount point as the kernel will list it, made if it is missing.
fn mountpoint_of(path: &Path) -> anyhow::Result<PathBuf> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
    }
    let path = umount::absolute(path)?;
    match std::fs::create_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", path.display()));
        }
        Ok(()) => return Ok(path),
        Err(_) => {}
    }
    // A mount is not looked at: one whose daemon died answers with errors, and one whose servers
    // are away does not answer.
    if end::mount_at(&path)?.is_none() {
        let found = path.symlink_metadata();
        let found = found.with_context(|| format!("cannot use {}", path.display()))?;
        if !found.is_dir() {
            bail!("cannot mount on {}: it is no directory", path.display());
        }
    }
    Ok(path)
}

/// An error in a line: the end of a log that it shows is left to the log.
fn words(error: &anyhow::Error) -> String {
    let words = in_words(error);
    words.lines().next().unwrap_or_default().trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(mount: &Path, options: Option<&str>) -> UpArguments {
        UpArguments {
            targets: None,
            mount: Some(mount.to_owned()),
            capacity: None,
            credentials: None,
            mount_options: options.map(str::to_owned),
        }
    }

    #[test]
    fn a_mount_point_is_made_and_what_is_no_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let deep = root.join("deep/mnt");
        for _ in 0..2 {
            let wanted = Wanted::of(&arguments(&deep, Some("ro"))).unwrap().unwrap();
            assert_eq!(wanted.mountpoint, deep);
            assert!(deep.is_dir());
        }
        let (file, link) = (root.join("file"), root.join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&deep, &link).unwrap();
        for bad in [&file, &link] {
            let refused = Wanted::of(&arguments(bad, None)).unwrap_err().to_string();
            assert!(refused.contains("no directory"), "{refused}");
        }
    }

    #[test]
    fn options_that_no_mount_takes_are_refused_before_anything_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let mountpoint = directory.path().join("mnt");
        for bad in ["bogus", "ro,bogus", "path=a", "log=/tmp/log"] {
            let refused = Wanted::of(&arguments(&mountpoint, Some(bad))).unwrap_err();
            assert!(refused.is::<Misuse>(), "{bad}: {refused}");
        }
        assert!(!mountpoint.exists());
    }

    #[test]
    fn a_failure_is_told_in_a_line() {
        let error = anyhow::anyhow!("mounting /m failed; the end of its log /l:\n  one\n  two");
        assert_eq!(words(&error), "mounting /m failed; the end of its log /l");
    }
}
