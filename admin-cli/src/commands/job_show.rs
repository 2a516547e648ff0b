//! `millrace job show ID [--wait]`.

use millrace_protocol::{admin::ShowJob, selection::ShowSelection};

use crate::{
    arguments::JobShowArguments,
    context::Context,
    exit::Exit,
    report::{JobReport, SelectionReport},
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
    let report = JobReport { selection, ..JobReport::from(&job) };
    context.output.result(&report, || match &report.selection {
        Some(selection) => format!("{}\n  {}", watch::summary(&job), selection.words()),
        None => watch::summary(&job),
    })?;
    Ok(Exit::Done)
}
