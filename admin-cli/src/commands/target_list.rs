//! `millrace target list`.

use millrace_protocol::upkeep::{DescribedTarget, ListTargets};
use millrace_types::ByteLen;

use crate::{
    commands::target_scrub::scrub_text,
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{render, shown, table},
    report::TargetDetailReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let targets = all(&connection).await?;
    let reports: Vec<_> = targets.iter().map(TargetDetailReport::from).collect();
    context.output.result(&reports, || words(&reports))?;
    Ok(Exit::Done)
}

/// Every target, page by page.
///
/// # Errors
/// Those of the metadata server; daemons that do not answer are no error.
pub(crate) async fn all(connection: &Connection) -> anyhow::Result<Vec<DescribedTarget>> {
    let mut targets: Vec<DescribedTarget> = Vec::new();
    loop {
        let after = targets.last().map(|target| target.status.id);
        let reply = connection.request(&ListTargets { after }).await?;
        let got = !reply.targets.is_empty();
        targets.extend(reply.targets);
        if !reply.more || !got {
            return Ok(targets);
        }
    }
}

fn words(reports: &[TargetDetailReport]) -> String {
    if reports.is_empty() {
        return "no targets: nothing can be stored until a storage host registers".to_owned();
    }
    let header = ["TARGET", "HOST", "STATE", "CAPACITY", "USED", "FREE", "BAD", "LOSSES", "SCRUB"];
    let mut lines = table(&header);
    for report in reports {
        let target = &report.target;
        let detail = report.detail.as_ref();
        let unknown = || "-".to_owned();
        let mut state = target.state.to_owned();
        if detail.is_some_and(|detail| detail.blank) {
            state.push_str(" (blank)");
        }
        if detail.is_some_and(|detail| detail.failed) {
            state.push_str(" (read-only)");
        }
        lines.add_row([
            target.id.clone(),
            target.host.clone(),
            state,
            ByteLen(target.capacity_bytes).to_string(),
            ByteLen(target.used_bytes).to_string(),
            ByteLen(target.capacity_bytes.saturating_sub(target.used_bytes)).to_string(),
            target.bad_blocks.to_string(),
            detail.map_or_else(unknown, |detail| detail.loss_count.to_string()),
            detail.map_or_else(unknown, |detail| scrub_text(&detail.scrub)),
        ]);
    }
    let mut text = render(&lines);
    for report in reports {
        if let Some(error) = &report.error {
            let (id, error) = (&report.target.id, shown(error));
            text.push_str(&format!("\n\ntarget {id} does not tell: {error}"));
        }
    }
    text
}
