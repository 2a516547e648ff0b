//! `millrace status`: health in the exit code, everything else on standard output.

use std::time::Duration;

use millrace_protocol::admin::{ClusterStatus, ClusterStatusReply, Health, TargetState};
use millrace_service::telemetry::in_words;
use millrace_types::ByteLen;

use crate::{
    commands::target_list,
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, render, shown, table},
    report::{JobReport, LinkReport, StatusReport, TargetDetailReport, TargetReport},
    settings::AdminSettings,
};

/// How long daemons may take to tell what their heartbeats do not.
const TARGETS_PATIENCE: Duration = Duration::from_secs(10);

/// Asks and prints. Whatever keeps the answer away, wrong settings too, is `unreachable`: exit
/// codes 0 and 1 mean that the cluster has answered.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let (addresses, answer) = match AdminSettings::load(&context.globals) {
        Ok(settings) => {
            let servers = &settings.cluster.servers;
            let addresses = servers.iter().map(ToString::to_string).collect();
            (addresses, ask(context, &settings).await)
        }
        Err(error) => (Vec::new(), Err(error)),
    };
    let (report, exit) = match answer {
        Ok((report, Health::Healthy)) => (report, Exit::Done),
        Ok((report, Health::Degraded)) => (report, Exit::Failed),
        Err(error) => (StatusReport::unreachable(&addresses, in_words(&error)), Exit::Unreachable),
    };
    context.output.result(&report, || words(&report))?;
    Ok(exit)
}

async fn ask(
    context: &Context,
    settings: &AdminSettings,
) -> anyhow::Result<(StatusReport, Health)> {
    let connection = context.connect(&settings.cluster).await?;
    let mut reply = connection.request(&ClusterStatus {}).await?;
    reply.problems.extend(problems_of_targets(&connection, &reply).await);
    if !reply.problems.is_empty() {
        reply.health = Health::Degraded;
    }
    Ok((StatusReport::new(&reply, connection.peer().to_owned()), reply.health))
}

/// What is wrong with targets and known to their daemons alone.
async fn problems_of_targets(connection: &Connection, status: &ClusterStatusReply) -> Vec<String> {
    if !status.targets.iter().any(|target| target.state == TargetState::Online) {
        return Vec::new();
    }
    let asked = tokio::time::timeout(TARGETS_PATIENCE, target_list::all(connection)).await;
    let problem = match asked {
        Ok(Ok(targets)) => {
            let reports = targets.iter().map(TargetDetailReport::from);
            return reports.filter_map(|report| report.problem()).collect();
        }
        Ok(Err(error)) => in_words(&error),
        Err(_) => format!("no answer within {} s", TARGETS_PATIENCE.as_secs()),
    };
    vec![format!("whether all targets take changes is not known: {problem}")]
}

fn words(report: &StatusReport) -> String {
    let mut text = report.health.to_owned();
    for problem in &report.problems {
        text.push_str(&format!("\n  {}", shown(problem)));
    }
    for server in &report.servers {
        text.push_str(&format!("\n\n{} server {}: {}", server.role, server.address, server.state));
        if let (Some(version), Some(started)) = (&server.version, &server.started) {
            text.push_str(&format!(
                ", version {version}, since {started}, {}",
                counted(report.inodes, "inode")
            ));
        }
    }
    if report.cluster.is_none() {
        return text;
    }
    text.push_str("\n\n");
    text.push_str(&targets(&report.targets));
    if !report.links.is_empty() {
        text.push_str("\n\n");
        text.push_str(&links(&report.links));
    }
    if !report.jobs.is_empty() {
        text.push_str("\n\n");
        text.push_str(&jobs(&report.jobs));
    }
    text.push_str(&format!("\n\n{}", counted(report.sessions.len() as u64, "client session")));
    text
}

fn targets(reports: &[TargetReport]) -> String {
    if reports.is_empty() {
        return "no targets: nothing can be stored until a storage host registers".to_owned();
    }
    let mut lines = table(&["TARGET", "STATE", "USED", "CAPACITY", "HOST", "BAD BLOCKS"]);
    for target in reports {
        lines.add_row([
            target.id.clone(),
            target.state.to_owned(),
            ByteLen(target.used_bytes).to_string(),
            ByteLen(target.capacity_bytes).to_string(),
            target.host.clone(),
            target.bad_blocks.to_string(),
        ]);
    }
    render(&lines)
}

fn links(reports: &[LinkReport]) -> String {
    let mut lines = table(&["LINK", "URL", "MODE"]);
    for link in reports {
        lines.add_row([link.path.as_str(), link.url.as_str(), link.mode]);
    }
    render(&lines)
}

fn jobs(reports: &[JobReport]) -> String {
    let mut lines = table(&["JOB", "KIND", "STATE", "FILES", "ERRORS", "PATH"]);
    for job in reports {
        lines.add_row([
            job.id.to_string(),
            job.kind.to_owned(),
            job.state.to_owned(),
            format!("{}/{}", job.files_done, job.files_total),
            job.errors.to_string(),
            job.path.clone(),
        ]);
    }
    render(&lines)
}
