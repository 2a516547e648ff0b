//! `millrace dev status --dir D`: the daemons of a cluster on this machine.

use serde::Serialize;

use crate::{
    context::Context,
    dev::{
        daemon::Daemon,
        directory::Directory,
        health,
        lost::{self, Lost},
        plan::Plan,
    },
    exit::Exit,
    output::{render, table},
};

#[derive(Serialize)]
struct DevReport {
    dir: String,
    /// `healthy`, `degraded` or `unreachable`; as `millrace status` has it.
    health: &'static str,
    daemons: Vec<DaemonReport>,
    mounts: Vec<String>,
    /// Daemons whose target was given up: they serve nothing.
    lost: Vec<Lost>,
}

#[derive(Serialize)]
struct DaemonReport {
    name: String,
    role: &'static str,
    /// `running` or `stopped`.
    state: &'static str,
    pid: Option<u32>,
    address: String,
    config: String,
    log: String,
}

/// Shows every daemon that `dev up` has made.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let directory = Directory::existing(&context.dir()?)?;
    let plan = Plan::existing(directory.root())?;
    show(context, &directory, &plan).await
}

/// Prints the daemons and ends with 0 when all of them run and the cluster is healthy.
pub(crate) async fn show(
    context: &Context,
    directory: &Directory,
    plan: &Plan,
) -> anyhow::Result<Exit> {
    let mut daemons = vec![directory.metadata(plan)];
    daemons.extend(directory.targets(plan));
    let mounts = directory.mounts(plan);
    let (health, lost) = health_of(context, directory, plan).await;
    let report = DevReport {
        dir: directory.root().display().to_string(),
        health,
        daemons: daemons.iter().chain(&mounts).map(daemon_report).collect(),
        mounts: mounts.iter().map(|daemon| daemon.address.clone()).collect(),
        lost,
    };
    let good =
        report.health == "healthy" && report.daemons.iter().all(|daemon| daemon.state == "running");
    context.output.result(&report, || words(&report))?;
    Ok(if good { Exit::Done } else { Exit::Failed })
}

/// How the cluster is, and which daemons nobody counts on.
async fn health_of(
    context: &Context,
    directory: &Directory,
    plan: &Plan,
) -> (&'static str, Vec<Lost>) {
    let unreachable = ("unreachable", Vec::new());
    if directory.metadata(plan).process().is_none() {
        return unreachable;
    }
    let settings = directory.admin_settings(plan);
    let Ok(connection) = context.connect(&settings.cluster).await else {
        return unreachable;
    };
    let asked = connection.request(&millrace_protocol::admin::ClusterStatus {}).await;
    let Ok(status) = asked else { return unreachable };
    let (online, targets) = (health::online(&status), directory.targets(plan));
    let lost = match online < targets.len() {
        true => lost::find(&connection, &status, &targets).await,
        false => Vec::new(),
    };
    match online + lost.len() < targets.len() {
        true => ("degraded", lost),
        false => (crate::report::health_name(status.health), lost),
    }
}

fn daemon_report(daemon: &Daemon) -> DaemonReport {
    let process = daemon.process();
    DaemonReport {
        name: daemon.name.clone(),
        role: daemon.role,
        state: if process.is_some() { "running" } else { "stopped" },
        pid: process.map(|process| process.id()),
        address: daemon.address.clone(),
        config: daemon.settings_file.display().to_string(),
        log: daemon.log_file().display().to_string(),
    }
}

fn words(report: &DevReport) -> String {
    let mut lines = table(&["DAEMON", "STATE", "PID", "ADDRESS", "LOG"]);
    for daemon in &report.daemons {
        lines.add_row([
            daemon.name.clone(),
            daemon.state.to_owned(),
            daemon.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            daemon.address.clone(),
            daemon.log.clone(),
        ]);
    }
    let why = if report.health == "degraded" { "; `millrace status` says why" } else { "" };
    let mut text =
        format!("cluster in {}: {}{why}\n\n{}", report.dir, report.health, render(&lines));
    for lost in &report.lost {
        text.push_str(&format!("\n\n{}", lost.words(&report.dir)));
    }
    text
}
