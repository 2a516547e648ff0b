//! `millrace job show ID [--directories] [--wait | --at-once]`.

use millrace_protocol::{
    admin::ShowJob, by_state::ShowStates, job_detail::ShowJobDetail, job_options::ShowJobOptions,
    selection::ShowSelection, unused::ShowUnused,
};

use crate::{
    arguments::JobDetailArguments,
    context::Context,
    exit::Exit,
    report::{
        CountsReport, DirectoriesReport, EarlierLook, JobOptionsReport, JobReport, SelectionReport,
    },
    watch::{self, LookedAt},
};

/// Asks and prints; with `--wait` follows the job to its end. To tell how fast a job is it looks
/// twice, a second apart, unless it is to be printed at once.
pub(crate) async fn run(context: &Context, arguments: JobDetailArguments) -> anyhow::Result<Exit> {
    let JobDetailArguments { directories, at_once, show } = arguments;
    let connection = context.anywhere().await?;
    let id = show.job.id;
    let job = connection.request(&ShowJob { id }).await?.job;
    let looked = if show.wait {
        match watch::follow_to_end(context, &connection, job).await? {
            Some(job) => LookedAt::once(job),
            None => return Ok(Exit::Interrupted),
        }
    } else if at_once {
        LookedAt::once(job)
    } else {
        watch::look_again(&connection, job, directories).await
    };
    let LookedAt { job, pace, earlier } = looked;
    // A server that knows no selections has jobs without.
    let reply = connection.request(&ShowSelection { id }).await.ok();
    let unused = connection.request(&ShowUnused { id }).await.ok().and_then(|reply| reply.seconds);
    let states = connection.request(&ShowStates { id }).await.ok();
    let states = states.map(|reply| reply.states).unwrap_or_default();
    let selection = reply.and_then(|reply| SelectionReport::of(reply, unused, &states));
    let reply = connection.request(&ShowJobOptions { id }).await.ok();
    let options = reply.and_then(|reply| JobOptionsReport::of(reply.options));
    let detail = connection.request(&ShowJobDetail { id }).await.ok().map(|reply| reply.detail);
    let waits = watch::waits(&connection, &job).await;
    let requests = detail.as_ref().map(|detail| CountsReport::from(detail.requests));
    let earlier = earlier.map(|(detail, looked)| EarlierLook { detail, elapsed: looked.elapsed() });
    let directories = detail
        .filter(|_| directories)
        .map(|detail| DirectoriesReport::of(job.kind, &detail, earlier.as_ref()));
    let report = JobReport::from(&job);
    let report = JobReport { selection, options, requests, waits, directories, pace, ..report };
    context.output.result(&report, || {
        let selection = report.selection.as_ref().map(SelectionReport::words);
        let options = report.options.as_ref().map(JobOptionsReport::words);
        let how: Vec<_> = selection.into_iter().chain(options).collect();
        let mut text = watch::summary(&job);
        if let Some(pace) = report.pace {
            text.push_str(&format!("\n  {}", pace.words(job.kind)));
        }
        for wait in &report.waits {
            text.push_str(&format!("\n  {}", wait.words()));
        }
        if !how.is_empty() {
            text.push_str(&format!("\n  {}", how.join(" ")));
        }
        text.push_str(&watch::asked(report.requests.as_ref()));
        if let Some(directories) = &report.directories {
            text.push_str(&format!("\n{}", directories.words(job.kind)));
        }
        text
    })?;
    Ok(if show.wait { watch::exit_of(&job) } else { Exit::Done })
}
