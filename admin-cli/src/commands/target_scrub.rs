//! `millrace target scrub ID... | --all [--start | --pause | --resume | --rate SIZE] [--wait]`.

use std::{collections::BTreeMap, time::Duration};

use millrace_protocol::upkeep::{ScrubAction, ScrubState, ScrubTargets, ScrubsReply, TargetScrub};
use millrace_types::{ByteLen, TargetId};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    arguments::ScrubArguments,
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, render, table},
    report::{ScrubReport, TargetScrubReport},
    watch::{LINE_PAUSE, PATIENCE, say},
};

/// Often enough to see the end soon.
const POLL: Duration = Duration::from_millis(500);

/// Acts and prints; with `--wait` stays until the passes have ended. Exit code 1 when a daemon
/// does not answer, or a pass that was waited for has found damage.
pub(crate) async fn run(context: &Context, arguments: ScrubArguments) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let ask = |action| ScrubTargets { targets: arguments.ids.clone(), action };
    let before = connection.request(&ask(ScrubAction::Show)).await?;
    let mut reply = match arguments.action() {
        ScrubAction::Show => before.clone(),
        action => connection.request(&ask(action)).await?,
    };
    let mut exit = Exit::Done;
    if arguments.wait {
        let wanted = awaited(&before, arguments.action());
        match follow(&connection, &ask(ScrubAction::Show), &wanted).await? {
            Some(ended) => reply = ended,
            None => return Ok(Exit::Interrupted),
        }
        let found = |one: &TargetScrub| one.scrub.as_ref().is_ok_and(|scrub| scrub.findings > 0);
        if reply.scrubs.iter().any(found) {
            exit = Exit::Failed;
        }
    }
    if reply.scrubs.iter().any(|one| one.scrub.is_err()) {
        exit = Exit::Failed;
    }
    let reports: Vec<_> = reply.scrubs.iter().map(TargetScrubReport::from).collect();
    context.output.result(&reports, || words(&reports))?;
    Ok(exit)
}

/// A scrub in a few words.
pub(crate) fn scrub_text(scrub: &ScrubReport) -> String {
    let findings = match scrub.findings {
        0 => String::new(),
        count => format!(", {count} damaged"),
    };
    if scrub.under_way {
        let share = percent(scrub.checked_bytes, scrub.total_bytes);
        return format!("{}, pass {}, {share} %{findings}", scrub.state, scrub.pass);
    }
    match (scrub.state, &scrub.ended) {
        ("waiting", Some(ended)) => format!("done {ended}{findings}"),
        ("waiting", None) => format!("never, due {}", scrub.due),
        (state, _) => format!("{state}{findings}"),
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    // What is written meanwhile makes the whole larger or smaller: below 100 until the end.
    (u128::from(part) * 100 / u128::from(whole.max(1))).min(99).try_into().unwrap_or(99)
}

fn words(reports: &[TargetScrubReport]) -> String {
    let mut lines = table(&["TARGET", "SCRUB", "CHECKED", "RATE", "NEXT PASS"]);
    for report in reports {
        let Some(scrub) = &report.scrub else {
            let error = report.error.clone().unwrap_or_default();
            lines.add_row([report.id.clone(), format!("does not tell: {error}")]);
            continue;
        };
        lines.add_row([
            report.id.clone(),
            scrub_text(scrub),
            format!("{} of {}", ByteLen(scrub.checked_bytes), ByteLen(scrub.total_bytes)),
            format!("{}/s", ByteLen(scrub.bytes_per_second)),
            if scrub.under_way { "-".to_owned() } else { scrub.due.clone() },
        ]);
    }
    render(&lines)
}

/// The pass of each target whose end is waited for.
fn awaited(before: &ScrubsReply, action: ScrubAction) -> BTreeMap<TargetId, u64> {
    let known = before.scrubs.iter().filter_map(|one| Some((one.target, one.scrub.as_ref().ok()?)));
    known
        .map(|(target, scrub)| {
            let begins = action == ScrubAction::Start && !scrub.under_way;
            (target, scrub.pass + u64::from(begins))
        })
        .collect()
}

/// Whether everything that is waited for has ended, or cannot end.
fn has_ended(one: &TargetScrub, wanted: &BTreeMap<TargetId, u64>) -> anyhow::Result<bool> {
    let Ok(scrub) = &one.scrub else { return Ok(true) };
    // Of a target that did not answer before, what is under way now is waited for.
    let pass = wanted.get(&one.target).copied().unwrap_or(scrub.pass);
    let ended = scrub.pass > pass || (scrub.pass == pass && !scrub.under_way);
    if !ended {
        let id = one.target;
        match scrub.state {
            ScrubState::Off => anyhow::bail!("the scrub of {id} is off: set a rate with --rate"),
            ScrubState::Paused => anyhow::bail!("the scrub of {id} is paused: --resume it"),
            ScrubState::Running | ScrubState::Waiting => {}
        }
    }
    Ok(ended)
}

/// Polls until the passes have ended; `None` after Ctrl-C: they go on.
async fn follow(
    connection: &Connection,
    ask: &ScrubTargets,
    wanted: &BTreeMap<TargetId, u64>,
) -> anyhow::Result<Option<ScrubsReply>> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let (mut heard, mut said) = (Instant::now(), Instant::now());
    loop {
        let problem = match connection.request(ask).await {
            Ok(reply) => match reply.scrubs.iter().find_map(|one| one.scrub.as_ref().err()) {
                Some(failure) if failure.kind.is_transient() => failure.to_string(),
                _ => {
                    heard = Instant::now();
                    let mut all = true;
                    for one in &reply.scrubs {
                        all &= has_ended(one, wanted)?;
                    }
                    if all {
                        return Ok(Some(reply));
                    }
                    progress(&reply)
                }
            },
            Err(failure) if failure.kind.is_transient() => failure.to_string(),
            Err(failure) => return Err(failure.into()),
        };
        anyhow::ensure!(heard.elapsed() < PATIENCE, "lost sight of the scrubs: {problem}");
        if said.elapsed() >= LINE_PAUSE {
            say(&problem);
            said = Instant::now();
        }
        tokio::select! {
            _ = interrupts.recv() => {
                say("the scrubs go on; `millrace target scrub --all` shows them");
                return Ok(None);
            }
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

fn progress(reply: &ScrubsReply) -> String {
    let known = || reply.scrubs.iter().filter_map(|one| one.scrub.as_ref().ok());
    let sum = |of: fn(&millrace_protocol::upkeep::ScrubReport) -> u64| known().map(of).sum::<u64>();
    let (checked, total) = (sum(|scrub| scrub.checked.0), sum(|scrub| scrub.total.0));
    let under_way = known().filter(|scrub| scrub.under_way).count() as u64;
    format!(
        "{} under way: {} of {}, {}",
        counted(under_way, "scrub"),
        ByteLen(checked),
        ByteLen(total),
        counted(sum(|scrub| scrub.findings), "damaged block"),
    )
}

#[cfg(test)]
mod tests {
    use millrace_protocol::upkeep::ScrubReport as Told;
    use millrace_types::Timestamp;

    use super::*;

    fn told(state: ScrubState, pass: u64, under_way: bool) -> TargetScrub {
        let scrub = Told {
            state,
            pass,
            begun: Timestamp(10_000_000_000),
            ended: (pass > 1).then_some(Timestamp(9_000_000_000)),
            under_way,
            due: Timestamp(20_000_000_000),
            checked: ByteLen(50),
            total: ByteLen(200),
            findings: 1,
            bytes_per_second: 1 << 20,
            dropped_blocks: 0,
            gathered: ByteLen(0),
            read: ByteLen(0),
        };
        TargetScrub { target: TargetId([1; 8]), scrub: Ok(scrub) }
    }

    #[test]
    fn a_wait_ends_with_the_pass_that_was_asked_for() {
        use ScrubState::{Off, Paused, Running, Waiting};
        let before = ScrubsReply { scrubs: vec![told(Waiting, 1, false)] };
        let wanted = awaited(&before, ScrubAction::Start);
        assert!(!has_ended(&told(Running, 1, false), &wanted).unwrap(), "it has not begun yet");
        assert!(!has_ended(&told(Running, 2, true), &wanted).unwrap());
        assert!(has_ended(&told(Waiting, 2, false), &wanted).unwrap());
        assert!(has_ended(&told(Running, 3, true), &wanted).unwrap());
        assert!(has_ended(&told(Paused, 2, true), &wanted).is_err());
        assert!(has_ended(&told(Off, 2, true), &wanted).is_err());
        // One that is under way is waited for, also by `--start`.
        let before = ScrubsReply { scrubs: vec![told(Running, 2, true)] };
        for action in [ScrubAction::Start, ScrubAction::Show] {
            let wanted = awaited(&before, action);
            assert!(!has_ended(&told(Running, 2, true), &wanted).unwrap());
            assert!(has_ended(&told(Waiting, 2, false), &wanted).unwrap());
        }
    }

    #[test]
    fn a_scrub_in_a_few_words() {
        let text = |one: TargetScrub| scrub_text(&ScrubReport::from(&one.scrub.unwrap()));
        assert_eq!(text(told(ScrubState::Running, 2, true)), "running, pass 2, 25 %, 1 damaged");
        let done = text(told(ScrubState::Waiting, 2, false));
        assert_eq!(done, "done 1970-01-01T00:00:09Z, 1 damaged");
        assert_eq!(text(told(ScrubState::Waiting, 0, false)), "never, due 1970-01-01T00:00:20Z");
        assert_eq!(text(told(ScrubState::Off, 2, false)), "off, 1 damaged");
    }
}
