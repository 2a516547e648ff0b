//! `millrace dev down --dir D`: unmounts and stops everything; data and settings stay.

use std::path::Path;

use millrace_service::telemetry::in_words;
use serde::Serialize;

use crate::{
    context::Context,
    dev::{daemon::Daemon, directory::Directory, lock::Lock, plan::Plan, process::Process},
    exit::Exit,
    mounting::end,
    watch::say,
};

#[derive(Serialize)]
struct Down {
    dir: String,
    stopped: Vec<String>,
    /// Those that had to be killed.
    killed: Vec<String>,
}

/// Stops the mounts first, so that they can write back, then targets, then the metadata server.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let directory = Directory::existing(&context.dir()?)?;
    let _lock = Lock::take(directory.root())?;
    let mut plan = Plan::existing(directory.root())?;
    let mut report = Down {
        dir: directory.root().display().to_string(),
        stopped: Vec::new(),
        killed: Vec::new(),
    };
    for daemon in directory.mounts(&plan) {
        let process = daemon.process();
        unmount(Path::new(&daemon.address), process.as_ref()).await?;
        if process.is_some() && daemon.process().is_none() {
            report.stopped.push(daemon.name.clone());
        }
        stop(&daemon, &mut report)?;
    }
    for daemon in directory.targets(&plan) {
        stop(&daemon, &mut report)?;
    }
    stop(&directory.metadata(&plan), &mut report)?;
    plan.mounts.clear();
    plan.write(directory.root())?;
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// Ends the cluster's mount there, which this process serves, or has served.
async fn unmount(mountpoint: &Path, process: Option<&Process>) -> anyhow::Result<()> {
    let Some(mount) = end::mount_at(mountpoint)? else {
        return Ok(());
    };
    // Of one that does not answer its process says whose it is.
    let server = end::server(&mount).await;
    if let Ok(Some(server)) = server
        && process.is_none_or(|process| process.id() != server)
    {
        say(&format!("another mount is on {} now, and stays", mountpoint.display()));
        return Ok(());
    }
    if process.is_none() {
        server?;
    }
    if let Err(error) = end::end(&mount, false).await {
        say(&format!("{}; detaches it", in_words(&error)));
        if end::mount_at(mountpoint)?.is_some() {
            end::detach(mountpoint, true)?;
        }
    }
    Ok(())
}

fn stop(daemon: &Daemon, report: &mut Down) -> anyhow::Result<()> {
    if let Some(process) = daemon.process() {
        if process.stop(daemon.stop_patience())? {
            report.stopped.push(daemon.name.clone());
        } else {
            report.killed.push(daemon.name.clone());
        }
    }
    daemon.forget();
    Ok(())
}

fn words(report: &Down) -> String {
    let mut text = match report.stopped.as_slice() {
        [] if report.killed.is_empty() => "nothing was running".to_owned(),
        [] => "nothing stopped by itself".to_owned(),
        stopped => format!("stopped: {}", stopped.join(", ")),
    };
    if !report.killed.is_empty() {
        text.push_str(&format!("\nkilled, did not end in time: {}", report.killed.join(", ")));
    }
    text.push_str(&format!(
        "\nthe data stays in {0}; `millrace dev up --dir {0}` brings the cluster back",
        report.dir
    ));
    text
}
