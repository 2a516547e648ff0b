//! `millrace fsck start|show|cancel|trust`: each asks, and prints the check that runs or ran last.

use std::time::Duration;

use millrace_protocol::fsck::{
    CancelFsck, FsckReport, FsckState, ShowFsck, StartFsck, TrustNamespace,
};
use millrace_types::ByteLen;

use crate::{
    arguments::{FsckCommand, FsckStartArguments},
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, render, table},
    report::{CheckReport, CountReport},
};

/// Between two looks at a check that is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// Asks and prints.
pub(crate) async fn run(context: &Context, command: FsckCommand) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let (reply, wait) = match command {
        FsckCommand::Start(arguments) => {
            let FsckStartArguments { targets, report_only, free_many, wait } = arguments;
            let start = StartFsck { targets, report_only, free_many };
            (connection.request(&start).await?, wait.wait)
        }
        FsckCommand::Show(arguments) => (connection.request(&ShowFsck {}).await?, arguments.wait),
        FsckCommand::Cancel => (connection.request(&CancelFsck {}).await?, true),
        FsckCommand::Trust => (connection.request(&TrustNamespace {}).await?, false),
    };
    let report = if wait { ended(&connection, reply.report).await? } else { reply.report };
    let printed = CheckReport::from(&report);
    context.output.result(&printed, || words(&printed))?;
    Ok(if wait { exit_of(&report) } else { Exit::Done })
}

/// The check when it has ended.
async fn ended(connection: &Connection, report: FsckReport) -> anyhow::Result<FsckReport> {
    let (run, mut report) = (report.run, report);
    while report.state.is_running() {
        tokio::time::sleep(LOOK).await;
        report = connection.request(&ShowFsck {}).await?.report;
        anyhow::ensure!(
            report.run == run,
            "the metadata server was started again meanwhile and has forgotten the check; start a \
             new one"
        );
    }
    Ok(report)
}

fn exit_of(report: &FsckReport) -> Exit {
    let sound = report.state == FsckState::Done
        && report.missing.contents + report.misplaced.contents + report.newer.contents == 0
        && report
            .targets
            .iter()
            .all(|target| target.not_checked.is_none() && target.held_back.is_none());
    if sound { Exit::Done } else { Exit::Failed }
}

fn words(report: &CheckReport) -> String {
    let mut text = head(report);
    if let (Some(reason), Some(since)) = (&report.distrust, &report.distrusted_since) {
        text.push_str(&format!(
            "\nnothing is freed: {reason} (since {since}); see `millrace fsck trust --help`"
        ));
    }
    if let Some(next) = &report.next {
        text.push_str(&format!("\nthe next begins {next}"));
    }
    if report.run == 0 {
        return text;
    }
    for (name, count) in [
        ("orphans", &report.orphans),
        ("queued for freeing", &report.queued),
        ("missing", &report.missing),
        ("misplaced", &report.misplaced),
        ("newer than the namespace", &report.newer),
    ] {
        text.push_str(&format!("\n  {name}: {}", in_words(count)));
    }
    if report.truncated {
        text.push_str("\n  there is more than one check follows up: run another");
    }
    for target in &report.targets {
        if let Some(why) = &target.held_back {
            text.push_str(&format!("\norphans on target {} are not freed: {why}", target.id));
        }
    }
    text.push_str("\n\n");
    text.push_str(&targets(report));
    if !report.findings.is_empty() {
        text.push_str("\n\n");
        text.push_str(&findings(report));
    }
    text
}

fn head(report: &CheckReport) -> String {
    let begun = report.started.as_deref().unwrap_or_default();
    let done = format!("{}, {}", counted(report.files, "file"), counted(report.chunks, "chunk"));
    match (report.state, &report.failure) {
        ("never", _) => "no check has run since the server's start".to_owned(),
        ("listing", _) => {
            let percent = report.position.saturating_mul(100) / report.high_water.max(1);
            format!("check {}, begun {begun}: compares, {percent} % of ids; {done}", report.run)
        }
        ("waiting", _) => {
            format!("check {}, begun {begun}: waits for a second look; {done}", report.run)
        }
        ("confirming", _) => format!("check {}, begun {begun}: looks again; {done}", report.run),
        (state, failure) => {
            let why = failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let ended = report.ended.as_deref().unwrap_or_default();
            format!("check {}, ended {ended}: {state}{why}; {done}", report.run)
        }
    }
}

fn in_words(count: &CountReport) -> String {
    match count.contents {
        0 => "none".to_owned(),
        contents => format!(
            "{} with {}, {}",
            counted(contents, "content"),
            counted(count.chunks, "chunk"),
            ByteLen(count.size_bytes)
        ),
    }
}

fn targets(report: &CheckReport) -> String {
    let mut lines = table(&["TARGET", "HOST", "CHUNKS", "ORPHANS", "CHECKED"]);
    for target in &report.targets {
        let checked = match &target.not_checked {
            Some(why) => format!("no: {why}"),
            None if report.state == "done" => "yes".to_owned(),
            None => "not to the end".to_owned(),
        };
        let (chunks, orphans) = (target.chunks.to_string(), target.orphans.chunks.to_string());
        lines.add_row([&target.id, &target.host, &chunks, &orphans, &checked]);
    }
    render(&lines)
}

fn findings(report: &CheckReport) -> String {
    let mut lines = table(&["FINDING", "TARGET", "CONTENT", "CHUNKS", "FIRST", "BYTES", "PATH"]);
    for finding in &report.findings {
        lines.add_row([
            finding.kind.to_owned(),
            finding.target.clone(),
            format!("i{}.g{}", finding.inode, finding.generation),
            finding.chunks.to_string(),
            finding.first_chunk.to_string(),
            ByteLen(finding.size_bytes).to_string(),
            finding.path.clone().unwrap_or_default(),
        ]);
    }
    render(&lines)
}
