//! `millrace target show ID`.

use millrace_protocol::upkeep::{FINDINGS_PER_REPLY_MAX, ShowTarget};
use millrace_types::ByteLen;

use crate::{
    arguments::TargetArgument,
    commands::target_scrub::scrub_text,
    context::Context,
    exit::Exit,
    output::{counted, render, shown, table},
    report::{DetailReport, FindingReport, TargetDetailReport, TargetShowReport},
};

/// Asks and prints. Exit code 1 when the target's daemon does not tell.
pub(crate) async fn run(context: &Context, arguments: TargetArgument) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let mut findings = Vec::new();
    let mut after = None;
    let target = loop {
        let request =
            ShowTarget { target: arguments.id, after, findings_max: FINDINGS_PER_REPLY_MAX };
        let reply = connection.request(&request).await?;
        let Ok(detail) = &reply.target.detail else { break reply.target };
        let named = detail.findings.iter().zip(&reply.paths);
        findings.extend(named.map(|(finding, path)| FindingReport::new(finding, path.as_ref())));
        match detail.findings.last() {
            Some(last) if detail.findings.len() >= FINDINGS_PER_REPLY_MAX as usize => {
                after = Some(last.place);
            }
            _ => break reply.target,
        }
    };
    let report = TargetShowReport { target: TargetDetailReport::from(&target), findings };
    context.output.result(&report, || words(&report))?;
    Ok(if report.target.error.is_some() { Exit::Failed } else { Exit::Done })
}

fn words(report: &TargetShowReport) -> String {
    let target = &report.target.target;
    let mut text = format!(
        "target {} on {} ({}): {}, heard of {}\n{} of {} used, {}",
        target.id,
        shown(&target.host),
        target.addresses.join(", "),
        target.state,
        target.heard,
        ByteLen(target.used_bytes),
        ByteLen(target.capacity_bytes),
        counted(target.groups.into(), "placement group"),
    );
    match (&report.target.detail, &report.target.error) {
        (Some(detail), _) => text.push_str(&detail_words(detail)),
        (None, Some(error)) => {
            text.push_str(&format!("\n\nits daemon does not tell more: {}", shown(error)));
        }
        (None, None) => {}
    }
    if report.findings.is_empty() {
        return text;
    }
    let mut lines = table(&["FILE", "CHUNK", "BLOCK", "DAMAGE", "DISK PAGE", "SINCE"]);
    for finding in &report.findings {
        let file = match (&finding.path, finding.fault) {
            (Some(path), _) => path.clone(),
            (None, "index") => "(the index)".to_owned(),
            (None, _) => format!("(no name) inode {}", finding.inode),
        };
        lines.add_row([
            file,
            finding.chunk.to_string(),
            finding.block.to_string(),
            finding.fault.to_owned(),
            finding.page.to_string(),
            finding.since.clone(),
        ]);
    }
    text.push_str("\n\ndamaged:\n");
    text.push_str(&render(&lines));
    text
}

fn detail_words(detail: &DetailReport) -> String {
    let space = &detail.space;
    let mut lines = table(&["SPACE", "BYTES"]);
    for (name, bytes) in [
        ("written, in no bucket", space.written_bytes),
        ("clean, in a bucket too", space.clean_bytes),
        ("free", space.free_bytes),
        ("  of these kept back", space.kept_back_bytes),
        ("not grown yet", space.ungrown_bytes),
        ("reserved", space.reserved_bytes),
        ("quarantined", space.quarantined_bytes),
        ("index", space.index_bytes),
        ("journal and fixed", space.fixed_bytes),
    ] {
        lines.add_row([name.to_owned(), ByteLen(bytes).to_string()]);
    }
    let mut text = format!("\n\n{}\n", render(&lines));
    let (index, scrub) = (&detail.index, &detail.scrub);
    text.push_str(&format!(
        "\nindex: entries {} in {}, levels {}; {} cached, {} of changes in memory\njournal: {} of \
         {} in use\ndisk: {}, {} since the daemon's start\n",
        index.entries,
        counted(index.nodes, "node"),
        index.height,
        ByteLen(index.cache_bytes),
        ByteLen(index.delta_bytes),
        ByteLen(detail.journal_used_bytes),
        ByteLen(detail.journal_capacity_bytes),
        detail.disk,
        counted(detail.checksum_failures, "wrong checksum"),
    ));
    text.push_str(&format!(
        "scrub: {}; at most {} a second, last end {}, {} read, {} dropped to be fetched again\n",
        scrub_text(scrub),
        ByteLen(scrub.bytes_per_second),
        scrub.ended.as_deref().unwrap_or("never"),
        ByteLen(scrub.read_bytes),
        counted(scrub.dropped_blocks, "block"),
    ));
    let mut states = vec![
        counted(detail.findings_total, "damaged block"),
        format!("unsynced writes may have been lost {}", counted(detail.loss_count, "time")),
    ];
    if detail.blank {
        states.push("made at its daemon's start".to_owned());
    }
    if detail.failed {
        states.push("read-only until its disk can be written again: its journal failed".to_owned());
    }
    text.push_str(&states.join("; "));
    text
}
