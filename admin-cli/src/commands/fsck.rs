//! `millrace fsck start|show|cancel|trust`: each asks, and prints the check that runs or ran last.

use std::time::Duration;

use millrace_protocol::fsck::{
    CancelFsck, FSCK_FINDINGS_MAX, FsckReply, FsckReport, FsckState, NamespaceReport, ShowFsck,
    ShowNamespace, StartFsck, StartRepair, TrustNamespace,
};
use millrace_types::ByteLen;
use tokio::time::Instant;

use crate::{
    arguments::{FsckCommand, FsckStartArguments},
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, render, shown, table},
    report::{CheckReport, CountReport},
    watch::{LINE_PAUSE, PATIENCE, say},
};

/// Between two looks at a check that is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// Findings in a table; JSON has more.
const FINDINGS_SHOWN: usize = 20;

const FORGOTTEN: &str = "a metadata server that is started again has forgotten the check that was \
                         waited for; start a new one";

/// What a command waits for, and ends with 1 without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Nothing.
    Nothing,
    /// A check that has seen everything, and found nothing that somebody must look at.
    Sound,
    /// That the check which it was does not run any more.
    End,
}

/// Asks and prints.
pub(crate) async fn run(context: &Context, command: FsckCommand) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let sound = |wait| if wait { Awaited::Sound } else { Awaited::Nothing };
    let (reply, awaited) = match command {
        FsckCommand::Start(arguments) => {
            let awaited = sound(arguments.wait.wait);
            (start(&connection, arguments).await?, awaited)
        }
        FsckCommand::Show(arguments) => {
            (connection.request(&ShowFsck {}).await?, sound(arguments.wait))
        }
        FsckCommand::Cancel => (connection.request(&CancelFsck {}).await?, Awaited::End),
        FsckCommand::Trust => (connection.request(&TrustNamespace {}).await?, Awaited::Nothing),
    };
    let before = reply.report;
    let report = match awaited {
        Awaited::Nothing => before.clone(),
        Awaited::Sound | Awaited::End => ended(&connection, &before).await?,
    };
    if awaited == Awaited::Sound {
        anyhow::ensure!(is_the_same(&before, &report), FORGOTTEN);
    }
    let namespace = connection.request(&ShowNamespace {}).await?.report;
    let printed = CheckReport::of(&report, &namespace);
    context.output.result(&printed, || words(&printed))?;
    Ok(match awaited {
        Awaited::Nothing => Exit::Done,
        Awaited::Sound => exit_of(&report, &namespace),
        Awaited::End => exit_of_cancel(&before, &report),
    })
}

async fn start(
    connection: &Connection,
    arguments: FsckStartArguments,
) -> anyhow::Result<FsckReply> {
    let FsckStartArguments { targets, report_only, repair, free_many, wait: _ } = arguments;
    let start = StartFsck { targets, report_only, free_many };
    Ok(match repair {
        true => connection.request(&StartRepair { start }).await?,
        false => connection.request(&start).await?,
    })
}

/// The check when it has ended; another one, where the server runs another or was started again.
///
/// # Errors
/// When the server stays away for longer than a restart takes.
async fn ended(connection: &Connection, before: &FsckReport) -> anyhow::Result<FsckReport> {
    let mut report = before.clone();
    let (mut heard, mut said) = (Instant::now(), None::<Instant>);
    while is_the_same(before, &report) && report.state.is_running() {
        tokio::time::sleep(LOOK).await;
        match connection.request(&ShowFsck {}).await {
            Ok(reply) => {
                heard = Instant::now();
                report = reply.report;
            }
            // A server that says nothing for a moment has forgotten nothing.
            Err(failure) if failure.kind.is_transient() && heard.elapsed() < PATIENCE => {
                if said.is_none_or(|said| said.elapsed() >= LINE_PAUSE) {
                    say(&format!("waits for the cluster: {failure}"));
                    said = Some(Instant::now());
                }
            }
            Err(failure) => anyhow::bail!(
                "lost sight of the check, which may go on; see `millrace fsck show --wait`: \
                 {failure}"
            ),
        }
    }
    Ok(report)
}

/// Whether both are looks at one check: a server that is started again counts from 1.
fn is_the_same(before: &FsckReport, now: &FsckReport) -> bool {
    (before.run, before.started) == (now.run, now.started)
}

/// That a check was cancelled is what was wanted, and so is that it had ended, or that none ran.
fn exit_of_cancel(before: &FsckReport, report: &FsckReport) -> Exit {
    match report.state {
        FsckState::Failed if is_the_same(before, report) => Exit::Failed,
        _ => Exit::Done,
    }
}

fn exit_of(report: &FsckReport, namespace: &NamespaceReport) -> Exit {
    let sound = report.state == FsckState::Done
        && (namespace.run != report.run
            || namespace.flaws.iter().all(|count| count.found == count.repaired))
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
            "\nnothing is freed: {} (since {since}); see `millrace fsck trust --help`",
            shown(reason)
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
            let (id, why) = (&target.id, shown(why));
            text.push_str(&format!("\norphans on target {id} are not freed: {why}"));
        }
    }
    text.push_str(&namespace(report));
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
            let why = failure.as_ref().map(|why| format!(": {}", shown(why))).unwrap_or_default();
            let ended = report.ended.as_deref().unwrap_or_default();
            format!("check {}, ended {ended}: {state}{why}; {done}", report.run)
        }
    }
}

/// What is wrong with the namespace itself.
fn namespace(report: &CheckReport) -> String {
    let section = &report.namespace;
    let looked = counted(section.inodes, "inode");
    let mut text = match (section.state, &section.failure) {
        ("never", _) => return "\n  namespace: not looked at".to_owned(),
        ("names" | "inodes" | "counts", _) => {
            let records = counted(section.records, "record");
            format!("\n  namespace: looks at {}; {records}", section.state)
        }
        (state, Some(failure)) => {
            format!("\n  namespace: {state}: {}; {looked}", shown(failure))
        }
        ("done", None) if section.flaws.is_empty() => format!("\n  namespace: sound; {looked}"),
        (state, None) => format!("\n  namespace: {state}; {looked}"),
    };
    for flaw in &section.flaws {
        let repaired = match flaw.repaired {
            0 => String::new(),
            repaired => format!(", {repaired} repaired"),
        };
        text.push_str(&format!("\n    {}: {}{repaired}", flaw.kind, flaw.found));
    }
    if !section.findings.is_empty() {
        let mut lines = table(&["FLAW", "INODE", "PATH", "REPAIRED", "WHAT"]);
        for flaw in section.findings.iter().take(FINDINGS_SHOWN) {
            lines.add_row([
                flaw.kind.to_owned(),
                flaw.inode.to_string(),
                flaw.path.clone().unwrap_or_default(),
                if flaw.repaired { "yes".to_owned() } else { "no".to_owned() },
                flaw.text.clone(),
            ]);
        }
        text.push_str("\n\n");
        text.push_str(&render(&lines));
    }
    text
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
    for finding in report.findings.iter().take(FINDINGS_SHOWN) {
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
    let mut text = render(&lines);
    let counts = [&report.orphans, &report.missing, &report.misplaced, &report.newer];
    let all: u64 = counts.into_iter().map(|count| count.contents).sum();
    let more = all.saturating_sub(FINDINGS_SHOWN as u64);
    if more > 0 {
        text.push_str(&format!(
            "\nand {}; --json has the first {FSCK_FINDINGS_MAX} of each kind",
            counted(more, "more finding")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        fsck::{
            FlawCount, FlawFinding, FlawKind, FsckCount, FsckFinding, FsckKind, FsckTarget,
            NamespaceState,
        },
        target::ContentName,
    };
    use millrace_types::{ChunkIndex, ContentGeneration, InodeId, TargetId, Timestamp};

    use super::*;

    const TARGET: TargetId = TargetId([3; 8]);

    /// A check that has found so many orphans on one target.
    fn found(orphans: u64) -> FsckReport {
        let finding = |number| FsckFinding {
            kind: FsckKind::Orphan,
            target: TARGET,
            content: ContentName { inode: InodeId(number), generation: ContentGeneration(1) },
            path: None,
            chunks: 1,
            first: ChunkIndex(0),
            bytes: ByteLen(4096),
        };
        let count = FsckCount { contents: orphans, chunks: orphans, bytes: ByteLen(4096) };
        let target = FsckTarget {
            target: TARGET,
            host_name: "store-1".to_owned(),
            chunks: 1000,
            not_checked: None,
            orphans: count,
            held_back: None,
        };
        FsckReport {
            run: 1,
            state: FsckState::Done,
            targets: vec![target],
            orphans: count,
            findings: (0..orphans.min(FSCK_FINDINGS_MAX as u64)).map(finding).collect(),
            ..FsckReport::default()
        }
    }

    /// A namespace in which nothing is wrong.
    fn sound() -> NamespaceReport {
        NamespaceReport { run: 1, state: NamespaceState::Done, ..NamespaceReport::default() }
    }

    #[test]
    fn what_is_wrong_with_the_namespace_and_not_repaired_ends_with_one() {
        let count = |repaired| FlawCount { kind: FlawKind::WrongLinks, found: 2, repaired };
        let finding = FlawFinding {
            kind: FlawKind::WrongLinks,
            inode: InodeId(70),
            path: Some(b"/data/a".to_vec()),
            text: "it counts 3 names, and has 2".to_owned(),
            repaired: true,
        };
        let flawed = |repaired| NamespaceReport {
            flaws: vec![count(repaired)],
            findings: vec![finding.clone()],
            ..sound()
        };
        assert_eq!(exit_of(&found(0), &flawed(1)), Exit::Failed);
        assert_eq!(exit_of(&found(0), &flawed(2)), Exit::Done);
        let text = words(&CheckReport::of(&found(0), &flawed(1)));
        assert!(text.contains("wrong-links: 2, 1 repaired"), "{text}");
        assert!(text.contains("/data/a") && text.contains("it counts 3 names"), "{text}");
        let text = words(&CheckReport::of(&found(0), &sound()));
        assert!(text.contains("namespace: sound"), "{text}");
    }

    #[test]
    fn orphans_end_with_zero_and_what_somebody_must_look_at_with_one() {
        assert_eq!(exit_of(&found(5), &sound()), Exit::Done);
        let mut held_back = found(300);
        held_back.targets[0].held_back = Some("too many".to_owned());
        assert_eq!(exit_of(&held_back, &sound()), Exit::Failed);
        let text = words(&CheckReport::of(&held_back, &sound()));
        assert!(text.contains("are not freed: too many"), "{text}");
        let mut missing = found(0);
        missing.missing.contents = 1;
        assert_eq!(exit_of(&missing, &sound()), Exit::Failed);
        let mut unchecked = found(0);
        unchecked.targets[0].not_checked = Some("it does not answer".to_owned());
        assert_eq!(exit_of(&unchecked, &sound()), Exit::Failed);
    }

    #[test]
    fn to_cancel_a_check_ends_with_zero_unless_it_has_failed() {
        let exit = |run, state| {
            let before = FsckReport { run, ..found(300) };
            exit_of_cancel(&before, &FsckReport { state, ..found(300) })
        };
        assert_eq!(exit(1, FsckState::Cancelled), Exit::Done);
        assert_eq!(exit(1, FsckState::Done), Exit::Done);
        assert_eq!(exit(1, FsckState::Never), Exit::Done, "there was none");
        assert_eq!(exit(1, FsckState::Failed), Exit::Failed);
        // The next one has begun meanwhile.
        assert_eq!(exit(2, FsckState::Listing), Exit::Done);
    }

    #[test]
    fn a_check_is_another_one_where_its_number_or_its_beginning_is() {
        let check = |run, started: Option<i64>| FsckReport {
            run,
            started: started.map(Timestamp),
            ..FsckReport::default()
        };
        let before = check(1, Some(1_000));
        let later = FsckReport { state: FsckState::Confirming, files: 7, ..before.clone() };
        assert!(is_the_same(&before, &later));
        assert!(!is_the_same(&before, &check(2, Some(2_000))), "the next one");
        assert!(!is_the_same(&before, &check(0, None)), "none since the server's start");
        assert!(!is_the_same(&before, &check(1, Some(2_000))), "the first since its start");
        assert!(is_the_same(&check(0, None), &check(0, None)), "there was none");
    }

    #[test]
    fn a_long_list_of_findings_ends_with_how_many_more_there_are() {
        let few = words(&CheckReport::of(&found(20), &sound()));
        assert!(!few.contains("more finding"), "{few}");
        let many = words(&CheckReport::of(&found(603), &sound()));
        assert_eq!(many.matches("orphan  ").count(), FINDINGS_SHOWN, "{many}");
        assert!(many.ends_with("and 583 more findings; --json has the first 25 of each kind"));
    }
}
