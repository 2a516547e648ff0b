//! `millrace state PATH`: how a file stands against its bucket, or sums over a directory.

use anyhow::Context as _;
use millrace_protocol::admin::ShowState;
use millrace_types::ByteLen;

use crate::{
    arguments::PathArgument,
    context::{CALLER, Context, at},
    exit::Exit,
    output::{render, table},
    report::StateReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context, arguments: PathArgument) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let request = ShowState { caller: CALLER, path };
    let reply = connection.request(&request).await.context(at(&arguments.path))?;
    let report = StateReport::new(arguments.path.display().to_string(), &reply);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

fn words(report: &StateReport) -> String {
    let here = format!("{} of {} here", ByteLen(report.hydrated_bytes), ByteLen(report.size_bytes));
    let state = match report.state {
        Some(state) => state,
        None if report.states.iter().all(|sum| sum.files == 0) => "no files",
        None => "mixed",
    };
    let mut text = format!("{}: {state}, {here}", report.path);
    if let Some(origin) = &report.origin {
        text.push_str(&format!("\nfrom {} (tag {})", origin.url, origin.tag));
    }
    if !report.states.is_empty() {
        let mut sums = table(&["STATE", "FILES", "SIZE"]);
        for sum in &report.states {
            sums.add_row([
                sum.state.to_owned(),
                sum.files.to_string(),
                ByteLen(sum.size_bytes).to_string(),
            ]);
        }
        text.push('\n');
        text.push_str(&render(&sums));
    }
    if report.unlisted_directories > 0 {
        text.push_str(&format!(
            "\nnot counted: {} directories that nobody has listed yet, or that you \
             may not read",
            report.unlisted_directories
        ));
    }
    text
}
