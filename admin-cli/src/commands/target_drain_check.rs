//! `millrace target drain-check ID`.

use millrace_protocol::upkeep::CheckDrain;
use millrace_types::ByteLen;

use crate::{
    arguments::TargetArgument,
    context::Context,
    exit::Exit,
    output::{counted, shown},
    report::DrainReport,
    watch::say,
};

/// Files named at most.
const PATHS_MAX: usize = 64;

/// Asks and prints. The exit code says whether it is safe.
pub(crate) async fn run(context: &Context, arguments: TargetArgument) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let mut report = DrainReport { id: arguments.id.to_string(), ..DrainReport::default() };
    let mut after = None;
    let mut said = std::time::Instant::now();
    loop {
        let reply = connection.request(&CheckDrain { target: arguments.id, after }).await?;
        report.add(&reply, PATHS_MAX);
        after = reply.next;
        if after.is_none() {
            break;
        }
        if said.elapsed().as_secs() >= 2 {
            say(&format!("{} looked at", counted(report.inodes, "inode")));
            said = std::time::Instant::now();
        }
    }
    context.output.result(&report, || words(&report))?;
    Ok(if report.safe { Exit::Done } else { Exit::Failed })
}

fn words(report: &DrainReport) -> String {
    let mut text = match report.safe {
        true => format!("safe: without target {} nothing would be lost", report.id),
        false => format!("not safe: without target {} data would be lost", report.id),
    };
    text.push_str(&format!(
        "\n  {} on it that no bucket has\n  {} on it that came from a bucket, or went there; {} \
         could not be read until it is back\n  {} on no other target",
        ByteLen(report.written_bytes),
        ByteLen(report.clean_bytes),
        counted(report.backed_files, "file"),
        counted(report.groups.into(), "placement group"),
    ));
    if report.lost_files > 0 {
        text.push_str(&format!(
            "\n  {} would lose something: changed or renamed, and not exported since",
            counted(report.lost_files, "file")
        ));
    }
    if report.written_bytes > 0 && report.lost_files == 0 {
        text.push_str("\n  no file has these bytes: of removed ones they are freed soon");
    }
    for path in &report.paths {
        text.push_str(&format!("\n    {}", shown(path)));
    }
    let told = report.paths.len() as u64;
    if report.lost_files > told {
        text.push_str(&format!("\n    and {} more", report.lost_files - told));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_is_named_and_counted() {
        let report = DrainReport {
            id: "ab".into(),
            safe: false,
            written_bytes: 1 << 20,
            clean_bytes: 1 << 30,
            groups: 64,
            backed_files: 5,
            lost_files: 3,
            lost_bytes: 1 << 20,
            paths: vec!["/a".into(), "/b".into()],
            inodes: 10,
        };
        assert_eq!(
            words(&report),
            "not safe: without target ab data would be lost\n  1 MiB on it that no bucket has\n  1 \
             GiB on it that came from a bucket, or went there; 5 files could not be read until it \
             is back\n  64 placement groups on no other target\n  3 files would lose something: \
             changed or renamed, and not exported since\n    /a\n    /b\n    and 1 more"
        );
    }
}
