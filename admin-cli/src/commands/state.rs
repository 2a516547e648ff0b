//! `millrace state PATH`: how a file stands against its bucket, or sums over a directory.

use anyhow::Context as _;
use millrace_protocol::admin::ShowState;
use millrace_types::ByteLen;

use crate::{
    arguments::PathArgument,
    context::{CALLER, Context, at},
    exit::Exit,
    output::{render, shown, table},
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
    let mut text = format!("{}: {state}, {here}", shown(&report.path));
    if let Some(origin) = &report.origin {
        let (url, tag) = (shown(&origin.url), shown(&origin.tag));
        text.push_str(&format!("\nfrom {url} (tag {tag})"));
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

#[cfg(test)]
mod tests {
    use crate::report::OriginReport;

    use super::*;

    #[test]
    fn names_and_keys_cannot_act_on_the_terminal() {
        let origin = OriginReport { url: "s3://b/\u{1b}[2J".to_owned(), tag: "t\n".to_owned() };
        let report = StateReport {
            path: "/m/\u{1b}[31mred\nfile".to_owned(),
            state: Some("hydrated"),
            size_bytes: 4096,
            hydrated_bytes: 4096,
            directory: false,
            states: Vec::new(),
            unlisted_directories: 0,
            origin: Some(origin),
        };
        let expected = "/m/\\u{1b}[31mred\\nfile: hydrated, 4 KiB of 4 KiB here\nfrom \
                        s3://b/\\u{1b}[2J (tag t\\n)";
        assert_eq!(words(&report), expected);
    }
}
