//! `millrace link left-out PATH`: keys of buckets that can be no names here.

use anyhow::Context as _;
use millrace_protocol::{admin::PathBytes, left_out::ShowLeftOut};

use crate::{
    arguments::LinkLeftOutArguments,
    connection::Connection,
    context::{CALLER, Context, at},
    exit::Exit,
    output::{counted, shown},
    report::LeftOutReport,
};

/// Asks and prints.
pub(crate) async fn run(
    context: &Context,
    arguments: LinkLeftOutArguments,
) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let report = all(&connection, path).await.context(at(&arguments.path))?;
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// What an import left out at and below a path, in a sentence; nothing where that is nothing, and
/// where nobody tells: an older server, or a path that belongs to somebody else.
pub(crate) async fn after_import(connection: &Connection, path: PathBytes) -> Option<String> {
    let report = all(connection, path).await.ok()?;
    (report.keys > 0).then(|| {
        let keys = counted(report.keys, "key");
        format!("{keys} can be no names here and were left out: see `millrace link left-out`")
    })
}

async fn all(connection: &Connection, path: PathBytes) -> anyhow::Result<LeftOutReport> {
    let mut report = LeftOutReport::default();
    let mut after = None;
    loop {
        let request = ShowLeftOut { caller: CALLER, path: path.clone(), after };
        let page = connection.request(&request).await?;
        report.add(&page);
        after = page.next;
        if after.is_none() {
            return Ok(report);
        }
    }
}

fn words(report: &LeftOutReport) -> String {
    if report.directories.is_empty() {
        return "nothing is left out of what has been listed".to_owned();
    }
    let mut lines = Vec::new();
    for directory in &report.directories {
        lines.push(format!("{}: {}", shown(&directory.path), counted(directory.keys, "key")));
        for key in &directory.first {
            lines.push(format!("  {}: {}", shown(&key.key), key.reason));
        }
        let others = directory.keys.saturating_sub(directory.first.len() as u64);
        if others > 0 {
            lines.push(format!("  and {others} more"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::left_out::{LeftOutDirectory, LeftOutKey, LeftOutReason, LeftOutReply};
    use millrace_types::InodeId;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_directory_names_its_first_keys_with_the_reason_and_counts_the_rest() {
        let mut report = LeftOutReport::default();
        assert_eq!(words(&report), "nothing is left out of what has been listed");
        let first =
            vec![LeftOutKey { key: "a/x\n".into(), reason: LeftOutReason::ControlCharacter }];
        let directory =
            LeftOutDirectory { inode: InodeId(7), path: b"/train/a".to_vec(), keys: 3, first };
        report.add(&LeftOutReply { directories: vec![directory], next: None });
        let expected = "/train/a: 3 keys\n  a/x\\n: it has a control character\n  and 2 more";
        assert_eq!(words(&report), expected);
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            json!({"keys": 3, "directories": [{
                "path": "/train/a", "keys": 3,
                "first": [{"key": "a/x\n", "reason": "it has a control character"}],
            }]})
        );
    }
}
