//! `millrace job show ID [--wait]`.

use millrace_protocol::{admin::ShowJob, job_options::ShowJobOptions, selection::ShowSelection};

use crate::{
    arguments::JobShowArguments,
    context::Context,
    exit::Exit,
    report::{JobOptionsReport, JobReport, SelectionReport},
    watch,
};

/// Asks and prints; with `--wait` follows the job to its end.
pub(crate) async fn run(context: &Context, arguments: JobShowArguments) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let id = arguments.job.id;
    let job = connection.request(&ShowJob { id }).await?.job;
    if arguments.wait {
        return watch::report(context, &connection, job, true).await;
    }
    // A server that knows no selections has jobs without.
    let reply = connection.request(&ShowSelection { id }).await.ok();
    let selection = reply.and_then(SelectionReport::of);
    let reply = connection.request(&ShowJobOptions { id }).await.ok();
    let options = reply.and_then(|reply| JobOptionsReport::of(reply.options));
    let report = JobReport { selection, options, ..JobReport::from(&job) };
    context.output.result(&report, || {
        let selection = report.selection.as_ref().map(SelectionReport::words);
        let options = report.options.as_ref().map(JobOptionsReport::words);
        let how: Vec<_> = selection.into_iter().chain(options).collect();
        match how.is_empty() {
            true => watch::summary(&job),
            false => format!("{}\n  {}", watch::summary(&job), how.join(" ")),
        }
    })?;
    Ok(Exit::Done)
}
