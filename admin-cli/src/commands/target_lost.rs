//! `millrace target lost ID`.

use std::time::{Duration, Instant};

use millrace_protocol::loss::{LookLoss, LoseTarget};

use crate::{
    arguments::LostArguments,
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, shown},
    report::LossReport,
    watch::say,
};

/// Files named at most to a person; JSON has all.
const PATHS_SHOWN: usize = 64;

/// Between two lines of progress.
const SAY: Duration = Duration::from_secs(2);

/// Tells what is, or would be, damaged; with `--yes` gives the target up first. The exit code is 1
/// where nothing was done because `--yes` was missing.
pub(crate) async fn run(context: &Context, arguments: LostArguments) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    if arguments.yes {
        give_up(&connection, &arguments).await?;
    }
    let mut report = LossReport { id: arguments.id.to_string(), ..LossReport::default() };
    let (mut after, mut said) = (None, Instant::now());
    loop {
        let page = connection.request(&LookLoss { target: arguments.id, after }).await?;
        after = page.next;
        report.add(&page);
        if after.is_none() {
            break;
        }
        if said.elapsed() >= SAY {
            say(&format!("{} looked at", counted(report.inodes, "inode")));
            said = Instant::now();
        }
    }
    context.output.result(&report, || words(&report))?;
    Ok(if report.given_up { Exit::Done } else { Exit::Failed })
}

/// The server does the work; who is interrupted here asks again.
async fn give_up(connection: &Connection, arguments: &LostArguments) -> anyhow::Result<()> {
    let mut said = Instant::now();
    loop {
        let progress = connection.request(&LoseTarget { target: arguments.id }).await?;
        if progress.ended {
            return Ok(());
        }
        if said.elapsed() >= SAY {
            let (at, of) = (progress.looked_at.0, progress.below.0);
            say(&format!("{}, at inode {at} of {of}", counted(progress.files, "damaged file")));
            said = Instant::now();
        }
    }
}

fn words(report: &LossReport) -> String {
    let files = counted(report.damaged_files, "file");
    let groups = counted(report.groups.into(), "placement group");
    let mut text = match (report.given_up, report.damaged_files) {
        (true, 0) => {
            format!("target {} is given up: {groups} have moved\n  no file is damaged", report.id)
        }
        (true, _) => format!(
            "target {} is given up: {groups} have moved\n  parts of {files} are lost; what is left \
             can be read:",
            report.id
        ),
        (false, 0) if !report.renamed_paths.is_empty() => {
            format!("without target {} files may be lost:", report.id)
        }
        (false, 0) => format!("without target {} no file would be damaged", report.id),
        (false, _) => {
            format!("without target {} parts of {files} would be lost:", report.id)
        }
    };
    push_paths(&mut text, &report.paths, report.damaged_files);
    if !report.renamed_paths.is_empty() {
        let renamed = report.renamed_paths.len() as u64;
        text.push_str(&format!(
            "\n  renamed and not exported since; nobody knows whether the objects of {} are still \
             there:",
            counted(renamed, "file")
        ));
        push_paths(&mut text, &report.renamed_paths, renamed);
    }
    if !report.given_up {
        text.push_str(&format!(
            "\nnothing was changed; give it up for good, if it will not come back, with\n  \
             millrace target lost {} --yes",
            report.id
        ));
    }
    text
}

/// The first of some paths, and how many more there are of so many.
fn push_paths(text: &mut String, paths: &[String], count: u64) {
    for path in paths.iter().take(PATHS_SHOWN) {
        text.push_str(&format!("\n    {}", shown(path)));
    }
    let told = paths.len().min(PATHS_SHOWN) as u64;
    if count > told {
        text.push_str(&format!("\n    and {} more", count - told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(given_up: bool, paths: &[&str]) -> LossReport {
        LossReport {
            id: "ab".into(),
            given_up,
            groups: 64,
            damaged_files: paths.len() as u64,
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            renamed_paths: Vec::new(),
            inodes: 10,
        }
    }

    #[test]
    fn files_of_which_nobody_knows_are_told_apart() {
        let renamed = |paths: &[&str]| {
            let renamed_paths = vec!["/old".to_owned()];
            words(&LossReport { renamed_paths, ..report(false, paths) })
        };
        let told = "\n  renamed and not exported since; nobody knows whether the objects of 1 file \
                    are still there:\n    /old\nnothing was changed";
        let both = renamed(&["/a"]);
        assert!(both.starts_with(&format!(
            "without target ab parts of 1 file would be lost:\n    /a{told}"
        )));
        let alone = renamed(&[]);
        assert!(alone.starts_with(&format!("without target ab files may be lost:{told}")));
    }

    #[test]
    fn what_would_be_lost_is_told_before_and_what_is_lost_after() {
        assert_eq!(
            words(&report(false, &["/a", "/b"])),
            "without target ab parts of 2 files would be lost:\n    /a\n    /b\nnothing was \
             changed; give it up for good, if it will not come back, with\n  millrace target lost \
             ab --yes"
        );
        assert_eq!(
            words(&report(true, &["/a"])),
            "target ab is given up: 64 placement groups have moved\n  parts of 1 file are lost; \
             what is left can be read:\n    /a"
        );
        assert!(words(&report(true, &[])).ends_with("no file is damaged"));
    }
}
