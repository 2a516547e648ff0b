//! Follows a job until it ends: a bar on a terminal, plain lines elsewhere.

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_protocol::{
    admin::{AwaitJob, Job, JobKind, JobReply, JobState, ShowJob},
    job_detail::{JobDetail, ShowJobDetail},
    job_waits::ShowJobWaits,
};
use millrace_types::{ByteLen, ErrorKind, Failure, JobId};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    arguments::Globals,
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{counted, harmless, path_text, shown, subject_text},
    report::{Counts, CountsReport, JobReport, PaceReport, WaitReport, kind_name},
    settings::AdminSettings,
};

/// Reports a job that was just started and how to watch it, or with `wait` follows it to its end.
///
/// # Errors
/// When the cluster stays away, or standard output fails.
pub(crate) async fn report(
    context: &Context,
    connection: &Connection,
    job: Job,
    wait: bool,
) -> anyhow::Result<Exit> {
    let mut report = JobReport::from(&job);
    let mut job = job;
    if wait {
        match follow_to_end(context, connection, job).await? {
            Some(ended) => job = ended,
            None => return Ok(Exit::Interrupted),
        }
        // A server that counts none has jobs without.
        let detail = connection.request(&ShowJobDetail { id: job.id }).await.ok();
        let requests = detail.map(|reply| reply.detail.requests.into());
        report = JobReport { requests, ..JobReport::from(&job) };
    }
    context.output.result(&report, || {
        if wait {
            summary(&job) + &asked(report.requests.as_ref())
        } else {
            format!(
                "job {} started: {} of {}; watch it with `{}`",
                job.id.0,
                kind_name(job.kind),
                shown(&path_text(&job.path)),
                typed(context, connection, &format!("job show {} --wait", job.id.0))
            )
        }
    })?;
    Ok(if wait { exit_of(&job) } else { Exit::Done })
}

/// Follows a job to its end; nothing when the user stops watching, who is told how to go on.
///
/// # Errors
/// When the cluster stays away.
pub(crate) async fn follow_to_end(
    context: &Context,
    connection: &Connection,
    job: Job,
) -> anyhow::Result<Option<Job>> {
    match follow(connection, job).await? {
        Followed::Ended(job) => Ok(Some(job)),
        Followed::Interrupted(id) => {
            say(&format!(
                "job {} goes on; watch it with `{}`, stop it with `{}`",
                id.0,
                typed(context, connection, &format!("job show {} --wait", id.0)),
                typed(context, connection, &format!("job cancel {}", id.0))
            ));
            Ok(None)
        }
    }
}

/// A job that was looked at twice.
pub(crate) struct LookedAt {
    /// As it is now.
    pub(crate) job: Job,
    /// How fast it is, if it runs.
    pub(crate) pace: Option<PaceReport>,
    /// Of one that runs, and whose directories were asked for: what these were like, and when.
    pub(crate) earlier: Option<(JobDetail, Instant)>,
}

impl LookedAt {
    /// One that was looked at once.
    pub(crate) fn once(job: Job) -> Self {
        Self { job, pace: None, earlier: None }
    }
}

/// Looks at a job that runs a second later once more, or when it has ended.
pub(crate) async fn look_again(
    connection: &Connection,
    job: Job,
    with_directories: bool,
) -> LookedAt {
    if job.state != JobState::Running {
        return LookedAt::once(job);
    }
    let (begun, id, before) = (Instant::now(), job.id, Counts::from(&job));
    let earlier = match with_directories {
        true => connection.request(&ShowJobDetail { id }).await.ok(),
        false => None,
    };
    let earlier = earlier.map(|reply| (reply.detail, Instant::now()));
    // Where nobody answers now, what was told a second ago is printed.
    let Ok(JobReply { job }) = a_second_later(connection, id).await else {
        return LookedAt::once(job);
    };
    if job.state != JobState::Running {
        return LookedAt::once(job);
    }
    let pace = PaceReport::between(job.kind, before, Counts::from(&job), begun.elapsed());
    LookedAt { job, pace, earlier }
}

async fn a_second_later(connection: &Connection, id: JobId) -> Result<JobReply, Failure> {
    match connection.request(&AwaitJob { id, patience_ms: SECOND_LOOK_MS }).await {
        // Where servers know no waits, and at a mount through which somebody else waits.
        Err(failure) if failure.kind == ErrorKind::NotSupported => {}
        answer => return answer,
    }
    tokio::time::sleep(Duration::from_millis(SECOND_LOOK_MS.into())).await;
    connection.request(&ShowJob { id }).await
}

/// The buckets that a job waits for, if it runs; none where servers do not tell.
pub(crate) async fn waits(connection: &Connection, job: &Job) -> Vec<WaitReport> {
    if job.state != JobState::Running {
        return Vec::new();
    }
    let reply = connection.request(&ShowJobWaits { id: job.id }).await;
    reply.map(|reply| reply.waits.into_iter().map(WaitReport::from).collect()).unwrap_or_default()
}

/// A line that tells what a job asked buckets.
pub(crate) fn asked(requests: Option<&CountsReport>) -> String {
    requests.map_or_else(String::new, |requests| format!("\n  asked for: {}", requests.words()))
}

/// The exit code that tells a job's result.
pub(crate) fn exit_of(job: &Job) -> Exit {
    match job.state {
        JobState::Succeeded => Exit::Done,
        _ => Exit::Failed,
    }
}

/// A job's result in words.
pub(crate) fn summary(job: &Job) -> String {
    let ended = match job.state {
        JobState::Queued => "waits for others to end",
        JobState::Running => "runs",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Cancelled => "was cancelled",
    };
    let mut text = format!(
        "job {} {ended}: {} of {}, {} of {}, {}",
        job.id.0,
        job.files_done,
        counted(job.files_total, "file"),
        ByteLen(job.bytes_done),
        ByteLen(job.bytes_total),
        counted(job.errors, "error"),
    );
    for failed in &job.failures {
        text.push_str("\n  ");
        text.push_str(&shown(&subject_text(&failed.path)));
        text.push_str(": ");
        text.push_str(&shown(&failed.failure.to_string()));
    }
    let told = u64::try_from(job.failures.len()).unwrap_or(u64::MAX);
    if job.errors > told {
        text.push_str(&format!("\n  and {} more", job.errors - told));
    }
    text
}

/// A line with a message, where there is a terminal.
pub(crate) fn bytes_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::default_spinner());
    bar
}

enum Followed {
    Ended(Job),
    Interrupted(JobId),
}

async fn follow(connection: &Connection, job: Job) -> anyhow::Result<Followed> {
    let id = job.id;
    // Listens from here to the end: a Ctrl-C between two waits would otherwise be lost.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut view = View::new(&job);
    let mut job = job;
    let mut heard = Instant::now();
    let mut is_told = true;
    while !job.state.is_final() {
        let asked = next(connection, id, &mut is_told);
        let answer = tokio::select! {
            _ = interrupts.recv() => {
                view.end();
                return Ok(Followed::Interrupted(id));
            }
            answer = asked => answer,
        };
        match answer {
            Ok(reply) => {
                heard = Instant::now();
                job = reply.job;
                if view.is_stuck(&job) {
                    let waits = tokio::select! {
                        _ = interrupts.recv() => {
                            view.end();
                            return Ok(Followed::Interrupted(id));
                        }
                        waits = waits(connection, &job) => waits,
                    };
                    view.wait = waits.first().map(WaitReport::words);
                }
                view.show(&job);
            }
            // The job lives in the cluster: a restart of its server does not end it.
            Err(failure) if failure.kind.is_transient() && heard.elapsed() < PATIENCE => {
                view.waits(&failure.to_string());
            }
            Err(failure) => {
                view.end();
                anyhow::bail!("lost sight of job {}, which may go on: {failure}", id.0);
            }
        }
    }
    view.end();
    Ok(Followed::Ended(job))
}

/// The job when it has ended, or a while later; `is_told` turns false where servers know no waits.
async fn next(connection: &Connection, id: JobId, is_told: &mut bool) -> Result<JobReply, Failure> {
    if *is_told {
        match connection.request(&AwaitJob { id, patience_ms: POLL_MS }).await {
            Err(failure) if failure.kind == ErrorKind::NotSupported => *is_told = false,
            Err(failure) => {
                tokio::time::sleep(POLL).await;
                return Err(failure);
            }
            answer => return answer,
        }
    }
    tokio::time::sleep(POLL).await;
    connection.request(&ShowJob { id }).await
}

/// What a person sees of a job in progress, on standard error.
struct View {
    bar: Option<ProgressBar>,
    /// When it was first looked at, and what was done then.
    first: (Instant, Counts),
    /// When it was last seen to have done something, and how far it was then.
    moved: (Instant, Counts),
    /// What it waits for, if it is stuck, and when that was last asked.
    wait: Option<String>,
    asked: Instant,
    /// When that was last told in a line.
    told: Option<Instant>,
    shown: Option<Instant>,
    line: String,
}

impl View {
    fn new(job: &Job) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(style(job.kind));
            bar.set_prefix(format!("{} {}", kind_name(job.kind), job.id.0));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let first = (Instant::now(), Counts::from(job));
        let (moved, asked) = (first, first.0);
        Self { bar, first, moved, wait: None, asked, told: None, shown: None, line: String::new() }
    }

    /// Whether it has done nothing for a while, and it is time to ask why.
    fn is_stuck(&mut self, job: &Job) -> bool {
        let (now, counts) = (Instant::now(), Counts::from(job));
        if counts != self.moved.1 {
            (self.moved, self.wait, self.told) = ((now, counts), None, None);
        }
        let is_stuck = now - self.moved.0 >= LINE_PAUSE && now - self.asked >= LINE_PAUSE;
        if is_stuck {
            self.asked = now;
        }
        is_stuck
    }

    fn show(&mut self, job: &Job) {
        if let Some(wait) = self.wait.clone() {
            match &self.bar {
                Some(bar) => bar.set_message(harmless(&wait)),
                None if self.told.is_some_and(|told| told.elapsed() < WAIT_PAUSE) => {}
                None => {
                    let line = format!("{} {}: {wait}", kind_name(job.kind), job.id.0);
                    if self.plain(line) {
                        self.told = self.shown;
                    }
                }
            }
            return;
        }
        let line = format!("{}/{} files, {} errors", job.files_done, job.files_total, job.errors);
        let now = Counts::from(job);
        if now.is_behind(self.first.1) {
            self.first = (Instant::now(), now);
        }
        let (begun, before) = self.first;
        let pace = PaceReport::between(job.kind, before, now, begun.elapsed());
        let pace = pace.map_or_else(String::new, |pace| format!(", {}", pace.words(job.kind)));
        if let Some(bar) = &self.bar {
            bar.set_length(job.bytes_total);
            bar.set_position(job.bytes_done);
            // Of others the bar tells.
            let is_told = job.kind != JobKind::Import;
            bar.set_message(if is_told { line } else { line + &pace });
            return;
        }
        let line = format!(
            "{} {}: {line}, {} of {}{pace}",
            kind_name(job.kind),
            job.id.0,
            ByteLen(job.bytes_done),
            ByteLen(job.bytes_total),
        );
        self.plain(line);
    }

    fn waits(&mut self, why: &str) {
        let line = format!("waits for the cluster: {why}");
        match &self.bar {
            Some(bar) => bar.set_message(harmless(&line)),
            None => {
                self.plain(line);
            }
        }
    }

    /// At most one line every few seconds, and never the same twice. Whether it was said.
    fn plain(&mut self, line: String) -> bool {
        let now = Instant::now();
        let due = self.shown.is_none_or(|shown| now - shown >= LINE_PAUSE);
        let is_new = due && line != self.line;
        if is_new {
            say(&line);
            self.line = line;
            self.shown = Some(now);
        }
        is_new
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn style(kind: JobKind) -> ProgressStyle {
    let template = match kind {
        // It has done whatever it has found.
        JobKind::Import => "{prefix} {spinner} {total_bytes} {msg}",
        JobKind::Hydrate | JobKind::Release | JobKind::Export => {
            "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {msg} {eta} left"
        }
    };
    ProgressStyle::with_template(template).expect("the template is constant and tested")
}

/// A line for a person beside the result.
pub(crate) fn say(line: &str) {
    // Without a standard error there is nobody to tell.
    drop(writeln!(std::io::stderr().lock(), "{}", harmless(line)));
}

/// A command as the reader has to type it for this cluster. Settings that were named and cannot be
/// used did no harm to who asked a mount; they would to this command.
fn typed(context: &Context, connection: &Connection, words: &str) -> String {
    let mountpoint = connection.mountpoint();
    match mountpoint.is_some() && AdminSettings::load(&context.globals).is_err() {
        true => typed_for(&Globals::default(), mountpoint, words),
        false => typed_for(&context.globals, mountpoint, words),
    }
}

/// A host with a mount alone has no settings that name a cluster: there the mount is asked, from
/// inside it, by a shell that leaves it again, since whoever stays in a mount keeps it mounted.
fn typed_for(globals: &Globals, mountpoint: Option<&Path>, words: &str) -> String {
    if let Some(config) = &globals.config {
        format!("millrace --config {} {words}", quoted(config))
    } else if let Some(dir) = &globals.dir {
        format!("millrace --dir {} {words}", quoted(dir))
    } else if let Some(mountpoint) = mountpoint {
        format!("(cd {} && millrace {words})", quoted(mountpoint))
    } else {
        format!("millrace {words}")
    }
}

/// A path as a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "/._-+,:@%".contains(character);
    match text.chars().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Often enough for a bar to move, seldom enough that a hundred watchers cost a server nothing.
const POLL_MS: u32 = 250;
const POLL: Duration = Duration::from_millis(POLL_MS as u64);
/// Between two looks at a job that nobody waits for: two of the steps in which servers count. A
/// little more would see a third one now and then.
const SECOND_LOOK_MS: u32 = 1_000;
/// How long the cluster may stay away before watching ends: longer than any restart.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Between two plain lines about a wait for a bucket, which may take an hour.
const WAIT_PAUSE: Duration = Duration::from_secs(30);
/// Between two plain lines: a log of an hour's job stays below 2,000 lines.
pub(crate) const LINE_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use millrace_protocol::admin::JobFailure;
    use millrace_types::{MIB, Timestamp};

    use super::*;

    fn job(state: JobState, errors: u64) -> Job {
        Job {
            id: JobId(7),
            kind: JobKind::Hydrate,
            path: b"/train".to_vec(),
            state,
            files_done: 1,
            files_total: 2,
            bytes_done: MIB,
            bytes_total: 2 * MIB,
            errors,
            failures: vec![JobFailure {
                path: b"/train/b\x1b\n".to_vec(),
                failure: Failure::new(ErrorKind::ObjectChanged, ""),
            }],
            started: Timestamp(0),
            ended: None,
        }
    }

    #[test]
    fn only_a_job_that_did_everything_ends_with_zero() {
        assert_eq!(exit_of(&job(JobState::Succeeded, 0)), Exit::Done);
        assert_eq!(exit_of(&job(JobState::Failed, 1)), Exit::Failed);
        assert_eq!(exit_of(&job(JobState::Cancelled, 0)), Exit::Failed);
    }

    #[test]
    fn a_result_names_the_files_that_failed_and_how_many_more() {
        assert_eq!(
            summary(&job(JobState::Failed, 3)),
            "job 7 failed: 1 of 2 files, 1 MiB of 2 MiB, 3 errors\n  /train/b\\u{1b}\\n: the \
             object changed in the bucket\n  and 2 more"
        );
    }

    #[test]
    fn a_mount_is_asked_from_inside_it_unless_settings_were_named() {
        let mountpoint = Some(Path::new("/mnt/data"));
        let none = Globals::default();
        let typed = |globals: &Globals, mountpoint| typed_for(globals, mountpoint, "job list");
        assert_eq!(typed(&none, None), "millrace job list");
        assert_eq!(typed(&none, mountpoint), "(cd /mnt/data && millrace job list)");
        let spaces = Some(Path::new("/mnt/it's mine"));
        assert_eq!(typed(&none, spaces), r"(cd '/mnt/it'\''s mine' && millrace job list)");
        let dir = Globals { dir: Some("/root/my cluster".into()), ..Globals::default() };
        assert_eq!(typed(&dir, mountpoint), "millrace --dir '/root/my cluster' job list");
        let config = Globals { config: Some("~/admin.toml".into()), ..dir };
        assert_eq!(typed(&config, mountpoint), "millrace --config '~/admin.toml' job list");
    }

    #[test]
    fn the_bars_have_valid_templates() {
        for kind in [JobKind::Import, JobKind::Hydrate] {
            let _style = style(kind);
        }
    }
}
