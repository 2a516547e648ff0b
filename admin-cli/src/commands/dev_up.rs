//! `millrace dev up --dir D`: starts what is not running of a cluster on this machine.

use anyhow::{Context as _, bail};
use millrace_types::ByteLen;

use crate::{
    arguments::UpArguments,
    commands::dev_status,
    context::Context,
    dev::{
        daemon::{Daemon, Started},
        directory::Directory,
        health,
        lock::Lock,
        mount::{self, Wanted},
        plan::Plan,
    },
    exit::Exit,
    watch::say,
};

/// Makes what is missing, starts what does not run, and waits until everything serves.
pub(crate) async fn run(context: &Context, arguments: UpArguments) -> anyhow::Result<Exit> {
    let dir = context.dir()?;
    let wanted = Wanted::of(&arguments)?;
    let directory = Directory::make(&dir)?;
    let _lock = Lock::take(directory.root())?;
    let mut plan = plan(&directory, arguments, wanted.as_ref())?;
    serve(context, &directory, &mut plan).await?;
    mount::all(&directory, &mut plan, wanted).await?;
    dev_status::show(context, &directory, &plan).await
}

/// Starts the servers that do not run, and waits until they serve. When somebody has taken a port
/// since it was chosen, those of a cluster that has never served end, and begin again with other
/// ports. Those of another one keep theirs, by which mounts and settings outside of the directory
/// know them.
async fn serve(context: &Context, directory: &Directory, plan: &mut Plan) -> anyhow::Result<()> {
    let mut changes_left = if plan.never_served { PORT_CHANGES_MAX } else { 0 };
    loop {
        directory.prepare(plan)?;
        let mut started = Vec::new();
        let Err(error) = start(context, directory, plan, &mut started).await else {
            return keep_ports(directory, plan);
        };
        let is_port_taken = started.iter_mut().any(Started::has_found_its_port_taken);
        if changes_left == 0 || !is_port_taken {
            // They stay, and may serve later, for mounts that then know their ports.
            if !is_port_taken && directory.metadata(plan).process().is_some() {
                keep_ports(directory, plan)?;
            }
            return Err(error);
        }
        changes_left -= 1;
        say("another program has taken a port of the new cluster, which gets others");
        end_servers(directory, plan, &mut started)?;
        plan.change_ports()?;
        plan.write(directory.root())?;
    }
}

/// The ports of a cluster that serves stay as they are.
fn keep_ports(directory: &Directory, plan: &mut Plan) -> anyhow::Result<()> {
    if plan.never_served {
        plan.never_served = false;
        plan.write(directory.root())?;
    }
    Ok(())
}

/// Ends the servers that were just started, and those that an interrupted `dev up` has left.
fn end_servers(directory: &Directory, plan: &Plan, started: &mut [Started]) -> anyhow::Result<()> {
    for daemon in started {
        daemon.end()?;
    }
    let mut servers = directory.targets(plan);
    servers.push(directory.metadata(plan));
    for daemon in servers {
        if let Some(process) = daemon.process() {
            process.stop(daemon.stop_patience())?;
        }
        daemon.forget();
    }
    Ok(())
}

async fn start(
    context: &Context,
    directory: &Directory,
    plan: &Plan,
    started: &mut Vec<Started>,
) -> anyhow::Result<()> {
    start_missing(&directory.metadata(plan), started)?;
    let targets = directory.targets(plan);
    for daemon in &targets {
        start_missing(daemon, started)?;
    }
    health::wait(context, &directory.admin_settings(plan), &targets, started).await
}

/// The plan of an existing cluster or a new one, with what the arguments add but a mount, which is
/// there once it stands; written down before anything starts, so that a crash in the middle is
/// mended by the next `dev up`.
fn plan(
    directory: &Directory,
    arguments: UpArguments,
    wanted: Option<&Wanted>,
) -> anyhow::Result<Plan> {
    let mut plan = match Plan::read(directory.root())? {
        Some(mut plan) => {
            if let Some(wanted) = wanted {
                wanted.check(directory, &plan)?;
            }
            if let Some(capacity) = arguments.capacity {
                check_capacity(directory, &plan, capacity)?;
            }
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
    plan.write(directory.root())?;
    Ok(plan)
}

/// Refuses another capacity than that of targets that run: they take one only when they start, and
/// would go on with theirs while the files say otherwise.
fn check_capacity(directory: &Directory, plan: &Plan, wanted: ByteLen) -> anyhow::Result<()> {
    if plan.capacity == Some(wanted) {
        return Ok(());
    }
    let mut targets = directory.targets(plan).into_iter();
    let Some(running) = targets.find(|daemon| daemon.process().is_some()) else { return Ok(()) };
    let has = plan.capacity.map_or_else(
        || "without one, with what its disk had free".to_owned(),
        |has| format!("with --capacity {has}"),
    );
    bail!(
        "--capacity {wanted} cannot be had now: {} runs {has}, and takes another capacity only \
         when it starts; run `millrace dev down --dir {}` first",
        running.name,
        directory.root().display()
    )
}

fn start_missing(daemon: &Daemon, started: &mut Vec<Started>) -> anyhow::Result<()> {
    if daemon.process().is_none() {
        say(&format!("starts {} at {}", daemon.name, daemon.address));
        started.push(daemon.start()?);
    }
    Ok(())
}

/// How often a cluster that has never served gets other ports. Once is rare: ports are tried when
/// they are chosen, and those of other clusters left out.
const PORT_CHANGES_MAX: u32 = 5;

/// Two show that files are spread, and are what the smallest cluster should have.
const TARGETS_DEFAULT: u16 = 2;

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use millrace_types::GIB;

    use super::*;

    fn arguments(targets: Option<u16>, capacity: Option<u64>) -> UpArguments {
        UpArguments {
            targets,
            mount: None,
            capacity: capacity.map(ByteLen),
            credentials: None,
            mount_options: None,
        }
    }

    #[test]
    fn an_existing_cluster_keeps_its_ports_and_what_it_has() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let first = plan(&directory, arguments(None, None), None).unwrap();
        assert_eq!(first.target_ports.len(), 2);
        let again = plan(&directory, arguments(Some(3), None), None).unwrap();
        assert_eq!(again.metadata_port, first.metadata_port);
        assert_eq!(again.target_ports[..2], first.target_ports);
        assert_eq!(plan(&directory, arguments(None, None), None).unwrap(), again);
    }

    #[test]
    fn a_cluster_may_get_other_ports_until_it_has_served() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let of_next = || plan(&directory, arguments(None, None), None).unwrap();
        assert!(of_next().never_served);
        let mut interrupted = of_next();
        assert!(interrupted.never_served);
        keep_ports(&directory, &mut interrupted).unwrap();
        assert_eq!(of_next(), interrupted);
        assert!(!interrupted.never_served);
    }

    #[test]
    fn a_mount_stands_in_no_plan_before_it_is_made() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let mount = UpArguments {
            mount: Some(directory.root().join("mnt")),
            mount_options: Some("ro".to_owned()),
            ..arguments(None, None)
        };
        let wanted = Wanted::of(&mount).unwrap();
        let made = plan(&directory, mount, wanted.as_ref()).unwrap();
        assert!(made.mounts.is_empty());
    }

    /// A process that `daemon` takes for its own.
    fn running(daemon: &Daemon) -> Child {
        daemon.write_settings().unwrap();
        let mut command = Command::new("perl");
        command.args(["-e", "sleep 600", "--", "--config"]).arg(&daemon.settings_file);
        let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        // In the moment in which it becomes another program it has no arguments.
        while daemon.process().is_none() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn another_capacity_is_for_targets_that_do_not_run() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::existing(temporary.path()).unwrap();
        let first = plan(&directory, arguments(Some(1), Some(GIB)), None).unwrap();
        let mut child = running(&directory.targets(&first)[0]);
        plan(&directory, arguments(None, Some(GIB)), None).unwrap();
        let refused = plan(&directory, arguments(Some(2), Some(2 * GIB)), None).unwrap_err();
        let refused = refused.to_string();
        for word in ["--capacity 2 GiB", "target-0", "--capacity 1 GiB", "dev down"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        assert_eq!(Plan::existing(directory.root()).unwrap(), first, "nothing is recorded");
        child.kill().unwrap();
        child.wait().unwrap();
        let larger = plan(&directory, arguments(None, Some(2 * GIB)), None).unwrap();
        assert_eq!(larger.capacity, Some(ByteLen(2 * GIB)));
    }
}
