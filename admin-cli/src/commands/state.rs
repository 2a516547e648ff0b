//! `millrace state PATH`: how a file stands against its bucket, or sums over a directory.

use anyhow::Context as _;
use millrace_protocol::{
    admin::ShowState,
    known_state::{KnownStateReply, ShowKnownState},
};
use millrace_types::{ByteLen, ErrorKind, Failure};

use crate::{
    arguments::PathArgument,
    connection::Connection,
    context::{CALLER, Context, at},
    exit::Exit,
    output::{counted, render, shown, table},
    report::{SilentTargetReport, StateReport},
};

/// Asks and prints.
pub(crate) async fn run(context: &Context, arguments: PathArgument) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let reply = ask(&connection, &path).await.context(at(&arguments.path))?;
    let report = StateReport::new(arguments.path.display().to_string(), &reply);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// How what is at `path` stands, as far as targets answer. A server, or the daemon of a mount, from
/// before there was such an answer knows all, or fails.
pub(super) async fn ask(connection: &Connection, path: &[u8]) -> Result<KnownStateReply, Failure> {
    let of = ShowState { caller: CALLER, path: path.to_vec() };
    match connection.request(&ShowKnownState { of: of.clone() }).await {
        Err(failure) if failure.kind == ErrorKind::NotSupported => {
            let state = connection.request(&of).await?;
            let silent = Vec::new();
            Ok(KnownStateReply { state, unknown_files: 0, unknown_size: ByteLen(0), silent })
        }
        answer => answer,
    }
}

fn words(report: &StateReport) -> String {
    let least = if report.silent_targets.is_empty() { "" } else { "at least " };
    let (here, size) = (ByteLen(report.hydrated_bytes), ByteLen(report.size_bytes));
    let state = match report.state {
        Some(state) => state,
        None if report.unknown_files > 0 => "not all known",
        None if report.states.iter().all(|sum| sum.files == 0) => "no files",
        None => "mixed",
    };
    let mut text = format!("{}: {state}, {least}{here} of {size} here", shown(&report.path));
    if let Some(origin) = &report.origin {
        let (url, tag) = (shown(&origin.url), shown(&origin.tag));
        text.push_str(&format!("\nfrom {url} (tag {tag})"));
    }
    let unknown = (report.unknown_files > 0).then_some((
        "unknown",
        report.unknown_files,
        report.unknown_bytes,
    ));
    let known = report.states.iter().map(|sum| (sum.state, sum.files, sum.size_bytes));
    let rows: Vec<_> = known.chain(unknown).collect();
    if !rows.is_empty() {
        let mut sums = table(&["STATE", "FILES", "SIZE"]);
        for (state, files, bytes) in rows {
            sums.add_row([state.to_owned(), files.to_string(), ByteLen(bytes).to_string()]);
        }
        text.push('\n');
        text.push_str(&render(&sums));
    }
    for SilentTargetReport { id, files, error } in &report.silent_targets {
        text.push_str(&format!(
            "\ntarget {id} does not say what it holds ({}): {} may lie on it, at least in part, \
             and what is there is not counted as here",
            shown(error),
            counted(*files, "file")
        ));
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
    use crate::report::{OriginReport, StateSumReport};

    use super::*;

    fn report() -> StateReport {
        StateReport {
            path: "mr:/set".to_owned(),
            state: None,
            size_bytes: 8192,
            hydrated_bytes: 4096,
            directory: true,
            states: vec![StateSumReport { state: "hydrated", files: 1, size_bytes: 4096 }],
            unlisted_directories: 0,
            unknown_files: 0,
            unknown_bytes: 0,
            silent_targets: Vec::new(),
            origin: None,
        }
    }

    #[test]
    fn names_and_keys_cannot_act_on_the_terminal() {
        let origin = OriginReport { url: "s3://b/\u{1b}[2J".to_owned(), tag: "t\n".to_owned() };
        let report = StateReport {
            path: "/m/\u{1b}[31mred\nfile".to_owned(),
            state: Some("hydrated"),
            size_bytes: 4096,
            directory: false,
            states: Vec::new(),
            origin: Some(origin),
            ..report()
        };
        let expected = "/m/\\u{1b}[31mred\\nfile: hydrated, 4 KiB of 4 KiB here\nfrom \
                        s3://b/\\u{1b}[2J (tag t\\n)";
        assert_eq!(words(&report), expected);
    }

    #[test]
    fn what_a_target_does_not_tell_is_told() {
        let (id, error) = ("0202020202020202".to_owned(), "it is offline".to_owned());
        let report = StateReport {
            unknown_files: 3,
            unknown_bytes: 4096,
            silent_targets: vec![SilentTargetReport { id, files: 4, error }],
            ..report()
        };
        let text = words(&report);
        assert!(
            text.starts_with("mr:/set: not all known, at least 4 KiB of 8 KiB here\n"),
            "{text}"
        );
        assert!(text.contains("\nunknown   3      4 KiB\n"), "{text}");
        let told = "target 0202020202020202 does not say what it holds (it is offline): 4 files";
        assert!(text.contains(told), "{text}");
    }
}
