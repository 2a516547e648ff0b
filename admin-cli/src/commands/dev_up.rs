//! `millrace dev up --dir D`: starts what is not running of a cluster on this machine.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::{
    arguments::UpArguments,
    commands::{dev_status, umount},
    context::Context,
    dev::{
        daemon::{Daemon, Started},
        directory::Directory,
        health,
        lock::Lock,
        plan::Plan,
    },
    exit::Exit,
    mounting::{end, start},
    watch::say,
};

/// Makes what is missing, starts what does not run, and waits until everything serves.
pub(crate) async fn run(context: &Context, arguments: UpArguments) -> anyhow::Result<Exit> {
    let directory = Directory::make(&context.dir()?)?;
    let _lock = Lock::take(directory.root())?;
    let plan = plan(&directory, arguments)?;
    directory.prepare(&plan)?;
    let settings = directory.admin_settings(&plan);

    let mut started = Vec::new();
    start_missing(&directory.metadata(&plan), &mut started)?;
    let targets = directory.targets(&plan);
    for daemon in &targets {
        start_missing(daemon, &mut started)?;
    }
    health::wait(context, &settings, targets.len(), &mut started).await?;
    for daemon in directory.mounts(&plan) {
        mount(&daemon).await?;
    }
    dev_status::show(context, &directory, &plan).await
}

/// The plan of an existing cluster or a new one, with what the arguments add; written down before
/// anything starts, so that a crash in the middle is mended by the next `dev up`.
fn plan(directory: &Directory, arguments: UpArguments) -> anyhow::Result<Plan> {
    let mut plan = match Plan::read(directory.root())? {
        Some(mut plan) => {
            if let Some(targets) = arguments.targets {
                plan.grow(targets)?;
            }
            plan
        }
        None => Plan::new(arguments.targets.unwrap_or(TARGETS_DEFAULT))?,
    };
    plan.capacity = arguments.capacity.or(plan.capacity);
    if let Some(file) = arguments.credentials {
        let found =
            file.canonicalize().with_context(|| format!("cannot find {}", file.display()))?;
        plan.credentials = Some(found);
    }
    if let Some(mountpoint) = arguments.mount {
        plan.mount(mountpoint_of(&mountpoint)?, arguments.mount_options);
    }
    plan.write(directory.root())?;
    Ok(plan)
}

/// The mount point as the kernel will list it, made if it is missing.
fn mountpoint_of(path: &Path) -> anyhow::Result<PathBuf> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
    }
    // The directory itself is not looked at: a mount whose daemon died answers with errors.
    let path = umount::absolute(path)?;
    match std::fs::create_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", path.display()))
        }
        _ => Ok(path),
    }
}

fn start_missing(daemon: &Daemon, started: &mut Vec<Started>) -> anyhow::Result<()> {
    if daemon.process().is_none() {
        say(&format!("starts {} at {}", daemon.name, daemon.address));
        started.push(daemon.start()?);
    }
    Ok(())
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
        process.stop(STOP_PATIENCE)?;
    }
    if end::mount_at(mountpoint)?.is_some() {
        // Left by a daemon that died: nobody answers there any more.
        end::detach(mountpoint, true)?;
    }
    say(&format!("mounts {}", daemon.address));
    let mut started = daemon.start()?;
    start::serves(mountpoint, &mut started.child, &started.log).await?;
    Ok(())
}

/// Two show that files are spread, and are what the smallest cluster should have.
const TARGETS_DEFAULT: u16 = 2;
/// Longer than the 30 s that every daemon allows itself to drain.
pub(crate) const STOP_PATIENCE: std::time::Duration = std::time::Duration::from_secs(40);

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(targets: Option<u16>, mount: Option<PathBuf>) -> UpArguments {
        UpArguments { targets, mount, capacity: None, credentials: None, mount_options: None }
    }

    #[test]
    fn an_existing_cluster_keeps_its_ports_and_what_it_has() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let first = plan(&directory, arguments(None, None)).unwrap();
        assert_eq!(first.target_ports.len(), 2);
        let mountpoint = directory.root().join("deep/mnt");
        let again = plan(&directory, arguments(Some(3), Some(mountpoint.clone()))).unwrap();
        assert_eq!(again.metadata_port, first.metadata_port);
        assert_eq!(again.target_ports[..2], first.target_ports);
        assert_eq!(again.mounts[0].mountpoint, mountpoint);
        assert!(mountpoint.is_dir());
        assert_eq!(plan(&directory, arguments(None, None)).unwrap(), again);
    }
}
