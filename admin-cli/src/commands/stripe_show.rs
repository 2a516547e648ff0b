//! `millrace stripe show PATH`: a directory's defaults, or where a file's chunks are.

use anyhow::Context as _;
use millrace_protocol::admin::ShowLayout;
use millrace_types::ByteLen;

use crate::{
    arguments::PathArgument,
    context::{CALLER, Context, at},
    exit::Exit,
    output::{render, shown, table},
    report::StripeReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context, arguments: PathArgument) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let request = ShowLayout { caller: CALLER, path };
    let reply = connection.request(&request).await.context(at(&arguments.path))?;
    let report = StripeReport::new(arguments.path.display().to_string(), &reply);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// A layout for people.
pub(crate) fn words(report: &StripeReport) -> String {
    let groups = match report.stripe_count {
        -1 => "all groups".to_owned(),
        1 => "1 group".to_owned(),
        count => format!("{count} groups"),
    };
    let mut text = format!(
        "{}: chunks of {} over {groups} of pool {}",
        shown(&report.path),
        ByteLen(report.chunk_size_bytes),
        shown(&report.pool)
    );
    let inline = ByteLen(report.inline_bytes.into());
    match (report.directory, report.inline_bytes) {
        (true, 0) => text.push_str(" for new files"),
        (true, _) => {
            text += &format!(" for new files; those up to {inline} may live in their inodes");
        }
        (false, 0) => {}
        (false, _) => text += &format!("; its {inline} live in its inode"),
    }
    if report.directory {
        return text;
    }
    let mut chunks = table(&["CHUNK", "GROUP", "TARGETS"]);
    for chunk in &report.chunks {
        chunks.add_row([chunk.index.to_string(), chunk.group.to_string(), chunk.targets.join(" ")]);
    }
    if !report.chunks.is_empty() {
        text.push('\n');
        text.push_str(&render(&chunks));
    }
    if report.truncated {
        text.push_str("\nand more chunks");
    }
    text
}
